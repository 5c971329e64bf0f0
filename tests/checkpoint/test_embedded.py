import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from vivace.checkpoint import embedded as module
from vivace.checkpoint.embedded import embedded
from vivace.checkpoint.read import read_spec
from vivace.errors import CheckpointError


def test_it_is_a_tiny_named_voice_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = embedded(tmp_path)
    spec = read_spec(folder)
    assert (spec.kind, spec.size, len(spec.speakers)) == ("custom_voice", "tiny", 9)
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]  # nothing is left beside it
    monkeypatch.delattr(module, "write_synthetic")
    assert embedded(tmp_path) == folder


def test_the_log_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "write_synthetic", quick)
    with caplog.at_level(logging.WARNING, "vivace"):
        embedded(tmp_path)
    (record,) = caplog.records
    assert "voice-like noise, not speech" in record.getMessage()


def quick(out: Path, **_: object) -> None:
    out.mkdir()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"VIVACE_CACHE": "own", "XDG_CACHE_HOME": "shared"}, "own"),
        ({"XDG_CACHE_HOME": "shared"}, "shared/vivace"),
        ({}, "home/.cache/vivace"),
        ({"VIVACE_CACHE": "", "XDG_CACHE_HOME": ""}, "home/.cache/vivace"),
    ],
)
def test_places(
    environment: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "write_synthetic", quick)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("VIVACE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, str(tmp_path / value) if value else "")
    assert embedded().parent == tmp_path / expected


def test_other_code_makes_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "write_synthetic", quick)
    before = embedded(tmp_path)
    source = tmp_path / "source" / "embedded.py"
    source.parent.mkdir()
    source.write_text("# something else")
    monkeypatch.setattr(module, "__file__", str(source))
    assert embedded(tmp_path) != before


def test_two_at_a_time_share_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_write = threading.Barrier(2, timeout=60)

    def write(out: Path, **_: object) -> None:
        out.mkdir()
        (out / "who").write_text(threading.current_thread().name)
        both_write.wait()

    monkeypatch.setattr(module, "write_synthetic", write)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(embedded(tmp_path))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 and found[0] == found[1]
    assert [p.name for p in tmp_path.iterdir()] == [found[0].name]
    assert (found[0] / "who").read_text() in {thread.name for thread in threads}


def raising(error: BaseException) -> Callable[..., None]:
    def write(out: Path, **_: object) -> None:
        out.mkdir()
        (out / "half").touch()
        raise error

    return write


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interruption_leaves_nothing(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "write_synthetic", raising(error))
    with pytest.raises((KeyboardInterrupt, CheckpointError)):
        embedded(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="Set VIVACE_CACHE"):
        embedded(tmp_path / "file" / "cache")
