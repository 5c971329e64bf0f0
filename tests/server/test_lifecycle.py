"""Clients that leave, readers that stall, faults in the middle: what each side is told."""

import asyncio
import socket
import time
from collections.abc import Callable

import httpx
import pytest
from tests.fakes import FakeEngine, Play
from tests.server.live import connect, serving

from vivace.audio.ends import FADE_OUT
from vivace.config import ServerConfig
from vivace.errors import EngineFailure, Overloaded, Unavailable, VivaceError
from vivace.server.order import read_order
from vivace.server.speaking import Speaking
from vivace.server.workers import Workers
from vivace.types import FinishReason

SPEECH = "/v1/audio/speech"
BODY = {"input": "Hello.", "response_format": "pcm"}


@pytest.mark.parametrize("heard", [0, 1, 5])
def test_client_that_leaves_frees_its_session(
    client: httpx.Client, engine: FakeEngine, heard: int
) -> None:
    engine.play = Play(chunks=10, open_gates=0)
    with connect(client, BODY):
        session = engine.next_session()
        assert session.waiting.wait(timeout=30)
        session.allow(heard)
    assert session.cancelled.wait(timeout=30)
    assert session.made <= heard
    assert session.done is not None
    assert session.done.reason is FinishReason.CANCELLED
    engine.play = Play()
    assert client.post(SPEECH, json=BODY).status_code == 200


def test_client_that_resets_frees_its_session(client: httpx.Client, engine: FakeEngine) -> None:
    engine.play = Play(open_gates=0)
    sock = connect(client, BODY)
    session = engine.next_session()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()
    assert session.cancelled.wait(timeout=30)


def test_finished_request_is_closed_too(client: httpx.Client, engine: FakeEngine) -> None:
    client.post(SPEECH, json=BODY)
    session = engine.next_session()
    assert session.cancelled.wait(timeout=30)  # a no-op by then
    assert session.done is not None
    assert session.done.reason is FinishReason.STOP


@pytest.mark.parametrize("form", ["wav", "pcm"])
@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        (EngineFailure("boom"), 500, "server_error"),
        (Unavailable("out of memory"), 503, "server_error"),
        (VivaceError("boom"), 500, "server_error"),
        (ZeroDivisionError("secret"), 500, "server_error"),
    ],
)
def test_case_45_fault_before_the_first_sound_has_a_status(
    client: httpx.Client, engine: FakeEngine, form: str, fault: Exception, status: int, kind: str
) -> None:
    engine.play = Play(fault_at=0, fault=fault)
    reply = client.post(SPEECH, json={**BODY, "response_format": form})
    assert reply.status_code == status
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    assert reply.json()["error"]["type"] == kind
    assert "secret" not in reply.text


@pytest.mark.parametrize("form", ["wav", "pcm"])
@pytest.mark.parametrize("at", [1, 9])
@pytest.mark.parametrize("fault", [EngineFailure("boom"), ZeroDivisionError("secret")])
def test_case_45_later_fault_breaks_the_body_off(
    client: httpx.Client, engine: FakeEngine, form: str, at: int, fault: Exception
) -> None:
    engine.play = Play(chunks=10, fault_at=at, fault=fault)
    heard = b""
    with (
        pytest.raises(httpx.RemoteProtocolError),
        client.stream("POST", SPEECH, json={**BODY, "response_format": form}) as reply,
    ):
        assert reply.status_code == 200
        for piece in reply.iter_raw():
            heard += piece
    # Sound to the last byte but those that would have faded out, no words.
    assert len(heard) == at * 3840 - 2 * FADE_OUT + 44 * (form == "wav")


@pytest.mark.parametrize("chunks", [0, 1])
def test_session_cancelled_from_inside_is_no_success(
    client: httpx.Client, engine: FakeEngine, chunks: int
) -> None:
    engine.play = Play(chunks=chunks, reason=FinishReason.CANCELLED)
    if chunks:
        with pytest.raises(httpx.RemoteProtocolError):
            client.post(SPEECH, json=BODY)
    else:
        assert client.post(SPEECH, json=BODY).status_code == 503


def test_overload_says_when_to_come_back(client: httpx.Client, engine: FakeEngine) -> None:
    engine.play = Play(refusal=Overloaded("all 80 places are taken", retry_after_s=1.2))
    reply = client.post(SPEECH, json=BODY)
    assert reply.status_code == 429
    assert reply.headers["retry-after"] == "2"
    assert reply.json()["error"]["type"] == "rate_limit_error"


def response(engine: FakeEngine, stall_s: float) -> Callable[..., object]:
    return Speaking(engine, read_order(BODY, engine, ServerConfig()), Workers(1), stall_s)


async def never() -> None:
    await asyncio.Event().wait()


async def test_slow_reader_holds_back_its_own_session(engine: FakeEngine) -> None:
    engine.play = Play(chunks=100)
    sent, go_on = asyncio.Queue(), asyncio.Semaphore(1)

    async def send(message: dict[str, object]) -> None:
        await go_on.acquire()
        sent.put_nowait(message)

    task = asyncio.create_task(response(engine, 60)({"state": {"request_id": "r"}}, never, send))
    await sent.get()  # the head; nobody reads the body
    for _ in range(1000):
        await asyncio.sleep(0)
    session = engine.next_session()
    assert session.made == 1
    for _ in range(200):
        go_on.release()
    await task
    assert session.made == 100
    assert sent.qsize() == 101


async def test_reader_that_stalls_is_given_up(engine: FakeEngine) -> None:
    engine.play = Play(chunks=100)
    bodies = 0

    async def send(message: dict[str, object]) -> None:
        nonlocal bodies
        bodies += message["type"] == "http.response.body"
        if bodies == 2:
            await never()

    await response(engine, 0.01)({"state": {"request_id": "r"}}, never, send)
    session = engine.next_session()
    assert session.done is not None
    assert session.done.reason is FinishReason.CANCELLED
    assert bodies == 2  # and no clean end


@pytest.mark.parametrize(("path", "body"), [(SPEECH, BODY), (f"{SPEECH}/batch", {"items": [BODY]})])
def test_stalled_reader_keeps_no_connection(path: str, body: dict[str, object]) -> None:
    engine = FakeEngine()
    engine.play = Play(chunks=2_000)  # more than the sockets' buffers hold
    config = ServerConfig(stall_s=0.5)
    with (
        serving(engine, config) as live,
        httpx.Client(base_url=live.url) as client,
        connect(client, body, path),
    ):
        assert engine.next_session().cancelled.wait(timeout=30)
        for _ in range(300):
            if not live.server.server_state.connections:
                break
            time.sleep(0.1)
        assert not live.server.server_state.connections


async def test_cancelled_task_frees_its_session(engine: FakeEngine) -> None:
    engine.play = Play(open_gates=0)

    async def send(message: dict[str, object]) -> None: ...

    task = asyncio.create_task(response(engine, 60)({"state": {"request_id": "r"}}, never, send))
    while engine.sessions.empty():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.next_session().cancelled.is_set()
