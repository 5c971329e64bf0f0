"""What a clip is encoded to is what the official package encodes it to (tests/golden)."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.golden import read
from tests.golden.clips import hum
from tests.golden.load import Model

from vivace.checkpoint import Encoders
from vivace.model.codec_encoder import CHUNK_FRAMES
from vivace.model.speaker import LEAST_SAMPLES
from vivace.types import SAMPLES_PER_FRAME

CLOSE = 1e-3  # of an x-vector whose numbers are around 1


@pytest.fixture(scope="module")
def encoders(model: Callable[[str], Model]) -> Encoders:
    found = model("base").encoders
    assert found is not None
    return found


@torch.inference_mode()
def test_codes_and_x_vectors(encoders: Encoders) -> None:
    clips = list(read.clips())
    assert len(clips) == 5
    assert {len(pcm) % SAMPLES_PER_FRAME == 0 for pcm, _, _ in clips} == {True, False}
    for pcm, codes, x_vector in clips:
        sound = torch.from_numpy(pcm)
        assert len(codes) == -(-len(pcm) // SAMPLES_PER_FRAME)
        np.testing.assert_array_equal(encoders.codec(sound), codes)
        np.testing.assert_allclose(encoders.speaker(sound), x_vector, rtol=0, atol=CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("frames", [1, 5, 100])
def test_the_size_of_the_chunks_changes_nothing(
    encoders: Encoders, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    pcm = torch.from_numpy(hum(SAMPLES_PER_FRAME * 40 + 11).astype(np.float32) / 32768)
    rows = torch.cat(list(encoders.codec._convolved(pcm)), 2)
    assert rows.shape[2] == 81 and frames != CHUNK_FRAMES
    monkeypatch.setattr("vivace.model.codec_encoder.CHUNK_FRAMES", frames)
    again = torch.cat(list(encoders.codec._convolved(pcm)), 2)
    np.testing.assert_allclose(again, rows, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_the_shortest_clip_has_a_voice(encoders: Encoders) -> None:
    pcm = torch.from_numpy(hum(LEAST_SAMPLES).astype(np.float32) / 32768)
    assert encoders.speaker(pcm).isfinite().all()
    assert encoders.codec(pcm).shape == (2, 16)


def test_only_a_base_checkpoint_has_encoders(model: Callable[[str], Model]) -> None:
    assert model("custom_voice").encoders is None
    assert not model("custom_voice").spec.clones and model("base").spec.clones
