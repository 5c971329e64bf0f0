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
_PROGRAMS = 256  # enough to fill a card
_MOST_SPLITS = 16


@triton.jit
def _head(qkv, gain, head, cos, sin, scale, eps, D: tl.constexpr):
    """Heads [G, D / 2] twice: scaled, normed and turned to their position."""
    d = tl.arange(0, D // 2)
    at = qkv + head[:, None] * D + d[None, :]
    weight = gain + head[:, None] * D + d[None, :]
    low = tl.load(at).to(tl.float32) * scale
    high = tl.load(at + D // 2).to(tl.float32) * scale
    size = tl.sum(low * low, 1) + tl.sum(high * high, 1)
    norm = (1.0 / tl.sqrt(size / D + eps))[:, None]
    low = low * norm * tl.load(weight).to(tl.float32)
    high = high * norm * tl.load(weight + D // 2).to(tl.float32)
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def _merge(parts, out, SPLITS: tl.constexpr, live, GROUP: tl.constexpr, D: tl.constexpr):
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


@triton.jit
def _attend(
    qkv, x, gain, frequency, keys, values, table, position, slots, out, parts, arrived,
    stride_x, width, eps,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr,
    HIDDEN: tl.constexpr, HIDDEN_BLOCK: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, LEAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    row, h, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
    GROUP: tl.constexpr = HEADS // KV
    HALF: tl.constexpr = D // 2
    group = tl.arange(0, GROUP)
    d = tl.arange(0, HALF)
    slot = tl.load(slots + row)
    start = tl.load(position + slot).to(tl.int32)
    frequencies = tl.load(frequency + d)
    chunk = start + TOKENS
    live = 1
    if SPLITS > 1:
        chunk = tl.maximum(LEAST, tl.cdiv(tl.cdiv(start, SPLITS), BLOCK) * BLOCK)
        live = tl.maximum(1, tl.cdiv(start, chunk))
    if split < live:
        for t in tl.static_range(TOKENS):
            pos = start + t
            angle = pos.to(tl.float32) * frequencies
            cos = tl.cos(angle)[None, :]
            sin = tl.sin(angle)[None, :]
            token = row * TOKENS + t
            scale = scale_of(x, token, stride_x, eps, HIDDEN, HIDDEN_BLOCK)
            base = qkv + token * ((HEADS + 2 * KV) * D)
            q1, q2 = _head(base, gain, h * GROUP + group, cos, sin, scale, eps, D)
            q1 *= D**-0.5
            q2 *= D**-0.5
            o1 = tl.zeros((GROUP, HALF), tl.float32)
            o2 = tl.zeros((GROUP, HALF), tl.float32)
            most = tl.full((GROUP,), float("-inf"), tl.float32)
            total = tl.zeros((GROUP,), tl.float32)
            if split == live - 1:
                one = HEADS + h + tl.arange(0, 1)
                k1, k2 = _head(base, gain, one, cos, sin, scale, eps, D)
                v = base + (HEADS + KV + h) * D + d[None, :]
                page = tl.load(table + slot * width + pos // PAGE).to(tl.int64)
                to = ((page * PAGE + pos % PAGE) * KV + h) * D + d[None, :]
                kind = keys.dtype.element_ty
                k1 = k1.to(kind)
                k2 = k2.to(kind)
                v1 = (tl.load(v).to(tl.float32) * scale).to(kind)
                v2 = (tl.load(v + HALF).to(tl.float32) * scale).to(kind)
                tl.store(keys + to, k1)
                tl.store(keys + to + HALF, k2)
                tl.store(values + to, v1)
                tl.store(values + to + HALF, v2)
                most = tl.sum(q1 * k1.to(tl.float32), 1) + tl.sum(q2 * k2.to(tl.float32), 1)
                total += 1.0
                o1 += v1.to(tl.float32)
                o2 += v2.to(tl.float32)
            begin = split * chunk
            end = tl.minimum(begin + chunk, pos)
            while begin < end:
                j = begin + tl.arange(0, BLOCK)
                seen = j < end
                page = tl.load(table + slot * width + begin // PAGE).to(tl.int64)
                at = ((page * PAGE + j % PAGE) * KV + h)[:, None] * D + d[None, :]
                held = seen[:, None]
                k1 = tl.load(keys + at, mask=held, other=0.0).to(tl.float32)
                k2 = tl.load(keys + at + HALF, mask=held, other=0.0).to(tl.float32)
                v1 = tl.load(values + at, mask=held, other=0.0).to(tl.float32)
                v2 = tl.load(values + at + HALF, mask=held, other=0.0).to(tl.float32)
                score = tl.sum(q1[:, None, :] * k1[None] + q2[:, None, :] * k2[None], 2)
                score = tl.where(seen[None, :], score, float("-inf"))
                above = tl.maximum(most, tl.max(score, 1))
                fade = tl.exp(most - above)
                share = tl.exp(score - above[:, None])
                total = total * fade + tl.sum(share, 1)
                o1 = o1 * fade[:, None] + tl.sum(share[:, :, None] * v1[None], 1)
                o2 = o2 * fade[:, None] + tl.sum(share[:, :, None] * v2[None], 1)
                most = above
                begin += BLOCK
            heads = out + (token * HEADS + h * GROUP) * D
            if live == 1:
                to = heads + group[:, None] * D + d[None, :]
                tl.store(to, (o1 / total[:, None]).to(out.dtype.element_ty))
                tl.store(to + HALF, (o2 / total[:, None]).to(out.dtype.element_ty))
            if SPLITS > 1:  # noqa: SIM102 - known when compiled
                if live > 1:
                    pair = row * KV + h
                    mine = parts + pair * (SPLITS * GROUP * (D + 2))
                    to = mine + (split * GROUP + group) * (D + 2)
                    tl.store(to[:, None] + d[None, :], o1)
                    tl.store(to[:, None] + HALF + d[None, :], o2)
                    tl.store(to + D, most)
                    tl.store(to + D + 1, total)
                    tl.debug_barrier()  # the parts of all threads, before one of them says so
                    if tl.atomic_add(arrived + pair, 1) == live - 1:
                        tl.debug_barrier()
                        _merge(mine, heads, SPLITS, live, GROUP, D)
                        tl.store(arrived + pair, 0)  # for the next layer
            if TOKENS > 1:
                tl.debug_barrier()  # the next token reads what this one wrote


def splits(rows: int, kv_heads: int) -> int:
    """How many programs may share one key head of one row."""
    return max(1, min(_MOST_SPLITS, power(_PROGRAMS // (rows * kv_heads) + 1) // 2))


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
    _attend[(rows, kv, several)](
        qkv, x, gain, frequency, keys, values, table, position, slots, out, parts, arrived,
        x.stride(0), table.stride(0), eps,
        tokens, heads, kv, d, hidden, power(hidden), page, min(page, 32), several, _LEAST,
        **options(x, 4),
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
