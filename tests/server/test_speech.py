"""What a good request gets: sound in the format it asked for, while it is being made."""

import asyncio
import io
import json
import struct
import threading
import wave
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from tests.audio.heard import by_ffmpeg, by_sndfile
from tests.fakes import FakeEngine, Play, sound

from vivace.audio.encode import FORMATS, Pipeline
from vivace.audio.wav import wav_header
from vivace.config import ServerConfig
from vivace.server.order import read_order
from vivace.server.speaking import Speaking
from vivace.server.workers import Workers
from vivace.types import FinishReason

SPEECH = "/v1/audio/speech"
FRAME_BYTES = 1920 * 2


def speech(chunks: int, form: str = "pcm") -> bytes:
    pipeline = Pipeline(FORMATS[form])
    return b"".join(pipeline.encode(sound(n).pcm) for n in range(chunks)) + pipeline.finish()


def test_pcm_is_the_samples_and_nothing_else(client: httpx.Client) -> None:
    reply = client.post(SPEECH, json={"input": "Hello.", "response_format": "pcm"})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "audio/pcm"
    assert reply.headers["transfer-encoding"] == "chunked"
    assert reply.content == speech(3)


@pytest.mark.parametrize("fields", [{}, {"response_format": None}, {"response_format": "MP3"}])
def test_case_59_mp3_is_the_default(client: httpx.Client, fields: dict[str, object]) -> None:
    reply = client.post(SPEECH, json={"input": "Hello.", **fields})
    assert reply.headers["content-type"] == "audio/mpeg"
    assert reply.content[:2] == b"\xff\xfb"  # a frame of MPEG-1 layer III
    assert reply.content == speech(3, "mp3")


@pytest.mark.parametrize(
    ("form", "kind", "magic"),
    [
        ("mp3", "audio/mpeg", b"\xff\xfb"),
        ("opus", "audio/ogg", b"OggS"),
        ("aac", "audio/aac", b"\xff\xf1"),
        ("flac", "audio/flac", b"fLaC"),
        ("wav", "audio/wav", b"RIFF"),
        ("pcm", "audio/pcm", b""),
        ("mulaw", "audio/PCMU", b""),
        ("alaw", "audio/PCMA", b""),
    ],
)
def test_every_format_streams_what_its_encoder_makes(
    client: httpx.Client, form: str, kind: str, magic: bytes
) -> None:
    reply = client.post(SPEECH, json={"input": "Hello.", "response_format": form})
    assert reply.headers["content-type"] == kind
    assert reply.headers["transfer-encoding"] == "chunked"
    assert reply.content.startswith(magic)
    assert reply.content == speech(3, form)


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("pcm", "audio/pcm;rate=16000"),
        ("mulaw", "audio/PCMU;rate=16000"),
        ("wav", "audio/wav"),
        ("flac", "audio/flac"),
    ],
)
def test_another_rate(client: httpx.Client, form: str, kind: str) -> None:
    body = {"input": "Hello.", "response_format": form, "sample_rate": 16_000}
    reply = client.post(SPEECH, json=body)
    assert reply.headers["content-type"] == kind
    samples, rate = by_ffmpeg(reply.content, form, 16_000)
    assert (len(samples), rate) == (3 * 1280, 16_000)


def test_speed_changes_how_long_it_takes(client: httpx.Client) -> None:
    body = {"input": "Hello.", "response_format": "pcm", "speed": 1.5}
    assert len(client.post(SPEECH, json=body).content) == 3 * FRAME_BYTES / 1.5


def test_first_byte_leaves_before_the_last_frame_is_made(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.play = Play(chunks=50, open_gates=1)
    body = {"input": "Hello.", "response_format": "pcm"}
    with client.stream("POST", SPEECH, json=body) as reply:
        pieces = reply.iter_raw()
        heard = next(pieces)
        session = engine.next_session()
        assert session.made == 1
        assert heard == speech(50)[: len(heard)]
        session.allow(49)
        assert heard + b"".join(pieces) == speech(50)


def test_text_and_request_reach_the_engine(client: httpx.Client, engine: FakeEngine) -> None:
    client.post(SPEECH, json={"input": " Grüße, 世界 😊 ", "voice": "Ryan", "seed": 3})
    session = engine.next_session()
    assert session.text == " Grüße, 世界 😊 "
    assert session.request.voice == "ryan"
    assert session.request.sampling.seed == 3


def test_unknown_fields_are_ignored_with_a_warning(client: httpx.Client) -> None:
    reply = client.post(SPEECH, json={"input": "Hi.", "x\r\nset-cookie: a": 1, "größe": {}})
    assert reply.status_code == 200
    assert reply.headers["x-vivace-warning"] == ("ignored unknown fields: x??set-cookie: a, gr??e")
    assert "set-cookie" not in reply.headers


def test_no_warning_without_cause(client: httpx.Client) -> None:
    assert "x-vivace-warning" not in client.post(SPEECH, json={"input": "Hi."}).headers


@pytest.mark.parametrize("form", ["wav", "pcm", "mp3"])
def test_no_audio_is_an_empty_file_that_says_so(
    client: httpx.Client, engine: FakeEngine, form: str
) -> None:
    engine.play = Play(chunks=0, reason=FinishReason.NO_AUDIO)
    reply = client.post(SPEECH, json={"input": "Hi.", "response_format": form})
    assert reply.status_code == 200
    assert reply.headers["x-finish-reason"] == "no_audio"
    assert reply.content == (wav_header(0) if form == "wav" else b"")


def test_length_ends_cleanly(client: httpx.Client, engine: FakeEngine) -> None:
    engine.play = Play(reason=FinishReason.LENGTH)
    assert client.post(SPEECH, json={"input": "Hi."}).content == speech(3, "mp3")


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"sample_rate": 8_000},
        {"sample_rate": 44_100},
        {"speed": 1.37},
        {"speed": 0.3, "sample_rate": 11_025},
        {"response_format": "mulaw"},
        {"response_format": "alaw", "speed": 3.9},
    ],
)
async def test_case_57_every_raw_chunk_holds_whole_samples(
    engine: FakeEngine, how: dict[str, object]
) -> None:
    engine.play = Play(chunks=20)
    order = read_order(
        {"input": "Hello.", "response_format": "pcm"} | how,
        engine,  # type: ignore[arg-type]
        ServerConfig(),
    )
    sizes: list[int] = []

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            sizes.append(len(message["body"]))

    async def nothing() -> None:
        await asyncio.Event().wait()

    speaking = Speaking(engine, order, Workers(1), 60)  # type: ignore[arg-type]
    await speaking({"state": {"request_id": "r"}}, nothing, send)
    output, size = order.output, 2 if order.output.format.name == "pcm" else 1
    samples = round(round(20 * 1920 / output.speed) * output.rate / 24_000)
    assert sum(sizes) == size * samples
    assert len(sizes) > 5
    assert all(length % size == 0 for length in sizes)


def strict_chunks(data: bytes) -> dict[bytes, bytes]:
    """A parser that believes nothing but the RIFF layout; an unknown size lasts to the end."""
    riff, size, kind = struct.unpack("<4sI4s", data[:12])
    assert (riff, kind) == (b"RIFF", b"WAVE")
    assert size in (2**32 - 1, len(data) - 8)
    found, at = {}, 12
    while at < len(data):
        name, size = struct.unpack("<4sI", data[at : at + 8])
        end = len(data) if size == 2**32 - 1 else at + 8 + size
        assert end <= len(data)
        assert name not in found
        found[name], at = data[at + 8 : end], end
    return found


def test_case_58_streamed_wav_has_one_header_and_nothing_after_the_data(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.play = Play(chunks=20)
    data = client.post(SPEECH, json={"input": "Hello.", "response_format": "wav"}).content
    chunks = strict_chunks(data)
    assert list(chunks) == [b"fmt ", b"data"]
    assert struct.unpack("<HHIIHH", chunks[b"fmt "]) == (1, 1, 24_000, 48_000, 2, 16)
    assert chunks[b"data"] == speech(20)
    with wave.open(io.BytesIO(data)) as reader:
        assert reader.getframerate() == 24_000
        assert reader.readframes(10**6) == speech(20)
    for decode in (by_ffmpeg, by_sndfile):
        samples, rate = decode(data, "wav")
        assert (np.rint(samples * 32768).astype("<i2").tobytes(), rate) == (speech(20), 24_000)


def test_encoding_and_long_texts_stay_off_the_event_loop(
    client: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, set[bool]] = {}

    def watched(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            aside = threading.current_thread().name.startswith("vivace-edge")
            threads.setdefault(name, set()).add(aside)
            return work(*args)

        return call

    monkeypatch.setattr(Pipeline, "encode", watched("encode", Pipeline.encode))
    monkeypatch.setattr(Pipeline, "finish", watched("finish", Pipeline.finish))
    monkeypatch.setattr(engine, "say", watched("say", engine.say))
    for body, aside in (
        ({"input": "Hi.", "response_format": "pcm"}, {"encode": {False}, "say": {False}}),
        ({"input": "Hi."}, {"encode": {True}, "finish": {True}, "say": {False}}),
        ({"input": "Hi.", "response_format": "pcm", "speed": 2}, {"encode": {True}}),
        ({"input": "Hi. " * 15_000, "response_format": "wav"}, {"say": {True}}),
    ):
        threads.clear()
        assert client.post(SPEECH, json=body).status_code == 200
        assert aside.items() <= threads.items()


def test_accepts_what_the_clients_send(client: httpx.Client) -> None:
    body = {
        "model": "tts-1",
        "input": "Hello.",
        "voice": "alloy",
        "instructions": None,
        "response_format": "pcm",
        "speed": 1.0,
        "stream_format": "audio",
    }
    for kind in ("application/json", "application/json; charset=UTF-8", "Application/JSON"):
        reply = client.post(SPEECH, content=json.dumps(body), headers={"content-type": kind})
        assert reply.status_code == 200
        assert len(np.frombuffer(reply.content, dtype="<i2")) == 3 * 1920
