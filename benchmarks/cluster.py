r"""One replica against several: what they serve, what one that is killed takes with it.

    python benchmarks/cluster.py paced --output benchmarks/results/cluster-cpu.json
    python benchmarks/cluster.py cards --replicas 2 --model DIR \
        --output benchmarks/results/h200x2.json

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
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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
def cluster(replicas: int, *words: str) -> Iterator[str]:
    """`vivace cluster` with so many; its address."""
    command = [sys.executable, "-m", "vivace", "cluster", "--replicas", str(replicas), *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
    with subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    ) as process:
        assert process.stdout
        try:
            for line in process.stdout:
                if found := re.search(rb"is ready on (\S+)", line):
                    yield found[1].decode()
                    return
            raise SystemExit("the cluster did not start")
        finally:
            process.terminate()
            process.wait(120)


async def replicas_of(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Who is there."""
    found: list[dict[str, Any]] = (await http.get("/cluster")).json()["replicas"]
    return found


async def all_ready(http: httpx.AsyncClient, count: int) -> float:
    """Wait for so many; how long it took."""
    began_s = time.monotonic()
    while sum(replica["ready"] for replica in await replicas_of(http)) < count:
        await asyncio.sleep(0.05)
    return time.monotonic() - began_s


class Stream:
    """One request, and what its listener met."""

    def __init__(self, voice: str) -> None:
        self.body = {"input": TEXT, "voice": voice, "seed": FRAMES, "stream_format": "sse"}
        self.body |= {"response_format": "pcm", "guards": False}
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


async def crowd(http: httpx.AsyncClient, count: int) -> dict[str, object]:
    """So many at once: how much speech comes in a second."""
    streams = [Stream(VOICES[n % len(VOICES)]) for n in range(count)]
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


async def killing(http: httpx.AsyncClient, count: int, replicas: int) -> dict[str, object]:
    """One replica is killed with streams under way."""
    streams = [Stream(VOICES[n % len(VOICES)]) for n in range(count)]
    tasks = [asyncio.create_task(stream.run(http)) for stream in streams]
    while not all(stream.first_ms for stream in streams):
        await asyncio.sleep(0.01)
    victim = streams[0].replica
    began_s = time.monotonic()
    os.kill(int(victim), signal.SIGKILL)
    later = [Stream(VOICES[0]) for _ in range(4)]
    await asyncio.gather(*(stream.run(http) for stream in later))
    await asyncio.gather(*tasks)
    back_s = time.monotonic() - began_s + await all_ready(http, replicas)
    on_it = [stream for stream in streams if stream.replica == victim]
    others = [stream for stream in streams if stream.replica != victim]
    return {
        "streams": count,
        "on_the_killed": len(on_it),
        "of_those_one_error": sum(s.ends == ["speech.audio.error"] for s in on_it),
        "others": len(others),
        "of_those_done": sum(s.ends == ["speech.audio.done"] for s in others),
        "asked_right_after": len(later),
        "of_those_done_": sum(s.ends == ["speech.audio.done"] for s in later),
        "back_within_s": round(back_s, 1),
    }


async def affinity(http: httpx.AsyncClient) -> dict[str, object]:
    """Voices that one replica knows, asked for one after the other: where do they go?"""
    before = {r["pid"]: dict(r["spoken"]) for r in await replicas_of(http)}
    asked = [voice for voice in OTHERS for _ in range(6)]
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


async def added(http: httpx.AsyncClient) -> dict[str, float]:
    """First bytes through the gate, and from the replica itself."""
    url = (await replicas_of(http))[0]["url"]
    found: dict[str, list[float]] = {"gate": [], "replica": []}
    async with httpx.AsyncClient(base_url=url, timeout=60) as direct:
        for _ in range(60):
            for name, client in (("gate", http), ("replica", direct)):
                stream = Stream(VOICES[0])
                await stream.run(client)
                found[name].append(stream.first_ms)
    return {f"{name}_p50_ms": round(sorted(ms)[len(ms) // 2], 2) for name, ms in found.items()}


async def paced(url: str, replicas: int, streams: int) -> dict[str, object]:
    """Everything that can be shown without a card."""
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits()) as http:
        await all_ready(http, replicas)
        await crowd(http, replicas)  # a first sound of each
        found: dict[str, object] = {"throughput": await crowd(http, streams)}
        if replicas > 1:
            found["affinity"] = await affinity(http)
            found["a killed replica"] = await killing(http, 4 * replicas, replicas)
        else:
            found["first_byte"] = await added(http)
        return found


def slo_rps(url: str, most: float, duration_s: float, file: Path) -> dict[str, Any]:
    """The largest rate that keeps the promise, by `vivace bench capacity`, and its runs."""
    words = ["bench", "capacity", "--target", "vivace", "--url", url, "--slo", SLO]
    words += ["--min", f"{most / 16:g}", "--max", f"{most:g}", "--precision", "0.03"]
    words += ["--duration", f"{duration_s:g}", "--output", str(file)]
    subprocess.run([sys.executable, "-m", "vivace", *words], check=True)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def cards(options: argparse.Namespace) -> dict[str, object]:
    """One card against several, on this host."""
    folder = options.output.parent / "cluster-runs"
    folder.mkdir(parents=True, exist_ok=True)
    words = ["--model", options.model, "--max-sessions", str(options.max_sessions)]
    words += [] if options.gpus else ["--gpus", "0", "--cpus", "0"]
    found: dict[str, object] = {}
    names = {1: "one", 2: "two", 4: "four", 8: "eight"}
    for count in (1, options.replicas):
        with cluster(count, *words, *options.words) as url:
            file = folder / f"{count}.json"
            measured = slo_rps(url, options.rps * count, options.duration, file)
            found[f"slo_rps_{names[count]}"] = measured["rps"]
            found[f"runs_{names[count]}"] = [run["summary"] for run in measured["runs"]]
            if count > 1:
                found |= asyncio.run(paced(url, count, 16 * count))
    return found


def main() -> None:
    """Measure, and write it down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("paced", "cards"))
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--streams", type=int, default=36, help="at once, against paced ones")
    parser.add_argument("--model", help="checkpoint, for cards")
    parser.add_argument("--rps", type=float, default=160.0, help="most that one card may do")
    parser.add_argument("--duration", type=float, default=30.0, help="seconds of each run")
    parser.add_argument("--max-sessions", type=int, default=256)
    parser.add_argument("--gpus", type=int, default=1, help="0: the replicas are on the CPU")
    parser.add_argument("--output", type=Path, default=Path("build/bench/cluster.json"))
    parser.add_argument("words", nargs="*", help="more for `vivace cluster`, after --")
    options = parser.parse_args()
    if options.kind == "cards":
        found = cards(options)
    else:
        found = {}
        words = ("--gpus", "0", "--cpus", "0", "--build", "benchmarks.cluster:slow_parts")
        words += ("--slo-ttfa-ms", "600000", "--max-sessions", "16")
        for count in (1, options.replicas):
            with cluster(count, *words, *options.words) as url:
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
    print(json.dumps(found, indent=1)[:6_000])


if __name__ == "__main__":
    main()
