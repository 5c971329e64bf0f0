"""A clip is decoded for its first session alone; the others go on from the state behind it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.golden import read
from tests.golden.load import Model
from tests.runtime.rig import on_lanes, prompt_of, runner_of

from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.runtime import decoder
from vivace.runtime.runner import Runner
from vivace.text.prompt import Prompt
from vivace.types import Codes, Pcm, Sampling, SpeechRequest, TextMode


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


@pytest.mark.parametrize("mode", TextMode)
def test_a_clips_words_are_laid_down_once_and_speech_is_the_same(
    model: Callable[[str], Model], mode: TextMode
) -> None:
    """Two texts, then the same words over other frames."""
    m, clone = model("base"), read.clone(x_vector_only=False)
    assert clone.ref_codes is not None
    others = replace(clone, ref_codes=clone.ref_codes[::-1].copy())
    greedy = Sampling(temperature=0.0, subtalker_temperature=0.0, max_frames=4)

    def said(**options: int) -> tuple[list[Codes], tuple[int, int]]:
        config = EngineConfig(device="cpu", max_sessions=1, max_context=256, threads=1, **options)
        with Engine(m.path, config=config, offline=True) as engine:
            made = []
            for voice, text in ((clone, "Hello."), (clone, "A test, this is."), (others, "Hello.")):
                request = SpeechRequest(
                    clone=voice, sampling=greedy, text_mode=mode, guards=False, trim=False
                )
                chunks = list(engine.say(text, request))
                made.append(np.concatenate([chunk.codes for chunk in chunks]))
            runner = engine._host._loop.runner.first  # type: ignore[attr-defined]
            return made, (runner.prefixes.hits, runner.prefixes.misses)

    fresh, _ = said(prefix_mb=0)
    shared, (hits, misses) = said()
    for ours, theirs in zip(shared, fresh, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # In whole text the words lie over padding, whatever the frames are.
    assert (hits, misses) == ((1, 2) if mode is TextMode.STREAMING else (2, 1))
    assert not np.array_equal(shared[0], shared[2])


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
