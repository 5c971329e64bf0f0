"""Attention against plain torch, in fp32: page borders, empty and long contexts, two tokens."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from vivace.kernels import ops
from vivace.kernels.attention import attend_twin, splits

HIDDEN, HEADS, KV, D, SLOTS, WIDTH = 48, 4, 2, 16, 5, 16
EPS = 1e-6


@dataclass
class Pool:
    """A pool in which every slot owns pages in no order."""

    keys: Tensor
    values: Tensor
    table: Tensor
    position: Tensor
    slots: Tensor

    def clone(self) -> "Pool":
        return Pool(*(t.clone() for t in vars(self).values()))


def pool(positions: list[int], page: int, device: torch.device) -> Pool:
    keys, values = torch.randn(2, SLOTS * WIDTH, page, KV, D, device=device)
    table = torch.randperm(SLOTS * WIDTH, device=device).view(SLOTS, WIDTH)
    slots = torch.randperm(SLOTS, device=device)[: len(positions)]
    position = torch.full((SLOTS,), 7, device=device)
    position[slots] = torch.tensor(positions, device=device)
    return Pool(keys, values, table, position, slots)


def check(positions: list[int], page: int, tokens: int, device: torch.device) -> None:
    ours = pool(positions, page, device)
    theirs = ours.clone()
    rows = len(positions) * tokens
    gain = torch.randn(HEADS + KV, D, device=device)
    frequency = 1e4 ** -(torch.arange(0, D, 2, device=device) / D)
    scratch = ops.Scratch(len(positions), HEADS, KV, D, gain)
    for _ in range(2):  # twice, as the layers of a step share the scratch
        x = torch.randn(rows, HIDDEN, device=device)
        qkv = torch.randn(rows, (HEADS + 2 * KV) * D, device=device)
        found = ops.attend(x, qkv, gain, frequency, *vars(ours).values(), EPS, scratch)
        expected = attend_twin(x, qkv, gain, frequency, *vars(theirs).values(), EPS)
        assert torch.allclose(found, expected, atol=1e-5)
        assert torch.allclose(ours.keys, theirs.keys, atol=1e-5)  # and no other page is touched
        assert torch.allclose(ours.values, theirs.values, atol=1e-5)
        assert not scratch.arrived.any()


@pytest.mark.parametrize("positions", [[0], [1], [63], [64], [65, 0, 127], [128, 129, 31, 32]])
def test_page_borders(positions: list[int], device: torch.device) -> None:
    check(positions, 64, 1, device)


@pytest.mark.parametrize("position", [127, 128, 129, 257, 1023])
def test_a_long_context_is_split_and_put_together(position: int, device: torch.device) -> None:
    assert splits(1, KV) == 16
    check([position], 64, 1, device)


def test_rows_with_one_part_stand_beside_rows_with_many(device: torch.device) -> None:
    check([3, 700, 0, 200], 64, 1, device)


@pytest.mark.parametrize("at", [0, 1, 2, 14])
def test_a_frame_is_one_page(at: int, device: torch.device) -> None:
    check([at] * 3, 16, 1, device)


@pytest.mark.parametrize("rows", [1, 3])
def test_two_tokens_of_a_row_see_each_other(rows: int, device: torch.device) -> None:
    check([0] * rows, 16, 2, device)


def test_many_rows_are_not_split() -> None:
    assert splits(128, 8) == 1
    assert splits(1, 8) > splits(8, 8) > 1
