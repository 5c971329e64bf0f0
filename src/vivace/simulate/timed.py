"""A runner that computes nothing and takes as long as a cost table says, on a clock that jumps."""

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from vivace.config import Profile
from vivace.schedule.costs import Costs, CostTable
from vivace.text.prompt import Prompt
from vivace.types import SAMPLES_PER_FRAME, Frames, Pcm, Row, Sampling

PROMPT_ROWS = 10  # of an ordinary prompt of a named voice

T = TypeVar("T")
_SILENCE = np.zeros((1, 1), dtype=np.float32)
_NO_CODES = np.zeros((1, 16), dtype=np.int64)


class Clock:
    """Time, moved by the simulation alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Seconds since the start."""
        return self.now


@dataclass(frozen=True, slots=True)
class Due(Generic[T]):
    """A step that is over at a known time."""

    ends_s: float
    value: T
    clock: Clock

    def done(self) -> bool:
        """Has its time come?"""
        return self.clock.now >= self.ends_s

    def result(self) -> T:
        """What it made."""
        return self.value


class Lane:
    """Steps one after the other, with the host's time before each."""

    def __init__(self, clock: Clock, host_s: float) -> None:
        self.clock, self.host_s, self.free_s, self.busy_s = clock, host_s, 0.0, 0.0

    def run(self, seconds: float, value: T) -> Due[T]:
        """Take so long for that."""
        begins_s = max(self.free_s, self.clock.now + self.host_s)
        self.free_s = begins_s + seconds
        self.busy_s += seconds
        return Due(self.free_s, value, self.clock)


class TimedRunner:
    """Computes nothing and takes as long as the table says."""

    poll_s = math.inf
    known = False  # are all prompts laid down, as those of known voices are?

    def __init__(
        self,
        table: CostTable,
        profile: Profile,
        clock: Clock,
        *,
        depth: int,
        host_s: float,
        jitter: random.Random,
    ) -> None:
        self.depth, self.table, self.jitter = depth, table, jitter
        self.tokens, self.sound = Lane(clock, host_s), Lane(clock, host_s)
        self.lengths: dict[int, int] = {}
        self.made: dict[int, int] = {}
        self.models: dict[int, int] = {}  # of slots
        self.costs = Costs(table, profile)  # never corrected: it is the truth
        self.noise = 0.0

    def _took(self, seconds: float) -> float:
        return seconds * (1.0 + self.noise * self.jitter.random())

    def watch(self, wake: Callable[[], None]) -> None:
        """The simulation looks by itself."""

    def fetch(self, model: int, busy: Collection[int], costs: Costs) -> bool:
        """All are there."""
        return True

    def open(self, slot: int, sampling: Sampling, seed: int, model: int = 0) -> None:
        """The seed is the length."""
        self.lengths[slot], self.made[slot], self.models[slot] = seed, 0, model

    def close(self, slot: int) -> None:
        """Nothing is held."""

    def room(self, slot: int, positions: int) -> bool:
        """Always."""
        return True

    def begin(self, slot: int, prompt: Prompt) -> bool:
        """Nothing is computed."""
        return self.known

    def prefill(self, slot: int, rows: int) -> Due[bool]:
        """The whole prompt."""
        tokens = self.costs.tokens[self.models[slot]]
        return self.tokens.run(self._took(tokens.prompt_s), True)

    def frame(self, rows: Sequence[Row]) -> Due[Frames]:
        """One more of each."""
        ended = np.array([self.made[row.slot] >= self.lengths[row.slot] for row in rows])
        for row in rows:
            self.made[row.slot] += 1
        (model,) = {self.models[row.slot] for row in rows}
        codes = np.broadcast_to(_NO_CODES, (len(rows), 16))
        took_s = self._took(self.costs.frame_s(len(rows), model))
        return self.tokens.run(took_s, Frames(codes, ended))

    def voice(self, slots: Sequence[int], frames: int) -> Due[Pcm]:
        """Samples that nobody hears, as many as there would be: the loop counts them."""
        pcm = np.broadcast_to(_SILENCE, (len(slots), frames * SAMPLES_PER_FRAME))
        return self.sound.run(self._took(self.costs.voice_s(len(slots), frames)), pcm)
