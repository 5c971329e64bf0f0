"""The codec decoder of Qwen3-TTS for training: module names are the published tensor names.

Whole clips only, differentiable. The shapes are small; the architecture is the published one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CONFIG = {
    "latent_dim": 128,
    "codebook_dim": 128,
    "codebook_size": 256,
    "decoder_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 192,
    "intermediate_size": 384,
    "layer_scale_initial_scale": 0.01,
    "max_position_embeddings": 8000,
    "head_dim": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "num_quantizers": 16,
    "num_semantic_quantizers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000,
    "semantic_codebook_size": 256,
    "sliding_window": 72,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "vector_quantization_hidden_dimension": 64,
}
LAYER_SCALE = 0.3  # start; the published 0.01 learns too slowly for a run of minutes


def sine_square(x: Tensor, rate: Tensor, gain: Tensor) -> Tensor:
    return x + torch.sin(x * rate).square() * gain


class Snake(nn.Module):
    """x + sin(x e^alpha)^2 / e^beta per channel of [B, C, T]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        rate, gain = self.alpha.exp(), 1 / (self.beta.exp() + 1e-9)
        return sine_square(x, rate.to(x.dtype)[:, None], gain.to(x.dtype)[:, None])


class CausalConv(nn.Module):
    def __init__(
        self, into: int, out: int, kernel: int, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(into, out, kernel, dilation=dilation, groups=groups)
        self.past = (kernel - 1) * dilation

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (self.past, 0)))


class Upsample(nn.Module):
    def __init__(self, into: int, out: int, kernel: int, rate: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(into, out, kernel, stride=rate)
        self.overlap = kernel - rate

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y[..., : y.shape[-1] - self.overlap]


class Residual(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1, self.act2 = Snake(channels), Snake(channels)
        self.conv1 = CausalConv(channels, channels, 7, dilation)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.act2(self.conv1(self.act1(x))))


class Stage(nn.Module):
    def __init__(self, into: int, out: int, rate: int) -> None:
        super().__init__()
        residuals = [Residual(out, dilation) for dilation in (1, 3, 9)]
        self.block = nn.Sequential(Snake(into), Upsample(into, out, 2 * rate, rate), *residuals)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class ConvNeXt(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), LAYER_SCALE))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).transpose(1, 2))
        return x + (self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))).transpose(1, 2)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


def rotate(x: Tensor, theta: float, positions: Tensor) -> Tensor:
    """Half-split rotary embedding of [..., T, D] at positions broadcastable to [..., T]."""
    half = x.shape[-1] // 2
    frequency = theta ** -(torch.arange(half, device=x.device) / half)
    angle = positions[..., None].float() * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.c = c
        wide = c["num_attention_heads"] * c["head_dim"]
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, nn.Linear(c["hidden_size"], wide, bias=False))
        self.o_proj = nn.Linear(wide, c["hidden_size"], bias=False)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[1], device=x.device)
        q, k, v = (
            p(x).unflatten(-1, (-1, self.c["head_dim"])).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (rotate(t, self.c["rope_theta"], steps) for t in (q, k))
        back = steps[:, None] - steps
        mask = (back >= 0) & (back < self.c["sliding_window"])
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Scale(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((size,), LAYER_SCALE))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class Layer(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        hidden, eps = c["hidden_size"], c["rms_norm_eps"]
        self.self_attn, self.mlp = Attention(c), Mlp(hidden, c["intermediate_size"])
        self.input_layernorm, self.post_attention_layernorm = (RMSNorm(hidden, eps) for _ in "ab")
        self.self_attn_layer_scale, self.mlp_layer_scale = (Scale(hidden) for _ in "ab")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x)))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class Transformer(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.input_proj = nn.Linear(c["latent_dim"], c["hidden_size"])
        self.layers = nn.Sequential(*(Layer(c) for _ in range(c["num_hidden_layers"])))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.output_proj = nn.Linear(c["hidden_size"], c["latent_dim"])

    def forward(self, x: Tensor) -> Tensor:
        return self.output_proj(self.norm(self.layers(self.input_proj(x))))


class Codebook(nn.Module):
    """Entries as running sums, updated by exponential moving average."""

    def __init__(self, entries: int, dim: int) -> None:
        super().__init__()
        self.cluster_usage = nn.Parameter(torch.ones(entries), requires_grad=False)
        self.embedding_sum = nn.Parameter(torch.randn(entries, dim), requires_grad=False)

    def entries(self) -> Tensor:
        return self.embedding_sum / self.cluster_usage.clamp(min=1e-5)[:, None]


class VectorQuantizer(nn.Module):
    def __init__(self, entries: int, dim: int) -> None:
        super().__init__()
        self._codebook = Codebook(entries, dim)


class ResidualQuantizer(nn.Module):
    """Codebooks over one projection of the latent; [B, T, C] everywhere."""

    def __init__(self, c: dict, books: int) -> None:
        super().__init__()
        wide, dim = c["codebook_dim"], c["codebook_dim"] // 2
        self.input_proj = nn.Conv1d(wide, dim, 1, bias=False)
        self.output_proj = nn.Conv1d(dim, wide, 1, bias=False)
        self.vq = nn.Module()
        self.vq.layers = nn.ModuleList(
            VectorQuantizer(c["codebook_size"], dim) for _ in range(books)
        )

    def books(self) -> list[Codebook]:
        return [layer._codebook for layer in self.vq.layers]

    def into(self, z: Tensor) -> Tensor:
        return F.linear(z, self.input_proj.weight[..., 0])

    def out(self, q: Tensor) -> Tensor:
        return F.linear(q, self.output_proj.weight[..., 0])

    def look_up(self, codes: Tensor) -> Tensor:
        parts = (F.embedding(codes[..., i], b.entries()) for i, b in enumerate(self.books()))
        return self.out(sum(parts))


class Quantizer(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.rvq_first = ResidualQuantizer(c, 1)
        self.rvq_rest = ResidualQuantizer(c, c["num_quantizers"] - 1)

    def look_up(self, codes: Tensor) -> Tensor:
        """Latents [B, T, codebook_dim] of codes [B, T, 16]."""
        return self.rvq_first.look_up(codes[..., :1]) + self.rvq_rest.look_up(codes[..., 1:])


class Decoder(nn.Module):
    def __init__(self, c: dict = CONFIG) -> None:
        super().__init__()
        latent, wide, rates = c["latent_dim"], c["decoder_dim"], c["upsample_rates"]
        self.quantizer = Quantizer(c)
        self.pre_conv = CausalConv(c["codebook_dim"], latent, 3)
        self.pre_transformer = Transformer(c)
        self.upsample = nn.Sequential(
            *(
                nn.Sequential(Upsample(latent, latent, r, r), ConvNeXt(latent))
                for r in c["upsampling_ratios"]
            )
        )
        widths = [wide >> i for i in range(len(rates) + 1)]
        stages = [Stage(i, o, r) for i, o, r in zip(widths, widths[1:], rates, strict=False)]
        last = widths[-1]
        self.decoder = nn.Sequential(
            CausalConv(latent, wide, 7), *stages, Snake(last), CausalConv(last, 1, 7)
        )

    def forward(self, codes: Tensor) -> Tensor:
        """Sound [B, T * 1920] of codes [B, T, 16], not clamped."""
        x = self.pre_conv(self.quantizer.look_up(codes).transpose(1, 2))
        x = self.pre_transformer(x.transpose(1, 2)).transpose(1, 2)
        x = self.decoder[:-2](self.upsample(x))
        with torch.autocast(x.device.type, enabled=False):  # the waveform itself in fp32
            return self.decoder[-2:](x.float())[:, 0]
