"""How large chunks must be, and how early, so that so many streams never run dry.

A stream needs a frame every 80 ms from each lane. The token lane gives all streams one in a turn.
The codec's cost of a frame depends on how many go together: the more, the cheaper, and the longer
the step that nobody can interrupt. So for each number of streams there is a best chunk.
"""

import math
from dataclasses import dataclass

from vivace.config import MOST_CHUNK, Profile
from vivace.schedule.costs import Costs
from vivace.types import FRAME_S

EASY = 0.7  # of the full load: a codec that needs less can make up for a bad moment
LATE = 4.0  # times the mean lateness of steps is as late as they come
SHARE = 0.25  # of the time a chunk plays: a longer step would make everybody urgent
_CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Pace:
    """What a number of streams asks of the two lanes."""

    first: int  # frames of a first chunk, so that the second comes in time
    lead_s: float  # the least sound to begin with, for the same reason
    least: int  # frames with which the codec could serve them all for good
    chunk: int  # frames of later ones
    rows: int  # streams whose chunks go together
    turn_s: float  # time in which every stream gets a frame
    step_s: float  # the longest codec step to reckon with
    guard_s: float  # a listener with less than this must be served now
    ahead_s: float  # and one with more than this can wait
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
        self.easy = EASY * profile.full
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
        turn_s = costs.turn_s(streams)
        chunk, rows, load = self._chunk(streams)
        step_s = costs.voice_s(rows, chunk) if streams > 1 else 0.0
        stall_s = costs.prompt_s if streams > 1 else 0.0
        spare_s = p.guard_s + LATE * costs.late_s
        guard_s = spare_s + p.margin * (step_s + costs.voice_s(1, chunk))
        next_s = spare_s + p.margin * (turn_s + stall_s + step_s + costs.voice_s(1, 1))
        least = self._least(streams)
        room_s = 0.0 if least == 1 else least * FRAME_S + guard_s
        lead_s = min(max(next_s, room_s), MOST_CHUNK // 2 * FRAME_S)
        return Pace(
            first=max(p.first_frames, math.ceil(lead_s / FRAME_S)),
            lead_s=lead_s,
            least=least,
            chunk=chunk,
            rows=rows,
            turn_s=turn_s,
            step_s=step_s,
            guard_s=guard_s,
            ahead_s=max(p.lead_s, 2.0 * guard_s),
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
        steps = sorted((self.costs.voice_s(r, f), f, r) for f, r in self._sizes(streams))
        bearable = [s for s in steps if s[0] <= max(self.profile.step_s, SHARE * s[1] * FRAME_S)]
        loads = [(self._load(streams, f, r), (f, r)) for _, f, r in bearable or steps[:1]]
        short = sum(took_s <= self.profile.step_s for took_s, _, _ in bearable)
        load, size = min(loads[: max(1, short)])
        if load > self.easy:
            easy = [x for x in loads if x[0] <= self.easy]
            load, size = easy[0] if easy else min(loads)
        return *size, load

    def _least(self, streams: int) -> int:
        """The smallest chunk with which the codec carries them all easily."""
        easy = (f for f, r in self._sizes(streams) if self._load(streams, f, r) <= self.easy)
        return min(easy, default=self.profile.chunk_frames)
