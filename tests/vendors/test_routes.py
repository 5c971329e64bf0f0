"""ElevenLabs' and Cartesia's HTTP routes: every field honoured, mapped or refused by its name."""

import base64
import json
import struct
from typing import Any

import httpx
import numpy as np
import pytest
from tests.audio.heard import by_ffmpeg
from tests.fakes import FakeEngine, Play
from tests.vendors.conftest import Places

from vivace.config import ServerConfig
from vivace.errors import Overloaded, VivaceError
from vivace.server.elevenlabs import SOUNDS
from vivace.server.live.conversation import Stage
from vivace.server.vendors import Edge
from vivace.server.workers import Workers

SPEECH = "/v1/text-to-speech/ryan"
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000}
BODY = {"model_id": "sonic-3", "transcript": "Hello.", "voice": "ryan", "output_format": RAW}


@pytest.fixture
def client(places: Places) -> Any:
    with httpx.Client(base_url=places.http, timeout=30) as client:
        yield client


@pytest.mark.parametrize("name", SOUNDS)
def test_every_sound_of_elevenlabs(client: httpx.Client, engine: FakeEngine, name: str) -> None:
    """It is what its name says: codec, rate and rate of bits."""
    engine.play = Play(chunks=25)  # two seconds
    codec, rate, *kbit = name.split("_")
    reply = client.post(SPEECH, params={"output_format": name}, json={"text": "Hello."})
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("audio/")
    form = {"ulaw": "mulaw"}.get(codec, codec)
    sound, heard_rate = by_ffmpeg(reply.content, form, int(rate))
    assert heard_rate == int(rate)
    assert len(sound) / heard_rate == pytest.approx(2.0, abs=0.12)
    if codec == "mp3":  # Opus spends what the sound needs
        assert len(reply.content) * 8 / 2.0 == pytest.approx(int(kbit[0]) * 1000, rel=0.06)


def test_the_default_sound_of_elevenlabs(client: httpx.Client, engine: FakeEngine) -> None:
    for path in (SPEECH, f"{SPEECH}/stream"):
        reply = client.post(path, json={"text": "Hello."})
        assert reply.headers["content-type"] == "audio/mpeg"
        assert by_ffmpeg(reply.content, "mp3", 44_100)[1] == 44_100
        session = engine.next_session()
        assert session.text == "Hello." and session.request.voice == "ryan"


def test_fields_of_elevenlabs(client: httpx.Client, engine: FakeEngine) -> None:
    body = {
        "text": "Hallo.",
        "model_id": "eleven_multilingual_v2",
        "language_code": "de",
        "seed": 7,
        "apply_text_normalization": "off",
        "voice_settings": {"speed": 2.0, "stability": 0.5, "style": None},
        "previous_text": "Before.",
        "instructions": "Calm.",
    }
    params = {"output_format": "pcm_24000", "enable_logging": "false"}
    reply = client.post(SPEECH, params=params, json=body)
    request = engine.next_session().request
    assert (request.language, request.sampling.seed, request.normalize) == ("german", 7, False)
    assert request.instruct == "Calm."  # ours, let through
    assert len(reply.content) == 3 * 3840 // 2
    warning = reply.headers["x-vivace-warning"]
    assert warning == "ignored unknown fields: previous_text, voice_settings.stability"


@pytest.mark.parametrize(
    ("change", "params", "status", "param"),
    [
        ({"text": None}, {}, 400, "text"),
        ({"text": " "}, {}, 400, "text"),
        ({"text": 3}, {}, 422, "text"),
        ({"text": "x" * 65_537}, {}, 422, "text"),
        ({"language_code": "pl"}, {}, 422, "language_code"),
        ({"voice_settings": {"speed": 9}}, {}, 422, "voice_settings.speed"),
        ({"voice_settings": 3}, {}, 422, "voice_settings"),
        ({"apply_text_normalization": "so-so"}, {}, 422, "apply_text_normalization"),
        ({"seed": -1}, {}, 422, "seed"),
        ({}, {"output_format": "mp3_8"}, 422, "output_format"),
    ],
)
def test_refusals_of_elevenlabs(
    client: httpx.Client, change: dict[str, Any], params: dict[str, str], status: int, param: str
) -> None:
    reply = client.post(SPEECH, params=params, json={"text": "Hello."} | change)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (status, param)
    assert f"`{param}`" in error["message"] or param == "language_code"


def test_voices(client: httpx.Client, engine: FakeEngine) -> None:
    """Ids of the vendors' own are stood in for, with a word; any other name must be known."""
    for theirs, ours in (
        ("NOVA", "vivian"),
        ("JBFqnCBsd6RMkjVDRZzb", "serena"),
        ("6ccbfb76-1fc6-48f7-b71d-91ac6298247b", "serena"),
    ):
        first = client.post(f"/v1/text-to-speech/{theirs}", json={"text": "Hello."})
        second = client.post("/tts/bytes", json=BODY | {"voice": {"mode": "id", "id": theirs}})
        for reply in (first, second):
            assert engine.next_session().request.voice == ours
            assert ("stands in" in reply.headers.get("x-vivace-warning", "")) == (ours == "serena")
        assert client.get(f"/v1/voices/{theirs}").json()["voice_id"] == ours
        assert client.get(f"/voices/{theirs}").json()["id"] == ours
    assert client.post("/v1/text-to-speech/nobody", json={"text": "Hi."}).status_code == 404
    assert client.post("/tts/bytes", json=BODY | {"voice": "nobody"}).status_code == 404
    assert client.get("/v1/voices/nobody").status_code == 404


def test_an_alias_comes_before_a_stand_in(engine: FakeEngine) -> None:
    config = ServerConfig(voice_aliases={"JBFqnCBsd6RMkjVDRZzb": "ryan"})
    edge = Edge(engine, config, Workers())  # type: ignore[arg-type]
    assert isinstance(edge, Stage) and edge.voice("JBFqnCBsd6RMkjVDRZzb").id == "ryan"


def test_lists(client: httpx.Client, engine: FakeEngine) -> None:
    names = [voice.id for voice in engine.voices]
    for path in ("/v1/voices", "/v2/voices"):
        assert [voice["voice_id"] for voice in client.get(path).json()["voices"]] == names
    assert [voice["id"] for voice in client.get("/voices").json()["data"]] == names
    after = client.get("/voices", params={"starting_after": names[6]}).json()["data"]
    assert [voice["id"] for voice in after] == names[7:]
    (model,) = client.get("/v1/models", headers={"xi-api-key": "any"}).json()
    assert model["model_id"] == engine.model_id and model["can_do_text_to_speech"]
    assert {"language_id": "en", "name": "English"} in model["languages"]
    assert client.get("/v1/models").json()["object"] == "list"


@pytest.mark.parametrize(
    "path",
    [f"{SPEECH}/with-timestamps", f"{SPEECH}/stream/with-timestamps"],
)
def test_what_is_not_there_yet_is_refused_by_name(client: httpx.Client, path: str) -> None:
    reply = client.post(path, json={"text": "Hello."})
    assert reply.status_code == 422
    assert reply.json()["error"]["code"] == "not_supported_yet"


def test_cartesia_streams_and_full_means_later(client: httpx.Client, engine: FakeEngine) -> None:
    engine.play = Play(chunks=3, open_gates=1)
    with client.stream("POST", "/tts/bytes", json=BODY) as reply:
        assert reply.status_code == 200
        pieces = reply.iter_raw()
        assert next(pieces)  # while the second chunk cannot be there
        session = engine.next_session()
        assert session.made == 1
        session.allow(2)
        assert sum(map(len, pieces)) > 3840
    engine.play = Play(refusal=Overloaded("full", retry_after_s=2))
    reply = client.post("/tts/bytes", json=BODY)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")


TAGS = {"pcm_s16le": (1, 2), "pcm_f32le": (3, 4), "pcm_alaw": (6, 1), "pcm_mulaw": (7, 1)}


@pytest.mark.parametrize("encoding", TAGS)
@pytest.mark.parametrize("rate", [8_000, 44_100])
def test_packings_of_cartesia(
    client: httpx.Client, engine: FakeEngine, encoding: str, rate: int
) -> None:
    shape = {"encoding": encoding, "sample_rate": rate}
    raw = client.post("/tts/bytes", json=BODY | {"output_format": {"container": "raw", **shape}})
    wav = client.post("/tts/bytes", json=BODY | {"output_format": {"container": "wav", **shape}})
    tag, width = TAGS[encoding]
    assert len(raw.content) == round(3 * 1920 * rate / 24_000) * width
    assert wav.content[44:] == raw.content
    said = struct.unpack_from("<HHIIHH", wav.content, 20)
    assert said == (tag, 1, rate, rate * width, width, 8 * width)
    name = {"pcm_s16le": "s16le", "pcm_f32le": "f32le"}.get(encoding, encoding[4:])
    if name in ("s16le", "f32le"):
        kind, scale = ("<i2", 32767.0) if name == "s16le" else ("<f4", 1.0)
        samples = np.frombuffer(raw.content, kind) / scale
        assert samples[len(samples) // 2] == pytest.approx(0.002, abs=1e-4)  # the second chunk


def test_mp3_of_cartesia(client: httpx.Client, engine: FakeEngine) -> None:
    form = {"container": "mp3", "bit_rate": 64_000, "sample_rate": 44_100}
    reply = client.post("/tts/bytes", json=BODY | {"output_format": form})
    assert reply.headers["content-type"] == "audio/mpeg"
    assert by_ffmpeg(reply.content, "mp3", 44_100)[1] == 44_100


def test_fields_of_cartesia(client: httpx.Client, engine: FakeEngine) -> None:
    tuning = {"speed": 1.5, "emotion": "calm", "volume": 1.2}
    body = BODY | {"locale": "de-AT", "normalization": "off", "generation_config": tuning}
    reply = client.post("/tts/bytes", json=body | {"pronunciation_dict_id": "x", "save": True})
    request = engine.next_session().request
    assert (request.language, request.normalize) == ("german", False)
    assert "calm" in request.instruct
    assert len(reply.content) == 3 * 3840 / 1.5
    warning = reply.headers["x-vivace-warning"]
    assert "pronunciation_dict_id" in warning and "generation_config.volume" in warning
    for word, factor in (("slow", 0.8), ("fast", 1.25)):
        reply = client.post("/tts/bytes", json=BODY | {"speed": word})
        assert len(reply.content) == pytest.approx(3 * 3840 / factor, abs=2)


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"transcript": None}, 400, "transcript"),
        ({"voice": {"mode": "embedding", "embedding": [0.1]}}, 422, "voice"),
        ({"language": "xx-not"}, 422, "language"),
        ({"language": "en", "locale": "de"}, 422, "locale"),
        ({"generation_config": {"speed": "quick"}}, 422, "generation_config.speed"),
        ({"output_format": {**RAW, "encoding": "pcm_s24le"}}, 422, "encoding"),
        ({"output_format": {**RAW, "sample_rate": 3}}, 422, "sample_rate"),
        ({"output_format": {"container": "mp3", "bit_rate": 7}}, 422, "output_format"),
        ({"output_format": {"container": "flac"}}, 422, "container"),
    ],
)
def test_refusals_of_cartesia(
    client: httpx.Client, change: dict[str, Any], status: int, param: str
) -> None:
    reply = client.post("/tts/bytes", json=BODY | change)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)


def events(body: str) -> list[dict[str, Any]]:
    found = []
    for block in body.strip().split("\n\n"):
        kind, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {found[-1]['type']}"
    return found


def test_events_of_cartesia(client: httpx.Client, engine: FakeEngine) -> None:
    body = BODY | {"context_id": "one", "add_timestamps": True}
    reply = client.post("/tts/sse", json=body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "add_timestamps" in reply.headers["x-vivace-warning"]
    *chunks, last = events(reply.text)
    sound = b"".join(base64.b64decode(chunk["data"]) for chunk in chunks)
    assert sound == client.post("/tts/bytes", json=BODY).content
    assert all(chunk["type"] == "chunk" and not chunk["done"] for chunk in chunks)
    assert (last["type"], last["done"], last["status_code"]) == ("done", True, 200)
    assert {chunk["context_id"] for chunk in [*chunks, last]} == {"one"}


def test_an_event_for_what_broke_off(client: httpx.Client, engine: FakeEngine) -> None:
    engine.play = Play(fault_at=2, fault=VivaceError("the card is gone"))
    *_, last = events(client.post("/tts/sse", json=BODY).text)
    assert (last["type"], last["done"], last["status_code"]) == ("error", True, 500)
    assert last["message"] == "the card is gone"
