"""A scripted stand-in for the engine: the server's tests decide when each chunk exists."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from vivace.config import EngineConfig
from vivace.engine import Stats
from vivace.errors import VivaceError
from vivace.host import Readings
from vivace.meters import Counts, Meters, Stock
from vivace.model.spec import Prints
from vivace.roster import Offer, choose, wish_of
from vivace.types import (
    SAMPLES_PER_FRAME,
    Chunk,
    Clip,
    Clone,
    Done,
    FinishReason,
    Sampling,
    SpeechRequest,
    Voice,
)

PUBLISHED_VOICES = [
    "serena",
    "vivian",
    "uncle_fu",
    "ryan",
    "aiden",
    "ono_anna",
    "sohee",
    "eric",
    "dylan",
]  # in the order of a published checkpoint
HIDDEN = 8  # of the x-vectors
LANGUAGES = [
    "chinese",
    "english",
    "german",
    "italian",
    "portuguese",
    "spanish",
    "japanese",
    "korean",
    "french",
    "russian",
]


@dataclass(slots=True)
class Play:
    """What a session does: how many chunks of one frame, and how it goes wrong."""

    chunks: int = 3
    open_gates: int | None = None  # chunks that need not wait for `allow`; None is all
    fault_at: int | None = None  # raise instead of this chunk
    fault: Exception = field(default_factory=lambda: VivaceError("scripted"))
    reason: FinishReason = FinishReason.STOP
    refusal: VivaceError | None = None  # of `say`


def sound(index: int) -> Chunk:
    """The chunk of that number, unlike every other."""
    pcm = np.full(SAMPLES_PER_FRAME, (index + 1) / 1000, dtype=np.float32)
    return Chunk(pcm, np.full((1, 16), index, dtype=np.int64))


class FakeSession:
    """Makes chunks when read, one at a time, each behind its gate if the play has gates.

    The first of them waits for something to say, the end for the end of the text.
    """

    def __init__(
        self, text: str, request: SpeechRequest, play: Play, *, ended: bool = True
    ) -> None:
        self.text, self.prompt_ids = text, [1]
        self.request = request
        self.ended, self.flushes = ended, 0
        self.skipped: list[str] = []
        self.play = play
        self.made = 0
        self.done: Done | None = None
        self.waiting = threading.Event()  # stands before a closed gate
        self.cancelled = threading.Event()
        self._allowed = play.chunks if play.open_gates is None else play.open_gates
        self._poke = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # that of its reader

    def allow(self, chunks: int) -> None:
        """Open the gate for some more chunks, from any thread."""
        self._allowed += chunks
        self._wake()

    def append(self, text: str) -> None:
        self.text += text
        self._wake()

    def flush(self) -> None:
        self.flushes += 1

    def end(self) -> None:
        self.ended = True
        self._wake()

    def cancel(self) -> None:
        if self.done is None:
            self._finish(FinishReason.CANCELLED)
        self.cancelled.set()
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._poke.set)

    def _finish(self, reason: FinishReason) -> None:
        self.done = Done(reason, self.made, len(self.text), 7)

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        self._loop = asyncio.get_running_loop()
        await self._until(lambda: self.ended or bool(self.text.strip()))
        for index in range(self.play.chunks if self.text.strip() else 0):
            await self._until(lambda index=index: self._allowed > index)
            if self.done is not None:
                return
            if index == self.play.fault_at:
                self._finish(FinishReason.ERROR)
                raise self.play.fault
            self.made += 1
            yield sound(index)
        await self._until(lambda: self.ended)
        if self.done is None:
            self._finish(self.play.reason if self.text.strip() else FinishReason.NO_AUDIO)

    async def _until(self, true: Callable[[], bool]) -> None:
        """Wait until it is, or the session is done."""
        while not true() and self.done is None:
            self._poke.clear()
            self.waiting.set()
            await self._poke.wait()
            self.waiting.clear()


class FakeEngine:
    """Looks like `vivace.Engine` to the server. It offers itself, or the `others` that are set."""

    def __init__(self, kind: str = "custom_voice", size: str = "1b7") -> None:
        self.reset(kind, size)

    def reset(self, kind: str = "custom_voice", size: str = "1b7") -> None:
        """As new, in all that a test may have set: the next one may be any."""
        self.model_id, self.config = "vivace-fake", EngineConfig()
        self.defaults = Sampling()
        self.others: list[Offer] = []
        self.spec = SimpleNamespace(
            kind=kind,
            size=size,
            prints=Prints("weights", "encoder"),
            talker=SimpleNamespace(hidden=HIDDEN),
            codebooks=16,
            codec=SimpleNamespace(codebook_size=2048),
        )
        names = PUBLISHED_VOICES if kind == "custom_voice" else []
        self.voices = [Voice(name, name.title()) for name in names]
        self.languages = list(LANGUAGES)
        self.heartbeat_age_s = 0.0
        self.ready = self.alive = True
        self.restarting, self.restarts, self.lost = False, 0, None
        self.play = Play()
        self.voice: Clone | VivaceError = Clone(np.zeros(HIDDEN, np.float32))  # of every clip
        self.clips: queue.SimpleQueue[Clip] = queue.SimpleQueue()
        self.sessions: queue.SimpleQueue[FakeSession] = queue.SimpleQueue()

    def stats(self) -> Stats:
        return Stats(4, 4, 0, 0, 0)

    @property
    def readings(self) -> Readings:
        return Readings(Counts(), Meters(), Stock())

    def clone(self, clip: Clip, model: str | None = None) -> Clone:
        self.clips.put(clip)
        if isinstance(self.voice, VivaceError):
            raise self.voice
        return self.voice

    @property
    def models(self) -> list["Offer | FakeEngine"]:
        return list(self.others) or [self]

    def model_of(self, request: SpeechRequest) -> "Offer | FakeEngine":
        return self.models[choose(self.models, wish_of(request))]  # type: ignore[arg-type]

    def say(self, text: str, request: SpeechRequest) -> FakeSession:
        return self._session(text, request, ended=True)

    def open(self, request: SpeechRequest) -> FakeSession:
        return self._session("", request, ended=False)

    def _session(self, text: str, request: SpeechRequest, *, ended: bool) -> FakeSession:
        if self.play.refusal is not None:
            raise self.play.refusal
        session = FakeSession(text, request, self.play, ended=ended)
        self.sessions.put(session)
        return session

    def next_session(self) -> FakeSession:
        """The oldest session not yet looked at; waits for it."""
        return self.sessions.get(timeout=30)
