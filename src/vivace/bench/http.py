"""A small HTTP/1.1 client on raw asyncio: one request a connection, a time for every read.

A general client costs about 1 ms a request, which is the time we want to measure.
"""

import asyncio
import contextlib
import json
import ssl
import time
from dataclasses import dataclass

import httptools

from vivace.bench.answer import MOST_BYTES, Answer, Manners, status_kind

_PCM = {f"audio/{kind}" for kind in ("pcm", "x-pcm", "l16", "raw", "x-raw")}
_WAV = {f"audio/{kind}" for kind in ("wav", "x-wav", "wave", "vnd.wave")}
_SOUND_TYPES = _PCM | _WAV | {"application/octet-stream"}
_ERROR_BYTES = 2000  # as much of an error's body is worth keeping


@dataclass(frozen=True, slots=True)
class Peer:
    """Where to connect; the name was looked up once, before the run."""

    address: str
    port: int
    host: str  # as the URL names it
    tls: ssl.SSLContext | None = None


class _Exchange(asyncio.Protocol):
    """One response. Its parser is the C one that uvicorn has too."""

    def __init__(self, manners: Manners) -> None:
        self.answer, self.manners = Answer(), manners
        self.parser = httptools.HttpResponseParser(self)
        self.done = asyncio.get_running_loop().create_future()
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.size, self.complete = 0, False
        self.leaving: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.end("protocol", error)
            return
        if self.body:
            self.answer.arrivals.append((now, b"".join(self.body)))
            self.body.clear()
            self._behave(len(data))
        self.size += len(data)
        if self.complete:
            self.end()
        elif self.size > MOST_BYTES:
            self.end("endless", f"over {MOST_BYTES} bytes")

    def _behave(self, count: int) -> None:
        """Read slowly, or think of leaving."""
        loop, manners = asyncio.get_running_loop(), self.manners
        if manners.leave_after_s is not None and not self.leaving:
            self.leaving = loop.call_later(manners.leave_after_s, self.end, "left")
        if manners.bytes_s and not self.complete:
            self.transport.pause_reading()
            loop.call_later(count / manners.bytes_s, self._resume)

    def _resume(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.complete = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Without a length and without chunks, the end of the connection is the end of the body."""
        framed = {"content-length", "transfer-encoding"} & self.headers.keys()
        if exc or framed or not self.headers:
            self.end("truncated", exc or "the connection closed early")
        else:
            self.end()

    def end(self, kind: str = "ok", detail: object = "") -> None:
        """Judge what is there; the first end counts."""
        if self.done.done():
            return
        answer = self.answer
        answer.ended_s = time.monotonic()
        if self.leaving:
            self.leaving.cancel()
        self._judge()
        if kind != "ok":
            answer.fail(kind, detail)
        self.done.set_result(None)
        self.transport.abort()

    def _judge(self) -> None:
        """Status and headers: is this a body of sound?"""
        answer, headers = self.answer, self.headers
        if not headers:
            return
        answer.status = self.parser.get_status_code()
        answer.finish = headers.get("x-finish-reason")
        kind, *parameters = headers.get("content-type", "").lower().replace(" ", "").split(";")
        start = b"".join(piece for _, piece in answer.arrivals[:4])[:_ERROR_BYTES]
        if answer.status != 200:
            answer.fail(status_kind(answer.status), f"{answer.status} {_text(start)}")
        elif _is_error(start):
            answer.fail("error_body", _text(start))
        elif kind not in _SOUND_TYPES:
            answer.fail("wrong_type", f"{kind or 'no content type'}: {_text(start)}")
        for parameter in (f"rate={headers.get('x-sample-rate', '')}", *parameters):
            name, _, value = parameter.partition("=")
            if name == "rate" and value.isdecimal():
                answer.rate = int(value)


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace") if body.isascii() or body[:1] in b"{<" else ""


def _is_error(body: bytes) -> bool:
    """Whether the body is a JSON object, which no sound is, whatever its type says."""
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(body), dict)
    return False


async def ask(
    peer: Peer, request: bytes, due_s: float, manners: Manners, timeout_s: float
) -> Answer:
    """Connect now, send at `due_s` and read to the end. Never raises for what a server does."""
    loop = asyncio.get_running_loop()
    started_s = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            _, exchange = await loop.create_connection(
                lambda: _Exchange(manners),
                peer.address,
                peer.port,
                ssl=peer.tls,
                server_hostname=peer.host if peer.tls else None,
            )
    except (OSError, TimeoutError) as error:
        answer = Answer(sent_s=started_s, ended_s=time.monotonic())
        answer.fail("unreachable", error or "no connection in time")
        return answer
    answer = exchange.answer
    answer.setup_s = time.monotonic() - started_s
    await asyncio.sleep(due_s - time.monotonic())
    answer.sent_s = time.monotonic()
    exchange.transport.write(request)
    await asyncio.wait([exchange.done], timeout=timeout_s)
    exchange.end("timeout", f"no end within {timeout_s:g} s")
    return answer
