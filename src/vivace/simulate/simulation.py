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
from typing import cast

from vivace.config import EngineConfig
from vivace.loop import EARLY_S, Loop
from vivace.schedule.admission import Admission
from vivace.schedule.costs import Costs, CostTable
from vivace.schedule.policy import Plans
from vivace.schedule.track import Track
from vivace.session import Session
from vivace.simulate.caller import Call, Caller, Heard
from vivace.simulate.timed import Clock, TimedRunner
from vivace.text.prompt import Script
from vivace.turns import Cancel, More, Turn
from vivace.types import FRAME_S, Sampling

FRAMES_PER_TOKEN = 3.0


@dataclass(slots=True)
class Simulation:
    """One run; `heard` has every call's fate after `run`."""

    config: EngineConfig
    table: CostTable
    depth: int = 1
    host_s: float = 0.0  # the host's time before each step
    noise: float = 0.0  # steps take up to so much longer than the table says, at random
    until_s: float = math.inf  # when counting of timely sound ends
    buffer_s: float = 0.0  # what listeners hold back before they start to play
    beside: Sequence[CostTable] = ()  # of further models; the codec's times are those of `table`
    policy: Callable[[EngineConfig, Costs], Plans] | None = None
    admission: Callable[[EngineConfig, Costs], Admission] | None = None
    seed: int = 1
    heard: list[Heard] = field(default_factory=list)
    most_seated: int = 0
    busy_s: tuple[float, float] = (0.0, 0.0)  # of the token and the sound lane, by `until_s`
    clock: Clock = field(default_factory=Clock)
    runner: TimedRunner = field(init=False)
    loop: Loop = field(init=False)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.runner = TimedRunner(
            self.table,
            self.config.profile,
            self.clock,
            depth=self.depth,
            host_s=self.host_s,
            jitter=random.Random(f"noise {self.seed}"),
        )
        self.runner.noise = self.noise
        costs = Costs(self.table, self.config.profile)
        for model, table in enumerate(self.beside, 1):
            costs.add(model, table)
            self.runner.costs.add(model, table)
        policy = self.policy(self.config, costs) if self.policy else None
        self.loop = Loop(self.runner, self.config, self.clock, lambda _: None, costs, policy)
        if self.admission:
            self.loop.admission = self.admission(self.config, costs)

    def run(self, calls: Iterable[Call]) -> list[Heard]:
        """Serve them all to their ends."""
        for i, call in enumerate(calls):
            self._at(call.due_s, lambda call=call, i=i: self._arrive(f"c{i}", call))  # type: ignore[misc]
        if self.until_s < math.inf:
            self._at(self.until_s, self._note_busy)
        while True:
            while self.loop.step():
                self.most_seated = max(self.most_seated, self.loop.seated)
            if (soon_s := self._next()) is None:
                return self._end()
            self.clock.now = max(self.clock.now, soon_s)
            while self._events and self._events[0][0] <= self.clock.now:
                heapq.heappop(self._events)[2]()

    def _end(self) -> list[Heard]:
        if self.clock.now <= self.until_s:
            self._note_busy()
        return self.heard

    def _note_busy(self) -> None:
        self.busy_s = self.runner.tokens.busy_s, self.runner.sound.busy_s

    def _next(self) -> float | None:
        """When something happens next: an event, or a step's end."""
        times = [self._events[0][0]] if self._events else []
        if self.loop.policy.due_s > self.clock.now and self.loop.speaking is None:
            times.append(self.loop.policy.due_s)
        early_s = self.loop.tokens_end_s - EARLY_S
        if 0 < len(self.loop.talking) < self.depth and early_s > self.clock.now:
            times.append(early_s)
        times += [
            t.frames.ends_s if t.frames else t.laid[-1][1].ends_s  # type: ignore[attr-defined]
            for t in list(self.loop.talking)[:1]
        ]
        if self.loop.speaking is not None:
            times.append(self.loop.speaking.sound.ends_s)  # type: ignore[attr-defined]
        return min((t for t in times if t < math.inf), default=None)

    def _at(self, when_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), what))

    def _arrive(self, id: str, call: Call) -> None:
        caller = Caller(id, call, self.clock, self.buffer_s, self.until_s)
        self.heard.append(caller.heard)
        session = cast(Session, caller)
        track = Track(self.clock.now, model=call.model)
        self.loop.tell(Turn(session, cast(Script, caller.words), Sampling(), call.frames, track))
        tokens = max(1, round(call.frames / FRAMES_PER_TOKEN))
        if math.isinf(call.tokens_s):
            self.loop.tell(More(session, [0] * tokens, last=True))
        else:
            self._type(caller, track, tokens)
        if not math.isinf(call.reads):
            self._read(caller)
        if call.leaves_s is not None:
            self._watch_leaving(caller, call.leaves_s)

    def _type(self, caller: Caller, track: Track, left: int) -> None:
        if caller.done is not None:
            return
        if not caller.words.rows_ready and track.prefilled:
            first_s = self.loop.admission.first_s(max(1, self.loop.seated))
            caller.text_s = self.clock.now + first_s  # the engine had to wait for this one
        self.loop.tell(More(cast(Session, caller), [0], last=left == 1))
        if left > 1:
            gap_s = 1.0 / caller.call.tokens_s
            self._at(self.clock.now + gap_s, lambda: self._type(caller, track, left - 1))

    def _read(self, caller: Caller) -> None:
        """A slow reader takes a frame, and the loop looks again, as it does when a real one has."""
        if caller.done is None:
            self._at(self.clock.now + FRAME_S / caller.call.reads, lambda: self._read(caller))

    def _watch_leaving(self, caller: Caller, after_s: float) -> None:
        if caller.done is not None:
            return
        first_s = caller.heard.first_s
        if first_s is not None and self.clock.now >= first_s + after_s:
            self.loop.tell(Cancel(cast(Session, caller)))
            return
        again_s = self.clock.now + 0.05 if first_s is None else first_s + after_s
        self._at(again_s, lambda: self._watch_leaving(caller, after_s))
