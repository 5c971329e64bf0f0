"""Where the time of a card goes: passes on a timeline with their gaps, the host's part, kernels."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity

from vivace.bench.machine import command, commit, hardware, versions
from vivace.bench.stages import bytes_moved, frame_parts, seat, weights
from vivace.config import EngineConfig
from vivace.errors import InvalidRequest
from vivace.parts import load_parts
from vivace.runtime.crew import Crew
from vivace.runtime.lanes import StreamLane, name_of
from vivace.runtime.runner import Runner
from vivace.types import Row

REPLAYS = 50
KERNELS = 40  # rows of the table


def profile(
    model: str | None,
    config: EngineConfig,
    batches: Sequence[int],
    chunk: int,
    context: int,
    trace: Path | None,
    note: Callable[[str], None],
) -> dict[str, object]:
    """Load, warm up, and look; the result as JSON takes it.

    Raises InvalidRequest where there is no card: `stages` times a CPU.
    """
    began_s = time.perf_counter()
    parts = load_parts(model, config, revision=None, offline=False)
    ready_s = time.perf_counter() - began_s
    crew = parts.runner
    assert isinstance(crew, Crew)
    runner = crew.first
    note(f"ready after {ready_s:.1f} s")
    return {
        "model": parts.model_id,
        "ready_s": round(ready_s, 1),
        **profile_runner(runner, batches, chunk, context, trace, note),
        "command": command(),
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
    }


def profile_runner(
    runner: Runner,
    batches: Sequence[int],
    chunk: int,
    context: int,
    trace: Path | None,
    note: Callable[[str], None],
) -> dict[str, object]:
    """The figures of a runner that is warm."""
    if runner.device.type != "cuda":
        raise InvalidRequest("a profile needs a card; `vivace bench stages` times a CPU")
    steps = [_Batch(runner, batch, chunk, context) for batch in batches]
    found = []
    for step in steps:
        step.seat()
        found.append(row := step.figures())
        note(" ".join(f"{name} {value}" for name, value in row.items() if name != "passes"))
    steps[-1].seat()
    return {
        "device": torch.cuda.get_device_name(runner.device),
        "reserved_gb": round(torch.cuda.memory_reserved(runner.device) / 1e9, 2),
        "context": context,
        "batches": found,
        "kernels": steps[-1].kernels(trace),
        "late": runner.late,
    }


class _Batch:
    """Sessions of one batch size, and what is looked at."""

    def __init__(self, runner: Runner, batch: int, chunk: int, context: int) -> None:
        tokens, sound = runner.tokens, runner.decoder.lane
        assert isinstance(tokens, StreamLane) and isinstance(sound, StreamLane)
        self.runner, self.tokens, self.sound = runner, tokens, sound
        self.batch, self.chunk, self.context = batch, chunk, context
        self.rows = [Row(slot, runner.spec.text_ids.tts_pad) for slot in range(batch)]
        self.slots = range(min(batch, runner.codec_buckets[-1][0]))

    def seat(self) -> None:
        """Give every row its context, and pages for what follows."""
        seat(self.runner, self.batch, self.context, 4 * REPLAYS)

    def figures(self) -> dict[str, Any]:
        """Device time of each module and of the host's call, and what a listener's steps take."""
        talker, predictor = bytes_moved(self.runner, self.batch, self.context)
        shape, pair = self.runner.step(self.rows)
        row: dict[str, Any] = {"batch": self.batch}
        for work, moved in zip(
            (*frame_parts(self.runner), self.runner.passes.frame),
            (talker, predictor, talker + predictor),
            strict=True,
        ):
            if (name_of(work), shape) not in self.tokens.captured:
                self.tokens.rehearse(work, shape, pair)
                self.tokens.prepare(work, shape, pair)
            name = work.__name__

            def once(work: Any = work) -> None:
                self.tokens.run(work, shape, pair, len)

            took_ms = _device_ms(self.tokens, once)
            row[f"{name}_ms"] = round(took_ms, 3)
            row[f"{name}_gb_s"] = round(moved / took_ms / 1e6)
        for frames in (1, self.chunk):
            took_ms = _device_ms(self.sound, partial(self.runner.voice, self.slots, frames))
            speed = len(self.slots) * frames * 80 / took_ms
            row[f"codec_{len(self.slots)}x{frames}_ms"] = round(took_ms, 3)
            row[f"codec_{len(self.slots)}x{frames}_speed"] = round(speed)
        row["codec_weights_mb"] = round(weights(self.runner.codec) / 1e6)
        return row | self._timeline()

    def _timeline(self) -> dict[str, Any]:
        """Frames two deep with the codec beside them, as the loop runs them."""
        marks: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        hosts: list[float] = []
        flying: list[Any] = []
        torch.cuda.synchronize()
        base = _mark(self.tokens)
        sound = None
        for i in range(REPLAYS):
            if len(flying) == 2:
                flying.pop(0).result()
            start, began_s = _mark(self.tokens), time.perf_counter()
            flying.append(self.runner.frame(self.rows))
            hosts.append(time.perf_counter() - began_s)
            marks.append(("frame", start, _mark(self.tokens)))
            if i % self.chunk == self.chunk - 1 and (sound is None or sound.done()):
                start = _mark(self.sound)
                sound = self.runner.voice(self.slots, self.chunk)
                marks.append(("codec", start, _mark(self.sound)))
        torch.cuda.synchronize()
        spans = [(name, base.elapsed_time(a), base.elapsed_time(b)) for name, a, b in marks]
        frames = [span for span in spans if span[0] == "frame"]
        gaps = [after[1] - before[2] for before, after in pairwise(frames)]
        return {
            "host_ms": round(statistics.median(hosts) * 1e3, 3),
            "gap_ms": round(statistics.median(gaps), 3),
            "step_ms": round((frames[-1][2] - frames[0][1]) / len(frames), 3),
            "passes": [(name, round(a, 3), round(b, 3)) for name, a, b in spans],
        }

    def kernels(self, trace: Path | None) -> list[dict[str, object]]:
        """The kernels of a frame, the longest first; the whole trace goes to a file."""
        count = 10
        with torch.profiler.profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]
        ) as seen:
            for _ in range(count):
                self.runner.frame(self.rows).result()
            torch.cuda.synchronize()
        if trace is not None:
            seen.export_chrome_trace(str(trace))
        on_card = [e for e in seen.key_averages() if e.device_type == DeviceType.CUDA]
        on_card.sort(key=lambda e: -e.self_device_time_total)
        return [
            {
                "kernel": event.key[:120],
                "a_frame": round(event.count / count, 1),
                "us": round(event.self_device_time_total / count, 1),
            }
            for event in on_card[:KERNELS]
        ]


def _mark(lane: StreamLane) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(lane.stream)
    return event


def _device_ms(lane: StreamLane, call: Callable[[], object]) -> float:
    """Time on the card of one of many calls, one behind the other."""
    call()
    torch.cuda.synchronize()
    start = _mark(lane)
    for _ in range(REPLAYS):
        call()
    end = _mark(lane)
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / REPLAYS
