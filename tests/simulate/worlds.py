"""Worlds at random for the simulator: a device, an engine on it, and those who call."""

import math
import random
from dataclasses import dataclass, replace

from vivace.bench.arrivals import arrivals
from vivace.config import EngineConfig
from vivace.schedule.costs import CostTable
from vivace.simulate.caller import Call, Heard
from vivace.simulate.simulation import Simulation
from vivace.types import FRAME_S

SIZES = (1, 2, 4, 8, 16, 32)
ENOUGH = 0.9  # of a lane


@dataclass(slots=True)
class World:
    """A simulation that has not run, who will call, and how busy they would keep the card."""

    simulation: Simulation
    calls: list[Call]
    utilisation: float  # of the busier lane, by those who are to be carried at a time

    @property
    def able(self) -> bool:
        """Can the device carry even one stream?"""
        return self.simulation.loop.admission.load(1) <= ENOUGH

    def run(self) -> list[Heard]:
        return self.simulation.run(self.calls)


def table(rng: random.Random) -> CostTable:
    """From a fast card to a slow CPU; batches cost from next to nothing to nearly all of a row."""
    frame_s = 10 ** rng.uniform(-3.0, -1.4)
    row_s = frame_s * 10 ** rng.uniform(-2.5, -0.6)
    voice_s = frame_s * 10 ** rng.uniform(-1.0, 0.0)
    more_s, row = voice_s * rng.uniform(0.05, 0.7), 10 ** rng.uniform(-1.5, -0.1)
    frame = {rows: frame_s + row_s * (rows - 1) for rows in SIZES}
    voice = {
        n: {r: (voice_s + more_s * (n - 1)) * (1 + row * (r - 1)) for r in SIZES}
        for n in (1, 2, 4, 8)
    }
    return CostTable(frame, voice, {16: frame_s * rng.uniform(0.1, 2.0)})


def beside(first: CostTable, rng: random.Random) -> CostTable:
    """Of another model on that device: other token steps, the same codec."""
    frame_x, prompt_x = (10 ** rng.uniform(-0.6, 0.6) for _ in range(2))
    row_s = first.frame[1] * 10 ** rng.uniform(-2.5, -0.6)
    frame = {rows: first.frame[1] * frame_x + row_s * (rows - 1) for rows in SIZES}
    return replace(first, frame=frame, prefill={16: first.prefill[16] * prompt_x})


def world(
    rng: random.Random,
    *,
    load: tuple[float, float] = (0.2, 4.0),
    most_calls: int = 1500,
    models: int = 1,
) -> World:
    """One of them; `load` is the range of its load, in what its admission would carry.

    Calls are for any of the `models`, now and then nearly all of them for one.
    """
    config = EngineConfig(
        max_sessions=rng.choice([2, 4, 8, 16, 32, 64]),
        max_queue=rng.choice([0, 4, 64]),
        slo_ttfa_s=rng.choice([0.3, 1.0, 3.0]),
    )
    depth, host_s = rng.choice([1, 2]), rng.choice([0.0, 0.0003])
    first = table(rng)
    others = [beside(first, rng) for _ in range(models - 1)]
    simulation = Simulation(config, first, beside=others, depth=depth, host_s=host_s)
    simulation.loop.costs.use(range(models))
    admission = simulation.loop.admission
    mean = rng.choice([10, 50, 120])  # frames
    streams = rng.uniform(*load) * admission.most
    rps = streams / (mean * FRAME_S)
    kind = rng.choice(["poisson", "poisson", "bursty"])
    times = arrivals(kind, rps, min(15.0, most_calls / rps), rng.randrange(1 << 30))
    calls = [_call(due_s, mean, rng) for due_s in times]
    if models > 1:
        shares = [10 ** rng.uniform(-1.5, 0.0) for _ in range(models)]
        chosen = rng.choices(range(models), shares, k=len(calls))
        calls = [replace(call, model=model) for call, model in zip(calls, chosen, strict=True)]
    return World(simulation, calls, admission.load(max(1, math.ceil(streams))))


def _call(due_s: float, mean: int, rng: random.Random) -> Call:
    frames = max(1, round(rng.gauss(mean, mean / 2)))
    tokens_s = math.inf if rng.random() < 0.7 else rng.choice([3.0, 10.0, 30.0])
    reads = math.inf if rng.random() < 0.9 else rng.choice([0.5, 2.0])
    leaves_s = None if rng.random() < 0.9 else rng.uniform(0.0, 2.0)
    return Call(due_s, frames, tokens_s=tokens_s, reads=reads, leaves_s=leaves_s)
