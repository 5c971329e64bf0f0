"""A few threads for what would hold up the event loop: encoding sound, reading long texts."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Workers:
    """Runs calls aside, on `threads` threads; 0 is as many as there are cores, up to 16.

    A response has one call in here at a time, so the queue is as long as there are responses.
    """

    def __init__(self, threads: int = 0) -> None:
        threads = threads or min(16, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, "vivace-edge")

    async def run(self, work: Callable[..., T], *args: object, aside: bool = True) -> T:
        """The call's result; with `aside` false it is so short that it runs here and now."""
        if not aside:
            return work(*args)
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    def start(self, work: Callable[..., object], *args: object) -> None:
        """Run a call that nobody waits for; it must not raise."""
        self._pool.submit(work, *args)
