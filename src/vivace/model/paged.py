"""Keys and values in pages, for steps of one token a row: what a decode step attends to."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from vivace import kernels
from vivace.model.layers import Attend, grouped_attention


@dataclass(frozen=True, slots=True)
class Paged:
    """Views of one step into a pool; everything on the device, and nothing known to the host.

    A step's rows write at their slot's position and see what is before it. The kernels also take
    a few tokens a row that follow each other.
    """

    keys: Tensor  # [layers, pages, page, kv, D]
    values: Tensor
    table: Tensor  # [S, W] int: the pages of each slot, filled up with any page
    position: Tensor  # [S] int: where each slot's next token goes
    slots: Tensor  # [B] int: the slot of each row
    scratch: Any = field(default=None, compare=False)

    @property
    def positions(self) -> Tensor:
        """Of the step's rows [B]."""
        return self.position[self.slots]

    def layer(self, index: int) -> Attend:
        """Attention of one layer in plain torch, after writing this step's keys and values."""
        keys, values, positions = self.keys[index], self.values[index], self.positions
        size, pages = keys.shape[1], self.table[self.slots].long()
        page = pages.gather(1, (positions // size)[:, None])[:, 0]
        seen = torch.arange(pages.shape[1] * size, device=pages.device) <= positions[:, None]

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys[page, positions % size] = k
            values[page, positions % size] = v
            k, v = (p[pages].flatten(1, 2).transpose(1, 2) for p in (keys, values))
            return grouped_attention(q, k, v, seen[:, None])

        return attend

    def split(self, heads: int) -> "Paged":
        """The same, with room for the kernels to split long contexts over the card."""
        kv, d = self.keys.shape[3:]
        scratch = kernels.ops.Scratch(len(self.slots), heads, kv, d, self.keys)
        return replace(self, scratch=scratch)

    def attend(
        self, index: int, x: Tensor, qkv: Tensor, gain: Tensor, frequency: Tensor, eps: float
    ) -> Tensor:
        """The kernel's attention of one layer: from the product of rows x to heads' outputs."""
        pool = self.keys[index], self.values[index], self.table, self.position, self.slots
        out: Tensor = kernels.ops.attend(x, qkv, gain, frequency, *pool, eps, self.scratch)
        return out
