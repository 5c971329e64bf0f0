"""Fused kernels of the codec, in Triton, each with a plain torch twin.

Sound lies channels last, [rows, time, channels]. A layer that looks back finds what it saw before
in `Memory`, by slot, and leaves there what the next chunk needs. Memory has two sides: a step reads
one and writes the other, so that programs of one launch need not wait for each other; `step` turns
the slots over and moves their positions on.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

LEAST_TILES = 66  # for half of a card


@dataclass(frozen=True, slots=True)
class Memory:
    """What the layers saw before, by slot."""

    past: Tensor  # [2, slots, size]: the last inputs of every convolution, one after the other
    keys: Tensor  # [layers, slots, ring, heads * D], by position modulo ring
    values: Tensor
    turn: Tensor  # [slots] int32: its parity is the side to read
    position: Tensor  # [slots] int32: frames decoded


class Snake(NamedTuple):
    """x + sin(rate x)^2 gain, fp32 [channels] each."""

    rate: Tensor
    gain: Tensor


@dataclass(frozen=True, slots=True)
class Conv:
    """A causal convolution as a product: weight [taps * channels in, out], oldest tap first.

    A transposed convolution of stride r is one of two taps (one where its kernel is r) with r times
    the channels out.
    """

    weight: Tensor
    bias: Tensor | None  # fp32 [out]
    taps: int = 1
    dilation: int = 1
    offset: int = 0  # of its inputs in a slot's past

    @property
    def channels(self) -> int:
        """Channels in."""
        return int(self.weight.shape[0]) // self.taps

    @property
    def reach(self) -> int:
        """Inputs before the first one that it looks back to."""
        return (self.taps - 1) * self.dilation


_compiling = ContextVar("compiling", default=False)


@contextmanager
def compiling() -> Iterator[None]:
    """Compile what is launched in here, on several threads, and run none of it."""
    token = _compiling.set(True)
    try:
        with ThreadPoolExecutor() as pool, triton.AsyncCompileMode(pool):
            yield
    finally:
        _compiling.reset(token)


def _launch(kernel, grid: tuple[int, ...], *args: object, **options: object) -> None:
    if _compiling.get():
        kernel.warmup(*args, grid=grid, **options)
    else:
        kernel[grid](*args, **options)


@triton.jit
def _square_of_sine(x):
    """sin(x)^2 within 1e-5: its period is pi, where few terms do. The library's sine is slower."""
    turns = tl.floor(x * 0.3183098861837907 + 0.5)
    x = (x - turns * 3.140625) - turns * 0.0009676535897932
    y = x * x
    series = y * (y * (y * (y * 2.7557319e-6 - 1.9841270e-4) + 8.3333333e-3) - 0.16666667) + 1.0
    return y * series * series


@triton.jit
def _fitting(x, target):
    """As `target` stores it: fp16 saturates, as an infinity would turn a stream's past to NaN."""
    if target.dtype.element_ty == tl.float16:
        x = tl.minimum(tl.maximum(x, -65504.0), 65504.0)
    return x.to(target.dtype.element_ty)


_ANY = ["rows", "time", "slot_count"]  # no variant of their own for each batch and chunk


@triton.jit(do_not_specialize=_ANY)
def _convolve(  # noqa: PLR0912
    x, past, slots, turn, weight, bias, residual, rate, gain, out, active,
    rows, time, width, slot_count, size, offset, eps,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr, SNAKES: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, GELU: tl.constexpr, CLAMP: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, OUT: tl.constexpr, ACTIVE: tl.constexpr,
    REACH_BLOCK: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    REACH: tl.constexpr = (TAPS - 1) * DILATION
    EACH: tl.constexpr = 2 * CHANNELS if GATED else CHANNELS
    across = tl.cdiv(width, N)
    program = tl.program_id(0)
    m = (program // across) * M + tl.arange(0, M)
    n = (program % across) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    count = rows * time
    real = tl.minimum(m, count - 1)  # a row that is there, for those past the end
    row = real // time
    t = real - row * time
    if REACH > 0:
        slot = tl.load(slots + row).to(tl.int64)
        side = tl.load(turn + slot) & 1
        before = past + (side * slot_count + slot) * size + offset
    here = x + real.to(tl.int64) * EACH
    wide = (n < width)[None, :]
    total = tl.zeros((M, N), dtype=tl.float32)
    square = tl.zeros((M,), dtype=tl.float32)
    for step in range(0, TAPS * CHANNELS, K):
        tap = step // CHANNELS
        c = step - tap * CHANNELS
        if REACH > 0:
            back = REACH - tap * DILATION
            source = tl.where(
                t >= back, here - back * CHANNELS, before + (t - back + REACH) * CHANNELS
            )
        else:
            source = here
        if GATED:
            gate = tl.load(source[:, None] + c + k[None, :]).to(tl.float32)
            up = tl.load(source[:, None] + CHANNELS + c + k[None, :]).to(tl.float32)
            a = (gate / (1.0 + tl.exp(-gate)) * up).to(weight.dtype.element_ty)
        else:
            a = tl.load(source[:, None] + c + k[None, :])
        if NORM:
            wider = a.to(tl.float32)
            square += tl.sum(wider * wider, 1)
        b = tl.load(
            weight + (step + k[:, None]).to(tl.int64) * width + n[None, :], mask=wide, other=0.0
        )
        total = tl.dot(a, b, total, input_precision="ieee")
    if NORM:
        total *= (1.0 / tl.sqrt(square / CHANNELS + eps))[:, None]
    if BIAS:
        total += tl.load(bias + n, mask=n < width, other=0.0)[None, :]
    if GELU:
        total = 0.5 * total * (1.0 + tl.erf(total * 0.7071067811865476))
    at = m[:, None].to(tl.int64) * width + n[None, :]
    inside = (m < count)[:, None] & wide
    if RESIDUAL:
        total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if CLAMP:
        total = tl.minimum(tl.maximum(total, -1.0), 1.0)
    if OUT:
        tl.store(out + at, _fitting(total, out), mask=inside)
    if ACTIVE:
        channel = n % SNAKES
        wave = _square_of_sine(total * tl.load(rate + channel)[None, :])
        total += wave * tl.load(gain + channel)[None, :]
        tl.store(active + at, _fitting(total, active), mask=inside)
    if REACH > 0:  # the programs share the work of keeping the end of the input
        p = tl.arange(0, REACH_BLOCK)
        parts: tl.constexpr = CHANNELS // K
        item = program
        while item < rows * parts:
            r = item // parts
            c = (item - r * parts) * K
            slot_r = tl.load(slots + r).to(tl.int64)
            side_r = tl.load(turn + slot_r) & 1
            old = past + (side_r * slot_count + slot_r) * size + offset
            new = past + ((1 - side_r) * slot_count + slot_r) * size + offset
            late = time + p - REACH
            from_x = x + (r * time + late).to(tl.int64) * CHANNELS
            source = tl.where(late >= 0, from_x, old + (p + time) * CHANNELS)
            held = (p < REACH)[:, None]
            kept = tl.load(source[:, None] + c + k[None, :], mask=held, other=0.0)
            tl.store(new + p[:, None] * CHANNELS + c + k[None, :], kept, mask=held)
            item += tl.num_programs(0)


INTERPRETED = not isinstance(_convolve, triton.JITFunction)  # by TRITON_INTERPRET=1


class _Tile(NamedTuple):
    m: int
    n: int
    k: int
    warps: int
    stages: int


def _tile(rows: int, width: int, channels: int) -> _Tile:
    """What was best on one H200 for the layers of the published codec.

    Few, as each is compiled; none takes more than the 99 KB that the smallest cards have a block.
    """
    most = channels & -channels
    if rows > 4096:
        k = min(most, 64)
        if 16 < width <= 128:
            return _Tile(64, 128, k, 4, 4)
        if width <= 16 or width % 128:
            return _Tile(128, 16 if width <= 16 else 64, k, 4, 4)
        return _Tile(128, 128, k, 8, 3)
    if rows <= 32:
        n = 64 if width >= 64 * LEAST_TILES else 32 if width >= 2048 else 16
        return _Tile(16 if rows <= 16 else 32, n, min(most, 128 if n == 64 else 256), 4, 3)
    few = triton.cdiv(rows, 64) * triton.cdiv(width, 64) < LEAST_TILES
    return _Tile(64, 16 if few or width <= 16 else 64, min(most, 64), 4, 6)


def convolve(
    x: Tensor,
    conv: Conv,
    memory: Memory,
    slots: Tensor,
    *,
    norm_eps: float | None = None,
    gated: bool = False,
    gelu: bool = False,
    residual: Tensor | None = None,
    clamp: bool = False,
    snake: Snake | None = None,
    keep: bool = True,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """The convolution of x [B, T, C], and the snake of it; both are [B, T, out].

    Before it `norm_eps` scales the inputs to a root mean square of one (one tap only) and `gated`
    takes silu(gate) * up of x [B, T, 2 C]. After it come `gelu`, `residual`, `clamp`. Without
    `keep` or `snake` the one or the other is empty.
    """
    rows, time = x.shape[:2]
    width = conv.weight.shape[1]
    if not (x.is_cuda or INTERPRETED):
        return _convolve_twin(
            x, conv, memory, slots, norm_eps, gated, gelu, residual, clamp, snake, keep, out_dtype
        )
    out = x.new_empty((rows, time, width) if keep else 0, dtype=out_dtype or x.dtype)
    active = x.new_empty((rows, time, width) if snake else 0)
    tile = _tile(rows * time, width, conv.channels)
    nothing = conv.weight
    grid = (triton.cdiv(rows * time, tile.m) * triton.cdiv(width, tile.n),)
    _launch(
        _convolve, grid, x, memory.past, slots, memory.turn, conv.weight,
        nothing if conv.bias is None else conv.bias,
        nothing if residual is None else residual,
        snake.rate if snake else nothing, snake.gain if snake else nothing, out, active,
        rows, time, width, memory.past.shape[1], memory.past.shape[2], conv.offset, norm_eps or 0.0,
        CHANNELS=conv.channels, TAPS=conv.taps, DILATION=conv.dilation,
        SNAKES=len(snake.rate) if snake else 1, NORM=norm_eps is not None, GATED=gated, GELU=gelu,
        CLAMP=clamp, BIAS=conv.bias is not None, RESIDUAL=residual is not None, OUT=keep,
        ACTIVE=snake is not None, REACH_BLOCK=triton.next_power_of_2(max(conv.reach, 1)),
        M=tile.m, N=tile.n, K=tile.k, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return out, active


def _fit(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The twin of `_fitting`."""
    return x.clamp(-65504.0, 65504.0).to(dtype) if dtype == torch.float16 else x.to(dtype)


def _look_back(x: Tensor, reach: int, offset: int, memory: Memory, slots: Tensor) -> Tensor:
    """The inputs before x joined to it, the end of both kept: [B, reach + T, C]."""
    if not reach:
        return x
    side = memory.turn[slots].long() & 1
    size = reach * x.shape[2]
    before = memory.past[side, slots, offset : offset + size]
    joined = torch.cat((before.view(len(x), reach, -1), x), 1)
    memory.past[1 - side, slots, offset : offset + size] = joined[:, -reach:].flatten(1)
    return joined


def _convolve_twin(
    x: Tensor,
    conv: Conv,
    memory: Memory,
    slots: Tensor,
    norm_eps: float | None,
    gated: bool,
    gelu: bool,
    residual: Tensor | None,
    clamp: bool,
    snake: Snake | None,
    keep: bool,
    out_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    dtype = x.dtype
    if gated:
        gate, up = x.float().chunk(2, 2)
        x = (F.silu(gate) * up).to(dtype)
    joined = _look_back(x, conv.reach, conv.offset, memory, slots).float()
    weight = conv.weight.float().unflatten(0, (conv.taps, conv.channels))
    y = F.conv1d(joined.mT, weight.permute(2, 1, 0), dilation=conv.dilation).mT.contiguous()
    if norm_eps is not None:
        y = y * torch.rsqrt(x.float().square().mean(2, keepdim=True) + norm_eps)
    if conv.bias is not None:
        y = y + conv.bias
    if gelu:
        y = F.gelu(y)
    if residual is not None:
        y = y + residual.float()
    if clamp:
        y = y.clamp(-1.0, 1.0)
    nothing = x.new_empty(0)
    if snake is None:
        return _fit(y, out_dtype or dtype), nothing
    channels = y.unflatten(2, (-1, len(snake.rate)))
    active = channels + torch.sin(channels * snake.rate).square() * snake.gain
    return _fit(y, out_dtype or dtype) if keep else nothing, _fit(active.flatten(2), dtype)


@triton.jit(do_not_specialize=["time", "slot_count"])
def _refine(
    x, past, slots, turn, weight, bias, gain, shift, out,
    time, slot_count, size, offset, eps,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    REACH: tl.constexpr = TAPS - 1
    row, t = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    side = tl.load(turn + slot) & 1
    before = past + (side * slot_count + slot) * size + offset
    c = tl.arange(0, BLOCK)
    live = c < CHANNELS
    total = tl.load(bias + c, mask=live, other=0.0)
    for tap in range(TAPS):
        at = t + tap - REACH
        source = tl.where(
            at >= 0, x + (row * time + at) * CHANNELS, before + (at + REACH) * CHANNELS
        )
        value = tl.load(source + c, mask=live, other=0.0).to(tl.float32)
        total += value * tl.load(weight + tap * CHANNELS + c, mask=live, other=0.0)
    mean = tl.sum(total, 0) / CHANNELS
    centred = tl.where(live, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / CHANNELS + eps)
    normed = centred * scale * tl.load(gain + c, mask=live, other=0.0)
    normed += tl.load(shift + c, mask=live, other=0.0)
    tl.store(out + (row * time + t) * CHANNELS + c, normed.to(out.dtype.element_ty), mask=live)
    if t == 0:
        new = past + ((1 - side) * slot_count + slot) * size + offset
        for p in range(REACH):
            late = time + p - REACH
            from_x = x + (row * time + late) * CHANNELS
            source = tl.where(late >= 0, from_x, before + (p + time) * CHANNELS)
            tl.store(new + p * CHANNELS + c, tl.load(source + c, mask=live), mask=live)


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A depthwise convolution, weight fp32 [taps, channels], and the layer norm after it."""

    weight: Tensor
    bias: Tensor
    gain: Tensor
    shift: Tensor
    eps: float
    offset: int  # of its inputs in a slot's past


def refine(x: Tensor, layer: Depthwise, memory: Memory, slots: Tensor) -> Tensor:
    """The normed depthwise convolution of x [B, T, C]."""
    rows, time, channels = x.shape
    taps = len(layer.weight)
    if not (x.is_cuda or INTERPRETED):
        joined = _look_back(x, taps - 1, layer.offset, memory, slots).float()
        weight = layer.weight.T[:, None]
        y = F.conv1d(joined.mT, weight, layer.bias, groups=channels).mT
        return F.layer_norm(y, (channels,), layer.gain, layer.shift, layer.eps).to(x.dtype)
    out = torch.empty_like(x)
    _launch(
        _refine, (rows, time), x, memory.past, slots, memory.turn,
        layer.weight, layer.bias, layer.gain, layer.shift, out,
        time, memory.past.shape[1], memory.past.shape[2], layer.offset, layer.eps,
        CHANNELS=channels, BLOCK=triton.next_power_of_2(channels), TAPS=taps, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _turned(at, d, position, frequency, live, D: tl.constexpr):
    """Heads [T, D] at `at` [T, 1], turned to their positions [T]."""
    half: tl.constexpr = D // 2
    inside = live & (d < D)[None, :]
    other = tl.where(d < half, d + half, d - half)
    value = tl.load(at + d[None, :], mask=inside, other=0.0).to(tl.float32)
    mirror = tl.load(at + other[None, :], mask=inside, other=0.0).to(tl.float32)
    rate = tl.load(frequency + d % half, mask=d < D, other=0.0)
    angle = position[:, None].to(tl.float32) * rate[None, :]
    sign = tl.where(d < half, -1.0, 1.0)[None, :]
    return value * tl.cos(angle) + mirror * tl.sin(angle) * sign


@triton.jit(do_not_specialize=["time"])
def _attend(
    qkv, keys, values, slots, position, frequency, out, time, scale,
    HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, RING: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    shared = head // (HEADS // KV)
    slot = tl.load(slots + row).to(tl.int64)
    start = tl.load(position + slot)
    t, d, j = tl.arange(0, T), tl.arange(0, BLOCK), tl.arange(0, RING)
    live = (t < time)[:, None]
    inside = live & (d < D)[None, :]
    base = qkv + (row * time + t[:, None]) * ((HEADS + 2 * KV) * D)
    kind = qkv.dtype.element_ty
    q = _turned(base + head * D, d, start + t, frequency, live, D).to(kind)
    k = _turned(base + (HEADS + shared) * D, d, start + t, frequency, live, D).to(kind)
    v = tl.load(base + (HEADS + KV + shared) * D + d[None, :], mask=inside, other=0.0)
    ring = slot * RING * KV * D + shared * D
    # Of each place in the ring, the last position before this chunk.
    old = start - 1 - (start - 1 - j + RING * (1 + start // RING)) % RING
    held = (old >= 0)[:, None] & (d < D)[None, :]
    past = ring + j[:, None] * (KV * D) + d[None, :]
    k_old = tl.load(keys + past, mask=held, other=0.0)
    v_old = tl.load(values + past, mask=held, other=0.0)
    far = tl.dot(q, tl.trans(k_old), input_precision="ieee") * scale
    near = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    age = start + t[:, None] - old[None, :]
    far = tl.where((old >= 0)[None, :] & (age < WINDOW), far, float("-inf"))
    back = t[:, None] - t[None, :]
    near = tl.where((back >= 0) & (back < WINDOW), near, float("-inf"))
    most = tl.maximum(tl.max(far, 1), tl.max(near, 1))[:, None]
    far, near = tl.exp(far - most), tl.exp(near - most)
    total = (tl.sum(far, 1) + tl.sum(near, 1))[:, None]
    y = tl.dot(far.to(kind), v_old, input_precision="ieee")
    y = tl.dot(near.to(kind), v, y, input_precision="ieee") / total
    at = out + (row * time + t[:, None]) * (HEADS * D) + head * D + d[None, :]
    tl.store(at, y.to(kind), mask=inside)
    if head % (HEADS // KV) == 0:
        place = ring + ((start + t) % RING)[:, None] * (KV * D) + d[None, :]
        tl.store(keys + place, k, mask=inside)
        tl.store(values + place, v, mask=inside)


@dataclass(frozen=True, slots=True)
class Window:
    """Shape of the sliding-window attention of one codec."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int
    frequency: Tensor  # fp32 [head_dim / 2]


def attend(qkv: Tensor, window: Window, layer: int, memory: Memory, slots: Tensor) -> Tensor:
    """What the queries of qkv [B, T, (heads + 2 kv) * D] see in their window: [B, T, heads * D].

    The keys and values take their places in the layer's ring, which holds a window and a chunk:
    what a program replaces there is out of sight for the others.
    """
    rows, time = qkv.shape[:2]
    w, ring = window, memory.keys.shape[2]
    assert w.window - 1 + time <= ring
    if not (qkv.is_cuda or INTERPRETED):
        return _attend_twin(qkv, w, memory.keys[layer], memory.values[layer], memory, slots)
    out = qkv.new_empty(rows, time, w.heads * w.head_dim)
    _launch(
        _attend, (rows, w.heads), qkv, memory.keys[layer], memory.values[layer], slots,
        memory.position, w.frequency, out,
        time, w.head_dim**-0.5, HEADS=w.heads, KV=w.kv_heads, D=w.head_dim,
        BLOCK=max(16, triton.next_power_of_2(w.head_dim)), WINDOW=w.window, RING=ring,
        T=max(16, triton.next_power_of_2(time)), num_warps=4,
    )  # fmt: skip
    return out


def _attend_twin(
    qkv: Tensor, w: Window, keys: Tensor, values: Tensor, memory: Memory, slots: Tensor
) -> Tensor:
    rows, time = qkv.shape[:2]
    ring, d = keys.shape[1], w.head_dim
    at = memory.position[slots].long()[:, None] + torch.arange(time, device=qkv.device)
    angle = at[..., None, None] * torch.cat((w.frequency, w.frequency))
    q, k, v = qkv.view(rows, time, -1, d).split((w.heads, w.kv_heads, w.kv_heads), 2)

    def turned(x: Tensor) -> Tensor:
        low, high = x.float().chunk(2, 3)
        return (x * angle.cos() + torch.cat((-high, low), 3) * angle.sin()).to(x.dtype)

    k = turned(k)
    keys[slots[:, None], at % ring] = k.flatten(2)
    values[slots[:, None], at % ring] = v.flatten(2)
    seen = at[:, -1:] - torch.arange(ring, device=qkv.device)  # every place of the ring, once
    mask = (seen[:, None] <= at[..., None]) & (at[..., None] - seen[:, None] < w.window)
    mask &= (seen >= 0)[:, None]
    past = [
        kept[slots[:, None], seen % ring].view(rows, ring, w.kv_heads, d).transpose(1, 2).float()
        for kept in (keys, values)
    ]
    k, v = (kept.repeat_interleave(w.heads // w.kv_heads, 1) for kept in past)
    y = F.scaled_dot_product_attention(turned(q).transpose(1, 2).float(), k, v, mask[:, None])
    return y.transpose(1, 2).flatten(2).to(qkv.dtype)


@triton.jit(do_not_specialize=["time"])
def _step(slots, turn, position, time):
    slot = tl.load(slots + tl.program_id(0))
    tl.store(turn + slot, tl.load(turn + slot) + 1)
    tl.store(position + slot, tl.load(position + slot) + time)


def step(memory: Memory, slots: Tensor, time: int) -> None:
    """Turn the slots' memory over and move them on by `time` frames: the end of a step."""
    if slots.is_cuda or INTERPRETED:
        _launch(_step, (len(slots),), slots, memory.turn, memory.position, time)
    else:
        memory.turn[slots] += 1
        memory.position[slots] += time
