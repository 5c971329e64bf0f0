"""Every state of a turn and of a connection, and everything that can happen in it."""

import asyncio
import threading
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.server.socket.client import Socket, app_of, given_back

from vivace.engine import Engine
from vivace.errors import EngineFailure
from vivace.server.live.native import TURN, Event, State
from vivace.server.live.wire import CLOSE_CODES, DRAIN, LINK, Gone, Link, Patience, Wire
from vivace.server.live.wire import Event as LinkEvent

ENDLESS = 1_000_000
ENDED = {State.DONE, State.CANCELLED}  # what comes then is for the next turn
STEPS = [pair for pair in product(State, Event) if pair[1] is not Event.OVER]
FIELDS: dict[Event, dict[str, object]] = {Event.APPEND: {"text": "Hello there. "}}


async def bring(socket: Socket, state: State, gate: threading.Event) -> int:
    """A turn in that state; its number, 0 if there is none yet. It makes no sound by itself."""
    if state is not State.DONE:
        gate.clear()
    socket.say("session.update", seed=2)
    if state is not State.NEW:
        socket.say(Event.APPEND, text="Hello")
    if state in (State.SPEAKING, State.DONE):
        socket.say(Event.END)
    if state is State.DONE:
        await socket.until("speech.audio.done")
    if state is State.CANCELLED:
        socket.say(Event.CANCEL)
        await socket.until("response.cancelled")
    return 0 if state is State.NEW else 1


async def heard_after(socket: Socket) -> list[Any]:
    """What the messages before it were answered with, samples left out."""
    socket.say("no.such.message")
    heard = await socket.until("error")
    while "no.such" not in str(heard[-1]):
        heard += await socket.until("error")
    return [message for message in heard[:-1] if isinstance(message, dict)]


@pytest.mark.parametrize(("state", "event"), STEPS)
async def test_every_message_in_every_state(
    app: ASGIApp, engine: Engine, gate: threading.Event, state: State, event: Event
) -> None:
    async with Socket(app) as socket:
        before = await bring(socket, state, gate)
        socket.say(event, **FIELDS.get(event, {}))
        heard = await heard_after(socket)
        start = State.NEW if state in ENDED else state
        # Text after a turn's end is the next turn's.
        opens = start is State.NEW or (start is State.SPEAKING and (State.NEW, event) in TURN)
        after = TURN.get((State.NEW if opens else start, event))
        created = [m["turn_id"] for m in heard if m["type"] == "response.created"]
        errors = [m for m in heard if m["type"] == "error"]
        if after is None:
            assert [error["error"]["code"] for error in errors] == ["no_open_turn"]
        else:
            assert not errors
        assert (before + 1 in created) == (opens and after is not None)
        if after is State.CANCELLED:
            assert heard[-1]["type"] == "response.cancelled"
        if event is Event.CLEAR and after:
            assert {"type": "input_text.cleared", "turn_id": 1} in heard
        # The connection is as good as before.
        gate.set()
        socket.say("response.cancel")
        socket.say("input_text.append", text="Again.")
        socket.say("input_text.end")
        last = (await socket.until("response.created"))[-1]["turn_id"]
        while (done := (await socket.until("speech.audio.done"))[-1])["turn_id"] != last:
            pass
        assert done["finish_reason"] == "stop"
    await given_back(engine)


@pytest.mark.parametrize("state", [State.TAKING, State.SPEAKING])
async def test_session_that_ends_by_itself(app: ASGIApp, engine: Engine, state: State) -> None:
    async with Socket(app) as socket:
        socket.say("session.update", max_new_tokens=3, seed=ENDLESS)
        socket.say(Event.APPEND, text="Hello there, how are you today? ")
        if state is State.SPEAKING:
            socket.say(Event.END)
        assert TURN[state, Event.OVER] is State.DONE
        done = (await socket.until("speech.audio.done"))[-1]
        assert done["finish_reason"] == "length"
        assert done["audio_s"] == pytest.approx(3 * 0.08)
        socket.say(Event.APPEND, text="More.")
        assert (await socket.until("response.created"))[-1]["turn_id"] == 2
    await given_back(engine)


# The connection.


class Ends:
    """A wire and the two ends of ASGI that it hangs on."""

    def __init__(self, **patience: float) -> None:
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: list[Any] = []
        self.room = asyncio.Event()
        self.room.set()
        self.wire = Wire(self.inbox.get, self._send, Patience(**patience))

    async def _send(self, message: Any) -> None:
        await self.room.wait()
        self.sent.append(message)

    async def open(self) -> None:
        self.inbox.put_nowait({"type": "websocket.connect"})
        await self.wire.accept()

    async def serve(self) -> None:
        async def hear(message: str | bytes) -> None:
            pass

        await self.wire.serve(hear, lambda: None)


def gone(ends: Ends) -> None:
    ends.inbox.put_nowait({"type": "websocket.disconnect", "code": 1006})


def going_down(ends: Ends) -> None:
    ends.inbox.put_nowait({"type": DRAIN})


def stalled(ends: Ends) -> None:
    ends.room.clear()
    for _ in range(1_000):
        ends.wire.post("unread")
    ends.room.set()


HAPPENS: dict[LinkEvent, Callable[[Ends], None]] = {
    LinkEvent.GONE: gone,
    LinkEvent.IDLE: lambda ends: None,  # its patience is short then
    LinkEvent.STALLED: stalled,
    LinkEvent.FAILED: lambda ends: ends.wire.fail(EngineFailure("it broke")),
    LinkEvent.SAID_ALL: lambda ends: ends.wire.finish(LinkEvent.SAID_ALL),
    LinkEvent.GOING_DOWN: going_down,
    LinkEvent.DRAINED: lambda ends: ends.wire.finish(LinkEvent.DRAINED, "bye"),
}


@pytest.mark.parametrize(
    ("link", "event"), [step for step in LINK if step[0] is not Link.CONNECTING]
)
async def test_every_step_of_a_connection(link: Link, event: LinkEvent) -> None:
    ends = Ends(idle_s=0.01 if event is LinkEvent.IDLE else 60.0)
    await ends.open()
    assert ends.wire.link is Link.OPEN
    if link is Link.DRAINING:
        going_down(ends)
    serving = asyncio.create_task(ends.serve())
    while link is Link.DRAINING and ends.wire.link is not Link.DRAINING:
        await asyncio.sleep(0)
    HAPPENS[event](ends)
    if (after := LINK[link, event]) is Link.CLOSED:
        await asyncio.wait_for(serving, 60)
    else:
        while ends.wire.link is not after:
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert ends.wire.link is after
    closes = [message for message in ends.sent if message["type"] == "websocket.close"]
    codes = {LinkEvent.FAILED: [1011], LinkEvent.GONE: []} | {
        event: [code] for event, code in CLOSE_CODES.items()
    }
    assert [close["code"] for close in closes] == codes.get(event, [])


@pytest.mark.parametrize("fault", [ValueError("ours"), TimeoutError("ours as well")])
async def test_fault_in_a_message_closes_with_1011(fault: Exception) -> None:
    ends = Ends()
    await ends.open()
    ends.inbox.put_nowait({"type": "websocket.receive", "text": "{}"})

    async def hear(message: str | bytes) -> None:
        raise fault

    await asyncio.wait_for(ends.wire.serve(hear, lambda: None), 60)
    assert ends.wire.link is Link.CLOSED
    assert ends.sent[-1]["type"] == "websocket.close" and ends.sent[-1]["code"] == 1011


@pytest.mark.parametrize("write", ["post", "finish"])
async def test_writer_that_comes_as_the_time_is_over(write: str) -> None:
    """Between the end of the reader's patience and its waking: nothing breaks, it closes."""
    ends = Ends(idle_s=0.0)
    await ends.open()
    loop, met = asyncio.get_running_loop(), list[str]()

    def come() -> None:
        if ends.wire.link is not Link.CLOSED:
            loop.call_soon(come)
            met.append(write)
            if write == "post":
                ends.wire.post("x")
            else:
                ends.wire.finish(LinkEvent.SAID_ALL)

    loop.call_soon(come)
    faults = list[str]()
    loop.set_exception_handler(lambda _, context: faults.append(str(context)))
    await asyncio.wait_for(ends.serve(), 60)
    assert met and not faults
    assert ends.sent[-1] == {"type": "websocket.close", "code": 1000, "reason": ends.wire._end[1]}


async def test_client_that_leaves_before_the_handshake() -> None:
    ends = Ends()
    gone(ends)
    with pytest.raises(Gone):
        await ends.wire.accept()
    assert ends.wire.link is LINK[Link.CONNECTING, LinkEvent.GONE]


async def test_drain_finishes_what_is_open_and_begins_nothing(engine: Engine) -> None:
    async with Socket(app_of(engine)) as socket:
        socket.say("session.update", seed=3)
        socket.say("input_text.append", text="Hello there.")
        socket.push({"type": DRAIN})
        socket.say("input_text.end")
        socket.say("input_text.append", text="Once more?")
        heard = await socket.until("speech.audio.done")
        assert heard[-1]["finish_reason"] == "stop"
        assert [
            m["error"]["type"] for m in heard if isinstance(m, dict) and m["type"] == "error"
        ] == ["server_error"]
        assert await socket.hear() is None
        assert socket.closed == (1012, "the server goes down")


async def test_writer_that_is_cancelled_leaves_nothing_behind() -> None:
    ends = Ends()
    await ends.open()
    ends.room.clear()
    writer = asyncio.create_task(ends.wire.send(b"stale"))
    await asyncio.sleep(0)
    writer.cancel()
    ends.wire.post("acknowledged")
    ends.room.set()
    await ends.wire.send(b"next")
    said = [message.get("text", message.get("bytes")) for message in ends.sent[1:]]
    assert said == ["acknowledged", b"next"]


async def test_nothing_read_for_too_long_closes() -> None:
    ends = Ends(idle_s=60.0, stall_s=0.01)
    await ends.open()
    ends.room.clear()
    serving = asyncio.create_task(ends.serve())
    with pytest.raises(Gone):
        await ends.wire.send(b"sound")
    ends.room.set()
    await asyncio.wait_for(serving, 60)
    assert ends.sent[-1]["code"] == CLOSE_CODES[LinkEvent.STALLED]
