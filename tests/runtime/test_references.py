"""A clip is decoded for its first session alone; the others go on from the state behind it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from tests.golden import read
from tests.golden.load import Model
from tests.runtime.rig import on_lanes, prompt_of, runner_of

from vivace.runtime import decoder
from vivace.runtime.runner import Runner
from vivace.text.prompt import Prompt
from vivace.types import Codes, Pcm, Sampling


def heard(runner: Runner, slot: int, reference: Codes, codes: Codes) -> Pcm:
    """The sound of `codes` behind a reference."""
    model = prompt_of(runner, 4)  # type: ignore[arg-type]
    runner.open(slot, Sampling(), 1)
    assert runner.room(slot, 64)
    runner.begin(slot, Prompt(model.text, model.codec, None, reference))
    ring = runner.decoder.ring
    runner.tokens.do(lambda: ring[slot, : len(codes)].copy_(torch.from_numpy(codes))).result()
    pcm = runner.voice([slot], len(codes)).result()[0]
    runner.close(slot)
    return pcm


@contextmanager
def counted(runner: Runner) -> Iterator[list[int]]:
    """The frames of each pass of the codec."""
    frames: list[int] = []
    run = runner.decoder.lane.run

    def watched(work: object, shape: decoder.SoundShape, *rest: object) -> object:
        frames.append(shape.frames)
        return run(work, shape, *rest)  # type: ignore[arg-type]

    runner.decoder.lane.run = watched  # type: ignore[assignment, method-assign]
    yield frames
    runner.decoder.lane.run = run  # type: ignore[method-assign]


@pytest.mark.parametrize("card", [False, True])
def test_a_known_clip_is_not_decoded_again_and_sounds_the_same(
    model: Callable[[str], Model], card: bool
) -> None:
    runner = runner_of(model("base"), slots=3, sizes=None)
    if card:
        on_lanes(runner)
    clone = read.clone(x_vector_only=False)
    codes = read.case("base", "icl_streaming").rows[0].codes[:4]
    assert clone.ref_codes is not None
    with counted(runner) as frames:
        first = heard(runner, 0, clone.ref_codes, codes)
        assert sum(frames) == len(clone.ref_codes) + 4
        frames.clear()
        again = [heard(runner, slot, clone.ref_codes.copy(), codes) for slot in (0, 2)]
        assert frames == [4, 4]
        other = heard(runner, 1, clone.ref_codes[:-1], codes)
    for pcm in again:
        np.testing.assert_array_equal(pcm, first)
    assert np.abs(other - first).max() > 1e-3
    cache = runner.decoder.references
    assert (cache.hits, cache.misses, len(cache)) == (2, 2, 2)


def test_the_states_kept_are_bounded(
    model: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder, "REFERENCE_BYTES", 0)
    runner = runner_of(model("base"), slots=1, sizes=None)
    clone = read.clone(x_vector_only=False)
    codes = read.case("base", "icl_streaming").rows[0].codes[:2]
    assert clone.ref_codes is not None
    sounds = [heard(runner, 0, clone.ref_codes, codes) for _ in range(2)]
    np.testing.assert_array_equal(*sounds)
    assert len(runner.decoder.references) == 0


def test_a_clip_whose_decoding_failed_is_not_kept(model: Callable[[str], Model]) -> None:
    runner = runner_of(model("base"), slots=1, sizes=None)
    failed: Future[Pcm] = Future()
    failed.set_exception(RuntimeError("out of memory"))
    runner.decoder._keep(0, "clip", [failed])
    assert len(runner.decoder.references) == 0
    runner.decoder._keep(0, "clip", [])
    assert len(runner.decoder.references) == 1
