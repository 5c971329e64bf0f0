"""Step times of a checkpoint on this device, as the engine takes them at its start, into a file."""

from datetime import UTC, datetime
from pathlib import Path

from vivace import tables
from vivace.bench.machine import command, commit
from vivace.config import EngineConfig
from vivace.parts import load_parts


def record(model: str | None, config: EngineConfig, output: Path) -> str:
    """Load, warm up, write the table; a line that says what it is of.

    Raises CheckpointError if the checkpoint cannot be used, OSError if the file cannot be written.
    """
    parts = load_parts(model, config, revision=None, offline=False)
    when = datetime.now(UTC).date().isoformat()
    about = {"device": parts.device, "model": parts.model_id, "when": when}
    tables.write(output, parts.costs, **about, command=command(), commit=commit())
    return f"{parts.model_id} on {parts.device}"
