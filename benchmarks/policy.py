"""How long one decision of the policy takes: `make bench-policy`. It needs no model and no card."""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from vivace.bench.machine import commit, hardware, versions
from vivace.config import Profile
from vivace.host import Pulse, Readings
from vivace.meters import MARGIN_S, ROWS, Counts, Meters, Stock
from vivace.remote.messages import Batch, encode
from vivace.schedule.costs import Costs
from vivace.schedule.policy import Policy
from vivace.schedule.track import Track
from vivace.tables import find, read

CALLS = 400


def streams(count: int) -> list[Track]:
    """As in the middle of a busy day: all heard, some due on each lane, one in ten new."""
    tracks = []
    for i in range(count):
        track = Track(0.0, slot=i, prefilled=True, made=20 + i % 9, voiced=20, taken=18)
        track.deadline_s = 10.0 + (i * 37 % 100) / 50 if i % 10 else None
        tracks.append(track)
    return tracks


def decide_us(count: int, *, talk: bool, speak: bool) -> dict[str, float]:
    """Microseconds of a decision: median and p95."""
    profile = Profile()
    policy = Policy(profile, Costs(read(find("h200")), profile), count)
    tracks, times = streams(count), []
    for _ in range(CALLS):
        begun = time.perf_counter()
        policy.plan(tracks, 10.0, talk=talk, speak=speak)
        times.append((time.perf_counter() - begun) * 1e6)
    times.sort()
    median, p95 = statistics.median(times), times[int(0.95 * CALLS)]
    return {"median_us": round(median, 1), "p95_us": round(p95, 1)}


def meter_us() -> dict[str, float]:
    """Microseconds that measuring adds: to a step with 32 rows, and once a second to tell it."""
    meters, pulse = Meters(), Pulse(0.0, 0, 0)

    def step() -> None:
        meters.stepped("frame", 128, 128, 0.007)
        meters.stepped("codec", 32, 32, 0.009)
        for row in range(32):
            meters.margin.add(MARGIN_S, row / 40)

    def tell() -> None:
        encode(Batch(pulse, [], Readings(Counts(), meters, Stock())))

    for rows in ROWS:  # every series there can be
        for kind in ("frame", "prompt", "codec"):
            meters.stepped(kind, rows, rows, 0.01)
    return {f"{work.__name__}_us": _median_us(work) for work in (step, tell)}


def _median_us(work: Callable[[], None]) -> float:
    times = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        work()
        times.append((time.perf_counter() - begun) * 1e6)
    return round(statistics.median(times), 1)


def main(output: Path) -> None:
    """Measure, print, write down."""
    lanes = {"tokens": (True, False), "sound": (False, True), "both": (True, True)}
    decisions = [
        {"sessions": count, "lanes": name, **decide_us(count, talk=talk, speak=speak)}
        for count in (16, 128, 512)
        for name, (talk, speak) in lanes.items()
    ]
    about = {"command": "make bench-policy", "commit": commit()}
    machine = {"hardware": hardware(), "versions": versions()}
    metering = meter_us()
    result = {**about, "decisions": decisions, "metering": metering, **machine}
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(*decisions, metering, sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
