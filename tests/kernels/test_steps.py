"""Talker and predictor on the kernels against the same modules in plain torch."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.golden.load import Model
from tests.kernels.stacks import Stacks, stacks

from vivace import kernels
from vivace.model.fused import embed_frames, use_kernels
from vivace.model.spec import ModelSpec, TransformerSpec

# Smaller than any checkpoint: the interpreter takes seconds a frame.
STACK = TransformerSpec(
    hidden=32,
    intermediate=40,
    layers=1,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=80,
    rope_theta=1e4,
    rms_eps=1e-6,
)


@pytest.fixture
def spec(model: Callable[[str], Model]) -> ModelSpec:
    later = replace(STACK, hidden=16, vocab=64)
    small = replace(model("custom_voice").spec, talker=STACK, predictor=later)
    return replace(small, text_vocab=10, text_hidden=32)


@pytest.fixture
def both(spec: ModelSpec, device: torch.device) -> Stacks:
    return stacks(spec, device)


@pytest.mark.parametrize(("rows", "context"), [(1, 0), (3, 130)])
def test_the_same_codes(both: Stacks, rows: int, context: int) -> None:
    expected = both.frame(rows, context)
    assert use_kernels(both.talker, both.predictor)
    assert torch.equal(both.frame(rows, context), expected)
    found = embed_frames(both.talker, both.predictor, expected)
    both.talker.fused = False
    assert torch.allclose(found, embed_frames(both.talker, both.predictor, expected), atol=1e-5)


def test_a_row_draws_the_same_in_every_batch(both: Stacks) -> None:
    assert use_kernels(both.talker, both.predictor)
    found = [both.frame(rows, 65)[0] for rows in (1, 3)]
    assert torch.equal(*found)


def test_a_kernel_that_does_not_compile_costs_one_warning(
    both: Stacks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such instruction\nwith a long listing")

    monkeypatch.setattr(kernels.ops, "draw", broken)
    with caplog.at_level(logging.WARNING):
        assert not use_kernels(both.talker, both.predictor)
    assert [r.message for r in caplog.records] == [
        "no fused kernels, so steps are slower: no such instruction"
    ]
    assert not both.talker.fused and not both.predictor.fused
    both.frame()


def test_without_triton_there_is_plain_torch(
    both: Stacks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "ops", None)
    assert not use_kernels(both.talker, both.predictor)
    assert not caplog.records


def test_half_precision_stays_in_plain_torch(spec: ModelSpec, device: torch.device) -> None:
    """Its range needs rows that are normed before they are multiplied."""
    half = stacks(spec, device, torch.float16)
    assert not use_kernels(half.talker, half.predictor)
