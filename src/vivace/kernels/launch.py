"""How kernels are launched.

From compute capability 9.0 a kernel may start before the one in front of it has ended (dependent
launch): it fetches weights, which nobody writes, and then waits. Every kernel here waits before it
reads or writes anything else, so what lies two kernels back has ended as well. Between the
library's products, which start late, kernels that wait only stand in their way.
"""

from functools import cache

import torch
from torch import Tensor

FEW = 2  # rows up to which our own products win, and with them dependent launches


@cache
def _dependent(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def options(like: Tensor, warps: int, *, ours: bool = False) -> dict[str, object]:
    """Launch options for a kernel over the rows of `like`; `ours`: so are the products around."""
    early = (ours or len(like) <= FEW) and _dependent(like.device)
    return {"num_warps": warps, "EARLY": early, **({"launch_pdl": True} if early else {})}


def power(n: int) -> int:
    """The least power of two that is not below `n`."""
    return 1 << (n - 1).bit_length()
