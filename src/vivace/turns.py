"""The loop's side of a session, and the words about it that come from other threads."""

import math
from dataclasses import dataclass, field
from typing import Protocol

from vivace.audio.onset import Onset
from vivace.schedule.track import Track
from vivace.text.prompt import Script
from vivace.types import Chunk, Codes, Done, FinishReason, Pcm, Sampling, SpeechRequest
from vivace.watch import Watch


class Outlet(Protocol):
    """Where a turn's chunks and its one terminal event go."""

    taken_frames: int  # that its reader has taken away

    def put(self, chunk: Chunk) -> None:
        """Add a chunk."""
        ...

    def finish(self, done: Done, *, drop: bool = False) -> None:
        """Set the terminal event; `drop` throws away what has not been taken."""
        ...


class Listener(Protocol):
    """What the loop reads of a session, wherever that is."""

    id: str
    request: SpeechRequest

    @property
    def prompt_ids(self) -> list[int]:
        """The text's own tokens, so far."""
        ...

    @property
    def outbox(self) -> Outlet:
        """Where its chunks go."""
        ...


@dataclass(slots=True, eq=False)
class Turn:
    """The loop's side of one session."""

    session: Listener
    script: Script
    sampling: Sampling
    seed: int
    track: Track
    most_in_all: float = math.inf  # frames of the whole; those of `sampling` are for each piece
    first_text: int | None = None  # the text id under the first frame, from the prompt
    positions: int = 0  # of its context in use
    from_frame: int = 0  # where the piece that is spoken now began
    most_frames: float = math.inf  # after which the loop ends that piece
    reason: FinishReason = FinishReason.STOP  # LENGTH once any piece of its text was cut short
    codes: list[Codes] = field(default_factory=list)  # made and not yet decoded, [16] each
    seated_s: float = 0.0  # when it got its slot
    onset: Onset | None = field(init=False)  # trims the silence before the speech
    early: list[Pcm] = field(default_factory=list)  # first sound, too short to begin with
    unheard: list[Codes] = field(default_factory=list)  # decoded, their sound held back by `onset`
    excused_s: float = 0.0  # until when silence is for want of text
    stalled_s: float | None = None  # when its reader last took from a full buffer
    watch: Watch = field(init=False)  # its guards; the loop sets it when it hears of the turn
    capped: bool = False  # is it the text that sets `most_frames`?

    def __post_init__(self) -> None:
        self.onset = Onset() if self.session.request.trim else None

    def start_over(self) -> None:
        """Make it a turn that has its slot and has said nothing."""
        self.script.start_over()
        self.track.start_over()
        self.watch.start_over()
        self.onset = Onset() if self.session.request.trim else None
        self.first_text, self.positions, self.from_frame = None, 0, 0
        self.reason, self.excused_s = FinishReason.STOP, 0.0
        for made in (self.codes, self.early, self.unheard):
            made.clear()
        self.bound()

    def next_text(self) -> int:
        """The text id under the next frame."""
        text, self.first_text = self.first_text, None
        if text is None:
            text = self.script.next_text()
        watch = self.watch
        if watch.on and watch.said_at is None and self.script.said:
            watch.said_at = self.track.made + self.track.flying + 1
        return text

    @property
    def text_ready(self) -> bool:
        """Is there text for the next frame, or for the next piece's prompt?

        That one also waits for frames of the piece before, which are under way in vain.
        """
        if self.track.prefilled or self.first_text is not None:
            return self.first_text is not None or self.script.rows_ready
        return self.script.prompt_ready and not self.track.flying

    def bound(self) -> None:
        """Reckon `most_frames` anew: the checkpoint's cap, and that of the text."""
        most, text = self.sampling.max_frames, self.script.most_frames
        self.capped = text is not None and self.watch.on and text < most
        if text is not None and self.capped:
            most = text
        self.most_frames = min(self.from_frame + most, self.most_in_all)


@dataclass(frozen=True, slots=True)
class More:
    """More tokens for a session: see `Desk.text`."""

    session: Listener
    ids: list[int]
    most_frames: int | None = None
    last: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody listens to this session any more."""

    session: Listener
    at_s: float | None = None  # when that was said


Word = Turn | More | Cancel
