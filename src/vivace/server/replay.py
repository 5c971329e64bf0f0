"""Sessions whose sound is kept as it is made, and speech kept before, played like a session."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from vivace.audio.wav import Samples, to_s16
from vivace.server.results import Result
from vivace.types import SAMPLES_PER_FRAME, Chunk, Done, FinishReason, Pcm

if TYPE_CHECKING:
    from vivace.session import Session

_FIRST: Final = 2 * SAMPLES_PER_FRAME  # the encoders' first bytes are there sooner
_CHUNK: Final = 8 * SAMPLES_PER_FRAME
_NO_CODES: Final = np.zeros((0, 16), np.int64)


class Spoken(Protocol):
    """What is heard of a session."""

    @property
    def done(self) -> Done | None:
        """The terminal event, once there is one."""
        ...

    @property
    def skipped(self) -> list[str]:
        """What of the text nobody can speak."""
        ...

    def cancel(self) -> None:
        """Stop at once."""
        ...

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """Its sound, in order."""
        ...


class Recorded:
    """A session; `keep` gets its sound if it comes to its own end within `most` samples.

    Its sound is rounded to 16 bits on the way: so it is the same the second time, in every format.
    """

    def __init__(self, session: "Session", keep: Callable[[Result], object], most: int) -> None:
        self._session, self._keep, self._most = session, keep, most
        self._pieces: list[Samples] | None = []
        self._samples = 0

    @property
    def done(self) -> Done | None:
        """The session's."""
        return self._session.done

    @property
    def skipped(self) -> list[str]:
        """The session's."""
        return self._session.skipped

    def cancel(self) -> None:
        """Stop at once; nothing is kept."""
        self._session.cancel()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """The session's sound, rounded."""
        async for chunk in self._session:
            pcm = to_s16(chunk.pcm)
            self._take(pcm)
            yield replace(chunk, pcm=_floats(pcm))
        done = self.done
        if done is not None and done.reason is FinishReason.STOP and self._pieces:
            pcm, self._pieces = np.concatenate(self._pieces), None
            self._keep(Result(pcm, done.frames, done.text_tokens, done.seed, (*self.skipped,)))

    def _take(self, pcm: Samples) -> None:
        self._samples += len(pcm)
        if self._samples > self._most:
            self._pieces = None  # too long to keep, also in memory
        if self._pieces is not None:
            self._pieces.append(pcm)


class Replay:
    """Speech that was kept, in chunks, as fast as it is taken."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self.done: Done | None = None
        self.skipped = list(result.skipped)

    def cancel(self) -> None:
        """Stop at once; after the end it changes nothing."""
        if self.done is None:
            self.done = self._over(FinishReason.CANCELLED)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """All of it, unless it is cancelled."""
        pcm = self._result.pcm
        starts = (0, *range(_FIRST, len(pcm), _CHUNK))
        for start, end in zip(starts, (*starts[1:], len(pcm)), strict=True):
            if self.done is not None:
                return
            yield Chunk(_floats(pcm[start:end]), _NO_CODES)
            await asyncio.sleep(0)  # nothing here waits, and others want to be served
        if self.done is None:
            self.done = self._over(FinishReason.STOP)

    def _over(self, reason: FinishReason) -> Done:
        result = self._result
        return Done(reason, result.frames, result.text_tokens, result.seed)


def _floats(pcm: Samples) -> Pcm:
    """What `to_s16` makes the same integers of."""
    return pcm.astype(np.float32) / np.float32(32767)
