"""The codec decodes a stream in any pieces, beside any neighbours, to what it decodes in one."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden import read
from torch import Tensor

from vivace.model.codec import Codec, State
from vivace.types import SAMPLES_PER_FRAME

LONGEST = 16
CLOSE = 1e-5  # streamed and whole differ by the order of sums alone


def some_codes(codec: Codec, rows: int, frames: int, seed: int) -> Tensor:
    spec = codec.spec
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, spec.codebook_size, (rows, frames, spec.quantizers), generator=rng)


def whole(codec: Codec, codes: Tensor) -> Tensor:
    """Samples [B, T * 1920] of codes [B, T, 16] decoded at once."""
    with torch.inference_mode():
        return codec(codes, codec.fresh(len(codes)))[0]


def streamed(codec: Codec, codes: Tensor, chunks: Sequence[int]) -> Tensor:
    state, pieces, at = codec.fresh(len(codes)), [], 0
    with torch.inference_mode():
        for frames in chunks:
            pcm, state = codec(codes[:, at : at + frames], state)
            assert pcm.shape == (len(codes), frames * SAMPLES_PER_FRAME)
            pieces.append(pcm)
            at += frames
    return torch.cat(pieces, 1)


def rows_of(state: State, rows: Sequence[int]) -> State:
    return [tensor[list(rows)] for tensor in state]


def put(pool: State, rows: Sequence[int], state: State) -> None:
    for kept, new in zip(pool, state, strict=True):
        kept[list(rows)] = new


def assert_close(pcm: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(pcm, expected, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("frames", read.CODEC_FRAMES)
def test_whole_decode_is_the_official_unchunked_one(codec: Codec, frames: int) -> None:
    codes, stride, expected = read.codec(frames)
    pcm = whole(codec, torch.from_numpy(codes)[None])[0].numpy()
    assert len(pcm) == frames * SAMPLES_PER_FRAME
    np.testing.assert_allclose(pcm[::stride], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 7, 71, 72, 73])
def test_stream_past_the_window_is_the_official_decode(codec: Codec, chunk: int) -> None:
    codes, stride, expected = read.codec(80)
    chunks = [chunk] * (80 // chunk) + [80 % chunk] * (80 % chunk > 0)
    pcm = streamed(codec, torch.from_numpy(codes)[None], chunks)[0].numpy()
    np.testing.assert_allclose(pcm[::stride], expected, rtol=0, atol=1e-4)


@settings(max_examples=25)
@given(
    chunks=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    rows=st.integers(1, 3),
    seed=st.integers(0, 2**16),
)
def test_chunks_do_not_matter(codec: Codec, chunks: list[int], rows: int, seed: int) -> None:
    codes = some_codes(codec, rows, sum(chunks), seed)
    assert_close(streamed(codec, codes, chunks), whole(codec, codes))


@settings(max_examples=25)
@given(data=st.data(), seed=st.integers(0, 2**16))
def test_rows_at_different_positions_share_a_batch(
    codec: Codec, data: st.DataObject, seed: int
) -> None:
    """Streams start, pause and go on independently: each step takes any of them, in any order."""
    streams = 4
    codes = some_codes(codec, streams, LONGEST, seed)
    expected = whole(codec, codes)
    pool, at = codec.fresh(streams), [0] * streams
    pcm = torch.zeros_like(expected)
    subsets = st.lists(st.integers(0, streams - 1), min_size=1, unique=True)
    for rows, frames in data.draw(st.lists(st.tuples(subsets, st.integers(1, 5)), max_size=8)):
        ready = [row for row in rows if at[row] + frames <= LONGEST]
        if not ready:
            continue
        batch = torch.stack([codes[row, at[row] : at[row] + frames] for row in ready])
        with torch.inference_mode():
            out, state = codec(batch, rows_of(pool, ready))
        put(pool, ready, state)
        for row, sound in zip(ready, out, strict=True):
            start = at[row] * SAMPLES_PER_FRAME
            pcm[row, start : start + len(sound)] = sound
            at[row] += frames
    for row, frames in enumerate(at):
        end = frames * SAMPLES_PER_FRAME
        assert_close(pcm[row, :end], expected[row, :end])


def test_a_slot_in_use_again_hears_nothing_of_its_last_stream(codec: Codec) -> None:
    first, second = some_codes(codec, 1, 80, 1), some_codes(codec, 1, 6, 2)
    pool = codec.fresh(2)
    with torch.inference_mode():
        _, used = codec(first, rows_of(pool, [1]))
        put(pool, [1], used)
        for tensor in pool:
            tensor[1] = 0
        again, _ = codec(second, rows_of(pool, [1]))
        stale, _ = codec(second, used)
    assert torch.equal(again, whole(codec, second))
    assert not torch.allclose(stale, again, atol=1e-2)


def test_every_history_is_used(codec: Codec) -> None:
    """Each tensor of the state changes the sound that follows, so none may be lost or mixed up."""
    codes = some_codes(codec, 1, 4, 3)
    with torch.inference_mode():
        _, state = codec(some_codes(codec, 1, 3, 4), codec.fresh(1))
        expected, _ = codec(codes, state)
        for i in range(len(state)):
            broken = [torch.zeros_like(t) if i == j else t for j, t in enumerate(state)]
            assert not torch.allclose(codec(codes, broken)[0], expected, atol=1e-5), i


def test_decoding_leaves_the_given_state_alone(codec: Codec) -> None:
    state = codec.fresh(2)
    with torch.inference_mode():
        codec(some_codes(codec, 2, 3, 5), state)
    assert all(not tensor.any() for tensor in state)


def test_a_stream_does_not_hear_its_neighbours(codec: Codec) -> None:
    codes = some_codes(codec, 8, 12, 6)
    together = whole(codec, codes)
    for row in range(8):
        assert_close(together[row], whole(codec, codes[row : row + 1])[0])
