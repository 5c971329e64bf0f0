"""Weights in 8 bits through the kernels against the weights that they stand for, in plain torch."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.golden.load import Model
from tests.kernels.stacks import Stacks, narrow, stacks, widened
from tests.kernels.test_linear import close
from tests.kernels.test_steps import STACK

from vivace.kernels import linear, ops, tiles
from vivace.kernels.packed import Packed, pack
from vivace.model.fused import use_kernels
from vivace.model.quant import KINDS
from vivace.runtime.runner import Runner
from vivace.text.prompt import Prompt
from vivace.types import Row, Sampling

F32 = torch.float32
ROWS = [1, 2, 3, 16, 33]


def packed(into: int, out: int, kind: str, device: torch.device) -> Packed:
    return pack(torch.randn(into, out, device=device), KINDS[kind])


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("into", "out"), [(48, 81), (300, 64), (1, 1)])
def test_products(into: int, out: int, rows: int, kind: str, device: torch.device) -> None:
    w = packed(into, out, kind, device)
    x, y = torch.randn(rows, into, device=device), torch.randn(rows, out, device=device)
    assert close(ops.product(x, w), x @ w.wide(F32))
    expected = y + x @ w.wide(F32)
    ops.add_product(y, x, w)
    assert close(y, expected)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 40, 150])
def test_gated(size: int, rows: int, kind: str, device: torch.device) -> None:
    x, w = torch.randn(rows, 48, device=device) * 3, packed(48, 2 * size, kind, device)
    assert close(ops.gated(x, w, 1e-6), linear.gated_twin(x, w.wide(F32), 1e-6))


@pytest.mark.parametrize("rows", [3, 40, 130])
def test_shares_of_a_long_sum_are_added_up_again_and_again(rows: int, device: torch.device) -> None:
    """On one side the parts of a tile, on the other more rows than a tile has."""
    w, x = packed(900, 100, "int8", device), torch.randn(rows, 900, device=device)
    bm, *_, share = tiles.shape_of(rows, 900, 100)
    assert (share < 900) == (rows <= bm)
    found = [ops.product(x, w) for _ in range(2)]
    assert torch.equal(*found) and close(found[0], x @ w.wide(F32))
    assert not w.done.any()


def test_rows_of_a_wider_tensor(device: torch.device) -> None:
    wide, w = torch.randn(4, 2, 48, device=device), packed(48, 48, "fp8", device)
    x = wide[:, 1]
    expected = x + x @ w.wide(F32)
    ops.add_product(x, x.clone(), w)
    assert close(x, expected)


@pytest.fixture
def both(model: Callable[[str], Model], device: torch.device) -> Stacks:
    later = replace(STACK, hidden=16, vocab=64)
    spec = replace(model("custom_voice").spec, talker=STACK, predictor=later)
    return stacks(replace(spec, text_vocab=10, text_hidden=32), device)


@pytest.mark.parametrize(("kind", "rows"), [("int8", 3), ("fp8", 1)])
@torch.inference_mode()
def test_the_same_codes_fused_or_not(both: Stacks, kind: str, rows: int) -> None:
    small = narrow(deepcopy(both), kind)
    expected = widened(both, kind).frame(rows, 3)
    assert torch.equal(small.frame(rows, 3), expected)
    assert use_kernels(small.talker, small.predictor)
    assert torch.equal(small.frame(rows, 3), expected)
    ids = torch.arange(rows, device=expected.device)
    assert close(small.talker.text(ids), both.talker.text(ids))


def spoken(model: Model, stacks: Stacks) -> "np.ndarray":
    """First frames of three sessions, prompts and all."""
    ids = model.spec.text_ids.tts_pad, model.spec.codec_ids.pad
    parts = model.spec, stacks.talker, stacks.predictor, model.codec
    runner = Runner(*parts, slots=3, pages=3)
    for slot in range(3):
        runner.open(slot, Sampling(), seed=slot)
        assert runner.room(slot, 6)
        runner.begin(slot, Prompt([ids[0]] * 5, [ids[1]] * 5))
        assert runner.prefill(slot, 64).result()
    return runner.frame([Row(slot, ids[0]) for slot in range(3)]).result().codes


@pytest.mark.skipif(torch.cuda.is_available(), reason="on the interpreter, for a runner on the CPU")
def test_a_runner_makes_the_same_codes(model: Callable[[str], Model]) -> None:
    m = model("custom_voice")
    small, wide = (
        made(Stacks(*deepcopy((m.talker, m.predictor))), "int8") for made in (narrow, widened)
    )
    assert np.array_equal(spoken(m, small), spoken(m, wide))
