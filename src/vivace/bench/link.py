"""What a process of its own costs the loop and its readers: `vivace bench link`.

The loop is the real one, its runner only waits as long as a card would. Each chunk carries when
the runner gave it out and how much CPU time its process had used by then.
"""

import asyncio
import math
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import zmq

from vivace.bench.arrivals import arrivals
from vivace.bench.machine import command, commit, hardware, versions
from vivace.bench.summary import ranked
from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.errors import Overloaded
from vivace.host import LoopThread, MakeHost, Pulse
from vivace.parts import Parts
from vivace.remote.far import Link
from vivace.remote.messages import Batch, Ended, Sound, Stop, decode_from_loop, encode
from vivace.remote.near import LoopProcess
from vivace.schedule.costs import CostTable
from vivace.simulate.timed import Clock, Due, TimedRunner
from vivace.types import (
    FRAME_S,
    SAMPLES_PER_FRAME,
    Chunk,
    Frames,
    Pcm,
    Row,
    Sampling,
    SpeechRequest,
)

# A card as fast as the design asks for, in seconds by rows.
CARD = CostTable(
    frame={1: 0.003, 32: 0.0045, 128: 0.006, 256: 0.010},
    voice={1: {1: 0.0008, 32: 0.004}, 4: {1: 0.001, 8: 0.0017}, 12: {1: 0.002, 32: 0.0104}},
    prefill={1: 0.0017},
)
STREAM_FRAMES = 51  # 4.08 s, as the published benchmark has them
TEXT = "Speech for whoever listens at the other end of the link."
BATCHES = (1, 8, 32)


class Wall(Clock):
    """Time as it passes."""

    def __call__(self) -> float:
        """Seconds, the same for every process."""
        return time.monotonic()

    @property
    def now(self) -> float:
        """The same."""
        return time.monotonic()

    @now.setter
    def now(self, value: float) -> None:
        """Nobody sets it."""


class Stamped(Due[Pcm]):
    """Samples, the first four of each row being wall and CPU time when they were given.

    Whole seconds and the rest of one: samples must be numbers, of which the loop makes sure.
    """

    def result(self) -> Pcm:
        """The samples."""
        times = time.monotonic(), time.process_time()
        self.value[:, :4] = [part for seconds in times for part in divmod(seconds, 1.0)]
        return self.value


class CardRunner(TimedRunner):
    """As fast as the card, with samples and codes of the right size."""

    poll_s = 50e-6
    known = True

    def frame(self, rows: Sequence[Row]) -> Due[Frames]:
        """One more of each."""
        due = super().frame(rows)
        return Due(due.ends_s, Frames(np.zeros((len(rows), 16), np.int64), due.value.ended), Wall())

    def voice(self, slots: Sequence[int], frames: int) -> Due[Pcm]:
        """Samples with their time on them."""
        due = super().voice(slots, frames)
        pcm = np.zeros((len(slots), frames * SAMPLES_PER_FRAME), np.float32)
        return Stamped(due.ends_s, pcm, Wall())


def parts() -> Parts:
    """The embedded voice's names and tokenizer before that runner."""
    from vivace.checkpoint.embedded import embedded
    from vivace.checkpoint.read import read_spec
    from vivace.text.tokenize import Tokenizer

    runner = CardRunner(
        CARD, EngineConfig().profile, Wall(), depth=2, host_s=0.0, jitter=random.Random(0)
    )
    path = embedded()
    return Parts("card", read_spec(path), Tokenizer.from_dir(path), runner, costs=CARD)


@dataclass(slots=True)
class Heard:
    """What the readers met."""

    first_ms: list[float] = field(default_factory=list)  # from the request to its first chunk
    added_ms: list[float] = field(default_factory=list)  # from the runner to the reader
    refused: int = 0
    stamps: list[tuple[float, float]] = field(default_factory=list)  # wall, CPU of the loop's side


async def _listen(engine: Engine, due_s: float, heard: Heard) -> None:
    await asyncio.sleep(due_s)
    began_s = time.monotonic()
    request = SpeechRequest(trim=False, sampling=Sampling(seed=STREAM_FRAMES), guards=False)
    first = True
    try:
        async for chunk in engine.say(TEXT, request):
            now_s = time.monotonic()
            sent_s, cpu_s = chunk.pcm[:4].astype(np.float64).reshape(2, 2).sum(1)
            heard.added_ms.append(float(now_s - sent_s) * 1e3)
            heard.stamps.append((float(sent_s), float(cpu_s)))
            if first:
                heard.first_ms.append((now_s - began_s) * 1e3)
                first = False
    except Overloaded:
        heard.refused += 1


async def _serve(engine: Engine, times: Sequence[float], heard: Heard) -> None:
    await asyncio.gather(*(_listen(engine, due_s, heard) for due_s in times))


def _event_loop() -> asyncio.AbstractEventLoop:
    """The one that the server runs on, where it is to be had."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def under_load(host: MakeHost, rps: float, duration_s: float) -> dict[str, object]:
    """Requests at that rate, all their chunks read at once."""
    most = math.ceil(rps * STREAM_FRAMES * FRAME_S * 1.5) + 8
    heard, times = Heard(), arrivals("poisson", rps, duration_s, seed=0)
    config = EngineConfig(max_sessions=most, max_queue=most)
    with Engine(parts=parts, config=config, host=host) as engine:
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        with asyncio.Runner(loop_factory=_event_loop) as runner:
            runner.run(_serve(engine, times, heard))
        took_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    (t0, c0), (t1, c1) = min(heard.stamps), max(heard.stamps)
    return {
        "requests": len(times),
        "refused": heard.refused,
        "chunks_s": round(len(heard.added_ms) / took_s, 1),
        "added_ms": ranked(heard.added_ms),
        "first_ms": ranked(heard.first_ms),
        "edge_cpu": round(cpu_s / took_s, 3),  # cores; both sides where they are one process
        "loop_cpu": round((c1 - c0) / (t1 - t0), 3),
    }


def _flood(folder: str, batches: int, rows: int) -> None:
    link = Link(folder)
    chunk = Chunk(np.zeros(2 * SAMPLES_PER_FRAME, np.float32), np.zeros((2, 16), np.int64))
    events: list[Sound | Ended] = [Sound(f"s{row}", chunk) for row in range(rows)]
    for step in range(batches):
        link.send(Batch(Pulse(0.0, 0, step), events))
    link.receive()  # closing throws away what has not left soon
    link.close()


def flood(rows: int, chunks: int = 10_000) -> dict[str, object]:
    """Chunks of two frames through the link as fast as it goes, in batches of so many."""
    batches = chunks // rows
    with tempfile.TemporaryDirectory(prefix="vivace-") as folder, zmq.Context() as context:
        sounds = context.socket(zmq.PULL)
        sounds.bind(f"ipc://{folder}/sounds")
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(target=_flood, args=(folder, batches, rows))
        process.start()
        first = sounds.recv()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        for _ in range(batches - 1):
            decode_from_loop(sounds.recv(copy=False).buffer)
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        words = context.socket(zmq.PUSH)
        words.connect(f"ipc://{folder}/words")
        words.send(encode(Stop()))
        process.join()
        words.close()
        sounds.close()
    batch = decode_from_loop(first)
    encoded_s = min(_timed(partial(encode, batch)) for _ in range(5))
    decoded_s = min(_timed(partial(decode_from_loop, first)) for _ in range(5))
    return {
        "batch": rows,
        "chunks_s": round((batches - 1) * rows / took_s),
        "receive_cpu_us": round(cpu_s / (batches - 1) / rows * 1e6, 2),
        "encode_us": round(encoded_s / rows * 1e6, 2),
        "decode_us": round(decoded_s / rows * 1e6, 2),
    }


def _timed(call: Callable[[], object], times: int = 200) -> float:
    began_s = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began_s) / times


def measure(rates: Sequence[float], duration_s: float) -> dict[str, object]:
    """Both places at each rate, then the link alone; as JSON takes it."""
    hosts: dict[str, MakeHost] = {"thread": LoopThread, "process": LoopProcess}
    return {
        "load": [
            {"loop": name, "rps": rps, **under_load(host, rps, duration_s)}
            for rps in rates
            for name, host in hosts.items()
        ],
        "flood": [flood(rows) for rows in BATCHES],
        "command": command(),
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
    }
