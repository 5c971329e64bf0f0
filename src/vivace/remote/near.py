"""The edge's end of a loop in another process: sessions here, their turns there."""

import atexit
import contextlib
import itertools
import logging
import multiprocessing
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

import zmq

from vivace import logs, turns
from vivace.config import EngineConfig
from vivace.errors import EngineFailure, Unavailable, VivaceError
from vivace.host import Build, Known, OnDone, Pulse, Readings
from vivace.remote import far
from vivace.remote.messages import (
    Batch,
    Cancel,
    Encode,
    Encoded,
    Ended,
    Failed,
    FromLoop,
    More,
    Open,
    Sound,
    Started,
    Stop,
    Taken,
    ToLoop,
    decode_from_loop,
    encode,
)
from vivace.session import Session
from vivace.types import FRAME_S, Clip, Clone, Done, FinishReason

log = logging.getLogger("vivace")

STOP_S = 10  # how long a loop may take to stop
MOST_CREDIT = 32  # frames a reader takes before the loop is told: not a message a chunk
GRACE_MS = 100  # how long the last that a process has sent may take to come up


class Worker(Protocol):
    """What is asked of a `multiprocessing.Process`."""

    @property
    def sentinel(self) -> int:
        """A file descriptor that can be read once it has ended."""
        ...

    @property
    def exitcode(self) -> int | None:
        """How it ended."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


def spawn(folder: str, build: Build, config: EngineConfig) -> Worker:
    """A fresh process for the loop: one that is forked could not use the card."""
    level = logging.getLogger("vivace").getEffectiveLevel()
    process = multiprocessing.get_context("spawn").Process(
        target=far.main, args=(folder, build, config, level, logs.form()), name="vivace-engine"
    )
    process.start()
    # A program that forgets to close must end all the same: at its exit every child is waited for.
    atexit.register(process.kill)
    return process


@dataclass(slots=True)
class Line:
    """One open session."""

    session: Session
    seed: int
    frames: int = 0  # that have come
    told: int = 0  # of which the loop knows that they were taken


class LoopProcess:
    """A `LoopHost` whose loop runs in a process of its own.

    One thread reads what comes and feeds the outboxes of the sessions. If the process ends, by
    whatever cause, every session that is open ends with EngineFailure; then `ended` is set.
    """

    restarting, restarts = False, 0

    def __init__(
        self,
        build: Build,
        config: EngineConfig,
        clock: Callable[[], float],
        on_done: OnDone,
        *,
        spawn: Callable[[str, Build, EngineConfig], Worker] = spawn,
    ) -> None:
        self._on_done = on_done
        ahead = int(config.profile.ahead_s / FRAME_S)
        self._credit = max(1, min(MOST_CREDIT, ahead // 4))
        self._lines: dict[str, Line] = {}
        self._clips: dict[int, Future[Clone]] = {}  # on their way
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # around the lines and the socket for words
        self._stopping = self._lost = False
        self.lost: VivaceError | None = None  # why it has ended, if nobody told it to
        self.ended = threading.Event()
        self._context = zmq.Context()
        self._words = self._context.socket(zmq.PUSH)
        self._sounds = self._context.socket(zmq.PULL)
        self._reader = threading.Thread(target=self._read, name="vivace-sounds", daemon=True)
        # Once both ends have met, the folder has done its work.
        with tempfile.TemporaryDirectory(prefix="vivace-") as folder:
            self._sounds.set_hwm(0)
            self._sounds.bind(f"ipc://{folder}/sounds")
            self._worker = spawn(folder, build, config)
            try:
                self.known, self.pulse, self.readings = self._await_start()
                self._connect(folder)
            except BaseException:
                self._release()
                raise
        self._reader.start()

    def _await_start(self) -> tuple[Known, Pulse, Readings]:
        message = next(self._messages(), None)
        if isinstance(message, Failed):
            raise message.error
        if not isinstance(message, Started):
            raise EngineFailure(f"the engine's process ended while it loaded ({self._ended()})")
        known: Known = pickle.loads(message.known)
        return known, message.pulse, message.readings

    def _ended(self) -> str:
        self._worker.join()
        return f"exit code {self._worker.exitcode}"

    def _connect(self, folder: str) -> None:
        self._words.set_hwm(0)
        self._words.immediate = True  # writable only while the loop is there
        self._words.connect(f"ipc://{folder}/words")
        if not self._words.poll(STOP_S * 1000, zmq.POLLOUT):
            raise EngineFailure("the engine's process does not listen")

    @property
    def alive(self) -> bool:
        """Does it run?"""
        return not self._lost

    # Words out, from any thread.

    def tell(self, word: turns.Word) -> None:
        """Leave word for the loop. Raises Unavailable for a new turn if it runs no more."""
        id = word.session.id
        if isinstance(word, turns.Turn):
            self._open(word)
        elif id not in self._lines:
            return  # it has ended
        elif isinstance(word, turns.Cancel):
            self._send(Cancel(id, word.at_s))
        else:
            self._send(More(id, word.ids, word.most_frames, word.last))

    def _open(self, turn: turns.Turn) -> None:
        session = turn.session
        assert isinstance(session, Session)
        word = encode(
            Open(
                session.id,
                session.request,
                turn.sampling,
                turn.seed,
                turn.track.arrived_s,
                turn.most_in_all,
                turn.track.model,
            )
        )
        with self._lock:
            if self._lost:
                raise Unavailable("the engine's process has ended")
            self._lines[session.id] = Line(session, turn.seed)
            self._put(word)

    def taken(self, session: Session) -> None:
        """Pass on how much a reader has taken, once it is enough to be worth a message."""
        line, frames = self._lines.get(session.id), session.outbox.taken_frames
        if line is not None and frames - line.told >= self._credit:
            line.told = frames
            self._send(Taken(session.id, frames))

    def clone(self, clip: Clip, model: int) -> "Future[Clone]":
        """Take a voice from a clip. Raises Unavailable if the loop runs no more."""
        number, future = next(self._numbers), Future[Clone]()
        word = encode(Encode(number, clip, model))
        with self._lock:
            if self._lost:
                raise Unavailable("the engine's process has ended")
            self._clips[number] = future
            self._put(word)
        return future

    def _send(self, word: ToLoop) -> None:
        data = encode(word)
        with self._lock:
            self._put(data)

    def _put(self, data: bytes) -> None:
        """Send; nothing if the loop is gone, of which its sessions hear from the reader."""
        with contextlib.suppress(zmq.Again):
            if not self._words.closed:
                self._words.send(data, zmq.NOBLOCK)

    def kill(self) -> None:
        """End the process at once, as if it had crashed."""
        self._worker.kill()

    def close(self) -> None:
        """Stop the loop and wait for its end; sessions still open end with an error."""
        self._stopping = True
        self._send(Stop())
        self._worker.join(STOP_S)
        self._release()

    def _release(self) -> None:
        self._worker.kill()
        self._worker.join()
        if self._reader.ident is not None:
            self._reader.join()
        with self._lock:
            self._context.destroy(linger=0)
        atexit.unregister(self._worker.kill)

    # Sounds in, on the reader's thread.

    def _messages(self) -> Iterator[FromLoop]:
        """What comes, until the process has ended and nothing of it is left."""
        poller = zmq.Poller()
        poller.register(self._sounds, zmq.POLLIN)
        poller.register(self._worker.sentinel, zmq.POLLIN)
        while self._sounds in dict(poller.poll()) or self._sounds.poll(GRACE_MS):
            yield decode_from_loop(self._sounds.recv(copy=False).buffer)

    def _read(self) -> None:
        try:
            for message in self._messages():
                if isinstance(message, Encoded):
                    self._encoded(message)
                    continue
                if isinstance(message, Failed):
                    self.lost = message.error
                    self._send(Stop())
                    break
                assert isinstance(message, Batch)
                self.pulse = message.pulse
                self.readings = message.readings or self.readings
                for event in message.events:
                    self._publish(event)
        finally:  # whatever happens, nobody may wait for ever
            self._worker.kill()
            self._lose()

    def _encoded(self, message: Encoded) -> None:
        future = self._clips.pop(message.id)
        if message.clone is not None:
            future.set_result(message.clone)
        else:
            future.set_exception(message.error or EngineFailure("no voice came"))

    def _publish(self, event: Sound | Ended) -> None:
        line = self._lines.get(event.id)
        if line is None:
            return
        if isinstance(event, Sound):
            line.frames += len(event.chunk.codes)
            line.session.outbox.put(event.chunk)
        else:
            self._finish(line, event.done, drop=event.drop)

    def _finish(self, line: Line, done: Done, *, drop: bool = False) -> None:
        del self._lines[line.session.id]
        self._on_done(line.session)
        line.session.outbox.finish(done, drop=drop)

    def _lose(self) -> None:
        """The process has ended: so does all that was open."""
        with self._lock:  # who comes later is refused
            self._lost = True
        error: VivaceError = Unavailable("the engine was closed")
        if not self._stopping:
            self.lost = self.lost or EngineFailure("the engine's process has ended")
            log.error("the engine's process has ended (%s): %s", self._ended(), self.lost)
            error = self.lost
        while self._clips:
            self._clips.popitem()[1].set_exception(error)
        self.pulse = replace(self.pulse, free=self.known.sessions)
        for line in list(self._lines.values()):
            tokens = len(line.session.prompt_ids)
            self._finish(line, Done(FinishReason.ERROR, line.frames, tokens, line.seed, error))
        self.ended.set()
