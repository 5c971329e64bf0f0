"""Ranks sessions by when their listener runs dry, and fills one batch per lane.

A listener's slack is the time until it has played all that was made for it. The token lane counts
every frame that exists, the codec's lane only those that are decoded, since only they can be heard.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vivace.config import MOST_CHUNK, Profile
from vivace.schedule.costs import Costs
from vivace.schedule.pace import Pace, Pacer
from vivace.schedule.track import Track
from vivace.types import FRAME_S

MOST_PENDING = MOST_CHUNK  # frames a talker may be ahead of the codec

Ranked = list[tuple[float, int, Track]]
"""(slack, tie-break, session), to be sorted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: prompts to lay down, sessions to give a frame, sessions to decode a chunk of."""

    prefill: tuple[Track, ...] = ()
    frame: tuple[Track, ...] = ()
    voice: tuple[Track, ...] = ()
    voice_frames: int = 0

    def __bool__(self) -> bool:
        return bool(self.prefill or self.frame or self.voice)


class Plans(Protocol):
    """What the loop asks of a policy."""

    def plan(self, tracks: Sequence[Track], now: float) -> Plan:
        """The next step for all sessions that hold a slot, in the order of their arrival."""
        ...


class Policy:
    """The playback clock's: who would fall silent first goes first.

    On each lane: listeners about to run dry, then those who have heard nothing, oldest first, then
    the rest by slack. Streams further ahead than `lead_s` only fill what the others leave.
    """

    def __init__(self, profile: Profile, costs: Costs) -> None:
        self.profile, self.costs = profile, costs
        self.pacer = Pacer(profile, costs)

    def plan(self, tracks: Sequence[Track], now: float) -> Plan:
        """The next step for all sessions that hold a slot, in the order of their arrival."""
        if not tracks:
            return Plan()
        pace = self.pacer.at(len(tracks))
        cold, talk, sound = self._rank(tracks, now, pace)
        talk.sort()
        sound.sort()
        frame = self._frame(talk, pace)
        prefill = self._prefill(cold, talk, pace)
        hurry = bool(cold) or (bool(talk) and talk[0][0] <= pace.guard_s)
        voice, frames = self._voice(sound, pace, hurry)
        return Plan(prefill, frame, voice, frames)

    def _rank(
        self, tracks: Sequence[Track], now: float, pace: Pace
    ) -> tuple[list[Track], Ranked, Ranked]:
        """Prompts to lay down, and who is due on each lane with its slack. One pass: it is hot."""
        cold: list[Track] = []
        talk: Ranked = []
        sound: Ranked = []
        guard_s, first, chunk, ahead_s = pace.guard_s, pace.first, pace.chunk, self.profile.ahead_s
        for i, t in enumerate(tracks):
            if not t.prefilled:
                if not t.laying:
                    cold.append(t)
                continue
            made, voiced, deadline_s = t.made, t.voiced, t.deadline_s
            pending = made - voiced - t.voicing
            more = t.text_ready and not t.finished
            slack = guard_s if deadline_s is None else deadline_s - now + t.voicing * FRAME_S
            if more:
                ahead = pending + t.flying
                if ahead < MOST_PENDING and (voiced - t.taken) * FRAME_S < ahead_s:
                    late = slack if deadline_s is not None else guard_s if made < first else 0.0
                    talk.append((late + ahead * FRAME_S, i, t))
            if pending and not t.voicing:
                full = first if deadline_s is None else chunk
                if not more or pending >= full or (slack < guard_s and deadline_s is not None):
                    sound.append((slack, i, t))
        return cold, talk, sound

    def _prefill(self, cold: list[Track], talk: Ranked, pace: Pace) -> tuple[Track, ...]:
        """As many prompts as fit before the talker must be back at its most pressing stream."""
        each_s = self.costs.prefill_s(self.profile.prompt_rows)
        spare_s = talk[0][0] - pace.turn_s if talk else each_s * len(cold)
        most = min(self.profile.prefills, int(spare_s / each_s)) if spare_s > 0.0 else 0
        return tuple(cold[:most])

    def _frame(self, talk: Ranked, pace: Pace) -> tuple[Track, ...]:
        """The most pressing; streams far ahead join where they cost the others little."""
        batch = talk[: self.profile.frame_rows]
        if not batch or batch[0][0] > pace.guard_s:
            return tuple(t for _, _, t in batch)
        needed = sum(slack < self.profile.lead_s for slack, _, _ in batch)
        most_s = self.costs.frame_s(needed) * (1.0 + self.profile.fill)
        rows = needed
        while rows < len(batch) and self.costs.frame_s(rows + 1) <= most_s:
            rows += 1
        return tuple(t for _, _, t in batch[:rows])

    def _voice(self, sound: Ranked, pace: Pace, hurry: bool) -> tuple[tuple[Track, ...], int]:
        """The most pressing sets the chunk; others join while the step stays short."""
        if not sound or (hurry and sound[0][0] > self.profile.lead_s):
            return (), 0
        slack, _, anchor = sound[0]
        frames = min(anchor.pending, pace.chunk)
        whole = frames >= pace.chunk
        most_s = max(pace.step_s, self.costs.voice_s(1, frames))
        rows = [anchor]
        for slack, _, t in sound[1:]:
            if len(rows) == self.profile.codec_rows:
                break
            if t.pending < frames or not (whole or slack <= pace.guard_s):
                continue
            if self.costs.voice_s(len(rows) + 1, frames) > most_s:
                break
            rows.append(t)
        return tuple(rows), frames
