"""Drops the silence before speech: nothing is sent until there is something to hear.

Nothing is lost without an onset. What has not been sent is held back, and goes out whole if the
stream ends, or has been silent for `MOST_S`, before one is found.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from vivace.types import SAMPLE_RATE, Pcm

HOP: Final = SAMPLE_RATE // 400  # 2.5 ms
MOST_S: Final = 1.0  # the longest that is held back
FADE: Final = SAMPLE_RATE // 500  # 2 ms, of the hop that is kept before the onset


def _power(dbfs: float) -> float:
    return float(10 ** (dbfs / 10))


# Loud is what `vivace bench` calls audible: two windows of 20 ms, 10 ms apart. The onset is where
# the level that led there first rose, so that no soft first sound is cut.
LOUD: Final = _power(-45)
RISING: Final = _power(-50)  # a hop, and the 10 ms from it on the mean
# A voice that never gets loud speaks as well: three quarters of 100 ms over this level.
QUIET: Final = _power(-60)
_WINDOW, _STEP, _RISE, _QUIET_HOPS, _QUIET_SHARE = 8, 4, 4, 40, 30
_MOST_HOPS: Final = round(MOST_S * SAMPLE_RATE) // HOP
GIVEN_UP: Final = 0  # instead of a hop: there was no onset

Flags = npt.NDArray[np.bool_]


class Onset:
    """One stream's trim; in whatever pieces it is fed, it gives the same samples."""

    def __init__(self) -> None:
        self.silent = True  # has nothing been found, so far or before it gave up?
        self._begun = False
        self._held = np.zeros(HOP, dtype=np.float32)  # one hop of silence, then what was fed

    def feed(self, pcm: Pcm) -> Pcm:
        """What can be sent now: nothing until the onset, then everything as it comes."""
        if self._begun:
            return pcm
        self._held = np.concatenate((self._held, pcm))
        start = _find(self._held)
        if start is None:
            return self._held[:0]
        self.silent = start == GIVEN_UP
        return self._begin(max(start, 1))

    def finish(self) -> Pcm:
        """What a stream that ended before its onset still holds."""
        return np.zeros(0, dtype=np.float32) if self._begun else self._begin(1)

    def _begin(self, hop: int) -> Pcm:
        """Everything from that hop of the held sound on; faded in if any was dropped."""
        self._begun = True
        sound, self._held = self._held[hop * HOP :], self._held[:0]
        if hop > 1:
            sound[:FADE] *= np.arange(FADE, dtype=np.float32) / FADE
        return sound


def _find(held: Pcm) -> int | None:
    """The hop to begin with, as soon as it is certain; 1 keeps everything, as does `GIVEN_UP`.

    The first rule to be certain of an onset decides, whatever came with it in the same piece.
    """
    hops = held[: len(held) // HOP * HOP].reshape(-1, HOP)
    square = _sums(np.einsum("ij,ij->i", hops, hops))
    over = np.diff(square) >= RISING * HOP
    rising = over[: 1 - _RISE] & (_mean(square, _RISE) >= RISING)
    rules = (_loud(_sums(hops.sum(1)), square, rising), _quiet(square))
    known = min((rule for rule in rules if rule is not None), default=None)
    if known is not None and known[0] <= _MOST_HOPS:
        return max(known[1] - 1, 1)
    return GIVEN_UP if len(hops) > _MOST_HOPS else None


def _loud(total: npt.NDArray[np.float64], square: npt.NDArray[np.float64], rising: Flags) -> "Rule":
    """The rise that leads to two loud windows, the first of which starts one hop before it."""
    loud = _mean(square, _WINDOW) - _mean(total, _WINDOW) ** 2 >= LOUD
    both = loud[:-_STEP] & loud[_STEP:]
    found = np.flatnonzero(both[: len(rising) - 1] & rising[1 : len(both) + 1])
    if not len(found):
        return None
    peak = int(found[0]) + 1
    kept = rising[: peak + 1].copy()
    kept[1:] |= rising[:peak]  # one weak hop is no end of a rise
    before = np.flatnonzero(~kept)
    return peak - 1 + _WINDOW + _STEP, int(before[-1]) + 1 if len(before) else 0


def _quiet(square: npt.NDArray[np.float64]) -> "Rule":
    """The first of 100 ms that are mostly over the lower level."""
    over = np.diff(square) >= QUIET * HOP
    count = _sums(over)
    found = np.flatnonzero(count[_QUIET_HOPS:] - count[:-_QUIET_HOPS] >= _QUIET_SHARE)
    if not len(found):
        return None
    start = int(found[0])
    return start + _QUIET_HOPS, start + int(over[start:].argmax())


Rule = tuple[int, int] | None
"""How many hops had to be there, and the hop of the onset."""


def _sums(values: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    out = np.zeros(len(values) + 1)
    np.cumsum(values, out=out[1:])
    return out


def _mean(sums: npt.NDArray[np.float64], hops: int) -> npt.NDArray[np.float64]:
    """The mean of every run of so many hops."""
    return (sums[hops:] - sums[:-hops]) / (hops * HOP)
