"""A real server on a real socket, in a thread: what in-process transports hide is seen."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from vivace.config import ServerConfig
from vivace.server.app import create_app
from vivace.server.serve import Server, address_of, bind


@contextlib.contextmanager
def serving(engine: Any, config: ServerConfig | None = None) -> Iterator[str]:
    """Serve an engine; yields the base URL once the port is open."""
    config = config or ServerConfig()
    sock = bind("127.0.0.1", 0)
    url = address_of(sock)
    opened = threading.Event()
    server = Server(create_app(engine, config), config, opened.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        assert opened.wait(timeout=30)
        yield url
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        assert not thread.is_alive()
