"""Norm, products and SwiGLU of one token a row.

A norm's weight is folded into the product behind it, and its scale 1 / rms(x) is applied by
whoever reads that product: x goes into the library's product as it is, and no launch is spent.
Up to `FEW` rows our own product wins: it fetches its weights while the kernel in front still runs.
Weights in 8 bits have a product of ours for any number of rows (`tiles`).
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from vivace.kernels import tiles
from vivace.kernels.launch import FEW, options, power
from vivace.kernels.packed import Packed, Weight

_PROGRAMS = 256  # at least, where there are columns enough
_WARPS = 8
_TILE = 32 * 1024  # weights a program of 8 warps holds in registers


@triton.jit
def scale_of(x, row, stride, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """1 / rms of one row."""
    i = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + i, mask=i < SIZE, other=0.0).to(tl.float32)
    return 1.0 / tl.sqrt(tl.sum(values * values, 0) / SIZE + eps)


@triton.jit
def _norm(
    x, weight, out, stride, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < SIZE
    gain = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    values = tl.load(x + row * stride + i, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / SIZE + eps)
    tl.store(out + row * SIZE + i, (values * scale * gain).to(out.dtype.element_ty), mask=inside)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm of rows [B, H]."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size = x.shape[1]
    _norm[(len(x),)](x, weight, out, x.stride(0), eps, size, power(size), **options(x, 4))
    return out


def norm_twin(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same in plain torch."""
    return F.rms_norm(x, x.shape[-1:], weight, eps)


@triton.jit
def _swiglu(
    product, x, out, stride, eps,
    WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < SIZE
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    scale = scale_of(x, row, stride, eps, WIDTH, WIDTH_BLOCK)
    base = product + row * 2 * SIZE + i
    gate = tl.load(base, mask=inside, other=0.0).to(tl.float32) * scale
    up = tl.load(base + SIZE, mask=inside, other=0.0).to(tl.float32) * scale
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * SIZE + i, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _step(steps, n, N, BN: tl.constexpr, PACKED: tl.constexpr):
    """What columns n of a weight count, [1, BN]."""
    if PACKED:
        return tl.load(steps + n, mask=n < N, other=0.0)[None, :]
    else:
        return tl.full((1, BN), 1.0, tl.float32)


@triton.jit
def _gemv(
    x, weight, steps, out, stride_x, stride_out, stride_n, stride_k, eps, ROWS, N,
    ROWS_BLOCK: tl.constexpr, K: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    PACKED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """`BN` columns of out = x @ weight for all rows; GATED: silu(gate) * up of norm(x) @ weight.

    PACKED: `steps` are the columns' scales.
    """
    if EARLY:
        gdc_launch_dependents()
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    inside = (n < N)[:, None] & (k < K)[None, :]
    at = weight + n[:, None].to(tl.int64) * stride_n + k[None, :] * stride_k
    first = tl.load(at, mask=inside, other=0.0)
    if GATED:
        second = tl.load(at + N * stride_n, mask=inside, other=0.0)
        second_step = _step(steps + N, n, N, BN, PACKED)
    step = _step(steps, n, N, BN, PACKED)
    if EARLY:
        gdc_wait()
    if ROWS_BLOCK == 1:
        values = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
        y = tl.sum(first.to(tl.float32) * values[None, :], 1)[None, :]
        if GATED:
            z = tl.sum(second.to(tl.float32) * values[None, :], 1)[None, :]
            scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / K + eps)
    else:
        m = tl.arange(0, ROWS_BLOCK)
        held = (m < ROWS)[:, None] & (k < K)[None, :]
        values = tl.load(x + m[:, None] * stride_x + k[None, :], mask=held, other=0.0)
        values = values.to(tl.float32)
        y = tl.sum(first.to(tl.float32)[None, :, :] * values[:, None, :], 2)
        if GATED:
            z = tl.sum(second.to(tl.float32)[None, :, :] * values[:, None, :], 2)
            scale = (1.0 / tl.sqrt(tl.sum(values * values, 1) / K + eps))[:, None]
    y = y * step
    if GATED:
        y = y * scale
        y = y / (1.0 + tl.exp(-y)) * (z * second_step * scale)
    rows = tl.arange(0, ROWS_BLOCK)[:, None]
    to = out + rows * stride_out + n[None, :]
    held = (rows < ROWS) & (n < N)[None, :]
    if ADD:
        y += tl.load(to, mask=held, other=0.0).to(tl.float32)
    tl.store(to, y.to(out.dtype.element_ty), mask=held)


def _launch(
    x: Tensor, weight: Weight, out: Tensor, *, eps: float = 0.0, gated: bool = False,
    add: bool = False,
) -> Tensor:  # fmt: skip
    """Our own product, of few rows or with a weight in 8 bits."""
    (rows, k), n = x.shape, out.shape[1]
    if isinstance(weight, Packed):
        if rows > FEW:
            return tiles.launch(x, weight, out, add=add)
        values, steps = weight.values, weight.scale
    else:
        values = steps = weight
    block = power(k)
    most = _TILE // block // (2 if gated else 1) // power(rows)
    columns = max(1, min(most, 16, max(4, power(n // _PROGRAMS + 1) // 2)))
    _gemv[(triton.cdiv(n, columns),)](
        x, values, steps, out, x.stride(0), out.stride(0), values.stride(1), values.stride(0), eps,
        rows, n, power(rows), k, columns, block, gated, add, values is not steps,
        **options(x, _WARPS),
    )  # fmt: skip
    return out


def product(x: Tensor, weight: Weight) -> Tensor:
    """The product of x [B, in] and weight [in, out]."""
    if len(x) > FEW and isinstance(weight, Tensor):
        return torch.mm(x, weight)
    out = torch.empty((len(x), weight.shape[1]), dtype=x.dtype, device=x.device)
    return _launch(x, weight, out)


def add_product(x: Tensor, y: Tensor, weight: Weight) -> None:
    """Add y [B, in] @ weight [in, out] to x in place."""
    if len(x) > FEW and isinstance(weight, Tensor):
        x.addmm_(y, weight)
    else:
        _launch(y, weight, x, add=True)


def gated(x: Tensor, weight: Weight, eps: float) -> Tensor:
    """silu(gate) * up of rms-normed x [B, H], with gate and up in one weight [H, 2 * I]."""
    rows, size = len(x), weight.shape[1] // 2
    out = torch.empty((rows, size), dtype=x.dtype, device=x.device)
    if rows <= FEW:
        return _launch(x, weight, out, eps=eps, gated=True)
    both, width, block = product(x, weight), x.shape[1], min(1024, power(size))
    _swiglu[(rows, triton.cdiv(size, block))](
        both, x, out, x.stride(0), eps, width, power(width), size, block,
        **options(x, 4, ours=isinstance(weight, Packed)),
    )  # fmt: skip
    return out


def gated_twin(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same in plain torch."""
    gate, up = (F.rms_norm(x, x.shape[-1:], eps=eps) @ weight).chunk(2, 1)
    return F.silu(gate) * up
