"""Which replica gets a request: one that knows the voice while it is not busy, else the idlest.

Pure Python: no Ray, no clock. Owner of what a gate knows of the replicas.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vivace.errors import Unavailable

FORGIVEN = 8  # reports after which one that could not be reached is tried again


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica says of itself, a few times a second."""

    url: str
    count: int  # of its reports so far
    ready: bool
    slots: int
    active: int  # sessions with a slot
    waiting: int  # sessions without one
    models: tuple[str, ...]
    spoken: Mapping[str, int]  # sessions so far, by voice
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """What of a request matters for where it goes."""

    model: str | None = None
    voice: str | None = None


@dataclass(slots=True)
class Replica:
    """One of them, as a gate sees it."""

    report: Report
    load: int = 0  # requests that this gate has under way there
    sent: int = 0  # since it is known
    back_at: int = 0  # the report from which on it may be chosen again
    given: set[str] = field(default_factory=set)  # voices that were sent there

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.report.url

    @property
    def reachable(self) -> bool:
        """Does it take requests, as far as is known?"""
        return self.report.ready and self.report.count >= self.back_at

    def knows(self, voice: str | None) -> bool:
        """Has it laid that voice down?"""
        return voice in self.report.spoken or voice in self.given


class Crowd:
    """The replicas that there are."""

    def __init__(self, lean: int) -> None:
        self.lean = lean
        self.replicas: dict[str, Replica] = {}

    def refresh(self, reports: Iterable[Report]) -> None:
        """Take the newest word of each; who says nothing any more is gone."""
        known, self.replicas = self.replicas, {}
        for report in reports:
            replica = known.get(report.url) or Replica(report)
            replica.report = report
            self.replicas[report.url] = replica

    @property
    def ready(self) -> bool:
        """Is there one that takes requests?"""
        return any(replica.reachable for replica in self.replicas.values())

    def choose(self, wish: Wish, tried: Iterable[str] = ()) -> Replica:
        """The replica for a request that those in `tried` did not take. Raises Unavailable."""
        there = [r for r in self.replicas.values() if r.reachable and r.url not in set(tried)]
        there = [r for r in there if wish.model in r.report.models] or there
        if not there:
            raise Unavailable("no replica takes requests now", code="starting", retry_after_s=2.0)
        voice, most = wish.voice, self.lean
        warm = [r for r in there if r.knows(voice) and not r.report.waiting and r.load < most]
        return min(warm or there, key=lambda r: (r.load / r.report.slots, r.sent))

    def begun(self, replica: Replica, wish: Wish) -> None:
        """A request is on its way there."""
        replica.load += 1
        replica.sent += 1
        if wish.voice is not None:
            replica.given.add(wish.voice)

    def over(self, replica: Replica) -> None:
        """It has ended."""
        replica.load -= 1

    def unreachable(self, replica: Replica) -> None:
        """It did not answer: not again, unless it goes on to report."""
        replica.back_at = replica.report.count + FORGIVEN
