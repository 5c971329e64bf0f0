"""Where the loop runs, as the engine sees it; here, in a thread beside its callers.

`vivace.remote` has the other place, a process of its own.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from vivace.config import EngineConfig
from vivace.loop import Listener, Loop, Word
from vivace.model.spec import ModelSpec
from vivace.schedule.costs import Costs
from vivace.session import Session
from vivace.text.tokenize import Tokenizer
from vivace.trace import Note, TraceFile, no_note

if TYPE_CHECKING:
    from vivace.parts import Parts

Build = Callable[[], "Parts"]
OnDone = Callable[[Listener], None]


@dataclass(frozen=True, slots=True)
class Known:
    """What the engine must know of the checkpoint that the loop serves."""

    model_id: str
    spec: ModelSpec
    tokenizer: Tokenizer
    sessions: int  # that it has slots for


@dataclass(frozen=True, slots=True)
class Pulse:
    """Signs of a loop's life."""

    beat_s: float  # when it last came round, on the engine's clock
    free: int  # slots
    steps: int  # since the start


def known_of(parts: "Parts", config: EngineConfig) -> Known:
    """What the edge gets to know of them."""
    return Known(parts.model_id, parts.spec, parts.tokenizer, config.max_sessions)


def fitted(config: EngineConfig, parts: "Parts") -> EngineConfig:
    """With no more sessions than the device holds."""
    return config if parts.sessions is None else replace(config, max_sessions=parts.sessions)


def costs_of(parts: "Parts", config: EngineConfig) -> Costs:
    """What steps of these parts cost, to begin with."""
    return Costs(parts.costs, config.profile)


def note_of(config: EngineConfig) -> Note:
    """Where the loop's decisions are written down."""
    return no_note if config.trace is None else TraceFile(config.trace)


def pulse_of(loop: Loop) -> Pulse:
    """How it goes now."""
    return Pulse(loop.beat_s, len(loop.free), loop.counts.steps)


class LoopHost(Protocol):
    """A loop that is loaded, warm and running. All methods are for any thread."""

    known: Known

    @property
    def alive(self) -> bool:
        """Does it run?"""
        ...

    @property
    def pulse(self) -> Pulse:
        """How it goes, as far as is known here."""
        ...

    def tell(self, word: Word) -> None:
        """Leave word for the loop. Raises Unavailable for a new turn if it runs no more."""
        ...

    def taken(self, session: Session) -> None:
        """Pass on that a reader has made room."""
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
    """The loop in a thread of this process."""

    def __init__(
        self, build: Build, config: EngineConfig, clock: Callable[[], float], on_done: OnDone
    ) -> None:
        parts = build()
        config = fitted(config, parts)
        self.known = known_of(parts, config)
        self._loop = Loop(
            parts.runner,
            config,
            clock,
            on_done,
            costs_of(parts, config),
            note=note_of(config),
        )
        self._thread = threading.Thread(target=self._loop.run, name="vivace-engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Does it run?"""
        return self._thread.is_alive()

    @property
    def pulse(self) -> Pulse:
        """How it goes now."""
        return pulse_of(self._loop)

    def tell(self, word: Word) -> None:
        """Leave word for the loop."""
        self._loop.tell(word)

    def taken(self, session: Session) -> None:
        """Let a paused session go on; how much was taken the loop sees for itself."""
        self._loop.wake()

    def close(self) -> None:
        """Stop the loop and wait for its end."""
        self._loop.stopping = True
        self._loop.wake()
        self._thread.join()
