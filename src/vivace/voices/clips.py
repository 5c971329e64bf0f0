"""Clips as they are kept: FLAC of 16 bits, so that another model can take the voice from them."""

import numpy as np

from vivace.audio.container import CODECS, Container, flac_with_length
from vivace.audio.wav import to_s16
from vivace.types import SAMPLE_RATE, Pcm


def rounded(pcm: Pcm) -> Pcm:
    """The samples as decoding `to_flac` gives them back: a voice made of them can be made again."""
    return to_s16(pcm).astype(np.float32) / np.float32(32768)


def to_flac(pcm: Pcm) -> bytes:
    """Samples of 24 kHz as a FLAC file that knows its length."""
    encoder = Container(CODECS["flac"], SAMPLE_RATE, SAMPLE_RATE)
    return flac_with_length(encoder.encode(pcm) + encoder.finish(), len(pcm))
