"""Kernels compiled on all cores at the start, and counted once there should be nothing left."""

import importlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from typing import Any

import torch

MOST_PASSES = 8  # at a time: the library gives each thread and stream 32 MB to work with


def rehearse(passes: Iterable[Callable[[], None]]) -> None:
    """Run passes side by side: each waits for its own kernels, and shares what is compiled."""
    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as compilers, _shared(compilers):
        with ThreadPoolExecutor(min(cores, MOST_PASSES)) as pool:
            running = [pool.submit(copy_context().run, step) for step in passes]
        for step in running:
            step.result()


def _triton() -> Any:
    """Triton, where there is a card for it; it must not be imported before it is needed."""
    try:
        return importlib.import_module("triton") if torch.cuda.is_available() else None
    except ImportError:  # not on every platform
        return None


def _shared(compilers: ThreadPoolExecutor) -> AbstractContextManager[Any]:
    mode = getattr(_triton(), "AsyncCompileMode", None)
    return nullcontext() if mode is None else mode(compilers)


class Compiles:
    """Counts what Triton compiles from now on."""

    def __init__(self) -> None:
        self.count = 0
        if (triton := _triton()) is not None:
            triton.knobs.runtime.jit_post_compile_hook = self._seen

    def _seen(self, **_: object) -> None:
        self.count += 1
