"""Pages are never lost and never shared."""

from hypothesis import given
from hypothesis import strategies as st

from vivace.runtime.pages import Pages


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300)), max_size=60))
def test_pages_are_owned_once_and_all_come_back(events: list[tuple[int, int]]) -> None:
    pages = Pages(16, 64)
    for slot, positions in events:
        if positions == 0:
            pages.release(slot)
        else:
            before = list(pages.table(slot))
            added = pages.grow(slot, positions)
            if added is None:
                assert (
                    pages.table(slot) == before and -(-positions // 64) - len(before) > pages.free
                )
            else:
                assert pages.table(slot) == before + added
                assert len(pages.table(slot)) * 64 >= positions
        owned = [page for s in range(6) for page in pages.table(s)]
        assert len(owned) == len(set(owned)) == 16 - pages.free
    for slot in range(6):
        pages.release(slot)
    assert pages.free == 16
