"""Sizes hold what they must, and no more than they need."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.runtime.sizes import ROWS, Sizes, fit, pieces, upto


@given(st.integers(1, 600))
def test_sizes_end_where_they_must_and_fit_takes_the_smallest(most: int) -> None:
    sizes = upto(ROWS, most)
    assert sizes[-1] == most and list(sizes) == sorted(set(sizes))
    for count in range(1, most + 1):
        chosen = fit(sizes, count)
        assert chosen >= count
        assert not any(count <= size < chosen for size in sizes)


@given(st.sets(st.integers(2, 20)), st.integers(0, 500))
def test_pieces_add_up(sizes: set[int], count: int) -> None:
    made = list(pieces((1, *sorted(sizes)), count))
    assert sum(made) == count
    assert set(made) <= {1, *sizes}


def test_more_than_the_largest_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="do not fit"):
        fit((1, 2), 3)


def test_a_small_machine_captures_little() -> None:
    sizes = Sizes.upto(sessions=3, codec_rows=3, chunk_frames=2, prefill=64)
    assert sizes == Sizes((1, 2, 3), (16, 32, 64), (1, 2, 3), (1, 2))
