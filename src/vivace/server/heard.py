"""What a listener meets who plays the sound as it comes, as the server sees it."""

import numpy as np

from vivace.types import SAMPLE_RATE, Pcm

AUDIBLE = 10 ** (-45 / 20)  # of full scale; what is below it is silence to most ears


class Heard:
    """One listener's player: it starts with the first sound, stops when it runs dry, goes on.

    All times are of one clock, in seconds. While the client takes nothing its player is said to
    wait: a reader that is slow does not run dry for our sake.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self.first_s: float | None = None  # when the first sound was there
        self.audible_s: float | None = None  # when the player reached the first that can be heard
        self.last_s = 0.0  # when the last sound was there
        self.sound_s = 0.0  # of the model's own speed
        self.stalls = 0  # times that it ran dry
        self.deficit_s = 0.0  # the most that a player who does not stop would have lacked
        self._speed = speed
        self._dry_s = 0.0
        self._begin_s = 0.0  # of a player who does not stop

    def take(self, pcm: Pcm, now_s: float) -> None:
        """Some more sound has come."""
        if self.first_s is None:
            self.first_s = self._begin_s = self._dry_s = now_s
        if now_s > self._dry_s:
            self.stalls += 1
            self._dry_s = now_s
        self.deficit_s = max(self.deficit_s, now_s - self._begin_s - self.sound_s / self._speed)
        if self.audible_s is None:
            loud = np.flatnonzero(np.abs(pcm) >= AUDIBLE)
            if len(loud):
                self.audible_s = self._dry_s + float(loud[0]) / SAMPLE_RATE / self._speed
        length_s = len(pcm) / SAMPLE_RATE
        self.sound_s += length_s
        self._dry_s += length_s / self._speed
        self.last_s = now_s

    def held_up(self, seconds: float) -> None:
        """The client took nothing for so long."""
        self._dry_s += seconds
        self._begin_s += seconds
