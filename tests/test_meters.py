"""What the loop measures of itself."""

import pytest

from vivace.meters import ROWS, STEP_S, WAIT_S, Meters, Tally


def test_a_value_is_counted_at_the_first_bound_that_holds_it() -> None:
    tally = Tally.of(WAIT_S)
    for value in (0.0, 0.001, 0.0011, 60.0, 61.0):
        tally.add(WAIT_S, value)
    assert tally.counts == [2, 1, *[0] * (len(WAIT_S) - 3), 1, 1]
    assert tally.total == pytest.approx(121.0021)


def test_steps_are_told_by_kind_and_batch() -> None:
    meters = Meters()
    for rows in (1, 3, 4, 300):
        meters.stepped("frame", rows, 512, 0.005)
    meters.stepped("codec", 2, 32, 0.02)
    frame = meters.lanes["frame"]
    assert {size: sum(tally.counts) for size, tally in frame.took_s.items()} == {1: 1, 4: 2, 256: 1}
    assert (frame.rows, frame.room) == (308, 2048)
    assert set(meters.lanes) == {"frame", "codec"}


def test_bounds_rise() -> None:
    for bounds in (STEP_S, WAIT_S, ROWS):
        assert list(bounds) == sorted(set(bounds))
