"""The code predictor: one hidden state and the first code in, the frame's other codes out."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vivace import kernels
from vivace.model.layers import (
    Attend,
    Block,
    Layers,
    Linear,
    RMSNorm,
    Rope,
    Take,
    fill,
    grouped_attention,
)
from vivace.model.paged import Paged
from vivace.model.sampling import Picks, Rows
from vivace.model.spec import ModelSpec

Pick = Callable[[int, Tensor], Tensor]
"""(codebook 1.., logits [B, vocab] in fp32) -> codes [B]."""


class FrameCache:
    """Keys and values of one frame's positions 0..15, the same position for every row."""

    def __init__(self, layers: int, rows: int) -> None:
        self.rows = rows
        self.keys: list[Tensor | None] = [None] * layers  # [B, kv, L, D]
        self.values: list[Tensor | None] = [None] * layers
        self.end = 0

    def layer(self, index: int) -> Attend:
        """Attention of one layer over the frame so far."""

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            steps = q.shape[0] // self.rows
            keys = self.keys[index] = self._join(self.keys[index], k, steps)
            values = self.values[index] = self._join(self.values[index], v, steps)
            return grouped_attention(q, keys, values, self._causal(steps, q) if steps > 1 else None)

        return attend

    def _join(self, past: Tensor | None, new: Tensor, steps: int) -> Tensor:
        if steps == 1:
            new = new.unsqueeze(2)
        else:
            new = new.reshape(self.rows, steps, *new.shape[1:]).transpose(1, 2)
        return new if past is None else torch.cat((past, new), 2)

    def _causal(self, steps: int, like: Tensor) -> Tensor:
        mask = torch.ones(steps, self.end + steps, dtype=torch.bool, device=like.device)
        return mask.tril(self.end).expand(self.rows, -1, -1)


class Predictor(nn.Module):
    """A small Qwen3 stack that runs once over the codebooks of every frame."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        s = spec.predictor
        self.spec, self.codebooks, self.width = s, spec.codebooks, spec.talker.hidden
        self.fused = False  # set by `model.fused`
        later = spec.codebooks - 1
        self.embeddings = nn.Parameter(torch.empty(later, s.vocab, self.width))
        self.heads = Layers[Linear](Linear(s.hidden, s.vocab) for _ in range(later))
        self.project = (
            Linear(self.width, s.hidden, bias=True) if self.width != s.hidden else nn.Identity()
        )
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
        for i, head in enumerate(self.heads):
            name = f"{base}.model.codec_embedding.{i}.weight"
            fill(self.embeddings[i], take(name, s.vocab, self.width))
            head.load(take, f"{base}.lm_head.{i}")
        if isinstance(self.project, Linear):
            self.project.load(take, f"{base}.small_to_mtp_projection")
        for i, block in enumerate(self.layers):
            block.load(take, f"{base}.model.layers.{i}")
            block.fold()
        self.norm.load(take, f"{base}.model.norm")
        self.norm.fold_into(*self.heads)
        with torch.no_grad():
            for table, embedding in zip(self.table, self.embeddings, strict=True):
                table.copy_(self.project(embedding))

    def forward(self, hidden: Tensor, code0: Tensor, pick: Pick) -> Tensor:
        """Codes 1..15 [B, 15] after a talker state and the embedding of code 0, each [B, width]."""
        if self.fused and isinstance(pick, Picks):
            return self._fused(hidden, code0, pick.rows)
        rows = hidden.shape[0]
        cache = FrameCache(self.spec.layers, rows)
        positions = torch.arange(self.codebooks, device=hidden.device)
        cos, sin = self.rope.at(positions, hidden.dtype)
        state = self._run(
            self.project(torch.stack((hidden, code0), 1).flatten(0, 1)),
            (cos[:2].repeat(rows, 1, 1), sin[:2].repeat(rows, 1, 1)),
            cache,
        )[1::2]
        codes = list[Tensor]()
        for g, head in enumerate(self.heads):
            if g:
                x = self.table[g - 1][codes[-1]]
                state = self._run(x, (cos[g + 1], sin[g + 1]), cache)
            codes.append(pick(g + 1, head.forward(state).float()))
        return torch.stack(codes, 1)

    def _run(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: FrameCache) -> Tensor:
        """Normalised states [N, hidden] of the frame's next positions."""
        for i, block in enumerate(self.layers):
            x = block.forward(x, rope, cache.layer(i))
        cache.end += x.shape[0] // cache.rows
        out: Tensor = self.norm(x)
        return out

    def _fused(self, hidden: Tensor, code0: Tensor, rows: Rows) -> Tensor:
        """The same through the kernels: rows stay where they are, and so does each code."""
        b, last = len(hidden), self.codebooks - 1
        codes = torch.empty(b, last, dtype=torch.int64, device=hidden.device)
        cache, draws = self.pages(b, hidden), rows.by_slot()
        x = self.project(torch.stack((hidden, code0), 1).flatten(0, 1))
        for g, head in enumerate(self.heads):
            for i, block in enumerate(self.layers):
                block.step(x, i, cache[g], self.rope.frequencies)
            x = x.view(b, -1, x.shape[1])[:, -1]
            logits = kernels.ops.product(x, head.held)
            table = self.table[g] if g < last - 1 else None
            norm = x, self.norm.eps
            x = kernels.ops.draw(logits, draws, g + 1, codes[:, g], norm=norm, table=table)
        return codes

    def pages(self, b: int, like: Tensor) -> list[Paged]:
        """Keys and values of the frame's passes, a page a row: the first has two positions."""
        s, device = self.spec, like.device
        shape = (2, s.layers, b, self.codebooks, s.kv_heads, s.head_dim)
        keys, values = torch.empty(shape, dtype=like.dtype, device=device)
        rows = torch.arange(b, device=device)
        starts = torch.arange(self.codebooks, device=device)[:, None].repeat(1, b)
        return [
            Paged(keys, values, rows[:, None], starts[at], rows)
            for at in (0, *range(2, self.codebooks))
        ]

    def embed(self, codes: Tensor) -> Tensor:
        """Sum of the embeddings of codes 1..15 [B, 15]: their part of the next talker row."""
        books = torch.arange(self.codebooks - 1, device=codes.device)
        return self.embeddings[books, codes].sum(1)
