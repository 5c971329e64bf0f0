"""What tells one checkpoint's weights from another's: hashes of every byte of them.

Samples would not do: training may leave the sampled bytes of a tensor as they were, and then one
model's speech would be served for another's. Where the files lie and how old they are counts for
nothing, so voices and results are of the same model on every machine. Hashing takes about a second
for a GB on each core, of files that are read for loading in any case.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from vivace.checkpoint.read import CODEC_FOLDER
from vivace.model.spec import Prints

_BLOCK: Final = 8 << 20  # bytes that one thread hashes at a time
_THREADS: Final = 16
_CONFIGS: Final = ("config.json", "generation_config.json", "vocab.json", "merges.txt")
_ENCODERS: Final = {".": "speaker_encoder.", CODEC_FOLDER: "encoder."}


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Where the bytes of a tensor lie; `about` is its name, type and shape."""

    about: str
    path: Path
    start: int
    end: int


def prints_of(path: Path) -> Prints:
    """The prints of the checkpoint in a folder, which must have been found to be one.

    They change with any byte of the weights and of the files that say how these are used: `model`
    with all of them, `encoder` and `codec` with their own tensors and the codec's config.
    """
    whole, encoder, codec = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    for name in _CONFIGS:
        whole.update(_content(path / name))
    for each in (whole, encoder, codec):
        each.update(_content(path / CODEC_FOLDER / "config.json"))
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), "vivace-prints") as pool:
        for folder, encoders in _ENCODERS.items():
            for name, hashed in _hashes(_tensors(path / folder), pool):
                whole.update(hashed)
                if name.startswith(encoders):
                    encoder.update(hashed)
                if folder == CODEC_FOLDER and name.startswith("decoder."):
                    codec.update(hashed)
    return Prints(whole.hexdigest(), encoder.hexdigest(), codec.hexdigest())


def _content(file: Path) -> bytes:
    """The hash of a small file; of nothing if it is not there."""
    return hashlib.sha256(file.read_bytes() if file.exists() else b"").digest()


def _tensors(folder: Path) -> dict[str, _Tensor]:
    """Those of a folder's files, by name."""
    found: dict[str, _Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                start, end = (8 + length + offset for offset in entry["data_offsets"])
                found[name] = _Tensor(
                    f"{name} {entry['dtype']} {entry['shape']} ", path, start, end
                )
    return dict(sorted(found.items()))


def _hashes(tensors: dict[str, _Tensor], pool: ThreadPoolExecutor) -> Iterator[tuple[str, bytes]]:
    """Every tensor's name, and what it is with the hashes of its blocks; in order."""
    blocks = pool.map(_hash, _blocks(tensors))
    for name, tensor in tensors.items():
        yield name, tensor.about.encode() + b"".join(islice(blocks, len(_starts(tensor))))


def _starts(tensor: _Tensor) -> range:
    return range(tensor.start, tensor.end, _BLOCK)


def _blocks(tensors: dict[str, _Tensor]) -> Iterator[tuple[Path, int, int]]:
    """All of their bytes, in order: a file, and from where to where."""
    for tensor in tensors.values():
        for start in _starts(tensor):
            yield tensor.path, start, min(start + _BLOCK, tensor.end)


def _hash(block: tuple[Path, int, int]) -> bytes:
    path, start, end = block
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(end - start)).digest()
