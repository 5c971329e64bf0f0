"""A loop in a process of its own that is replaced when it ends, or hangs.

Owner of the process that runs now. What was open when one ends has ended with it; who comes until
the next one is ready is told when to come back. A process that ends too often, or with an error
that its successor would meet as well, is replaced no more: then `lost` says why.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import StrEnum
from typing import Final

from vivace import turns
from vivace.config import EngineConfig
from vivace.errors import DeviceLost, EngineFailure, Unavailable, VivaceError
from vivace.host import Build, Known, OnDone, Pulse, Readings
from vivace.remote import near
from vivace.remote.near import LoopProcess, Worker
from vivace.session import Session
from vivace.types import Clip, Clone

log = logging.getLogger("vivace")

LOOK_S = 1.0  # between two looks at the heartbeat
LATE_LOOKS = 2  # in a row: one alone may be this process's own pause


class Life(StrEnum):
    """Where it stands."""

    RUNNING = "running"
    RESTARTING = "restarting"
    LOST = "lost"  # for a supervisor to replace all of it
    CLOSED = "closed"


class Event(StrEnum):
    """What happens to it."""

    ENDED = "ended"  # the process, however it did
    READY = "ready"  # the next one
    GIVEN_UP = "given up"
    CLOSING = "closing"


LIFE: Final[Mapping[tuple[Life, Event], Life]] = {
    (Life.RUNNING, Event.ENDED): Life.RESTARTING,
    (Life.RESTARTING, Event.READY): Life.RUNNING,
    (Life.RESTARTING, Event.GIVEN_UP): Life.LOST,
    **{(life, Event.CLOSING): Life.CLOSED for life in Life},
    **{(Life.CLOSED, event): Life.CLOSED for event in Event},
}


class Lives:
    """A `LoopHost` that outlives its process."""

    def __init__(
        self,
        build: Build,
        config: EngineConfig,
        clock: Callable[[], float],
        on_done: OnDone,
        *,
        spawn: Callable[[str, Build, EngineConfig], Worker] = near.spawn,
    ) -> None:
        self._build, self._config, self._clock, self._on_done = build, config, clock, on_done
        self._spawn = spawn
        self._lock = threading.Lock()  # around the state and the worker that loads
        self._worker: Worker | None = None
        self._ends: deque[float] = deque()  # when processes have ended, on the wall's clock
        self.life, self.restarts = Life.RUNNING, 0
        self.lost: VivaceError | None = None
        self._load_s = self._loading_s = 0.0
        self._process = self._start()
        self._watcher = threading.Thread(target=self._watch, name="vivace-watch", daemon=True)
        self._watcher.start()

    def _start(self) -> LoopProcess:
        self._loading_s = time.monotonic()
        process = LoopProcess(
            self._build, self._config, self._clock, self._on_done, spawn=self._spawn_unless_closed
        )
        self._load_s = time.monotonic() - self._loading_s
        return process

    def _spawn_unless_closed(self, folder: str, build: Build, config: EngineConfig) -> Worker:
        with self._lock:
            if self.life is Life.CLOSED:
                raise Unavailable("the engine is closed")
            self._worker = self._spawn(folder, build, config)
            return self._worker

    @property
    def known(self) -> Known:
        """What the process that runs now, or ran last, serves."""
        return self._process.known

    @property
    def pulse(self) -> Pulse:
        """How that one goes."""
        return self._process.pulse

    @property
    def readings(self) -> Readings:
        """What that one has measured: counts begin anew with each process."""
        return self._process.readings

    @property
    def alive(self) -> bool:
        """Does it run?"""
        return self.life is Life.RUNNING and self._process.alive

    @property
    def restarting(self) -> bool:
        """Has a process ended, and will there be another?"""
        return self.life is Life.RESTARTING

    def tell(self, word: turns.Word) -> None:
        """Leave word for the loop. Raises Unavailable, with a time, or EngineFailure for a turn."""
        try:
            self._process.tell(word)
        except Unavailable as error:
            raise self._not_now() from error

    def _not_now(self) -> VivaceError:
        """Why nothing is taken, and for how long."""
        if self.lost is not None:
            return self.lost
        left_s = max(1.0, self._load_s - (time.monotonic() - self._loading_s))
        return Unavailable("the engine is being restarted", code="restarting", retry_after_s=left_s)

    def clone(self, clip: Clip, model: int) -> "Future[Clone]":
        """Take a voice from a clip. Raises Unavailable while the loop is restarted."""
        try:
            return self._process.clone(clip, model)
        except Unavailable as error:
            raise self._not_now() from error

    def taken(self, session: Session) -> None:
        """Pass on that a reader has made room."""
        self._process.taken(session)

    def close(self) -> None:
        """Stop the loop and wait for its end; sessions still open end with an error."""
        with self._lock:
            before = self.life
            self._step(Event.CLOSING)
            if before is Life.RESTARTING and self._worker is not None:
                self._worker.kill()  # one that loads hears nothing
        if before is Life.RUNNING:
            self._process.close()  # else the watcher has done that
        self._watcher.join()

    def _step(self, event: Event) -> None:
        self.life = LIFE[self.life, event]

    # The watcher's thread.

    def _watch(self) -> None:
        while self.life is Life.RUNNING:
            self._await_end()
            with self._lock:
                self._step(Event.ENDED)
            if self.restarting:
                self._loading_s = time.monotonic()
                self._process.close()
                self._restart(self._process.lost)

    def _await_end(self) -> None:
        """Wait for it; a process that hangs is ended."""
        late = 0
        while not self._process.ended.wait(min(LOOK_S, self._config.hang_s / 4)):
            age_s = self._clock() - self._process.pulse.beat_s
            late = late + 1 if age_s > self._config.hang_s else 0
            if late == LATE_LOOKS:
                log.error("the engine has not come round for %.1f s and is ended", age_s)
                self._process.kill()

    def _restart(self, error: VivaceError | None) -> None:
        """Start the next process, or give up."""
        while self._worth_it(error):
            try:
                process = self._start()
            except VivaceError as failed:
                error = failed
                continue
            with self._lock:
                self._process = process
                self.restarts += 1
                self._step(Event.READY)
            if self.life is Life.CLOSED:
                process.close()
            else:
                log.warning("the engine runs again, after %.1f s", self._load_s)
            return
        with self._lock:
            self.lost = error or EngineFailure("the engine's process has ended")
            self._step(Event.GIVEN_UP)

    def _worth_it(self, error: VivaceError | None) -> bool:
        """Is a new process to be tried after this end of one?"""
        now_s = time.monotonic()
        self._ends.append(now_s)
        while now_s - self._ends[0] > self._config.restarts_s:
            self._ends.popleft()
        if self.life is Life.CLOSED or isinstance(error, DeviceLost):
            return False
        if len(self._ends) > self._config.restarts:
            log.error("the engine has ended %d times and is started no more", len(self._ends))
            return False
        return True
