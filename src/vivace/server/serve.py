"""Runs the app: binds before the model loads, says when it is ready, drains on SIGTERM."""

import asyncio
import gc
import logging
import math
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from vivace.audio.encode import warm
from vivace.config import ServerConfig
from vivace.errors import InvalidRequest
from vivace.server.app import create_app
from vivace.server.replies import unreadable

if TYPE_CHECKING:
    from vivace.engine import Engine


log = logging.getLogger(__name__)

BACKLOG = 2048  # connections that wait to be taken
STALL_S = ServerConfig().stall_s


def bind(host: str, port: int, stall_s: float = STALL_S) -> socket.socket:
    """The server's address, taken before the long work of loading; who calls meanwhile waits.

    Whoever takes nothing for `stall_s` is hung up on, also with the end of a response under way:
    that lies with the transport, which would keep it and the connection for as long as they do.

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


def address_of(sock: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Protocol(H11Protocol):
    """uvicorn's HTTP, with our envelope around what is no request."""

    def send_400_response(self, msg: str) -> None:
        """Say so and hang up."""
        reply = unreadable(msg)
        head = h11.Response(status_code=reply.status_code, headers=reply.raw_headers)
        for event in (head, h11.Data(data=bytes(reply.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """uvicorn, with a word when the port is open."""

    def __init__(self, app: ASGIApp, config: ServerConfig, opened: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,  # each request has its own line, with its id and reason
                log_config=None,
                lifespan="off",
                # httptools drops the body of a request that offers an upgrade (Java's client does),
                # and sends HTTP/1.0 clients chunks.
                http=Protocol,
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=config.drain_s,
            )
        )
        self._opened = opened

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal lets streams end, the second does not wait for them."""
        self.force_exit = self.should_exit
        self.should_exit = True
        if not self.force_exit:
            wait_s = self.config.timeout_graceful_shutdown
            log.warning("finishing what has begun, up to %s s; once more to stop now", wait_s)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port, then say so."""
        await super().startup(sockets)
        if self.started:
            self._opened()


def run(
    engine: "Engine", config: ServerConfig, sock: socket.socket, opened: Callable[[], None]
) -> None:
    """Serve until SIGINT or SIGTERM; streams that have begun are finished, for `drain_s`.

    A second signal ends them at once.
    """
    warm()
    gc.collect()
    gc.freeze()  # what is loaded stays: collections while streams run need not look at it
    app = create_app(engine, config, draining=lambda: server.should_exit)

    async def patient(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:  # a stream that the server's end did not wait for
            if not server.should_exit:
                raise

    server = Server(patient, config, opened)

    # uvicorn takes these over while it serves, puts them back at its end and raises the signal
    # again; by then the engine is still to close.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)
    server.run(sockets=[sock])
