"""What a step computes, over rows that name slots: static shapes, no look at the host.

A pass takes one vector of int64 and leaves the rest in the slots' state, so it can be a graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vivace.model.codec import Codec
from vivace.model.predictor import Pick, Predictor
from vivace.model.sampling import Rows, penalise
from vivace.model.spec import ModelSpec
from vivace.model.talker import Talker
from vivace.runtime.kv import KvPool, PagedCache
from vivace.runtime.state import PAGE, RING, Filter, State


@dataclass(frozen=True, slots=True)
class FrameShape:
    """A frame of `rows` sessions whose pages are among the first `width` of each."""

    rows: int
    width: int
    first: Filter
    later: Filter


@dataclass(frozen=True, slots=True)
class PromptShape:
    """`rows` of one prompt, over `width` pages."""

    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class SoundShape:
    """`frames` of each of `rows` sessions."""

    rows: int
    frames: int


class Passes:
    """The three modules over the state."""

    def __init__(
        self,
        spec: ModelSpec,
        talker: Talker,
        predictor: Predictor,
        codec: Codec,
        state: State,
        kv: KvPool,
    ) -> None:
        self.spec, self.talker, self.predictor, self.codec = spec, talker, predictor, codec
        self.state, self.kv = state, kv
        device = state.next_input.device
        self.shut = torch.zeros(spec.talker.vocab, device=device)  # special ids, but not the end
        self.shut[spec.talker.vocab - 1024 :] = -torch.inf
        self.shut[spec.codec_ids.eos] = 0.0

    def embed(self, codes: Tensor) -> Tensor:
        """The talker's input for frames of codes [B, 16]."""
        later: Tensor = self.predictor.embed(codes[:, 1:])
        return self.talker.codes(codes[:, 0]) + later

    def prefill(self, shape: PromptShape, vector: Tensor) -> Tensor:
        """Lay down rows of a prompt: slot, first position, how many, then their text ids.

        Their other part stands in the state's `rows`. Rows past `how many` go to the scratch page.
        """
        s, (slot, start, count) = self.state, vector[:3, None]
        row = torch.arange(shape.rows, device=vector.device)
        positions = torch.where(row < count, start + row, shape.width * PAGE)[None]
        tables = torch.cat((s.tables[slot, : shape.width], s.tables[slot, -1:]), 1)
        x = self.talker.text(vector[3:]) + s.rows[: shape.rows]
        self.talker(x, PagedCache(self.kv, tables, positions))
        s.counts[0, slot] = start + count
        return count

    def frame(self, shape: FrameShape, vector: Tensor) -> Tensor:
        """The next frame of rows [2, B] of slots and text ids: codes, and if it ended [B, 17]."""
        s, (slots, text) = self.state, vector
        counts = s.counts[:, slots]
        hidden = self.talk(shape, slots, text, counts[0])
        seed, least, *top_k = s.whole[:, slots]
        penalty, *rest = s.real[:, slots]
        first, later = (
            Rows(rest[i], top_k[i], rest[i + 2], seed, counts[1], f.widest, f.nucleus)
            for i, f in enumerate((shape.first, shape.later))
        )
        logits = penalise(self.talker.logits(hidden), s.seen[slots], penalty) + self.shut
        eos = self.spec.codec_ids.eos
        logits[:, eos] = logits[:, eos].masked_fill(counts[1] < least, -torch.inf)
        code0 = first.draw(logits, first.noise(0, 1, logits.shape[1])[:, 0])
        others = self.predictor(hidden, self.talker.codes(code0), self._pick(later))
        codes = torch.cat((code0[:, None], others), 1)
        self._keep(slots, counts, codes)
        return torch.cat((codes, codes[:, :1] == eos), 1)

    def talk(self, shape: FrameShape, slots: Tensor, text: Tensor, position: Tensor) -> Tensor:
        """The talker's states [B, hidden] for the slots' next rows."""
        s = self.state
        cache = PagedCache(self.kv, s.tables[:, : shape.width][slots], position[:, None])
        out: Tensor = self.talker(s.next_input[slots] + self.talker.text(text), cache)
        return out

    def _pick(self, draws: Rows) -> Pick:
        noise = draws.noise(1, self.spec.codebooks - 1, self.spec.predictor.vocab)
        return lambda book, logits: draws.draw(logits, noise[:, book - 1])

    def _keep(self, slots: Tensor, counts: Tensor, codes: Tensor) -> None:
        """Store what the next step and the codec need.

        A row that has ended may be run once more before the host knows; what it leaves is read by
        nobody. The scratch slot stays at position 0.
        """
        s = self.state
        s.next_input[slots] = self.embed(codes)
        s.seen[slots, codes[:, 0]] = True
        # An end of speech is stored as well, as a code that the codec has; nobody decodes it.
        s.ring[slots, counts[1] % RING] = codes.clamp(max=self.predictor.spec.vocab - 1)
        s.counts[:, slots] = counts + (slots < s.scratch)

    def voice(self, shape: SoundShape, vector: Tensor) -> Tensor:
        """Decode the next frames of rows [2, B] of slots and ring rows: samples [B, T * 1920]."""
        s, (slots, rings) = self.state, vector
        start = s.voiced[rings]
        places = (start[:, None] + torch.arange(shape.frames, device=vector.device)) % RING
        pcm: Tensor
        pcm, sound = self.codec(s.ring[rings[:, None], places], [t[slots] for t in s.sound])
        for kept, new in zip(s.sound, sound, strict=True):
            kept[slots] = new
        s.voiced[rings] = start + shape.frames
        return pcm.float()
