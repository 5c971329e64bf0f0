import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vivace.checkpoint import load
from vivace.checkpoint.weights import INDEX, ONE_FILE, Unfilled, Weights
from vivace.errors import CheckpointError
from vivace.model.layers import Take

Spoil = Callable[[Path], object]


class Taker:
    """A module that keeps what it takes."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        self.shapes, self.taken = shapes, dict[str, Tensor]()

    def load(self, take: Take) -> None:
        self.taken = {name: take(name, *shape) for name, shape in self.shapes.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes(dtype: torch.dtype, tmp_path: Path) -> None:
    stored = torch.randn(3, 4).to(dtype)
    save_file({"x": stored}, tmp_path / ONE_FILE)
    taker = Taker(x=(3, 4))
    Weights(tmp_path).load(taker)
    assert taker.taken["x"].dtype == dtype and torch.equal(taker.taken["x"], stored)


def shards(folder: Path, **parts: dict[str, Tensor]) -> None:
    """Write each part under its file name's stem, and the index."""
    for stem, tensors in parts.items():
        save_file(tensors, folder / f"{stem}.safetensors")
    places = {name: f"{stem}.safetensors" for stem, part in parts.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def test_shards(tmp_path: Path) -> None:
    shards(tmp_path, one={"a": torch.ones(2)}, two={"b": torch.zeros(3), "c": torch.ones(1)})
    taker = Taker(a=(2,), b=(3,), c=(1,))
    Weights(tmp_path).load(taker)
    assert {n: t.sum().item() for n, t in taker.taken.items()} == {"a": 2.0, "b": 0.0, "c": 1.0}


def test_sharded_checkpoint_loads_like_a_single_file(copy: Path) -> None:
    whole = load(copy, "cpu", torch.float32)
    tensors = load_file(copy / ONE_FILE)
    names = sorted(tensors)
    (copy / ONE_FILE).unlink()
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    first, second = ({name: tensors[name] for name in half} for half in halves)
    shards(copy, first=first, second=second)
    parts = load(copy, "cpu", torch.float32)
    for module in ("talker", "predictor"):
        states = getattr(whole, module).state_dict(), getattr(parts, module).state_dict()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_first_faults_of_all_modules_are_named_together(tmp_path: Path) -> None:
    tensors = {
        "flat": torch.ones(4),
        "whole": torch.ones(2, dtype=torch.int64),
        "good": torch.ones(2),
    }
    save_file(tensors, tmp_path / ONE_FILE)
    absent = {f"absent{i}": (2,) for i in range(8)}
    with pytest.raises(CheckpointError) as caught:
        Weights(tmp_path).load(Taker(flat=(2, 2), good=(2,), **absent), Taker(whole=(2,)))
    message = caught.value.message
    assert caught.value.code == "tensors"
    assert "8 missing: absent0, absent1, absent2, absent3, absent4, ..." in message
    assert "2 of another shape or type: flat is [4], expected [2, 2], whole is I64" in message
    assert str(tmp_path) in message and "good" not in message


def test_misfit_of_a_real_module_is_named(copy: Path) -> None:
    tensors = load_file(copy / ONE_FILE)
    del tensors["talker.model.layers.2.mlp.up_proj.weight"]
    tensors["talker.codec_head.weight"] = tensors["talker.codec_head.weight"][:, :8].contiguous()
    save_file(tensors, copy / ONE_FILE)
    with pytest.raises(CheckpointError) as caught:
        load(copy, "cpu", torch.float32)
    assert "1 missing: talker.model.layers.2.mlp.up_proj.weight" in caught.value.message
    assert "codec_head.weight is [1280, 8], expected [1280, 256]" in caught.value.message


def cut(by: int) -> Spoil:
    def spoil(folder: Path) -> None:
        data = (folder / ONE_FILE).read_bytes()
        (folder / ONE_FILE).write_bytes(data[:-by])

    return spoil


def put(content: bytes, name: str = ONE_FILE) -> Spoil:
    return lambda folder: (folder / name).write_bytes(content)


def rename(name: str) -> Spoil:
    return lambda folder: (folder / ONE_FILE).rename(folder / name)


def index(content: object, shard: str = "shard.safetensors") -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / ONE_FILE).rename(folder / shard)
        (folder / INDEX).write_text(json.dumps(content))

    return spoil


def header(content: object) -> bytes:
    text = json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3833402552\n"
WHOLE = header({"x": {"dtype": "F32", "shape": [256], "data_offsets": [0, 1024]}}) + bytes(1024)
NO_OFFSETS = header({"x": {"dtype": "F32", "shape": [1]}})


@pytest.mark.parametrize(
    ("spoil", "code", "expected"),
    [
        (lambda folder: (folder / ONE_FILE).unlink(), "missing_file", ["neither", INDEX]),
        (rename("pytorch_model.safetensors"), "missing_file", ["neither", ONE_FILE]),
        (cut(1), "truncated", [f"{len(WHOLE) - 1:,} bytes", f"for {len(WHOLE):,}:", "Fetch it"]),
        (cut(len(WHOLE) - 4), "truncated", ["holds 4 bytes"]),
        (cut(len(WHOLE) - 14), "truncated", ["holds 14 bytes", f"for {len(WHOLE) - 1024}:"]),
        (put(b""), "truncated", ["0 bytes"]),
        (put(LFS), "truncated", ["git lfs pull"]),
        (put(b"PK\x03\x04" * 100), "truncated", ["400 bytes"]),
        (put(struct.pack("<Q", 2) + b"[]"), "malformed", ["not a safetensors file"]),
        (put(struct.pack("<Q", 4) + b"\xff{}}"), "malformed", ["not a safetensors file"]),
        (put(NO_OFFSETS), "malformed", ["not a safetensors file"]),
        (index({"weight_map": {"x": "other.safetensors"}}), "missing_file", ["other.safetens"]),
        (index({}), "malformed", ["weight_map is missing"]),
        (index({"weight_map": {"x": 1}}), "malformed", ["weight_map.x is 1, not str"]),
    ],
)
def test_spoilt_files(spoil: Spoil, code: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / ONE_FILE).write_bytes(WHOLE)
    Weights(tmp_path)
    spoil(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        Weights(tmp_path)
    assert caught.value.code == code
    for part in [str(tmp_path), *expected]:
        assert part in caught.value.message


def test_lying_header_is_an_error_of_the_file(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}  # three numbers in four bytes
    (tmp_path / ONE_FILE).write_bytes(header({"x": entry}) + bytes(4))
    with pytest.raises(CheckpointError, match="cannot be read"):
        Weights(tmp_path).load(Taker(x=(3,)))


@pytest.mark.parametrize("folder", [".", "speech_tokenizer"])
def test_either_file_may_be_the_broken_one(copy: Path, folder: str) -> None:
    file = copy / folder / ONE_FILE
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(CheckpointError) as caught:
        load(copy, "cpu", torch.float32)
    assert str(file) in caught.value.message and caught.value.code == "truncated"


def test_loaded_modules_are_ready_to_run(copy: Path) -> None:
    model = load(copy, "cpu", torch.bfloat16)
    assert torch.get_default_dtype() == torch.float32
    for module, dtype in (
        (model.talker, torch.bfloat16),
        (model.predictor, torch.bfloat16),
        (model.codec, torch.float32),
    ):
        assert not module.training
        parameters = list(module.parameters())
        assert {p.dtype for p in parameters} == {dtype}
        assert not any(p.requires_grad for p in parameters)
        assert all(p.isfinite().all() for p in parameters)


def test_new_modules_draw_no_random_values() -> None:
    before = torch.random.get_rng_state()
    with Unfilled():
        nn.Linear(8, 8), nn.Embedding(8, 8), nn.Conv1d(8, 8, 3), nn.ConvTranspose1d(8, 8, 4)
    assert torch.equal(torch.random.get_rng_state(), before)
