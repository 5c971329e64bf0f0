"""A day at the server in seconds: the engine's own loop, policy and admission over a cost table.

Discrete events. The loop is the real one; its runner takes as long as the table says, on a clock
that jumps from one event to the next, and its sessions are callers that count words and frames.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Generic, TypeVar, cast

import numpy as np

from vivace.config import EngineConfig
from vivace.errors import Overloaded
from vivace.loop import Cancel, Loop, More, Turn
from vivace.schedule.costs import Costs, CostTable
from vivace.schedule.policy import Plans
from vivace.schedule.track import Track
from vivace.session import Session
from vivace.text.prompt import Prompt, Script
from vivace.types import FRAME_S, Chunk, Done, Frames, Pcm, Row, Sampling

PROMPT_ROWS = 10  # of an ordinary prompt of a named voice
FRAMES_PER_TOKEN = 3.0

T = TypeVar("T")
_NO_CODES = np.zeros((1, 16), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Call:
    """One request to come."""

    due_s: float
    frames: int  # how long it will speak
    tokens_s: float = math.inf  # tokens of text a second; inf is all at once
    reads: float = math.inf  # seconds of sound the reader takes a second; inf is at once
    leaves_s: float | None = None  # hangs up so long after its first sound


@dataclass(slots=True)
class Heard:
    """What became of one call."""

    due_s: float
    first_s: float | None = None  # when sound came
    refused_s: float | None = None  # when it was sent away
    retry_after_s: float = 0.0
    stalls: int = 0  # times its listener fell silent for want of sound, text being there
    stalled_s: float = 0.0
    timely_s: float = 0.0  # sound that came in time
    ended_s: float | None = None


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

    def __init__(
        self, table: CostTable, clock: Clock, *, depth: int, host_s: float, jitter: random.Random
    ) -> None:
        self.depth, self.table, self.jitter = depth, table, jitter
        self.tokens, self.sound = Lane(clock, host_s), Lane(clock, host_s)
        self.lengths: dict[int, int] = {}
        self.made: dict[int, int] = {}
        self.costs = Costs(table, 512, 512)  # never corrected: it is the truth
        self.noise = 0.0

    def _took(self, seconds: float) -> float:
        return seconds * (1.0 + self.noise * self.jitter.random())

    def watch(self, wake: Callable[[], None]) -> None:
        """The simulation looks by itself."""

    def open(self, slot: int, sampling: Sampling, seed: int) -> None:
        """The seed is the length."""
        self.lengths[slot], self.made[slot] = seed, 0

    def close(self, slot: int) -> None:
        """Nothing is held."""

    def room(self, slot: int, positions: int) -> bool:
        """Always."""
        return True

    def begin(self, slot: int, prompt: Prompt) -> None:
        """Nothing is computed."""

    def prefill(self, slot: int, rows: int) -> Due[bool]:
        """The whole prompt."""
        return self.tokens.run(self._took(self.costs.prefill_s(PROMPT_ROWS)), True)

    def frame(self, rows: Sequence[Row]) -> Due[Frames]:
        """One more of each."""
        ended = np.array([self.made[row.slot] >= self.lengths[row.slot] for row in rows])
        for row in rows:
            self.made[row.slot] += 1
        codes = np.broadcast_to(_NO_CODES, (len(rows), 16))
        return self.tokens.run(self._took(self.costs.frame_s(len(rows))), Frames(codes, ended))

    def voice(self, slots: Sequence[int], frames: int) -> Due[Pcm]:
        """Samples that nobody hears."""
        pcm = np.zeros((len(slots), 1), dtype=np.float32)
        return self.sound.run(self._took(self.costs.voice_s(len(slots), frames)), pcm)


class Words:
    """A script that only counts."""

    whole = False

    def __init__(self) -> None:
        self.tokens, self.ended = 0, False

    def append(self, ids: list[int]) -> None:
        """More of them."""
        self.tokens += len(ids)

    def end(self) -> None:
        """No more."""
        self.ended = True

    @property
    def prompt_ready(self) -> bool:
        """Is there a first one?"""
        return self.ended or self.tokens > 0

    @property
    def rows_ready(self) -> bool:
        """Is there a next one, or no need of it?"""
        return self.ended or self.tokens > 0

    def next_text(self) -> int:
        """Take one."""
        self.tokens = max(0, self.tokens - 1)
        return 0

    def prompt(self) -> Prompt:
        """Of ordinary size."""
        self.next_text()
        return Prompt([0] * PROMPT_ROWS, [0] * PROMPT_ROWS)


class Caller:
    """A session's other side: its text comes at a pace, its reader reads at one, its clock plays.

    Stands in the loop where a `Session` and its outbox would.
    """

    request, cap = SimpleNamespace(guards=False), SimpleNamespace(frames=0)
    speakable, prompt_ids = True, ()

    def __init__(self, id: str, call: Call, clock: Clock, buffer_s: float) -> None:
        self.id, self.call, self.clock, self.buffer_s = id, call, clock, buffer_s
        self.heard = Heard(call.due_s)
        self.words = Words()
        self.sent = 0  # frames
        self.dry_s = 0.0  # when its listener falls silent
        self.text_s = call.due_s  # when text last came that was waited for
        self.done: Done | None = None

    @property
    def outbox(self) -> "Caller":
        """Itself."""
        return self

    @property
    def taken_frames(self) -> int:
        """What the reader has taken by now."""
        if math.isinf(self.call.reads) or self.heard.first_s is None:
            return self.sent
        seconds = (self.clock.now - self.heard.first_s) * self.call.reads
        return min(self.sent, int(seconds / FRAME_S))

    def put(self, chunk: Chunk) -> None:
        """Sound arrives."""
        heard, now, frames = self.heard, self.clock.now, len(chunk.codes)
        if heard.first_s is None:
            heard.first_s, self.dry_s = now, now + self.buffer_s
        late_s = now - max(self.dry_s, self.text_s)
        if late_s > 1e-9 and self.dry_s > self.text_s:
            heard.stalls += 1
            heard.stalled_s += late_s
        else:
            heard.timely_s += frames * FRAME_S
        self.sent += frames
        self.dry_s = max(self.dry_s, now) + frames * FRAME_S

    def finish(self, done: Done, *, drop: bool = False) -> None:
        """The end, or a refusal."""
        self.done, self.heard.ended_s = done, self.clock.now
        if isinstance(done.error, Overloaded):
            self.heard.refused_s = self.clock.now
            self.heard.retry_after_s = done.error.retry_after_s


@dataclass(slots=True)
class Simulation:
    """One run; `heard` has every call's fate after `run`."""

    config: EngineConfig
    table: CostTable
    depth: int = 1
    host_s: float = 0.0  # the host's time before each step
    noise: float = 0.0  # steps take up to so much longer than the table says, at random
    buffer_s: float = 0.0  # what listeners hold back before they start to play
    policy: Callable[[EngineConfig, Costs], Plans] | None = None
    seed: int = 1
    heard: list[Heard] = field(default_factory=list)
    most_seated: int = 0
    clock: Clock = field(default_factory=Clock)
    runner: TimedRunner = field(init=False)
    loop: Loop = field(init=False)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        profile = self.config.profile
        self.runner = TimedRunner(
            self.table,
            self.clock,
            depth=self.depth,
            host_s=self.host_s,
            jitter=random.Random(f"noise {self.seed}"),
        )
        self.runner.noise = self.noise
        costs = Costs(self.table, profile.frame_rows, profile.codec_rows)
        policy = self.policy(self.config, costs) if self.policy else None
        self.loop = Loop(self.runner, self.config, self.clock, lambda _: None, costs, policy)

    def run(self, calls: Iterable[Call]) -> list[Heard]:
        """Serve them all to their ends."""
        for i, call in enumerate(calls):
            self._at(call.due_s, lambda call=call, i=i: self._arrive(f"c{i}", call))  # type: ignore[misc]
        while True:
            while self.loop.step():
                self.most_seated = max(self.most_seated, self.loop.seated)
            if (soon_s := self._next()) is None:
                return self.heard
            self.clock.now = max(self.clock.now, soon_s)
            while self._events and self._events[0][0] <= self.clock.now:
                heapq.heappop(self._events)[2]()

    def _next(self) -> float | None:
        """When something happens next: an event, or a step's end."""
        times = [self._events[0][0]] if self._events else []
        times += [t.frames.ends_s if t.frames else t.laid[-1][1].ends_s  # type: ignore[attr-defined]
                  for t in list(self.loop.talking)[:1]]
        if self.loop.speaking is not None:
            times.append(self.loop.speaking.sound.ends_s)  # type: ignore[attr-defined]
        return min(times, default=None)

    def _at(self, when_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), what))

    def _arrive(self, id: str, call: Call) -> None:
        caller = Caller(id, call, self.clock, self.buffer_s)
        self.heard.append(caller.heard)
        session = cast(Session, caller)
        track = Track(self.clock.now)
        self.loop.tell(Turn(session, cast(Script, caller.words), Sampling(), call.frames, track))
        tokens = max(1, round(call.frames / FRAMES_PER_TOKEN))
        if math.isinf(call.tokens_s):
            self.loop.tell(More(session, [0] * tokens, end=True))
        else:
            self._type(caller, track, tokens)
        if call.leaves_s is not None:
            self._watch_leaving(caller, call.leaves_s)

    def _type(self, caller: Caller, track: Track, left: int) -> None:
        if caller.done is not None:
            return
        if not caller.words.rows_ready and track.prefilled:
            caller.text_s = self.clock.now  # the engine had to wait for this one
        self.loop.tell(More(cast(Session, caller), [0], end=left == 1))
        if left > 1:
            gap_s = 1.0 / caller.call.tokens_s
            self._at(self.clock.now + gap_s, lambda: self._type(caller, track, left - 1))

    def _watch_leaving(self, caller: Caller, after_s: float) -> None:
        if caller.done is not None:
            return
        first_s = caller.heard.first_s
        if first_s is not None and self.clock.now >= first_s + after_s:
            self.loop.tell(Cancel(cast(Session, caller)))
            return
        again_s = self.clock.now + 0.05 if first_s is None else first_s + after_s
        self._at(again_s, lambda: self._watch_leaving(caller, after_s))
