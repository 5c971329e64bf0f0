"""Sessions and pages are what the device holds."""

import pytest
from tests.runners import SPEC

from vivace.config import EngineConfig
from vivace.errors import CheckpointError
from vivace.runtime.memory import SPARE, plan_memory, position_bytes, session_bytes

SOUND = ((4, 8), (16,))
CONFIG = EngineConfig(max_sessions=8, session_context=256, max_context=512, prefix_mb=1)


def test_without_a_limit_everybody_gets_their_context() -> None:
    memory = plan_memory(CONFIG, SPEC, SOUND, 4, None)
    assert (memory.sessions, memory.pages) == (8, 8 * 256 // 64)
    positions = 8 * 256 * position_bytes(SPEC, 4)
    assert memory.bytes == positions + 8 * session_bytes(SPEC, SOUND, 4) + (1 << 20)


def test_a_smaller_card_gets_fewer_sessions() -> None:
    """As many as fit, not one more and not one less."""
    whole = plan_memory(CONFIG, SPEC, SOUND, 4, None)
    assert plan_memory(CONFIG, SPEC, SOUND, 4, whole.bytes + SPARE) == whole
    fewer = plan_memory(CONFIG, SPEC, SOUND, 4, whole.bytes + SPARE - 1)
    assert fewer.sessions == 7 and fewer.bytes < whole.bytes


def test_one_session_always_reaches_the_end_of_its_context() -> None:
    one = plan_memory(EngineConfig(max_sessions=1, session_context=64), SPEC, SOUND, 4, None)
    assert one.pages * 64 >= 8192


def test_too_small_a_card_is_told_what_to_lower() -> None:
    with pytest.raises(CheckpointError, match=r"512 positions .* lower max_context or prefix_mb"):
        plan_memory(CONFIG, SPEC, SOUND, 4, SPARE)
