"""The engine as callers see it: load a checkpoint, open sessions, close. Safe from any thread."""

import itertools
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Self

from vivace.config import EngineConfig
from vivace.errors import Overloaded, Unavailable, Unprocessable, VivaceError
from vivace.host import Build, LoopThread, MakeHost, Readings
from vivace.model.spec import ModelSpec
from vivace.resolve import check_clip, resolve
from vivace.roster import Models, Offer, Wish, choose, wish_of
from vivace.schedule.track import Track
from vivace.session import Session
from vivace.text.intake import Intake
from vivace.text.prompt import Script
from vivace.trace import check_trace
from vivace.turns import Cancel, Listener, More, Turn
from vivace.types import Clip, Clone, Sampling, SpeechRequest, Voice

if TYPE_CHECKING:
    from vivace.parts import Parts


@dataclass(frozen=True, slots=True)
class Stats:
    """What is in use now."""

    slots_total: int
    slots_free: int
    active: int  # sessions with a slot
    waiting: int  # sessions without one
    steps: int  # since the start


def _load(model: Models, config: EngineConfig, revision: str | None, offline: bool) -> "Parts":
    from vivace.parts import load_parts  # brings torch: only where the loop runs

    return load_parts(model, config, revision=revision, offline=offline)


class Engine:
    """Speech from text, for many sessions at a time.

    Loads a checkpoint (a directory, a hub id, or None for the embedded one) or a list of them,
    warms up and starts its loop, in a thread or where else `host` runs it; ready when the
    constructor returns. Close it, or use it as a context manager. Of several checkpoints each
    request finds its own: `vivace.roster.choose` says how.

    Raises CheckpointError if a checkpoint cannot be used or they do not fit, OSError if the trace
    cannot be written.
    """

    def __init__(
        self,
        model: Models = None,
        *,
        config: EngineConfig | None = None,
        revision: str | None = None,
        offline: bool = False,
        parts: "Parts | Build | None" = None,
        clock: Callable[[], float] = time.monotonic,
        host: MakeHost = LoopThread,
    ) -> None:
        self.config = config or EngineConfig()
        self._clock = clock
        self._admission = threading.Lock()
        self._names = itertools.count(1)
        self._held = 0  # sessions opened and not yet done
        self._closed = False
        if self.config.trace is not None:
            check_trace(self.config.trace)  # before the long work of loading
        build: Build = partial(_load, model, self.config, revision, offline)
        if parts is not None:
            build = parts if callable(parts) else lambda: parts
        self._host = host(build, self.config, clock, self._done)
        self.models = self._host.known.offers
        self.config = replace(self.config, max_sessions=self._host.known.sessions)

    # What callers see, from any thread.

    @property
    def model_id(self) -> str:
        """The name of the first model."""
        return self.models[0].model_id

    @property
    def spec(self) -> ModelSpec:
        """The first model's shapes and ids."""
        return self.models[0].spec

    @property
    def voices(self) -> list[Voice]:
        """The named voices of all models; of two with the same name, that of the one listed first.

        Each of `models` has its own.
        """
        found: dict[str, Voice] = {}
        for voice in chain.from_iterable(model.voices for model in self.models):
            found.setdefault(voice.id, voice)
        return list(found.values())

    @property
    def languages(self) -> list[str]:
        """The first model's languages, without the dialects that come with a voice."""
        return self.models[0].languages

    @property
    def defaults(self) -> Sampling:
        """The first model's own sampling defaults."""
        return self.models[0].defaults

    @property
    def ready(self) -> bool:
        """Does it take requests?"""
        return not self._closed and self._host.alive

    @property
    def alive(self) -> bool:
        """Is its loop there, in whatever state?"""
        return self._host.alive

    @property
    def restarting(self) -> bool:
        """Has its loop ended, and is another being started?"""
        return self._host.restarting

    @property
    def restarts(self) -> int:
        """How often that has been so."""
        return self._host.restarts

    @property
    def lost(self) -> VivaceError | None:
        """What has ended it for good, if that was not `close`."""
        return self._host.lost

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the loop last came round."""
        return self._clock() - self._host.pulse.beat_s

    def stats(self) -> Stats:
        """What is in use now."""
        total, pulse = self._host.known.sessions, self._host.pulse
        active = total - pulse.free
        return Stats(total, pulse.free, active, max(0, self._held - active), pulse.steps)

    @property
    def readings(self) -> Readings:
        """What its loop has counted and measured, a second ago or two."""
        return self._host.readings

    def open(self, request: SpeechRequest | None = None) -> Session:
        """Start a session.

        Raises NotFound for a voice or a model, Unprocessable for what the checkpoint cannot do,
        Overloaded when every slot and every place in the queue is taken, Unavailable after `close`
        and while the loop is restarted, EngineFailure once it has failed for good.
        """
        request = request or SpeechRequest()
        model = self.model_of(request)
        request = resolve(model.spec, request, self.config.limits)
        request = replace(request, model=model.model_id)
        if request.trim is None:
            request = replace(request, trim=self.config.trim)
        script = Script(model.spec, request, model.tokenizer, ahead=self.config.text_lead)
        intake = Intake(
            model.tokenizer.stream(),
            request.language,
            piece_s=self.config.piece_s or model.spec.piece_s,
            most_tokens=self._most_tokens(script),
            normalize=self.config.normalize if request.normalize is None else request.normalize,
        )
        name, most_chars = f"s{next(self._names)}", self.config.limits.text_chars
        session = Session(name, request, self, intake, most_chars=most_chars)
        sampling = request.sampling or model.defaults
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        turn = Turn(
            session, script, sampling, seed, Track(self._clock(), model=self.models.index(model))
        )
        if sampling.max_frames != model.defaults.max_frames:
            turn.most_in_all = sampling.max_frames
        self._admit(turn)
        return session

    def model_of(self, request: SpeechRequest) -> Offer:
        """The model that speaks it. Raises NotFound for one that is not here."""
        return self.models[choose(self.models, wish_of(request))]

    def _most_tokens(self, script: Script) -> int:
        """Tokens of text that fit one prompt beside what comes before them."""
        rows = len(script.head) + script.lead_frames
        most = self.config.max_context - rows - 1
        if most < 1:
            raise Unprocessable(
                f"instructions and reference fill {rows} of {self.config.max_context} positions",
                param="instructions",
            )
        return most

    def _admit(self, turn: Turn) -> None:
        room = self.config.max_sessions + self.config.max_queue
        with self._admission:  # so that `close` comes wholly before or after
            if self._closed:
                raise Unavailable("the engine is closed")
            if self._held >= room:
                raise Overloaded(f"all {room} places are taken", retry_after_s=1.0)
            self._host.tell(turn)
            self._held += 1

    def _done(self, session: Listener) -> None:
        with self._admission:
            self._held -= 1

    def say(self, text: str, request: SpeechRequest | None = None) -> Session:
        """Open a session for a whole text."""
        session = self.open(request)
        try:
            session.append(text)
            session.end()
        except Exception:
            session.cancel()
            raise
        return session

    def clone(self, clip: Clip, model: str | None = None) -> Clone:
        """Take a voice from a clip, for `SpeechRequest.clone`; waits for it.

        The `model`, by its id, is the one that is to speak with it: without, the first that can.
        Clips are encoded one at a time, beside the streams. Raises Unprocessable for a clip of
        which the checkpoint can take none, Overloaded where many wait, Unavailable after `close`.
        """
        number = choose(self.models, Wish(model=model, clone=True))
        check_clip(self.models[number].spec, clip, self.config.limits)
        if self._closed:
            raise Unavailable("the engine is closed")
        try:
            return self._host.clone(clip, number).result()
        except CancelledError:
            raise Unavailable("the engine was closed") from None

    def close(self) -> None:
        """Stop the loop; sessions still open end with an error."""
        with self._admission:
            self._closed = True
        self._host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    # What sessions ask (session.Desk).

    def text(
        self, session: Session, ids: list[int], most_frames: int | None = None, *, last: bool
    ) -> None:
        """Pass tokens on to the loop."""
        self._host.tell(More(session, ids, most_frames, last))

    def cancel(self, session: Session) -> None:
        """Pass on that nobody listens any more."""
        self._host.tell(Cancel(session, self._clock()))

    def taken(self, session: Session) -> None:
        """Pass on that a reader has made room: a paused session may go on."""
        self._host.taken(session)
