"""Whom to take in: as many as can be served for good, a bounded queue, the others come back later.

Overload costs newcomers a quick refusal, never the streams in progress.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from vivace.schedule.pace import Pacer

WEIGHT = 0.1  # of one session in the running mean of stays
FIRST_STAY_S = 4.0  # until a session has told better
PATIENCE = 2.0  # a newcomer who has waited so many times the limit is sent away after all


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a newcomer is told: when it would hear something, or when to come back."""

    first_audio_s: float
    retry_after_s: float  # 0 where it is taken in

    @property
    def refused(self) -> bool:
        """Is it sent away?"""
        return self.retry_after_s > 0.0


class Admission:
    """Decides from the number of sessions, the costs, and how long sessions have stayed of late."""

    def __init__(self, pacer: Pacer, sessions: int, queue: int, slo_s: float) -> None:
        self.pacer, self.sessions, self.queue, self.slo_s = pacer, sessions, queue, slo_s
        self.stay_s = FIRST_STAY_S
        self._most, self._young, self._version, self._stay_s = 0, 0, -1, 0.0

    @property
    def most(self) -> int:
        """Sessions that can be served at a time, one at least: slots, or what the lanes carry."""
        self._reckon()
        return self._most

    def _reckon(self) -> None:
        """Anew, when the costs or the stays have moved."""
        moved = abs(self.stay_s - self._stay_s) > 0.1 * self._stay_s
        if moved or self._version != self.pacer.costs.version:
            self._version, self._stay_s = self.pacer.costs.version, self.stay_s
            self._most = self._largest(lambda n: self.load(n) <= self.pacer.profile.full)
            self._young = self._largest(lambda n: self.pacer.at(n).least == 1)

    def _largest(self, fits: Callable[[int], bool]) -> int:
        """By bisection: what fits so many streams fits fewer."""
        low, high = 1, self.sessions
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle) else (low, middle - 1)
        return low

    def load(self, streams: int) -> float:
        """Share of the busier lane that so many streams need, newcomers' prompts included."""
        prompts_s = self.pacer.costs.newcomer_s / self.stay_s
        pace = self.pacer.at(streams)
        return max(pace.load, pace.turn_load + streams * prompts_s)

    def room(self, seated: int, young: int, *, pressed: bool) -> bool:
        """May one more be seated?

        `young` of the seated have not a chunk in hand yet: they need small chunks, which cost
        more. `pressed` says that a stream in progress is about to run dry.
        """
        if seated >= self.most:
            return False
        if pressed and self.load(seated + 1) > self.pacer.easy:
            return False
        return young < max(self._young, seated - young)

    def forecast(self, seated: int, waiting: int) -> Forecast:
        """For a newcomer behind `waiting` others."""
        behind = max(0, seated + waiting + 1 - self.most)
        wait_s = behind * self.stay_s / self.most
        first_s = wait_s + self.first_s(min(seated + waiting + 1, self.most))
        if behind == 0 or (behind <= self.queue and first_s <= self.slo_s):
            return Forecast(first_s, 0.0)
        over_s = max(first_s - self.slo_s, self.stay_s / self.most)
        return Forecast(first_s, float(math.ceil(over_s)))

    def again_s(self, seated: int) -> float:
        """When to come back, for one who has waited in vain: whole seconds."""
        return float(math.ceil(self.forecast(seated, 0).first_audio_s))

    def first_s(self, streams: int) -> float:
        """From a seat to the first sound, beside so many streams."""
        pace, costs = self.pacer.at(streams), self.pacer.costs
        frames_s = (pace.first + 1) * pace.turn_s  # one that is under way, then its own
        return costs.newcomer_s + frames_s + pace.step_s + costs.voice_s(1, pace.first)

    def tired(self, waited_s: float) -> bool:
        """Has a newcomer waited so long that an answer is due?"""
        return waited_s > PATIENCE * self.slo_s

    def left(self, stayed_s: float) -> None:
        """A session has ended by itself after so long in its seat."""
        self.stay_s += WEIGHT * (stayed_s - self.stay_s)
