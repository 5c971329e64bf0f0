"""The codec's end of the slots: frames of all models wait in a ring until they become sound."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from vivace.config import MOST_CHUNK
from vivace.runtime.lanes import Lane, Step, seconds, send
from vivace.runtime.prefix import PrefixCache
from vivace.runtime.sizes import Sizes, fit, pieces
from vivace.runtime.sound import Sound
from vivace.runtime.state import RING
from vivace.schedule.costs import Points
from vivace.types import Codes, Pcm, Pending

REFERENCE_BYTES = 64 << 20  # of states behind references: a dozen voices
ANY_CHUNK = tuple(range(1, MOST_CHUNK + 1))


@dataclass(frozen=True, slots=True)
class SoundShape:
    """`frames` of each of `rows` sessions."""

    rows: int
    frames: int


@dataclass(frozen=True, slots=True)
class Heard:
    """The codec's state behind a reference."""

    state: list[Tensor]

    @property
    def bytes(self) -> int:
        """Memory it holds: 5.2 MB in fp32 for a published codec."""
        return sum(tensor.nbytes for tensor in self.state)


@dataclass(frozen=True, slots=True)
class Joined:
    """A chunk that took several passes."""

    parts: list[Pending[Pcm]]

    def done(self) -> bool:
        """A lane keeps its order, so the last part tells."""
        return self.parts[-1].done()

    def result(self) -> Pcm:
        """All of it, in order."""
        return np.concatenate([part.result() for part in self.parts], 1)


class Decoder:
    """Owner of the ring, of the codec's state of each slot, and of the sound lane.

    Behind the last slot stands a scratch one, for the padded rows of a step; the ring has one row
    more, for a clone's reference on its way to the codec. The token lane writes the ring, the sound
    lane reads it. `sizes` are those that passes are padded to.
    """

    def __init__(
        self,
        sound: Sound,
        lane: Lane,
        slots: int,
        codebooks: int,
        device: torch.device,
        sizes: Sizes | None,
    ) -> None:
        self.sound, self.lane, self.device, self.sizes = sound, lane, device, sizes
        self.scratch, self.reference = slots, slots + 1
        self.ring = torch.zeros(slots + 2, RING, codebooks, dtype=torch.int64, device=device)
        self.voiced = torch.zeros(slots + 2, dtype=torch.int64, device=device)  # frames
        self.references = PrefixCache[Heard](REFERENCE_BYTES)
        self.times_s: Mapping[int, Points] = {}  # frames of a chunk -> rows -> seconds, once warm

    def steps(self, sizes: Sizes) -> dict[tuple[int, int], Step]:
        """What is to be run once for every one of `sizes`: by frames and rows."""
        return {
            (frames, rows): (
                self.voice_pass,
                SoundShape(rows, frames),
                np.full((2, rows), self.scratch),
            )
            for frames, rows in product(reversed(sizes.codec_frames), reversed(sizes.codec_rows))
        }

    def time(self, steps: Mapping[tuple[int, int], Step]) -> None:
        """Make them quick, and take their times."""
        found: dict[int, dict[int, float]] = {}
        for (frames, rows), step in steps.items():
            found.setdefault(frames, {})[rows] = seconds(self.lane, step)
        self.times_s = found

    def open(self, slot: int) -> None:
        """Make the slot one of which nothing has been decoded."""
        self.lane.do(partial(self._silence, slot))

    def _silence(self, slot: int) -> None:
        self.sound.reset(slot)
        self.voiced[slot].zero_()

    def refer(self, slot: int, codes: Codes) -> None:
        """Decode a reference, for the state that it leaves in the slot; once, then it is copied."""
        key = codes.shape, codes.tobytes()
        if (heard := self.references.get(key)) is not None:
            self.lane.do(partial(self.sound.lay, slot, heard.state))
            return
        sizes = ANY_CHUNK if self.sizes is None else self.sizes.codec_frames
        parts = []
        for count in pieces(sizes, len(codes)):
            part, codes = codes[:count], codes[count:]
            self.lane.do(partial(self._hand_over, part))
            parts.append(self._decode([slot], [self.reference], count))
        self.lane.do(partial(self._keep, slot, key, parts))

    def _keep(self, slot: int, key: Hashable, parts: list[Pending[Pcm]]) -> None:
        """Keep what a reference has come to, unless a part of it failed."""
        if not any(isinstance(part, Future) and part.exception() for part in parts):
            self.references.put(key, Heard(self.sound.take(slot)))

    def _hand_over(self, codes: Codes) -> None:
        self.ring[self.reference, : len(codes)] = send(codes, self.device)
        self.voiced[self.reference].zero_()

    def voice(self, slots: Sequence[int], frames: int) -> Pending[Pcm]:
        """Decode the next `frames` of every slot: samples [B, frames * 1920].

        Beside talker steps: on two cores eight streams take half the time. Until it is done, its
        slots must not be opened anew.
        """
        sizes = ANY_CHUNK if self.sizes is None else self.sizes.codec_frames
        parts = [self._decode(slots, slots, count) for count in pieces(sizes, frames)]
        return parts[0] if len(parts) == 1 else Joined(parts)

    def _decode(self, slots: Sequence[int], rings: Sequence[int], frames: int) -> Pending[Pcm]:
        count = len(slots)
        size = count if self.sizes is None else fit(self.sizes.codec_rows, count)
        vector = np.full((2, size), self.scratch, dtype=np.int64)
        vector[:, :count] = slots, rings
        cut: Callable[[Pcm], Pcm] = lambda pcm: pcm[:count]  # noqa: E731
        return self.lane.run(self.voice_pass, SoundShape(size, frames), vector, cut)

    def voice_pass(self, shape: SoundShape, vector: Tensor) -> Tensor:
        """Decode the next frames of rows [2, B] of slots and ring rows: samples [B, T * 1920]."""
        slots, rings = vector
        start = self.voiced[rings]
        places = (start[:, None] + torch.arange(shape.frames, device=vector.device)) % RING
        self.voiced[rings] = start + shape.frames
        return self.sound(self.ring[rings[:, None], places], slots)
