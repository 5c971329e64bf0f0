"""One WebSocket: messages in, messages out, and when to give it up."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from vivace.errors import VivaceError, outcome
from vivace.server.replies import as_json
from vivace.server.story import Story, story_of

log = logging.getLogger(__name__)

DRAIN: Final = "vivace.drain"  # the server's own word among ASGI's messages: it goes down
MOST_POSTED: Final = 256  # replies a client may leave unread
CLOSE_S: Final = 5.0  # a client that reads nothing gets its close message within this, or none


class Link(StrEnum):
    """Where a connection is."""

    CONNECTING = "connecting"
    OPEN = "open"
    DRAINING = "draining"  # turns that are open are finished, none begins
    CLOSED = "closed"


class Event(StrEnum):
    """What happens to a connection."""

    ACCEPTED = "accepted"
    GONE = "gone"  # the client left
    IDLE = "idle"  # no message either way for too long
    STALLED = "stalled"  # the client reads nothing, or leaves too many replies unread
    FAILED = "failed"  # our fault, or a request that ends its connection
    SAID_ALL = "said all"  # the dialect has no more to say
    GOING_DOWN = "going down"
    DRAINED = "drained"  # the last turn is over


LINK: Final[Mapping[tuple[Link, Event], Link]] = {
    (Link.CONNECTING, Event.ACCEPTED): Link.OPEN,
    (Link.CONNECTING, Event.GONE): Link.CLOSED,
    (Link.OPEN, Event.GOING_DOWN): Link.DRAINING,
    (Link.DRAINING, Event.GOING_DOWN): Link.DRAINING,
    (Link.DRAINING, Event.DRAINED): Link.CLOSED,
    **{
        (link, event): Link.CLOSED
        for link in (Link.OPEN, Link.DRAINING)
        for event in (Event.GONE, Event.IDLE, Event.STALLED, Event.FAILED, Event.SAID_ALL)
    },
}
CLOSE_CODES: Final[Mapping[Event, int]] = {
    Event.IDLE: 1000,
    Event.SAID_ALL: 1000,
    Event.STALLED: 1008,
    Event.DRAINED: 1012,
}  # after a failure it is that of the error


class Gone(Exception):
    """The client left, or was given up."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds until a client is given up: `idle_s` without a message either way, `stall_s` unread.

    Pings are not messages.
    """

    idle_s: float = 180.0
    stall_s: float = 120.0


class Wire:
    """A socket with one reader, `serve`, and any number of writers.

    `post` never waits, so a reader can answer while a writer is held up by a client that does not
    read; what is posted goes out before what is sent after it. A message is written whole or not
    at all: cancelling a writer that waits leaves nothing of its message behind.
    """

    def __init__(
        self, receive: Receive, send: Send, patience: Patience, scope: Scope | None = None
    ) -> None:
        self.story: Story = story_of({} if scope is None else scope)
        self._receive, self._send, self._patience = receive, send, patience
        self._posted: deque[Message] = deque()
        self._clear = asyncio.Event()  # nothing posted is left
        self._clear.set()
        self._poster: asyncio.Task[None] | None = None
        self._limit: asyncio.Timeout | None = None
        self._end = (CLOSE_CODES[Event.IDLE], f"no message for {patience.idle_s:g} s")
        self.link = Link.CONNECTING

    async def accept(self, subprotocol: str | None = None) -> None:
        """Complete the handshake. Raises Gone."""
        if (await self._receive())["type"] != "websocket.connect":
            self._step(Event.GONE)
            raise Gone
        await self._send({"type": "websocket.accept", "subprotocol": subprotocol})
        self._step(Event.ACCEPTED)

    async def serve(
        self, hear: Callable[[str | bytes], Awaitable[None]], drain: Callable[[], None]
    ) -> None:
        """Hear every message until one side ends it; then close the socket.

        `drain` is called when the server goes down; it calls `finish` once there is nothing left.
        """
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limit = limit
                if self.link is Link.CLOSED:  # before anything was heard
                    limit.reschedule(0)
                self._touch()
                while (message := await self._receive())["type"] != "websocket.disconnect":
                    self._touch()
                    if message["type"] == DRAIN:
                        self._step(Event.GOING_DOWN)
                        drain()
                        continue
                    text = message.get("text")
                    await hear(message["bytes"] if text is None else text)
            self._step(Event.GONE)
            return
        except Exception as error:
            self._limit = None
            if limit.expired():
                self._step(Event.IDLE)  # or `finish` has said why
            else:
                log.exception("a socket failed")
                self.fail(error)
        finally:
            self._limit = None
        await self._close()

    async def send(self, message: str | bytes) -> None:
        """Write one message as soon as there is room. Raises Gone."""
        await self._clear.wait()
        await self._write(_as_message(message))

    def post(self, message: str | bytes) -> None:
        """Write one message, now or later. A client that lets them pile up is given up."""
        if len(self._posted) >= MOST_POSTED:
            self.finish(Event.STALLED, "replies are not read")
            return
        self._posted.append(_as_message(message))
        self._clear.clear()
        if self._poster is None or self._poster.done():
            self._poster = asyncio.create_task(self._post_all())

    def finish(self, event: Event, why: str = "", *, code: int = 0) -> None:
        """Close the socket as soon as its reader gets its turn; the first reason counts."""
        if self.link is Link.CLOSED:
            return
        self._step(event)
        self._end = (code or CLOSE_CODES[event], why)
        self._wait_until(0)

    def fail(self, error: BaseException) -> None:
        """Close the socket with the code that `error` has."""
        why = error.message if isinstance(error, VivaceError) else "the server failed"
        self.finish(Event.FAILED, why, code=outcome(error).close)

    def _step(self, event: Event) -> None:
        if self.link is not Link.CLOSED:
            self.link = LINK[self.link, event]

    def _touch(self) -> None:
        if self.link is not Link.CLOSED:
            self._wait_until(asyncio.get_running_loop().time() + self._patience.idle_s)

    def _wait_until(self, when_s: float) -> None:
        """For the next message; a writer may come when that time is over already."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(when_s)

    async def _post_all(self) -> None:
        try:
            while self._posted:
                await self._write(self._posted[0])
                self._posted.popleft()
            self._clear.set()
        except Gone:
            self._posted.clear()
            self._clear.set()

    async def _write(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._patience.stall_s):
                await self._send(message)
        except TimeoutError:
            self.finish(Event.STALLED, "nothing is read")
            raise Gone from None
        except Exception as error:  # however the server below says that the client left
            raise Gone from error
        self._touch()

    async def _close(self) -> None:
        """Write what is posted, then the close message; give it up if nothing is read."""
        code, why = self._end
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._clear.wait()
                await self._send({"type": "websocket.close", "code": code, "reason": _short(why)})
        except Exception:  # it left meanwhile, or does not read
            return


def encode(message: dict[str, object]) -> str:
    """A message of JSON."""
    return as_json(message).decode()


def _as_message(message: str | bytes) -> Message:
    return {"type": "websocket.send", "text" if isinstance(message, str) else "bytes": message}


def _short(why: str) -> str:
    """A close message holds 123 bytes of reason."""
    return why.encode("ascii", "replace")[:123].decode()
