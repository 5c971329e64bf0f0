"""When requests come, regardless of how fast they are answered: the same times for a seed."""

import json
import random
from pathlib import Path

from vivace.errors import InvalidRequest

PERIOD_S, BURST_S = 4.0, 1.0  # of bursty arrivals


def arrivals(kind: str, rps: float, duration_s: float, seed: int) -> list[float]:
    """Seconds from the start: `poisson`, `bursty`, `constant`, or a file that recorded them.

    `bursty` is Poisson too, at four times the rate for a second and then not at all for three.
    A file holds one time a line, or is the JSON of an earlier run; then the rate is its own.
    """
    if kind == "constant":
        return [i / rps for i in range(int(duration_s * rps + 0.5))]
    if kind not in {"poisson", "bursty"}:
        return [t for t in _recorded(Path(kind)) if t < duration_s]
    rng, times, now = random.Random(f"arrivals {seed}"), list[float](), 0.0
    while (now := now + rng.expovariate(rps)) < duration_s:
        times.append(now)
    if kind == "bursty":
        return [t for t in map(_burst, times) if t < duration_s]
    return times


def _burst(time_s: float) -> float:
    """Moved to the burst of its period: what comes evenly comes in the first part instead."""
    begin_s = time_s // PERIOD_S * PERIOD_S
    return begin_s + (time_s - begin_s) * BURST_S / PERIOD_S


def _recorded(path: Path) -> list[float]:
    try:
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            times = [float(request["due_s"]) for request in json.loads(text)["requests"]]
        else:
            times = [float(line) for line in text.split()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"arrivals are poisson, bursty, constant, or a file of seconds, one a line ({error})"
        ) from None
    return sorted(times)
