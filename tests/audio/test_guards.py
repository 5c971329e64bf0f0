"""Silence and loops, in speech that a test writes down."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.audio.guards import EVERY, Echo, Silence, powers
from vivace.types import SAMPLES_PER_FRAME

LOUD, QUIET = 1e-3, 1e-8


@pytest.mark.parametrize(("dbfs", "silent"), [(-61.0, True), (-59.0, False)])
def test_silence_is_under_60_dbfs(dbfs: float, silent: bool) -> None:
    pcm = np.tile(np.float32([1, -1]) * 10 ** (dbfs / 20), (1, SAMPLES_PER_FRAME // 2))
    (power,) = powers(pcm.astype(np.float32))
    assert (Silence(1).feed(power) == 1) is silent


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_power_tells_which_frame_is_not_of_numbers(bad: float) -> None:
    pcm = np.zeros((2, 3 * SAMPLES_PER_FRAME), dtype=np.float32)
    pcm[1, SAMPLES_PER_FRAME + 7] = bad
    assert np.isfinite(powers(pcm)).tolist() == [[True] * 3, [True, False, True]]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 8), st.data())
def test_a_run_of_silence_is_found_at_its_frame_in_any_chunking(
    silent: list[bool], most: int, data: st.DataObject
) -> None:
    power = [QUIET if s else LOUD for s in silent]
    ends = (i + 1 for i in range(most - 1, len(power)) if all(silent[i + 1 - most : i + 1]))
    cuts = sorted({0, len(power), *data.draw(st.lists(st.integers(0, len(power))))})
    watch, found = Silence(most), None
    for start, end in pairwise(cuts):
        count = watch.feed(power[start:end])
        if count is not None:
            found = start + count
            break
    assert found == next(ends, None)


def test_no_number_of_silent_frames_is_too_many_for_one_that_is_off() -> None:
    assert Silence(0).feed([QUIET] * 1000) is None
    assert not any(map(Echo(0).feed, [7] * 1000))


def found_at(codes: list[int], most: int = 40) -> int | None:
    echo = Echo(most)
    return next((i for i, code in enumerate(codes, 1) if echo.feed(code)), None)


@pytest.mark.parametrize("period", [1, 2, 3, 7, 13, 20])
@pytest.mark.parametrize("lead", [0, 5, 100, 3_000])
def test_codes_that_go_round_are_found_soon_after_so_many(period: int, lead: int) -> None:
    varied = np.random.default_rng(0).integers(100, 2000, lead).tolist()
    found = found_at([*varied, *list(range(period)) * 300])
    assert found is not None
    assert 40 + period <= found - lead < 40 + period + EVERY


def test_a_loop_longer_than_half_of_what_must_repeat_is_none() -> None:
    assert found_at(list(range(21)) * 100) is None


def test_one_code_out_of_place_breaks_the_loop() -> None:
    codes = [1, 2, 3] * 200
    codes[::35] = range(1000, 1000 + len(codes[::35]))
    assert found_at(codes) is None


def test_what_is_kept_of_a_long_stream_is_bounded() -> None:
    echo = Echo(40)
    for code in np.random.default_rng(1).integers(0, 2048, 20_000).tolist():
        assert not echo.feed(code)
        assert len(echo.past) <= 16 * 40 + EVERY
