"""Where replicas say that they are there, and gates read it: one small actor."""

import logging
import time
from collections.abc import Callable
from typing import Any

import ray

from vivace.cluster.choose import Report

log = logging.getLogger("vivace")

BEAT_S = 0.25  # between two reports of a replica
SILENT_S = 2.0  # after which it is no longer counted
NAME, NAMESPACE = "vivace-board", "vivace"


class Board:
    """The newest report of each replica, with its time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: dict[str, tuple[float, Report]] = {}

    def tell(self, report: Report) -> None:
        """A replica's report."""
        self._reports[report.url] = self._clock(), report

    def leave(self, url: str) -> None:
        """A replica goes down by itself."""
        self._reports.pop(url, None)

    def read(self) -> list[Report]:
        """Those of whoever has been heard lately."""
        oldest_s = self._clock() - SILENT_S
        self._reports = {url: at for url, at in self._reports.items() if at[0] >= oldest_s}
        return [report for _, report in self._reports.values()]


def board() -> Any:
    """The actor's handle; whoever comes first makes it, and it outlives that one."""
    options = {"name": NAME, "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0}
    return ray.remote(Board).options(**options, get_if_exists=True, max_restarts=-1).remote()


class Reader:
    """Reads it for gates that are no part of Ray."""

    def __init__(self) -> None:
        self._board, self._reports = board(), list[Report]()

    def __call__(self) -> list[Report]:
        """What it says; what it said last while it is being restarted."""
        try:
            self._reports = ray.get(self._board.read.remote(), timeout=BEAT_S)
        except ray.exceptions.RayError as error:
            log.warning("the board does not answer: %s", type(error).__name__)
        return self._reports
