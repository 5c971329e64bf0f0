"""The talker: text and codes in, one hidden state and the first code's logits out."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.model.layers import Attend, Block, Layers, RMSNorm, Rope, Take, fill, fill_linear
from vivace.model.spec import ModelSpec


class Cache(Protocol):
    """Keys and values of earlier positions, for the rows of one step."""

    positions: Tensor  # [B, T]

    def layer(self, index: int) -> Attend:
        """The attention of one layer, which also keeps the step's keys and values."""
        ...


class Talker(nn.Module):
    """Qwen3 decoder over rows that sum a projected text token and codec embeddings."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        s = spec.talker
        self.spec = s
        self.text_embedding = nn.Embedding(spec.text_vocab, spec.text_hidden)
        self.text_up = nn.Linear(spec.text_hidden, spec.text_hidden)
        self.text_out = nn.Linear(spec.text_hidden, s.hidden)
        self.codec_embedding = nn.Embedding(s.vocab, s.hidden)
        self.layers = Layers[Block](
            Block(s.hidden, s.intermediate, s.heads, s.kv_heads, s.head_dim, s.rms_eps)
            for _ in range(s.layers)
        )
        self.norm = RMSNorm(s.hidden, s.rms_eps)
        self.codec_head = nn.Linear(s.hidden, s.vocab, bias=False)
        self.rope = Rope(s.head_dim, s.rope_theta, self.text_embedding.weight.device)

    def load(self, take: Take) -> None:
        fill(
            self.text_embedding.weight,
            take("talker.model.text_embedding.weight", *self.text_embedding.weight.shape),
        )
        fill_linear(self.text_up, take, "talker.text_projection.linear_fc1")
        fill_linear(self.text_out, take, "talker.text_projection.linear_fc2")
        fill(
            self.codec_embedding.weight,
            take("talker.model.codec_embedding.weight", *self.codec_embedding.weight.shape),
        )
        for i, block in enumerate(self.layers):
            block.load(take, f"talker.model.layers.{i}")
        fill(self.norm.weight, take("talker.model.norm.weight", self.spec.hidden))
        fill_linear(self.codec_head, take, "talker.codec_head")

    def text(self, ids: Tensor) -> Tensor:
        """Project text ids [...] to rows [..., hidden]."""
        out: Tensor = self.text_out(F.silu(self.text_up(self.text_embedding(ids))))
        return out

    def codes(self, ids: Tensor) -> Tensor:
        """Embed ids of the codec vocabulary [...] as rows [..., hidden]."""
        out: Tensor = self.codec_embedding(ids)
        return out

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        """Run rows [B, T, hidden] at the cache's positions; normalised states [B, T, hidden]."""
        rope = self.rope.at(cache.positions, x.dtype)
        for i, block in enumerate(self.layers):
            x = block(x, rope, cache.layer(i))
        out: Tensor = self.norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """First code's logits [B, vocab] in fp32."""
        out: Tensor = self.codec_head(hidden).to(torch.float32)
        return out
