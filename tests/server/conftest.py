"""One fake engine behind one real server, as new for every test."""

from collections.abc import Iterator

import httpx
import pytest
from tests.fakes import FakeEngine
from tests.server.live import serving


@pytest.fixture(scope="session")
def _stage() -> Iterator[tuple[FakeEngine, httpx.Client]]:
    engine = FakeEngine()
    with serving(engine) as live, httpx.Client(base_url=live.url, timeout=30) as client:
        yield engine, client


@pytest.fixture
def engine(_stage: tuple[FakeEngine, httpx.Client]) -> FakeEngine:
    _stage[0].reset()
    return _stage[0]


@pytest.fixture
def client(_stage: tuple[FakeEngine, httpx.Client], engine: FakeEngine) -> httpx.Client:
    return _stage[1]
