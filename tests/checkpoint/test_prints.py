"""Prints tell weights apart, wherever they lie."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from vivace.checkpoint import load
from vivace.checkpoint import prints as prints_module
from vivace.checkpoint.prints import prints_of
from vivace.checkpoint.synth import write_synthetic
from vivace.model.spec import Prints


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prints") / "base"
    write_synthetic(path, size="tiny", kind="base", seed=0)
    return path


@pytest.fixture
def copy(base: Path, tmp_path: Path) -> Path:
    return shutil.copytree(base, tmp_path / "copy")


def changed(path: Path, prefix: str) -> None:
    """Train every tensor of that prefix a little."""
    arrays = load_file(path)
    for name, array in arrays.items():
        if name.startswith(prefix):
            arrays[name] = (array + 1).astype(array.dtype)
    save_file(arrays, path)


def to_float32(path: Path) -> None:
    """Plain numpy has no bfloat16."""
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    save_torch({name: tensor.float() for name, tensor in load_torch(path).items()}, path)


def test_the_same_files_elsewhere_have_the_same_prints(base: Path, copy: Path) -> None:
    prints = prints_of(base)
    assert prints == prints_of(copy) == load(base, "cpu", torch.float32).spec.prints
    assert len(prints.model) == len(prints.encoder) == 64


def test_other_weights_have_others(base: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_synthetic(other, size="tiny", kind="base", seed=1)
    one, two = prints_of(base), prints_of(other)
    assert one.model != two.model and one.encoder != two.encoder


@pytest.mark.parametrize(
    ("file", "prefix", "encoder_too"),
    [
        ("model.safetensors", "talker.", False),
        ("model.safetensors", "speaker_encoder.", True),
        ("speech_tokenizer/model.safetensors", "decoder.", False),
        ("speech_tokenizer/model.safetensors", "encoder.", True),
    ],
)
def test_trained_further_it_is_another(
    copy: Path, file: str, prefix: str, encoder_too: bool
) -> None:
    to_float32(copy / file)
    before = prints_of(copy)
    changed(copy / file, prefix)
    after = prints_of(copy)
    assert after.model != before.model
    assert (after.encoder != before.encoder) == encoder_too


def test_one_tensor_is_enough(copy: Path) -> None:
    file = copy / "model.safetensors"
    to_float32(file)
    before, arrays = prints_of(copy), load_file(file)
    name = next(iter(sorted(arrays)))
    arrays[name] = np.zeros_like(arrays[name]) + 3
    save_file(arrays, file)
    assert prints_of(copy).model != before.model


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("part", [0.0, 0.11, 0.37, 0.5, 0.73, 0.99])
@pytest.mark.parametrize("name", ["model.safetensors", "speech_tokenizer/model.safetensors"])
def test_one_bit_anywhere_is_enough(copy: Path, name: str, part: float) -> None:
    file, before = copy / name, prints_of(copy)
    first = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    flip(file, first + int(part * (file.stat().st_size - first)))
    assert prints_of(copy).model != before.model


def test_blocks_leave_nothing_out(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prints_module, "_BLOCK", 100)  # tensors have many, and a last short one
    before = prints_of(copy)
    flip(copy / "model.safetensors", -1)
    assert prints_of(copy).model != before.model


def test_the_codecs_config_counts(copy: Path) -> None:
    before, file = prints_of(copy), copy / "speech_tokenizer" / "config.json"
    file.write_text(file.read_text() + " ")
    after = prints_of(copy)
    assert after.model != before.model
    assert after.encoder != before.encoder and after.codec != before.codec


def test_where_and_when_do_not_count(copy: Path) -> None:
    before = prints_of(copy)
    for file in copy.rglob("*"):
        os.utime(file, (1, 1))
    assert prints_of(copy) == before


def test_what_was_not_loaded_has_none() -> None:
    assert Prints() == Prints("", "")
