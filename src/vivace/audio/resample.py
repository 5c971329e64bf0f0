"""Another sample rate, in the stream."""

import numpy as np
import soxr

from vivace.types import SAMPLE_RATE, Pcm


class Resample:
    """From 24 kHz to `rate`; n samples become round(n * rate / 24,000), however they come."""

    def __init__(self, rate: int) -> None:
        self._stream = soxr.ResampleStream(SAMPLE_RATE, rate, 1, dtype="float32")

    def feed(self, pcm: Pcm) -> Pcm:
        """What these samples [n] complete: the filter holds back some 10 ms."""
        out: Pcm = self._stream.resample_chunk(pcm)
        return out

    def finish(self) -> Pcm:
        """What the filter held back."""
        out: Pcm = self._stream.resample_chunk(np.zeros(0, np.float32), last=True)
        return out
