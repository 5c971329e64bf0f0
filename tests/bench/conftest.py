"""A fake server for each test, and scripts played without one."""

from collections.abc import Callable, Iterator

import pytest
from tests.bench.fake import Fake, Script

from vivace.bench.answer import Answer


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake() as server:
        yield server


@pytest.fixture
def played() -> Callable[..., Answer]:
    """What a perfect client would have got of a script, on a clock that starts at 1000 s."""

    def play(script: Script, *, closing_s: float = 0.0) -> Answer:
        answer, now_s = Answer(setup_s=0.003, sent_s=1000.0, status=script.status), 1000.0
        for delay_s, piece in script.pieces:
            now_s += delay_s
            answer.arrivals.append((now_s, piece))
        answer.ended_s = now_s + closing_s
        return answer

    return play
