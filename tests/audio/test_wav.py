"""Sample conversion and WAV headers."""

import io
import struct
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vivace.audio.encode import Wav
from vivace.audio.wav import to_s16le, wav_header, with_length


def samples(data: bytes) -> list[int]:
    return np.frombuffer(data, dtype="<i2").tolist()


def test_full_scale_clips_instead_of_wrapping() -> None:
    pcm = np.array([0, 1, -1, 1.5, -1.5, np.inf, -np.inf], dtype=np.float32)
    assert samples(to_s16le(pcm)) == [0, 32767, -32767, 32767, -32767, 32767, -32767]


def test_nan_is_silence() -> None:
    assert samples(to_s16le(np.array([np.nan], dtype=np.float32))) == [0]


def test_rounds_half_to_even() -> None:
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5]) / 32767  # float64, or the halves are not exact
    assert samples(to_s16le(halves)) == [0, 2, 2, 0, -2]


@given(hnp.arrays(np.float32, st.integers(0, 50), elements=st.floats(-2, 2, width=32)))
def test_within_half_a_step(pcm: np.ndarray) -> None:
    got = np.array(samples(to_s16le(pcm)))
    assert len(got) == len(pcm)
    assert np.all(np.abs(got - np.clip(pcm, -1, 1) * 32767.0) <= 0.5 + 1e-2)


@pytest.mark.parametrize("count", [0, 1, 1920])
def test_exact_header_reads_back(count: int) -> None:
    with wave.open(io.BytesIO(wav_header(count) + bytes(2 * count))) as sound:
        assert sound.getparams()[:4] == (1, 2, 24_000, count)


def test_streamed_header_has_unknown_sizes() -> None:
    header = wav_header()
    assert len(header) == 44
    assert struct.unpack("<I", header[4:8]) == struct.unpack("<I", header[40:44]) == (2**32 - 1,)


def test_a_stream_that_ended_knows_its_length() -> None:
    with wave.open(io.BytesIO(with_length(wav_header(rate=8_000) + bytes(3840), 1920))) as sound:
        assert sound.getparams()[:4] == (1, 2, 8_000, 1920)


def test_wav_without_sound_is_a_whole_file() -> None:
    with wave.open(io.BytesIO(Wav(24_000).finish())) as sound:
        assert sound.getnframes() == 0
