"""The response that sends speech while it is being made, and frees its session on any way out."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from starlette.datastructures import MutableHeaders
from starlette.types import Receive, Scope, Send

from vivace.errors import VivaceError
from vivace.server import sse
from vivace.server.order import Order
from vivace.server.replies import header_safe
from vivace.server.story import story_of
from vivace.server.voiced import Voiced
from vivace.server.workers import Workers
from vivace.types import Done, FinishReason

if TYPE_CHECKING:
    from vivace.engine import Engine

log = logging.getLogger(__name__)

SLICE = 1 << 16  # bytes of a whole file in one go: a client that reads nothing is noticed


class Events(Protocol):
    """How server-sent events look; the module `sse` is OpenAI's way."""

    def delta(self, sound: bytes) -> bytes:
        """Some bytes of the sound; no event if there are none."""
        ...

    def end(self, done: Done) -> bytes:
        """The end of speech that went well."""
        ...

    def fault(self, error: BaseException) -> bytes:
        """The end of speech that broke off."""
        ...


class Speaking:
    """One order's response.

    Headers wait for the first sound, so that an error before it has a status of its own; a later
    one is an event, or breaks the chunked body off without its end. Chunks are taken from the
    session only as fast as the client reads them, so a slow reader holds back its own session.
    """

    def __init__(
        self,
        engine: "Engine",
        order: Order,
        workers: Workers,
        stall_s: float,
        events: Events = sse,
    ) -> None:
        self._engine, self._order, self._workers = engine, order, workers
        self._stall_s, self._events = stall_s, events
        self._headed = False
        self._warnings = list(order.warnings)
        self._cache: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open the session, send its sound, close it."""
        self._story = story = story_of(scope)
        story.orders(self._order)
        story.admit()
        voiced = story.voiced = await Voiced.open(self._engine, self._order, self._workers)
        self._warnings = voiced.warnings
        self._cache = voiced.cache
        watcher = asyncio.create_task(when_gone(receive, voiced.session.cancel))
        try:
            done = await (self._send_whole if self._order.output.whole else self._stream)(
                voiced, send
            )
            story.end(done.reason, done)
        except Exception as error:
            if not (watcher.done() or isinstance(error, TimeoutError)):
                story.fail(error, voiced.session.done)
            if not (self._headed or watcher.done()):
                raise
            await self._break_off(error, send)
        finally:
            voiced.close()
            watcher.cancel()
            story.end(FinishReason.CANCELLED, voiced.session.done)

    async def _stream(self, voiced: Voiced, send: Send) -> Done:
        as_events = self._order.output.sse
        async for piece in voiced.pieces():
            if not self._headed:
                await self._send_head(send)
            await self._send_body(send, self._events.delta(piece) if as_events else piece)
        rest, done = await voiced.last()
        if not self._headed:
            await self._send_head(send, _ending(done))
        rest = self._events.delta(rest) + self._events.end(done) if as_events else rest
        await self._send_body(send, rest, more=False)
        return done

    async def _send_whole(self, voiced: Voiced, send: Send) -> Done:
        body, done = await voiced.whole()
        await self._send_head(send, {"content-length": str(len(body)), **_ending(done)})
        for start in range(0, len(body), SLICE):
            await self._send_body(send, body[start : start + SLICE])
        await self._send_body(send, b"", more=False)
        return done

    async def _send_head(self, send: Send, more: dict[str, str] | None = None) -> None:
        self._headed = True
        start = {"type": "http.response.start", "status": 200, "headers": []}
        headers = MutableHeaders(scope=start)
        headers["content-type"] = self._order.output.media_type
        headers["cache-control"] = "no-store"
        headers["x-accel-buffering"] = "no"  # or a proxy would hold the sound back
        headers.update(more or {})
        if self._cache is not None:
            headers["x-vivace-cache"] = self._cache
        if self._warnings:
            headers["x-vivace-warning"] = header_safe("; ".join(self._warnings))
        await send(start)

    async def _send_body(self, send: Send, data: bytes, *, more: bool = True) -> None:
        """Send some bytes; a client that reads nothing for `stall_s` is given up."""
        async with asyncio.timeout(self._stall_s):
            await send({"type": "http.response.body", "body": data, "more_body": more})
        if data:
            self._story.first_byte()

    async def _break_off(self, error: Exception, send: Send) -> None:
        """Too late for a status: an event, or no end of the body at all."""
        ours = isinstance(error, VivaceError | TimeoutError)
        if not (self._headed and self._order.output.sse):
            if not ours:
                raise error
            return
        if not ours:
            log.error("a response failed", exc_info=error)
        with suppress(TimeoutError):
            await self._send_body(send, self._events.fault(error), more=False)


def _ending(done: Done) -> dict[str, str]:
    """Headers that say how it ended."""
    return {f"x-{name.replace('_', '-')}": value for name, value in done.told.items()}


async def when_gone(receive: Receive, then: Callable[[], object]) -> None:
    """Call `then` as soon as the client leaves, whatever its response is waiting for."""
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
        then()
