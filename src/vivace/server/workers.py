"""A few threads for what would hold up the event loop: encoding sound, reading long texts."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from vivace.errors import Overloaded
from vivace.types import SpeechRequest

if TYPE_CHECKING:
    from vivace.engine import Engine
    from vivace.server.clips import Clones, Reference, Voice

T = TypeVar("T")

MAKERS: Final = 4  # voices that are made or changed at a time
MAKING: Final = 32  # the same with those that wait
LATER_S: Final = 5.0  # when to come back who finds no room: a voice takes some seconds


class Workers:
    """Runs calls aside, on `threads` threads; 0 is as many as there are cores, up to 16.

    A response has one call in here at a time, so the queue is as long as there are responses.
    """

    def __init__(self, threads: int = 0, clones: "Clones | None" = None) -> None:
        threads = threads or min(16, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(threads, "vivace-edge")
        self._makers = ThreadPoolExecutor(MAKERS, "vivace-voices")
        self._making = 0
        self._clones = clones
        self._foreseen: set[asyncio.Future[Voice]] = set()

    async def cloned(
        self, engine: "Engine", request: SpeechRequest, reference: "Reference | None"
    ) -> tuple[SpeechRequest, tuple[str, ...]]:
        """The request with its clip's voice, made aside on threads for that: `Clones.request`."""
        if reference is None:
            return request, ()
        assert self._clones is not None
        return await self._clones.request(engine, request, reference)

    def foresee(self, engine: "Engine", reference: "Reference | None") -> None:
        """Begin to make a clip's voice for turns to come; those hear what is wrong with it."""
        if reference is not None and self._clones is not None:
            making = asyncio.ensure_future(self._clones.voice(engine, reference))
            self._foreseen.add(making)
            making.add_done_callback(self._seen)

    def _seen(self, making: "asyncio.Future[Voice]") -> None:
        self._foreseen.discard(making)
        if not making.cancelled():
            making.exception()

    async def run(self, work: Callable[..., T], *args: object, aside: bool = True) -> T:
        """The call's result; with `aside` false it is so short that it runs here and now."""
        if not aside:
            return work(*args)
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)

    async def make(self, work: Callable[..., T], *args: object) -> T:
        """The result of a call that takes seconds or waits for the disk: a voice made or changed.

        Such calls have threads of their own, so that no sound waits for them. Raises Overloaded.
        """
        if self._making >= MAKING:
            raise Overloaded("Too many voices are being made; try again.", retry_after_s=LATER_S)
        made = asyncio.get_running_loop().run_in_executor(self._makers, work, *args)
        self._making += 1
        made.add_done_callback(self._made)
        return await asyncio.shield(made)  # who leaves does not make room: the call goes on

    def _made(self, made: "asyncio.Future[T]") -> None:
        self._making -= 1
        if not made.cancelled():
            made.exception()  # nobody may be left to hear it

    def start(self, work: Callable[..., object], *args: object) -> None:
        """Run a call that nobody waits for; it must not raise."""
        self._pool.submit(work, *args)
