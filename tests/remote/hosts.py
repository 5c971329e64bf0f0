"""Both places a loop may run, for tests that hold in either."""

import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe

from vivace.config import EngineConfig
from vivace.host import Build, LoopThread, MakeHost, OnDone
from vivace.remote import far
from vivace.remote.near import LoopProcess


class ThreadWorker:
    """The whole link, with the far side in a thread: where tests need both ends in their hands."""

    exitcode = 0

    def __init__(
        self, clock: Callable[[], float], folder: str, build: Build, config: EngineConfig
    ) -> None:
        self._end, self._ends = Pipe(duplex=False)
        self.sentinel = self._end.fileno()

        def run() -> None:
            far.serve(folder, build, config, clock)
            self._ends.close()

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def kill(self) -> None:
        pass


def linked(
    build: Build, config: EngineConfig, clock: Callable[[], float], on_done: OnDone
) -> LoopProcess:
    return LoopProcess(build, config, clock, on_done, spawn=partial(ThreadWorker, clock))


HOSTS: dict[str, MakeHost] = {"thread": LoopThread, "linked": linked}
BOTH: dict[str, MakeHost] = {"thread": LoopThread, "process": LoopProcess}
