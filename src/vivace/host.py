"""Where the loop runs, as the engine sees it; here, in a thread beside its callers.

`vivace.remote` has the other place, a process of its own.
"""

import logging
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vivace import tables
from vivace.config import EngineConfig
from vivace.errors import VivaceError
from vivace.loop import Loop
from vivace.meters import Counts, Meters, Stock
from vivace.roster import Offer
from vivace.schedule.costs import Costs
from vivace.session import Session
from vivace.trace import Trace, TraceFile, Untraced
from vivace.turns import Listener, Turn, Word
from vivace.types import Clip, Clone

if TYPE_CHECKING:
    from vivace.parts import Parts
    from vivace.runtime.cloner import Cloner

log = logging.getLogger("vivace")

Build = Callable[[], "Parts"]
OnDone = Callable[[Listener], None]


@dataclass(frozen=True, slots=True)
class Known:
    """What the engine must know of the checkpoints that the loop serves."""

    offers: tuple[Offer, ...]
    sessions: int  # that it has slots for


@dataclass(frozen=True, slots=True)
class Pulse:
    """Signs of a loop's life."""

    beat_s: float  # when it last came round, on the engine's clock
    free: int  # slots
    steps: int  # since the start


@dataclass(frozen=True, slots=True)
class Readings:
    """What a loop has counted and measured since its start, and what its runner has in stock."""

    counts: Counts
    meters: Meters
    stock: Stock


def known_of(parts: "Parts", config: EngineConfig) -> Known:
    """What the edge gets to know of them."""
    return Known(offers_of(parts), config.max_sessions)


def offers_of(parts: "Parts") -> tuple[Offer, ...]:
    """The models, in the order of their numbers."""
    first = Offer(parts.model_id, parts.spec, parts.tokenizer)
    return (first, *(beside.offer for beside in parts.beside))


def cloners_of(parts: "Parts") -> "list[Cloner | None]":
    """What takes voices from clips, of each model that does."""
    return [parts.cloner, *(beside.cloner for beside in parts.beside)]


def fitted(config: EngineConfig, parts: "Parts") -> EngineConfig:
    """With no more sessions than the device holds."""
    return config if parts.sessions is None else replace(config, max_sessions=parts.sessions)


def costs_of(parts: "Parts", config: EngineConfig) -> Costs:
    """What steps of these parts cost, to begin with: as timed now, corrected as learned before."""
    first, *others = (_learned(parts, offer, config) for offer in offers_of(parts))
    costs = Costs(parts.costs, config.profile, first)
    for model, (beside, learned) in enumerate(zip(parts.beside, others, strict=True), 1):
        if beside.costs is not None:
            costs.add(model, beside.costs, learned)
    return costs


def _learned(parts: "Parts", offer: Offer, config: EngineConfig) -> dict[str, float]:
    file = _costs_file(parts.device, offer, config)
    return {} if file is None else tables.learned(file)


def keep_costs(parts: "Parts", config: EngineConfig, costs: Costs) -> None:
    """Write them down for the next start, if they are to be kept."""
    for model, offer in enumerate(offers_of(parts)):
        if (file := _costs_file(parts.device, offer, config)) is None:
            return
        if model not in costs.tokens:  # it has not been in memory
            continue
        try:
            learned = costs.learned(model)
            about = {"device": parts.device, "model": offer.model_id, "learned": learned}
            tables.write(file, costs.tokens[model].table, **about)
        except OSError as error:
            log.warning("the costs are not kept: %s", error)


def _costs_file(device: str, offer: Offer, config: EngineConfig) -> Path | None:
    if config.costs_dir is None:
        return None
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{device} {offer.model_id}").strip("-")
    return config.costs_dir / f"{name}.json"


def trace_of(config: EngineConfig) -> Trace:
    """Where the loop's decisions are written down."""
    return Untraced() if config.trace is None else TraceFile(config.trace)


def pulse_of(loop: Loop) -> Pulse:
    """How it goes now."""
    return Pulse(loop.beat_s, len(loop.free), loop.counts.steps)


def readings_of(loop: Loop) -> Readings:
    """All it has measured. A runner without a `stock` has none to tell of."""
    stock: Callable[[], Stock] = getattr(loop.runner, "stock", Stock)
    return Readings(loop.counts, loop.meters, stock())


class LoopHost(Protocol):
    """A loop that is loaded, warm and running. All methods are for any thread."""

    @property
    def known(self) -> Known:
        """What it serves."""
        ...

    @property
    def alive(self) -> bool:
        """Does it run?"""
        ...

    @property
    def restarting(self) -> bool:
        """Has it ended, and will it run again by itself?"""
        ...

    @property
    def restarts(self) -> int:
        """How often it has been restarted."""
        ...

    @property
    def lost(self) -> VivaceError | None:
        """What has ended it for good, if that was nobody's wish."""
        ...

    @property
    def pulse(self) -> Pulse:
        """How it goes, as far as is known here."""
        ...

    @property
    def readings(self) -> Readings:
        """What it has measured, as far as is known here: a second ago or two."""
        ...

    def tell(self, word: Word) -> None:
        """Leave word for the loop. Raises Unavailable for a new turn if it runs no more."""
        ...

    def taken(self, session: Session) -> None:
        """Pass on that a reader has made room."""
        ...

    def clone(self, clip: Clip, model: int) -> "Future[Clone]":
        """Take a voice from a clip, checked, for a model that can; where the loop runs, beside it.

        Raises Overloaded where many wait.
        """
        ...

    def close(self) -> None:
        """Stop the loop and wait for its end; sessions still open end with an error."""
        ...


class MakeHost(Protocol):
    """Starts a host; returns once its loop is ready, or raises what kept it from that.

    `build` is called where the loop runs; `on_done` once for each turn, before its terminal event.
    """

    def __call__(
        self, build: Build, config: EngineConfig, clock: Callable[[], float], on_done: OnDone, /
    ) -> LoopHost:
        """Start it."""
        ...


class LoopThread:
    """The loop in a thread of this process. Once it has broken it stays so: make another engine."""

    restarting, restarts = False, 0

    def __init__(
        self, build: Build, config: EngineConfig, clock: Callable[[], float], on_done: OnDone
    ) -> None:
        self.lost: VivaceError | None = None
        parts = build()
        config = fitted(config, parts)
        self.known, self._cloners = known_of(parts, config), cloners_of(parts)
        self._costs = costs_of(parts, config)
        self._keep = partial(keep_costs, parts, config, self._costs)
        self._loop = Loop(parts.runner, config, clock, on_done, self._costs, trace=trace_of(config))
        self._ending = threading.Lock()  # whoever is told comes before the end, or is refused
        self._thread = threading.Thread(target=self._run, name="vivace-engine", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._loop.run()
        with self._ending:
            self._loop.dismiss()
            self.lost = self._loop.broken

    @property
    def alive(self) -> bool:
        """Does it run?"""
        return self._thread.is_alive() and self.lost is None

    @property
    def pulse(self) -> Pulse:
        """How it goes now."""
        return pulse_of(self._loop)

    @property
    def readings(self) -> Readings:
        """What it has measured until now."""
        return readings_of(self._loop)

    def tell(self, word: Word) -> None:
        """Leave word for the loop. Raises EngineFailure for a new turn after a failure."""
        with self._ending:
            if self.lost is not None and isinstance(word, Turn):
                raise self.lost
            self._loop.tell(word)

    def taken(self, session: Session) -> None:
        """Let a paused session go on; how much was taken the loop sees for itself."""
        self._loop.wake()

    def clone(self, clip: Clip, model: int) -> "Future[Clone]":
        """Take a voice from a clip."""
        cloner = self._cloners[model]
        assert cloner is not None
        return cloner.submit(clip)

    def close(self) -> None:
        """Stop the loop and wait for its end."""
        for cloner in filter(None, self._cloners):
            cloner.close()
        self._loop.stopping = True
        self._loop.wake()
        self._thread.join()
        self._keep()
