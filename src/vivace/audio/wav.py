"""Samples as little-endian integers or floats, and the WAV header before them."""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vivace.types import SAMPLE_RATE, Pcm

SAMPLE_BYTES = 2
HEADER_BYTES = 44
UNKNOWN = 0xFFFFFFFF  # a size that is not known yet, as readers of streamed WAV expect it

Samples = npt.NDArray[np.int16]  # [samples], mono


@dataclass(frozen=True, slots=True)
class WavKind:
    """What a WAV header calls its samples: format tag and bytes for each."""

    tag: int
    width: int


S16, F32, A_LAW, MU_LAW = WavKind(1, 2), WavKind(3, 4), WavKind(6, 1), WavKind(7, 1)


def to_s16(pcm: Pcm) -> Samples:
    """Mono samples [n] in -1..1 as little-endian integers.

    Rounds half to even and clips: a sample outside the range stays loud instead of wrapping round
    to the other sign. NaN becomes silence.
    """
    if np.isnan(pcm).any():  # looking costs a tenth of taking them out
        pcm = np.nan_to_num(pcm)
    scaled = np.clip(pcm, -1.0, 1.0)
    scaled *= 32767.0
    return np.rint(scaled, out=scaled).astype("<i2")


def to_s16le(pcm: Pcm) -> bytes:
    """Mono samples [n] in -1..1 as 2 n bytes."""
    return to_s16(pcm).tobytes()


def to_f32le(pcm: Pcm) -> bytes:
    """Mono samples [n] in -1..1 as 4 n bytes."""
    return np.clip(np.nan_to_num(pcm), -1.0, 1.0).astype("<f4").tobytes()


def wav_header(samples: int | None = None, rate: int = SAMPLE_RATE, kind: WavKind = S16) -> bytes:
    """The 44 bytes before mono samples.

    None is a stream whose length nobody knows yet: both sizes are then 0xFFFFFFFF, and the data
    lasts to the end of the stream.
    """
    data = UNKNOWN if samples is None else samples * kind.width
    riff = UNKNOWN if samples is None else data + 36
    form = struct.pack("<4sI4s", b"RIFF", riff, b"WAVE")
    shape = (rate, rate * kind.width, kind.width, 8 * kind.width)
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, kind.tag, 1, *shape)
    return form + fmt + struct.pack("<4sI", b"data", data)


def with_length(stream: bytes, samples: int) -> bytes:
    """A streamed WAV that has ended, with a header that knows how many samples [n] follow."""
    (rate,) = struct.unpack_from("<I", stream, 24)
    return wav_header(samples, rate) + stream[HEADER_BYTES:]
