"""Promises in words, and the search for the largest rate that keeps them."""

from typing import Any

import pytest

from vivace.bench.capacity import parse_slo, search
from vivace.bench.summary import summarise
from vivace.errors import InvalidRequest


def summary(**values: object) -> dict[str, Any]:
    empty = summarise([], 1.0)
    return {**empty, "requests": 100, "failed": 0, "refused": 0, **values}


def holds(slo: str, found: dict[str, Any]) -> bool:
    return all(clause.holds(found) for clause in parse_slo(slo))


def test_a_promise_of_latency_and_underruns() -> None:
    slo = "p95 ttfa<50ms, underruns=0"
    ttfa = {"audible_ttfa_ms": {"p95": 49.9}}
    assert holds(slo, summary(**ttfa, underrun_requests=0))
    assert not holds(slo, summary(**ttfa, underrun_requests=1))
    assert not holds(slo, summary(audible_ttfa_ms={"p95": 50.0}, underrun_requests=0))
    assert not holds(slo, summary(underrun_requests=0))  # nobody heard anything


def test_nothing_may_fail_unless_it_is_said() -> None:
    ttfa = {"audible_ttfa_ms": {"p95": 1.0}}
    assert not holds("p95 ttfa<50ms", summary(**ttfa, failed=1))
    assert not holds("p95 ttfa<50ms", summary(**ttfa, refused=1))
    assert holds("p95 ttfa<50ms, refused<=2%", summary(**ttfa, refused=2))
    assert not holds("p95 ttfa<50ms, refused<2%", summary(**ttfa, refused=2))


def test_units() -> None:
    assert holds("p99 e2e<=4s", summary(e2e_ms={"p99": 4000.0}))
    assert holds("p50 rtf<0.5", summary(rtf={"p50": 0.4}))
    assert holds("p99 stall<10ms", summary())  # nothing stalled


@pytest.mark.parametrize(
    "slo", ["fast", "ttfa<50ms", "p95 underruns=0", "p95 ttfa<5%", "p75 ttfa<50", "", "p95 joy<1"]
)
def test_what_cannot_be_read_is_refused_with_an_example(slo: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_slo(slo)


def server(limit: float, tried: list[float], client_limit: float = 1e9) -> Any:
    """Keeps the promise up to `limit`."""

    def probe(rps: float) -> dict[str, object]:
        tried.append(rps)
        late = {"audible_ttfa_ms": {"p95": 10.0 if rps <= limit else 90.0}}
        return {"summary": summary(**late), "valid": rps <= client_limit}

    return probe


@pytest.mark.parametrize("limit", [1.0, 3.7, 37.0, 150.0])
def test_bisection_ends_at_the_limit(limit: float) -> None:
    tried: list[float] = []
    best, runs = search(server(limit, tried), parse_slo("p95 ttfa<50ms"), 1.0, 200.0, 0.05)
    assert best is not None
    assert best <= limit <= best * 1.05 + 1e-9
    assert len(tried) == len(set(tried)) == len(runs) <= 16
    assert [run["meets_slo"] for run in runs] == [rps <= limit for rps in tried]


def test_a_server_that_is_too_slow_or_too_fast_for_the_range() -> None:
    slo = parse_slo("p95 ttfa<50ms")
    tried: list[float] = []
    assert search(server(0.5, tried), slo, 1.0, 64.0, 0.1)[0] is None
    assert tried == [1.0]
    assert search(server(1e9, []), slo, 1.0, 50.0, 0.1)[0] == 50.0


def test_the_search_ends_when_the_client_was_the_limit() -> None:
    tried: list[float] = []
    slo = parse_slo("p95 ttfa<50ms")
    best, runs = search(server(1e9, tried, client_limit=20.0), slo, 1.0, 200.0, 0.1)
    assert best == 16.0
    assert tried[-1] == 32.0
    assert not runs[-1]["valid"]
