"""From a decoded file to a clip that a voice is taken from: one rate, no silence at its ends."""

import math
from typing import Final

import numpy as np
import soxr

from vivace.audio.decoder import PARAM, Sound
from vivace.config import Limits
from vivace.errors import Unprocessable
from vivace.types import SAMPLE_RATE, Pcm

BLOCK: Final = SAMPLE_RATE // 50  # 20 ms
SILENT_DB: Final = -65.0  # of the loudest block: quieter than this there is no speech
BELOW_DB: Final = 40.0  # blocks so much below the loudest are silence at the ends
EDGE_BLOCKS: Final = 3  # kept of it
DULL_RATE: Final = 16_000
CLIPPED: Final = 0.01  # of the samples
FULL: Final = 0.999


def prepare(sound: Sound, limits: Limits, *, as_it_is: bool = False) -> tuple[Pcm, list[str]]:
    """Samples [N] of 24 kHz to take a voice from, and warnings about how it will sound.

    Silence at both ends is left out, by the clip's own level; `as_it_is` keeps it.
    Raises Unprocessable, with the measured level or length, for a clip that is silent, too short or
    too long.
    """
    pcm = resampled(sound)
    decibels = levels(pcm)
    loudest = float(decibels.max(initial=-math.inf))
    if loudest < SILENT_DB:
        raise Unprocessable(
            f"`{PARAM}` is silent: its loudest 20 ms have {_shown(loudest)}, and speech has "
            f"{SILENT_DB:g} dBFS at least.",
            param=PARAM,
            code="clip_silent",
        )
    if not as_it_is:
        loud = np.flatnonzero(decibels >= loudest - BELOW_DB)
        first, last = max(0, loud[0] - EDGE_BLOCKS), loud[-1] + 1 + EDGE_BLOCKS
        pcm = pcm[first * BLOCK : last * BLOCK]
    seconds, low, high = len(pcm) / SAMPLE_RATE, limits.clip_min_s, limits.clip_max_s
    if not low <= seconds <= high:
        raise Unprocessable(
            f"`{PARAM}` has {seconds:.2f} s of sound between its silences; a clip must have "
            f"{low:g} to {high:g} s.",
            param=PARAM,
            code="clip_too_short" if seconds < low else "clip_too_long",
        )
    return pcm, _warnings(sound)


def resampled(sound: Sound) -> Pcm:
    """Its samples at 24 kHz, by the resampler and to the length that the official package takes."""
    if sound.rate == SAMPLE_RATE:
        return sound.pcm
    length = math.ceil(len(sound.pcm) * SAMPLE_RATE / sound.rate)
    pcm: Pcm = soxr.resample(sound.pcm, sound.rate, SAMPLE_RATE, quality="HQ")[:length]
    return np.pad(pcm, (0, length - len(pcm)))


def levels(pcm: Pcm) -> Pcm:
    """Decibels below full scale of each 20 ms [ceil(N / 480)]; an offset is no sound."""
    whole = np.pad(pcm - pcm.mean(), (0, -len(pcm) % BLOCK)).reshape(-1, BLOCK) if len(pcm) else pcm
    power = np.square(whole, dtype=np.float64).mean(-1) if len(pcm) else pcm
    out: Pcm = (10 * np.log10(np.maximum(power, 1e-15))).astype(np.float32)
    return out


def _shown(level: float) -> str:
    return f"{level:.0f} dBFS" if level > -150 else "no level at all"


def _warnings(sound: Sound) -> list[str]:
    warnings = []
    if sound.rate < DULL_RATE:
        warnings.append(f"{PARAM} has a rate of {sound.rate} Hz: its voice will sound dull")
    if (np.abs(sound.pcm) >= FULL).mean() > CLIPPED:
        warnings.append(f"{PARAM} is clipped: its voice will sound harsh")
    return warnings
