"""Talker and code predictor for training: module names are the published tensor names.

Teacher forcing over packed rows, no caches. Small shapes, the published architecture.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from decoder import Mlp, RMSNorm, rotate
from torch import Tensor, nn

ENTRIES, BOOKS = 256, 16
SHIFT = ENTRIES - 2048  # a published codec id plus this is ours
CODEC_IDS = {
    "pad": 2148 + SHIFT,
    "bos": 2149 + SHIFT,
    "eos": 2150 + SHIFT,
    "think": 2154 + SHIFT,
    "nothink": 2155 + SHIFT,
    "think_bos": 2156 + SHIFT,
    "think_eos": 2157 + SHIFT,
    "english": 2050 + SHIFT,
    "heart": 2861 + SHIFT,
}
CODEC_VOCABULARY = ENTRIES + 1024
THETA, EPS = 1e6, 1e-6


@dataclass(frozen=True)
class Shape:
    """One Qwen3 stack."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


TALKER = Shape(hidden=256, inner=448, layers=6, heads=4, kv_heads=2, head_dim=64)
PREDICTOR = Shape(hidden=192, inner=384, layers=3, heads=4, kv_heads=2, head_dim=48)
TEXT_VOCABULARY, TEXT_HIDDEN = 1_536, 128


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.q_proj = nn.Linear(s.hidden, s.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(s.hidden, s.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)
        self.q_norm, self.k_norm = RMSNorm(s.head_dim, EPS), RMSNorm(s.head_dim, EPS)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (
            p(x).unflatten(-1, (-1, self.s.head_dim)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q = rotate(self.q_norm(q), THETA, positions)
        k = rotate(self.k_norm(k), THETA, positions)
        k, v = (t.repeat_interleave(self.s.heads // self.s.kv_heads, 1) for t in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, s: Shape, dropout: float) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(s), Mlp(s.hidden, s.inner)
        self.input_layernorm, self.post_attention_layernorm = (RMSNorm(s.hidden, EPS) for _ in "ab")
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), positions, mask))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))


class Stack(nn.Module):
    def __init__(self, s: Shape, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(s, dropout) for _ in range(s.layers))
        self.norm = RMSNorm(s.hidden, EPS)

    def run(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        for layer in self.layers:
            x = layer(x, positions, mask)
        return self.norm(x)


def hot(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """One-hot codes [..., 256]: a product with a table is cheaper to train than a look-up in it."""
    return (codes[..., None] == torch.arange(ENTRIES, device=codes.device)).to(dtype)


class Predictor(nn.Module):
    """Codes 1..15 of a frame from the talker's state and code 0."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.model = Stack(PREDICTOR, dropout)
        self.model.codec_embedding = nn.ModuleList(
            nn.Embedding(ENTRIES, TALKER.hidden) for _ in range(BOOKS - 1)
        )
        self.lm_head = nn.ModuleList(
            nn.Linear(PREDICTOR.hidden, ENTRIES, bias=False) for _ in range(BOOKS - 1)
        )
        self.small_to_mtp_projection = nn.Linear(TALKER.hidden, PREDICTOR.hidden)

    def tables(self) -> Tensor:
        """All 15 embeddings [15, 256, hidden]."""
        return torch.stack([e.weight for e in self.model.codec_embedding])

    def forward(self, state: Tensor, code0: Tensor, codes: Tensor) -> Tensor:
        """Logits [M, 15, 256] of states, embedded code 0 [M, hidden] and codes 1..14 [M, 14]."""
        told = torch.einsum(
            "mgk,gkh->mgh", hot(codes, state.dtype), self.tables()[:-1].to(state.dtype)
        )
        rows = torch.cat((state[:, None], code0[:, None], told), 1)
        steps = torch.arange(BOOKS, device=state.device)
        x = self.model.run(self.small_to_mtp_projection(rows), steps, None)[:, 1:]
        heads = torch.stack([h.weight for h in self.lm_head])
        return torch.einsum("mgd,gvd->mgv", x, heads.to(x.dtype))


class Projection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(TEXT_HIDDEN, TEXT_HIDDEN)
        self.linear_fc2 = nn.Linear(TEXT_HIDDEN, TALKER.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.silu(self.linear_fc1(x)))


@dataclass
class Batch:
    """Packed rows [B, L]; -1 stands for nothing."""

    text: Tensor  # text id
    codec: Tensor  # codec id of the prompt
    frame: Tensor  # which frame is put in here
    target: Tensor  # which frame comes next
    label: Tensor  # its code 0, or end of speech; -100 elsewhere
    position: Tensor
    segment: Tensor  # which clip; 0 is padding

    def __iter__(self) -> Iterator[Tensor]:
        return iter(vars(self).values())

    def rows(self, start: int, end: int) -> "Batch":
        return Batch(*(t[start:end] for t in self))


class Talker(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.model = Stack(TALKER, dropout)
        self.model.text_embedding = nn.Embedding(TEXT_VOCABULARY, TEXT_HIDDEN)
        self.model.codec_embedding = nn.Embedding(CODEC_VOCABULARY, TALKER.hidden)
        self.text_projection = Projection()
        self.codec_head = nn.Linear(TALKER.hidden, CODEC_VOCABULARY, bias=False)
        self.code_predictor = Predictor(dropout / 2)
        self.dropout = nn.Dropout(dropout)
        self.apply(start_weights)
        for stack, s in ((self.model, TALKER), (self.code_predictor.model, PREDICTOR)):
            for layer in stack.layers:
                for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                    linear.weight.data.div_((2 * s.layers) ** 0.5)

    def embed_frames(self, codes: Tensor) -> Tensor:
        """Sum of the 16 embeddings of frames [..., 16]."""
        first = self.model.codec_embedding.weight[None, :ENTRIES]
        tables = torch.cat((first, self.code_predictor.tables())).flatten(0, 1)
        return hot(codes, tables.dtype).flatten(-2) @ tables

    def states(self, batch: Batch, codes: Tensor) -> Tensor:
        """Normalised states [B, L, hidden]; `codes` [B, L, 16] are the frames put in."""
        text = self.text_projection(self.model.text_embedding(batch.text.clamp(min=0)))
        x = text * (batch.text >= 0)[..., None]
        x = x + self.model.codec_embedding(batch.codec.clamp(min=0)) * (batch.codec >= 0)[..., None]
        x = x + self.embed_frames(codes) * (batch.frame >= 0)[..., None]
        length = x.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        mask = causal & (batch.segment[:, :, None] == batch.segment[:, None, :])
        return self.model.run(self.dropout(x), batch.position[:, None], mask[:, None])

    def losses(
        self, batch: Batch, codes: Tensor, chosen: Tensor, given: Tensor, wanted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy of code 0, and of each of codes 1..15 [15].

        `chosen` [M] picks flat positions for the predictor; `given` [M, 16] are the codes it is
        told, `wanted` [M, 16] those it must say.
        """
        state = self.states(batch, codes)
        logits = self.codec_head(state).flatten(0, 1).float()
        first = F.cross_entropy(logits, batch.label.flatten(), ignore_index=-100)
        some = state.flatten(0, 1)[chosen]
        code0 = self.model.codec_embedding(given[:, 0]).to(some.dtype)
        later = self.code_predictor(some, code0, given[:, 1:15]).float()
        each = F.cross_entropy(later.flatten(0, 1), wanted[:, 1:].flatten(), reduction="none")
        return first, each.view(-1, BOOKS - 1).mean(0)


def start_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.25)
