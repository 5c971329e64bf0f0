"""What a listener meets: pure functions over samples and their times."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from vivace.bench.sound import Samples

Flags = npt.NDArray[np.bool_]

HOP_S = 0.01
AUDIBLE_DBFS = -45.0
_AUDIBLE_SQUARE = (32768 * 10 ** (AUDIBLE_DBFS / 20)) ** 2
_ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class Playback:
    """A player that starts with the first sound and stops whenever it runs dry."""

    begins_s: list[float]  # when each piece starts to play
    stalls_s: list[float]  # every time it ran dry, and for how long


def play(pieces: Sequence[tuple[float, int]], rate: int, buffer_s: float = 0.0) -> Playback:
    """Play pieces of (arrival, samples), from `buffer_s` after the first arrival."""
    begins, stalls = list[float](), list[float]()
    dry_s = pieces[0][0] + buffer_s
    for at_s, samples in pieces:
        if at_s > dry_s + _ROUNDING_S:
            stalls.append(at_s - dry_s)
            dry_s = at_s
        begins.append(dry_s)
        dry_s += samples / rate
    return Playback(begins, stalls)


def heard_at(
    sample: int, pieces: Sequence[tuple[float, int]], playback: Playback, rate: int
) -> float:
    """When the player reaches a sample."""
    for begin_s, (_, samples) in zip(playback.begins_s, pieces, strict=True):
        if sample < samples:
            return begin_s + sample / rate
        sample -= samples
    raise IndexError("the sound is shorter than that")


def loud(samples: Samples, rate: int) -> Flags:
    """Whether each window of 20 ms, one every 10 ms, is at or over -45 dBFS without its mean."""
    hop = round(HOP_S * rate)
    hops = samples[: len(samples) // hop * hop].reshape(-1, hop).astype(np.float32)
    total, square = hops.sum(1), np.einsum("ij,ij->i", hops, hops)  # a window is two hops
    mean = (total[:-1] + total[1:]) / (2 * hop)
    flags: Flags = (square[:-1] + square[1:]) / (2 * hop) - mean**2 >= _AUDIBLE_SQUARE
    return flags


def onset(windows: Flags, rate: int) -> int | None:
    """First sample of the first two loud windows in a row; None if it stays silent."""
    pairs = np.flatnonzero(windows[:-1] & windows[1:])
    return int(pairs[0]) * round(HOP_S * rate) if len(pairs) else None


def longest_silence_s(windows: Flags) -> float:
    """The longest run of windows that are not loud, between or after loud ones."""
    edges = np.flatnonzero(np.concatenate((windows, [True])))
    if len(edges) < 2:
        return 0.0
    return float((np.diff(edges).max() - 1) * HOP_S)


def gaps_s(pieces: Sequence[tuple[float, int]]) -> list[float]:
    """The times between one piece's arrival and the next one's."""
    return [later - sooner for (sooner, _), (later, _) in pairwise(pieces)]
