"""Products of more than a few rows with weights in 8 bits, widened tile by tile on their way in.

The library has none that reads bytes and multiplies in bfloat16. The weight's columns are the rows
of the tensor cores' tile, since there are many of them and few tokens.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from vivace.kernels.launch import options, power
from vivace.kernels.packed import COLUMNS, Packed

_PROGRAMS = 256  # wanted, so that every core of a card has weights on their way
_LEAST_STEPS = 2  # of K in one program, or the adding up costs more than it gains


@triton.jit
def _put(total, scale, out, stride, m, n, ROWS, N, ADD: tl.constexpr):
    """Store a tile [BN, BM] of sums as columns n of rows m."""
    held = (n < N)[:, None] & (m < ROWS)[None, :]
    to = out + m[None, :] * stride + n[:, None]
    y = total * tl.load(scale + n, mask=n < N, other=0.0)[:, None]
    if ADD:
        y += tl.load(to, mask=held, other=0.0).to(tl.float32)
    tl.store(to, y.to(out.dtype.element_ty), mask=held)


@triton.jit
def _prefetch(at):
    """Have the lines at these addresses fetched into the card's cache."""
    ask: tl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
    tl.inline_asm_elementwise(ask, "=r,l", [at.to(tl.int64)], tl.int32, is_pure=False, pack=1)


@triton.jit(do_not_specialize=["ROWS"])
def _tiles(
    x, weight, scale, out, parts, done, stride_x, stride_out, ROWS, N, K, SHARE, SHARES,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SPLIT: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """`BN` columns of out = x @ weight for `BM` rows: all of K, or `SHARE` of it.

    Of the programs that share a tile the one that is done last adds up, always in the same order.
    """
    tile, share = tl.program_id(0), tl.program_id(1)
    n = tile * BN + tl.arange(0, BN)
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    columns = weight + n.to(tl.int64) * K
    begin, end = share * SHARE, min(K, (share + 1) * SHARE)
    if EARLY:
        gdc_launch_dependents()
        for start in range(begin, end, 128):
            _prefetch(tl.where(n < N, columns, weight) + start)
        gdc_wait()
    total = tl.zeros((BN, BM), tl.float32)
    for start in range(begin, end, BK):
        k = start + tl.arange(0, BK)
        inside = (n < N)[:, None] & (k < K)[None, :]
        w = tl.load(columns[:, None] + k[None, :], mask=inside, other=0.0)
        if w.dtype == tl.float8e4nv:  # not at once: no such instruction before 9.0
            w = w.to(tl.float32)
        held = (k < K)[:, None] & (m < ROWS)[None, :]
        values = tl.load(x + m[None, :] * stride_x + k[:, None], mask=held, other=0.0)
        total = tl.dot(w.to(values.dtype), values, total, input_precision="ieee")
    if SPLIT:
        cell = tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :]
        first = parts + tile * SHARES * BN * BM + cell
        tl.store(first + share * BN * BM, total)
        tl.debug_barrier()
        if tl.atomic_add(done + tile, 1, sem="acq_rel") == SHARES - 1:
            whole = tl.zeros((BN, BM), tl.float32)
            for i in range(SHARES):
                whole += tl.load(first + i * BN * BM, cache_modifier=".cg")
            tl.store(done + tile, 0)
            _put(whole, scale, out, stride_out, m, n, ROWS, N, ADD)
    else:
        _put(total, scale, out, stride_out, m, n, ROWS, N, ADD)


def shape_of(rows: int, k: int, n: int) -> tuple[int, int, int, int]:
    """BM, BN, BK, and how much of K one program takes."""
    bm = min(128, max(16, power(rows)))
    bn = 2 * COLUMNS if bm == 128 and n >= 128 * COLUMNS else COLUMNS
    bk = 128 if bm <= 32 else 64
    wanted = (_PROGRAMS if bm <= 32 else _PROGRAMS // 2) // triton.cdiv(n, bn)
    shares = 1 if rows > bm else max(1, min(wanted, k // (bk * _LEAST_STEPS)))
    return bm, bn, bk, triton.cdiv(triton.cdiv(k, bk), shares) * bk


def launch(x: Tensor, weight: Packed, out: Tensor, *, add: bool) -> Tensor:
    """Put the product of x [B, in] and weight into `out` [B, out], or add it."""
    (rows, k), n = x.shape, weight.shape[1]
    bm, bn, bk, share = shape_of(rows, k, n)
    tiles, shares = triton.cdiv(n, bn), triton.cdiv(k, share)
    held = tiles * shares * bn * bm if shares > 1 else 1
    parts = torch.empty(held, dtype=torch.float32, device=x.device)
    _tiles[(tiles, shares, triton.cdiv(rows, bm))](
        x, weight.values, weight.scale, out, parts, weight.done, x.stride(0), out.stride(0),
        rows, n, k, share, shares, bm, bn, bk, shares > 1, add,
        **options(x, bn // 16, ours=True), num_stages=4,
    )  # fmt: skip
    return out
