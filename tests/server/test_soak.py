"""A slice of `make soak`: mixed requests against a whole server, and nothing is left of them."""

import asyncio

from benchmarks.soak import GAUGES, SHARES, server_of, soak

ENDS = {
    "whole: 200",
    "events: speech.audio.done",
    "socket: over",
    "leaves: left",
    "slow: left",
    "bad: 400",
    "bad: 404",
    "bad: 422",
}


def test_mixed_requests_end_as_they_should_and_leave_nothing() -> None:
    with server_of(None) as url:
        found = asyncio.run(soak(url, 120, 0.0, 8, 1, gpu=False))
    outcomes = found["outcomes"]
    assert isinstance(outcomes, dict) and sum(outcomes.values()) == 120
    assert set(outcomes) <= ENDS
    assert {outcome.partition(":")[0] for outcome in outcomes} == set(SHARES)
    assert found["gauges_at_the_end"] == dict.fromkeys(GAUGES, 0.0)
    memory = found["memory_mb"]
    assert isinstance(memory, dict) and set(memory) == {"edge", "engine"}
    assert all(mb > 0 for sizes in memory.values() for mb in sizes)
