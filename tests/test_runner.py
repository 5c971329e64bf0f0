"""The runner where the numbers are extreme."""

from collections.abc import Callable

import numpy as np
import pytest
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
    runner = Runner(spec, model.talker, model.predictor, model.codec, slots=2, pages=2)
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
