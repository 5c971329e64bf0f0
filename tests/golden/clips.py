"""Clips that hum, by a formula: the golden files keep what was made of them and not the clips."""

import numpy as np
import numpy.typing as npt

# Whole frames, a sample over them, less than a frame more; the last is beyond ten seconds, where a
# window of 250 rows of 40 ms, which the published config names, would show.
CLIPS = (46_080, 23_041, 60_000, 312_777)


def hum(samples: int) -> npt.NDArray[np.int16]:
    """So many samples at 24 kHz. int16, so that every machine makes the same."""
    rng = np.random.default_rng(0)
    t = np.arange(samples) / 24_000
    tone = 0.3 * np.sin(2 * np.pi * 180 * t) * (1 + np.sin(2 * np.pi * 3 * t)) / 2
    return (32768 * (tone + 0.02 * rng.standard_normal(len(t)))).astype(np.int16)
