"""What a step costs: measured at warm-up, corrected while serving, kept for the next start.

A table holds seconds for sizes that were measured. Between them it is linear; beyond them it goes
on as between the last two.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from vivace.config import MOST_CHUNK, Profile
from vivace.errors import CheckpointError

Points = Mapping[int, float]
"""Size -> seconds."""

WEIGHT = 0.05  # of one step in the running correction
LATEST_S = 0.1  # what is later than that is no step's cost: a machine that slept, a debugger
LEAST, MOST = 0.25, 4.0  # a correction beyond these is a fault, not a slow day


def at(points: Points, size: float) -> float:
    """Seconds for a size that may lie between the measured ones."""
    sizes = sorted(points)
    if size <= sizes[0] or len(sizes) == 1:
        return points[sizes[0]]
    i = min(bisect_left(sizes, size), len(sizes) - 1)
    low, high = sizes[i - 1], sizes[i]
    slope = (points[high] - points[low]) / (high - low)
    return max(points[low] + slope * (size - low), points[sizes[0]])


@dataclass(frozen=True, slots=True)
class CostTable:
    """Step times of one checkpoint on one device, in seconds.

    Raises CheckpointError for a table without times or with times that are not above zero.
    """

    frame: Points  # a frame of so many rows: talker, draws, predictor
    voice: Mapping[int, Points]  # frames of a chunk -> rows -> the codec's time
    prefill: Points  # so many rows of one prompt

    def __post_init__(self) -> None:
        for points in (self.frame, self.prefill, self.voice, *self.voice.values()):
            if not points or min(points) < 1:
                raise CheckpointError("a cost table needs a time for one size or more, from 1 up")
        for points in (self.frame, self.prefill, *self.voice.values()):
            if min(points.values()) <= 0.0:
                raise CheckpointError("a cost table's times are above zero")

    def voice_s(self, rows: int, frames: int) -> float:
        """The codec's time for a chunk of so many frames of so many rows."""
        return at({size: at(points, rows) for size, points in self.voice.items()}, frames)


FREE = CostTable({1: 1e-6}, {1: {1: 1e-6}}, {1: 1e-6})
"""Of a runner that computes nothing."""


def _rising(seconds: Iterable[float]) -> list[float]:
    """More rows never cost less: where they were timed so, it was chance."""
    return list(accumulate(seconds, max))


class TokenCosts:
    """What token steps of one model take, with a running correction for each kind."""

    def __init__(self, table: CostTable, profile: Profile, learned: Mapping[str, float]) -> None:
        self.table = table
        self.off = {kind: learned.get(kind, 1.0) for kind in ("frame", "prefill")}
        self._rows = profile.frame_rows
        self._prompt = at(table.prefill, profile.prompt_rows)
        self._frame = _rising(at(table.frame, rows) for rows in range(profile.frame_rows + 1))

    @property
    def prompt_s(self) -> float:
        """An ordinary prompt."""
        return self._prompt * self.off["prefill"]

    def frame_s(self, rows: int) -> float:
        """One frame of so many rows."""
        return self._frame[rows] * self.off["frame"]

    def turn_s(self, streams: int) -> float:
        """One frame of so many streams, in as many steps as that takes."""
        rows = min(streams, self._rows)
        return math.ceil(streams / rows) * self.frame_s(rows)


class Costs:
    """Tables in quick reach, with a running correction for each kind of step.

    Token steps have costs of each model, by its number; the codec is one for all of them. What
    is said of steps in general is said for the models in `use`, however streams divide among them.
    """

    def __init__(
        self, table: CostTable, profile: Profile, learned: Mapping[str, float] | None = None
    ) -> None:
        learned = learned or {}
        self.profile = profile
        self.tokens = {0: TokenCosts(table, profile, learned)}
        self.used: tuple[int, ...] = (0,)
        self.off = {"voice": learned.get("voice", 1.0)}
        # By which steps outlast what is said of them, in the mean.
        self.late_s = learned.get("late_s", 0.0)
        self.cold = 1.0  # share of prompts that must be laid down: known ones cost nothing
        self.version = 0  # counts corrections worth planning anew for
        self._planned, self._planned_cold = self._corrections, self.cold
        self._voice = [
            _rising(table.voice_s(rows, frames) for rows in range(profile.codec_rows + 1))
            for frames in range(MOST_CHUNK + 1)
        ]

    def add(self, model: int, table: CostTable, learned: Mapping[str, float] | None = None) -> None:
        """Say what token steps of one more model take; or of one that was loaded anew."""
        self.tokens[model] = TokenCosts(table, self.profile, learned or {})
        self._plan_anew()

    def use(self, models: Collection[int]) -> None:
        """Sessions of these models speak or wait now; where there are none, nothing changes."""
        used = tuple(sorted(models))
        if used and used != self.used:
            self.used = used
            self._plan_anew()

    def _plan_anew(self) -> None:
        self._planned = self._corrections
        self.version += 1

    @property
    def mixed(self) -> bool:
        """Are sessions of more than one model there?"""
        return len(self.used) > 1

    @property
    def _corrections(self) -> tuple[float, ...]:
        tokens = (off for model in self.used for off in self.tokens[model].off.values())
        return (*tokens, *self.off.values(), self.late_s)

    def learned(self, model: int = 0) -> dict[str, float]:
        """What serving has taught of that model's steps, for the next start."""
        return {**self.tokens[model].off, **self.off, "late_s": self.late_s}

    @property
    def prompt_s(self) -> float:
        """An ordinary prompt, of the dearest model in use."""
        return max(self.tokens[model].prompt_s for model in self.used)

    @property
    def newcomer_s(self) -> float:
        """What the prompt of a newcomer takes in the mean."""
        return self.prompt_s * self.cold

    def met(self, *, known: bool) -> None:
        """A prompt has come, known or to be laid down."""
        self.cold += WEIGHT * ((not known) - self.cold)
        if abs(self.cold - self._planned_cold) > 0.1:
            self._planned_cold = self.cold
            self.version += 1

    def frame_s(self, rows: int, model: int = 0) -> float:
        """One frame of so many rows of that model."""
        return self.tokens[model].frame_s(rows)

    def turn_s(self, streams: int) -> float:
        """One frame of so many streams, however they divide among the models in use.

        A step holds rows of one model. So every model in use takes a step of its own, as far as
        there are streams for it, and all rows but the first of each are reckoned to be of the one
        whose rows are the dearest.
        """
        if not self.mixed:
            return self.tokens[self.used[0]].turn_s(streams)
        tokens = [self.tokens[model] for model in self.used]
        dearest_s = max(model.turn_s(streams) - model.frame_s(1) for model in tokens)
        alone_s = sorted((model.frame_s(1) for model in tokens), reverse=True)
        return sum(alone_s[:streams]) + dearest_s

    def voice_s(self, rows: int, frames: int) -> float:
        """One chunk of so many frames of so many rows, of any models."""
        return self._voice[frames][rows] * self.off["voice"]

    def learn(self, kind: str, said_s: float, took_s: float, model: int = 0) -> None:
        """A step of that kind took `took_s` where `said_s` was said; the codec's has no model."""
        kinds = self.off if kind in self.off else self.tokens[model].off
        off = kinds[kind] * (1.0 + WEIGHT * (took_s / said_s - 1.0))
        kinds[kind] = min(max(off, LEAST), MOST)
        late_s = min(max(0.0, took_s - said_s), LATEST_S)
        self.late_s += WEIGHT * (late_s - self.late_s)
        now = self._corrections
        if any(abs(a - b) > 0.1 * b + 1e-4 for a, b in zip(now, self._planned, strict=True)):
            self._plan_anew()
