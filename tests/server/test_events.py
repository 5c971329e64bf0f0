"""Speech as server-sent events: each format, each end."""

import base64
import json
from typing import Any

import httpx
import pytest
from tests.fakes import FakeEngine, Play
from tests.server.test_speech import speech

from vivace.audio.encode import FORMATS
from vivace.errors import EngineFailure, Overloaded
from vivace.types import FinishReason

SPEECH = "/v1/audio/speech"
BODY = {"input": "Hello.", "response_format": "pcm", "stream_format": "sse"}


def events(text: str) -> list[dict[str, Any]]:
    """Each event, checked for its frame: a name, one line of data, an empty line."""
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def sound(found: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(event["audio"]) for event in found if "audio" in event)


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_events_hold_the_bytes_of_the_format(client: httpx.Client, form: str) -> None:
    reply = client.post(SPEECH, json={**BODY, "response_format": form})
    assert reply.headers["content-type"] == "text/event-stream"
    found = events(reply.text)
    assert sound(found) == speech(3, form)
    assert [event["type"] for event in found[:-1]] == ["speech.audio.delta"] * (len(found) - 1)
    assert found[-1]["type"] == "speech.audio.done"


def test_an_event_leaves_when_its_sound_is_there(client: httpx.Client, engine: FakeEngine) -> None:
    engine.play = Play(chunks=9, open_gates=1)
    with client.stream("POST", SPEECH, json=BODY) as reply:
        pieces = reply.iter_text()
        first = next(pieces)
        session = engine.next_session()
        assert session.made == 1
        assert first.startswith("event: speech.audio.delta\n")
        session.allow(8)
        assert sound(events(first + "".join(pieces))) == speech(9)


def test_case_57_every_event_holds_whole_samples(client: httpx.Client, engine: FakeEngine) -> None:
    engine.play = Play(chunks=20)
    for rate in (8_000, 24_000, 44_100):
        found = events(client.post(SPEECH, json={**BODY, "sample_rate": rate}).text)
        assert all(len(base64.b64decode(event["audio"])) % 2 == 0 for event in found[:-1])


@pytest.mark.parametrize(
    ("chunks", "reason"), [(3, FinishReason.LENGTH), (0, FinishReason.NO_AUDIO)]
)
def test_the_last_event_says_how_it_ended(
    client: httpx.Client, engine: FakeEngine, chunks: int, reason: FinishReason
) -> None:
    engine.play = Play(chunks=chunks, reason=reason)
    found = events(client.post(SPEECH, json=BODY).text)
    assert found[-1]["finish_reason"] == reason
    assert found[-1]["usage"] == {
        "input_tokens": 6,
        "output_tokens": chunks,
        "total_tokens": 6 + chunks,
    }
    assert len(found) == (1 if chunks == 0 else len(found))


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize(
    ("fault", "words"),
    [(EngineFailure("boom"), "boom"), (ZeroDivisionError("secret"), "The server failed")],
)
def test_case_45_a_fault_after_the_first_sound_is_the_last_event(
    client: httpx.Client, engine: FakeEngine, at: int, fault: Exception, words: str
) -> None:
    engine.play = Play(fault_at=at, fault=fault)
    *deltas, last = events(client.post(SPEECH, json=BODY).text)
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    assert last["type"] == "speech.audio.error"
    assert last["error"]["type"] == "server_error"
    assert last["error"]["message"].startswith(words)


@pytest.mark.parametrize(
    ("play", "status"),
    [
        (Play(fault_at=0, fault=EngineFailure("boom")), 500),
        (Play(refusal=Overloaded("full", retry_after_s=1)), 429),
    ],
)
def test_case_45_a_fault_before_it_has_a_status(
    client: httpx.Client, engine: FakeEngine, play: Play, status: int
) -> None:
    engine.play = play
    reply = client.post(SPEECH, json=BODY)
    assert (reply.status_code, reply.headers["content-type"]) == (status, "application/json")
