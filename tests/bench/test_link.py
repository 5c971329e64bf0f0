"""The link's own benchmark: everybody is heard, wherever the loop runs."""

from typing import Any

import pytest
from tests.remote.hosts import BOTH

from vivace.bench import link


@pytest.mark.parametrize("where", BOTH)
def test_every_stream_is_heard_and_stamped(where: str) -> None:
    found: Any = link.under_load(BOTH[where], 10.0, 1.0)
    assert found["requests"] > 0 and found["refused"] == 0
    assert 0 < found["added_ms"]["p50"] <= found["added_ms"]["p99"]
    assert found["first_ms"]["p50"] > 0
    assert found["loop_cpu"] > 0 and found["edge_cpu"] > 0


def test_the_link_alone_is_counted_per_chunk() -> None:
    found: Any = link.flood(8, chunks=400)
    assert found["batch"] == 8
    assert all(value > 0 for value in found.values())
