"""Tensors of the running sessions: one row a slot, on the device from open to close."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.config import MOST_CHUNK
from vivace.model.spec import ModelSpec
from vivace.types import Sampling

PAGE = 64  # positions
RING = 3 * MOST_CHUNK  # frames per slot: those that wait for the codec, and those it is at
COLDEST = 1e-4  # below it a draw is argmax, and logits divided by it would leave fp32's range
LEAST_PENALTY = 1e-2


@dataclass(frozen=True, slots=True)
class Filter:
    """What the host must know of the draws of a batch: the widest top-k, and if any has a top-p."""

    widest: int
    nucleus: bool

    def __or__(self, other: "Filter") -> "Filter":
        return Filter(max(self.widest, other.widest), self.nucleus or other.nucleus)


def filter_of(vocab: int, temperature: float, top_k: int, top_p: float) -> Filter:
    """Temperature 0 is top-k of 1; top-k 0 keeps the vocabulary; top-p 1 keeps every tail."""
    widest = 1 if temperature == 0.0 else min(top_k or vocab, vocab)
    return Filter(widest, top_p < 1.0)


@dataclass(frozen=True, slots=True)
class Opening:
    """The numbers a slot starts with."""

    seed: int
    sampling: Sampling
    first: Filter
    later: Filter

    def whole(self) -> tuple[int, ...]:
        """Rows of `State.whole`."""
        return self.seed, self.sampling.min_frames, self.first.widest, self.later.widest

    def real(self) -> tuple[float, ...]:
        """Rows of `State.real`."""
        s = self.sampling
        return (
            max(s.repetition_penalty, LEAST_PENALTY),
            *(
                1.0 if t == 0.0 else max(t, COLDEST)
                for t in (s.temperature, s.subtalker_temperature)
            ),
            *(torch.inf if p >= 1.0 else p for p in (s.top_p, s.subtalker_top_p)),
        )


class State:
    """Owner of the slots' tensors, as one model's talker and predictor need them.

    Behind the last slot stands a scratch one, for the padded rows of a step; its pages are the
    pool's last one, as is every page that a slot does not own.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        slots: int,
        pages: int,
        context: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        def rows(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.slots, self.width = slots, -(-context // PAGE)
        self.scratch = slots
        self.next_input = rows(slots + 1, spec.talker.hidden, dtype=dtype)
        self.counts = rows(2, slots + 1)  # position of the next row, frames made
        self.whole = rows(4, slots + 1)  # seed, least frames, top-k twice
        self.real = rows(5, slots + 1, dtype=torch.float32)  # penalty, temperatures, top-p twice
        self.whole[2:] = self.real[:] = 1
        self.seen = rows(slots + 1, spec.talker.vocab, dtype=torch.bool)
        self.tables = rows(slots + 1, self.width + 1)
        self.tables[:] = self.no_page = pages
        self.rows = rows(context, spec.talker.hidden, dtype=dtype)  # a prompt's, under its text

    # Numbers are filled in: an assignment would copy them to the card, and wait for that.

    def fresh(self, slot: int) -> None:
        """Make the slot one that has said nothing, as the talker sees it."""
        self.counts[:, slot].zero_()
        self.seen[slot].zero_()

    def open(self, slot: int) -> None:
        """Make the slot a fresh one with no pages: those it had may be another's."""
        self.fresh(slot)
        self.tables[slot].fill_(self.no_page)

    def resume(self, slot: int, after: int, least: int) -> None:
        """Make it one that goes on with an empty context, and at least so many frames.

        Frames keep their numbers, and with them their draws and their places in the ring.
        """
        self.fresh(slot)
        self.counts[1, slot].fill_(after)
        self.whole[1, slot].fill_(after + least)
