"""What a listener meets, as the server sees it: on a clock that the test moves."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.bench.listener import play
from vivace.server.heard import Heard
from vivace.types import SAMPLE_RATE


def tone(seconds: float, level: float = 0.5) -> np.ndarray:
    return np.full(round(seconds * SAMPLE_RATE), level, dtype=np.float32)


def test_sound_that_comes_in_time_never_stalls() -> None:
    heard = Heard()
    for at_s in (10.0, 10.4, 10.9, 11.5):
        heard.take(tone(0.5), at_s)
    assert (heard.first_s, heard.last_s, heard.stalls, heard.deficit_s) == (10.0, 11.5, 0, 0.0)
    assert heard.sound_s == 2.0


def test_a_player_that_runs_dry_goes_on_from_there() -> None:
    heard = Heard()
    for at_s in (0.0, 0.6, 0.9, 1.5):  # dry at 0.5, then at 1.1 and 1.4 later
        heard.take(tone(0.5), at_s)
    assert heard.stalls == 1
    assert heard.deficit_s == pytest.approx(0.1)


def test_what_cannot_be_heard_is_not_the_first_sound() -> None:
    heard = Heard()
    heard.take(tone(0.5, 0.001), 2.0)
    assert heard.audible_s is None
    heard.take(np.concatenate([tone(0.25, 0.0), tone(0.25)]), 2.1)
    assert heard.audible_s == pytest.approx(2.75)  # the player is at 2.5 when the second begins


def test_speed_shortens_what_the_listener_has() -> None:
    heard = Heard(speed=2.0)
    heard.take(tone(1.0), 0.0)
    heard.take(tone(1.0), 0.75)
    assert (heard.stalls, heard.sound_s) == (1, 2.0)
    assert heard.deficit_s == pytest.approx(0.25)


def test_a_reader_that_takes_nothing_does_not_run_dry_for_our_sake() -> None:
    heard = Heard()
    heard.take(tone(0.5), 0.0)
    heard.held_up(30.0)
    heard.take(tone(0.5), 30.2)
    assert (heard.stalls, heard.deficit_s) == (0, 0.0)
    heard.take(tone(0.5), 31.5)  # dry at 31.0
    assert heard.stalls == 1


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), min_size=1, max_size=20))
def test_it_counts_what_the_bench_counts_from_outside(steps: list[tuple[int, int]]) -> None:
    heard, now_s, pieces = Heard(), 0.0, []
    for wait, samples in steps:  # in 64ths of a second, which add up without rounding
        now_s += wait / 64
        pieces.append((now_s, samples * 375))
        heard.take(np.zeros(samples * 375, dtype=np.float32), now_s)
    stalls = play(pieces, SAMPLE_RATE).stalls_s
    assert heard.stalls == len(stalls)
