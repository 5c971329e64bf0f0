"""One listener's side of the engine: text in, chunks out, from any thread or event loop."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from vivace.errors import InvalidRequest, Unprocessable
from vivace.text.intake import Intake, Words
from vivace.types import Chunk, Done, SpeechRequest


class Desk(Protocol):
    """What a session may ask of its engine. Each call only leaves word for the engine's thread."""

    def text(
        self, session: "Session", ids: list[int], most_frames: int | None = None, *, last: bool
    ) -> None:
        """More tokens of a piece.

        `most_frames` says that the piece ends with them, and how long it may sound; `last` that
        the text does.
        """
        ...

    def cancel(self, session: "Session") -> None:
        """Nobody listens any more."""
        ...

    def taken(self, session: "Session") -> None:
        """A reader has made room."""
        ...


class Outbox:
    """Chunks on their way to the reader, then one terminal event.

    Bounded by the scheduler, which stops making sound for a reader that is too far behind.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._chunks: deque[Chunk] = deque()
        self._listeners: list[Callable[[], None]] = []
        self.done: Done | None = None
        self.taken_frames = 0

    def put(self, chunk: Chunk) -> None:
        """Add a chunk; after the end there is nobody to hear it."""
        with self._changed:
            if self.done is None:
                self._chunks.append(chunk)
                self._tell()

    def finish(self, done: Done, *, drop: bool = False) -> None:
        """Set the terminal event, once; `drop` throws away what has not been taken."""
        with self._changed:
            if self.done is None:
                self.done = done
                if drop:
                    self._chunks.clear()
                self._tell()

    def _tell(self) -> None:
        self._changed.notify_all()
        for wake in self._listeners:
            wake()

    def take(self) -> Chunk | None:
        """The next chunk, if there is one now."""
        with self._changed:
            if not self._chunks:
                return None
            chunk = self._chunks.popleft()
            self.taken_frames += len(chunk.codes)
            return chunk

    @property
    def exhausted(self) -> bool:
        """Is the terminal event the next thing a reader meets?"""
        with self._changed:
            return self.done is not None and not self._chunks

    def wait(self) -> None:
        """Block until there is a chunk or the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self.done is not None)

    async def wait_async(self) -> None:
        """Wait in an event loop until there is a chunk or the end."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(changed.set)

        with self._changed:
            if self._chunks or self.done is not None:
                return
            self._listeners.append(wake)
        try:
            await changed.wait()
        finally:
            with self._changed:
                self._listeners.remove(wake)


class Session:
    """Text in with `append` and `end`, sound out by iterating, `cancel` at any time.

    Iterating ends after the terminal event, which is then in `done`; it raises that event's error
    if it has one. All methods may be called from any thread.
    """

    def __init__(
        self,
        id: str,
        request: SpeechRequest,
        desk: Desk,
        intake: Intake,
        *,
        most_chars: int,
    ) -> None:
        self.id, self.request = id, request
        self.outbox = Outbox()
        self._desk, self._intake = desk, intake
        self._chars, self._most_chars = 0, most_chars
        self._ended = False
        self._order = threading.Lock()  # appends reach the engine in the order of their calls

    @property
    def done(self) -> Done | None:
        """The terminal event, once there is one."""
        return self.outbox.done

    @property
    def prompt_ids(self) -> list[int]:
        """The text's own tokens, so far."""
        return self._intake.ids

    @property
    def skipped(self) -> list[str]:
        """What of the text, so far, nobody can speak: pieces without a sound, emoji."""
        return self._intake.skipped

    def append(self, text: str) -> None:
        """Add text. Any split of a text gives the same speech.

        Raises InvalidRequest for an unpaired surrogate or text after the end, Unprocessable for
        more characters than a session takes and, where text is normalised, for SSML; then the
        text so far stands. Unprocessable from then on for a piece over one prompt.
        """
        with self._order:
            if self._ended:
                raise InvalidRequest("the text of this session has ended", param="input")
            self._count(text)
            self._send(self._intake.feed(text))

    def _count(self, text: str) -> None:
        chars = self._chars + len(text)
        if chars > self._most_chars:
            raise Unprocessable(
                f"the text has {chars} characters; at most {self._most_chars} are taken",
                param="input",
                code="text_too_long",
            )
        self._chars = chars

    def flush(self) -> None:
        """Speak all that has come without waiting for more; later text begins a new piece.

        Raises as `append` does, for what it had held back.
        """
        with self._order:
            if not self._ended:
                self._send(self._intake.flush())

    def end(self) -> None:
        """No more text comes; speech goes on until it is spoken.

        Raises as `append` does, for what it had held back; the session is cancelled then.
        """
        with self._order:
            if self._ended:
                return
            self._ended = True
            try:
                self._send(self._intake.finish(), last=True)
            except InvalidRequest:
                self.cancel()
                raise

    def cancel(self) -> None:
        """Stop at once; sound not yet taken is thrown away."""
        self._desk.cancel(self)

    def _send(self, words: list[Words], *, last: bool = False) -> None:
        for some in words:
            self._desk.text(self, some.ids, some.most_frames, last=last and some is words[-1])
        if last and not words:
            self._desk.text(self, [], last=True)

    def __iter__(self) -> Iterator[Chunk]:
        while (chunk := self._next()) is not None or not self.outbox.exhausted:
            if chunk is None:
                self.outbox.wait()
            else:
                yield chunk
        self._raise()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while (chunk := self._next()) is not None or not self.outbox.exhausted:
            if chunk is None:
                await self.outbox.wait_async()
            else:
                yield chunk
        self._raise()

    def _next(self) -> Chunk | None:
        chunk = self.outbox.take()
        if chunk is not None:
            self._desk.taken(self)
        return chunk

    def _raise(self) -> None:
        if self.done is not None and self.done.error is not None:
            raise self.done.error
