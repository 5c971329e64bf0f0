"""Tiny weights inside wide tensors: a transformer that computes what a smaller one does.

The first channels of the wide residual stream are the tiny one's, times a power of two, `scale`.
The others hold `still`, a constant that the input brings and no layer writes. What the constants
add to the mean square does two jobs. With r wide channels for each tiny one, a norm sees

    scale^2 / r * (tiny mean square) + (spare mean square) + eps

and the spare mean square is chosen so that this is scale^2 / r times what the tiny norm sees, eps
included: its weights need one common factor, and nothing is approximated. (A scale of sqrt(r) would
need no constants, but it is no power of two, and would round all embeddings anew.) And after the
last norm the constants, always positive, hold the logits of ids down that the tiny model lacks:
heads have no bias.

bfloat16 keeps all of it: powers of two are exact, zero stays zero under a sum of zeros, a constant
to which nothing is added stays as it is, and what its rounding shifts eps by (0.4 %) is nothing
beside a mean square. Norm weights, queries and keys are rounded once, as they are when the tiny
model itself is loaded in bfloat16.

Units that the tiny model lacks are random and alive: they read every channel, and nothing reads
them. Only where they would write to the residual stream, or be read, do weights have to be zero.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from vivace.checkpoint.noise import Noise
from vivace.checkpoint.tensors import Shape
from vivace.model.spec import CodecSpec, TransformerSpec

# What the constants become behind the last norm, at a tiny RMS of 1. With it a spare id's logit is
# about -3e5 in the published sizes: still -300 at an RMS of 1,000, where others are within 100.
HOLD = 1e4


def rope_theta(tiny: TransformerSpec | CodecSpec, head_dim: int) -> float:
    """The base at which heads of `head_dim` have the tiny heads' frequencies among theirs.

    It is the tiny one's wherever `head_dim` is a multiple of the tiny heads' size.
    """
    used = head_dim - head_dim % tiny.head_dim
    return round(tiny.rope_theta ** (head_dim / used), 6) if used else tiny.rope_theta


def place(
    x: Tensor, part: Tensor, rows: Tensor | None = None, columns: Tensor | None = None
) -> Tensor:
    """Make units of a layer `x` [out, in] those of `part`, which then read its `columns` alone.

    Without `rows` and `columns` they are the first.
    """
    rows = torch.arange(part.shape[0]) if rows is None else rows
    columns = torch.arange(part.shape[1]) if columns is None else columns
    x[rows] = 0.0
    x[rows[:, None], columns] = part.to(x.dtype)
    return x


class Inlay:
    """Makes the tensors of one wide transformer, by their published names, from a tiny one's."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        noise: Noise,
        tiny: TransformerSpec | CodecSpec,
        wide: TransformerSpec | CodecSpec,
    ) -> None:
        self.tensors, self.noise, self.tiny, self.wide = tensors, noise, tiny, wide
        ratio = wide.hidden / tiny.hidden
        self.scale = 2.0 ** (math.floor(math.log2(ratio) / 2) + 1)
        power = self.scale**2 / ratio  # of the wide stream, over that of the tiny one: above 1
        spare = wide.hidden * (power - 1.0) * tiny.rms_eps
        self.still = math.sqrt(spare / (wide.hidden - tiny.hidden))
        self.root = math.sqrt(power)
        self.channels = torch.arange(tiny.hidden)
        # A norm over a head sees it spread over more dimensions; so does the scale of attention.
        stretch = math.sqrt(wide.head_dim / tiny.head_dim)
        normed = isinstance(tiny, TransformerSpec)  # queries and keys
        half = wide.head_dim // tiny.head_dim * torch.arange(tiny.head_dim // 2)
        self.dims = torch.cat((half, half + wide.head_dim // 2))  # where the frequencies match
        kv_heads, group = torch.arange(tiny.kv_heads), torch.arange(tiny.heads // tiny.kv_heads)
        # A query head keeps its key head.
        heads = (kv_heads[:, None] * (wide.heads // wide.kv_heads) + group).flatten()
        self.make: dict[str, Callable[[str, Shape, Tensor | None], Tensor]] = {
            "q_proj": partial(self._heads, heads, stretch),
            "k_proj": partial(self._heads, kv_heads, stretch if normed else 1.0),
            "v_proj": partial(self._heads, kv_heads, 1.0),
            "o_proj": partial(self._branch, self._rows(heads)),
            "q_norm": partial(self._vector, self.dims, 1.0),  # 1 / stretch, and attention's scale
            "k_norm": partial(self._vector, self.dims, 1.0 / stretch),
            "gate_proj": self._units,
            "up_proj": self._units,
            "down_proj": partial(self._branch, None),
            "self_attn_layer_scale": partial(self._vector, self.channels, 1.0),
            "mlp_layer_scale": partial(self._vector, self.channels, 1.0),
            "input_layernorm": self._norm,
            "post_attention_layernorm": self._norm,
            "norm": self._norm,
        }

    def __call__(self, name: str, shape: Shape) -> Tensor:
        """The tensor `name` of a layer; of one the tiny model lacks, a layer that adds nothing."""
        return self.make[name.split(".")[-2]](name, shape, self.tensors.get(name))

    def _rows(self, heads: Tensor) -> Tensor:
        """Where the tiny dimensions of these wide heads stand, in the tiny order."""
        return (heads[:, None] * self.wide.head_dim + self.dims).flatten()

    def _heads(
        self, heads: Tensor, stretch: float, name: str, shape: Shape, part: Tensor | None
    ) -> Tensor:
        """Queries, keys or values. Dimensions between the tiny ones are 0, to stay out of norms."""
        x = self.noise.layer(name, shape)
        if part is None:
            return x
        x.view(-1, self.wide.head_dim, shape[1])[heads] = 0.0
        return place(x, part * stretch, self._rows(heads))

    def _units(self, name: str, shape: Shape, part: Tensor | None) -> Tensor:
        x = self.noise.layer(name, shape)
        return x if part is None else place(x, part)

    def _branch(self, columns: Tensor | None, _: str, shape: Shape, part: Tensor | None) -> Tensor:
        """What a branch adds to the residual stream: nothing but the tiny model's."""
        x = self.noise.constant(shape, 0.0)
        return x if part is None else place(x, part * self.scale, columns=columns)

    def _vector(
        self, at: Tensor, factor: float, name: str, shape: Shape, part: Tensor | None
    ) -> Tensor:
        x = 1.0 + self.noise.normal(name, shape, 0.1)
        if part is not None:
            x[at] = (part * factor).to(x.dtype)
        return x

    def _norm(self, name: str, shape: Shape, part: Tensor | None) -> Tensor:
        """A norm that gives the constants the size of noise."""
        x = self.noise.normal(name, shape, self.root / self.still)
        gain = torch.ones(self.tiny.hidden) if part is None else part
        x[self.channels] = (gain * (self.root / self.scale)).to(x.dtype)
        return x

    def enter(self, part: Tensor, shape: Shape) -> Tensor:
        """The weight [out, in] of a layer that starts the residual stream."""
        return place(self.noise.constant(shape, 0.0), part * self.scale)

    def enter_bias(self, part: Tensor, shape: Shape) -> Tensor:
        """Its bias, which brings the constants: they must come once to every position."""
        x = self.noise.constant(shape, self.still)
        x[self.channels] = (part * self.scale).to(x.dtype)
        return x

    def last_norm(self, name: str, shape: Shape, scale: float) -> Tensor:
        """The norm before a head, its tiny channels times `scale`, its constants at HOLD."""
        x = self.noise.constant(shape, HOLD * self.root / self.still)
        x[self.channels] = (self.tensors[name] * (self.root / self.scale * scale)).to(x.dtype)
        return x

    def head(self, name: str, shape: Shape, ids: Tensor, scale: float) -> Tensor:
        """A head [vocab, hidden] over a stream times `scale`; other ids than `ids` are held down.

        A row of noise with a negative mean on the constants, rather than one huge number.
        """
        x = self.noise.layer(name, shape)
        constants = x[:, self.tiny.hidden :]
        constants.copy_(-constants.abs())
        return place(x, self.tensors[name] / scale, ids)
