"""One listener's side of the engine: text in, chunks out, from any thread or event loop."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from vivace.errors import InvalidRequest, Unprocessable
from vivace.text.cap import Cap
from vivace.text.clean import Cleaner, speakable
from vivace.text.tokenize import TokenStream
from vivace.types import Chunk, Done, SpeechRequest


class Desk(Protocol):
    """What a session may ask of its engine. Each call only leaves word for the engine's thread."""

    def text(self, session: "Session", ids: list[int], *, end: bool) -> None:
        """More tokens, and whether they were the last."""
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
        tokens: TokenStream,
        *,
        most_chars: int,
        most_tokens: int,
    ) -> None:
        self.id, self.request = id, request
        self.outbox = Outbox()
        self.prompt_ids: list[int] = []  # the text's own tokens, so far
        self.cap = Cap(request.language)  # the longest the text, so far, should sound
        self.speakable = False  # has any of it a sound
        self._desk, self._tokens, self._most_tokens = desk, tokens, most_tokens
        self._cleaner = Cleaner()
        self._chars, self._most_chars = 0, most_chars
        self._held: list[int] = []  # tokens kept back while none of them has a sound
        self._ended = False
        self._order = threading.Lock()  # appends reach the engine in the order of their calls

    @property
    def done(self) -> Done | None:
        """The terminal event, once there is one."""
        return self.outbox.done

    def append(self, text: str) -> None:
        """Add text. Any split of a text gives the same speech.

        Raises InvalidRequest for an unpaired surrogate or text after the end, Unprocessable for
        more characters than a session takes; then the text so far stands. More tokens than one
        prompt holds are Unprocessable too, and cancel the session.
        """
        with self._order:
            if self._ended:
                raise InvalidRequest("the text of this session has ended", param="input")
            self._count(text)
            self._send(self._cleaner.feed(text))

    def _count(self, text: str) -> None:
        chars = self._chars + len(text)
        if chars > self._most_chars:
            raise Unprocessable(
                f"the text has {chars} characters; at most {self._most_chars} are taken",
                param="input",
                code="text_too_long",
            )
        self._chars = chars

    def end(self) -> None:
        """No more text comes; speech goes on until it is spoken.

        Raises as `append` does, for what it had held back; the session is cancelled then.
        """
        with self._order:
            if self._ended:
                return
            self._ended = True
            try:
                self._send(self._cleaner.finish(), end=True)
            except InvalidRequest:
                self.cancel()
                raise

    def cancel(self) -> None:
        """Stop at once; sound not yet taken is thrown away."""
        self._desk.cancel(self)

    def _send(self, text: str, *, end: bool = False) -> None:
        ids = self._tokens.feed(text)
        if end:
            ids = ids + self._tokens.finish()
        self.prompt_ids += ids
        if len(self.prompt_ids) > self._most_tokens:
            self.cancel()  # part of the piece is in
            raise Unprocessable(
                f"the text has {len(self.prompt_ids)} tokens; one prompt holds "
                f"{self._most_tokens}: split it into several requests",
                param="input",
                code="text_too_long",
            )
        self.cap.add(text)
        self.speakable = self.speakable or speakable(text)
        self._held += ids
        if end or (self.speakable and self._held):
            self._desk.text(self, self._held, end=end)
            self._held = []

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
