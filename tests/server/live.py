"""A real server on a real socket, in a thread: what in-process transports hide is seen.

As a program it serves an engine that takes no time, to see what the edge alone costs:

    python -m tests.server.live vivace bench formats --url {url} --output formats.json
"""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
from starlette.types import ASGIApp

from vivace.config import ServerConfig
from vivace.server.app import create_app
from vivace.server.clips import most_body
from vivace.server.serve import Server, address_of, bind
from vivace.server.studio import Decode


@dataclass(frozen=True, slots=True)
class Live:
    """A running server."""

    url: str
    server: Server
    thread: threading.Thread

    def join(self) -> None:
        """Wait for its end."""
        self.thread.join(timeout=30)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def serving(
    engine: Any, config: ServerConfig | None = None, decode: Decode | None = None
) -> Iterator[Live]:
    """Serve an engine on a free port; stops at the end."""
    config = config or ServerConfig()
    most = most_body(engine, config.limits)
    with serving_app(create_app(engine, config, decode=decode), config, most=most) as live:
        yield live


@contextlib.contextmanager
def serving_app(
    app: ASGIApp,
    config: ServerConfig,
    lifespan: Literal["on", "off"] = "off",
    most: int | None = None,
) -> Iterator[Live]:
    """Serve any app likewise."""
    sock = bind("127.0.0.1", 0, config.stall_s)
    url, opened = address_of(sock, tls=config.tls_cert is not None), threading.Event()
    server = Server(app, config, opened.set, lifespan=lifespan, most_message=most)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    live = Live(url, server, thread)
    thread.start()
    try:
        assert opened.wait(timeout=30)
        yield live
    finally:
        server.should_exit = True
        live.join()


def connect(
    client: httpx.Client,
    body: dict[str, object],
    path: str = "/v1/audio/speech",
    headers: str = "",
) -> socket.socket:
    """A request for speech sent over a bare socket, its answer not read."""
    where = urlsplit(str(client.base_url))
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}"
    sock = socket.socket()
    sock.settimeout(60)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # so that it is soon full
    sock.connect((where.hostname, where.port))
    sock.sendall(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
    return sock


def main(words: list[str]) -> int:
    """Run a command against four seconds of speech that are there at once."""
    from tests.fakes import FakeEngine, Play

    from vivace.audio.encode import warm

    engine = FakeEngine()
    engine.play = Play(chunks=50)
    warm()
    with serving(engine) as live:
        return subprocess.run([w.format(url=live.url) for w in words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
