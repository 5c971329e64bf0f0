"""A connection whose other side is there no more and has not said so."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import httpx
import pytest
from tests.runners import FakeRunner
from tests.server.live import connect as ask
from tests.server.live import serving
from tests.server.socket.client import STREAM, counted
from websockets.sync.client import connect

from vivace.config import ServerConfig
from vivace.engine import Engine

CONFIG = ServerConfig(ping_s=0.2, stall_s=0.5)
ENDLESS = {"input": "Hello there, how are you? " * 300, "response_format": "pcm", "seed": 10**6}


class Wire:
    """A way to the server that can be cut without a word to either side."""

    def __init__(self, port: int) -> None:
        self._port, self._cut = port, threading.Event()
        self._socks: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            here, _ = self._server.accept()
            there = socket.create_connection(("127.0.0.1", self._port))
            self._socks += [here, there]
            for pair in ((here, there), (there, here)):
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while (data := source.recv(4096)) and not self._cut.is_set():
                sink.sendall(data)
            self._cut.wait()  # what comes from here on stays in the system's buffers

    def cut(self) -> None:
        """Nothing passes any more, and nothing is closed."""
        self._cut.set()

    def close(self) -> None:
        """Both sides hear of it."""
        self._cut.set()
        for sock in (self._server, *self._socks):
            sock.close()


@contextmanager
def wire_to(url: str) -> Iterator[Wire]:
    wire = Wire(urlsplit(url).port or 0)
    try:
        yield wire
    finally:
        wire.close()


def until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not true():
        pause.wait(0.01)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with counted(FakeRunner(lambda seed: seed), max_sessions=4) as engine:
        yield engine


def held(engine: Engine) -> int:
    stats = engine.stats()
    return stats.active + stats.waiting


def test_a_socket_that_answers_no_ping_is_given_up_and_its_neighbour_is_not(
    engine: Engine,
) -> None:
    with serving(engine, CONFIG) as live, wire_to(live.url) as wire:
        where = urlsplit(live.url)
        with (
            connect(f"ws://127.0.0.1:{wire.port}{STREAM}") as cut,
            connect(f"ws://{where.netloc}{STREAM}") as whole,
        ):
            for client in (cut, whole):
                client.recv()
                client.send(json.dumps({"type": "input_text.append", "text": "Hello"}))
                client.recv()
            until(lambda: held(engine) == 2)
            wire.cut()
            until(lambda: held(engine) == 1)
            whole.send(json.dumps({"type": "input_text.end"}))
            while not isinstance(whole.recv(), bytes):
                pass
            wire.close()


def test_a_response_that_nobody_takes_is_given_up(engine: Engine) -> None:
    with serving(engine, CONFIG) as live, wire_to(live.url) as wire:
        with httpx.Client(base_url=f"http://127.0.0.1:{wire.port}") as client:
            sock = ask(client, ENDLESS)
        with sock:
            assert sock.recv(4096)
            until(lambda: held(engine) == 1)
            wire.cut()
            until(lambda: held(engine) == 0)
        assert httpx.get(live.url + "/health").status_code == 200
