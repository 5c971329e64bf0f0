"""Weights in int8: how far off, the same in every batch, and refused where they cannot be."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.load import Model

from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.errors import CheckpointError
from vivace.kernels.packed import pack
from vivace.model.fused import frame
from vivace.model.layers import Linear
from vivace.model.quant import KINDS, Int8, check, levels, quantize
from vivace.types import Sampling, SpeechRequest

pytestmark = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="needs an x86 processor"
)
CPU, CARD = torch.device("cpu"), torch.device("cuda")


def linear(into: int, out: int, seed: int, *, bias: bool = False) -> Linear:
    torch.manual_seed(seed)
    made = Linear(into, out, bias=bias).requires_grad_(False)
    for parameter in made.parameters():
        parameter.normal_()
    return made


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 5), st.booleans(), st.integers(0, 99))
def test_a_product_is_off_by_no_more_than_the_steps_of_its_scales(
    into: int, out: int, rows: int, bias: bool, seed: int
) -> None:
    plain = linear(into, out, seed, bias=bias)
    x, residual = torch.randn(rows, into), torch.randn(rows, out)
    small = Int8.of(plain)
    # Half a step of each weight and of each activation, and both at once.
    w, a = plain.weight.abs(), x.abs()
    step_w, step_a = w.amax(0) / 127 / 2, a.amax(1, keepdim=True) / small.levels / 2
    most = a.sum(1, keepdim=True) * step_w + step_a * w.sum(0) + into * step_a * step_w
    assert ((small(x) - plain(x)).abs() <= most * 1.01 + 1e-5).all()
    if not bias:
        added = small.onto(residual, x)
        torch.testing.assert_close(added, residual + small(x), rtol=1e-5, atol=1e-5)


def test_a_row_is_the_same_whatever_is_in_its_batch() -> None:
    small = Int8.of(linear(96, 64, 0))
    x = torch.randn(7, 96) * torch.logspace(-3, 3, 7)[:, None]
    whole = small(x)
    for i in range(7):
        assert torch.equal(small(x[i : i + 1])[0], whole[i])
        assert torch.equal(small(x[i:])[0], whole[i])


def test_zeros_stay_zeros() -> None:
    plain = linear(8, 4, 0)
    plain.weight[:, 1] = 0.0
    y = Int8.of(plain)(torch.cat((torch.zeros(1, 8), torch.randn(1, 8))))
    assert torch.equal(y[0], torch.zeros(4)) and y[1, 1] == 0.0 and y.isfinite().all()


def rounded(model: Model) -> Model:
    made = copy.deepcopy(model)
    quantize(made.talker, made.predictor)
    return made


def test_no_product_of_both_stacks_is_left_as_it_was(model: Callable[[str], Model]) -> None:
    small = rounded(model("custom_voice"))
    for stack in (small.talker, small.predictor):
        kinds = {type(module) for module in stack.modules() if isinstance(module, Linear)}
        assert kinds == {Int8}
        large = [name for name, p in stack.named_parameters() if p.ndim > 1]
        assert all("embedding" in name or "norm" in name for name in large)


def test_frames_of_a_small_model_are_drawn_as_before(model: Callable[[str], Model]) -> None:
    """Its weights are random, so its logits lie far apart; a real one's do not, see the docs."""
    m = model("custom_voice")
    small = rounded(m)
    kept = frame(m.talker, m.predictor, rows=2, context=3)
    made = frame(small.talker, small.predictor, rows=2, context=3)
    assert made.shape == kept.shape
    least = 0.5 if levels() == 127 else 0.4  # 7 bits draw fewer alike; by chance it is 1 in 1000
    assert (made == kept).float().mean() > least


def test_speech_with_int8_weights_is_the_same_alone_and_in_a_batch() -> None:
    config = EngineConfig(
        device="cpu", quantize="int8", max_sessions=4, threads=1, slo_ttfa_s=3600.0
    )
    request = SpeechRequest(sampling=Sampling(seed=7))
    with Engine(config=config) as engine:
        alone = list(engine.say("Yes.", request))
        beside = [engine.say(text, request) for text in ("Yes.", "Thank you.", "Why?")]
        both = list(beside[0])
        for session in beside[1:]:
            assert sum(len(chunk.pcm) for chunk in session)
    codes = [np.concatenate([chunk.codes for chunk in chunks]) for chunks in (alone, both)]
    np.testing.assert_array_equal(*codes)


@pytest.mark.parametrize(
    ("wish", "device", "dtype", "says"),
    [
        ("int4", CPU, torch.float32, "takes none, int8 or fp8"),
        ("fp8", CPU, torch.float32, "on the CPU there is --quantize int8 alone"),
        ("int8", CPU, torch.bfloat16, "on the CPU there is --quantize int8 alone"),
        ("int8", CARD, torch.float32, "for --dtype bfloat16"),
        ("fp8", CARD, torch.bfloat16, "fp8 needs compute capability 8.9, and this card has 8.6"),
        ("int8", CARD, torch.bfloat16, "needs our kernels"),
    ],
)
def test_what_cannot_be_done_is_refused(
    wish: str,
    device: torch.device,
    dtype: torch.dtype,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))
    with pytest.raises(CheckpointError, match=says):
        check(wish, device, dtype, ours=False)
    check("none", device, dtype, ours=False)


@given(st.integers(1, 70), st.integers(1, 70), st.integers(0, 99))
def test_a_weight_in_8_bits_is_off_by_no_more_than_its_steps(
    into: int, out: int, seed: int
) -> None:
    weight = linear(into, out, seed).weight * torch.logspace(-9, 9, out)
    largest = weight.abs().amax(0)
    for kind, relative, absolute in (("int8", 0.0, 0.5 / 127), ("fp8", 2**-4, 2**-10 / 448)):
        off = (pack(weight, KINDS[kind]).wide(torch.float32) - weight).abs()
        assert (off <= 1.001 * (relative * weight.abs()).maximum(absolute * largest)).all()


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_column_of_zeros_stays_zeros(kind: str) -> None:
    weight = torch.randn(8, 4)
    weight[:, 1] = 0.0
    assert not pack(weight, KINDS[kind]).wide(torch.float32)[:, 1].any()
