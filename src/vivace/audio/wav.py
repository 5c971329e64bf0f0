"""Samples as signed 16-bit little-endian bytes, and the WAV header before them."""

import struct

import numpy as np
import numpy.typing as npt

from vivace.types import SAMPLE_RATE, Pcm

SAMPLE_BYTES = 2
UNKNOWN = 0xFFFFFFFF  # a size that is not known yet, as readers of streamed WAV expect it


def to_s16le(pcm: Pcm) -> bytes:
    """Mono samples [n] in -1..1 as 2 n bytes.

    Rounds half to even and clips: a sample outside the range stays loud instead of wrapping round
    to the other sign. NaN becomes silence.
    """
    samples: npt.NDArray[np.int16] = np.rint(
        np.clip(np.nan_to_num(pcm), -1.0, 1.0) * 32767.0
    ).astype("<i2")
    return samples.tobytes()


def wav_header(samples: int | None = None) -> bytes:
    """The 44 bytes before 16-bit mono samples at 24 kHz.

    None is a stream whose length nobody knows yet: both sizes are then 0xFFFFFFFF, and the data
    lasts to the end of the stream.
    """
    data = UNKNOWN if samples is None else samples * SAMPLE_BYTES
    riff = UNKNOWN if samples is None else data + 36
    form = struct.pack("<4sI4s", b"RIFF", riff, b"WAVE")
    rate = SAMPLE_RATE * SAMPLE_BYTES
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, SAMPLE_RATE, rate, SAMPLE_BYTES, 16)
    return form + fmt + struct.pack("<4sI", b"data", data)
