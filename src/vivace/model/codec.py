"""The codec decoder: 16 codes in, 1,920 samples out, whole or in any chunks with the same result.

Everything is causal, so one definition serves both: each layer that looks back takes what it saw
before from the state and puts back what the next chunk will need. A fresh state is all zeros, which
is what a causal convolution pads with; decoding whole is decoding one chunk from a fresh state.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.model.layers import (
    Attend,
    Block,
    Layers,
    Linear,
    RMSNorm,
    Rope,
    Take,
    fill,
    grouped_attention,
)
from vivace.model.spec import CodecSpec

State = list[Tensor]
"""Batch-first history of every layer that looks back, then the position [B] of each row."""


class Slots:
    """Hands out places in the state as the layers are built, and remembers their shapes."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def add(self, *shape: int) -> int:
        self.shapes.append(shape)
        return len(self.shapes) - 1


def _look_back(x: Tensor, state: State, place: int, axis: int = -1) -> Tensor:
    """Join the history of `place` to `x` along time, and keep the end of both as the new one."""
    joined = torch.cat((state[place], x), axis)
    length = state[place].shape[axis]
    state[place] = joined.narrow(axis, joined.shape[axis] - length, length)
    return joined


class CausalConv(nn.Module):
    """Convolution over [B, channels, time] that sees only the past."""

    def __init__(
        self, slots: Slots, into: int, out: int, kernel: int, *, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(into, out, kernel, dilation=dilation, groups=groups)
        past = (kernel - 1) * dilation
        self.place = slots.add(into, past) if past else None

    def load(self, take: Take, name: str) -> None:
        fill(self.conv.weight, take(f"{name}.weight", *self.conv.weight.shape))
        assert self.conv.bias is not None
        fill(self.conv.bias, take(f"{name}.bias", *self.conv.bias.shape))

    def forward(self, x: Tensor, state: State) -> Tensor:
        if self.place is not None:
            x = _look_back(x, state, self.place)
        out: Tensor = self.conv(x)
        return out


class Upsample(nn.Module):
    """Transposed convolution of stride `rate`; a longer kernel overlaps into the next chunk."""

    def __init__(self, slots: Slots, into: int, out: int, kernel: int, rate: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(into, out, kernel, stride=rate)
        self.overlap = kernel - rate
        self.place = slots.add(out, self.overlap) if self.overlap else None

    def load(self, take: Take, name: str) -> None:
        fill(self.conv.weight, take(f"{name}.weight", *self.conv.weight.shape))
        assert self.conv.bias is not None
        fill(self.conv.bias, take(f"{name}.bias", *self.conv.bias.shape))

    def forward(self, x: Tensor, state: State) -> Tensor:
        bias = self.conv.bias
        assert bias is not None
        if self.place is None:
            return F.conv_transpose1d(x, self.conv.weight, bias, stride=self.conv.stride)
        y = F.conv_transpose1d(x, self.conv.weight, None, stride=self.conv.stride)
        y[..., : self.overlap] += state[self.place]
        out, state[self.place] = y.tensor_split((-self.overlap,), -1)
        return out + bias[:, None]


class Snake(nn.Module):
    """x + sin(a x)^2 / b per channel, a and b stored as logarithms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.ones(channels, 1))
        self.gain = nn.Parameter(torch.ones(channels, 1))

    def load(self, take: Take, name: str) -> None:
        channels = self.rate.shape[0]
        alpha, beta = (take(f"{name}.{part}", channels).float() for part in ("alpha", "beta"))
        fill(self.rate, alpha.exp()[:, None])
        fill(self.gain, (1.0 / (beta.exp() + 1e-9))[:, None])

    def forward(self, x: Tensor) -> Tensor:
        wave = torch.sin(x * self.rate)
        return torch.addcmul(x, wave * self.gain, wave)


class Residual(nn.Module):
    """Snake, dilated convolution, snake, pointwise convolution, added to the input."""

    def __init__(self, slots: Slots, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1, self.act2 = Snake(channels), Snake(channels)
        self.conv1 = CausalConv(slots, channels, channels, 7, dilation=dilation)
        self.conv2 = CausalConv(slots, channels, channels, 1)

    def load(self, take: Take, name: str) -> None:
        self.act1.load(take, f"{name}.act1")
        self.conv1.load(take, f"{name}.conv1.conv")
        self.act2.load(take, f"{name}.act2")
        self.conv2.load(take, f"{name}.conv2.conv")

    def forward(self, x: Tensor, state: State) -> Tensor:
        y = self.conv1(self.act1(x), state)
        out: Tensor = x + self.conv2(self.act2(y), state)
        return out


class Stage(nn.Module):
    """One upsampling stage of the waveform decoder."""

    def __init__(self, slots: Slots, into: int, out: int, rate: int) -> None:
        super().__init__()
        self.act = Snake(into)
        self.up = Upsample(slots, into, out, 2 * rate, rate)
        self.residuals = Layers[Residual](Residual(slots, out, d) for d in (1, 3, 9))

    def load(self, take: Take, name: str) -> None:
        self.act.load(take, f"{name}.block.0")
        self.up.load(take, f"{name}.block.1.conv")
        for i, residual in enumerate(self.residuals, 2):
            residual.load(take, f"{name}.block.{i}")

    def forward(self, x: Tensor, state: State) -> Tensor:
        x = self.up(self.act(x), state)
        for residual in self.residuals:
            x = residual(x, state)
        return x


class ConvNeXt(nn.Module):
    """Depthwise convolution and a pointwise MLP, gated into the residual."""

    def __init__(self, slots: Slots, channels: int) -> None:
        super().__init__()
        self.depthwise = CausalConv(slots, channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up = Linear(channels, 4 * channels, bias=True)
        self.down = Linear(4 * channels, channels, bias=True)
        self.gamma = nn.Parameter(torch.ones(channels))

    def load(self, take: Take, name: str) -> None:
        channels = self.gamma.shape[0]
        self.depthwise.load(take, f"{name}.dwconv.conv")
        fill(self.norm.weight, take(f"{name}.norm.weight", channels))
        fill(self.norm.bias, take(f"{name}.norm.bias", channels))
        self.up.load(take, f"{name}.pwconv1")
        self.down.load(take, f"{name}.pwconv2")
        fill(self.gamma, take(f"{name}.gamma", channels))

    def forward(self, x: Tensor, state: State) -> Tensor:
        y = self.norm(self.depthwise(x, state).transpose(1, 2).flatten(0, 1))
        y = self.gamma * self.down(F.gelu(self.up(y)))
        out: Tensor = x + y.view(x.shape[0], -1, y.shape[1]).transpose(1, 2)
        return out


class Widen(nn.Module):
    """More rows of the latent per frame: a transposed convolution and a ConvNeXt layer."""

    def __init__(self, slots: Slots, channels: int, rate: int) -> None:
        super().__init__()
        self.up = Upsample(slots, channels, channels, rate, rate)
        self.refine = ConvNeXt(slots, channels)

    def load(self, take: Take, name: str) -> None:
        self.up.load(take, f"{name}.0.conv")
        self.refine.load(take, f"{name}.1")

    def forward(self, x: Tensor, state: State) -> Tensor:
        out: Tensor = self.refine(self.up(x, state), state)
        return out


class WindowTransformer(nn.Module):
    """The transformer before the upsampling."""

    def __init__(self, slots: Slots, spec: CodecSpec) -> None:
        super().__init__()
        self.window = spec.window
        self.input = Linear(spec.latent, spec.hidden, bias=True)
        self.layers = Layers[Block](
            Block(
                spec.hidden,
                spec.intermediate,
                spec.heads,
                spec.kv_heads,
                spec.head_dim,
                spec.rms_eps,
                qk_norm=False,
            )
            for _ in range(spec.layers)
        )
        past = (spec.window - 1, spec.kv_heads, spec.head_dim)
        self.places = [(slots.add(*past), slots.add(*past)) for _ in range(spec.layers)]
        self.norm = RMSNorm(spec.hidden, spec.rms_eps)
        self.output = Linear(spec.hidden, spec.latent, bias=True)
        self.rope = Rope(spec.head_dim, spec.rope_theta, self.input.weight.device)

    def load(self, take: Take, name: str) -> None:
        self.input.load(take, f"{name}.input_proj")
        for i, block in enumerate(self.layers):
            block.load(take, f"{name}.layers.{i}", layer_scale=True)
        self.norm.load(take, f"{name}.norm")
        self.output.load(take, f"{name}.output_proj")

    def forward(self, x: Tensor, start: Tensor, state: State) -> Tensor:
        """Rows [B, T, latent] whose first positions are `start` [B]."""
        rows, frames = x.shape[:2]
        positions = start[:, None] + torch.arange(frames, device=x.device)
        rope = self.rope.at(positions.flatten(), x.dtype)
        mask = self._mask(start, frames)
        x = self.input(x.flatten(0, 1))
        for block, places in zip(self.layers, self.places, strict=True):
            x = block(x, rope, _window(mask, state, places))
        out: Tensor = self.output(self.norm(x)).view(rows, frames, -1)
        return out

    def _mask(self, start: Tensor, t: int) -> Tensor:
        """Which keys [B, T, window - 1 + T] a query sees: those of its window that exist."""
        past = self.window - 1
        key = torch.arange(-past, t, device=start.device)
        back = torch.arange(t, device=start.device)[:, None] - key
        inside = (back >= 0) & (back < self.window)
        return inside & (start[:, None, None] + key >= 0)


def _window(mask: Tensor, state: State, places: tuple[int, int]) -> Attend:
    """Attention over the keys and values that `places` of the state hold, and the chunk's own."""

    def join(new: Tensor, place: int) -> Tensor:
        rows = new.reshape(mask.shape[0], -1, *new.shape[1:])
        return _look_back(rows, state, place, 1).transpose(1, 2)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return grouped_attention(q, join(k, places[0]), join(v, places[1]), mask)

    return attend


class Codec(nn.Module):
    """Codes to sound."""

    def __init__(self, spec: CodecSpec) -> None:
        super().__init__()
        slots = Slots()
        self.spec = spec
        # Codebook entries with their output projections folded in: a frame is a sum of 16 rows.
        self.codebooks = nn.Parameter(
            torch.empty(spec.quantizers, spec.codebook_size, spec.codebook_dim)
        )
        self.pre_conv = CausalConv(slots, spec.codebook_dim, spec.latent, 3)
        self.transformer = WindowTransformer(slots, spec)
        self.widen = Layers[Widen](Widen(slots, spec.latent, r) for r in spec.upsampling_ratios)
        widths = [spec.decoder_dim >> i for i in range(len(spec.upsample_rates) + 1)]
        self.first = CausalConv(slots, spec.latent, widths[0], 7)
        self.stages = Layers[Stage](
            Stage(slots, into, out, rate)
            for into, out, rate in zip(widths, widths[1:], spec.upsample_rates, strict=False)
        )
        self.last_act = Snake(widths[-1])
        self.last = CausalConv(slots, widths[-1], 1, 7)
        self.shapes = tuple(slots.shapes)

    def load(self, take: Take) -> None:
        for i, table in enumerate(self._published_codebooks(take)):
            fill(self.codebooks[i], table)
        self.pre_conv.load(take, "decoder.pre_conv.conv")
        self.transformer.load(take, "decoder.pre_transformer")
        for i, widen in enumerate(self.widen):
            widen.load(take, f"decoder.upsample.{i}")
        self.first.load(take, "decoder.decoder.0.conv")
        for i, stage in enumerate(self.stages, 1):
            stage.load(take, f"decoder.decoder.{i}")
        last = len(self.stages) + 1
        self.last_act.load(take, f"decoder.decoder.{last}")
        self.last.load(take, f"decoder.decoder.{last + 1}.conv")

    def _published_codebooks(self, take: Take) -> Iterator[Tensor]:
        """Tables [entries, codebook_dim] of the semantic codebooks, then of the acoustic ones."""
        s = self.spec
        inner = s.codebook_dim // 2
        for part, count in (
            ("rvq_first", s.semantic_quantizers),
            ("rvq_rest", s.quantizers - s.semantic_quantizers),
        ):
            base = f"decoder.quantizer.{part}"
            project = take(f"{base}.output_proj.weight", s.codebook_dim, inner, 1)[:, :, 0].float()
            for i in range(count):
                name = f"{base}.vq.layers.{i}._codebook"
                usage = take(f"{name}.cluster_usage", s.codebook_size).float()
                total = take(f"{name}.embedding_sum", s.codebook_size, inner).float()
                yield (total / usage.clamp(min=1e-5)[:, None]) @ project.T

    def fresh(self, rows: int) -> State:
        """The state of `rows` streams of which nothing has been decoded."""
        like = self.codebooks
        state = [like.new_zeros(rows, *shape) for shape in self.shapes]
        return [*state, torch.zeros(rows, dtype=torch.int64, device=like.device)]

    def forward(self, codes: Tensor, state: State) -> tuple[Tensor, State]:
        """Decode codes [B, T, 16]: samples [B, T * 1920] in -1..1, and the new state."""
        books = torch.arange(codes.shape[2], device=codes.device)
        return self.synthesize(self.codebooks[books, codes].sum(2), state)

    def synthesize(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Decode dequantised frames [B, T, codebook_dim]."""
        state = list(state)
        frames, start = x.shape[1], state[-1]
        x = self.pre_conv(x.transpose(1, 2), state)
        x = self.transformer(x.transpose(1, 2), start, state).transpose(1, 2)
        for widen in self.widen:
            x = widen(x, state)
        x = self.first(x, state)
        for stage in self.stages:
            x = stage(x, state)
        x = self.last(self.last_act(x), state)
        state[-1] = start + frames
        return x[:, 0].clamp(-1.0, 1.0), state
