"""Bytes into samples: bare, WAV of known and unknown length, and what is neither."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.fake import silence, tone, wav

from vivace.bench.sound import BadSound, unpack

PCM = tone(0.05)


def split(body: bytes, cuts: list[int]) -> list[tuple[float, bytes]]:
    edges = [0, *sorted({cut % len(body) for cut in cuts} - {0}), len(body)]
    return [(float(i), body[a:b]) for i, (a, b) in enumerate(pairwise(edges))]


@given(st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([PCM, wav(PCM)]))
def test_any_split_gives_the_same_samples(cuts: list[int], body: bytes) -> None:
    """Also in the middle of a sample or of the header: it counts once all of it is there."""
    sound = unpack(split(body, cuts), 24_000)
    assert sound.samples.tobytes() == PCM
    assert sum(count for _, count in sound.pieces) == len(PCM) // 2
    assert all(count > 0 for _, count in sound.pieces)


def test_a_sample_is_playable_when_its_last_byte_is_there() -> None:
    assert unpack([(1.0, PCM[:1]), (2.0, PCM[1:4])], 24_000).pieces == [(2.0, 2)]
    body = wav(PCM)
    assert unpack([(1.0, body[:44]), (3.0, body[44:])], 24_000).pieces == [(3.0, 1200)]


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_a_wav_of_unknown_length_is_read_to_the_end(size: int) -> None:
    assert unpack([(0.0, wav(PCM, size))], 24_000).samples.tobytes() == PCM


def test_a_wav_brings_its_rate_and_may_have_more_chunks() -> None:
    body = wav(PCM, rate=16_000) + b"LIST" + (4).to_bytes(4, "little") + b"abcd"
    sound = unpack([(0.0, body)], 24_000)
    assert sound.rate == 16_000
    assert sound.samples.tobytes() == PCM
    assert sound.seconds == pytest.approx(1200 / 16_000)
    extra = body[:12] + b"JUNK" + (3).to_bytes(4, "little") + b"xyz\0" + body[12:]
    assert unpack([(0.0, extra)], 24_000).samples.tobytes() == PCM


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "no_audio"),
        (PCM[:-1], "odd_bytes"),
        (wav(PCM, len(PCM) + 2), "truncated"),
        (wav(PCM)[:30], "bad_wav"),
        (wav(PCM, 0)[:44], "no_audio"),
        (wav(PCM, channels=2), "bad_wav"),
        (wav(PCM, rate=0), "bad_rate"),
        (b"RIFF1234AVI " + PCM, "bad_wav"),
        (wav(PCM, 0)[:-1], "odd_bytes"),
    ],
)
def test_each_fault_has_its_name(body: bytes, kind: str) -> None:
    with pytest.raises(BadSound) as caught:
        unpack([(0.0, body)], 24_000)
    assert caught.value.kind == kind


def test_samples_are_little_endian() -> None:
    assert unpack([(0.0, b"\x01\x00\x00\x80")], 24_000).samples.tolist() == [1, -32768]
    assert np.count_nonzero(unpack([(0.0, silence(0.1))], 24_000).samples) == 0
