"""What tells one checkpoint's weights from another's, at the cost of a few milliseconds."""

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vivace.checkpoint.read import CODEC_FOLDER
from vivace.model.spec import Prints

_SAMPLE: Final = 256  # bytes from the middle of every tensor: training changes them all
_CONFIGS: Final = ("config.json", "generation_config.json", "vocab.json", "merges.txt")
_ENCODERS: Final = {".": "speaker_encoder.", CODEC_FOLDER: "encoder."}


def prints_of(path: Path) -> Prints:
    """The prints of the checkpoint in a folder, which must have been found to be one."""
    whole, encoder, codec = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
    for name in _CONFIGS:
        file = path / name
        whole.update(file.read_bytes() if file.exists() else b"")
    for folder, encoders in _ENCODERS.items():
        for name, sample in _tensors(path / folder):
            whole.update(sample)
            if name.startswith(encoders):
                encoder.update(sample)
            if folder == CODEC_FOLDER and name.startswith("decoder."):
                codec.update(sample)
    return Prints(whole.hexdigest(), encoder.hexdigest(), codec.hexdigest())


def _tensors(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every tensor's name, and its name, type, shape and sample in one; by name."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            for name, entry in header.items():
                if name == "__metadata__":
                    continue
                start, end = entry["data_offsets"]
                middle = max(start, (start + end - _SAMPLE) // 2)
                file.seek(8 + length + middle)
                about = f"{name} {entry['dtype']} {entry['shape']} ".encode()
                found[name] = about + file.read(min(_SAMPLE, end - middle))
    yield from sorted(found.items())
