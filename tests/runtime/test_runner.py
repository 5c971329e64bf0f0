"""The runner where the numbers are extreme."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.golden.load import Model

from vivace.runtime.runner import Runner
from vivace.text.prompt import Prompt
from vivace.types import Row, Sampling

EXTREMES = [
    Sampling(top_p=1e-300),
    Sampling(subtalker_top_p=1e-300),
    Sampling(temperature=1e-300, top_p=0.5),
    Sampling(subtalker_temperature=1e-40, subtalker_top_p=0.3),
    Sampling(repetition_penalty=1e-300, top_p=0.5),
    Sampling(temperature=2.0, top_k=0, repetition_penalty=2.0),
    Sampling(top_k=1 << 30, subtalker_top_k=1 << 30, min_frames=1 << 30),
    Sampling(seed=2**63 - 1),
]


@pytest.mark.parametrize("sampling", EXTREMES, ids=str)
def test_an_extreme_row_speaks_and_its_neighbour_hears_nothing_of_it(
    model: Callable[[str], Model], sampling: Sampling
) -> None:
    alone = _speak(model("custom_voice"), [Sampling()])
    beside = _speak(model("custom_voice"), [Sampling(), sampling])
    assert np.array_equal(alone[0], beside[0])
    vocab = model("custom_voice").spec.predictor.vocab
    assert ((beside >= 0) & (beside[:, :, 1:].max() < vocab)).all()


def _speak(model: Model, rows: list[Sampling]) -> np.ndarray:
    """Codes [rows, frames, 16] of a few frames, and all of them decoded."""
    spec = model.spec
    runner = Runner(*_parts(model), slots=2, pages=2)
    prompt = Prompt([spec.text_ids.tts_pad] * 5, [spec.codec_ids.pad] * 5)
    for slot, sampling in enumerate(rows):
        runner.open(slot, sampling, seed=slot if sampling.seed is None else sampling.seed)
        assert runner.room(slot, 12)
        runner.begin(slot, prompt)
        assert runner.prefill(slot, 64).result()
    batch = [Row(slot, spec.text_ids.tts_pad) for slot in range(len(rows))]
    frames = [runner.frame(batch).result().codes for _ in range(6)]
    assert np.isfinite(runner.voice(range(len(rows)), 6).result()).all()
    return np.stack(frames, 1)


def test_pages_that_run_out_are_refused_and_come_back(model: Callable[[str], Model]) -> None:
    """Long sessions grow while there are pages; who asks for more is told no, and nobody else."""
    runner = Runner(*_parts(model("custom_voice")), slots=2, pages=3)
    runner.open(0, Sampling(), 1)
    runner.open(1, Sampling(), 2)
    assert runner.room(0, 65) and not runner.room(1, 65) and runner.room(1, 64)
    frames = runner.frame([Row(0, 0), Row(1, 0)]).result()
    assert len(frames.codes) == 2
    runner.close(0)
    assert runner.room(1, 3 * 64) and not runner.room(1, 3 * 64 + 1)


def test_a_long_prompt_is_laid_down_in_pieces(model: Callable[[str], Model]) -> None:
    m = model("custom_voice")
    prompt = Prompt([m.spec.text_ids.tts_pad] * 101, [m.spec.codec_ids.pad] * 101, head=10)
    made, pieces = [], []
    for rows in (1000, 32):
        runner = Runner(*_parts(m), slots=1, pages=2)
        runner.open(0, Sampling(), 1)
        assert runner.room(0, 110)
        runner.begin(0, prompt)
        pieces.append(1)
        while not runner.prefill(0, rows).result():
            pieces[-1] += 1
        made.append(np.stack([runner.frame([Row(0, 0)]).result().codes for _ in range(4)]))
    assert pieces == [2, 4]  # the head alone, then the rest
    assert np.array_equal(*made)


def _parts(model: Model) -> tuple[Any, ...]:
    return model.spec, model.talker, model.predictor, model.codec


def test_a_row_that_is_not_of_numbers_is_told_and_leaves_the_others_alone(
    model: Callable[[str], Model],
) -> None:
    """Nor does it leave anything behind in the pages that it gives back."""
    m = model("custom_voice")
    bad, good = 7, m.spec.text_ids.tts_pad
    row = m.talker.text_embedding.weight.data[bad]
    kept = row.clone()

    def speak(runner: Runner, slots: dict[int, int], frames: int = 4) -> tuple[Any, Any]:
        for slot, text in slots.items():
            rows = 70 if text == bad else 10  # two pages, or one
            prompt = Prompt([text] * rows, [m.spec.codec_ids.pad] * rows)
            runner.open(slot, Sampling(), seed=5)
            assert runner.room(slot, rows + 10)
            runner.begin(slot, prompt)
            assert runner.prefill(slot, 128).result()
        made = [
            runner.frame([Row(slot, text) for slot, text in slots.items()]).result()
            for _ in range(frames)
        ]
        spoilt = [[False] * len(slots) if f.spoilt is None else f.spoilt.tolist() for f in made]
        return np.stack([f.codes for f in made], 1), spoilt

    try:
        runner = Runner(*_parts(m), slots=3, pages=4)
        alone, spoilt = speak(runner, {1: good})
        assert not np.any(spoilt)
        runner.close(1)
        row.fill_(torch.nan)
        both, spoilt = speak(runner, {0: bad, 1: good})
        assert spoilt == [[True, False]] * 4
        np.testing.assert_array_equal(both[1], alone[0])
        runner.close(0)
        after, spoilt = speak(runner, {2: good})
        assert spoilt == [[False]] * 4
        np.testing.assert_array_equal(after[0], alone[0])
    finally:
        row.copy_(kept)
