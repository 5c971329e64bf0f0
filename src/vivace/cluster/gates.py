"""The gate's processes, one event loop each, all on one port; who starts them keeps them told.

One that dies is replaced. Its socket lives on, so whoever calls meanwhile waits.
"""

import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from vivace.cluster.board import BEAT_S
from vivace.cluster.choose import Report
from vivace.cluster.gate import Gate
from vivace.cluster.options import Options
from vivace.errors import EngineFailure
from vivace.logs import log_to_stderr
from vivace.server.serve import Server, bind, patient

log = logging.getLogger("vivace")

COUNTERS: Final = "PROMETHEUS_MULTIPROC_DIR"  # the folder in which each finds those of all
MOST_FAILED: Final = 3  # replacements in a row that end before they are open: then none ever will


def enough(replicas: int) -> int:
    """Processes for so many: two a replica, if there is room.

    A card's 150 streams a second, of 18 chunks each at 4.5 ms of a core, fill 0.7 of one. Elsewhere
    than on Linux the system does not share connections out among sockets.
    """
    if sys.platform != "linux":
        return 1
    return max(1, min(2 * replicas, len(os.sched_getaffinity(0)) // 4))


def bind_all(host: str, port: int, count: int) -> list[socket.socket]:
    """Sockets of one port, among which the system shares out connections. Raises as `bind` does.

    The first is bound alone, so that a port that anybody else has is refused.
    """
    first = bind(host, port)
    if count > 1:
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    port = first.getsockname()[1]
    return [first, *(bind(host, port, shared=True) for _ in range(count - 1))]


@dataclass(frozen=True, slots=True)
class One:
    """A process, as its parent sees it."""

    process: SpawnProcess
    pipe: Connection
    sock: socket.socket


class Gates:
    """Those that run, and what each is told when it asks. `read` gives the newest reports."""

    def __init__(
        self, options: Options, socks: Sequence[socket.socket], read: Callable[[], list[Report]]
    ) -> None:
        # Each knows of its own requests alone: all together keep the limit.
        self._options = replace(options, lean=-(-options.lean // len(socks)))
        self._socks, self._read = socks, read
        self._there: dict[Connection, One] = {}
        self._open: set[Connection] = set()
        self._failed = 0  # replacements since one was open last
        self._ending = False

    def serve(self, opened: Callable[[], None]) -> None:
        """Until SIGINT or SIGTERM; streams are finished within the grace, or a second signal.

        `opened` is called once all take requests. Raises EngineFailure if one ends before that, or
        several replacements do.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._end)
        with _counters():
            try:
                for sock in self._socks:
                    self._start(sock)
                self._feed(lambda: len(self._open) == len(self._socks), most_failed=0)
                opened()
                self._feed(lambda: False, MOST_FAILED)
            finally:
                for sock in self._socks:  # or whoever calls now would wait for nobody
                    sock.close()
                for pipe in self._there:
                    pipe.close()
                for one in self._there.values():
                    one.process.join()

    def _end(self, sig: int, frame: FrameType | None) -> None:
        if self._ending:
            for one in self._there.values():
                one.process.kill()
        else:
            wait_s = self._options.server.drain_s
            log.warning("finishing what has begun, up to %s s; once more to stop now", wait_s)
        self._ending = True

    def _start(self, sock: socket.socket) -> None:
        spawn = get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=work, args=(self._options, sock, theirs))
        process.start()
        theirs.close()  # so that its end is seen here
        self._there[ours] = One(process, ours, sock)

    def _feed(self, done: Callable[[], bool], most_failed: int) -> None:
        """Tell whoever asks, until then or until the end."""
        while not (self._ending or done()):
            for pipe in wait(list(self._there), BEAT_S):
                assert isinstance(pipe, Connection)
                try:
                    if pipe.recv() and pipe not in self._open:
                        self._open.add(pipe)
                        self._failed = 0
                    pipe.send(self._read())
                except (EOFError, OSError):
                    self._replace(self._there.pop(pipe), most_failed)

    def _replace(self, one: One, most_failed: int) -> None:
        one.pipe.close()
        one.process.kill()  # if it has only stopped asking
        one.process.join()
        mark_process_dead(one.process.pid)  # type: ignore[no-untyped-call]
        self._failed += one.pipe not in self._open
        self._open.discard(one.pipe)
        if self._failed > most_failed:
            raise EngineFailure("a process of the gate has ended before it was open")
        if not self._ending:
            log.error("a process of the gate has ended (%s): another follows", one.process.exitcode)
            self._start(one.sock)


@contextmanager
def _counters() -> Iterator[None]:
    """A folder for those of all processes; those of one that has died count on."""
    with TemporaryDirectory(prefix="vivace-gates-") as folder:
        os.environ[COUNTERS] = folder
        try:
            yield
        finally:
            del os.environ[COUNTERS]


class Told:
    """What the parent has said last. It is asked all the time; its silence is the end."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._ask(opened=False)

    def _ask(self, *, opened: bool) -> None:
        self._pipe.send(opened)
        self._reports: list[Report] = self._pipe.recv()

    async def read(self) -> list[Report]:
        """The replicas' newest reports."""
        return self._reports

    def follow(self, server: Server) -> None:
        """Ask until nobody answers; the server then finishes what has begun."""
        with suppress(EOFError, OSError):
            while True:
                time.sleep(BEAT_S)
                self._ask(opened=server.started)
        server.should_exit = True


def work(options: Options, sock: socket.socket, pipe: Connection) -> None:
    """One of the processes. Its `/metrics` has the counters of all."""
    os.setpgid(0, 0)  # Ctrl-C is for the parent
    log_to_stderr(logging.INFO, options.start.log_format)
    told, counters = Told(pipe), CollectorRegistry()
    MultiProcessCollector(counters)  # type: ignore[no-untyped-call]
    gate = Gate(options, told.read, counters)
    app = patient(gate.app, lambda: server.should_exit)
    server: Server = Server(
        app, options.server, lambda: None, lifespan="on", most_message=gate.limit
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, server.handle_exit)
    threading.Thread(target=told.follow, args=[server], daemon=True).start()
    gc.collect()
    gc.freeze()
    server.run(sockets=[sock])
