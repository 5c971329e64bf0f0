"""What is in memory stays within the budget, and what is in use stays."""

import threading
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.runtime.shelf import Shelf


class Now:
    """A loader whose work is done at once, or when the test says so."""

    def __init__(self, *, held: bool = False) -> None:
        self.held, self.work = held, list[tuple[Future[str], object, int]]()

    def submit(self, bring, model: int) -> "Future[str]":  # type: ignore[no-untyped-def]
        future: Future[str] = Future()
        self.work.append((future, bring, model))
        if not self.held:
            self.finish()
        return future

    def finish(self) -> None:
        future, bring, model = self.work.pop()
        try:
            future.set_result(bring(model))  # type: ignore[operator]
        except Exception as error:
            future.set_exception(error)


def shelf_of(sizes: dict[int, int], budget: int, loader: Now, bring=str) -> Shelf[str]:  # type: ignore[no-untyped-def]
    shelf = Shelf({0: "0"}, sizes, budget, bring)
    shelf._thread = loader  # type: ignore[assignment]
    return shelf


def test_the_one_unused_for_longest_makes_room_and_no_more_than_it_takes() -> None:
    shelf = shelf_of({0: 2, 1: 2, 2: 2, 3: 1}, 6, Now())
    for model in (1, 2, 0):
        shelf.fetch(model, ())
        assert shelf.fetch(model, ()) == str(model)
    assert list(shelf.held) == [1, 2, 0]
    assert shelf.fetch(3, ()) is None and shelf.fetch(3, ()) == "3"
    assert list(shelf.held) == [2, 0, 3]


def test_what_is_in_use_stays_and_nothing_goes_in_vain() -> None:
    shelf = shelf_of({0: 2, 1: 2, 2: 4}, 4, Now())
    assert shelf.fetch(1, ()) is None and shelf.fetch(1, ()) == "1"
    assert shelf.fetch(2, {0}) is None and list(shelf.held) == [0, 1]
    assert shelf.fetch(2, {1}) is None and list(shelf.held) == [0, 1]
    assert shelf.fetch(2, ()) is None and shelf.fetch(2, ()) == "2" and list(shelf.held) == [2]


def test_one_is_loaded_at_a_time_and_the_loop_is_woken() -> None:
    loader, woken = Now(held=True), threading.Event()
    shelf = shelf_of({0: 1, 1: 1, 2: 1}, 3, loader)
    shelf.wake = woken.set
    assert shelf.fetch(1, ()) is shelf.fetch(2, ()) is shelf.fetch(1, ()) is None
    assert len(loader.work) == 1 and not woken.is_set()
    loader.finish()
    assert woken.is_set() and shelf.fetch(2, ()) is None and shelf.fetch(1, ()) == "1"
    loader.finish()
    assert shelf.fetch(2, ()) == "2"


def test_what_failed_is_told_to_who_wants_it_and_tried_again() -> None:
    faults = {1: ValueError("first"), 2: None}

    def bring(model: int) -> str:
        fault, faults[model] = faults[model], None
        if fault is not None:
            raise fault
        return str(model)

    shelf = shelf_of({0: 1, 1: 1, 2: 1}, 3, Now(), bring)
    assert shelf.fetch(1, ()) is None
    with pytest.raises(ValueError, match="first"):
        shelf.fetch(1, ())
    assert shelf.fetch(1, ()) is None and shelf.fetch(1, ()) == "1"
    faults[2] = ValueError("second")
    assert shelf.fetch(2, ()) is None
    assert shelf.fetch(0, ()) == "0", "nothing of it is another model's"
    assert shelf.fetch(2, ()) is None and shelf.fetch(2, ()) == "2"


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=5),
    st.integers(5, 12),
    st.lists(st.tuples(st.integers(0, 4), st.frozensets(st.integers(0, 4))), max_size=40),
)
def test_it_never_holds_more_than_its_budget_nor_drops_what_is_in_use(
    sizes: list[int], budget: int, wishes: list[tuple[int, frozenset[int]]]
) -> None:
    shelf = shelf_of(dict(enumerate(sizes)), budget, Now())
    for model, busy in wishes:
        if model >= len(sizes):
            continue
        before = set(shelf.held)
        shelf.fetch(model, busy)
        assert (before & busy) <= set(shelf.held)
        coming = shelf._coming
        held = sum(shelf.sizes[m] for m in {*shelf.held, *([coming.model] if coming else [])})
        assert held <= budget
