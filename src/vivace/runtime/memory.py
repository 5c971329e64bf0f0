"""How many sessions a device holds, and how many pages they share."""

from dataclasses import dataclass
from math import prod

from vivace.config import EngineConfig
from vivace.errors import CheckpointError
from vivace.model.spec import ModelSpec
from vivace.runtime.state import PAGE, RING

GB = 1e9
SPARE = 2 << 30  # for graphs, workspaces and what other programs take after us


@dataclass(frozen=True, slots=True)
class Memory:
    """What a runner takes on its device, beside the weights."""

    sessions: int
    pages: int
    bytes: int

    def __str__(self) -> str:
        return (
            f"{self.sessions} sessions, {self.pages * PAGE} positions between them, "
            f"{self.bytes / GB:.1f} GB beside the weights"
        )


def position_bytes(spec: ModelSpec, itemsize: int) -> int:
    """Keys and values of one position."""
    s = spec.talker
    return 2 * s.layers * s.kv_heads * s.head_dim * itemsize


def session_bytes(spec: ModelSpec, sound: tuple[tuple[int, ...], ...], itemsize: int) -> int:
    """One slot's state; `sound` are the shapes of the codec's, in fp32."""
    talker = spec.talker.hidden * itemsize + spec.talker.vocab + 8 * RING * spec.codebooks
    return talker + 4 * sum(map(prod, sound))


def plan_memory(
    config: EngineConfig,
    spec: ModelSpec,
    sound: tuple[tuple[int, ...], ...],
    itemsize: int,
    free: int | None,
) -> Memory:
    """As many of the sessions as fit into `free` bytes; None is no limit.

    Raises CheckpointError if not even one of the longest fits.
    """

    def memory(sessions: int) -> Memory:
        pages = -(-max(sessions * config.session_context, config.max_context) // PAGE)
        kept = pages * PAGE * position_bytes(spec, itemsize) + (config.prefix_mb << 20)
        return Memory(sessions, pages, kept + sessions * session_bytes(spec, sound, itemsize))

    for sessions in range(config.max_sessions, 0, -1):
        fitting = memory(sessions)
        if free is None or fitting.bytes + SPARE <= free:
            return fitting
    raise CheckpointError(
        f"one session of {config.max_context} positions takes {memory(1).bytes / GB:.1f} GB and "
        f"{SPARE / GB:.1f} GB to spare; {(free or 0) / GB:.1f} GB of the device are free: "
        "lower max_context or prefix_mb, or take a smaller checkpoint"
    )
