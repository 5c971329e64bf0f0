"""The runner's two lanes, tokens and sound: work runs in the order of its calls, and nobody waits.

On the CPU a lane is a thread. On a card it is a stream and the graphs captured on it: a step is one
small copy in, one replay and one copy out, and an event tells when it is done.
"""

import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vivace.errors import DeviceLost, Unavailable
from vivace.types import Pending

T = TypeVar("T")
Vector = npt.NDArray[np.int64]
Result = npt.NDArray[Any]
Pass = Callable[[Any, Tensor], Tensor]
"""(shape, vector of int64 on the device) -> result on the device. Static for each shape."""
Step = tuple[Pass, Any, Vector]


def send(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy to the device without waiting; torch keeps the pinned side until it has been read."""
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()  # from another process; torch warns of those
    host = torch.as_tensor(values, dtype=dtype)
    if device.type == "cpu":
        return host
    return host.pin_memory().to(device, non_blocking=True)


def name_of(work: Pass) -> tuple[object, str]:
    """What its graphs are kept under: two models' passes have the same names."""
    return getattr(work, "__self__", None), work.__name__


NO_MEMORY = "the device has no memory left for this; try again later, or lower --max-sessions"
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "ALLOC_FAILED")
OF_THE_DEVICE = ("CUDA error", "CUDA driver error", "Triton Error [CUDA]")


@contextmanager
def told_apart() -> Iterator[None]:
    """Errors of the device as members of our tree.

    Raises:
        Unavailable: Memory ran out, which the next step need not meet.
        DeviceLost: An error that CUDA keeps and gives to every later call.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch's own errors are RuntimeErrors
        if isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY):
            raise Unavailable(NO_MEMORY, code="out_of_memory", retry_after_s=1.0) from error
        if any(words in str(error) for words in OF_THE_DEVICE):
            raise DeviceLost("the card has failed; the server's log says how") from error
        raise


def finished(result: T) -> "Future[T]":
    """A result that is there already."""
    future: Future[T] = Future()
    future.set_result(result)
    return future


class Lane(Protocol):
    """Work in order."""

    def do(self, work: Callable[[], object]) -> Pending[None]:
        """Run something that puts nothing out."""
        ...

    def rehearse(self, work: Pass, shape: Hashable, vector: Vector) -> None:
        """Run a pass once, so that whatever it needs is compiled and set up."""
        ...

    def prepare(self, work: Pass, shape: Hashable, vector: Vector) -> None:
        """Make a pass that has been rehearsed as quick as it gets."""
        ...

    def run(
        self, work: Pass, shape: Hashable, vector: Vector, finish: Callable[[Result], T]
    ) -> Pending[T]:
        """Run a pass; `finish` makes the result of what came out."""
        ...


class ThreadLane:
    """A lane of the CPU: one thread."""

    def __init__(self, thread: ThreadPoolExecutor, device: torch.device) -> None:
        self.thread, self.device = thread, device
        self.wake: Callable[[], None] = lambda: None

    @torch.inference_mode()
    @told_apart()
    def _do(self, work: Callable[[], object]) -> None:
        work()

    def do(self, work: Callable[[], object]) -> "Future[None]":
        """Run something that puts nothing out."""
        return self.thread.submit(self._do, work)

    def rehearse(self, work: Pass, shape: Hashable, vector: Vector) -> None:
        """Run a pass once."""
        self.run(work, shape, vector, lambda _: None).result()

    def prepare(self, work: Pass, shape: Hashable, vector: Vector) -> None:
        """It is."""

    @torch.inference_mode()
    @told_apart()
    def _run(self, work: Pass, shape: Hashable, vector: Vector, finish: Callable[[Result], T]) -> T:
        return finish(work(shape, send(vector, self.device)).cpu().numpy())

    def run(
        self, work: Pass, shape: Hashable, vector: Vector, finish: Callable[[Result], T]
    ) -> "Future[T]":
        """Run a pass at its exact size, and wake who waits."""
        future = self.thread.submit(self._run, work, shape, vector, finish)
        future.add_done_callback(lambda _: self.wake())
        return future


@dataclass(frozen=True, slots=True)
class Copied(Generic[T]):
    """A result on its way to pinned memory, and the event behind it."""

    event: torch.cuda.Event
    host: Tensor
    finish: Callable[[Result], T]

    @told_apart()
    def done(self) -> bool:
        """Has the copy arrived?"""
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    @told_apart()
    def result(self) -> T:
        """Wait for it."""
        self.event.synchronize()
        return self.finish(self.host.numpy())


@dataclass(frozen=True, slots=True)
class Captured:
    """A pass as a graph: what it reads and what it leaves."""

    graph: torch.cuda.CUDAGraph
    vector: Tensor
    result: Tensor


class StreamLane:
    """A lane of a card: one stream, one pool of graph memory, which its graphs share in turn."""

    def __init__(self, device: torch.device, *, graphs: bool) -> None:
        self.device, self.graphs = device, graphs
        # Before the encoders', and the same for both: behind all kernels of a token step a first
        # sound would be late.
        self.stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self.captured: dict[tuple[tuple[object, str], Hashable], Captured] = {}
        self.eager = 0  # passes run without a graph
        self.serving = False  # then captures are on a stream of their own: steps go on on this one

    def forget(self, owner: object) -> None:
        """Drop the graphs of that owner's passes."""
        self.captured = {key: kept for key, kept in self.captured.items() if key[0][0] is not owner}

    def _on_stream(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self.stream)

    @torch.inference_mode()
    @told_apart()
    def do(self, work: Callable[[], object]) -> Pending[None]:
        """Put something that puts nothing out on the stream."""
        with self._on_stream():
            work()
        return finished(None)

    @torch.inference_mode()
    def rehearse(self, work: Pass, shape: Hashable, vector: Vector) -> None:
        """Launch a pass kernel by kernel."""
        with self._on_stream():
            work(shape, send(vector, self.device))
        self.stream.synchronize()

    @torch.inference_mode()
    def prepare(self, work: Pass, shape: Hashable, vector: Vector) -> None:
        """Make a pass a graph."""
        if not self.graphs:
            return
        graph, static = torch.cuda.CUDAGraph(), send(vector, self.device)
        stream = torch.cuda.Stream(self.device) if self.serving else self.stream  # type: ignore[no-untyped-call]
        with torch.cuda.graph(
            graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"
        ):
            result = work(shape, static)
        self.captured[name_of(work), shape] = Captured(graph, static, result)

    @torch.inference_mode()
    @told_apart()
    def run(
        self, work: Pass, shape: Hashable, vector: Vector, finish: Callable[[Result], T]
    ) -> Pending[T]:
        """Replay the pass's graph; without one, run it kernel by kernel, and count that."""
        with self._on_stream():
            result = self._compute(work, shape, torch.from_numpy(vector).pin_memory())
            host = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
            host.copy_(result, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        return Copied(event, host, finish)

    def _compute(self, work: Pass, shape: Hashable, vector: Tensor) -> Tensor:
        captured = self.captured.get((name_of(work), shape))
        if captured is None:
            self.eager += 1
            return work(shape, vector.to(self.device, non_blocking=True))
        captured.vector.copy_(vector, non_blocking=True)
        captured.graph.replay()
        return captured.result


def lanes_of(
    device: torch.device, *, graphs: bool, thread: ThreadPoolExecutor | None, threads: int
) -> tuple[Lane, Lane]:
    """Tokens and sound.

    On the CPU `thread` is that of the tokens, if there is one already, and `threads` are what an
    operation of the codec may take.
    """
    if device.type == "cuda":
        return StreamLane(device, graphs=graphs), StreamLane(device, graphs=graphs)
    beside = ThreadPoolExecutor(1, "vivace-codec", torch.set_num_threads, (threads,))
    thread = thread or ThreadPoolExecutor(1, "vivace-tokens")
    return ThreadLane(thread, device), ThreadLane(beside, device)


def seconds(lane: Lane, step: Step) -> float:
    """Make a pass ready; the seconds from its start to its result on the host.

    On the CPU those on the lane's thread, where it may wait for others' steps.
    """
    lane.prepare(*step)
    work, shape, vector = step
    taken: list[float] = []

    def timed(shape: Any, vector: Tensor) -> Tensor:
        began_s = time.perf_counter()
        out = work(shape, vector)
        taken.append(time.perf_counter() - began_s)
        return out

    for _ in range(2):
        if isinstance(lane, ThreadLane):
            lane.run(timed, shape, vector, len).result()
            continue
        began_s = time.perf_counter()
        lane.run(*step, len).result()
        taken.append(time.perf_counter() - began_s)
    return min(taken)
