"""What the loop measures of itself: histograms cheap to add to, small to send.

The edge turns them into metrics; docs/metrics.md says what each means.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

from vivace.types import Cut

Bounds = tuple[float, ...]

STEP_S: Final = (0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.06, 0.12, 0.3, 1.0)
WAIT_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 60.0)
MARGIN_S: Final = (-1.0, -0.3, -0.1, -0.03, 0.0, 0.01, 0.02, 0.04, 0.08, 0.2, 0.5, 1.0, 2.0, 15.0)
CANCEL_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(slots=True)
class Counts:
    """What has happened since the start."""

    steps: int = 0  # rounds that started something
    starved: int = 0  # streams left out of a codec step that outlasts what they have in hand
    late: int = 0  # chunks sent after their listener had fallen silent, text being there
    refused: int = 0  # newcomers sent away
    cuts: dict[Cut, int] = field(default_factory=lambda: dict.fromkeys(Cut, 0))  # by a guard
    redraws: int = 0  # speech that nobody had heard, drawn again
    spoilt: int = 0  # sessions ended as their numbers were none


@dataclass(slots=True)
class Tally:
    """A histogram without its bounds: how often at most each of them, then how often more."""

    counts: list[int]
    total: float = 0.0

    @classmethod
    def of(cls, bounds: Bounds) -> "Tally":
        """An empty one."""
        return cls([0] * (len(bounds) + 1))

    def add(self, bounds: Bounds, value: float) -> None:
        """Count a value. `bounds` are those it was made for."""
        self.counts[bisect_left(bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class Lane:
    """Steps of one kind: times by batch, the rows in them, the rows there was room for."""

    took_s: dict[int, Tally] = field(default_factory=dict)  # by the largest batch of each bucket
    rows: int = 0
    room: int = 0


@dataclass(slots=True)
class Meters:
    """All that the loop measures, since its start."""

    wait: Tally = field(default_factory=lambda: Tally.of(WAIT_S))  # from ready to its slot
    margin: Tally = field(default_factory=lambda: Tally.of(MARGIN_S))  # left when a chunk was sent
    cancel: Tally = field(default_factory=lambda: Tally.of(CANCEL_S))  # from the word to the end
    lanes: dict[str, Lane] = field(default_factory=dict)  # frame, prompt, codec

    def stepped(self, kind: str, rows: int, room: int, took_s: float) -> None:
        """Count a step of so many rows."""
        lane = self.lanes.get(kind)
        if lane is None:
            lane = self.lanes[kind] = Lane()
        lane.rows += rows
        lane.room += room
        size = ROWS[min(bisect_left(ROWS, rows), len(ROWS) - 1)]
        tally = lane.took_s.get(size)
        if tally is None:
            tally = lane.took_s[size] = Tally.of(STEP_S)
        tally.add(STEP_S, took_s)


@dataclass(frozen=True, slots=True)
class Stock:
    """What a runner has to give, and what its caches did. Zeros where there is no such thing."""

    pages: int = 0
    pages_free: int = 0
    prefix_hits: int = 0
    prefix_misses: int = 0
    prefix_bytes: int = 0
    device_bytes: int = 0  # of the device's memory, what tensors hold
    device_reserved_bytes: int = 0  # what this process has taken
    device_total_bytes: int = 0
