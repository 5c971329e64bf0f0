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
        torch._foreach_zero_([tensor[slot] for tensor in self.state])
