"""The rules of scripts/check_structure.py hold, and the script notices when they do not."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "check_structure", ROOT / "scripts" / "check_structure.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_imports_point_downwards(check: ModuleType) -> None:
    assert check.direction_faults(ROOT) == []


def test_structure_page_names_every_file(check: ModuleType) -> None:
    assert check.naming_faults(ROOT) == []


@pytest.mark.parametrize(
    ("file", "line", "fault"),
    [
        ("schedule/policy.py", "import time", "schedule must not import time"),
        ("schedule/policy.py", "from torch import nn", "schedule must not import torch"),
        ("schedule/policy.py", "import vivace.model.spec", "schedule must not import model"),
        ("model/talker.py", "from vivace.engine import Engine", "model must not import engine"),
        ("model/talker.py", "from vivace import server", "model must not import server"),
        ("model/talker.py", "from ..runtime import pool", "model must not import runtime"),
        ("model/talker.py", "def f():\n    from vivace import Engine", "must not import __init__"),
        ("engine.py", "from vivace.server.app import app", "engine must not import server"),
        ("newpart/a.py", "import os", "'newpart' has no place"),
    ],
)
def test_upward_import_is_reported(
    check: ModuleType, tmp_path: Path, file: str, line: str, fault: str
) -> None:
    path = tmp_path / "src" / "vivace" / file
    path.parent.mkdir(parents=True)
    path.write_text(line)
    (found,) = check.direction_faults(tmp_path)
    assert fault in found


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("schedule/policy.py", "from vivace.types import FRAME_S"),
        ("schedule/policy.py", "from .session import Session"),
        ("runtime/runner.py", "import torch, time\nfrom vivace.schedule.policy import Plan"),
        ("server/app.py", "from ..engine import Engine"),
        ("__init__.py", "from vivace.engine import Engine"),
        ("__init__.py", "from .types import Chunk"),
        ("text/__init__.py", "from .clean import Cleaner"),
    ],
)
def test_downward_import_is_allowed(
    check: ModuleType, tmp_path: Path, file: str, line: str
) -> None:
    path = tmp_path / "src" / "vivace" / file
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert check.direction_faults(tmp_path) == []


def test_unnamed_and_missing_files_are_reported(check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "src" / "vivace" / "text").mkdir(parents=True)
    (tmp_path / "src" / "vivace" / "text" / "clean.py").touch()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "structure.md").write_text("`src/` `docs/` `text/gone.py` `other`")
    assert check.naming_faults(tmp_path) == [
        "docs/structure.md does not name `text/clean.py`",
        "docs/structure.md names `text/gone.py`, which does not exist",
    ]
