"""Mu-law and A-law: one byte a sample, as telephone lines carry it (ITU-T G.711)."""

from functools import cache

import numpy as np
import numpy.typing as npt

from vivace.audio.wav import Samples

Bytes = npt.NDArray[np.uint8]

_BIAS, _CLIP = 132, 32635  # of mu-law, on 16-bit samples


def mu_law(samples: Samples) -> bytes:
    """16-bit samples [n] as n bytes of mu-law."""
    return _mu_law_table()[samples.view(np.uint16)].tobytes()


def a_law(samples: Samples) -> bytes:
    """16-bit samples [n] as n bytes of A-law."""
    return _a_law_table()[samples.view(np.uint16)].tobytes()


def _every_sample() -> npt.NDArray[np.int64]:
    """All 65,536 samples, each at the place of its bits."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.int16).astype(np.int64)


def _exponent(magnitude: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """Which of eight segments a magnitude lies in; the first segment starts below 2**bits."""
    segment: npt.NDArray[np.int64] = np.frexp(magnitude.astype(float))[1].astype(np.int64) - bits
    return np.maximum(segment, 0)


@cache
def _mu_law_table() -> Bytes:
    value = _every_sample()
    magnitude = np.minimum(np.abs(value), _CLIP) + _BIAS
    segment = _exponent(magnitude, 8)
    code = segment << 4 | magnitude >> segment + 3 & 0xF
    return (~(code | (value < 0) * 0x80) & 0xFF).astype(np.uint8)


@cache
def _a_law_table() -> Bytes:
    value = _every_sample() >> 3  # A-law keeps 13 bits
    magnitude = np.where(value < 0, ~value, value)
    segment = _exponent(magnitude, 5)
    code = segment << 4 | magnitude >> np.maximum(segment, 1) & 0xF
    return ((code | (value >= 0) * 0x80) ^ 0x55).astype(np.uint8)
