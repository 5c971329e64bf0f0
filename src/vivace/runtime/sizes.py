"""The sizes that passes are captured for: a step takes the next larger one and pads its rows."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512)  # sizes between cost what the next does
CODEC_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # frames; what lies between takes two passes
PROMPT_ROWS = (16, 32, 64, 128, 256)


def fit(sizes: tuple[int, ...], count: int) -> int:
    """The smallest of `sizes`, in rising order, that holds `count`."""
    assert 0 < count <= sizes[-1], f"{count} do not fit {sizes}"
    return sizes[bisect_left(sizes, count)]


def upto(sizes: tuple[int, ...], most: int) -> tuple[int, ...]:
    """`sizes` as far as they are needed to hold `most`, which is the last."""
    return (*takewhile(lambda size: size < most, sizes), most)


def pieces(sizes: tuple[int, ...], count: int) -> Iterator[int]:
    """`count` as a sum of `sizes`, the largest first; the smallest must be 1."""
    for size in reversed(sizes):
        while count >= size:
            yield size
            count -= size


@dataclass(frozen=True, slots=True)
class Sizes:
    """Captured sizes of every pass, each in rising order."""

    frame: tuple[int, ...]  # rows of a talker step
    prefill: tuple[int, ...]  # rows of one prompt
    codec_rows: tuple[int, ...]
    codec_frames: tuple[int, ...]

    @classmethod
    def upto(cls, sessions: int, codec_rows: int, chunk_frames: int, prefill: int) -> "Sizes":
        """Every size that steps of at most so many rows need."""
        return cls(
            frame=upto(ROWS, sessions),
            prefill=upto(PROMPT_ROWS, prefill),
            codec_rows=upto(CODEC_ROWS, codec_rows),
            codec_frames=tuple(frames for frames in CHUNKS if frames <= chunk_frames),
        )
