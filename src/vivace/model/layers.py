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
"""(q [N, heads, D], k [N, kv, D], v [N, kv, D]) -> [N, heads * D]: the cache's part.

N counts the tokens of a step, B rows of T positions each, row by row.
"""


M = TypeVar("M", bound=nn.Module)


class Layers(nn.ModuleList, Generic[M]):
    """A module list whose members' kind is known."""

    def __iter__(self) -> Iterator[M]:
        return super().__iter__()  # type: ignore[return-value]


def fill(parameter: Tensor, *parts: Tensor) -> None:
    """Copy published tensors, one after the other, into one parameter of ours."""
    with torch.no_grad():
        parameter.copy_(torch.cat(parts) if len(parts) > 1 else parts[0])


class Linear(nn.Module):
    """A linear layer over tokens [N, in], its weight stored [in, out].

    That way one token's product takes half the time of the library's layer on a CPU.
    """

    def __init__(self, into: int, out: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(into, out))
        self.bias = nn.Parameter(torch.empty(out)) if bias else None

    def load(self, take: Take, *names: str, split: Iterable[int] = ()) -> None:
        """Load from one published layer, or from several stacked by output columns."""
        into, out = self.weight.shape
        parts = list(zip(names, list(split) or [out], strict=True))
        fill(self.weight.T, *(take(f"{name}.weight", size, into) for name, size in parts))
        if self.bias is not None:
            fill(self.bias, *(take(f"{name}.bias", size) for name, size in parts))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias
        return x @ self.weight if bias is None else torch.addmm(bias, x, self.weight)


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

    q [B * T, heads, D]; k, v [B, L, kv, D]; mask [B, T, L] is true where a query may look.
    The heads of one group stand behind each other as queries of their key head. [B * T, heads * D].
    """
    n, heads, d = q.shape
    b, kv = k.shape[0], k.shape[2]
    t, groups = n // b, heads // kv
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    if t == 1:
        seen = None if mask is None else mask[:, None]
        out = F.scaled_dot_product_attention(q.view(b, kv, groups, d), k, v, attn_mask=seen)
        return out.reshape(n, heads * d)
    q = q.view(b, t, kv, groups, d).permute(0, 2, 3, 1, 4).reshape(b, kv, groups * t, d)
    seen = None if mask is None else mask.repeat(1, groups, 1)[:, None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return out.view(b, kv, groups, t, d).permute(0, 3, 1, 2, 4).reshape(n, heads * d)


class RMSNorm(nn.Module):
    """Root mean square norm; `rows` > 1 norms that many heads, each with a weight of its own."""

    def __init__(self, size: int, eps: float, rows: int = 1) -> None:
        super().__init__()
        self.eps, self.root = eps, size**0.5
        self.floor = torch.tensor((eps * size) ** 0.5, dtype=torch.float32)
        self.weight = nn.Parameter(torch.ones(rows, size) if rows > 1 else torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return F.rms_norm(x, x.shape[-1:], eps=self.eps) * self.weight
        # On the CPU the library's norm is ten small kernels (20 us); these five take half of that.
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = self.root / torch.hypot(length, self.floor)
        out: Tensor = (x * scale).to(x.dtype) * self.weight
        return out


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), with gate and up in one product."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.intermediate = intermediate
        self.gate_up = Linear(hidden, 2 * intermediate)
        self.down = Linear(intermediate, hidden)

    def load(self, take: Take, name: str) -> None:
        names = (f"{name}.gate_proj", f"{name}.up_proj")
        self.gate_up.load(take, *names, split=[self.intermediate] * 2)
        self.down.load(take, f"{name}.down_proj")

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
        self.qkv = Linear(hidden, (heads + 2 * kv_heads) * head_dim)
        self.out = Linear(heads * head_dim, hidden)
        self.qk_norm = (
            RMSNorm(head_dim, qk_norm_eps, heads + kv_heads) if qk_norm_eps is not None else None
        )

    def load(self, take: Take, name: str) -> None:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        names = (f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        self.qkv.load(take, *names, split=(q, kv, kv))
        self.out.load(take, f"{name}.o_proj")
        if self.qk_norm is not None:
            q_norm = take(f"{name}.q_norm.weight", self.head_dim).expand(self.heads, -1)
            k_norm = take(f"{name}.k_norm.weight", self.head_dim).expand(self.kv_heads, -1)
            fill(self.qk_norm.weight, q_norm, k_norm)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        heads = self.qkv(x).view(x.shape[0], -1, self.head_dim)
        qk, v = heads.tensor_split((self.heads + self.kv_heads,), 1)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        q, k = rotate(qk, rope).tensor_split((self.heads,), 1)
        out: Tensor = self.out(attend(q, k, v))
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
