"""OpenAI's own client against the server: what an app does that changes its base URL alone."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from tests.audio.heard import by_ffmpeg
from tests.fakes import FakeEngine, FakeSession, Play
from tests.server.test_speech import speech

from vivace.audio.encode import FORMATS
from vivace.errors import EngineFailure, Overloaded, Unavailable
from vivace.types import SpeechRequest

ASK = {"model": "tts-1", "voice": "alloy", "input": "Hello there."}
SIX = ["mp3", "opus", "aac", "flac", "wav", "pcm"]


@pytest.fixture
def sdk(client: httpx.Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def test_case_59_a_bare_request_is_mp3(sdk: openai.OpenAI, engine: FakeEngine) -> None:
    reply = sdk.audio.speech.create(**ASK)
    assert reply.response.headers["content-type"] == "audio/mpeg"
    assert reply.content == speech(3, "mp3")
    session = engine.next_session()
    assert (session.text, session.request.voice) == ("Hello there.", "vivian")


@pytest.mark.parametrize("form", SIX)
def test_streams_to_a_file(sdk: openai.OpenAI, tmp_path: Path, form: str) -> None:
    path = tmp_path / f"speech.{form}"
    with sdk.audio.speech.with_streaming_response.create(**ASK, response_format=form) as reply:
        reply.stream_to_file(path)
    sound, rate = by_ffmpeg(path.read_bytes(), form, FORMATS[form].rate)
    assert 0 <= len(sound) / rate - 0.24 < 0.06


@pytest.mark.parametrize("form", SIX)
async def test_streams_to_an_async_client(client: httpx.Client, form: str) -> None:
    url = f"{client.base_url}/v1"
    async with (
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as sdk,
        sdk.audio.speech.with_streaming_response.create(**ASK, response_format=form) as reply,
    ):
        assert b"".join([piece async for piece in reply.iter_bytes()]) == speech(3, form)


def test_sound_is_there_before_the_end(sdk: openai.OpenAI, engine: FakeEngine) -> None:
    engine.play = Play(chunks=50, open_gates=1)
    with sdk.audio.speech.with_streaming_response.create(**ASK) as reply:
        pieces = reply.iter_bytes(1)
        heard = next(pieces)
        session = engine.next_session()
        assert session.made == 1
        session.allow(49)
        assert heard + b"".join(pieces) == speech(50, "mp3")


@pytest.mark.parametrize("form", SIX)
def test_case_61_events_as_lines(sdk: openai.OpenAI, form: str) -> None:
    ask = {**ASK, "model": "gpt-4o-mini-tts", "response_format": form, "stream_format": "sse"}
    with sdk.audio.speech.with_streaming_response.create(**ask) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.iter_lines() if line]
    assert [line[:6] for line in lines] == ["event:", "data: "] * (len(lines) // 2)
    events = [json.loads(line[6:]) for line in lines[1::2]]
    assert [line[7:] for line in lines[::2]] == [event["type"] for event in events]
    sound = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert sound == speech(3, form)
    assert events[-1] == {
        "type": "speech.audio.done",
        "finish_reason": "stop",
        "usage": {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15},
    }


def test_case_62_fields_that_the_clients_have(sdk: openai.OpenAI, engine: FakeEngine) -> None:
    reply = sdk.audio.speech.create(
        **{**ASK, "voice": {"id": "ryan"}},
        speed=1.5,
        response_format="pcm",
        extra_body={"seed": 1, "instructions": None, "speaker": "Ryan", "user": "u-1"},
    )
    assert len(reply.content) == 3 * 3840 / 1.5
    assert reply.response.headers["x-vivace-warning"] == "ignored unknown fields: user"
    request = engine.next_session().request
    assert (request.voice, request.instruct, request.sampling.seed) == ("ryan", "", 1)


def test_instructions_reach_the_engine(sdk: openai.OpenAI, engine: FakeEngine) -> None:
    sdk.audio.speech.create(**ASK, instructions="Whisper.")
    assert engine.next_session().request.instruct == "Whisper."


def test_models(sdk: openai.OpenAI) -> None:
    names = [model.id for model in sdk.models.list()]
    assert names == ["vivace-fake", "vivace", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
    assert sdk.models.retrieve("tts-1-hd").id == "tts-1-hd"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("whisper-1")


def test_voices(sdk: openai.OpenAI) -> None:
    listed = sdk.get("/audio/voices", cast_to=httpx.Response).json()["voices"]
    assert {"id", "name"} <= set(listed[0])
    with pytest.raises(openai.UnprocessableEntityError, match="base checkpoint"):
        sdk.audio.voices.create(name="Me", audio_sample=b"RIFF", consent="c")
    with pytest.raises(openai.UnprocessableEntityError, match="keeps no voices"):
        sdk.audio.voices.delete("v")


@pytest.mark.parametrize(
    ("wrong", "kind", "param"),
    [
        ({"input": ""}, openai.BadRequestError, "input"),
        ({"voice": "nobody"}, openai.NotFoundError, "voice"),
        ({"model": "gpt-5"}, openai.NotFoundError, "model"),
        ({"speed": 5}, openai.UnprocessableEntityError, "speed"),
        ({"response_format": "ogg"}, openai.UnprocessableEntityError, "response_format"),
    ],
)
def test_mistakes_are_the_sdks_own_errors(
    sdk: openai.OpenAI, wrong: dict[str, object], kind: type[openai.APIStatusError], param: str
) -> None:
    with pytest.raises(kind) as caught:
        sdk.audio.speech.create(**{**ASK, **wrong})
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


@pytest.mark.parametrize("fault", [EngineFailure("boom"), Unavailable("out of memory")])
def test_our_faults_are_server_errors(
    sdk: openai.OpenAI, engine: FakeEngine, fault: Exception
) -> None:
    engine.play = Play(fault_at=0, fault=fault)
    with pytest.raises(openai.InternalServerError) as caught:
        sdk.audio.speech.create(**ASK)
    assert caught.value.type == "server_error"


def test_a_refused_request_is_tried_again_when_we_said(
    sdk: openai.OpenAI, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [Overloaded("full", retry_after_s=0.01), Overloaded("full", retry_after_s=0.02)]
    say = engine.say

    def full_at_first(text: str, request: SpeechRequest) -> FakeSession:
        if refusals:
            raise refusals.pop()
        return say(text, request)

    monkeypatch.setattr(engine, "say", full_at_first)
    with pytest.raises(openai.RateLimitError) as caught:
        sdk.audio.speech.create(**ASK)
    assert caught.value.response.headers["retry-after"] == "1"
    assert caught.value.response.headers["retry-after-ms"] == "20"
    patient = sdk.with_options(max_retries=2)
    assert patient.audio.speech.create(**ASK).content == speech(3, "mp3")
    assert refusals == []


def test_broken_off_speech_is_an_error(sdk: openai.OpenAI, engine: FakeEngine) -> None:
    engine.play = Play(fault_at=2, fault=EngineFailure("boom"))
    with pytest.raises(openai.APIConnectionError):
        sdk.audio.speech.create(**ASK)
