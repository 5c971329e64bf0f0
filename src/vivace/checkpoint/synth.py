"""Writes random checkpoints in the published layout: any size, any kind, for tests and load."""

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from vivace.checkpoint.noise import CodecNoise, Noise
from vivace.checkpoint.presets import SIZES, config_files
from vivace.checkpoint.read import CODEC_FOLDER, KINDS, read_spec
from vivace.checkpoint.tensors import Shape, codec_tensors, model_tensors
from vivace.checkpoint.vocabulary import vocabulary, write_tokenizer
from vivace.checkpoint.weights import ONE_FILE
from vivace.checkpoint.wiring import LanguageModel
from vivace.errors import CheckpointError

MEAN_FRAMES = 50.0  # 4 s
STORED = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


def write_synthetic(
    out: Path,
    *,
    size: str = "tiny",
    kind: str = "custom_voice",
    seed: int = 0,
    mean_frames: float | None = None,
    until_text: bool = False,
    dtype: str = "bfloat16",
) -> None:
    """Write a random checkpoint into the new or empty folder `out`.

    Speech lasts `mean_frames` on average (50 unless told), with the same odds to end after every
    frame; with `until_text` it lasts a moment longer than its text has tokens. `dtype` is that of
    talker and predictor; the speech tokenizer is in float32, as published.

    Raises CheckpointError for what it does not know, a mean of 2 or less, and a folder in use.
    """
    number = {str(t).removeprefix("torch."): t for t in STORED}
    check_choice("size", size, SIZES)
    check_choice("kind", kind, KINDS)
    check_choice("dtype", dtype, number)
    mean = None if until_text else mean_frames or MEAN_FRAMES
    if mean is not None and mean <= 2:
        raise CheckpointError(f"mean_frames is {mean:g}; speech lasts more than 2 frames.")
    claim(out)
    vocab = vocabulary(published=size != "tiny")
    for name, config in config_files(size, kind, vocab).items():
        (out / name).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    write_tokenizer(out, vocab)
    spec = read_spec(out)
    language_model = LanguageModel(spec, Noise(seed, number[dtype]), mean)
    write_tensors(out / ONE_FILE, model_tensors(spec), language_model, number[dtype])
    codec = CodecNoise(spec.codec, Noise(seed, torch.float32))
    codec.calibrate()
    write_tensors(out / CODEC_FOLDER / ONE_FILE, codec_tensors(spec.codec), codec, torch.float32)


def check_choice(option: str, value: str, known: Mapping[str, object] | tuple[str, ...]) -> None:
    """Raise CheckpointError unless `value` is one of the `known`."""
    if value not in known:
        raise CheckpointError(f"There is no {option} {value!r}. Choose from {', '.join(known)}.")


def claim(out: Path) -> None:
    """Make the folder, or make sure that nothing in it would be overwritten."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise CheckpointError(f"{out} is not empty. Choose another folder, or empty it.")
        (out / CODEC_FOLDER).mkdir()
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written: {error.strerror}.") from error


def write_tensors(
    file: Path,
    shapes: Mapping[str, Shape],
    make: Callable[[str, Shape], Tensor],
    dtype: torch.dtype,
) -> None:
    """Write a safetensors file (header length, header, bytes), holding one tensor at a time."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": STORED[dtype], "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            stream.write(make(name, shape).contiguous().view(-1).view(torch.uint8).numpy().data)
