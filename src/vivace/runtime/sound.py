"""The codec over slots: codes in, sound out, each slot's history in its place."""

from typing import Protocol

import torch
from torch import Tensor

from vivace.model.codec import Codec


class Sound(Protocol):
    """A codec that keeps the state of its slots."""

    def __call__(self, codes: Tensor, slots: Tensor) -> Tensor:
        """Decode codes [B, T, 16] of slots [B]: samples [B, T * 1920] in -1..1, fp32.

        A slot may stand there twice only if nobody listens to it.
        """
        ...

    def reset(self, slot: int) -> None:
        """Make the slot one of which nothing has been decoded."""
        ...

    def take(self, slot: int) -> list[Tensor]:
        """A copy of what the slot has come to."""
        ...

    def lay(self, slot: int, taken: list[Tensor]) -> None:
        """Let the slot go on from there."""
        ...


class PlainSound:
    """The codec in plain torch; its state is gathered and put back."""

    def __init__(self, codec: Codec, slots: int) -> None:
        self.codec, self.state = codec, codec.fresh(slots)

    def __call__(self, codes: Tensor, slots: Tensor) -> Tensor:
        """As `Sound` says."""
        pcm: Tensor
        pcm, state = self.codec(codes, [tensor[slots] for tensor in self.state])
        for kept, new in zip(self.state, state, strict=True):
            kept[slots] = new
        return pcm.float()

    def reset(self, slot: int) -> None:
        """As `Sound` says."""
        torch._foreach_zero_(self._of(slot))

    def take(self, slot: int) -> list[Tensor]:
        """As `Sound` says."""
        return [tensor.clone() for tensor in self._of(slot)]

    def lay(self, slot: int, taken: list[Tensor]) -> None:
        """As `Sound` says."""
        torch._foreach_copy_(self._of(slot), taken)

    def _of(self, slot: int) -> list[Tensor]:
        return [tensor[slot] for tensor in self.state]
