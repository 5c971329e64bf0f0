"""What becomes of each request: told once, as a line of the log and to the metrics."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivace.errors import Overloaded, VivaceError, outcome
from vivace.server.metrics import Metrics
from vivace.server.quota import Quotas
from vivace.types import Done, FinishReason

if TYPE_CHECKING:
    from vivace.server.order import Order, Output
    from vivace.server.voiced import Voiced

log = logging.getLogger(__name__)

NOBODY: Final = "-"  # the name of who shows no key
MADE: Final = "made"  # the end of a request for a voice
SLOWER: Final = 1.5  # times the recent mean: then there is a warning
ENOUGH: Final = 20  # requests before there is a mean
KEPT: Final = 1 / 32  # of each request in the mean
SHORT_S: Final = 1.0  # less sound than that is not compared: its start outweighs its length


class Pace:
    """The recent mean of what a second of sound takes, from its request to its last sound."""

    def __init__(self) -> None:
        self.mean, self._seen = 0.0, 0

    def slow(self, took: float) -> bool:
        """Is that much slower than the mean before it? It counts in the next one."""
        slow = self._seen >= ENOUGH and took > SLOWER * self.mean
        self._seen += 1
        self.mean += (took - self.mean) * max(KEPT, 1 / self._seen)
        return slow


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where stories are told."""

    metrics: Metrics
    log_text: bool = False  # texts are in the log
    quotas: Quotas = field(default_factory=lambda: Quotas(0, 0))
    clock: Callable[[], float] = time.perf_counter
    pace: Pace = field(default_factory=Pace)


@dataclass(slots=True)
class Story:
    """One request, or one turn on a socket.

    `route` is known once the request has found it. `kind` says how its sound goes out: `stream`,
    `events`, `whole`, `batch`, `turn`; `none` if no speech was ordered.
    """

    ledger: Ledger
    id: str
    scope: Scope
    kind: str = "none"
    began_s: float = 0.0
    first_byte_s: float | None = None
    chars: int = 0
    text: list[str] = field(default_factory=list)
    voiced: "Voiced | None" = None
    told: bool = False
    counted: str | None = None  # the name in whose quota it is
    parts: int = 0
    about: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began_s = self.ledger.clock()

    @property
    def route(self) -> str:
        """The path's pattern; all that is no route is one."""
        return getattr(self.scope.get("route"), "path", "other")

    @property
    def key(self) -> str:
        """The name of the key that was shown."""
        name: str = self.scope.get("state", {}).get("key", NOBODY)
        return name

    def part(self, kind: str) -> "Story":
        """That of a turn on this socket, or of an item of this batch."""
        self.parts += 1
        return Story(self.ledger, f"{self.id}.{self.parts}", self.scope, kind)

    def admit(self) -> None:
        """Count it in its key's quota. Raises Overloaded if that is used up."""
        try:
            self.ledger.quotas.take(self.key)
        except Overloaded as error:
            why = str(error.code).removeprefix("key_")
            self.ledger.metrics.refusals.labels(self.key, why).inc()
            raise
        self.counted = self.key

    def follows(self, other: "Story") -> None:
        """Take the place of another one, whose text was taken back, in its key's quota."""
        self.counted, other.counted = other.counted, None
        other.end("cleared")

    def orders(self, order: "Order", kind: str = "") -> None:
        """Speech is ordered, with all of its text."""
        output = order.output
        self.kind = kind or ("events" if output.sse else "whole" if output.whole else "stream")
        self.manner(output, order.request.voice)
        self.words(order.text)

    def manner(self, output: "Output", voice: str | None) -> None:
        """How it will be spoken."""
        self.about |= {"format": output.format.name, "voice": voice}

    def words(self, text: str) -> None:
        """Some of the text."""
        self.chars += len(text)
        if self.ledger.log_text:
            self.text.append(text)

    def first_byte(self) -> None:
        """Some of the sound goes out."""
        if self.first_byte_s is None:
            self.first_byte_s = self.ledger.clock()

    def fail(self, error: BaseException, done: Done | None = None) -> None:
        """Tell that it came to nothing, or broke off."""
        self.end(outcome(error).label, done, error)

    def end(
        self, reason: str, done: Done | None = None, error: BaseException | None = None
    ) -> None:
        """Tell it, unless it is told: `reason` is a finish reason or an error's label."""
        if self.told:
            return
        self.told = True
        if self.counted is not None:
            self.ledger.quotas.give_back(self.counted)
        took_s = self.ledger.clock() - self.began_s
        self.ledger.metrics.request(self, reason, took_s)
        self._log(reason, done, error, took_s)
        if self.voiced is not None and reason == FinishReason.STOP and self.kind != "turn":
            self._compare(self.voiced.heard.sound_s, self.voiced.heard.last_s - self.began_s)

    def _log(
        self, reason: str, done: Done | None, error: BaseException | None, took_s: float
    ) -> None:
        about: dict[str, object] = {"request_id": self.id, "route": self.route, "kind": self.kind}
        about |= {"key": self.key, "reason": reason, **self.about, "took_ms": _ms(took_s)}
        if self.kind != "none":
            about |= {"chars": self.chars, **self._sound()}
        if done is not None:
            about |= {"frames": done.frames, "seed": done.seed, "guard": done.cut}
            about["redraws"] = done.redraws or None
        if self.text:
            about["text"] = "".join(self.text)
        if error is not None:
            seen = outcome(error)
            about |= {"status": seen.status, "param": getattr(error, "param", None)}
            about["error"] = error.message if isinstance(error, VivaceError) else repr(error)
        ours = error is not None and outcome(error).status == 500
        what = {FinishReason.CANCELLED: "left", MADE: MADE}.get(reason, "spoke")
        if error is not None:
            what = "failed" if self._sounded else "refused"
        log.log(logging.ERROR if ours else logging.INFO, what, extra={"about": about})

    @property
    def _sounded(self) -> bool:
        return self.voiced is not None and self.voiced.heard.first_s is not None

    def _sound(self) -> dict[str, object]:
        """Times from the request's arrival, and how a listener fared."""
        if self.voiced is None or self.voiced.heard.first_s is None:
            return {"audio_s": 0.0}
        heard = self.voiced.heard

        def since(at_s: float | None) -> float | None:
            return None if at_s is None else _ms(at_s - self.began_s)

        return {
            "audio_s": round(heard.sound_s, 2),
            "sound_ms": since(heard.first_s),
            "first_byte_ms": since(self.first_byte_s),
            "audible_ms": since(heard.audible_s),
            "last_ms": since(heard.last_s),
            "encode_ms": _ms(self.voiced.encode_s),
            "stalls": heard.stalls,
            "cache": self.voiced.cache,
        }

    def _compare(self, sound_s: float, took_s: float) -> None:
        """Warn of a request that took far longer than others have, for its length."""
        pace = self.ledger.pace
        if sound_s < SHORT_S or (self.voiced is not None and self.voiced.cache == "hit"):
            return
        took, mean = took_s / sound_s, pace.mean
        if pace.slow(took):
            about = {"request_id": self.id, "took": round(took, 3), "mean": round(mean, 3)}
            log.warning("slow: seconds to the last sound, for one of it", extra={"about": about})


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 1)


def story_of(scope: Scope) -> Story:
    """The story of the request; where nobody watches, one for the log alone."""
    state = scope.setdefault("state", {})
    story: Story | None = state.get("story")
    if story is None:
        story = state["story"] = Story(Ledger(Metrics()), state.get("request_id", "-"), scope)
    return story


@contextmanager
def admitted(scope: Scope) -> Iterator[None]:
    """What is made of a clip or a prompt counts in its key's quota as speech does.

    Raises Overloaded if that is used up. What is raised within is told by who answers it.
    """
    story = story_of(scope)
    story.admit()
    yield
    story.end(MADE)


class Watched:
    """Gives each request its story, and counts the answers."""

    def __init__(self, app: ASGIApp, ledger: Ledger) -> None:
        self._app, self._ledger = app, ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        state = scope.setdefault("state", {})
        story = state["story"] = Story(self._ledger, state["request_id"], scope)
        if scope["type"] == "websocket":
            with self._ledger.metrics.sockets.track_inprogress():
                return await self._app(scope, receive, send)
        status = "none"  # the client left before there was one

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            self._ledger.metrics.answered(story, status)
            if story.counted is not None:
                story.end(FinishReason.CANCELLED)  # however it ended, unless that has been told
