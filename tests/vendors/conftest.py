"""One fake engine behind a server with TLS and one without."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from tests.fakes import FakeEngine
from tests.server.live import serving

from vivace.config import ServerConfig


@dataclass(frozen=True, slots=True)
class Places:
    """Where the engine is served, and the file of whom to trust."""

    http: str
    https: str
    trust: Path

    @property
    def ws(self) -> str:
        return self.http.replace("http", "ws", 1)


@pytest.fixture(scope="session")
def _stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeEngine, Places]]:
    folder, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    authority.cert_pem.write_to_path(folder / "trust.pem")
    pair = folder / "pair.pem"
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(
        pair
    )
    engine = FakeEngine()
    with serving(engine) as plain, serving(engine, ServerConfig(tls_cert=pair)) as secure:
        yield engine, Places(plain.url, secure.url, folder / "trust.pem")


@pytest.fixture
def engine(_stage: tuple[FakeEngine, Places]) -> FakeEngine:
    _stage[0].reset()
    return _stage[0]


@pytest.fixture
def places(_stage: tuple[FakeEngine, Places], engine: FakeEngine) -> Places:
    return _stage[1]
