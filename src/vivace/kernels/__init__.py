"""Fused kernels of the decode step, in Triton; each has a plain torch twin in its file.

`ops` holds them where Triton is here and a card to run on, or its interpreter is asked for.
"""

import os

import torch

__all__ = ["ops"]

if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
    try:
        from vivace.kernels import ops
    except ImportError:  # a torch without Triton
        ops = None  # type: ignore[assignment]
else:
    ops = None  # type: ignore[assignment]
