"""One turn: text goes in at once, sound goes out by a task of its own."""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from vivace.errors import InvalidRequest, Unprocessable, VivaceError
from vivace.server.clips import Reference
from vivace.server.live.wire import Gone
from vivace.server.order import Output
from vivace.server.story import Story
from vivace.server.voiced import LONG_TEXT, Voiced
from vivace.server.workers import Workers
from vivace.types import SAMPLE_RATE, Done, FinishReason, SpeechRequest

if TYPE_CHECKING:
    from vivace.engine import Engine
    from vivace.session import Session

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ended by itself; a cancelled one has none. `done` is missing if it never began."""

    reason: FinishReason
    done: Done | None
    skipped: list[str]  # what of the text nobody can speak
    error: BaseException | None = None


Id = TypeVar("Id", int, str)  # how the dialect names its turns


class Sink(Protocol[Id]):
    """Where a turn's sound goes: the adapter's own messages. Raises Gone if the client left."""

    async def sound(self, turn: "Turn[Id]", data: bytes) -> None:
        """Some bytes in the turn's format, never none."""
        ...

    async def refused(self, turn: "Turn[Id]", error: VivaceError) -> None:
        """Some of the text was not taken; the turn goes on without it."""
        ...

    async def over(self, turn: "Turn[Id]", ending: Ending) -> None:
        """The end, once, unless it was cancelled."""
        ...


class Turn(Generic[Id]):
    """One session on its way into one socket.

    It begins when the turns `after` which it comes are over; until then its text waits here. The
    session is opened by the turn's own task, which also takes its sound: whoever feeds the turn
    waits for neither, and `cancel` waits for nothing at all.
    """

    def __init__(
        self,
        id: Id,
        engine: "Engine",
        request: SpeechRequest,
        output: Output,
        workers: Workers,
        sink: Sink[Id],
        *,
        story: Story,
        reference: Reference | None = None,
        most_chars: int,
        after: "Iterable[Turn[Id]]" = (),
    ) -> None:
        self.id: Id = id
        self.request, self.output = request, output
        self.sink: Sink[Id] = sink
        self.story = story
        story.manner(output, request.voice)
        self.ended = False  # no more text comes
        self.over = asyncio.Event()
        self.sent_s = 0.0  # of sound
        self.first_s: float | None = None  # when the first of it was sent, on perf_counter
        self._engine, self._workers, self.reference = engine, workers, reference
        self._session: Session | None = None
        self._waiting: list[str | None] = []  # text before the session is open; None is a flush
        self._chars, self._most_chars = 0, most_chars
        self._in_order = asyncio.Lock()  # text is passed on in the order it came
        self._fault: VivaceError | None = None
        self._task = asyncio.create_task(self._run(list(after)))

    async def append(self, text: str) -> None:
        """More text. Raises as `Session.append` does; then the text so far stands."""
        self._chars += len(text)
        if self._chars > self._most_chars:
            self._chars -= len(text)
            raise Unprocessable(
                f"a turn takes {self._most_chars:,} characters", param="text", code="text_too_long"
            )
        self.story.words(text)
        async with self._in_order:
            if self._session is None:
                self._waiting.append(text)
            else:
                await self._pass_on(self._session, text)

    async def flush(self) -> None:
        """Speak what has come without waiting for more. Raises as `Session.flush` does."""
        async with self._in_order:
            if self._session is None:
                self._waiting.append(None)
            else:
                await self._pass_on(self._session, None)

    async def end(self) -> None:
        """No more text comes. What is wrong with the text's end is in the turn's ending."""
        async with self._in_order:
            self.ended = True
            if self._session is not None:
                self._end(self._session)

    def cancel(self) -> None:
        """Stop at once: no byte of it is written after this. Its sink hears no end."""
        self._task.cancel()
        if self._session is not None:
            self._session.cancel()
        self.over.set()
        self.story.end(FinishReason.CANCELLED)

    @property
    def begun(self) -> bool:
        """Has any of its sound been sent?"""
        return self.first_s is not None

    @property
    def played_s(self) -> float:
        """The most that somebody who plays the sound as it comes can have heard."""
        since_s = 0.0 if self.first_s is None else time.perf_counter() - self.first_s
        return min(self.sent_s, since_s)

    async def _pass_on(self, session: "Session", text: str | None) -> None:
        if text is None:
            session.flush()
        else:
            await self._workers.run(session.append, text, aside=len(text) > LONG_TEXT)

    def _end(self, session: "Session") -> None:
        try:
            session.end()
        except VivaceError as error:
            self._fault = error

    async def _run(self, after: "list[Turn[Id]]") -> None:
        """Speak, then say how it ended; on any way out the session is given back."""
        try:
            while after:
                await after.pop().over.wait()
            ending = await self._spoken()
            await self.sink.over(self, ending)
            self.story.end(ending.reason, ending.done, ending.error)
        except Gone:
            pass
        finally:
            self.story.end(FinishReason.CANCELLED)
            self._waiting.clear()
            if self._session is not None:
                self._session.cancel()
            self.over.set()

    async def _spoken(self) -> Ending:
        try:
            session = await self._begin()
            done = await self._speak(session)
        except (Gone, asyncio.CancelledError):
            raise
        except Exception as error:
            if not isinstance(error, VivaceError):
                log.exception("a turn failed")
            return self._ending(FinishReason.ERROR, self._fault or error)
        return self._ending(done.reason)

    def _ending(self, reason: FinishReason, error: BaseException | None = None) -> Ending:
        if self._session is None:
            return Ending(reason, None, [], error)
        return Ending(reason, self._session.done, self._session.skipped, error)

    async def _begin(self) -> "Session":
        """Open the session, with its clip's voice, and pass on what has come so far."""
        request, _ = await self._workers.cloned(self._engine, self.request, self.reference)
        async with self._in_order:
            self._session = session = self._engine.open(request)
            for text in self._waiting:
                try:
                    await self._pass_on(session, text)
                except InvalidRequest as error:
                    await self.sink.refused(self, error)
            self._waiting.clear()
            if self.ended:
                self._end(session)
        return session

    async def _speak(self, session: "Session") -> Done:
        """Send the sound as it is made."""
        voiced = await Voiced.around(session, self.output, self._workers)
        self.story.voiced = voiced
        try:
            if self.output.whole:
                rest, done = await voiced.whole()
            else:
                async for piece in voiced.pieces():
                    await self._send(piece, voiced.samples)
                rest, done = await voiced.last()
            if voiced.samples:  # the bytes of an empty file are no sound
                await self._send(rest, voiced.samples)
        finally:
            voiced.close()
        return done

    async def _send(self, data: bytes, samples: int) -> None:
        if data:
            await self.sink.sound(self, data)
            self.story.first_byte()
            self.first_s = self.first_s or time.perf_counter()
            self.sent_s = samples / SAMPLE_RATE / self.output.speed
