"""How large chunks must be, and how early, so that so many streams never run dry.

A stream needs a frame every 80 ms from each lane. The token lane gives all streams one in a turn.
The codec's cost of a frame depends on how many go together: the more, the cheaper, and the longer
the step that nobody can interrupt. So for each number of streams there is a best chunk.
"""

import math
from dataclasses import dataclass

from vivace.config import Profile
from vivace.schedule.costs import Costs
from vivace.types import FRAME_S

_CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Pace:
    """What a number of streams asks of the two lanes."""

    first: int  # frames of a first chunk, so that the second comes in time
    chunk: int  # frames of later ones
    rows: int  # streams whose chunks go together
    turn_s: float  # time in which every stream gets a frame
    step_s: float  # the longest codec step to reckon with
    guard_s: float  # a listener with less than this must be served now
    turn_load: float  # share of the token lane's time that real time takes
    voice_load: float  # and of the codec's

    @property
    def load(self) -> float:
        """Of the busier lane."""
        return max(self.turn_load, self.voice_load)


class Pacer:
    """Paces by number of streams, made anew when the costs have moved."""

    def __init__(self, profile: Profile, costs: Costs) -> None:
        self.profile, self.costs = profile, costs
        self._version = -1
        self._paces: dict[int, Pace] = {}

    def at(self, streams: int) -> Pace:
        """The pace of so many streams, one or more."""
        if self._version != self.costs.version:
            self._version = self.costs.version
            self._paces.clear()
        if (pace := self._paces.get(streams)) is None:
            pace = self._paces[streams] = self._make(streams)
        return pace

    def _make(self, streams: int) -> Pace:
        p, costs = self.profile, self.costs
        rows = min(streams, p.frame_rows)
        turn_s = math.ceil(streams / rows) * costs.frame_s(rows)
        chunk, rows, load = self._chunk(streams)
        step_s = costs.voice_s(rows, chunk) if streams > 1 else 0.0
        stall_s = costs.prompt_s if streams > 1 else 0.0
        next_s = p.margin * (turn_s + stall_s + step_s + costs.voice_s(1, 1)) + p.guard_s
        first = max(p.first_frames, self._least(streams), math.ceil(next_s / FRAME_S))
        guard_s = p.guard_s + p.margin * (step_s + costs.voice_s(1, chunk))
        return Pace(
            first=min(first, p.chunk_frames),
            chunk=chunk,
            rows=rows,
            turn_s=turn_s,
            step_s=step_s,
            guard_s=guard_s,
            turn_load=turn_s / FRAME_S,
            voice_load=load,
        )

    def _sizes(self, streams: int) -> list[tuple[int, int]]:
        p = self.profile
        rows = [r for r in _ROWS if r <= min(streams, p.codec_rows)]
        frames = [f for f in _CHUNKS if p.first_frames <= f <= p.chunk_frames]
        return [(f, r) for f in frames or [p.chunk_frames] for r in rows]

    def _load(self, streams: int, frames: int, rows: int) -> float:
        return streams * self.costs.voice_s(rows, frames) / (rows * frames * FRAME_S)

    def _chunk(self, streams: int) -> tuple[int, int, float]:
        """Frames, rows and load: the cheapest of the short steps, or the shortest that carries."""
        sizes = sorted(self._sizes(streams), key=lambda s: self.costs.voice_s(s[1], s[0]))
        loads = [(self._load(streams, *size), size) for size in sizes]
        short = [x for x in loads if self.costs.voice_s(x[1][1], x[1][0]) <= self.profile.step_s]
        load, size = min(short or loads[:1])
        if load > self.profile.full:
            carrying = [x for x in loads if x[0] <= self.profile.full]
            load, size = carrying[0] if carrying else min(loads)
        return *size, load

    def _least(self, streams: int) -> int:
        """The smallest chunk with which the codec could serve them all for good."""
        for frames, _ in self._sizes(streams):
            if any(
                self._load(streams, f, r) <= self.profile.full
                for f, r in self._sizes(streams)
                if f == frames
            ):
                return frames
        return self.profile.chunk_frames
