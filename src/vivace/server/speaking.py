"""The response that sends speech while it is being made, and frees its session on any way out."""

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.types import Receive, Scope, Send

from vivace.audio.encode import ENCODERS
from vivace.errors import EngineFailure, Unavailable, VivaceError
from vivace.server.order import Order
from vivace.server.replies import header_safe
from vivace.types import SAMPLE_RATE, FinishReason

if TYPE_CHECKING:
    from vivace.engine import Engine
    from vivace.session import Session

log = logging.getLogger(__name__)


class Speaking:
    """One order's response.

    Headers wait for the first sound, so that an error before it has a status of its own; a later
    one breaks the chunked body off without its end. Chunks are taken from the session only as fast
    as the client reads them, so a slow reader holds back its own session.
    """

    def __init__(self, engine: "Engine", order: Order, stall_s: float) -> None:
        self._engine = engine
        self._order = order
        self._stall_s = stall_s
        self._started_s = time.perf_counter()
        self._first_s: float | None = None
        self._samples = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open the session, stream it, close it."""
        session = self._engine.say(self._order.text, self._order.request)
        watcher = asyncio.create_task(_cancel_when_gone(receive, session))
        try:
            await self._send_speech(session, send)
        except (VivaceError, TimeoutError):
            if self._first_s is None and not watcher.done():
                raise
            # Too late for a status: returning without the body's end breaks it off.
        finally:
            session.cancel()
            watcher.cancel()
            self._log(scope["state"]["request_id"], session)

    async def _send_speech(self, session: "Session", send: Send) -> None:
        encoder = ENCODERS[self._order.format]()
        async for chunk in session:
            if self._first_s is None:
                self._first_s = time.perf_counter()
                await self._send_head(send, encoder.media_type)
            await self._send_body(send, encoder.encode(chunk.pcm))
            self._samples += len(chunk.pcm)
        reason = _reason(session)
        if self._first_s is None:
            await self._send_head(send, encoder.media_type, reason)
        await self._send_body(send, encoder.finish(), more=False)

    async def _send_head(
        self, send: Send, media_type: str, reason: FinishReason | None = None
    ) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": []}
        headers = MutableHeaders(scope=start)
        headers["content-type"] = media_type
        headers["x-accel-buffering"] = "no"  # or a proxy would hold the sound back
        if reason is not None:
            headers["x-finish-reason"] = reason
        if self._order.warnings:
            headers["x-vivace-warning"] = header_safe("; ".join(self._order.warnings))
        await send(start)

    async def _send_body(self, send: Send, data: bytes, *, more: bool = True) -> None:
        """Send some bytes; a client that reads nothing for `stall_s` is given up."""
        async with asyncio.timeout(self._stall_s):
            await send({"type": "http.response.body", "body": data, "more_body": more})

    def _log(self, request_id: str, session: "Session") -> None:
        done = session.done
        first_ms = self._first_s and (self._first_s - self._started_s) * 1000
        log.info(
            "%s spoke reason=%s chars=%d audio_s=%.2f first_ms=%s took_ms=%.0f voice=%s seed=%s",
            request_id,
            done.reason if done else FinishReason.CANCELLED,
            len(self._order.text),
            self._samples / SAMPLE_RATE,
            "-" if first_ms is None else f"{first_ms:.0f}",
            (time.perf_counter() - self._started_s) * 1000,
            self._order.request.voice,
            done.seed if done else None,
        )


def _reason(session: "Session") -> FinishReason:
    """Why the session ended well; raises what stands for any other end."""
    done = session.done
    assert done is not None
    if done.reason is FinishReason.CANCELLED:
        raise Unavailable("The request was cancelled before it was done.", code="cancelled")
    if done.reason is FinishReason.ERROR:
        raise done.error or EngineFailure("The engine failed.")
    return done.reason


async def _cancel_when_gone(receive: Receive, session: "Session") -> None:
    """Cancel the session as soon as its client leaves, whatever the response is waiting for."""
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
        session.cancel()
