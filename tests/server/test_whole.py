"""`stream` false: one file that knows its length, or a status."""

import io
import wave

import httpx
import pytest
import soundfile
from tests.fakes import FakeEngine, Play
from tests.server.live import connect
from tests.server.test_speech import speech, strict_chunks

from vivace.audio.encode import FORMATS
from vivace.audio.wav import wav_header
from vivace.errors import EngineFailure
from vivace.types import FinishReason

SPEECH = "/v1/audio/speech"
BODY: dict[str, object] = {"input": "Hello.", "stream": False}


@pytest.mark.parametrize("form", sorted(set(FORMATS) - {"wav", "flac"}))
def test_a_whole_file_is_what_would_have_streamed(client: httpx.Client, form: str) -> None:
    reply = client.post(SPEECH, json={**BODY, "response_format": form})
    assert reply.content == speech(3, form)
    assert int(reply.headers["content-length"]) == len(reply.content)
    assert reply.headers["x-finish-reason"] == "stop"


def test_case_58_a_whole_wav_has_exact_sizes(client: httpx.Client) -> None:
    data = client.post(SPEECH, json={**BODY, "response_format": "wav"}).content
    assert strict_chunks(data)[b"data"] == speech(3)
    assert data[4:8] == (len(data) - 8).to_bytes(4, "little")
    assert data[40:44] == (len(data) - 44).to_bytes(4, "little")
    with wave.open(io.BytesIO(data)) as reader:
        assert reader.getnframes() == 3 * 1920
    assert len(soundfile.read(io.BytesIO(data))[0]) == 3 * 1920


def test_a_whole_flac_says_its_length(client: httpx.Client) -> None:
    data = client.post(SPEECH, json={**BODY, "response_format": "flac"}).content
    sound, rate = soundfile.read(io.BytesIO(data), dtype="int16")
    assert (sound.tobytes(), rate) == (speech(3), 24_000)


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.NO_AUDIO])
def test_its_header_says_how_it_ended(
    client: httpx.Client, engine: FakeEngine, reason: FinishReason
) -> None:
    engine.play = Play(chunks=0 if reason is FinishReason.NO_AUDIO else 3, reason=reason)
    reply = client.post(SPEECH, json=BODY)
    assert (reply.status_code, reply.headers["x-finish-reason"]) == (200, reason)


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_a_whole_file_without_sound_is_empty(
    client: httpx.Client, engine: FakeEngine, form: str
) -> None:
    engine.play = Play(chunks=0, reason=FinishReason.NO_AUDIO)
    reply = client.post(SPEECH, json={**BODY, "response_format": form})
    assert reply.content == (wav_header(0) if form == "wav" else b"")


@pytest.mark.parametrize("at", [0, 1, 9])
def test_case_45_a_fault_at_any_place_has_a_status(
    client: httpx.Client, engine: FakeEngine, at: int
) -> None:
    engine.play = Play(chunks=10, fault_at=at, fault=EngineFailure("boom"))
    reply = client.post(SPEECH, json=BODY)
    assert (reply.status_code, reply.headers["content-type"]) == (500, "application/json")


@pytest.mark.parametrize("made", [0, 2])
def test_case_38_a_client_that_leaves_frees_its_session(
    client: httpx.Client, engine: FakeEngine, made: int
) -> None:
    engine.play = Play(chunks=10, open_gates=made)
    with connect(client, BODY):
        session = engine.next_session()
        assert session.waiting.wait(timeout=30)
    assert session.cancelled.wait(timeout=30)
    assert session.made == made
