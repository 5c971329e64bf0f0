"""From records to the figures of a run: nearest-rank percentiles, counts, cost."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from vivace.bench.record import Record

RANKS = (50, 90, 95, 99)
# Dollars per million characters, as Nari Labs' article of August 2026 gives them.
LIST_PRICES = {"ElevenLabs": 100.0, "Cartesia": 49.0}
PRICES_FROM = "list prices as given in Nari Labs' article of August 2026"


def ranked(values: Iterable[float | None]) -> dict[str, float | None]:
    """p50 p90 p95 p99: the smallest value that so large a share of all does not exceed."""
    known = sorted(value for value in values if value is not None)
    return {
        f"p{rank}": round(known[math.ceil(rank / 100 * len(known)) - 1], 3) if known else None
        for rank in RANKS
    }


def summarise(records: Sequence[Record], duration_s: float) -> dict[str, Any]:
    """The measured requests; warm-up counts only for the sound received in the window.

    Latencies are those of plain clients that got all of their speech.
    """
    measured = [r for r in records if not r.warmup]
    done = [r for r in measured if r.kind == "ok" and r.client == "plain"]
    kinds = Counter(r.kind for r in measured)
    audio_s = sum(r.audio_s for r in done)
    stalls = [ms for r in done for ms in r.stalls_ms]
    return {
        "requests": len(measured),
        "completed": kinds["ok"],
        "refused": kinds["refused"],
        "left": kinds["left"],
        "failed": len(measured) - kinds["ok"] - kinds["refused"] - kinds["left"],
        "kinds": dict(kinds.most_common()),
        "finish_reasons": dict(Counter(r.finish for r in measured if r.finish).most_common()),
        "underrun_requests": sum(bool(r.stalls_ms) for r in done),
        "underrun_requests_100ms": sum(bool(r.stalls_100_ms) for r in done),
        "silent_requests": sum(r.audible_ms is None for r in done),
        "runaway_requests": sum(r.runaway for r in done),
        "long_silence_requests": sum(r.silence_s > 1.0 for r in done),
        "ttfb_ms": ranked(r.ttfb_ms for r in done),
        "playable_ms": ranked(r.playable_ms for r in done),
        "audible_ttfa_ms": ranked(r.audible_ms for r in done),
        "leading_silence_ms": ranked(r.leading_silence_ms for r in done),
        "e2e_ms": ranked(r.e2e_ms for r in done),
        "rtf": ranked(r.rtf for r in done),
        "stall_ms": ranked(stalls),
        "median_gap_ms": ranked(r.median_gap_ms for r in done),
        "max_gap_ms": ranked(r.max_gap_ms for r in done),
        "setup_ms": ranked(r.setup_ms for r in measured if r.kind != "unreachable"),
        "audio_s": round(audio_s, 3),
        "mean_audio_s": round(audio_s / len(done), 3) if done else None,
        "characters": sum(r.characters for r in done),
        "x_realtime": round(sum(r.window_audio_s for r in records) / duration_s, 3),
    }


def cost(summary: dict[str, Any], dollars_per_hour: float) -> dict[str, object] | None:
    """What a million characters and an hour of sound cost at this run's throughput."""
    times, audio_s, characters = (summary[k] for k in ("x_realtime", "audio_s", "characters"))
    if not times or not characters:
        return None
    an_hour = dollars_per_hour / times
    per_audio_hour = characters / audio_s * 3600  # characters
    return {
        "dollars_per_machine_hour": dollars_per_hour,
        "dollars_per_audio_hour": round(an_hour, 6),
        "dollars_per_million_characters": round(an_hour / per_audio_hour * 1e6, 6),
        "list_dollars_per_million_characters": LIST_PRICES,
        "list_dollars_per_audio_hour": {
            name: round(price * per_audio_hour / 1e6, 4) for name, price in LIST_PRICES.items()
        },
        "list_prices_from": PRICES_FROM,
    }
