"""Voices are made on threads of their own, and only so many wait for them."""

import asyncio
import threading

import pytest

from vivace.errors import Overloaded
from vivace.server import workers as workers_module
from vivace.server.workers import Workers


async def test_making_voices_leaves_room_for_sound_and_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers_module, "MAKING", 6)
    workers, held = Workers(1), threading.Event()
    making = [asyncio.ensure_future(workers.make(held.wait, 30)) for _ in range(6)]
    try:
        await asyncio.sleep(0)
        assert await workers.run(lambda: "sound") == "sound"  # none of those holds its thread
        assert not any(each.done() for each in making)
        with pytest.raises(Overloaded):
            await workers.make(int)
        making[0].cancel()  # who leaves does not make room
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await workers.make(int)
    finally:
        held.set()
    assert all(await asyncio.gather(*making[1:]))
    assert await workers.make(int) == 0
