"""Weights in 8 bits, as the products take them in the place of a tensor; no Triton here."""

from typing import NamedTuple

import torch
from torch import Tensor

LEAST = 1e-20  # scale of a column of zeros
COLUMNS = 64  # the fewest that one tile of a product has
_MOST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


class Packed(NamedTuple):
    """A weight [in, out] as `values` times a scale for each column."""

    values: Tensor  # [in, out] int8 or float8_e4m3fn, the bytes of a column side by side
    scale: Tensor  # [out] fp32
    done: Tensor  # [tiles] int32, zero between products: how many parts of a tile's sum are there

    @property
    def shape(self) -> torch.Size:
        """[in, out]."""
        return self.values.shape

    @property
    def nbytes(self) -> int:
        """That a product reads."""
        return self.values.nbytes + self.scale.nbytes

    def wide(self, dtype: torch.dtype) -> Tensor:
        """The weight that it stands for, which products with it are compared with."""
        return (self.values.float() * self.scale).to(dtype)


def pack(weight: Tensor, dtype: torch.dtype) -> Packed:
    """Round `weight` [in, out] to int8 or float8_e4m3fn; on "meta" only the sizes are right."""
    scale = weight.abs().amax(0).float().clamp(min=LEAST) / _MOST[dtype]
    steps = weight.T.float() / scale[:, None]
    values = (steps.round() if dtype == torch.int8 else steps).to(dtype).contiguous().T
    tiles = -(-weight.shape[1] // COLUMNS)
    return Packed(values, scale, torch.zeros(tiles, dtype=torch.int32, device=weight.device))


Weight = Tensor | Packed
