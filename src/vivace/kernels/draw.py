"""Draws one code a row, all rows in one launch whatever their parameters, and looks codes up.

The same draw as `model.sampling`: Gumbel-max with noise hashed from (seed, frame, codebook, id).
Nothing is sorted. The best candidate is taken if fewer than k logits are above its own; if not, all
logits up to its own are out, and the next best is tried: once for peaked logits, about log2(V / k)
times for flat ones.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from vivace.kernels.launch import options, power
from vivace.kernels.linear import scale_of

# SplitMix64, as in model.sampling.
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15 - (1 << 64))
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9 - (1 << 64))
_MIX_2 = tl.constexpr(0x94D049BB133111EB - (1 << 64))


@triton.jit
def _mix(x):
    x = x + _GOLDEN
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


@triton.jit
def _gumbel(seed, frame, book, ids):
    """Standard Gumbel noise of one row's ids."""
    key = _mix(_mix(_mix(seed) + book) + frame)
    bits = (_mix(key + ids.to(tl.int64)) >> 41) & ((1 << 23) - 1)
    uniform = (bits.to(tl.float32) + 0.5) * (2.0**-23)
    return -tl.log(-tl.log(uniform))


@triton.jit
def _kth(scaled, k):
    """The k-th largest of `scaled`, bit by bit, as integers in the same order."""
    bits = scaled.to(tl.int32, bitcast=True)
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2147483648
    least = tl.min(order, 0) * 0
    half = least + 2147483648
    for i in range(32):
        higher = least | (half >> i)
        if tl.sum((order >= higher).to(tl.int32), 0) >= k:
            least = higher
    return tl.max(tl.where(order == least, scaled, float("-inf")), 0)


# One kernel for all codebooks, wherever their column of codes begins.
@triton.jit(do_not_specialize=["book"], do_not_specialize_on_alignment=["codes"])
def _draw(
    logits, x, temperature, top_k, top_p, seed, frame, slots,
    seen, penalty, least_frames, bias, table, codes, row_out,
    stride_logits, stride_x, stride_codes, eps, book, eos,
    V: tl.constexpr, V_BLOCK: tl.constexpr, HIDDEN: tl.constexpr, HIDDEN_BLOCK: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr,
    FIRST: tl.constexpr, SCALED: tl.constexpr, GATHER: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if EARLY:
        gdc_launch_dependents()
    ids = tl.arange(0, V_BLOCK)
    inside = ids < V
    # These were written before the step's first kernel.
    slot = tl.load(slots + row)
    made = tl.load(frame + slot)
    noise = _gumbel(tl.load(seed + slot), made, book, ids)
    t = tl.load(temperature + slot)
    k = tl.load(top_k + slot).to(tl.int32)
    p = tl.load(top_p + slot)
    if EARLY:
        gdc_wait()
    values = tl.load(logits + row * stride_logits + ids, mask=inside, other=0.0).to(tl.float32)
    if SCALED:
        values = values * scale_of(x, row, stride_x, eps, HIDDEN, HIDDEN_BLOCK)
    if FIRST:
        before = tl.load(seen + slot * V + ids, mask=inside, other=0).to(tl.int1)
        factor = tl.load(penalty + slot)
        lowered = tl.where(values > 0, values / factor, values * factor)
        values = tl.where(before, lowered, values)
        values += tl.load(bias + ids, mask=inside, other=0.0)
        early = (ids == eos) & (made < tl.load(least_frames + slot))
        values = tl.where(early, float("-inf"), values)
    scaled = tl.where(inside, values / t, float("-inf"))
    noisy = tl.where(inside, scaled + noise, float("-inf"))
    mass = float("inf")
    odds = scaled
    nucleus = p <= 1.0
    if nucleus:
        odds = tl.exp(scaled - tl.max(scaled, 0))
        kth = _kth(scaled, k)
        above = scaled > kth
        rest = (k - tl.sum(above.to(tl.int32), 0)).to(tl.float32)
        last = tl.max(tl.where(scaled == kth, odds, 0.0), 0)
        mass = p * (tl.sum(tl.where(above, odds, 0.0), 0) + rest * last)
    code = tl.minimum(tl.argmax(noisy, 0), V - 1)
    again = 1
    while again > 0:
        own = tl.max(tl.where(ids == code, scaled, float("-inf")), 0)
        above = scaled > own
        count = tl.sum(above.to(tl.int32), 0)
        out = count >= k
        if nucleus:
            out = out | ((count > 0) & (tl.sum(tl.where(above, odds, 0.0), 0) >= mass))
        again = out.to(tl.int32)
        if out:
            code = tl.minimum(tl.argmax(tl.where(above, noisy, float("-inf")), 0), V - 1)
    tl.store(codes + row * stride_codes, code.to(tl.int64))
    if FIRST:
        tl.store(seen + slot * V + code, 1)
    if GATHER:
        i = tl.arange(0, WIDTH_BLOCK)
        held = i < WIDTH
        found = tl.load(table + code.to(tl.int64) * WIDTH + i, mask=held, other=0.0)
        tl.store(row_out + row * WIDTH + i, found, mask=held)


def draw(
    logits: Tensor,
    rows: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
    book: int,
    codes: Tensor,
    *,
    norm: tuple[Tensor, float] | None = None,
    guard: tuple[Tensor, Tensor, Tensor, Tensor, int] | None = None,
    table: Tensor | None = None,
) -> Tensor | None:
    """Draw a code a row from logits [B, V] into `codes` [B], of any stride.

    `rows`: temperature, top_k, top_p, seed, frame [S] each, and slots [B].
    `norm`: the rows [B, H] whose scale the logits lack, and its eps.
    `guard`: seen [S, V], which gets the code, penalty [S], least frames [S], bias [V], eos.
    `table` [V, W]: look the codes up there; the rows [B, W].
    """
    b, v = logits.shape
    x, eps = norm or (logits, 0.0)
    seen, penalty, least, bias, eos = guard or (*(codes,) * 4, -1)
    given, out, width = codes, codes, 1
    if table is not None:
        given, width = table, table.shape[1]
        out = torch.empty((b, width), dtype=table.dtype, device=table.device)
    hidden = x.shape[1]
    temperature, top_k, top_p, seed, frame, slots = rows
    _draw[(b,)](
        logits, x, temperature, top_k, top_p, seed, frame, slots,
        seen.view(torch.uint8) if guard else seen, penalty, least, bias, given, codes, out,
        logits.stride(0), x.stride(0), codes.stride(0), eps, book, eos,
        v, power(v), hidden, power(hidden), width, power(width),
        guard is not None, norm is not None, table is not None, **options(logits, 4),
    )  # fmt: skip
    return None if table is None else out


@triton.jit
def _embed(
    codes, first, later, out,
    BOOKS: tl.constexpr, BOOKS_BLOCK: tl.constexpr, ENTRIES: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < WIDTH
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    book = tl.arange(0, BOOKS_BLOCK)
    code = tl.load(codes + row * (BOOKS + 1) + 1 + book, mask=book < BOOKS, other=0)
    at = later + (book * ENTRIES + code).to(tl.int64)[:, None] * WIDTH + i[None, :]
    held = (book < BOOKS)[:, None] & inside[None, :]
    total = tl.sum(tl.load(at, mask=held, other=0.0).to(tl.float32), 0)
    code = tl.load(codes + row * (BOOKS + 1)).to(tl.int64)
    total += tl.load(first + code * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + i, total.to(out.dtype.element_ty), mask=inside)


def embed(codes: Tensor, first: Tensor, later: Tensor) -> Tensor:
    """Sum of a frame's embeddings [B, W]: codes [B, 16], first [V, W], later [15, entries, W]."""
    books, entries, width = later.shape
    out = torch.empty((len(codes), width), dtype=first.dtype, device=first.device)
    block = min(256, power(width))
    _embed[(len(codes), triton.cdiv(width, block))](
        codes, first, later, out, books, power(books), entries, width, block, **options(out, 4)
    )
    return out


def embed_twin(codes: Tensor, first: Tensor, later: Tensor) -> Tensor:
    """The same in plain torch."""
    books = torch.arange(len(later), device=codes.device)
    return first[codes[:, 0]] + later[books, codes[:, 1:]].sum(1)
