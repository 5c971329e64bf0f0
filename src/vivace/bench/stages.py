"""Times the stages of the loaded model per batch, against what the same device can do at best."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vivace.bench.machine import command, commit, hardware, versions
from vivace.config import EngineConfig
from vivace.parts import load_parts
from vivace.runtime.crew import Crew
from vivace.runtime.decoder import SoundShape
from vivace.runtime.lanes import Pass, send
from vivace.runtime.memory import position_bytes
from vivace.runtime.passes import FrameShape
from vivace.runtime.runner import Runner
from vivace.types import Row, Sampling

_LEAST_CALLS, _MOST_CALLS, _ENOUGH_S = 8, 100, 0.5


@dataclass(frozen=True, slots=True)
class Stage:
    """One thing to time. `bytes` is the least that must move: each weight once a pass, and KV."""

    name: str
    batch: int
    call: Callable[[], object]
    eager: Callable[[], object]  # the same without a graph, on this thread, to count operations
    bytes: int
    dtype: torch.dtype


def time_stages(
    model: str | None,
    device: str,
    dtype: str,
    batches: Sequence[int],
    chunk_frames: Sequence[int],
    context: int,
    note: Callable[[str], None],
) -> dict[str, object]:
    """Load, warm up, measure; the result as JSON takes it."""
    config = EngineConfig(
        device=device, dtype=dtype, max_sessions=max(batches), session_context=context + 1024
    )
    began = time.perf_counter()
    parts = load_parts(model, config, revision=None, offline=False)
    ready_s = time.perf_counter() - began
    crew = parts.runner
    assert isinstance(crew, Crew)
    runner = crew.first
    ceilings = _Ceilings(runner.device)
    note(f"ready after {ready_s:.1f} s; copy {ceilings.bytes_s / 1e9:.1f} GB/s")
    rows = []
    for batch in batches:
        for stage in _stages(runner, batch, chunk_frames, context):
            rows.append(row := _measure(stage, ceilings))
            note(" ".join(f"{name} {value}" for name, value in row.items()))
    cuda = runner.device.type == "cuda"
    return {
        "model": parts.model_id,
        "device": torch.cuda.get_device_name(runner.device) if cuda else "the CPU",
        "threads": torch.get_num_threads(),
        "dtype": str(runner.state.next_input.dtype).removeprefix("torch."),
        "context": context,
        "ready_s": round(ready_s, 2),  # load and the engine's own warm-up
        "copy_gb_s": round(ceilings.bytes_s / 1e9, 1),
        "matmul_tflop_s": {
            str(kind).removeprefix("torch."): round(value / 1e12, 3)
            for kind, value in ceilings.flops.items()
        },
        "stages": rows,
        "command": command(),
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
    }


def seat(runner: Runner, batch: int, context: int, more: int) -> list[int]:
    """Slots of sessions with `context` positions behind them, of whatever content."""
    slots = list(range(batch))
    for slot in slots:
        runner.close(slot)
        runner.open(slot, Sampling(min_frames=1 << 30), seed=slot)
        if not runner.room(slot, context + more):
            raise ValueError("the pool of pages is too small for this context")
        runner.tokens.do(partial(runner.state.counts[0, slot].fill_, context))
    return slots


def frame_parts(runner: Runner) -> tuple[Pass, Pass]:
    """The passes of talker and predictor alone."""
    passes = runner.passes

    def talker(shape: FrameShape, pair: Tensor) -> Tensor:
        return passes.talker.logits(passes.talk(shape, *pair))[:, :1]

    def predictor(shape: FrameShape, pair: Tensor) -> Tensor:
        return passes.others(shape, pair[0], passes.state.next_input[pair[0]], pair[0] * 0)

    return talker, predictor


def _stages(runner: Runner, batch: int, chunk_frames: Sequence[int], context: int) -> list[Stage]:
    slots, passes = seat(runner, batch, context, 2 + 4 * _MOST_CALLS), runner.passes
    rows = [Row(slot, runner.spec.text_ids.tts_pad) for slot in slots]
    kind = runner.state.next_input.dtype

    def of_frame(name: str, work: Pass, moved: int) -> Stage:
        shape, pair = runner.step(rows)
        runner.tokens.rehearse(work, shape, pair)
        runner.tokens.prepare(work, shape, pair)
        return Stage(
            name,
            batch,
            lambda: runner.tokens.run(work, shape, pair, len).result(),
            lambda: work(shape, send(pair, runner.device)),
            moved,
            kind,
        )

    def of_codec(frames: int) -> Stage:
        pair = send([slots, slots], runner.device)
        return Stage(
            f"codec, {frames} frames",
            batch,
            lambda: runner.voice(slots, frames).result(),
            lambda: runner.decoder.voice_pass(SoundShape(batch, frames), pair),
            weights(runner.codec),
            next(runner.codec.parameters()).dtype,
        )

    talk, predict = frame_parts(runner)
    talker, predictor = bytes_moved(runner, batch, context)
    return [
        of_frame("talker", talk, talker),
        of_frame("predictor", predict, predictor),
        of_frame("frame", passes.frame, talker + predictor),
        *map(of_codec, chunk_frames),
    ]


def bytes_moved(runner: Runner, batch: int, context: int) -> tuple[int, int]:
    """The least that talker and predictor must move for a frame: weights, keys and values."""
    spec, talker, predictor = runner.spec, runner.passes.talker, runner.passes.predictor
    keys = position_bytes(spec, runner.state.next_input.itemsize) * context * batch
    parts = (talker.layers, talker.codec_head, talker.text_up, talker.text_out)
    passes = spec.codebooks - 1  # the first takes two positions at once
    later = passes * weights(predictor.layers) + weights(predictor.heads)
    return keys + sum(map(weights, parts)), later


def weights(module: nn.Module) -> int:
    """Bytes of a module's weights."""
    return sum(weight.nbytes for weight in module.parameters())


class _Ceilings:
    """What the device does at best: bytes moved by a copy, operations by a square product."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        cuda = device.type == "cuda"
        source = torch.zeros((1 << 30 if cuda else 1 << 28) // 4, device=device)
        target = torch.empty_like(source)
        self.bytes_s = 2 * source.nbytes / min(_times(lambda: target.copy_(source), device))
        self.side = 8192 if cuda else 1536
        self.flops: dict[torch.dtype, float] = {}

    def flop_s(self, dtype: torch.dtype) -> float:
        """The best of products in this type, measured on first use."""
        if dtype not in self.flops:
            a = torch.randn(self.side, self.side, device=self.device).to(dtype)
            best = min(_times(lambda: torch.mm(a, a), self.device))
            self.flops[dtype] = 2 * self.side**3 / best
        return self.flops[dtype]


def _times(call: Callable[[], object], device: torch.device) -> list[float]:
    """Seconds of each call, with the device idle before and after; the first is not among them."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    call()
    taken = list[float]()
    while len(taken) < _LEAST_CALLS or (sum(taken) < _ENOUGH_S and len(taken) < _MOST_CALLS):
        wait()
        began = time.perf_counter()
        call()
        wait()
        taken.append(time.perf_counter() - began)
    return taken


def _measure(stage: Stage, ceilings: _Ceilings) -> dict[str, object]:
    began = time.perf_counter()
    stage.call()
    first_s = time.perf_counter() - began
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        stage.eager()
    taken = sorted(_times(stage.call, ceilings.device))
    median = statistics.median(taken)
    flop = counter.get_total_flops()
    bytes_s, flop_s = stage.bytes / median, flop / median
    return {
        "stage": stage.name,
        "batch": stage.batch,
        "calls": len(taken),
        "first_ms": round(first_s * 1e3, 3),  # with whatever this shape has to warm up
        "median_ms": round(median * 1e3, 4),
        "p95_ms": round(taken[int(len(taken) * 0.95)] * 1e3, 4),
        "bytes": stage.bytes,
        "flop": flop,
        "gb_s": round(bytes_s / 1e9, 2),
        "bandwidth_percent": round(100 * bytes_s / ceilings.bytes_s, 2),
        "tflop_s": round(flop_s / 1e12, 5),
        "flops_percent": round(100 * flop_s / ceilings.flop_s(stage.dtype), 2),
    }
