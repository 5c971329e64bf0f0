"""Several orders in one body."""

import base64
from typing import Any

import httpx
import pytest
from tests.fakes import FakeEngine, Play
from tests.server.live import connect
from tests.server.test_speech import speech

from vivace.errors import EngineFailure, Overloaded

BATCH = "/v1/audio/speech/batch"
FIVE: list[Any] = [{"input": f"Number {n}."} for n in range(5)]


def post(client: httpx.Client, items: object, **shared: object) -> httpx.Response:
    return client.post(BATCH, json={"items": items, **shared})


def test_each_item_has_its_sound(client: httpx.Client, engine: FakeEngine) -> None:
    items = [{"input": "One."}, {"input": "Two.", "voice": "ryan", "response_format": None}]
    reply = post(client, [*items, {"input": "3.", "response_format": "wav"}], voice="sohee")
    body = reply.json()
    assert (body["total"], body["succeeded"], body["failed"]) == (3, 3, 0)
    assert [result["index"] for result in body["results"]] == [0, 1, 2]
    kinds = [result["media_type"] for result in body["results"]]
    assert kinds == ["audio/mpeg", "audio/mpeg", "audio/wav"]
    sounds = [base64.b64decode(result["audio_data"]) for result in body["results"]]
    assert sounds[0] == sounds[1] == speech(3, "mp3")
    assert sounds[2][40:44] == (3 * 3840).to_bytes(4, "little")  # a whole file
    assert {result["finish_reason"] for result in body["results"]} == {"stop"}
    asked = [engine.next_session() for _ in range(3)]
    assert [(s.text, s.request.voice) for s in asked] == [
        ("One.", "sohee"),
        ("Two.", "ryan"),
        ("3.", "sohee"),
    ]


@pytest.mark.parametrize(
    ("wrong", "status", "param"),
    [
        ({"input": ""}, 400, "items[3].input"),
        ({}, 400, "items[3].input"),
        ({"input": "Hi.", "voice": "nobody"}, 404, "items[3].voice"),
        ({"input": "Hi.", "speed": 9}, 422, "items[3].speed"),
        ({"input": "Hi.", "colour": "red"}, 422, "items[3].colour"),
        ({"input": "Hi.", "stream_format": "sse"}, 422, "items[3].stream_format"),
        ({"input": 7}, 422, "items[3].input"),
        ("Hi.", 422, "items[3]"),
        (None, 422, "items[3]"),
    ],
)
def test_case_69_one_bad_item_and_none_is_begun(
    client: httpx.Client, engine: FakeEngine, wrong: Any, status: int, param: str
) -> None:
    reply = post(client, [*FIVE[:3], wrong, FIVE[4]])
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)
    assert engine.sessions.empty()


@pytest.mark.parametrize(
    "items", [None, [], "x", {"input": "Hi."}, [{"input": "Hi."}] * 33, [{"input": "a" * 9000}] * 8]
)
def test_case_69_lists_that_are_none(
    client: httpx.Client, engine: FakeEngine, items: object
) -> None:
    reply = post(client, items)
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, "items")
    assert engine.sessions.empty()


def test_a_fault_is_one_items_own(
    client: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    say, faults = (
        engine.say,
        {
            "Number 1.": Play(refusal=Overloaded("full", retry_after_s=1)),
            "Number 3.": Play(fault_at=2, fault=EngineFailure("boom")),
        },
    )

    def faulty(text: str, request: Any) -> Any:
        engine.play = faults.get(text, Play())
        return say(text, request)

    monkeypatch.setattr(engine, "say", faulty)
    body = post(client, FIVE).json()
    assert (body["succeeded"], body["failed"]) == (3, 2)
    assert [result["status"] == "error" for result in body["results"]] == [0, 1, 0, 1, 0]
    assert body["results"][1]["error"]["type"] == "rate_limit_error"
    assert body["results"][3]["error"]["message"] == "boom"
    faults["Number 2."] = Play(fault_at=1, fault=ZeroDivisionError("secret"))
    body = post(client, FIVE).json()
    assert (body["succeeded"], body["failed"]) == (2, 3)
    assert "secret" not in str(body["results"][2])


def test_a_client_that_leaves_ends_them_all(client: httpx.Client, engine: FakeEngine) -> None:
    engine.play = Play(open_gates=1)
    with connect(client, {"items": FIVE}, BATCH):
        sessions = [engine.next_session() for _ in FIVE]
        assert all(session.waiting.wait(timeout=30) for session in sessions)
    assert all(session.cancelled.wait(timeout=30) for session in sessions)
