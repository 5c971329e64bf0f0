"""What all of it takes on a device, and how many sessions that leaves room for."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import nn

from vivace.config import EngineConfig
from vivace.errors import CheckpointError
from vivace.model.spec import ModelSpec
from vivace.runtime.state import PAGE, RING

GB = 1e9
SPARE = 2 << 30  # for graphs, workspaces and what other programs take after us
GRAPHS = 512 << 20  # for those of each further model


@dataclass(frozen=True, slots=True)
class Load:
    """One checkpoint: the bytes of its weights in memory, and of what it takes voices with."""

    name: str
    spec: ModelSpec
    bytes: int
    encoders: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What an engine takes on its device: how many bytes for what, in the order of its table."""

    sessions: int
    pages: int
    parts: tuple[tuple[str, int], ...]
    free: int | None = None  # bytes, before anything is loaded

    @property
    def bytes(self) -> int:
        """All of it."""
        return sum(size for _, size in self.parts)

    @property
    def positions(self) -> int:
        """That all sessions have between them, in each pool."""
        return self.pages * PAGE

    def __str__(self) -> str:
        free = "" if self.free is None else f" of {self.free / GB:.2f} GB that are free"
        rows = [f"{size / GB:8.2f} GB  {what}" for what, size in self.parts]
        head = f"memory for {self.sessions} sessions, {self.positions} positions between them"
        return "\n".join([head, *rows, f"{self.bytes / GB:8.2f} GB  in all{free}"])


def weigh(*modules: nn.Module) -> int:
    """Bytes of their weights and tables; modules on "meta" will do."""
    return sum(t.nbytes for m in modules for t in (*m.parameters(), *m.buffers()))


def position_bytes(spec: ModelSpec, itemsize: int) -> int:
    """Keys and values of one position."""
    s = spec.talker
    return 2 * s.layers * s.kv_heads * s.head_dim * itemsize


def slot_bytes(spec: ModelSpec, itemsize: int) -> int:
    """One slot's state, as one model needs it."""
    return spec.talker.hidden * itemsize + spec.talker.vocab


def sound_bytes(spec: ModelSpec, sound: Sequence[tuple[int, ...]]) -> int:
    """One slot's ring and codec state; `sound` are the shapes of that, in fp32."""
    return 8 * RING * spec.codebooks + 4 * sum(map(prod, sound))


def pools(loads: Sequence[Load]) -> list[Load]:
    """One of each shape of keys and values: models whose are alike have one pool of pages."""
    shapes = {
        (s.layers, s.kv_heads, s.head_dim): load
        for load in reversed(loads)
        for s in (load.spec.talker,)
    }
    return list(shapes.values())


def plan_memory(
    config: EngineConfig,
    loads: Sequence[Load],
    codec: int,
    sound: Sequence[tuple[int, ...]],
    itemsize: int,
    free: int | None,
    budget: int | None = None,
) -> Memory:
    """As many of the sessions as fit into `free` bytes; None is no limit.

    `codec` are the bytes of its weights, `budget` those that models' weights may take together, if
    not all of them are there at a time. Raises CheckpointError with the whole table if not even
    one session of the longest fits.
    """

    def memory(sessions: int) -> Memory:
        pages = -(-max(sessions * config.session_context, config.max_context) // PAGE)
        positions = sum(position_bytes(load.spec, itemsize) for load in pools(loads))
        slots = sum(slot_bytes(load.spec, itemsize) for load in loads)
        parts = [(f"weights of {load.name}", load.bytes) for load in loads]
        if budget is not None and budget < sum(load.bytes for load in loads):
            parts = [(f"weights, as many as fit of {len(loads)} models", budget)]
        parts += [(f"encoders of {load.name}", load.encoders) for load in loads if load.encoders]
        parts += [
            ("the codec's weights", codec),
            ("keys and values", pages * PAGE * positions),
            ("keys and values of what stands before texts", len(loads) * config.prefix_mb << 20),
            ("sessions' states", sessions * (slots + sound_bytes(loads[0].spec, sound))),
            ("graphs, workspaces and to spare", SPARE + (len(loads) - 1) * GRAPHS if free else 0),
        ]
        return Memory(sessions, pages, tuple(parts), free)

    for sessions in range(config.max_sessions, 0, -1):
        fitting = memory(sessions)
        if free is None or fitting.bytes <= free:
            return fitting
    raise CheckpointError(
        f"not even one session fits, {memory(1)}. Lower max_context or prefix_mb, or take fewer or "
        "smaller checkpoints",
        code="memory",
    )
