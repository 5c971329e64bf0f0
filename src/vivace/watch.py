"""What the guards know of one session: when to cut its speech, and when to draw it once more.

Everything is decided by frame numbers and samples, never by when they came, so that the same
request with the same seed gives the same speech. docs/guards.md says what for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from vivace.audio.guards import Echo, Silence
from vivace.config import EngineConfig
from vivace.types import FRAME_S, Chunk, Cut, Sampling, SpeechRequest

MOST_HELD = 125  # first frames, 10 s, that are kept back where nobody listens yet
_GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's step: a seed and its sub-seeds are one of its sequences
_SEEDS = (1 << 63) - 1


def sub_seed(seed: int, attempt: int) -> int:
    """What an attempt is drawn with; the first is drawn with the seed itself."""
    return (seed + attempt * _GOLDEN) & _SEEDS if attempt else seed


@dataclass(slots=True)
class Watch:
    """One session's guards; those that are off never speak up."""

    on: bool
    silence: Silence
    echo: Echo
    redraws: int  # that are left
    held: int  # frames that are kept back to begin with
    attempt: int = 0
    said_at: int | None = None  # the first frame of the piece with no text of it left
    cut: Cut | None = None  # what the speech was cut by, last
    again: bool = False  # it is to be drawn once more
    kept: list[Chunk] = field(default_factory=list)
    begun: bool = False  # something was sent

    @classmethod
    def over(cls, request: SpeechRequest, sampling: Sampling, config: EngineConfig) -> "Watch":
        """The guards that a request and the settings ask for.

        Greedy speech would be the same if it were drawn again.
        """
        on = config.guards and request.guards
        greedy = not (sampling.temperature or sampling.subtalker_temperature)
        redraws = 0 if greedy or not on else config.redraws
        held = min(MOST_HELD, config.profile.ahead_frames // 2) if redraws else 0
        return cls(
            on,
            Silence(_frames(config.guard_silence_s) if on else 0),
            Echo(_frames(config.guard_loop_s) if on else 0),
            redraws,
            held if request.patient else 0,
        )

    def next_piece(self) -> None:
        """Another prompt: its text is all to come."""
        self.said_at = None
        self.silence.run = 0
        self.echo.past.clear()

    def start_over(self) -> None:
        """Another attempt."""
        self.redraws -= 1
        self.attempt += 1
        self.cut, self.again = None, False
        self.kept.clear()
        self.next_piece()

    def silent(self, first: int, power: Sequence[float]) -> int | None:
        """After how many of the frames from number `first` on to end, as only silence comes."""
        if self.said_at is None or self.again or not self.silence.most:
            return None
        skip = max(0, self.said_at - first)
        count = self.silence.feed(power[skip:])
        return None if count is None else skip + count

    def can_redraw(self, frame: int) -> bool:
        """May speech that was cut at a frame be drawn again: is none of it out, at any pace?"""
        return self.redraws > 0 and not self.begun and frame <= self.held

    def release(self, chunk: Chunk, voiced: int) -> list[Chunk]:
        """What to send now that a chunk is there, with which `voiced` frames are decoded."""
        self.kept.append(chunk)
        return [] if voiced <= self.held else self.rest()

    def rest(self) -> list[Chunk]:
        """What was kept back; from now on nothing is."""
        chunks, self.kept = self.kept, []
        self.held, self.begun = 0, self.begun or bool(chunks)
        return chunks


def _frames(seconds: float) -> int:
    return round(seconds / FRAME_S)
