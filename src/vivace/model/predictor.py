"""The code predictor: one hidden state and the first code in, the frame's other codes out."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vivace.model.layers import (
    Attend,
    Block,
    Layers,
    RMSNorm,
    Rope,
    Take,
    fill,
    fill_linear,
    grouped_attention,
)
from vivace.model.spec import ModelSpec

Pick = Callable[[int, Tensor], Tensor]
"""(codebook 1.., logits [B, vocab] in fp32) -> codes [B]."""


class FrameCache:
    """Keys and values of one frame's positions 0..15, the same position for every row."""

    def __init__(self, layers: int, shape: tuple[int, int, int, int], like: Tensor) -> None:
        self.keys = like.new_empty(layers, *shape)  # [layers, B, 16, kv, D]
        self.values = like.new_empty(layers, *shape)
        self.end = 0

    def layer(self, index: int) -> Attend:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            start, end = self.end, self.end + q.shape[1]
            self.keys[index, :, start:end] = k
            self.values[index, :, start:end] = v
            mask = _causal(q.shape[1], end, q) if q.shape[1] > 1 else None
            return grouped_attention(
                q, self.keys[index, :, :end], self.values[index, :, :end], mask
            )

        return attend


def _causal(queries: int, keys: int, like: Tensor) -> Tensor:
    mask = torch.ones(queries, keys, dtype=torch.bool, device=like.device)
    return mask.tril(keys - queries).expand(like.shape[0], -1, -1)


class Predictor(nn.Module):
    """A small Qwen3 stack that runs once over the codebooks of every frame."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        s = spec.predictor
        self.spec, self.codebooks, self.width = s, spec.codebooks, spec.talker.hidden
        later = spec.codebooks - 1
        self.embeddings = nn.Parameter(torch.empty(later, s.vocab, self.width))
        self.heads = nn.Parameter(torch.empty(later, s.vocab, s.hidden))
        self.project = nn.Linear(self.width, s.hidden) if self.width != s.hidden else nn.Identity()
        # The projected embeddings: a table, because the code under a row is all that varies.
        self.register_buffer("table", torch.empty(later, s.vocab, s.hidden), persistent=False)
        self.table: Tensor
        self.layers = Layers[Block](
            Block(s.hidden, s.intermediate, s.heads, s.kv_heads, s.head_dim, s.rms_eps)
            for _ in range(s.layers)
        )
        self.norm = RMSNorm(s.hidden, s.rms_eps)
        self.rope = Rope(s.head_dim, s.rope_theta, self.embeddings.device)

    def load(self, take: Take) -> None:
        base, s = "talker.code_predictor", self.spec
        for i in range(self.codebooks - 1):
            name = f"{base}.model.codec_embedding.{i}.weight"
            fill(self.embeddings[i], take(name, s.vocab, self.width))
            fill(self.heads[i], take(f"{base}.lm_head.{i}.weight", s.vocab, s.hidden))
        if isinstance(self.project, nn.Linear):
            fill_linear(self.project, take, f"{base}.small_to_mtp_projection")
        for i, block in enumerate(self.layers):
            block.load(take, f"{base}.model.layers.{i}")
        fill(self.norm.weight, take(f"{base}.model.norm.weight", s.hidden))
        with torch.no_grad():
            for table, embedding in zip(self.table, self.embeddings, strict=True):
                table.copy_(self.project(embedding))

    def forward(self, hidden: Tensor, code0: Tensor, pick: Pick) -> Tensor:
        """Codes 1..15 [B, 15] after a talker state and the embedding of code 0, each [B, width]."""
        s = self.spec
        shape = (hidden.shape[0], self.codebooks, s.kv_heads, s.head_dim)
        cache = FrameCache(s.layers, shape, hidden)
        angles = torch.arange(self.codebooks, device=hidden.device)[None]
        cos, sin = self.rope.at(angles, hidden.dtype)
        x = self.project(torch.stack((hidden, code0), 1))
        codes: list[Tensor] = []
        for g in range(self.codebooks - 1):
            if codes:
                x = self.table[g - 1][codes[-1]][:, None]
            end = cache.end + x.shape[1]
            state = self._run(x, (cos[:, cache.end : end], sin[:, cache.end : end]), cache)
            codes.append(pick(g + 1, (state @ self.heads[g].T).to(torch.float32)))
        return torch.stack(codes, 1)

    def _run(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: FrameCache) -> Tensor:
        """Normalised state [B, hidden] of the last position."""
        for i, block in enumerate(self.layers):
            x = block(x, rope, cache.layer(i))
        cache.end += x.shape[1]
        out: Tensor = self.norm(x[:, -1])
        return out

    def embed(self, codes: Tensor) -> Tensor:
        """Sum of the embeddings of codes 1..15 [B, 15]: their part of the next talker row."""
        books = torch.arange(self.codebooks - 1, device=codes.device)
        return self.embeddings[books, codes].sum(1)
