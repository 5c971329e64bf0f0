"""On a card: graphs against eager launches, in every bucket, and a host that never waits."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.runtime.rig import begin, prompt_of, random_model, runner_of, speak

from vivace.checkpoint import Model
from vivace.model.fused import use_kernels
from vivace.runtime.passes import any_frame
from vivace.runtime.runner import Runner
from vivace.runtime.sizes import Sizes
from vivace.types import Row, Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card"),
    pytest.mark.timeout(600),
]
SIZES = Sizes((1, 2, 4, 8, 16), (16, 32), (1, 2, 4), (1, 2, 4))
SLOTS = 16
# Rows and what they are padded to: every bucket, with none to three rows of padding.
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16)


@pytest.fixture(scope="module", autouse=True)
def in_fp32() -> Iterator[None]:
    """Convolutions that round to TF32 are another codec."""
    torch.backends.cudnn.allow_tf32, before = False, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture(scope="module", params=["kernels", "torch"])
def on_card(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    model = random_model(tmp_path_factory.mktemp("m"), "cuda", torch.float32)
    if request.param == "kernels":
        assert use_kernels(model.talker, model.predictor)
    return model


def warm(model: Model, *, graphs: bool) -> Runner:
    common = any_frame(model.spec, 3)
    runner = runner_of(model, slots=SLOTS, sizes=SIZES, common=common, graphs=graphs)
    runner.warm_up(SIZES)
    return runner


@pytest.fixture(scope="module")
def graphs(on_card: Model) -> Iterator[Runner]:
    yield warm(on_card, graphs=True)


@pytest.fixture(scope="module")
def eager(on_card: Model) -> Iterator[Runner]:
    yield warm(on_card, graphs=False)


@pytest.mark.parametrize("rows", ROWS)
def test_graph_equals_eager(graphs: Runner, eager: Runner, rows: int) -> None:
    seeds = list(range(rows))
    assert np.array_equal(speak(graphs, seeds), speak(eager, seeds))
    slots = range(min(rows, 4))
    pcm, expected = (r.voice(slots, 6).result() for r in (graphs, eager))
    np.testing.assert_allclose(pcm, expected, rtol=0, atol=1e-5)
    assert graphs.late == 0 < eager.late


def test_a_card_says_what_the_cpu_says(graphs: Runner, tmp_path: Path) -> None:
    cpu = runner_of(random_model(tmp_path, "cpu", torch.float32), slots=4, sizes=None)
    seeds = [1, 2, 3]
    assert np.array_equal(speak(graphs, seeds), speak(cpu, seeds))
    pcm, expected = (r.voice(range(3), 6).result() for r in (graphs, cpu))
    np.testing.assert_allclose(pcm, expected, rtol=0, atol=1e-3)


def test_case_53_same_seed_same_codes_at_every_batch(graphs: Runner) -> None:
    alone = speak(graphs, [42])[0]
    for rows in ROWS[1:]:
        assert np.array_equal(speak(graphs, [*range(rows - 1), 42])[-1], alone), rows


def test_case_55_nothing_is_late_and_the_host_never_waits(on_card: Model, graphs: Runner) -> None:
    """Torch raises where anything would synchronise; the second round starts no new kernel."""
    pad = on_card.spec.text_ids.tts_pad
    for mode in ("default", "error"):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            for slot in range(SLOTS):
                begin(graphs, slot, prompt_of(on_card, 12, head=9), Sampling(min_frames=99), slot)
            pending = [graphs.frame([Row(slot, pad) for slot in range(rows)]) for rows in ROWS]
            sound = [graphs.voice(range(rows), 3) for rows in (1, 2, 4)]
            for slot in range(SLOTS):
                graphs.close(slot)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for step in (*pending, *sound):
            step.result()
    assert graphs.late == 0
