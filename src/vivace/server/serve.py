"""Runs the app: binds before the model loads, says when it is ready, drains on SIGTERM."""

import asyncio
import gc
import ipaddress
import logging
import math
import signal
import socket
import ssl
from asyncio.transports import BaseTransport
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn._types import ASGIReceiveEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from vivace.audio.encode import warm
from vivace.config import ServerConfig
from vivace.errors import InvalidRequest
from vivace.server.app import create_app
from vivace.server.clips import most_body
from vivace.server.live.wire import DRAIN
from vivace.server.replies import unreadable

if TYPE_CHECKING:
    from vivace.engine import Engine


log = logging.getLogger(__name__)

BACKLOG = 2048  # connections that wait to be taken
SOCKET_BUFFER = 1 << 18  # bytes on their way: some 5 s of samples, all that a barge-in finds sent
STALL_S = ServerConfig().stall_s


def bind(host: str, port: int, stall_s: float = STALL_S, *, shared: bool = False) -> socket.socket:
    """The server's address, taken before the long work of loading; who calls meanwhile waits.

    Whoever takes nothing for `stall_s` is hung up on, also with the end of a response under way:
    that lies with the transport, which would keep it and the connection for as long as they do.
    A `shared` port may be one of our own that is `shared` too.

    Raises:
        InvalidRequest: The address is taken or is none of this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with ExitStack() as on_failure:
            sock = on_failure.enter_context(socket.socket(family, kind, protocol))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit it
                sock.setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(stall_s * 1e3)
                )
            sock.bind(address)
            sock.listen(BACKLOG)
            on_failure.pop_all()
    except OSError as error:
        raise InvalidRequest(
            f"Cannot listen on {host}:{port} ({error.strerror}); try another --port.", param="port"
        ) from None
    return sock


def check_tls(cert: Path | None, key: Path | None) -> None:
    """Raises InvalidRequest if clients could not be served with them."""
    if cert is None:
        if key is not None:
            raise InvalidRequest("--tls-key needs --tls-cert.", param="tls_key")
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidRequest(
            f"Cannot serve TLS with {cert} and {key or 'no key'}: {error.strerror or error}.",
            param="tls_cert",
        ) from None


def address_of(sock: socket.socket, *, tls: bool = False) -> str:
    """The URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http{'s' * tls}://{f'[{host}]' if ':' in host else host}:{port}"


def warn_of_strangers(sock: socket.socket, config: ServerConfig) -> None:
    """Say so if others than this machine can speak without a key."""
    host = sock.getsockname()[0]
    if not (config.api_keys or config.api_keys_file or ipaddress.ip_address(host).is_loopback):
        log.warning("whoever reaches %s can use this server: there are no API keys", host)


class Protocol(H11Protocol):
    """uvicorn's HTTP, with our envelope around what is no request, and a time for each head."""

    head_s = ServerConfig().body_s  # how long a client may take for one
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Wait for the first request, but not for ever."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request's head that begins here."""
        if self._late is None and self._idle:
            self._wait()
        super().data_received(data)
        if not self._idle:
            self._stop_waiting()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """From here on it is a socket's business."""
        self._stop_waiting()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """There is nothing to wait for."""
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def _idle(self) -> bool:
        """Is no request under way?"""
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._late = self.loop.call_later(self.head_s, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def send_400_response(self, msg: str) -> None:
        """Say so and hang up."""
        reply = unreadable(msg)
        head = h11.Response(status_code=reply.status_code, headers=reply.raw_headers)
        for event in (head, h11.Data(data=bytes(reply.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Socket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, for turns that are finished and clients that do not read."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Bound what the system holds: sound that a cancel cannot call back."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)

    def shutdown(self) -> None:
        """Tell the app, which closes the socket once its turns are over."""
        if self.handshake_complete and not self.close_sent:
            self.queue.put_nowait(cast(ASGIReceiveEvent, {"type": DRAIN}))
        else:
            super().shutdown()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """A client that does not read would keep its connection for ever."""
        super().on_task_complete(task)
        self.loop.call_later(self.close_timeout + 1, self.transport.abort)


class Server(uvicorn.Server):
    """uvicorn, with a word when the port is open, and an end when there is nothing to serve."""

    def __init__(
        self,
        app: ASGIApp,
        config: ServerConfig,
        opened: Callable[[], None],
        lost: Callable[[], object] = lambda: None,
        lifespan: Literal["on", "off"] = "off",
        most_message: int | None = None,  # bytes on a socket
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,  # each request has its own line, with its id and reason
                log_config=None,
                lifespan=lifespan,
                # httptools drops the body of a request that offers an upgrade (Java's client does),
                # and sends HTTP/1.0 clients chunks.
                http=type("Protocol", (Protocol,), {"head_s": config.body_s}),
                ws=Socket,
                ws_max_size=most_message or config.limits.body_bytes,
                ws_ping_interval=config.ping_s,
                ws_ping_timeout=config.stall_s,  # who reads slowly sees a ping late
                ws_per_message_deflate=False,  # sound does not shrink, and small texts wait for it
                server_header=False,
                timeout_graceful_shutdown=config.drain_s,
                ssl_certfile=config.tls_cert,
                ssl_keyfile=config.tls_key,
            )
        )
        self._opened, self._lost = opened, lost

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets streams end, the second does not wait for them."""
        self.force_exit = self.should_exit
        self.should_exit = True
        if not self.force_exit:
            wait_s = self.config.timeout_graceful_shutdown
            log.warning("finishing what has begun, up to %s s; once more to stop now", wait_s)

    async def on_tick(self, counter: int) -> bool:
        """End once the engine is lost: a supervisor starts all of it anew."""
        if not self.should_exit and self._lost():
            log.error("the engine is lost: the server ends")
            self.should_exit = True
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port, then say so."""
        await super().startup(sockets)
        if self.started:
            self._opened()


def patient(app: ASGIApp, ending: Callable[[], bool]) -> ASGIApp:
    """The app, whose streams may be cut off at the server's end."""

    async def through(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:  # a stream that the server's end did not wait for
            if not ending():
                raise

    return through


def settle() -> None:
    """Before streams run: encoders warm, and collections need not look at what is loaded."""
    warm()
    gc.collect()
    gc.freeze()


def run(
    engine: "Engine", config: ServerConfig, sock: socket.socket, opened: Callable[[], None]
) -> None:
    """Serve until SIGINT or SIGTERM; streams that have begun are finished, for `drain_s`.

    A second signal ends them at once. Returns also when the engine is lost.
    """
    settle()
    app = create_app(engine, config, draining=lambda: server.should_exit)

    ending = lambda: server.should_exit  # noqa: E731
    server: Server = Server(
        patient(app, ending),
        config,
        opened,
        lambda: engine.lost,
        most_message=most_body(engine, config.limits),
    )

    # uvicorn takes these over while it serves, puts them back at its end and raises the signal
    # again; by then the engine is still to close.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)
    server.run(sockets=[sock])
