"""Drawing codes: penalties and filters per row, and noise that depends on nothing but its key.

The draw is Gumbel-max: argmax of logits / temperature + noise over the ids that the filters leave.
The noise of an id is a hash of (seed, frame, codebook, id), so a row draws the same codes whatever
else is in its batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# Odd constants of the SplitMix64 generator (Steele, Lea, Flood 2014), as signed 64-bit integers.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


@dataclass(frozen=True, slots=True)
class Rows:
    """Sampling parameters of a batch, each [B].

    Greedy is a top_k of 1; filters that are off have a top_k of the vocabulary, a top_p of inf.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    frame: Tensor
    widest: int  # the largest top_k, known to the host

    def draw(self, logits: Tensor, codebook: int) -> Tensor:
        """Draw one id a row from fp32 logits [B, vocab]."""
        logits, ids = logits.topk(min(self.widest, logits.shape[-1]))
        scaled = logits / self.temperature[:, None]
        scaled = scaled.masked_fill(~self._kept(scaled), -torch.inf)
        best = (scaled + noise(self._keys(codebook), ids)).argmax(-1, keepdim=True)
        return ids.gather(1, best)[:, 0]

    def _kept(self, scaled: Tensor) -> Tensor:
        """Which of the sorted candidates the filters keep; top-p counts what top-k has left."""
        rank = torch.arange(scaled.shape[1], device=scaled.device)
        kept = rank < self.top_k[:, None]
        odds = scaled.masked_fill(~kept, -torch.inf).softmax(-1)
        return kept & (odds.cumsum(-1) - odds < self.top_p[:, None])

    def _keys(self, codebook: int) -> Tensor:
        return _mix(_mix(_mix(self.seed) + codebook) + self.frame)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of signed integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = x + _GOLDEN
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def noise(keys: Tensor, ids: Tensor) -> Tensor:
    """Standard Gumbel noise [B, n] for keys [B] and ids [B, n].

    23 bits and a half step: a 24-bit uniform can round to 1, whose noise is infinite.
    """
    uniform = (_shift(_mix(keys[:, None] + ids * _MIX_2), 41).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def penalise(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Push down ids a row has drawn before: logits [B, V], seen [B, V] bool, penalty [B]."""
    penalty = penalty[:, None]
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, lowered, logits)
