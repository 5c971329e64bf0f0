"""Norm, products and SwiGLU against plain torch, in fp32, on both sides of `FEW`."""

import pytest
import torch
from torch import Tensor

from vivace.kernels import linear, ops
from vivace.kernels.launch import FEW, power

ROWS = [1, 2, FEW + 1, 9]


def weight(into: int, out: int, device: torch.device, *, turned: bool) -> Tensor:
    """In either of the two layouts that modules use."""
    if turned:
        return torch.randn(out, into, device=device).T
    return torch.randn(into, out, device=device)


def close(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).norm() <= 1e-5 * expected.norm())


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("turned", [False, True])
def test_products(rows: int, turned: bool, device: torch.device) -> None:
    x, y = torch.randn(rows, 48, device=device), torch.randn(rows, 81, device=device)
    w = weight(48, 81, device, turned=turned)
    assert close(ops.product(x, w), x @ w)
    expected = y + x @ w
    ops.add_product(y, x, w)
    assert close(y, expected)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("size", [1, 40, 300])
def test_gated(rows: int, size: int, device: torch.device) -> None:
    x, w = torch.randn(rows, 48, device=device) * 3, weight(48, 2 * size, device, turned=True)
    assert close(ops.gated(x, w, 1e-6), linear.gated_twin(x, w, 1e-6))


@pytest.mark.parametrize("rows", ROWS)
def test_norm(rows: int, device: torch.device) -> None:
    x, w = torch.randn(rows, 100, device=device), torch.randn(100, device=device)
    assert close(ops.norm(x, w, 1e-5), linear.norm_twin(x, w, 1e-5))


def test_rows_of_a_wider_tensor(device: torch.device) -> None:
    """The predictor's first pass hands on every second row."""
    wide, w = torch.randn(2, 2, 48, device=device), weight(48, 32, device, turned=True)
    x = wide[:, 1]
    assert close(ops.product(x, w), x @ w)
    assert close(ops.gated(x, w, 1e-6), linear.gated_twin(x, w, 1e-6))


def test_nothing_of_zeros_is_lost(device: torch.device) -> None:
    x, w = torch.zeros(2, 48, device=device), weight(48, 32, device, turned=True)
    assert not ops.gated(x, w, 1e-6).any()


def test_power_of_two() -> None:
    assert [power(n) for n in (1, 2, 3, 4, 5, 1024, 1025)] == [1, 2, 4, 4, 8, 1024, 2048]
