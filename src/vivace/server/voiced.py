"""One session's sound on its way into the bytes that were ordered."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, Self

from vivace.audio.encode import Pipeline
from vivace.audio.wav import SAMPLE_BYTES
from vivace.errors import EngineFailure, InvalidRequest, Unavailable
from vivace.server.heard import Heard
from vivace.server.order import NOTHING_TO_SAY, Order, Output
from vivace.server.replay import Recorded, Replay, Spoken
from vivace.server.results import Results, key_of
from vivace.server.workers import Workers
from vivace.types import Done, FinishReason

if TYPE_CHECKING:
    from vivace.engine import Engine
    from vivace.session import Session

LONG_TEXT = 2_000  # characters that are cleaned and tokenised in about 3 ms


class Voiced:
    """A session being spoken. Close it on any way out, or it goes on."""

    def __init__(
        self, output: Output, session: Spoken, pipeline: Pipeline, workers: Workers
    ) -> None:
        self.session, self.samples = session, 0
        self.cache: Literal["hit", "miss"] | None = None  # None if it was not asked for
        self.heard, self.form = Heard(output.speed), output.format.name  # times on perf_counter
        self.encode_s = 0.0  # in the encoder, and waiting for a thread for it
        self.told: tuple[str, ...] = ()  # warnings of the order and of its clip
        self._output, self._pipeline, self._workers = output, pipeline, workers

    @classmethod
    async def open(cls, engine: "Engine", order: Order, workers: Workers) -> Self:
        """Open the session of an order.

        Raises what `Engine.say` raises, and InvalidRequest where normalising leaves nothing to say.
        """
        request, warnings = await workers.cloned(engine, order.request, order.reference)
        order = replace(order, request=request, warnings=(*order.warnings, *warnings))
        if order.results is None:
            session: Spoken = await _say(engine, order, workers)
        else:
            session = await _kept(order.results, engine, order, workers)
        voiced = await cls.around(session, order.output, workers)
        voiced.told = order.warnings
        if order.results is not None:
            voiced.cache = "hit" if isinstance(session, Replay) else "miss"
        return voiced

    @classmethod
    async def around(cls, session: Spoken, output: Output, workers: Workers) -> Self:
        """Take over an open session; its first frames are made while the encoder is set up."""
        try:
            pipeline = await workers.run(
                Pipeline, output.format, output.rate, output.speed, aside=not output.light
            )
        except BaseException:
            session.cancel()
            raise
        return cls(output, session, pipeline, workers)

    @property
    def warnings(self) -> list[str]:
        """Those there are, and what of the text has no sound."""
        pieces = self.session.skipped
        if not pieces:
            return [*self.told]
        some = ", ".join(repr(piece[:20]) for piece in pieces[:3])
        return [*self.told, f"skipped {len(pieces)} pieces of the text that have no sound: {some}"]

    async def pieces(self) -> AsyncIterator[bytes]:
        """Bytes as their sound is made, none of them empty; `last` has the rest."""
        async for chunk in self.session:
            self.samples += len(chunk.pcm)
            piece = await self._run(self._pipeline.encode, chunk.pcm)
            self.heard.take(chunk.pcm, given_s := time.perf_counter())
            if piece:
                yield piece
                self.heard.held_up(time.perf_counter() - given_s)

    async def last(self) -> tuple[bytes, Done]:
        """The rest of the bytes and how it ended; raises what stands for a bad end."""
        done = _well(self.session)
        return await self._run(self._pipeline.finish), done

    async def whole(self) -> tuple[bytes, Done]:
        """All of it as one file that knows its length."""
        pieces = [piece async for piece in self.pieces()]
        rest, done = await self.last()
        return self._pipeline.sealed(b"".join([*pieces, rest])), done

    def close(self) -> None:
        """Nobody listens any more; after the end it changes nothing."""
        self.session.cancel()
        self._pipeline.close()

    async def _run(self, work: Callable[..., bytes], *args: object) -> bytes:
        begun_s = time.perf_counter()
        try:
            return await self._workers.run(work, *args, aside=not self._output.light)
        finally:
            self.encode_s += time.perf_counter() - begun_s


async def _say(engine: "Engine", order: Order, workers: Workers) -> "Session":
    long = len(order.text) > LONG_TEXT
    session = await workers.run(engine.say, order.text, order.request, aside=long)
    if not session.prompt_ids:
        session.cancel()
        raise InvalidRequest(
            "`input` holds nothing that can be spoken.", param="input", code=NOTHING_TO_SAY
        )
    return session


async def _kept(results: Results, engine: "Engine", order: Order, workers: Workers) -> Spoken:
    """The same speech from before, or a session that is kept for the next time."""

    def look() -> tuple[str, Replay | None]:
        key = key_of(engine, order.text, order.request)
        found = results.get(key)
        return key, None if found is None else Replay(found)

    key, replay = await workers.run(look)
    if replay is not None:
        return replay
    session, keep = await _say(engine, order, workers), partial(workers.start, results.put, key)
    return Recorded(session, keep, results.largest // SAMPLE_BYTES)


def _well(session: Spoken) -> Done:
    done = session.done
    assert done is not None
    if done.reason is FinishReason.CANCELLED:
        raise Unavailable("The request was cancelled before it was done.", code="cancelled")
    if done.reason is FinishReason.ERROR:
        raise done.error or EngineFailure("The engine failed.")
    return done
