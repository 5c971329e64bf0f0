"""One replica: an engine of its own behind the same HTTP edge as ever, on a private port."""

import contextlib
import importlib
import logging
import os
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import ray

from vivace.cluster.board import BEAT_S, board
from vivace.cluster.choose import Report
from vivace.cluster.options import Options
from vivace.engine import Engine
from vivace.errors import EngineFailure
from vivace.host import Build
from vivace.logs import log_to_stderr
from vivace.remote.lives import Lives
from vivace.server.app import create_app
from vivace.server.clips import most_body
from vivace.server.names import model_names
from vivace.server.serve import Server, address_of, bind, settle
from vivace.session import Session
from vivace.types import SpeechRequest

SLACK_S = 5  # beyond the grace for streams, until a replica is ended


class Counted(Engine):
    """An engine that counts who speaks."""

    spoken: Counter[str]

    def open(self, request: SpeechRequest | None = None) -> Session:
        """Open a session, and count its voice."""
        session = super().open(request)
        self.spoken[session.request.voice or ""] += 1
        return session


def build_of(path: str) -> Build | None:
    """The function that `module:function` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name) if path else None


class Speech:
    """What Ray Serve starts on each card. It has no method to call: gates speak HTTP with it."""

    def __init__(self, options: Options) -> None:
        log_to_stderr(logging.INFO, options.start.log_format)
        # TLS is the gate's business.
        config = replace(options.server, tls_cert=None, tls_key=None)
        start, device = options.start, options.engine.device
        if device == "auto" and not options.gpus:
            device = "cpu"
        self._engine = Counted(
            start.models or None,
            config=replace(options.engine, device=device),
            revision=start.revision,
            offline=start.offline,
            parts=build_of(options.build),
            host=Lives,
        )
        self._engine.spoken = Counter()
        sock = bind(options.inside or _own_address(), 0, config.stall_s)
        self.url = address_of(sock)
        opened = threading.Event()
        app = create_app(self._engine, config, draining=lambda: self._server.should_exit)
        most = most_body(self._engine, config.limits)
        self._server = Server(app, config, opened.set, lambda: self._engine.lost, most_message=most)
        settle()
        self._edge = threading.Thread(
            target=self._server.run, kwargs={"sockets": [sock]}, name="vivace-edge", daemon=True
        )
        self._edge.start()
        opened.wait()
        self._board, self._gone = board(), threading.Event()
        self._count, self._crowded_s = 0, None
        self._tell()
        self._beat = threading.Thread(target=self._beats, name="vivace-beat", daemon=True)
        self._beat.start()

    _crowded_s: float | None  # since when somebody has been waiting

    def _report(self) -> Report:
        stats = self._engine.stats()
        self._count += 1
        if not stats.waiting:
            self._crowded_s = None
        elif self._crowded_s is None:
            self._crowded_s = time.monotonic()
        return Report(
            self.url,
            self._count,
            self._engine.ready and not self._server.should_exit,
            stats.slots_total,
            stats.active,
            stats.waiting,
            tuple(model_names([model.model_id for model in self._engine.models])),
            dict(self._engine.spoken),
            os.getpid(),
        )

    def _tell(self) -> None:
        self._board.tell.remote(self._report())

    def _beats(self) -> None:
        while not self._gone.wait(BEAT_S):
            with contextlib.suppress(ray.exceptions.RayError):  # the board is being restarted
                self._tell()

    # What Ray Serve asks.

    def check_health(self) -> None:
        """Raises EngineFailure if the replica is to be replaced."""
        if self._engine.lost is not None:
            raise EngineFailure(f"the engine is lost: {self._engine.lost.message}")
        if not self._edge.is_alive():
            raise EngineFailure("the edge has ended")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """How full it is, and for how long somebody has been waiting."""
        stats, since_s = self._engine.stats(), self._crowded_s
        wait_s = 0.0 if since_s is None else time.monotonic() - since_s
        return {"load": (stats.active + stats.waiting) / stats.slots_total, "wait_s": wait_s}

    def __del__(self) -> None:
        """Going down: no new request, those that speak are finished within the grace."""
        if not hasattr(self, "_beat"):
            return  # it never came up
        self._gone.set()
        self._beat.join()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._board.leave.remote(self.url))
        self._server.should_exit = True
        self._edge.join()
        self._engine.close()


def _own_address() -> str:
    """The node's, as Ray knows it."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def actor_options(options: Options) -> dict[str, Any]:
    """What Ray sets aside for one."""
    return {"num_gpus": options.gpus, "num_cpus": options.cpus}
