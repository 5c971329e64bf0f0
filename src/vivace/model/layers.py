"""The pieces the talker, the code predictor and the codec share."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace import kernels
from vivace.kernels.packed import Weight


class Take(Protocol):
    """Gives the published tensor `name`, on the CPU as stored, or notes that it is missing."""

    def __call__(self, name: str, *shape: int) -> Tensor: ...


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [N, heads, D], k [N, kv, D], v [N, kv, D]) -> [N, heads * D]: the cache's part.

N counts the tokens of a step, B rows of T positions each, row by row.
"""


class StepCache(Protocol):
    """What a decode step through the kernels attends to (`model.paged`)."""

    def attend(
        self, index: int, x: Tensor, qkv: Tensor, gain: Tensor, frequency: Tensor, eps: float
    ) -> Tensor:
        """Heads' outputs [N, heads * D] of one layer."""
        ...


M = TypeVar("M", bound=nn.Module)


class Layers(nn.ModuleList, Generic[M]):
    """A module list whose members' kind is known."""

    def __iter__(self) -> Iterator[M]:
        return super().__iter__()  # type: ignore[return-value]


def fill(parameter: Tensor, *parts: Tensor) -> None:
    """Copy published tensors, one after the other, into one parameter of ours."""
    with torch.no_grad():
        parameter.copy_(torch.cat(parts) if len(parts) > 1 else parts[0])


def blank(into: int, out: int) -> Tensor:
    """An unfilled weight [in, out], laid out as a product of few tokens wants it.

    On a CPU that is as written, and half the time of the library's layer; on a card transposed.
    """
    weight = torch.empty(into, out)
    return weight if weight.device.type == "cpu" else torch.empty(out, into).T


class Linear(nn.Module):
    """A linear layer over tokens [N, in], its weight [in, out]."""

    def __init__(self, into: int, out: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(blank(into, out))
        self.bias = nn.Parameter(torch.empty(out)) if bias else None

    def load(
        self, take: Take, *names: str, split: Iterable[int] = (), scale: Tensor | None = None
    ) -> None:
        """Load from one published layer, or from several stacked by output columns.

        `scale` [out] multiplies the output and is folded into the weight.
        """
        into, out = self.weight.shape
        parts = list(zip(names, list(split) or [out], strict=True))
        fill(self.weight.T, *(take(f"{name}.weight", size, into) for name, size in parts))
        if scale is not None:
            fill(self.weight, self.weight.float() * scale.to(self.weight.device))
        if self.bias is not None:
            fill(self.bias, *(take(f"{name}.bias", size) for name, size in parts))

    @property
    def held(self) -> Weight:
        """The weight as the kernels' products take it."""
        return self.weight

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias
        return x @ self.weight if bias is None else torch.addmm(bias, x, self.weight)

    def onto(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of x, added to a residual [N, out]."""
        return torch.addmm(residual, x, self.weight)


class Rope:
    """Half-split rotary embedding, as tables that one fused multiply-add applies."""

    def __init__(self, head_dim: int, theta: float, device: torch.device | str) -> None:
        steps = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
        self.frequencies = 1.0 / theta**steps
        self.sign = torch.ones(head_dim, device=device)
        self.sign[: head_dim // 2] = -1.0

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [N, 1, D] of `positions` [N]."""
        angles = positions[:, None].float() * self.frequencies
        angles = torch.cat((angles, angles), -1)[:, None]
        return angles.cos().to(dtype), (angles.sin() * self.sign).to(dtype)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the heads of `x` [N, heads, D] to their positions."""
    cos, sin = rope
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention with query heads that share key heads, without repeating a key.

    q [B * T, heads, D]; k, v [B, kv, L, D]; mask [B, T, L] is true where a query may look.
    The heads of one group stand behind each other as queries of their key head. [B * T, heads * D].
    """
    n, heads, d = q.shape
    b, kv = k.shape[:2]
    t, groups = n // b, heads // kv
    if t == 1:
        seen = None if mask is None else mask[:, None]
        out = F.scaled_dot_product_attention(q.view(b, kv, groups, d), k, v, attn_mask=seen)
        return out.reshape(n, heads * d)
    q = q.view(b, t, kv, groups, d).permute(0, 2, 3, 1, 4).reshape(b, kv, groups * t, d)
    seen = None if mask is None else mask.repeat(1, groups, 1)[:, None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return out.view(b, kv, groups, t, d).permute(0, 3, 1, 2, 4).reshape(n, heads * d)


class RMSNorm(nn.Module):
    """Root mean square norm; with `rows`, of that many heads, each with a weight of its own."""

    def __init__(self, size: int, eps: float, *, rows: int | None = None) -> None:
        super().__init__()
        self.eps = eps
        shape = (size,) if rows is None else (rows, size)
        self.weight = nn.Parameter(torch.ones(shape))
        # For the CPU, where the library's norm is ten small kernels and this one four: with the
        # root of the size in the gain, what is left to divide by is a hypotenuse.
        self.register_buffer("gain", torch.full(shape, size**0.5), persistent=False)
        self.register_buffer("floor", torch.tensor((eps * size) ** 0.5), persistent=False)
        self.gain: Tensor
        self.floor: Tensor

    def load(self, take: Take, *names: str) -> None:
        """Load from one published norm, or from one for each row."""
        size = self.weight.shape[-1]
        weights = [take(f"{name}.weight", size) for name in names]
        fill(self.weight, weights[0] if len(names) == 1 else torch.stack(weights))
        fill(self.gain, self.weight.float() * size**0.5)

    def fold_into(self, *products: Linear) -> None:
        """Let the products behind this norm multiply by its weight."""
        with torch.no_grad():
            for linear in products:
                linear.weight.mul_(self.weight[:, None])
            fill(self.weight, torch.ones_like(self.weight))
            fill(self.gain, torch.full_like(self.gain, self.weight.shape[-1] ** 0.5))

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32:
            return F.rms_norm(x, x.shape[-1:], eps=self.eps) * self.weight
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x.div(torch.hypot(length, self.floor)).mul_(self.gain)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) on top of a residual, with gate and up in one product."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.intermediate = intermediate
        self.gate_up = Linear(hidden, 2 * intermediate)
        self.down = Linear(intermediate, hidden)

    def load(self, take: Take, name: str, scale: Tensor | None = None) -> None:
        names = (f"{name}.gate_proj", f"{name}.up_proj")
        self.gate_up.load(take, *names, split=[self.intermediate] * 2)
        self.down.load(take, f"{name}.down_proj", scale=scale)

    def step(self, x: Tensor, eps: float) -> None:
        """Through the kernels: add to rows x, whose norm is folded in, in place."""
        ops = kernels.ops
        ops.add_product(x, ops.gated(x, self.gate_up.held, eps), self.down.held)

    def forward(self, residual: Tensor, x: Tensor) -> Tensor:
        gate, up = self.gate_up.forward(x).chunk(2, 1)
        return self.down.onto(residual, F.silu(gate).mul_(up))


class Attention(nn.Module):
    """Projections and rotation around a cache's `attend`, on top of a residual.

    Qwen3 norms each query and key head; the codec's transformer does not.
    """

    def __init__(
        self, hidden: int, heads: int, kv_heads: int, head_dim: int, qk_norm_eps: float | None
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.qkv = Linear(hidden, (heads + 2 * kv_heads) * head_dim)
        self.out = Linear(heads * head_dim, hidden)
        self.qk_norm = (
            None if qk_norm_eps is None else RMSNorm(head_dim, qk_norm_eps, rows=heads + kv_heads)
        )

    def load(self, take: Take, name: str, scale: Tensor | None = None) -> None:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        names = (f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        self.qkv.load(take, *names, split=(q, kv, kv))
        self.out.load(take, f"{name}.o_proj", scale=scale)
        if self.qk_norm is not None:
            heads = [f"{name}.q_norm"] * self.heads + [f"{name}.k_norm"] * self.kv_heads
            self.qk_norm.load(take, *heads)

    def forward(
        self, residual: Tensor, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        heads, kv = self.heads, self.kv_heads
        qkv = self.qkv.forward(x).view(x.shape[0], -1, self.head_dim)
        qk = qkv.narrow(1, 0, heads + kv)
        if self.qk_norm is not None:
            qk = self.qk_norm.forward(qk)
        qk = rotate(qk, rope)
        out = attend(qk.narrow(1, 0, heads), qk.narrow(1, heads, kv), qkv.narrow(1, heads + kv, kv))
        return self.out.onto(residual, out)


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        *,
        qk_norm: bool = True,
    ) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(hidden, eps)
        self.attention = Attention(hidden, heads, kv_heads, head_dim, eps if qk_norm else None)
        self.mlp_norm = RMSNorm(hidden, eps)
        self.mlp = SwiGLU(hidden, intermediate)

    def load(self, take: Take, name: str, *, layer_scale: bool = False) -> None:
        """`layer_scale` says that the published layer scales what both branches add."""

        def scale(branch: str) -> Tensor | None:
            size = self.attention_norm.weight.shape[0]
            return take(f"{name}.{branch}_layer_scale.scale", size) if layer_scale else None

        self.attention_norm.load(take, f"{name}.input_layernorm")
        self.attention.load(take, f"{name}.self_attn", scale("self_attn"))
        self.mlp_norm.load(take, f"{name}.post_attention_layernorm")
        self.mlp.load(take, f"{name}.mlp", scale("mlp"))

    def fold(self) -> None:
        """Fold the norms' weights into the products behind them, which `step` relies on."""
        self.attention_norm.fold_into(self.attention.qkv)
        self.mlp_norm.fold_into(self.mlp.gate_up)

    def step(self, x: Tensor, index: int, cache: StepCache, frequency: Tensor) -> None:
        """Through the kernels: run rows x [N, hidden] in place, as layer `index` of the cache."""
        ops, attention, norm = kernels.ops, self.attention, self.attention.qk_norm
        assert norm is not None
        qkv = ops.product(x, attention.qkv.held)
        heads = cache.attend(index, x, qkv, norm.weight, frequency, norm.eps)
        ops.add_product(x, heads, attention.out.held)
        self.mlp.step(x, self.mlp_norm.eps)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        # Calls to `forward`, as a module's own call costs as much as a kernel: 45 layers a frame.
        x = self.attention.forward(x, self.attention_norm.forward(x), rope, attend)
        return self.mlp.forward(x, self.mlp_norm.forward(x))
