"""The committed golden files are what the official package makes today, and they stay small."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from tests.golden import read

MOST_BYTES = 5_000_000
KEPT = ("checkpoints", "cases")


def files(root: Path) -> list[Path]:
    found = (path for part in KEPT for path in (root / part).rglob("*") if path.is_file())
    return sorted(path.relative_to(root) for path in found)


def assert_alike(fresh: np.ndarray, kept: np.ndarray, name: str) -> None:
    """Codes and ids are equal; numbers may differ by what another processor rounds."""
    if np.issubdtype(kept.dtype, np.floating):
        np.testing.assert_allclose(fresh, kept, rtol=1e-5, atol=1e-4, err_msg=name)
    else:
        np.testing.assert_array_equal(fresh, kept, err_msg=name)


def contents(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        with np.load(path) as kept:
            return dict(kept)
    if path.suffix == ".safetensors":
        return {name: tensor.float().numpy() for name, tensor in load_file(path).items()}
    text = path.read_text(encoding="utf-8")
    return {"text": np.array(json.dumps(json.loads(text)) if path.suffix == ".json" else text)}


def test_the_golden_files_are_small() -> None:
    assert sum((read.HERE / path).stat().st_size for path in files(read.HERE)) < MOST_BYTES


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    "VIVACE_REFERENCE_PYTHON" not in os.environ,
    reason="VIVACE_REFERENCE_PYTHON names no python with the official package (regenerate.py)",
)
def test_the_official_package_makes_them_again(tmp_path: Path) -> None:
    python = os.environ["VIVACE_REFERENCE_PYTHON"]
    subprocess.run([python, read.HERE / "regenerate.py", tmp_path], check=True)
    assert files(tmp_path) == files(read.HERE)
    for path in files(tmp_path):
        fresh, kept = contents(tmp_path / path), contents(read.HERE / path)
        assert fresh.keys() == kept.keys(), path
        for name in kept:
            assert_alike(fresh[name], kept[name], f"{path}: {name}")
