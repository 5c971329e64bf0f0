"""Ranks sessions by when their listener runs dry, and fills one batch per lane.

A listener's slack is the time until it has played all that was made for it. The token lane counts
every frame that exists, the codec's lane only those that are decoded, since only they can be heard.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import Protocol

from vivace.config import MOST_CHUNK, Profile
from vivace.schedule.costs import Costs
from vivace.schedule.pace import Pace, Pacer
from vivace.schedule.track import Track
from vivace.types import FRAME_S

# What a row may add to a codec step, of what the step costs alone: less than CHEAP is worth while
# if it was to be served next anyway, less than FREE_RIDE even if it could fill a larger chunk.
CHEAP, FREE_RIDE = 0.7, 0.2
TINY_S = 1e-6  # so that at `due_s` a stream is due, however the sum is rounded
MOST_PENDING = MOST_CHUNK  # frames a talker may be ahead of the codec

Ranked = list[tuple[float, int, Track]]
"""(slack, tie-break, session), to be sorted."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: prompts to lay down, sessions to give a frame, sessions to decode a chunk of.

    Frames are of one model's sessions, a chunk is of anybody's. A session whose speech has ended
    may have fewer frames left than the chunk: the rest of its row is cut off.
    """

    prefill: tuple[Track, ...] = ()
    frame: tuple[Track, ...] = ()
    voice: tuple[Track, ...] = ()
    voice_frames: int = 0
    starved: int = 0  # streams left out of a codec step that outlasts what they have in hand

    def __bool__(self) -> bool:
        return bool(self.prefill or self.frame or self.voice)


class Plans(Protocol):
    """What the loop asks of a policy."""

    @property
    def young(self) -> int:
        """How many had less in hand than a chunk, when last looked at?"""
        ...

    @property
    def pressed(self) -> bool:
        """Was a listener about to fall silent, when last looked at?"""
        ...

    @property
    def lead_s(self) -> float:
        """How much sound to begin with, so that the next comes in time."""
        ...

    @property
    def due_s(self) -> float:
        """When to plan again, even if nothing happens until then."""
        ...

    def plan(self, tracks: Sequence[Track], now: float, *, talk: bool, speak: bool) -> Plan:
        """The next step of each lane that is free, for all sessions that hold a slot."""
        ...


class Policy:
    """The playback clock's: who would fall silent first goes first.

    On each lane: listeners about to run dry, then those who hear nothing, oldest first, then the
    rest by slack. Streams further ahead than `lead_s` only fill what the others leave, until
    half of the `sessions` slots are taken: then it is time that they come to their ends.
    """

    def __init__(self, profile: Profile, costs: Costs, sessions: int) -> None:
        self.profile, self.costs, self.sessions = profile, costs, sessions
        self.pacer = Pacer(profile, costs)
        self.young = 0  # sessions at the last look that had less in hand than a chunk
        self.lead_s = 0.0  # how much sound to begin with
        self.pressed = False  # was one of them about to fall silent
        self.due_s = math.inf  # when the first that waits for a fuller chunk must be served
        self._next_s = math.inf  # the least slack of those that a codec step now would keep waiting

    def plan(self, tracks: Sequence[Track], now: float, *, talk: bool, speak: bool) -> Plan:
        """The next step of each lane that is free, for all sessions that hold a slot.

        `tracks` are in the order of their arrival.
        """
        if not tracks:
            self.young, self.pressed, self.due_s = 0, False, math.inf
            return Plan()
        pace = self.pacer.at(len(tracks))
        early = self.pacer.at(min(len(tracks) + self.young, self.sessions))
        first, self.lead_s = early.first, early.lead_s
        cold, heads, tails = self._rank(tracks, now, pace, first)
        pressing = min(chain(cold, heads), default=(math.inf,))[0] <= pace.guard_s
        hurry = pressing and 2 * len(tracks) <= self.sessions
        todo = Plan()
        if talk:
            cold.sort()
            heads.sort()
            prefill = self._prefill(cold, heads, pace)
            todo = replace(todo, prefill=prefill, frame=self._frame(heads, pace, hurry))
        if speak:
            tails.sort()
            voice, frames = self._voice(tails, pace, hurry)
            starved = self._starved(tails, voice, frames)
            todo = replace(todo, voice=voice, voice_frames=frames, starved=starved)
        return todo

    def _rank(
        self, tracks: Sequence[Track], now: float, pace: Pace, first: int
    ) -> tuple[Ranked, Ranked, Ranked]:
        """Prompts to lay down, and who is due on each lane, with its slack. One pass: it is hot."""
        cold: Ranked = []
        talk: Ranked = []
        sound: Ranked = []
        guard_s, chunk, chunk_s, young = pace.guard_s, pace.chunk, pace.chunk * FRAME_S, 0
        pressed, soon_s, flying_s = False, math.inf, math.inf
        full, frame_s, most_pending = self.profile.ahead_frames, FRAME_S, MOST_PENDING
        for i, t in enumerate(tracks):
            voiced, deadline_s = t.voiced, t.deadline_s
            pending = t.made - voiced - t.voicing
            more = t.text_ready and not t.finished
            slack = guard_s if deadline_s is None else deadline_s - now + t.voicing * frame_s
            if heard := deadline_s is not None and slack >= 0.0:
                pressed = pressed or (slack < guard_s and more)
            else:  # silence has begun, or has not ended: it goes after those it threatens
                slack = guard_s
            young += slack < chunk_s and (more or pending > 0)
            if not t.prefilled:
                if more and not t.laying:
                    cold.append((slack + pending * FRAME_S if heard else guard_s, i, t))
                more = False  # between two pieces of a text
            if more:
                ahead = pending + t.flying
                if ahead < most_pending and voiced - t.held - t.taken < full:
                    late = slack if heard or t.made < first else 0.0
                    talk.append((late + ahead * frame_s, i, t))
            if pending and not t.voicing:
                due = chunk if heard else 1 if t.held else first
                if not more or pending >= due or (heard and slack < guard_s + TINY_S):
                    sound.append((slack, i, t))
                elif heard and slack < soon_s:
                    soon_s = slack
            elif heard and t.flying and slack < flying_s:
                flying_s = slack
        self.due_s = now + soon_s - guard_s
        self._next_s = min(soon_s, flying_s)
        self.young, self.pressed = young, pressed
        return cold, talk, sound

    def _prefill(self, cold: Ranked, talk: Ranked, pace: Pace) -> tuple[Track, ...]:
        """As many prompts as fit before the talker must be back at its most pressing stream.

        At least one if its own listener, who hears the piece before it, is the most pressing.
        """
        each_s = self.costs.prompt_s
        fair = max(1, min(self.profile.prefills, int(pace.turn_s / each_s)))
        if talk:
            fair = min(fair, max(0, int((talk[0][0] - pace.turn_s) / each_s)))
        if cold and talk and cold[0][0] < min(talk[0][0], pace.guard_s):
            fair = max(fair, 1)
        return tuple(t for _, _, t in cold[:fair])

    def _frame(self, talk: Ranked, pace: Pace, hurry: bool) -> tuple[Track, ...]:
        """The most pressing; streams far ahead join where they cost the others little."""
        model = talk[0][2].model if talk else 0
        if self.costs.mixed:  # a step is one model's
            talk = [ranked for ranked in talk if ranked[2].model == model]
        batch = talk[: self.profile.frame_rows]
        if not hurry:
            return tuple(t for _, _, t in batch)
        needed = sum(slack < pace.ahead_s for slack, _, _ in batch)
        if not needed:
            return ()
        most_s = self.costs.frame_s(needed, model) * (1.0 + self.profile.fill)
        rows = needed
        while rows < len(batch) and self.costs.frame_s(rows + 1, model) <= most_s:
            rows += 1
        return tuple(t for _, _, t in batch[:rows])

    def _voice(self, sound: Ranked, pace: Pace, hurry: bool) -> tuple[tuple[Track, ...], int]:
        """The most pressing sets the chunk; others join while that costs it little."""
        if not sound or (hurry and sound[0][0] > pace.ahead_s):
            return (), 0
        slack_s, _, anchor = sound[0]
        frames = min(anchor.pending, pace.chunk)
        while frames > 1 and 0.0 < slack_s < self.costs.voice_s(1, frames):
            frames -= 1
        alone_s = self.costs.voice_s(1, frames)
        rows, takes_s = [anchor], alone_s
        most_s = min(slack_s, self._next_s) / self.profile.margin
        for other_s, _, t in sound[1:]:
            more_s = self.costs.voice_s(len(rows) + 1, frames) - takes_s
            if not self._fits(t, frames, other_s, more_s / alone_s, pace):
                continue
            worth_while = more_s < CHEAP * alone_s and takes_s + more_s <= most_s
            if takes_s + more_s > max(pace.step_s, alone_s) and not worth_while:
                break
            rows.append(t)
            takes_s += more_s
            if len(rows) == self.profile.codec_rows:
                break
        return tuple(rows), frames

    def _starved(self, sound: Ranked, voice: tuple[Track, ...], frames: int) -> int:
        takes_s = self.costs.voice_s(len(voice), frames) if voice else 0.0
        due = takewhile(lambda ranked: ranked[0] < takes_s, sound)
        return sum(t.deadline_s is not None and t not in voice for _, _, t in due)

    def _fits(self, t: Track, frames: int, slack_s: float, cost: float, pace: Pace) -> bool:
        """May it join a chunk of so many frames? One that has many more should wait for its own.

        `cost` is what its row adds, of what the chunk costs alone.
        """
        if t.finished or frames >= pace.chunk:
            return t.finished or t.pending >= frames
        if t.pending < frames or slack_s > 2 * pace.guard_s:
            return False
        return t.pending < 2 * frames or cost < FREE_RIDE
