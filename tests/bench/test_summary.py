"""Percentiles by nearest rank, counts that add up, cost beside list prices."""

import pytest

from vivace.bench.record import Record
from vivace.bench.summary import cost, ranked, summarise


def test_nearest_rank_is_always_a_value_that_occurred() -> None:
    assert ranked(range(1, 21)) == {"p50": 10, "p90": 18, "p95": 19, "p99": 20}
    assert ranked([7.0]) == {"p50": 7.0, "p90": 7.0, "p95": 7.0, "p99": 7.0}
    assert ranked([3.0, None, 1.0]) == {"p50": 1.0, "p90": 3.0, "p95": 3.0, "p99": 3.0}
    assert ranked([None]) == {"p50": None, "p90": None, "p95": None, "p99": None}


def record(index: int, **values: object) -> Record:
    row = Record(index, "t", 50, float(index), warmup=False)
    for name, value in values.items():
        setattr(row, name, value)
    return row


RECORDS = [
    record(0, warmup=True, audio_s=4.0, window_audio_s=1.0, audible_ms=999.0),
    record(1, audio_s=4.0, window_audio_s=4.0, audible_ms=10.0, stalls_ms=[5.0], finish="stop"),
    record(2, audio_s=4.0, window_audio_s=3.0, audible_ms=20.0, finish="stop"),
    record(3, audio_s=4.0, window_audio_s=4.0, audible_ms=900.0, client="slow", stalls_ms=[9.0]),
    record(4, kind="left", client="leaving", audio_s=1.0, window_audio_s=1.0),
    record(5, kind="refused"),
    record(6, kind="truncated", audio_s=1.0, window_audio_s=1.0),
]


def test_each_measured_request_is_counted_once() -> None:
    s = summarise(RECORDS, 10.0)
    assert s["requests"] == 6
    assert (s["completed"], s["left"], s["refused"], s["failed"]) == (3, 1, 1, 1)
    assert s["kinds"] == {"ok": 3, "left": 1, "refused": 1, "truncated": 1}
    assert s["finish_reasons"] == {"stop": 2}


def test_latencies_and_underruns_are_those_of_plain_listeners() -> None:
    """Warm-up, slow readers, leavers and failures neither help nor hurt."""
    s = summarise(RECORDS, 10.0)
    assert s["audible_ttfa_ms"] == {"p50": 10.0, "p90": 20.0, "p95": 20.0, "p99": 20.0}
    assert s["underrun_requests"] == 1
    assert s["stall_ms"] == {"p50": 5.0, "p90": 5.0, "p95": 5.0, "p99": 5.0}


def test_sound_received_in_the_window_counts_whoever_asked_for_it() -> None:
    assert summarise(RECORDS, 10.0)["x_realtime"] == pytest.approx(1.4)


def test_cost_of_characters_and_of_hours() -> None:
    """100 characters in 8 s of sound, 1.4 times real time, 7 dollars an hour: 5 for an hour."""
    found = cost(summarise(RECORDS, 10.0), 7.0)
    assert found is not None
    assert found["dollars_per_audio_hour"] == pytest.approx(5.0)
    assert found["dollars_per_million_characters"] == pytest.approx(5.0 / 45_000 * 1e6, rel=1e-4)
    assert found["list_dollars_per_million_characters"] == {"ElevenLabs": 100.0, "Cartesia": 49.0}
    assert found["list_dollars_per_audio_hour"] == {"ElevenLabs": 4.5, "Cartesia": 2.205}
    assert "Nari Labs" in str(found["list_prices_from"])
    assert cost(summarise([], 10.0), 7.0) is None
