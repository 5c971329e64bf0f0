"""An engine that counts, for every test anew."""

import threading
from collections.abc import Iterator

import pytest
from starlette.types import ASGIApp
from tests.runners import FakeRunner
from tests.server.socket.client import app_of, counted

from vivace.engine import Engine


@pytest.fixture
def gate() -> threading.Event:
    """While it is clear the engine makes no frame."""
    gate = threading.Event()
    gate.set()
    return gate


@pytest.fixture
def engine(gate: threading.Event) -> Iterator[Engine]:
    runner = FakeRunner(lambda seed: seed)

    def wait(call: str, seeds: tuple[int, ...]) -> None:
        assert call != "frame" or gate.wait(timeout=60)

    runner.fault = wait
    with counted(runner, max_sessions=4, max_queue=4) as engine:
        yield engine
        gate.set()


@pytest.fixture
def app(engine: Engine) -> ASGIApp:
    return app_of(engine)
