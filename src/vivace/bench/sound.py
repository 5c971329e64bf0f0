"""What arrived, as sound: bytes and their times into samples, and each fault by its name."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.int16]
Arrivals = Sequence[tuple[float, bytes]]
"""(seconds, bytes) of every read, in order."""

_OPEN_ENDED = 0x7FFFF000  # a data size from here on, or 0, says that nobody knew the length


class BadSound(Exception):
    """A body that is not the sound it should be; `kind` is how results count it."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Sound:
    """Samples at `rate`, and in `pieces` when each run of them could be played."""

    rate: int
    samples: Samples
    pieces: list[tuple[float, int]]  # (seconds, samples)

    @property
    def seconds(self) -> float:
        """How long it plays."""
        return len(self.samples) / self.rate


@dataclass(frozen=True, slots=True)
class _Data:
    start: int
    stop: int | None  # None: to the end of the body
    rate: int


def unpack(arrivals: Arrivals, rate: int) -> Sound:
    """Bare 16-bit mono samples at `rate`, or a WAV file of them, which brings its own rate.

    Raises BadSound: no_audio, odd_bytes, bad_wav, bad_rate, truncated.
    """
    body = b"".join(piece for _, piece in arrivals)
    data = _wav(body) if body[:4] == b"RIFF" else _Data(0, None, rate)
    if not 4_000 <= data.rate <= 384_000:
        raise BadSound("bad_rate", f"{data.rate} samples a second")
    stop = len(body) if data.stop is None else min(data.stop, len(body))
    if stop - data.start <= 0:
        raise BadSound("no_audio", "the body holds no sample")
    if (stop - data.start) % 2:
        raise BadSound("odd_bytes", f"{stop - data.start} bytes are no whole samples of 16 bits")
    if data.stop is not None and len(body) < data.stop:
        raise BadSound("truncated", f"the WAV names {data.stop - data.start} bytes of data")
    pieces, read, before = [], 0, 0
    for at_s, piece in arrivals:
        read += len(piece)
        have = max(min(read, stop) - data.start, 0) // 2
        if have > before:
            pieces.append((at_s, have - before))
            before = have
    return Sound(data.rate, np.frombuffer(body[data.start : stop], "<i2"), pieces)


def _wav(body: bytes) -> _Data:
    """Where the samples lie in a WAV file, whole or streamed with a length nobody knew."""
    if body[8:12] != b"WAVE":
        raise BadSound("bad_wav", "RIFF without WAVE")
    at, rate = 12, -1
    while at + 8 <= len(body):
        name, size = body[at : at + 4], int.from_bytes(body[at + 4 : at + 8], "little")
        at += 8
        if name == b"data":
            if rate < 0:
                raise BadSound("bad_wav", "samples before their format")
            known = 0 < size < _OPEN_ENDED
            return _Data(at, at + size if known else None, rate)
        if name == b"fmt " and at + 16 <= len(body):
            _, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", body, at)
            if (channels, bits) != (1, 16):
                raise BadSound("bad_wav", f"{channels} channels of {bits} bits")
        at += size + size % 2
    raise BadSound("bad_wav", "the body ends before its samples")
