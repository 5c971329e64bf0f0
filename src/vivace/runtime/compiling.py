"""Counts kernels that are compiled once there should be nothing left to compile."""

import importlib
from typing import Any

import torch


def _triton() -> Any:
    """Triton, where there is a card for it; it must not be imported before it is needed."""
    try:
        return importlib.import_module("triton") if torch.cuda.is_available() else None
    except ImportError:  # not on every platform
        return None


class Compiles:
    """Counts what Triton compiles from now on."""

    def __init__(self) -> None:
        self.count = 0
        if (triton := _triton()) is not None:
            triton.knobs.runtime.jit_post_compile_hook = self._seen

    def _seen(self, **_: object) -> None:
        self.count += 1
