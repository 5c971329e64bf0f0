"""The requests that apps send, replayed as they send them."""

import base64
import json
from typing import Any

import httpx
import pytest
from tests.audio.heard import by_ffmpeg
from tests.fakes import PUBLISHED_VOICES, FakeEngine
from tests.server.test_speech import speech

BEARER = {"Authorization": "Bearer sk-none"}
SPEECH = "/v1/audio/speech"


def heard(reply: httpx.Response, form: str) -> float:
    """Seconds of sound in an answer."""
    assert reply.status_code == 200
    sound, rate = by_ffmpeg(reply.content, form, 24_000)
    return len(sound) / rate


def test_open_webui(client: httpx.Client, engine: FakeEngine) -> None:
    """Lists for its settings, then a body sent as text, kept as .mp3 without being converted."""
    models = client.get("/v1/audio/models", headers=BEARER).json()["models"]
    assert {"tts-1", "tts-1-hd"} <= {model["id"] for model in models}
    voices = client.get("/v1/audio/voices", headers=BEARER).json()["voices"]
    assert {voice["id"]: voice["name"] for voice in voices}["ryan"] == "Ryan"
    body = json.dumps({"model": "tts-1", "input": "Hello.", "voice": "alloy"})
    kind = {"Content-Type": "application/json", "X-OpenWebUI-User-Name": "Ada"}
    reply = client.post(SPEECH, content=body, headers=BEARER | kind)
    assert reply.headers["content-type"] == "audio/mpeg"
    assert heard(reply, "mp3") == pytest.approx(0.27, abs=0.03)


def test_sillytavern(client: httpx.Client, engine: FakeEngine) -> None:
    for speed, seconds in ((1, 0.24), (0.25, 0.96), (2.5, 0.096)):
        body = {
            "model": "tts-1",
            "input": '"Hello," she said.',
            "voice": "nova",
            "response_format": "mp3",
            "speed": speed,
        }
        reply = client.post(SPEECH, json=body, headers=BEARER)
        assert 0 <= heard(reply, "mp3") - seconds < 0.06


@pytest.mark.parametrize("form", ["wav", "mp3", "opus", "flac", "aac"])
def test_home_assistant_openai_tts(client: httpx.Client, engine: FakeEngine, form: str) -> None:
    body = {
        "model": "gpt-4o-mini-tts",
        "input": "The door is open.",
        "voice": "shimmer",
        "response_format": form,
        "speed": 1.0,
        "instructions": "Friendly.",
    }
    assert 0 <= heard(client.post(SPEECH, json=body, headers=BEARER), form) - 0.24 < 0.06
    request = engine.next_session().request
    assert (request.voice, request.instruct) == ("sohee", "Friendly.")


def test_home_assistant_wyoming_bridge(client: httpx.Client, engine: FakeEngine) -> None:
    """It asks what there is, then streams samples whose rate it has to know."""
    assert "tts-1" in [model["id"] for model in client.get("/v1/models").json()["data"]]
    voices = [voice["id"] for voice in client.get("/v1/audio/voices").json()["voices"]]
    assert voices == PUBLISHED_VOICES
    body = {"model": "tts-1", "voice": voices[0], "input": "Hi.", "response_format": "pcm"}
    assert client.post(SPEECH, json=body).content == speech(3)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize(
    ("model", "stream_format"),
    [("gpt-4o-mini-tts", "sse"), ("gpt-4o-mini-tts-2025-12-15", "sse"), ("tts-1", "audio")],
)
def test_case_61_livekit(
    client: httpx.Client, engine: FakeEngine, model: str, stream_format: str
) -> None:
    assert client.get("/v1/").status_code == 404  # how it warms a connection up
    body = {
        "input": "Hello.",
        "model": model,
        "voice": "ash",
        "response_format": "mp3",
        "speed": 1.0,
        "stream_format": stream_format,
    }
    reply = client.post(SPEECH, json=body, headers=BEARER)
    if stream_format == "audio":
        assert reply.content == speech(3, "mp3")
        return
    *deltas, done = events(reply.text)
    assert b"".join(base64.b64decode(d["audio"]) for d in deltas) == speech(3, "mp3")
    assert done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + 3


@pytest.mark.parametrize("voice", ["alloy", "fable", "marin", "cedar", "verse"])
def test_pipecat(client: httpx.Client, engine: FakeEngine, voice: str) -> None:
    body = {
        "input": "Hello.",
        "model": "gpt-4o-mini-tts",
        "voice": voice,
        "response_format": "pcm",
        "instructions": None,
    }
    reply = client.post(SPEECH, json=body, headers=BEARER)
    assert reply.headers["content-type"] == "audio/pcm"
    assert reply.content == speech(3)
