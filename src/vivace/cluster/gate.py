"""The gate: one address before all replicas. It chooses one and passes bytes on, both ways.

A request of which nothing has been heard goes to the next replica if its own is gone or full;
later ones end with their replica, and with one terminal event.
"""

import asyncio
import contextlib
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qsl

import aiohttp
import ray
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from vivace.cluster.board import BEAT_S, board
from vivace.cluster.choose import Crowd, Replica, Report, Wish
from vivace.cluster.options import Options
from vivace.cluster.scrape import merged
from vivace.cluster.sockets import talk
from vivace.errors import EngineFailure, TooLarge, Unavailable, VivaceError
from vivace.server import sse
from vivace.server.app import behind_the_door
from vivace.server.metrics import Metrics
from vivace.server.replies import failed, not_routed, refused
from vivace.server.speaking import when_gone

log = logging.getLogger("vivace")

CONNECT_S = 2.0  # a replica on the same network answers sooner, or not at all
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
OF_A_HOP: Final = frozenset(  # headers that say how two neighbours talk, not what
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "date",  # and that of the answer, which the gate gives itself
    )
)
ELSEWHERE: Final = (429, 503)  # another replica may still take it
GONE = "the replica that spoke has ended"
_VOICE_IN_PATH = re.compile(r"^/v1/text-to-speech/([^/]+)")

Read = Callable[[], Awaitable[list[Report]]]


class NotBegun(Exception):
    """A replica did not take a request: `status` says how, or it was not to be reached."""


class Gate:
    """Chooses a replica for each request and passes it on.

    `counters` are those that `/metrics` shows as the gate's, where it has several processes. No
    body, and no message on a socket, may have more than `limit` bytes.
    """

    def __init__(
        self,
        options: Options,
        read: Read | None = None,
        counters: CollectorRegistry | None = None,
    ) -> None:
        self.crowd = Crowd(options.lean)
        limits = options.server.limits  # a clip may come in base64; the replica is exact
        self.limit = limits.body_bytes + 2 * limits.clip_bytes
        self._body_s = options.server.body_s
        self._read = read
        routes = [
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/cluster", self.cluster),
            Route("/metrics", self.metrics),
            WebSocketRoute("/{path:path}", Socket(self)),
            Route("/{path:path}", Forward(self), methods=METHODS),
        ]
        handlers: Mapping[Any, Any] = {
            VivaceError: refused,
            HTTPException: not_routed,
            Exception: failed,
        }
        app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)
        metrics = Metrics()
        self._counters = counters or metrics.registry
        self.app: ASGIApp = behind_the_door(app, options.server, metrics)

    session: aiohttp.ClientSession  # while the gate is open

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Know who is there, and look again for as long as the gate is open."""
        read = self._read or _reader()
        self.crowd.refresh(await read())
        watcher = asyncio.create_task(self._watch(read))
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, socket_factory=_probing),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            auto_decompress=False,
            skip_auto_headers=("Content-Type", "User-Agent", "Accept", "Accept-Encoding"),
        ) as self.session:
            yield
        watcher.cancel()

    async def _watch(self, read: Read) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                self.crowd.refresh(await read())
            except ray.exceptions.RayError as error:  # the board is being restarted
                log.warning("the board does not answer: %s", type(error).__name__)

    async def health(self, request: Request) -> Response:
        """Alive: it answers."""
        return JSONResponse({"status": "ok", "replicas": len(self.crowd.replicas)})

    async def ready(self, request: Request) -> Response:
        """Is there a replica that takes requests?"""
        ready = self.crowd.ready
        return JSONResponse({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    async def cluster(self, request: Request) -> Response:
        """Who is there, and who has spoken what."""
        return JSONResponse({"replicas": [_shown(r) for r in self.crowd.replicas.values()]})

    async def metrics(self, request: Request) -> Response:
        """Those of all replicas, and the gate's own."""
        urls = [replica.url for replica in self.crowd.replicas.values() if replica.reachable]
        pages = await asyncio.gather(*(self._page(request, url) for url in urls))
        found = {url.partition("//")[2]: page for url, page in zip(urls, pages, strict=True)}
        found["gate"] = generate_latest(self._counters).decode()
        return Response(merged(found), media_type=CONTENT_TYPE_LATEST)

    async def _page(self, request: Request, url: str) -> str:
        """One replica's; nothing of one that does not answer."""
        timeout = aiohttp.ClientTimeout(total=CONNECT_S)
        try:
            headers = onward(request)
            async with self.session.get(url + "/metrics", headers=headers, timeout=timeout) as page:
                return await page.text() if page.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError):
            return ""

    @asynccontextmanager
    async def chosen(self, wish: Wish, tried: list[str]) -> AsyncIterator[Replica]:
        """The replica for a request, for as long as it lasts."""
        replica = self.crowd.choose(wish, tried)
        tried.append(replica.url)
        self.crowd.begun(replica, wish)
        try:
            yield replica
        except aiohttp.ClientConnectionError:
            self.crowd.unreachable(replica)
            raise
        finally:
            self.crowd.over(replica)

    async def body(self, request: Request) -> bytes:
        """All of a request's body, within the limits of a replica's edge.

        Raises TooLarge; HTTPException 408 for one that does not come.
        """
        try:
            async with asyncio.timeout(self._body_s):
                parts, size = [], 0
                async for part in request.stream():
                    size += len(part)
                    if size > self.limit:
                        raise TooLarge(f"the body is over the limit of {self.limit:,} bytes")
                    parts.append(part)
                return b"".join(parts)
        except TimeoutError:
            raise HTTPException(408, f"The body did not come within {self._body_s:g} s.") from None


def _probing(found: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that notices within some 20 s that the host at its other end is gone."""
    family, kind, protocol, _, _ = found
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux
        for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return sock


def _reader() -> Read:
    actor = board()

    async def read() -> list[Report]:
        reports: list[Report] = await actor.read.remote()
        return reports

    return read


def _shown(replica: Replica) -> dict[str, object]:
    report = replica.report
    return {
        "url": report.url,
        "pid": report.pid,
        "ready": replica.reachable,
        "slots": report.slots,
        "active": report.active,
        "waiting": report.waiting,
        "spoken": dict(report.spoken),
    }


class Forward:
    """Any request over HTTP."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on to the best replica, or to the next if that one does not take it."""
        request = Request(scope, receive)
        body = await self._gate.body(request)
        passing = asyncio.create_task(self._pass_on(request, body, send))
        watcher = asyncio.create_task(when_gone(receive, passing.cancel))
        try:
            await passing
        except asyncio.CancelledError:
            if not watcher.done():
                raise
        finally:
            passing.cancel()
            watcher.cancel()

    async def _pass_on(self, request: Request, body: bytes, send: Send) -> None:
        wish, tried = wish_of(request.url.path, body), list[str]()
        last: Exception | None = None
        while True:
            try:
                async with self._gate.chosen(wish, tried) as replica:
                    final = len(tried) >= len(self._gate.crowd.replicas)
                    return await self._ask(replica, request, body, send, final=final)
            except NotBegun as error:
                last = error
            except Unavailable:
                if last is not None:  # it came from those that were asked
                    raise Unavailable("no replica takes requests now", retry_after_s=1.0) from last
                raise

    async def _ask(
        self,
        replica: Replica,
        request: Request,
        body: bytes,
        send: Send,
        *,
        final: bool,
    ) -> None:
        """One replica's answer. Raises NotBegun while the client has heard nothing."""
        query = request.url.query
        url = replica.url + request.url.path + (f"?{query}" if query else "")
        try:
            reply = await self._gate.session.request(
                request.method, url, headers=onward(request), data=body, allow_redirects=False
            )
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            self._gate.crowd.unreachable(replica)
            raise NotBegun(type(error).__name__) from error
        async with reply:
            if reply.status in ELSEWHERE and not final:
                raise NotBegun(reply.status)
            await self._answer(reply, replica, request, send)

    async def _answer(
        self, reply: aiohttp.ClientResponse, replica: Replica, request: Request, send: Send
    ) -> None:
        headers = [
            pair for pair in reply.raw_headers if pair[0].decode("latin-1").lower() not in OF_A_HOP
        ]
        headers.append((b"x-vivace-replica", str(replica.report.pid).encode()))
        headers = [pair for pair in headers if pair[0].lower() != b"x-request-id"]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        events = reply.content_type == sse.MEDIA_TYPE
        parts = reply.content.iter_any()
        try:
            async for part in _whole_events(parts) if events else parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except (aiohttp.ClientError, ConnectionError) as error:
            log.warning("%s broke off: %s", replica.url, type(error).__name__)
            if not (events and request.url.path == "/v1/audio/speech"):
                return  # without its end, the client sees that it broke off
            part = sse.fault(EngineFailure(GONE))
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _whole_events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Events to their ends: what follows one that broke off would be read as a part of it."""
    rest = b""
    async for part in parts:
        whole, end, rest = (rest + part).rpartition(b"\n\n")
        if end:
            yield whole + end
    yield rest


class Socket:
    """Any WebSocket."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass its messages on, both ways."""
        tried = list[str]()
        wish = Wish(voice=_query(scope).get("voice"))
        while True:
            try:
                async with self._gate.chosen(wish, tried) as replica:
                    return await talk(self._gate.session, replica.url, scope, receive, send, GONE)
            except aiohttp.ClientConnectionError:
                continue  # nothing has been said
            except Unavailable:
                with contextlib.suppress(Exception):  # it may be gone too
                    await send({"type": "websocket.close", "code": 1013, "reason": "no replica"})
                return


def _query(scope: Scope) -> dict[str, str]:
    return dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))


def onward(request: Request) -> list[tuple[str, str]]:
    """A request's headers for the next hop, its id among them; its origin has been checked."""
    dropped = OF_A_HOP | {"content-length", "x-request-id", "origin", "accept-encoding"}
    headers = [(name, value) for name, value in request.headers.items() if name not in dropped]
    return [*headers, ("x-request-id", request.state.request_id)]


def wish_of(path: str, body: bytes) -> Wish:
    """What a request wants, as far as it can be seen; the replica checks it."""
    try:
        fields = json.loads(body) if body[:1] == b"{" else {}
    except (ValueError, RecursionError):
        return Wish()
    voice = fields.get("voice")
    if isinstance(voice, dict):
        voice = voice.get("id")
    if found := _VOICE_IN_PATH.match(path):
        voice = found[1]
    model = fields.get("model")
    return Wish(
        model if isinstance(model, str) else None, voice if isinstance(voice, str) else None
    )
