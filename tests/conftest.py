"""What every test shares."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.commands import Run
    from tests.golden.load import Model

    from vivace.model.codec import Codec

# Without a card kernels run in Triton's interpreter; it must be told before anything imports them.
if not Path("/dev/nvidia0").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# Two cores, several workers: no wall-clock deadlines. The same examples on every run.
settings.register_profile(
    "vivace", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("vivace")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> "Callable[[str], Model]":
    """A golden checkpoint by name (tests/golden), loaded once."""
    from tests.golden.load import Models  # brings torch, which most tests do without

    return Models(tmp_path_factory.mktemp("checkpoints")).load


@pytest.fixture(scope="session")
def codec(model: "Callable[[str], Model]") -> "Codec":
    """The codec that all golden checkpoints share."""
    return model("custom_voice").codec


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Run":
    """Run `vivace ARGS`; gives its status and what it wrote to stdout and stderr."""
    from vivace import cli

    def run(*args: object, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["vivace", *map(str, args)])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            cli.app()
        code = ended.value.code
        return code if isinstance(code, int) else 0, *capsys.readouterr()

    return run
