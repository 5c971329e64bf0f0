"""The talker: text and codes in, one hidden state and the first code's logits out."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace import kernels
from vivace.model.layers import Attend, Block, Layers, Linear, RMSNorm, Rope, Take, fill
from vivace.model.paged import Paged
from vivace.model.sampling import Guard, Rows
from vivace.model.spec import ModelSpec


class Cache(Protocol):
    """Keys and values of earlier positions, for the rows of one step."""

    positions: Tensor  # [N]

    def layer(self, index: int) -> Attend:
        """The attention of one layer, which also keeps the step's keys and values."""
        ...


class Talker(nn.Module):
    """Qwen3 decoder over rows that sum a projected text token and codec embeddings."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        s = spec.talker
        self.spec = s
        self.fused = False  # set by `model.fused`
        self.text_embedding = nn.Embedding(spec.text_vocab, spec.text_hidden)
        self.text_up = Linear(spec.text_hidden, spec.text_hidden, bias=True)
        self.text_out = Linear(spec.text_hidden, s.hidden, bias=True)
        self.codec_embedding = nn.Embedding(s.vocab, s.hidden)
        self.layers = Layers[Block](
            Block(s.hidden, s.intermediate, s.heads, s.kv_heads, s.head_dim, s.rms_eps)
            for _ in range(s.layers)
        )
        self.norm = RMSNorm(s.hidden, s.rms_eps)
        self.codec_head = Linear(s.hidden, s.vocab)
        self.rope = Rope(s.head_dim, s.rope_theta, self.text_embedding.weight.device)

    def load(self, take: Take) -> None:
        fill(
            self.text_embedding.weight,
            take("talker.model.text_embedding.weight", *self.text_embedding.weight.shape),
        )
        self.text_up.load(take, "talker.text_projection.linear_fc1")
        self.text_out.load(take, "talker.text_projection.linear_fc2")
        fill(
            self.codec_embedding.weight,
            take("talker.model.codec_embedding.weight", *self.codec_embedding.weight.shape),
        )
        for i, block in enumerate(self.layers):
            block.load(take, f"talker.model.layers.{i}")
            block.fold()
        self.norm.load(take, "talker.model.norm")
        self.codec_head.load(take, "talker.codec_head")

    def text(self, ids: Tensor) -> Tensor:
        """Project text ids [N] to rows [N, hidden]."""
        x = self.text_embedding(ids).to(self.codec_embedding.weight.dtype)
        out: Tensor = self.text_out(F.silu(self.text_up(x)))
        return out

    def codes(self, ids: Tensor) -> Tensor:
        """Embed ids of the codec vocabulary [N] as rows [N, hidden]."""
        out: Tensor = self.codec_embedding(ids)
        return out

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        """Run rows [N, hidden] at the cache's positions; normalised states [N, hidden]."""
        if self.fused and isinstance(cache, Paged):
            return self._step(x, cache)
        rope = self.rope.at(cache.positions, x.dtype)
        for i, block in enumerate(self.layers):
            x = block(x, rope, cache.layer(i))
        out: Tensor = self.norm(x)
        return out

    def _step(self, x: Tensor, cache: Paged) -> Tensor:
        x, cache = x.clone(), cache.split(self.spec.heads)
        for i, block in enumerate(self.layers):
            block.step(x, i, cache, self.rope.frequencies)
        out: Tensor = kernels.ops.norm(x, self.norm.weight, self.norm.eps)
        return out

    def first(self, hidden: Tensor, rows: Rows, guard: Guard) -> Tensor:
        """Draw the first codes [B] after states [B, hidden]; the guard notes them."""
        if not self.fused:
            return guard.draw(self.logits(hidden), rows)
        codes = torch.empty(len(hidden), dtype=torch.int64, device=hidden.device)
        logits = kernels.ops.product(hidden, self.codec_head.held)
        kernels.ops.draw(logits, rows.by_slot(), 0, codes, guard=guard.fields())
        return codes

    def logits(self, hidden: Tensor) -> Tensor:
        """First code's logits [N, vocab] in fp32."""
        out: Tensor = self.codec_head(hidden).to(torch.float32)
        return out
