"""The codec's encoder: 1,920 samples in, 16 codes out. Mimi's, in plain torch and fp32.

Its convolutions are causal, so a clip goes through them a second at a time and a long one takes no
more memory than a short one; the transformer behind them sees 25 rows a second. It runs where a
voice is made, beside streams that play, and is no part of their steps.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.model.codec import CausalConv, Slots, State
from vivace.model.layers import Attention, Layers, Linear, Rope, Take, fill, grouped_attention
from vivace.model.spec import CodecSpec, EncoderSpec

CHUNK_FRAMES = 12  # of the clip that the convolutions take at a time


class StridedConv(CausalConv):
    """To a `rate`-th of the rate; what is left of a last row is filled with silence."""

    def __init__(self, slots: Slots, into: int, out: int, rate: int) -> None:
        super().__init__(slots, into, out, rate + 1)  # whose past is `rate` long
        self.conv = nn.Conv1d(into, out, 2 * rate, stride=rate)
        self.rate = rate

    def forward(self, x: Tensor, state: State) -> Tensor:
        short = -x.shape[-1] % self.rate
        return super().forward(F.pad(x, (0, short)) if short else x, state)


class Residual(nn.Module):
    """ELU, convolution, ELU, pointwise convolution, added to the input."""

    def __init__(self, slots: Slots, channels: int, inner: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.conv1 = CausalConv(slots, channels, inner, kernel, dilation=dilation)
        self.conv2 = CausalConv(slots, inner, channels, 1)

    def load(self, take: Take, name: str) -> None:
        self.conv1.load(take, f"{name}.block.1.conv")
        self.conv2.load(take, f"{name}.block.3.conv")

    def forward(self, x: Tensor, state: State) -> Tensor:
        y = self.conv1(F.elu(x), state)
        out: Tensor = x + self.conv2(F.elu(y), state)
        return out


class Narrow(nn.Module):
    """Residuals, then a strided convolution: a lower rate and twice the width."""

    def __init__(self, slots: Slots, spec: EncoderSpec, channels: int, rate: int) -> None:
        super().__init__()
        inner, kernel = channels // spec.compress, spec.residual_kernel
        self.residuals = Layers[Residual](
            Residual(slots, channels, inner, kernel, spec.dilation_growth**i)
            for i in range(spec.residuals)
        )
        self.down = StridedConv(slots, channels, 2 * channels, rate)

    def load(self, take: Take, name: str, place: int) -> int:
        """Load from the published layers from `place` on; the place behind them."""
        for residual in self.residuals:
            residual.load(take, f"{name}.{place}")
            place += 1
        self.down.load(take, f"{name}.{place + 1}.conv")  # an activation stands before it
        return place + 2

    def forward(self, x: Tensor, state: State) -> Tensor:
        for residual in self.residuals:
            x = residual(x, state)
        out: Tensor = self.down(F.elu(x), state)
        return out


class Block(nn.Module):
    """A pre-norm transformer layer with layer norms and a GELU."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        hidden, inner = spec.hidden, spec.intermediate
        self.attention_norm = nn.LayerNorm(hidden, eps=spec.eps)
        self.attention = Attention(hidden, spec.heads, spec.kv_heads, spec.head_dim, None)
        self.mlp_norm = nn.LayerNorm(hidden, eps=spec.eps)
        self.up, self.down = Linear(hidden, inner), Linear(inner, hidden)

    def load(self, take: Take, name: str) -> None:
        size = self.attention_norm.weight.shape[0]
        attention, mlp = (
            take(f"{name}.{part}_layer_scale.scale", size).float() for part in ("self_attn", "mlp")
        )
        self.attention.load(take, f"{name}.self_attn", attention)
        self.up.load(take, f"{name}.mlp.fc1")
        self.down.load(take, f"{name}.mlp.fc2", scale=mlp)
        for norm, part in (
            (self.attention_norm, "input_layernorm"),
            (self.mlp_norm, "post_attention_layernorm"),
        ):
            fill(norm.weight, take(f"{name}.{part}.weight", size))
            fill(norm.bias, take(f"{name}.{part}.bias", size))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Rows [T, hidden] that look where `mask` [1, T, T] is true."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return grouped_attention(q, k.transpose(0, 1)[None], v.transpose(0, 1)[None], mask)

        x = self.attention.forward(x, self.attention_norm(x), rope, attend)
        up = F.gelu(self.up.forward(self.mlp_norm(x)))
        return torch.addmm(x, up, self.down.weight)


class Quantizer(nn.Module):
    """Codebooks that take turns, each at what those before it have left over."""

    def __init__(self, hidden: int, inner: int, size: int, books: int) -> None:
        super().__init__()
        self.project = Linear(hidden, inner)
        self.tables = nn.Parameter(torch.empty(books, size, inner))

    def load(self, take: Take, name: str) -> None:
        books, size, inner = self.tables.shape
        hidden = self.project.weight.shape[0]
        projection = take(f"{name}.input_proj.weight", inner, hidden, 1)
        fill(self.project.weight.T, projection[:, :, 0])
        for i in range(books):
            book = f"{name}.layers.{i}.codebook"
            usage = take(f"{book}.cluster_usage", size).float().clamp(min=1e-5)
            fill(self.tables[i], take(f"{book}.embed_sum", size, inner).float() / usage[:, None])

    def forward(self, x: Tensor) -> Tensor:
        """Codes [T, books] of rows x [T, hidden]."""
        left, codes = self.project.forward(x), []
        for table in self.tables:
            nearest = torch.cdist(left[None], table[None])[0].argmin(1)
            codes.append(nearest)
            left = left - table[nearest]
        return torch.stack(codes, 1)


class CodecEncoder(nn.Module):
    """Sound to the codes that the decoder speaks."""

    def __init__(self, codec: CodecSpec, spec: EncoderSpec) -> None:
        super().__init__()
        slots, width = Slots(), spec.filters
        self.frame_samples = codec.frame_samples
        self.first = CausalConv(slots, 1, width, spec.kernel)
        self.stages = Layers[Narrow]()
        for rate in reversed(spec.rates):
            self.stages.append(Narrow(slots, spec, width, rate))
            width *= 2
        self.last = CausalConv(slots, width, spec.hidden, spec.last_kernel)
        self.shapes = tuple(slots.shapes)
        self.layers = Layers[Block](Block(spec) for _ in range(spec.layers))
        device = self.last.conv.weight.device
        self.rope = Rope(spec.head_dim, spec.rope_theta, device)
        self.halve = nn.Conv1d(spec.hidden, spec.hidden, 4, stride=2, bias=False)
        rest = codec.quantizers - codec.semantic_quantizers
        self.quantizers = Layers[Quantizer](
            Quantizer(spec.hidden, spec.codebook_dim, codec.codebook_size, count)
            for count in (codec.semantic_quantizers, rest)
        )

    def load(self, take: Take) -> None:
        base, place = "encoder.encoder.layers", 1
        self.first.load(take, f"{base}.0.conv")
        for stage in self.stages:
            place = stage.load(take, base, place)
        self.last.load(take, f"{base}.{place + 1}.conv")
        for i, layer in enumerate(self.layers):
            layer.load(take, f"encoder.encoder_transformer.layers.{i}")
        fill(self.halve.weight, take("encoder.downsample.conv.weight", *self.halve.weight.shape))
        for quantizer, part in zip(self.quantizers, ("semantic", "acoustic"), strict=True):
            quantizer.load(take, f"encoder.quantizer.{part}_residual_vector_quantizer")

    def forward(self, pcm: Tensor) -> Tensor:
        """Codes [ceil(N / 1920), 16] of samples [N] of 24 kHz, the last frame filled with silence.

        It is filled layer by layer, as published, so that part of a frame sounds as it did there.
        """
        x = torch.cat(list(self._convolved(pcm)), 2)[0].T
        rope = self.rope.at(torch.arange(len(x), device=x.device), x.dtype)
        # All of the past: the window of 250 rows in the published config is not applied by the
        # official package, and past 10 s of clip its codes would be others.
        mask = torch.ones(1, len(x), len(x), dtype=torch.bool, device=x.device).tril()
        for layer in self.layers:
            x = layer(x, rope, mask)
        odd = len(x) % 2
        x = self.halve(F.pad(x.T[None], (2, odd), mode="replicate"))[0].T
        return torch.cat([quantizer(x) for quantizer in self.quantizers], 1)

    def _convolved(self, pcm: Tensor) -> Iterator[Tensor]:
        """Rows [1, hidden, n] of 40 ms each, from so many frames at a time."""
        state = [pcm.new_zeros(1, *shape) for shape in self.shapes]
        for part in torch.split(pcm, CHUNK_FRAMES * self.frame_samples):
            x = self.first(part[None, None], state)
            for stage in self.stages:
                x = stage(x, state)
            yield self.last(F.elu(x), state)
