"""What the policy knows of one session: counts and times, nothing that plays or computes."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Track:
    """One session. The engine keeps it true; the policy only reads it."""

    arrived_s: float
    slot: int = -1
    prefilled: bool = False  # the prompt of the piece that is spoken now is there
    text_ready: bool = True  # there is text for the prompt or the next frame, or no more comes
    laying: bool = False  # rows of its prompt are being laid down
    flying: int = 0  # frames the talker is making now
    made: int = 0  # frames it has made
    voicing: int = 0  # frames the codec is decoding now
    voiced: int = 0  # frames it has decoded
    held: int = 0  # of them, silent ones before the speech, not sent
    taken: int = 0  # frames the reader has taken away
    finished: bool = False  # the talker makes no more
    deadline_s: float | None = None  # when the listener's buffer empties; None before first audio
    model: int = 0  # whose rows may be in one token step

    @property
    def seated(self) -> bool:
        """Does it hold a slot?"""
        return self.slot >= 0

    @property
    def pending(self) -> int:
        """Frames made that nobody decodes yet."""
        return self.made - self.voiced - self.voicing

    def start_over(self) -> None:
        """Nothing has been made; frames under way are in vain."""
        self.prefilled = self.laying = self.finished = False
        self.made = self.voicing = self.voiced = self.held = self.taken = 0
        self.deadline_s = None

    def sent(self, frames: int, seconds: float, now: float) -> None:
        """Move the playback clock: `frames` more are decoded, `seconds` of them on their way.

        A listener who has already run dry starts again from now; one who has been sent no sound has
        not started.
        """
        self.voicing = 0
        self.voiced += frames
        if not seconds:
            self.held += frames
            return
        self.held = 0
        start = now if self.deadline_s is None else max(self.deadline_s, now)
        self.deadline_s = start + seconds
