"""When requests come, regardless of how fast they are answered: the same times for a seed."""

import json
import random
from pathlib import Path

from vivace.errors import InvalidRequest


def arrivals(kind: str, rps: float, duration_s: float, seed: int) -> list[float]:
    """Seconds from the start: `poisson`, `constant`, or a file that recorded them.

    A file holds one time a line, or is the JSON of an earlier run; then the rate is its own.
    """
    if kind == "constant":
        return [i / rps for i in range(int(duration_s * rps + 0.5))]
    if kind != "poisson":
        return [t for t in _recorded(Path(kind)) if t < duration_s]
    rng, times, now = random.Random(f"arrivals {seed}"), list[float](), 0.0
    while (now := now + rng.expovariate(rps)) < duration_s:
        times.append(now)
    return times


def _recorded(path: Path) -> list[float]:
    try:
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            times = [float(request["due_s"]) for request in json.loads(text)["requests"]]
        else:
            times = [float(line) for line in text.split()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"arrivals are poisson, constant, or a file of seconds, one a line ({error})"
        ) from None
    return sorted(times)
