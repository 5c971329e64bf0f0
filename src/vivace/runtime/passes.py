"""What a step computes, over rows that name slots: static shapes, no look at the host.

A pass takes one vector of int64 and leaves the rest in the slots' state, so it can be a graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.model.fused import embed_frames
from vivace.model.paged import Paged
from vivace.model.predictor import Predictor
from vivace.model.sampling import Guard, Picks, Rows
from vivace.model.spec import ModelSpec
from vivace.model.talker import Talker
from vivace.runtime.kv import KvPool, PagedCache
from vivace.runtime.state import PAGE, RING, Filter, State

ENDED, SPOILT = 1, 2  # how a frame went, if it is none


@dataclass(frozen=True, slots=True)
class FrameShape:
    """A frame of `rows` sessions whose pages are among the first `width` of each."""

    rows: int
    width: int
    first: Filter
    later: Filter


def any_frame(spec: ModelSpec, width: int) -> FrameShape:
    """What serves all rows of sessions with `width` pages, where kernels look at each by itself."""
    return FrameShape(
        0, width + 1, Filter(spec.talker.vocab, True), Filter(spec.predictor.vocab, True)
    )


@dataclass(frozen=True, slots=True)
class PromptShape:
    """`rows` of one prompt, over `width` pages."""

    rows: int
    width: int


class Passes:
    """Talker and predictor over the state; the frames they make go into the ring."""

    def __init__(
        self,
        spec: ModelSpec,
        talker: Talker,
        predictor: Predictor,
        state: State,
        kv: KvPool,
        ring: Tensor,
    ) -> None:
        self.spec, self.talker, self.predictor = spec, talker, predictor
        self.state, self.kv, self.ring = state, kv, ring
        device = state.next_input.device
        self.shut = torch.zeros(spec.talker.vocab, device=device)  # special ids, but not the end
        self.shut[spec.talker.vocab - 1024 :] = -torch.inf
        self.shut[spec.codec_ids.eos].zero_()

    def prefill(self, shape: PromptShape, vector: Tensor) -> Tensor:
        """Lay down rows of a prompt: slot, first position, how many, then their text ids.

        Their other part stands in the state's `rows`. Rows past `how many` go to the scratch page.
        """
        s, (slot, start, count) = self.state, vector[:3, None]
        row = torch.arange(shape.rows, device=vector.device)
        positions = (start + row).masked_fill(row >= count, shape.width * PAGE)[None]
        tables = torch.cat((s.tables[slot, : shape.width], s.tables[slot, -1:]), 1)
        x = self.talker.text(vector[3:]) + s.rows[: shape.rows]
        self.talker(x, PagedCache(self.kv, tables, positions))
        s.counts[0, slot] = start + count
        return vector[2:3]

    def frame(self, shape: FrameShape, vector: Tensor) -> Tensor:
        """The next frame of rows [2, B] of slots and text ids [B, 17]: codes, then how it went.

        That is 0, `ENDED`, or `SPOILT` where the talker's state is no longer of numbers.
        """
        slots, text = vector
        hidden = self.talk(shape, slots, text)
        code0 = self._first(shape, slots, hidden)
        codes = torch.cat((code0[:, None], self.others(shape, slots, hidden, code0)), 1)
        self._keep(slots, codes)
        went = (codes[:, :1] == self.spec.codec_ids.eos).long()
        whole = hidden.float().sum(1, keepdim=True).isfinite()
        return torch.cat((codes, went.where(whole, SPOILT)), 1)

    def talk(self, shape: FrameShape, slots: Tensor, text: Tensor) -> Tensor:
        """The talker's states [B, hidden] for the slots' next rows."""
        s = self.state
        table = s.tables[:, : shape.width]
        cache = Paged(self.kv.keys, self.kv.values, table, s.counts[0], slots)
        out: Tensor = self.talker(s.next_input[slots] + self.talker.text(text), cache)
        return out

    def _draws(self, stack: int, shape: Filter, slots: Tensor) -> Rows:
        """Of the talker (0) or the predictor (1)."""
        s = self.state
        temperature, top_p = s.real[1 + stack], s.real[3 + stack]
        top_k, (seed, frame) = s.whole[2 + stack], (s.whole[0], s.counts[1])
        return Rows(temperature, top_k, top_p, seed, frame, shape.widest, shape.nucleus, slots)

    def _first(self, shape: FrameShape, slots: Tensor, hidden: Tensor) -> Tensor:
        s = self.state
        guard = Guard(s.seen, s.real[0], s.whole[1], self.shut, self.spec.codec_ids.eos)
        return self.talker.first(hidden, self._draws(0, shape.first, slots), guard)

    def others(self, shape: FrameShape, slots: Tensor, hidden: Tensor, code0: Tensor) -> Tensor:
        """Codes 1..15 [B, 15] after a talker state and a first code."""
        draws = self._draws(1, shape.later, slots)
        picks = Picks(draws, self.spec.codebooks - 1, self.spec.predictor.vocab)
        out: Tensor = self.predictor(hidden, self.talker.codes(code0), picks)
        return out

    def _keep(self, slots: Tensor, codes: Tensor) -> None:
        """Store what the next step and the codec need.

        A row that has ended may be run once more before the host knows; what it leaves is read by
        nobody. The scratch slot stays at position 0.
        """
        s, counts = self.state, self.state.counts[:, slots]
        s.next_input[slots] = embed_frames(self.talker, self.predictor, codes)
        # An end of speech is stored as well, as a code that the codec has; nobody decodes it.
        self.ring[slots, counts[1] % RING] = codes.clamp(max=self.predictor.spec.vocab - 1)
        s.counts[:, slots] = counts + (slots < s.scratch)
