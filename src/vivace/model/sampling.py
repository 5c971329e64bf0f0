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
    """Sampling parameters of a batch, each [B]; or of all slots, each [S], and the rows' slots.

    Greedy is a top_k of 1; filters that are off have a top_k of the vocabulary, a top_p of inf.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seed: Tensor
    frame: Tensor
    widest: int  # the largest top_k, known to the host
    nucleus: bool  # whether any row has a top_p, known to the host
    slots: Tensor | None = None  # [B]

    def by_slot(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What the kernels take: the parameters, and each row's place in them."""
        slots = self.slots
        if slots is None:
            slots = torch.arange(len(self.seed), device=self.seed.device)
        return self.temperature, self.top_k, self.top_p, self.seed, self.frame, slots

    def of(self, parameter: Tensor) -> Tensor:
        """A parameter of the rows [B]."""
        return parameter if self.slots is None else parameter[self.slots]

    def noise(self, first: int, books: int, vocab: int) -> Tensor:
        """Standard Gumbel noise [B, books, vocab] for the frame's codebooks from `first` on."""
        book = torch.arange(first, first + books, device=self.seed.device)
        keys = _mix(_mix(_mix(self.of(self.seed))[:, None] + book) + self.of(self.frame)[:, None])
        return _gumbel(keys[..., None] + torch.arange(vocab, device=book.device))

    def draw(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Draw one id a row from fp32 logits [B, vocab] with noise [B, vocab]."""
        scaled = logits / self.of(self.temperature)[:, None]
        top = scaled.topk(min(self.widest, scaled.shape[-1])).values
        least = top.gather(1, self._kept(top)[:, None] - 1)
        return (scaled + noise).masked_fill(scaled < least, -torch.inf).argmax(-1)

    def _kept(self, top: Tensor) -> Tensor:
        """How many [B] of the sorted candidates are kept; top-p counts what top-k has left."""
        if not self.nucleus:
            return self.of(self.top_k)
        rank = torch.arange(top.shape[1], device=top.device)
        inside = rank < self.of(self.top_k)[:, None]
        odds = top.masked_fill(~inside, -torch.inf).softmax(-1)
        return (
            (inside & (odds.cumsum(-1) - odds < self.of(self.top_p)[:, None])).sum(-1).clamp(min=1)
        )


class Picks:
    """Draws a frame's codes from the first to the last of the predictor's codebooks."""

    def __init__(self, rows: Rows, books: int, vocab: int) -> None:
        self.rows, self.shape = rows, (books, vocab)
        self._noise: Tensor | None = None

    def __call__(self, book: int, logits: Tensor) -> Tensor:
        """Codes [B] of codebook `book` (1..) from fp32 logits [B, vocab]."""
        if self._noise is None:
            self._noise = self.rows.noise(1, *self.shape)
        return self.rows.draw(logits, self._noise[:, book - 1])


@dataclass(frozen=True, slots=True)
class Guard:
    """What keeps a first code in bounds: penalties, ids shut out, a least length. By slot."""

    seen: Tensor  # [S, V] bool: the codes drawn before
    penalty: Tensor  # [S]
    least: Tensor  # [S]: frames before which speech does not end
    bias: Tensor  # [V]
    eos: int

    def fields(self) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
        """What the kernels take."""
        return self.seen, self.penalty, self.least, self.bias, self.eos

    def draw(self, logits: Tensor, rows: Rows) -> Tensor:
        """Draw first codes [B] from fp32 logits [B, V] and note that they were seen."""
        slots = rows.by_slot()[-1]
        logits = penalise(logits, self.seen[slots], self.penalty[slots]) + self.bias
        early = rows.of(rows.frame) < self.least[slots]
        logits[:, self.eos] = logits[:, self.eos].masked_fill(early, -torch.inf)
        codes = rows.draw(logits, rows.noise(0, 1, logits.shape[1])[:, 0])
        self.seen[slots, codes] = torch.ones_like(codes, dtype=torch.bool)
        return codes


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of signed integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = x + _GOLDEN
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def _gumbel(counter: Tensor) -> Tensor:
    """Gumbel noise from counters.

    23 bits and a half step: a 24-bit uniform can round to 1, whose noise is infinite.
    """
    uniform = (_shift(_mix(counter), 41).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def penalise(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Push down ids a row has drawn before: logits [B, V], seen [B, V] bool, penalty [B]."""
    penalty = penalty[:, None]
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, lowered, logits)
