"""Errors of a device by what they mean, on the way out of a lane."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from vivace.errors import DeviceLost, Unavailable
from vivace.runtime.lanes import ThreadLane

ERRORS = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), Unavailable),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), Unavailable),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), Unavailable),
    (torch.AcceleratorError("CUDA error: out of memory"), Unavailable),
    (MemoryError(), Unavailable),
    (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), DeviceLost),
    (torch.AcceleratorError("CUDA error: device-side assert triggered"), DeviceLost),
    (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling gemm"), DeviceLost),
    (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), DeviceLost),
    (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), RuntimeError),
    (ValueError("CUDA error"), ValueError),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS, ids=lambda value: str(value)[:40])
def test_a_step_that_fails_says_what_it_means(error: Exception, kind: type[Exception]) -> None:
    def work(shape: object, vector: Tensor) -> Tensor:
        raise error

    with ThreadPoolExecutor(1) as thread:
        lane = ThreadLane(thread, torch.device("cpu"))
        failed = lane.run(work, (), np.zeros(1, np.int64), lambda out: out).exception()
        assert type(failed) is kind
        assert failed is error or failed.__cause__ is error
        done = lane.run(lambda shape, vector: vector, (), np.ones(1, np.int64), lambda out: out)
        assert done.result().tolist() == [1], "the lane goes on"


def test_an_allocation_that_really_fails_is_told() -> None:
    with ThreadPoolExecutor(1) as thread:
        lane = ThreadLane(thread, torch.device("cpu"))
        work = lambda shape, vector: torch.empty(1 << 60, dtype=torch.uint8)  # noqa: E731
        failed = lane.run(work, (), np.zeros(1, np.int64), lambda out: out).exception()
        assert isinstance(failed, Unavailable) and failed.code == "out_of_memory"
