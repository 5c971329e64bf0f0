"""The pieces the talker, the code predictor and the codec share."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Take(Protocol):
    """Gives the published tensor `name`, on the CPU as stored, or notes that it is missing."""

    def __call__(self, name: str, *shape: int) -> Tensor: ...


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [B, T, heads, D], k [B, T, kv, D], v [B, T, kv, D]) -> [B, T, heads, D]: the cache's part."""


M = TypeVar("M", bound=nn.Module)


class Layers(nn.ModuleList, Generic[M]):
    """A module list whose members' kind is known."""

    def __iter__(self) -> Iterator[M]:
        return super().__iter__()  # type: ignore[return-value]


def fill(parameter: Tensor, *parts: Tensor) -> None:
    """Copy published tensors, one after the other, into one parameter of ours."""
    with torch.no_grad():
        parameter.copy_(torch.cat(parts) if len(parts) > 1 else parts[0])


def fill_linear(linear: nn.Linear, take: Take, *names: str, split: Iterable[int] = ()) -> None:
    """Load a linear layer from one published layer, or from several stacked by output rows."""
    rows = list(split) or [linear.out_features]
    fill(
        linear.weight,
        *(take(f"{n}.weight", r, linear.in_features) for n, r in zip(names, rows, strict=True)),
    )
    if linear.bias is not None:
        fill(linear.bias, *(take(f"{n}.bias", r) for n, r in zip(names, rows, strict=True)))


class Rope:
    """Half-split rotary embedding, as tables that one fused multiply-add applies."""

    def __init__(self, head_dim: int, theta: float, device: torch.device | str) -> None:
        steps = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
        self.frequencies = 1.0 / theta**steps
        self.sign = torch.ones(head_dim, device=device)
        self.sign[: head_dim // 2] = -1.0

    def at(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [B, T, 1, D] of `positions` [B, T]."""
        angles = positions[..., None].float() * self.frequencies
        angles = torch.cat((angles, angles), -1)[:, :, None]
        return angles.cos().to(dtype), (angles.sin() * self.sign).to(dtype)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the heads of `x` [B, T, heads, D] to their positions."""
    cos, sin = rope
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention with query heads that share key heads, without repeating a key.

    q [B, T, heads, D]; k, v [B, L, kv, D]; mask [B, T, L] is true where a query may look.
    The heads of one group stand behind each other as queries of their key head.
    """
    b, t, heads, d = q.shape
    groups = heads // k.shape[2]
    q = q.view(b, t, -1, groups, d).permute(0, 2, 3, 1, 4).reshape(b, -1, groups * t, d)
    if mask is not None:
        mask = mask.repeat(1, groups, 1)[:, None]
    out = F.scaled_dot_product_attention(q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
    return out.view(b, -1, groups, t, d).permute(0, 3, 1, 2, 4).reshape(b, t, heads, d)


class RMSNorm(nn.Module):
    """Root mean square norm; `rows` > 1 norms that many heads, each with a weight of its own."""

    def __init__(self, size: int, eps: float, rows: int = 1) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(rows, size) if rows > 1 else torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self.eps) * self.weight


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), with gate and up in one product."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.intermediate = intermediate
        self.gate_up = nn.Linear(hidden, 2 * intermediate, bias=False)
        self.down = nn.Linear(intermediate, hidden, bias=False)

    def load(self, take: Take, name: str) -> None:
        names = (f"{name}.gate_proj", f"{name}.up_proj")
        fill_linear(self.gate_up, take, *names, split=[self.intermediate] * 2)
        fill_linear(self.down, take, f"{name}.down_proj")

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        down: Tensor = self.down(F.silu(gate) * up)
        return down


class Attention(nn.Module):
    """Projections and rotation around a cache's `attend`; Qwen3 norms each query and key head."""

    def __init__(
        self, hidden: int, heads: int, kv_heads: int, head_dim: int, qk_norm_eps: float | None
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, hidden, bias=False)
        self.qk_norm = (
            RMSNorm(head_dim, qk_norm_eps, heads + kv_heads) if qk_norm_eps is not None else None
        )

    def load(self, take: Take, name: str) -> None:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        names = (f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        fill_linear(self.qkv, take, *names, split=(q, kv, kv))
        fill_linear(self.out, take, f"{name}.o_proj")
        if self.qk_norm is not None:
            q_norm = take(f"{name}.q_norm.weight", self.head_dim).expand(self.heads, -1)
            k_norm = take(f"{name}.k_norm.weight", self.head_dim).expand(self.kv_heads, -1)
            fill(self.qk_norm.weight, q_norm, k_norm)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        qk, v = heads.tensor_split((self.heads + self.kv_heads,), 2)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        q, k = rotate(qk, rope).tensor_split((self.heads,), 2)
        out: Tensor = self.out(attend(q, k, v).flatten(2))
        return out


class Block(nn.Module):
    """One pre-norm Qwen3 layer."""

    def __init__(
        self, hidden: int, intermediate: int, heads: int, kv_heads: int, head_dim: int, eps: float
    ) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(hidden, eps)
        self.attention = Attention(hidden, heads, kv_heads, head_dim, eps)
        self.mlp_norm = RMSNorm(hidden, eps)
        self.mlp = SwiGLU(hidden, intermediate)

    def load(self, take: Take, name: str) -> None:
        hidden = self.attention_norm.weight.shape[0]
        fill(self.attention_norm.weight, take(f"{name}.input_layernorm.weight", hidden))
        self.attention.load(take, f"{name}.self_attn")
        fill(self.mlp_norm.weight, take(f"{name}.post_attention_layernorm.weight", hidden))
        self.mlp.load(take, f"{name}.mlp")

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope, attend)
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out
