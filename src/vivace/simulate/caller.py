"""Whoever calls: text at a pace, a reader at another, a listener's clock, and what became of it."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

from vivace.errors import Overloaded
from vivace.simulate.timed import PROMPT_ROWS, Clock
from vivace.text.prompt import Prompt
from vivace.types import FRAME_S, Chunk, Done


@dataclass(frozen=True, slots=True)
class Call:
    """One request to come."""

    due_s: float
    frames: int  # how long it will speak
    tokens_s: float = math.inf  # tokens of text a second; inf is all at once
    reads: float = math.inf  # seconds of sound the reader takes a second; inf is at once
    leaves_s: float | None = None  # hangs up so long after its first sound
    model: int = 0  # that is to speak


@dataclass(slots=True)
class Heard:
    """What became of one call."""

    due_s: float
    first_s: float | None = None  # when sound came
    refused_s: float | None = None  # when it was sent away
    retry_after_s: float = 0.0
    stalls: int = 0  # times its listener fell silent for want of sound, text being there
    stalled_s: float = 0.0
    timely_s: float = 0.0  # sound that came in time
    ended_s: float | None = None


class Words:
    """A script of one piece that only counts."""

    most_frames: int | None = None

    def __init__(self) -> None:
        self.tokens, self.ended, self.spoken = 0, False, False

    def append(self, ids: list[int], most_frames: int | None = None, *, last: bool = False) -> None:
        """More of them, or no more."""
        self.tokens += len(ids)
        self.ended = self.ended or last

    def next_piece(self) -> None:
        """There is none."""
        self.spoken = True

    @property
    def over(self) -> bool:
        """Is all of it spoken?"""
        return self.ended and self.spoken

    @property
    def prompt_ready(self) -> bool:
        """Is there a first one?"""
        return not self.spoken and (self.ended or self.tokens > 0)

    @property
    def rows_ready(self) -> bool:
        """Is there a next one, or no need of it?"""
        return self.ended or self.tokens > 0

    def next_text(self) -> int:
        """Take one."""
        self.tokens = max(0, self.tokens - 1)
        return 0

    def prompt(self, after: int = 0) -> Prompt:
        """Of ordinary size."""
        self.next_text()
        return Prompt([0] * PROMPT_ROWS, [0] * PROMPT_ROWS)


class Caller:
    """A session's other side: its text comes at a pace, its reader reads at one, its clock plays.

    Stands in the loop where a `Session` and its outbox would.
    """

    request, prompt_ids = SimpleNamespace(guards=False, trim=False, patient=False), ()

    def __init__(self, id: str, call: Call, clock: Clock, buffer_s: float, until_s: float) -> None:
        self.id, self.call, self.clock, self.buffer_s = id, call, clock, buffer_s
        self.until_s = until_s  # what comes later is not counted
        self.heard = Heard(call.due_s)
        self.words = Words()
        self.sent = 0  # frames
        self.dry_s = 0.0  # when its listener falls silent
        self.text_s = call.due_s  # when sound was to be had at last, after text was waited for
        self.done: Done | None = None

    @property
    def outbox(self) -> "Caller":
        """Itself."""
        return self

    @property
    def taken_frames(self) -> int:
        """What the reader has taken by now."""
        if math.isinf(self.call.reads) or self.heard.first_s is None:
            return self.sent
        seconds = (self.clock.now - self.heard.first_s) * self.call.reads
        return min(self.sent, int(seconds / FRAME_S))

    def put(self, chunk: Chunk) -> None:
        """Sound arrives."""
        heard, now, frames = self.heard, self.clock.now, len(chunk.codes)
        if heard.first_s is None:
            heard.first_s, self.dry_s = now, now + self.buffer_s
        late_s = now - max(self.dry_s, self.text_s)
        starved = self.taken_frames == self.sent  # else it is the reader that is slow
        if late_s > 1e-9 and self.dry_s > self.text_s and starved:
            heard.stalls += 1
            heard.stalled_s += late_s
        elif now <= self.until_s:
            heard.timely_s += frames * FRAME_S
        self.sent += frames
        self.dry_s = max(self.dry_s, now) + frames * FRAME_S

    def finish(self, done: Done, *, drop: bool = False) -> None:
        """The end, or a refusal."""
        self.done, self.heard.ended_s = done, self.clock.now
        if isinstance(done.error, Overloaded):
            self.heard.refused_s = self.clock.now
            self.heard.retry_after_s = done.error.retry_after_s
