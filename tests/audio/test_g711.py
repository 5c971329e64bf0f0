"""Mu-law and A-law, held to FFmpeg's."""

from collections.abc import Callable

import av
import numpy as np
import pytest

from vivace.audio.g711 import a_law, mu_law
from vivace.audio.wav import Samples

Pack = Callable[[Samples], bytes]
EVERY = np.arange(-32768, 32768).astype("<i2")


def by_ffmpeg(codec: str, data: bytes) -> Samples:
    decoder = av.CodecContext.create(codec, "r")
    assert isinstance(decoder, av.AudioCodecContext)
    decoder.sample_rate, decoder.layout = 8_000, "mono"
    return np.concatenate([f.to_ndarray()[0] for f in decoder.decode(av.Packet(data))])


@pytest.mark.parametrize(("codec", "pack"), [("pcm_mulaw", mu_law), ("pcm_alaw", a_law)])
def test_every_sample_is_as_near_as_the_law_has_it(codec: str, pack: Pack) -> None:
    heard = by_ffmpeg(codec, pack(EVERY)).astype(int)
    known = np.unique(by_ffmpeg(codec, bytes(range(256))).astype(int))
    gaps = np.maximum(np.diff(known, prepend=-32768), np.diff(known, append=32767))
    gap = gaps[np.searchsorted(known, heard)]
    inside = np.abs(EVERY.astype(int)) <= known.max()
    assert (2 * np.abs(heard - EVERY) <= gap)[inside].all()
    assert (np.abs(heard) == known.max())[~inside].all()
    assert (np.diff(heard) >= 0).all()


@pytest.mark.parametrize(("codec", "pack"), [("pcm_mulaw", mu_law), ("pcm_alaw", a_law)])
def test_every_code_comes_back(codec: str, pack: Pack) -> None:
    heard = by_ffmpeg(codec, bytes(range(256)))
    assert by_ffmpeg(codec, pack(heard)).tobytes() == heard.tobytes()
