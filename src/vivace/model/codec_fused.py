"""The codec decoder in half precision and few kernels, its state by slot and in place.

The same function as `Codec`, whose weights it packs. For a card: a step has static shapes, reads
nothing back and can be captured. On the CPU it runs the kernels' plain twins.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from vivace.kernels.codec import (
    Conv,
    Depthwise,
    Memory,
    Snake,
    Window,
    attend,
    compiling,
    convolve,
    refine,
    step,
)
from vivace.model.codec import CausalConv, Codec, ConvNeXt, Residual, Stage, Upsample
from vivace.model.codec import Snake as SnakeLayer
from vivace.model.layers import Block, Linear
from vivace.model.spec import CodecSpec

MOST_FRAMES = 32  # of one row in one step


def fits(spec: CodecSpec) -> bool:
    """Are all widths multiples of 16, as the products of tiles want them?"""
    last = spec.decoder_dim >> len(spec.upsample_rates)
    return not any(width % 16 for width in (last, spec.latent, spec.hidden, spec.intermediate))


class _Pack:
    """Turns layers into what the kernels take, and hands out places in a slot's past."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.size = 0

    def reserve(self, inputs: int) -> int:
        """The place of so many inputs of the past."""
        self.size += inputs
        return self.size - inputs

    def half(self, weight: Tensor) -> Tensor:
        """A weight in the dtype of products."""
        return weight.detach().to(self.dtype).contiguous()

    def linear(
        self, layer: Linear, before: Tensor | None = None, after: Tensor | None = None
    ) -> Conv:
        """A layer over frames, with scales of its inputs and outputs in its weight."""
        weight = layer.weight.detach().float()
        bias = None if layer.bias is None else layer.bias.detach().float()
        if before is not None:
            weight = weight * before.float()[:, None]
        if after is not None:
            weight, bias = weight * after.float(), None if bias is None else bias * after.float()
        return Conv(self.half(weight), bias)

    def causal(self, layer: CausalConv) -> Conv:
        """A convolution of groups one."""
        conv = layer.conv
        assert conv.bias is not None
        out, into, taps = conv.weight.shape
        weight = conv.weight.permute(2, 1, 0).reshape(taps * into, out)
        offset = self.reserve((taps - 1) * conv.dilation[0] * into)
        return Conv(self.half(weight), conv.bias.detach().float(), taps, conv.dilation[0], offset)

    def up(self, layer: Upsample) -> Conv:
        """A transposed one: the kernel's later halves belong to the frames before."""
        conv = layer.conv
        assert conv.bias is not None
        into, out, kernel = conv.weight.shape
        rate = conv.stride[0]
        taps = kernel // rate
        parts = conv.weight.view(into, out, taps, rate).flip(2)
        weight = parts.permute(2, 0, 3, 1).reshape(taps * into, rate * out)
        bias = conv.bias.detach().float().repeat(rate)
        return Conv(self.half(weight), bias, taps, 1, self.reserve((taps - 1) * into))

    def snake(self, layer: SnakeLayer) -> Snake:
        """In fp32, as sines of large angles want it."""
        return Snake(layer.rate.detach().float().flatten(), layer.gain.detach().float().flatten())


class _Layer:
    """One transformer layer."""

    def __init__(self, pack: _Pack, block: Block) -> None:
        before, between = block.attention_norm, block.mlp_norm
        self.eps = before.eps
        self.qkv = pack.linear(block.attention.qkv, before.weight)
        self.out = pack.linear(block.attention.out)
        self.gate_up = pack.linear(block.mlp.gate_up, between.weight)
        self.down = pack.linear(block.mlp.down)


class _Refine:
    """One upsampling by a transposed convolution, and the ConvNeXt layer after it."""

    def __init__(self, pack: _Pack, up: Upsample, layer: ConvNeXt) -> None:
        conv, norm = layer.depthwise.conv, layer.norm
        assert conv.bias is not None
        self.up = pack.up(up)
        channels, _, taps = conv.weight.shape
        self.depthwise = Depthwise(
            conv.weight.detach()[:, 0].T.float().contiguous(),
            conv.bias.detach().float(),
            norm.weight.detach().float(),
            norm.bias.detach().float(),
            norm.eps,
            pack.reserve((taps - 1) * channels),
        )
        self.wide = pack.linear(layer.up)
        self.narrow = pack.linear(layer.down, after=layer.gamma.detach())


class _Unit:
    """One residual unit: the snake before it belongs to the layer before it."""

    def __init__(self, pack: _Pack, unit: Residual) -> None:
        self.before, self.between = pack.snake(unit.act1), pack.snake(unit.act2)
        self.conv, self.mix = pack.causal(unit.conv1), pack.causal(unit.conv2)


class _Stage:
    """One upsampling stage of the waveform decoder."""

    def __init__(self, pack: _Pack, stage: Stage) -> None:
        self.before = pack.snake(stage.act)
        self.up = pack.up(stage.up)
        self.units = [_Unit(pack, unit) for unit in stage.residuals]
        self.channels = stage.up.conv.out_channels


class FusedCodec:
    """Codes to sound for the slots of one pool."""

    @torch.no_grad()
    def __init__(self, codec: Codec, slots: int, dtype: torch.dtype = torch.float16) -> None:
        pack, spec = _Pack(dtype), codec.spec
        transformer = codec.transformer
        self.spec = spec
        self.codebooks = pack.half(codec.codebooks)
        self.books = torch.arange(spec.quantizers, device=self.codebooks.device)
        self.pre = pack.causal(codec.pre_conv)
        self.input = pack.linear(transformer.input)
        self.layers = [_Layer(pack, block) for block in transformer.layers]
        self.output = pack.linear(transformer.output, transformer.norm.weight)
        self.output_eps = transformer.norm.eps
        self.refines = [_Refine(pack, w.up, w.refine) for w in codec.widen]
        self.first = pack.causal(codec.first)
        self.stages = [_Stage(pack, stage) for stage in codec.stages]
        self.last_act, self.last = pack.snake(codec.last_act), pack.causal(codec.last)
        frequency = transformer.rope.frequencies.to(self.codebooks.device)
        self.window = Window(spec.heads, spec.kv_heads, spec.head_dim, spec.window, frequency)
        self.memory = self._fresh(slots, pack.size)

    def _fresh(self, slots: int, size: int) -> Memory:
        s, like = self.spec, self.codebooks
        ring = 1 << (s.window + MOST_FRAMES - 2).bit_length()
        shape = (s.layers, slots, ring, s.kv_heads * s.head_dim)
        turn = torch.zeros(slots, dtype=torch.int32, device=like.device)
        return Memory(
            like.new_zeros(2, slots, size),
            like.new_zeros(shape),
            like.new_zeros(shape),
            turn,
            torch.zeros_like(turn),
        )

    @torch.inference_mode()
    def compile(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Compile the kernels for these rows and frames at once; on a card, and without a step."""
        quantizers, device = self.spec.quantizers, self.codebooks.device
        with compiling():
            for rows, frames in shapes:
                codes = torch.zeros(rows, frames, quantizers, dtype=torch.int64, device=device)
                self(codes, codes[:, 0, 0])

    def reset(self, slot: int) -> None:
        """Make the slot one of which nothing has been decoded; old keys are never looked at."""
        # Filled in: a number that is assigned is copied to the card, and waited for.
        self.memory.past[:, slot].zero_()
        self.memory.position[slot].zero_()

    def take(self, slot: int) -> list[Tensor]:
        """A copy of what the slot has come to."""
        return [tensor.clone() for tensor in self._of(slot)]

    def lay(self, slot: int, taken: list[Tensor]) -> None:
        """Let the slot go on from there."""
        torch._foreach_copy_(self._of(slot), taken)

    def _of(self, slot: int) -> list[Tensor]:
        m = self.memory
        return [m.past[:, slot], m.keys[:, slot], m.values[:, slot], m.turn[slot], m.position[slot]]

    def __call__(self, codes: Tensor, slots: Tensor) -> Tensor:
        """Decode codes [B, T, 16] of the slots [B]: samples [B, T * 1920] in -1..1, fp32.

        Takes up to `MOST_FRAMES`. A slot may stand there twice only if nobody listens to it.
        """
        x, memory = self._latent(codes, slots), self.memory
        befores = [stage.before for stage in self.stages] + [self.last_act]
        _, x = convolve(x, self.first, memory, slots, snake=befores[0], keep=False)
        for stage, after in zip(self.stages, befores[1:], strict=True):
            x = self._stage(x, stage, after, slots)
        pcm, _ = convolve(x, self.last, memory, slots, clamp=True, out_dtype=torch.float32)
        step(memory, slots, codes.shape[1])
        return pcm[:, :, 0]

    def _latent(self, codes: Tensor, slots: Tensor) -> Tensor:
        """Frames through the transformer and the refinements: [B, 4 T, latent]."""
        memory = self.memory
        x = self.codebooks[self.books, codes].sum(2)
        x, _ = convolve(x, self.pre, memory, slots)
        x, _ = convolve(x, self.input, memory, slots)
        for i, layer in enumerate(self.layers):
            x = self._layer(x, layer, i, slots)
        x, _ = convolve(x, self.output, memory, slots, norm_eps=self.output_eps)
        for refinement in self.refines:
            x = self._refine(x, refinement, slots)
        return x

    def _layer(self, x: Tensor, layer: _Layer, number: int, slots: Tensor) -> Tensor:
        memory, eps = self.memory, layer.eps
        qkv, _ = convolve(x, layer.qkv, memory, slots, norm_eps=eps)
        heads = attend(qkv, self.window, number, memory, slots)
        x, _ = convolve(heads, layer.out, memory, slots, residual=x)
        gate_up, _ = convolve(x, layer.gate_up, memory, slots, norm_eps=eps)
        return convolve(gate_up, layer.down, memory, slots, gated=True, residual=x)[0]

    def _refine(self, x: Tensor, refinement: _Refine, slots: Tensor) -> Tensor:
        memory, channels = self.memory, x.shape[2]
        x, _ = convolve(x, refinement.up, memory, slots)
        x = x.view(len(x), -1, channels)
        y = refine(x, refinement.depthwise, memory, slots)
        y, _ = convolve(y, refinement.wide, memory, slots, gelu=True)
        return convolve(y, refinement.narrow, memory, slots, residual=x)[0]

    def _stage(self, x: Tensor, stage: _Stage, after: Snake, slots: Tensor) -> Tensor:
        """From the stage's snaked input to its output through the snake `after` it."""
        memory, units = self.memory, stage.units
        x, active = convolve(x, stage.up, memory, slots, snake=units[0].before)
        shape = (len(x), -1, stage.channels)
        x, active = x.view(shape), active.view(shape)
        snakes = [unit.before for unit in units[1:]] + [after]
        for unit, snake in zip(units, snakes, strict=True):
            _, y = convolve(active, unit.conv, memory, slots, snake=unit.between, keep=False)
            more = snake is not after
            x, active = convolve(y, unit.mix, memory, slots, residual=x, snake=snake, keep=more)
        return active
