"""One token a row attends to its pages, from the product of Q, K and V to the heads' outputs.

One launch: the norm's scale, QK norm, rotation, the write of the new key and value, attention.
Long contexts are split over programs; the last one to end puts their parts together.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from vivace.kernels.launch import options, power
from vivace.kernels.linear import scale_of

_LEAST = 128  # positions worth a program of their own
# Positions at once, stages of loads, warps; as measured on an H200.
_SHORT = 16, 1, 2  # a frame of the predictor, all at once
_FEW = 64, 3, 4
_MANY = 32, 3, 2  # more than 64 rows: bound by bandwidth
_QUERIES = tl.constexpr(16)  # rows of the smallest tensor core product; a group fills the first


@triton.jit
def _turned(at, weight, angle, scale, eps, held, D: tl.constexpr):
    """Heads [R, D] from rows of pointers `at` [R, 1]: scaled, normed, turned to their position."""
    d = tl.arange(0, D)[None, :]
    other = (d + D // 2) % D
    x = tl.load(at + d, mask=held, other=0.0).to(tl.float32) * scale
    y = tl.load(at + other, mask=held, other=0.0).to(tl.float32) * scale
    norm = (1.0 / tl.sqrt(tl.sum(x * x, 1) / D + eps))[:, None]
    x = x * norm * tl.load(weight + d, mask=held, other=0.0).to(tl.float32)
    y = y * norm * tl.load(weight + other, mask=held, other=0.0).to(tl.float32)
    return x * tl.cos(angle) + y * tl.where(d < D // 2, -tl.sin(angle), tl.sin(angle))


@triton.jit
def _merge(parts, out, live, SPLITS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr):
    """Put the parts [SPLITS, GROUP, D + 2] of one key head together."""
    s = tl.arange(0, SPLITS)
    d = tl.arange(0, D)
    for g in tl.static_range(GROUP):
        base = parts + (s * GROUP + g) * (D + 2)
        most = tl.load(base + D, mask=s < live, other=float("-inf"))
        share = tl.exp(most - tl.max(most, 0))
        total = tl.sum(share * tl.load(base + D + 1, mask=s < live, other=0.0), 0)
        rows = tl.load(base[:, None] + d[None, :], mask=(s < live)[:, None], other=0.0)
        summed = tl.sum(share[:, None] * rows, 0) / total
        tl.store(out + g * D + d, summed.to(out.dtype.element_ty))


@triton.jit(do_not_specialize_on_alignment=["position"])
def _attend(
    qkv, x, gain, frequency, keys, values, table, position, slots, out, parts, arrived,
    stride_x, width, eps,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr,
    HIDDEN: tl.constexpr, HIDDEN_BLOCK: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr, SPLITS: tl.constexpr, LEAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row, h, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    GROUP: tl.constexpr = HEADS // KV
    kind = keys.dtype.element_ty
    g = tl.arange(0, _QUERIES)[:, None]
    d = tl.arange(0, D)[None, :]
    held = g < GROUP
    slot = tl.load(slots + row)
    start = tl.load(position + slot).to(tl.int32)
    frequencies = tl.load(frequency + d % (D // 2))
    chunk = start + TOKENS
    live = 1
    if SPLITS > 1:
        chunk = tl.maximum(LEAST, tl.cdiv(tl.cdiv(start, SPLITS), BLOCK) * BLOCK)
        live = tl.maximum(1, tl.cdiv(start, chunk))
    if split < live:
        for t in tl.static_range(TOKENS):
            pos = start + t
            token = row * TOKENS + t
            angle = pos.to(tl.float32) * frequencies
            scale = scale_of(x, token, stride_x, eps, HIDDEN, HIDDEN_BLOCK)
            base = qkv + token * ((HEADS + 2 * KV) * D)
            head = (h * GROUP + g) * D
            q = _turned(base + head, gain + head, angle, scale, eps, held, D).to(kind)
            most = tl.full((_QUERIES,), float("-inf"), tl.float32)
            total = tl.zeros((_QUERIES,), tl.float32)
            summed = tl.zeros((_QUERIES, D), tl.float32)
            if split == live - 1:  # the new position: kept, and seen from here
                one = (HEADS + h + tl.arange(0, 1)[:, None]) * D
                k = _turned(base + one, gain + one, angle, scale, eps, one >= 0, D).to(kind)
                v = (tl.load(base + one + KV * D + d).to(tl.float32) * scale).to(kind)
                page = tl.load(table + slot * width + pos // PAGE).to(tl.int64)
                to = ((page * PAGE + pos % PAGE) * KV + h) * D + d
                tl.store(keys + to, k)
                tl.store(values + to, v)
                most = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * D**-0.5
                total += 1.0
                summed += v.to(tl.float32)
            end = tl.minimum((split + 1) * chunk, pos)
            for begin in tl.range(split * chunk, end, BLOCK, num_stages=STAGES):
                j = tl.arange(0, BLOCK)
                seen = begin + j < end
                page = tl.load(table + slot * width + begin // PAGE).to(tl.int64)
                at = ((page * PAGE + begin % PAGE + j) * KV + h)[:, None] * D + d
                k = tl.load(keys + at, mask=seen[:, None], other=0.0)
                v = tl.load(values + at, mask=seen[:, None], other=0.0)
                score = tl.dot(q, tl.trans(k), input_precision="ieee") * D**-0.5
                score = tl.where(seen[None, :], score, float("-inf"))
                above = tl.maximum(most, tl.max(score, 1))
                fade = tl.exp(most - above)
                share = tl.exp(score - above[:, None])
                total = total * fade + tl.sum(share, 1)
                summed = tl.dot(share.to(kind), v, summed * fade[:, None], input_precision="ieee")
                most = above
            heads = out + (token * HEADS + h * GROUP) * D
            if live == 1:
                result = (summed / total[:, None]).to(out.dtype.element_ty)
                tl.store(heads + g * D + d, result, mask=held)
            if SPLITS > 1:  # noqa: SIM102 - known when compiled
                if live > 1:
                    pair = row * KV + h
                    mine = parts + pair * (SPLITS * GROUP * (D + 2))
                    to = mine + (split * GROUP + g) * (D + 2)
                    tl.store(to + d, summed, mask=held)
                    tl.store(to + D, most[:, None], mask=held)
                    tl.store(to + D + 1, total[:, None], mask=held)
                    tl.debug_barrier()  # the parts of all threads, before one of them says so
                    if tl.atomic_add(arrived + pair, 1) == live - 1:
                        tl.debug_barrier()
                        _merge(mine, heads, live, SPLITS, GROUP, D)
                        tl.store(arrived + pair, 0)  # for the next layer
            if TOKENS > 1:
                tl.debug_barrier()  # the next token reads what this one wrote


def splits(rows: int, kv_heads: int) -> int:
    """How many programs may share one key head of one row; few choices, as each is compiled."""
    heads = rows * kv_heads
    return 16 if heads <= 16 else 4 if heads <= 64 else 1


class Scratch:
    """Parts of split heads, and how many have arrived; one for all layers of a step."""

    def __init__(self, rows: int, heads: int, kv_heads: int, head_dim: int, like: Tensor) -> None:
        self.splits = splits(rows, kv_heads)
        size = rows * heads * self.splits * (head_dim + 2) if self.splits > 1 else 0
        self.parts = torch.empty(size, dtype=torch.float32, device=like.device)
        self.arrived = torch.zeros(rows * kv_heads, dtype=torch.int32, device=like.device)


def attend(
    x: Tensor,
    qkv: Tensor,
    gain: Tensor,
    frequency: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    position: Tensor,
    slots: Tensor,
    eps: float,
    scratch: Scratch | None = None,
) -> Tensor:
    """Heads' outputs [N, heads * D] of one token a row, or of a few that follow each other.

    x [N, H] is what went into `qkv` [N, (heads + 2 * kv) * D] without its norm; gain [heads + kv,
    D]; frequency [D / 2]; keys, values [pages, page, kv, D]; table [S, W], position [S] of each
    slot's first token; slots [B], N = B * tokens. Splits need `scratch`, and one token a row.
    """
    rows, kv, d = len(slots), keys.shape[2], keys.shape[3]
    heads = gain.shape[0] - kv
    tokens = len(x) // rows
    page, hidden = keys.shape[1], x.shape[1]
    out = torch.empty((len(x), heads * d), dtype=x.dtype, device=x.device)
    several = scratch.splits if scratch is not None and tokens == 1 else 1
    parts, arrived = (scratch.parts, scratch.arrived) if scratch is not None else (x, slots)
    block, stages, warps = _SHORT if page <= 16 else _MANY if rows > 64 else _FEW
    _attend[(rows, kv, several)](
        qkv, x, gain, frequency, keys, values, table, position, slots, out, parts, arrived,
        x.stride(0), table.stride(0), eps, tokens, heads, kv, d, hidden, power(hidden),
        page, min(page, block), stages, several, _LEAST, **options(x, warps),
    )  # fmt: skip
    return out


def attend_twin(
    x: Tensor,
    qkv: Tensor,
    gain: Tensor,
    frequency: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    position: Tensor,
    slots: Tensor,
    eps: float,
) -> Tensor:
    """The same in plain torch, a row at a time."""
    kv, d = keys.shape[2:]
    rows, out = len(slots), []
    heads = gain.shape[0] - kv
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    q, k, v = (qkv.float() * scale).view(rows, -1, heads + 2 * kv, d).split((heads, kv, kv), 2)
    for row, slot in enumerate(slots.tolist()):
        tokens, start = q.shape[1], int(position[slot])
        places = start + torch.arange(tokens, device=x.device)
        angle = torch.cat((places[:, None] * frequency,) * 2, -1)[:, None]

        def turned(y: Tensor, weight: Tensor, angle: Tensor = angle) -> Tensor:
            y = F.rms_norm(y, (d,), eps=eps) * weight
            low, high = y.chunk(2, -1)
            return y * angle.cos() + torch.cat((-high, low), -1) * angle.sin()

        pages = table[slot].long()
        at = pages[places // keys.shape[1]], places % keys.shape[1]
        keys[at] = turned(k[row], gain[heads:]).to(keys.dtype)
        values[at] = v[row].to(values.dtype)
        past = [p[pages].flatten(0, 1)[: start + tokens].float() for p in (keys, values)]
        mask = torch.arange(start + tokens, device=x.device) <= places[:, None]
        ours = turned(q[row], gain[:heads]).transpose(0, 1)
        theirs, held = (p.transpose(0, 1).repeat_interleave(heads // kv, 0) for p in past)
        seen = F.scaled_dot_product_attention(ours, theirs, held, attn_mask=mask)
        out.append(seen.transpose(0, 1).flatten(1))
    return torch.cat(out).to(x.dtype)
