"""A load on a simulated server, and what its listeners met: options in, figures out."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vivace.bench.arrivals import arrivals
from vivace.bench.summary import ranked
from vivace.config import PROFILES, EngineConfig
from vivace.errors import InvalidRequest, NotFound
from vivace.schedule.admission import Admission
from vivace.schedule.costs import Costs, CostTable
from vivace.schedule.policy import Plans
from vivace.simulate.caller import Call, Heard
from vivace.simulate.rivals import everybody, first_come, round_robin
from vivace.simulate.simulation import Simulation
from vivace.tables import find, read
from vivace.types import FRAME_S

Result = dict[str, object]

POLICIES: dict[str, Callable[[EngineConfig, Costs], Plans] | None] = {
    "vivace": None,
    "round-robin": round_robin,
    "fcfs": first_come,
}
ADMISSIONS: dict[str, Callable[[EngineConfig, Costs], Admission] | None] = {
    "vivace": None,
    "none": everybody,
}
MOST_CALLS = 1_000_000
MOST = {
    "audio_s": 3600.0,
    "max_sessions": 10_000,
    "models": 100,
    "slow_x": 1_000.0,
}  # what takes steps by count
_KINDS = ("poisson", "bursty", "constant")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A day to simulate. `overload` is in capacities of full batches and stands in for `rps`."""

    costs: str = "cpu2"
    rps: float | None = None
    overload: float | None = None
    duration_s: float = 60.0
    seed: int = 0
    arrivals: str = "poisson"
    audio_s: float = 4.08  # mean length of what is said; they spread by a third of it
    tokens_s: float = 0.0  # tokens of text a second; 0 is the whole text at once
    typed: float = 1.0  # share of the requests whose text comes so
    slow: float = 0.0  # share of the readers that are slow
    slow_x: float = 0.5  # seconds of sound a second that those take
    leaving: float = 0.0  # share of the callers that hang up early
    leave_after_s: float = 0.5  # after their first sound
    policy: str = "vivace"
    admission: str = "vivace"
    profile: str = "balanced"
    models: int = 1  # that requests are spread over, each with these costs
    max_sessions: int = 0  # 0 is as many as one talker step takes
    max_queue: int = 64
    slo_ttfa_ms: float = 3000.0
    depth: int = 1
    host_ms: float = 0.0
    noise: float = 0.0
    buffer_ms: float = 0.0

    def check(self) -> None:
        """Raises InvalidRequest or NotFound for what cannot be simulated."""
        for name, known in (
            ("policy", POLICIES),
            ("admission", ADMISSIONS),
            ("profile", PROFILES),
        ):
            if getattr(self, name) not in known:
                raise NotFound(f"--{name} is one of {', '.join(known)}")
        if (self.rps is None) == (self.overload is None) and self.arrivals in _KINDS:
            raise InvalidRequest("give either --rps or --overload")
        self._check_numbers()

    def _check_numbers(self) -> None:
        above = ("rps", "overload", "duration_s", "audio_s", "slow_x", "slo_ttfa_ms")
        least: tuple[str, ...] = ("tokens_s", "typed", "slow", "leaving", "leave_after_s")
        least += ("models", "max_sessions", "max_queue", "host_ms", "noise", "buffer_ms")
        for name in above + least:
            value = getattr(self, name)
            if value is None:
                continue
            if not (math.isfinite(value) and (value > 0 or (name in least and value == 0))):
                bound = "0 or more" if name in least else "above 0"
                raise InvalidRequest(f"{name} is a number {bound}; got {value}", param=name)
            if value > MOST.get(name, math.inf):
                raise InvalidRequest(f"{name} goes up to {MOST[name]:g}; got {value}", param=name)
        if self.models < 1:
            raise InvalidRequest(f"--models is 1 or more; got {self.models}")
        if self.depth not in {1, 2}:
            raise InvalidRequest(f"--depth is 1 or 2; got {self.depth}")
        if self.slow + self.leaving > 1 or self.typed > 1:
            raise InvalidRequest("shares go up to 1; --slow and --leaving together as well")

    def table(self) -> CostTable:
        """The cost table it names."""
        return read(find(self.costs))

    def config(self, table: CostTable) -> EngineConfig:
        """The engine it describes."""
        profile = PROFILES[self.profile]
        return EngineConfig(
            max_sessions=self.max_sessions or min(max(table.frame), profile.frame_rows),
            max_queue=self.max_queue,
            slo_ttfa_s=self.slo_ttfa_ms / 1e3,
            profile=profile,
        )

    def rate(self, capacity: float) -> float:
        """Requests a second."""
        return self.rps if self.rps is not None else (self.overload or 0) * capacity / self.audio_s

    def calls(self, rps: float) -> list[Call]:
        """Every request: the same for the same seed, whatever serves them."""
        if rps * self.duration_s > MOST_CALLS:
            raise InvalidRequest(f"more than {MOST_CALLS:,} requests: a lower rate, a shorter time")
        rng = random.Random(f"calls {self.seed}")
        times = arrivals(self.arrivals, rps, self.duration_s, self.seed)
        if not times:
            raise InvalidRequest("no request comes in this time: a higher rate or a longer one")
        spread = random.Random(f"models {self.seed}")  # the calls are the same for any number
        calls = [self._call(due_s, rng) for due_s in times]
        return [replace(call, model=spread.randrange(self.models)) for call in calls]

    def _call(self, due_s: float, rng: random.Random) -> Call:
        mean = self.audio_s / FRAME_S
        frames = max(1, round(rng.gauss(mean, mean / 3)))
        draw, typed = rng.random(), rng.random() < self.typed and self.tokens_s > 0
        call = Call(due_s, frames, tokens_s=self.tokens_s if typed else math.inf)
        if draw < self.slow:
            return replace(call, reads=self.slow_x)
        if draw < self.slow + self.leaving:
            return replace(call, leaves_s=self.leave_after_s)
        return call


def capacity(table: CostTable, config: EngineConfig) -> float:
    """Seconds of sound a second of the slower lane with its best batches, prompts left out."""
    p = config.profile
    costs = Costs(table, p)
    rows = range(1, min(p.frame_rows, config.max_sessions) + 1)
    chunks = [(r, f) for r in range(1, p.codec_rows + 1) for f in range(1, p.chunk_frames + 1)]
    talker = max(r * FRAME_S / costs.frame_s(r) for r in rows)
    codec = max(r * f * FRAME_S / costs.voice_s(r, f) for r, f in chunks if r in rows)
    return min(talker, codec)


def simulate(scenario: Scenario) -> Result:
    """Make the run, and its figures.

    Raises InvalidRequest, NotFound or CheckpointError for what cannot be simulated.
    """
    scenario.check()
    table = scenario.table()
    config = scenario.config(table)
    full = capacity(table, config)
    rps = scenario.rate(full)
    simulation = Simulation(
        config,
        table,
        beside=[table] * (scenario.models - 1),
        depth=scenario.depth,
        host_s=scenario.host_ms / 1e3,
        noise=scenario.noise,
        until_s=scenario.duration_s,
        buffer_s=scenario.buffer_ms / 1e3,
        policy=POLICIES[scenario.policy],
        admission=ADMISSIONS[scenario.admission],
        seed=scenario.seed,
    )
    calls = scenario.calls(rps)
    heard = simulation.run(calls)
    return _figures(scenario, simulation, heard, full, len(calls) / scenario.duration_s)


def _figures(
    scenario: Scenario, simulation: Simulation, heard: list[Heard], full: float, rps: float
) -> Result:
    admitted = [h for h in heard if h.refused_s is None]
    ttfa = ranked((h.first_s - h.due_s) * 1e3 for h in admitted if h.first_s is not None)
    refusal = ranked((h.refused_s - h.due_s) * 1e3 for h in heard if h.refused_s is not None)
    timely_s = sum(h.timely_s for h in admitted)
    tokens, sound = (round(s / scenario.duration_s, 4) for s in simulation.busy_s)
    return {
        "costs": Path(scenario.costs).name,
        "policy": scenario.policy,
        "admission": scenario.admission,
        "rps": round(rps, 4),
        "seed": scenario.seed,
        "duration_s": scenario.duration_s,
        "requests": len(heard),
        "admitted": len(admitted),
        "refused": len(heard) - len(admitted),
        "underrun_streams": sum(h.stalls > 0 for h in admitted),
        "longest_stall_ms": round(max((h.stalled_s for h in admitted), default=0.0) * 1e3, 3),
        **{f"{rank}_ttfa_ms": ms for rank, ms in ttfa.items()},
        "refusal_p99_ms": refusal["p99"],
        "retry_after_s": max((h.retry_after_s for h in heard), default=0.0),
        "most_sessions": simulation.most_seated,
        "capacity_x_realtime": round(full, 3),
        "load_of_capacity": round(rps * scenario.audio_s / full, 4),
        "goodput_of_capacity": round(timely_s / scenario.duration_s / full, 4),
        "token_lane_busy": tokens,
        "sound_lane_busy": sound,
    }


def summary(result: Result) -> dict[str, object]:
    """The same figures under the names that a promise of `vivace bench capacity` uses."""
    ranks = {rank: result[f"{rank}_ttfa_ms"] for rank in ("p50", "p90", "p95", "p99")}
    return {
        "requests": result["requests"],
        "audible_ttfa_ms": ranks,
        "underrun_requests": result["underrun_streams"],
        "refused": result["refused"],
        "failed": 0,
    }
