"""Synthetic checkpoints to read, and to spoil."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from vivace.checkpoint.presets import config_files
from vivace.checkpoint.synth import write_synthetic
from vivace.checkpoint.vocabulary import vocabulary

Copy = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """The folder of a tiny checkpoint with these options of `write_synthetic`, written once."""
    made: dict[tuple[tuple[str, object], ...], Path] = {}

    def make(**options: object) -> Path:
        key = tuple(sorted(options.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("tiny")
            write_synthetic(made[key], **options)  # type: ignore[arg-type]
        return made[key]

    return make


@pytest.fixture
def copy(tiny: Copy, tmp_path: Path) -> Path:
    """A tiny checkpoint of the test's own."""
    return Path(shutil.copytree(tiny(until_text=True), tmp_path / "copy"))


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    """The config files alone."""
    folder = tmp_path / "configs"
    for name, config in config_files("tiny", "custom_voice", vocabulary(published=False)).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(config))
    return folder
