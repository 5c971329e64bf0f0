"""Cost tables as JSON files: those in the box, and those that an engine keeps of its device.

A file holds milliseconds by size, and says where they are from:
`{"device", "model", "when", "command", "commit", "frame_ms": {"1": 6.3, ...},
"voice_ms": {"1": {"1": 0.9, ...}, ...}, "prefill_ms": {"16": 2.0}}`; `schedule/costs.py` says
what the sizes are.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from vivace.errors import CheckpointError, NotFound
from vivace.schedule.costs import LATEST_S, LEAST, MOST, CostTable, Points

SHIPPED = Path(__file__).with_name("costs")
_SPOILT = (
    OSError,
    ArithmeticError,
    RecursionError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
)


def names() -> list[str]:
    """The tables in the box."""
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def find(name: str) -> Path:
    """The file of a table in the box, or of that path.

    Raises NotFound with the names that there are.
    """
    path = SHIPPED / f"{name}.json" if name in names() else Path(name)
    if not path.is_file():
        raise NotFound(f"there is no cost table {name!r}: a file, or one of {', '.join(names())}")
    return path


def read(path: Path) -> CostTable:
    """A table from its file.

    Raises CheckpointError for one that is not there, not JSON, or lacks a time.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        frame, prefill = _points(found["frame_ms"]), _points(found["prefill_ms"])
        voice = {_size(size): _points(points) for size, points in found["voice_ms"].items()}
        return CostTable(frame, voice, prefill)
    except (*_SPOILT, CheckpointError) as error:
        cause = f"{error} is missing" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{path} is no cost table: {cause}") from None


def learned(path: Path) -> dict[str, float]:
    """What an engine has learned of its device beside the table in that file; nothing if none has.

    A file that cannot be read is none, nor is a value that no engine learns: it only saves the
    first seconds of learning.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["learned"]
        return {kind: float(value) for kind, value in found.items() if _learnable(kind, value)}
    except _SPOILT:
        return {}


def _learnable(kind: str, value: float) -> bool:
    low, high = (0.0, LATEST_S) if kind == "late_s" else (LEAST, MOST)
    return low <= value <= high


def write(path: Path, table: CostTable, **about: object) -> None:
    """Keep a table, with where it is from; a reader never meets half a file."""
    lanes = {f"{f.name}_ms": _milliseconds(getattr(table, f.name)) for f in fields(table)}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps({**about, **lanes}, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def _milliseconds(times: Mapping[int, object]) -> dict[str, object]:
    return {
        str(size): _milliseconds(time) if isinstance(time, Mapping) else round(time * 1e3, 6)  # type: ignore[operator]
        for size, time in sorted(times.items())
    }


def _points(found: Mapping[str, object]) -> Points:
    return {_size(size): _seconds(ms) for size, ms in found.items()}


def _size(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{text!r} is no size")
    return int(text)


def _seconds(ms: object) -> float:
    if isinstance(ms, bool) or not isinstance(ms, int | float) or not math.isfinite(ms):
        raise ValueError(f"{ms!r} is no time in milliseconds")
    return ms / 1e3
