"""The largest rate that keeps a promise, found by doubling and bisection."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vivace.bench.run import Result
from vivace.errors import InvalidRequest

_LATENCIES = {
    "ttfa": "audible_ttfa_ms",
    "ttfb": "ttfb_ms",
    "e2e": "e2e_ms",
    "rtf": "rtf",
    "gap": "max_gap_ms",
    "stall": "stall_ms",
}
_COUNTS = {
    "underruns": "underrun_requests",
    "underruns100": "underrun_requests_100ms",
    "refused": "refused",
    "failed": "failed",
    "silent": "silent_requests",
    "runaway": "runaway_requests",
}
_OPERATORS = {"<": operator.lt, "<=": operator.le, "=": operator.eq}
_CLAUSE = re.compile(
    r"(?:(?P<rank>p50|p90|p95|p99)\s+)?(?P<name>\w+)\s*(?P<op><=|<|=)\s*(?P<limit>[\d.]+)\s*"
    r"(?P<unit>ms|s|%)?"
)


@dataclass(frozen=True, slots=True)
class Clause:
    """One part of a promise, such as `p95 ttfa<50ms` or `underruns<1%`."""

    key: str  # in the summary
    rank: str | None
    op: str
    limit: float
    share: bool  # of the requests

    def holds(self, summary: dict[str, Any]) -> bool:
        """Whether a run keeps it; a figure that is missing does not."""
        value = summary[self.key][self.rank] if self.rank else summary[self.key]
        if value is None:
            return self.key == "stall_ms"  # nothing stalled
        if self.share:
            value = value / summary["requests"] * 100
        return bool(_OPERATORS[self.op](value, self.limit))


def parse_slo(text: str) -> list[Clause]:
    """Clauses between commas. Nothing may fail or be refused, unless a clause says otherwise."""
    clauses = [_clause(part) for part in text.split(",")]
    named = {clause.key for clause in clauses}
    strict = [Clause(key, None, "=", 0, False) for key in ("failed", "refused") if key not in named]
    return clauses + strict


def _clause(part: str) -> Clause:
    match = _CLAUSE.fullmatch(part.strip().lower())
    known = f"latencies {', '.join(_LATENCIES)} and counts {', '.join(_COUNTS)}"
    if not match or match["name"] not in {*_LATENCIES, *_COUNTS}:
        raise InvalidRequest(
            f'cannot read {part.strip()!r}: write "p95 ttfa<50ms, underruns=0" with {known}'
        )
    name, rank, unit, limit = match["name"], match["rank"], match["unit"], float(match["limit"])
    if (name in _LATENCIES) != bool(rank) or (unit == "%" and name in _LATENCIES):
        raise InvalidRequest(
            f"{part.strip()!r}: a latency has a rank, such as p95; a count has none"
        )
    if unit == "s":
        limit *= 1000
    key = _LATENCIES.get(name) or _COUNTS[name]
    return Clause(key, rank, match["op"], limit, unit == "%")


Probe = Callable[[float], Result]


def search(
    probe: Probe, slo: list[Clause], lowest: float, highest: float, precision: float
) -> tuple[float | None, list[Result]]:
    """The largest rate that holds, to the given share of itself, and every run made for it.

    Stops with what it has when the client was the limit. None: not even the lowest holds.
    """
    runs: list[Result] = []

    def holds(rps: float) -> bool | None:
        result = probe(rps)
        summary = result["summary"]
        assert isinstance(summary, dict)
        met = all(clause.holds(summary) for clause in slo)
        runs.append({**result, "meets_slo": met})
        return met if result["valid"] else None

    best, worst, rps = None, None, lowest
    while True:
        met = holds(rps)
        if met is None:
            return best, runs
        if met:
            best = rps
        else:
            worst = rps
        if best is None or best >= highest:
            return best, runs
        if worst is None:
            rps = min(best * 2, highest)
        elif worst - best <= precision * best:
            return best, runs
        else:
            rps = round((best + worst) / 2, 3)
