"""What crosses comes out as it went in."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace import errors
from vivace.errors import EngineFailure, Overloaded, Unprocessable, VivaceError, outcome
from vivace.host import Pulse, Readings
from vivace.meters import WAIT_S, Counts, Meters, Stock
from vivace.remote.messages import (
    Batch,
    Cancel,
    Ended,
    Failed,
    More,
    Open,
    Sound,
    Stop,
    Taken,
    decode_from_loop,
    decode_to_loop,
    encode,
)
from vivace.types import Chunk, Clone, Done, FinishReason, Sampling, SpeechRequest, TextMode

TREE = [kind for kind in vars(errors).values() if isinstance(kind, type)]
TREE = [kind for kind in TREE if issubclass(kind, VivaceError)]
PULSE = Pulse(1.5, 3, 2**40)


def cross(error: VivaceError) -> VivaceError:
    message = decode_from_loop(encode(Failed(error)))
    assert isinstance(message, Failed)
    return message.error


@pytest.mark.parametrize("kind", TREE)
def test_every_error_of_the_tree_comes_out_as_itself(kind: type[VivaceError]) -> None:
    fields = {"retry_after_s": 1.5} if kind is Overloaded else {"param": "voice", "code": "odd"}
    error = kind("Größe: 1\n2", **fields)  # type: ignore[arg-type]
    out = cross(error)
    assert type(out) is kind
    assert vars(out) == vars(error)
    assert (str(out), out.args) == (str(error), error.args)
    assert outcome(out) == outcome(error)


def test_an_error_the_edge_does_not_know_is_our_failure() -> None:
    class Novel(VivaceError):
        pass

    data = encode(Failed(Novel("something new")))
    assert type(cross(Novel("x"))) is Novel
    out = decode_from_loop(data.replace(b"Novel", b"Other"))
    assert isinstance(out, Failed)
    assert (type(out.error), out.error.message) == (EngineFailure, "something new")


@given(frames=st.integers(0, 9), seed=st.integers(0, 2**63 - 1), drop=st.booleans())
def test_events_come_out_whole_and_in_order(frames: int, seed: int, drop: bool) -> None:
    noise = np.random.default_rng(seed)
    chunk = Chunk(
        noise.standard_normal(frames * 1920, dtype=np.float32),
        noise.integers(0, 2048, (frames, 16)),
    )
    done = Done(FinishReason.ERROR, frames, 7, seed, Unprocessable("too long", param="input"))
    batch = decode_from_loop(
        encode(Batch(PULSE, [Sound("s1", chunk), Ended("s2", done, drop), Sound("s3", chunk)]))
    )
    assert isinstance(batch, Batch)
    assert batch.pulse == PULSE
    first, end, last = batch.events
    for sound in (first, last):
        assert isinstance(sound, Sound)
        for ours, theirs in ((sound.chunk.pcm, chunk.pcm), (sound.chunk.codes, chunk.codes)):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            assert np.array_equal(ours, theirs)
    assert isinstance(end, Ended)
    assert (end.done.reason, end.done.seed, end.drop) == (done.reason, seed, drop)
    assert type(end.done.error) is Unprocessable


def test_readings_come_out_as_they_went_in() -> None:
    meters = Meters()
    meters.stepped("frame", 3, 16, 0.004)
    meters.wait.add(WAIT_S, 0.2)
    readings = Readings(Counts(steps=3), meters, Stock(pages=7, pages_free=2))
    batch = decode_from_loop(encode(Batch(PULSE, [], readings)))
    assert isinstance(batch, Batch)
    assert batch.readings == readings


@pytest.mark.parametrize(
    "word",
    [
        More("s1", [0, 151_935], 12_345, True),
        Cancel("s1"),
        Cancel("s1", 12.5),
        Taken("s1", 2**31),
        Stop(),
        Open("s1", SpeechRequest(voice="ryan"), Sampling(seed=None), 2**63 - 1, 0.5, 12.0, 3),
    ],
)
def test_words_come_out_as_they_went_in(word: object) -> None:
    assert decode_to_loop(encode(word)) == word


def test_a_clones_clip_crosses() -> None:
    clone = Clone(np.ones(8, dtype=np.float32), np.arange(32).reshape(2, 16), "What I said.")
    request = SpeechRequest(clone=clone, text_mode=TextMode.WHOLE, guards=False)
    word = decode_to_loop(encode(Open("s1", request, Sampling(), 1, 0.0, math.inf)))
    assert isinstance(word, Open) and word.request.clone is not None
    assert word.request.clone.ref_codes is not None and clone.ref_codes is not None
    assert np.array_equal(word.request.clone.x_vector, clone.x_vector)
    assert np.array_equal(word.request.clone.ref_codes, clone.ref_codes)
    assert (word.request.clone.ref_text, word.request.text_mode) == ("What I said.", TextMode.WHOLE)
