"""No click at either end: sound begins and ends at zero."""

import numpy as np

from vivace.types import Pcm

FADE_IN = 48  # samples: 2 ms
FADE_OUT = 120  # samples: 5 ms, held back until it is known whether they are the last


class Ends:
    """Fades the first and the last samples of one stream; how many there are stays the same.

    The codec's first sample is a step of some -42 dBFS, and speech that was cut off by a limit
    ends in the middle of a wave.
    """

    def __init__(self) -> None:
        self._rise = _half_cosine(FADE_IN)
        self._held: Pcm = np.zeros(0, np.float32)

    def feed(self, pcm: Pcm) -> Pcm:
        """All samples [n] but the last that came so far."""
        sound = np.concatenate([self._held, self._risen(pcm)])
        keep = max(0, len(sound) - FADE_OUT)
        self._held = sound[keep:]
        return sound[:keep]

    def finish(self) -> Pcm:
        """The last samples, faded out."""
        held, self._held = self._held, self._held[:0]
        fall: Pcm = held * _half_cosine(len(held))[::-1]
        return fall

    def _risen(self, pcm: Pcm) -> Pcm:
        rise, self._rise = self._rise[: len(pcm)], self._rise[len(pcm) :]
        if not len(rise):
            return pcm
        return np.concatenate([pcm[: len(rise)] * rise, pcm[len(rise) :]])


def _half_cosine(samples: int) -> Pcm:
    """From 0 up to just below 1."""
    curve: Pcm = (0.5 - 0.5 * np.cos(np.pi * np.arange(samples) / max(1, samples))).astype("f4")
    return curve
