r"""One replica against several: what they serve, what one that is killed takes with it.

    python benchmarks/cluster.py paced --output benchmarks/results/cluster-cpu.json
    python benchmarks/cluster.py cards --replicas 2 --model DIR \
        --output benchmarks/results/h200x2.json

What follows that is none of its own flags goes to `vivace cluster`.

`paced` has replicas that compute nothing and take as long as a table says, so that a small machine
can hold several. `cards` has one engine per card, and looks for the rate that keeps the promise:
p95 of the first audible sample under 50 ms, no underrun, nothing refused.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from vivace.bench.machine import commit, hardware, versions
from vivace.config import EngineConfig
from vivace.parts import Parts
from vivace.schedule.costs import CostTable

SPEECH = "/v1/audio/speech"
TEXT = "Speech for whoever listens at the other end."
FRAMES, SECONDS = 51, 4.08  # as the published benchmark has them
# A replica that is slow enough for a small machine: some 12 streams of real time, or 3 a second.
SLOW = CostTable(
    frame={1: 0.012, 8: 0.03, 32: 0.1},
    voice={1: {1: 0.004, 8: 0.02, 32: 0.08}, 8: {1: 0.012, 8: 0.06, 32: 0.24}},
    prefill={1: 0.01},
)
VOICES, OTHERS = ("ryan", "vivian", "serena", "aiden"), ("sohee", "ono_anna", "uncle_fu")
SLO = "p95 ttfa<50ms, underruns=0"
BACK_S = 180.0  # after which a killed replica is given up
# As the single card is measured.
CARD = ("--max-sessions", "128", "--max-queue", "64")
LOAD = ("--texts", "en", "--language", "english", "--lag-limit-ms", "50", "--quiet")
STREAMS = ("--field", f"max_new_tokens={FRAMES}", "--field", f"min_new_tokens={FRAMES}")


def slow_parts() -> Parts:
    """What each paced replica serves."""
    from dataclasses import replace

    from vivace.bench import link

    parts = link.parts()
    runner = link.CardRunner(
        SLOW, EngineConfig().profile, link.Wall(), depth=1, host_s=0.0, jitter=link.random.Random(0)
    )
    voice = next(iter(parts.spec.speakers.values()))  # they all sound as the one that there is
    spec = replace(parts.spec, speakers=dict.fromkeys((*VOICES, *OTHERS), voice))
    return replace(parts, spec=spec, runner=runner, costs=SLOW)


@contextmanager
def cluster(replicas: int, log: Path, *words: str) -> Iterator[str]:
    """`vivace cluster` with so many; its address. What it logs is in the file."""
    command = [sys.executable, "-m", "vivace", "cluster", "--replicas", str(replicas), *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=errors, env=env
        ) as process,
    ):
        assert process.stdout
        try:
            for line in process.stdout:
                if found := re.search(rb"is ready on (\S+)", line):
                    threading.Thread(target=process.stdout.read, daemon=True).start()
                    yield found[1].decode()
                    return
            raise SystemExit(f"the cluster did not start:\n{log.read_text()[-3_000:]}")
        finally:
            process.terminate()
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:
                process.kill()


async def replicas_of(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Who is there."""
    found: list[dict[str, Any]] = (await http.get("/cluster")).json()["replicas"]
    return found


async def all_ready(http: httpx.AsyncClient, count: int, victim: str = "") -> None:
    """Wait for so many, one that was killed not among them. Raises TimeoutError."""
    async with asyncio.timeout(BACK_S):
        while True:
            there = {str(r["pid"]) for r in await replicas_of(http) if r["ready"]}
            if len(there - {victim}) >= count:
                return
            await asyncio.sleep(0.05)


async def voices_of(http: httpx.AsyncClient) -> list[str]:
    """Those that it can speak with."""
    return [voice["id"] for voice in (await http.get("/v1/audio/voices")).json()["voices"]]


class Stream:
    """One request, and what its listener met."""

    def __init__(self, voice: str, frames: int = FRAMES) -> None:
        self.body = {"input": TEXT, "voice": voice, "seed": frames, "stream_format": "sse"}
        self.body |= {"response_format": "pcm", "guards": False}
        self.body |= {"max_new_tokens": frames, "min_new_tokens": frames}
        self.replica, self.ends = "", list[str]()
        self.first_ms = 0.0

    async def run(self, http: httpx.AsyncClient) -> None:
        """Listen to its end."""
        began_s = time.perf_counter()
        async with http.stream("POST", SPEECH, json=self.body) as reply:
            if reply.status_code != 200:
                raise SystemExit(f"{reply.status_code} {await reply.aread()!r}")
            self.replica = reply.headers.get("x-vivace-replica", "")
            async for line in reply.aiter_lines():
                if line.startswith("event: "):
                    self.first_ms = self.first_ms or (time.perf_counter() - began_s) * 1e3
                    if not line.endswith(".delta"):
                        self.ends.append(line[7:])


async def crowd(http: httpx.AsyncClient, count: int, voices: list[str]) -> dict[str, object]:
    """So many at once: how much speech comes in a second."""
    streams = [Stream(voices[n % len(voices)]) for n in range(count)]
    began_s = time.monotonic()
    await asyncio.gather(*(stream.run(http) for stream in streams))
    took_s = time.monotonic() - began_s
    good = [stream for stream in streams if stream.ends == ["speech.audio.done"]]
    return {
        "streams": count,
        "finished": len(good),
        "took_s": round(took_s, 2),
        "x_real_time": round(len(good) * SECONDS / took_s, 2),
        "by_replica": sorted(Counter(stream.replica for stream in streams).values()),
    }


async def killing(
    http: httpx.AsyncClient, count: int, replicas: int, voices: list[str]
) -> dict[str, object]:
    """One replica is killed with streams under way."""
    streams = [Stream(voices[n % len(voices)], 2 * FRAMES) for n in range(count)]
    tasks = [asyncio.create_task(stream.run(http)) for stream in streams]
    while not all(stream.first_ms for stream in streams):
        await asyncio.sleep(0.01)
    victim = streams[0].replica
    began_s = time.monotonic()
    os.kill(int(victim), signal.SIGKILL)
    later = [Stream(voices[0]) for _ in range(4)]
    await asyncio.gather(*(stream.run(http) for stream in later))
    await asyncio.gather(*tasks)
    with suppress(TimeoutError):
        await all_ready(http, replicas, victim)
    back_s = time.monotonic() - began_s
    on_it = [stream for stream in streams if stream.replica == victim]
    others = [stream for stream in streams if stream.replica != victim]
    return {
        "streams": count,
        "on_the_killed": len(on_it),
        "of_those_done_before": sum(s.ends == ["speech.audio.done"] for s in on_it),
        "of_those_one_error": sum(s.ends == ["speech.audio.error"] for s in on_it),
        "others": len(others),
        "of_those_done": sum(s.ends == ["speech.audio.done"] for s in others),
        "asked_right_after": len(later),
        "of_those_done_": sum(s.ends == ["speech.audio.done"] for s in later),
        "back_within_s": round(back_s, 1) if back_s < BACK_S else None,
    }


async def affinity(http: httpx.AsyncClient, voices: list[str]) -> dict[str, object]:
    """Voices that one replica knows, asked for one after the other: where do they go?"""
    before = {r["pid"]: dict(r["spoken"]) for r in await replicas_of(http)}
    asked = [voice for voice in voices for _ in range(6)]
    by_voice: dict[str, Counter[str]] = {}
    for voice in asked:
        stream = Stream(voice)
        await stream.run(http)
        by_voice.setdefault(voice, Counter())[stream.replica] += 1
    await asyncio.sleep(1.0)  # until the replicas have told
    after = {r["pid"]: r["spoken"] for r in await replicas_of(http)}
    gained = {
        voice: sorted(after[pid].get(voice, 0) - before.get(pid, {}).get(voice, 0) for pid in after)
        for voice in by_voice
    }
    return {"asked": len(asked), "told_by_the_replicas": gained}


async def added(http: httpx.AsyncClient, voice: str) -> dict[str, float]:
    """First bytes through the gate, and from the replica itself."""
    url = (await replicas_of(http))[0]["url"]
    found: dict[str, list[float]] = {"gate": [], "replica": []}
    async with httpx.AsyncClient(base_url=url, timeout=60) as direct:
        for _ in range(60):
            for name, client in (("gate", http), ("replica", direct)):
                stream = Stream(voice)
                await stream.run(client)
                found[name].append(stream.first_ms)
    return {f"{name}_p50_ms": round(sorted(ms)[len(ms) // 2], 2) for name, ms in found.items()}


async def paced(url: str, replicas: int, streams: int) -> dict[str, object]:
    """Everything that can be shown without a card."""
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits()) as http:
        await all_ready(http, replicas)
        voices = await voices_of(http)
        often, seldom = voices[:4], voices[4:7] or voices[:1]
        await crowd(http, replicas, often)  # a first sound of each
        found: dict[str, object] = {"throughput": await crowd(http, streams, often)}
        if replicas > 1:
            found["affinity"] = await affinity(http, seldom)
            found["a killed replica"] = await killing(http, 4 * replicas, replicas, often)
        else:
            found["first_byte"] = await added(http, voices[0])
        return found


def slo_rps(
    url: str, between: tuple[float, float], options: argparse.Namespace, file: Path
) -> dict[str, Any]:
    """The largest rate that keeps the promise, by `vivace bench capacity`, and its runs."""
    words = ["bench", "capacity", "--target", "vivace", "--url", url, "--slo", options.slo]
    words += ["--min", f"{between[0]:g}", "--max", f"{between[1]:g}", "--precision", "0.05"]
    words += ["--duration", f"{options.duration:g}", "--output", str(file)]
    # Its status tells only of the last run; the file has all.
    subprocess.run([sys.executable, "-m", "vivace", *words, *LOAD, *STREAMS], check=False)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def cards(options: argparse.Namespace) -> dict[str, object]:
    """One card against several, on this host."""
    folder = options.output.parent / "cluster-runs"
    words = ["--model", options.model, *CARD]
    words += [] if options.gpus else ["--gpus", "0", "--cpus", "0"]
    found: dict[str, object] = {}
    names = {1: "one", 2: "two", 4: "four", 8: "eight"}
    between = options.least, options.rps
    for count in (1, options.replicas):
        name = names.get(count, str(count))
        with cluster(count, folder / f"{count}.log", *words, *options.words) as url:
            measured = slo_rps(url, between, options, folder / f"{count}.json")
            rps = measured["rps"]
            found[f"slo_rps_{name}"] = rps
            found[f"client_was_the_limit_{name}"] = measured["client_was_the_limit"]
            found[f"runs_{name}"] = [run["summary"] for run in measured["runs"]]
            if count > 1:
                found |= asyncio.run(paced(url, count, 16 * count))
        low, high = (0.9 * rps, 1.05 * rps) if rps else between
        between = low * options.replicas, high * options.replicas
    return found


def main() -> None:
    """Measure, and write it down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("paced", "cards"))
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--streams", type=int, default=36, help="at once, against paced ones")
    parser.add_argument("--model", help="checkpoint, for cards")
    parser.add_argument("--least", type=float, default=80.0, help="rate to begin with, of one card")
    parser.add_argument("--rps", type=float, default=200.0, help="most that one card may do")
    parser.add_argument("--slo", default=SLO)
    parser.add_argument("--duration", type=float, default=15.0, help="seconds of each run")
    parser.add_argument("--gpus", type=int, default=1, help="0: the replicas are on the CPU")
    parser.add_argument("--output", type=Path, default=Path("build/bench/cluster.json"))
    options, options.words = parser.parse_known_args()  # more for `vivace cluster`
    if options.kind == "cards":
        found = cards(options)
    else:
        found = {}
        words = ("--gpus", "0", "--cpus", "0", "--build", "benchmarks.cluster:slow_parts")
        words += ("--slo-ttfa-ms", "600000", "--max-sessions", "16")
        for count in (1, options.replicas):
            log = options.output.parent / "cluster-runs" / f"{count}.log"
            with cluster(count, log, *words, *options.words) as url:
                found[f"{count} replicas"] = asyncio.run(paced(url, count, options.streams))
    result = {
        "command": "python benchmarks/cluster.py " + " ".join(sys.argv[1:]),
        **found,
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    told = {name: what for name, what in found.items() if not name.startswith("runs_")}
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
