"""Many mixed requests: does memory stay flat, and is everything given back?

    python benchmarks/soak.py --requests 5000 --output benchmarks/results/soak.json

Of the requests, 30 % leave in the middle, 10 % read slowly and 10 % are bad. Without --url the
server is vivace's own in a process of its own, with a runner that takes as long as a card would and
computes nothing. With --url and --minutes it is the same on a server that runs: `--gpu` watches
the card's memory too.
"""

import argparse
import asyncio
import json
import math
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from websockets.asyncio.client import connect

from vivace.bench.link import parts
from vivace.bench.machine import Gpus, commit, hardware, versions
from vivace.config import EngineConfig, ServerConfig
from vivace.engine import Engine
from vivace.remote.lives import Lives
from vivace.server.serve import address_of, bind, run

SPEECH, STREAM = "/v1/audio/speech", "/v1/audio/speech/stream"
TEXTS = (
    "Hello there, how are you today?",
    "The train to the coast leaves at nine.",
    "I have found three places near you, and all of them are open until late in the evening.",
)
BAD: tuple[dict[str, object], ...] = (
    {"input": ""},
    {"input": "Hello.", "voice": "nobody"},
    {"input": "Hello.", "speed": 99},
    {"input": "Hello.", "response_format": "midi"},
    {"nothing": 1},
)
FRAMES = 25  # the runner's seed is its speech's length: 2 s
SLOW_BYTES_S, SLOW_S = 4_000, 1.5  # a slow reader, who then has had enough
SHARES = {"whole": 0.2, "events": 0.15, "socket": 0.15, "leaves": 0.3, "slow": 0.1, "bad": 0.1}
ROUNDS = 8  # of the requests beside a slow reader
SETTLE_S = 1.5  # until its stream is as far ahead as may be, and waits for it
SAMPLES = 120  # of memory, over the run
GAUGES = ("vivace_sessions_active", "vivace_sessions_waiting", "vivace_sockets_open")


def serve() -> None:
    """The server's process."""
    sock = bind("127.0.0.1", 0)
    config = EngineConfig(max_sessions=64, max_queue=256, slo_ttfa_s=600.0)
    with Engine(parts=parts, config=config, host=Lives) as engine:
        run(engine, ServerConfig(), sock, lambda: print(address_of(sock), flush=True))


@contextmanager
def server_of(url: str | None) -> Iterator[str]:
    """The one that is given, or one of our own."""
    if url is not None:
        yield url
        return
    with subprocess.Popen(
        [sys.executable, __file__, "serve"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout
        yield process.stdout.readline().decode().strip()
        process.terminate()


@dataclass
class Book:
    """What has happened."""

    outcomes: Counter[str] = field(default_factory=Counter)
    first_ms: list[float] = field(default_factory=list)  # of those who read to the end
    memory_mb: dict[str, list[float]] = field(default_factory=dict)

    def weigh(self, processes: dict[str, psutil.Process], gpus: Gpus | None) -> None:
        """Note how much is in use now."""
        used = {name: p.memory_full_info().uss / 1e6 for name, p in processes.items()}
        if gpus is not None:
            gpus.sample()
            used["card"] = gpus.samples[0][-1][1] * 1e3
        for name, mb in used.items():
            self.memory_mb.setdefault(name, []).append(round(mb, 2))


class Client:
    """Makes one request of a kind."""

    def __init__(self, url: str, http: httpx.AsyncClient, book: Book, dice: random.Random) -> None:
        self.url, self.http, self.book, self.dice = url, http, book, dice

    def body(self) -> dict[str, object]:
        """A good request."""
        return {"input": self.dice.choice(TEXTS), "seed": FRAMES, "response_format": "pcm"}

    async def request(self, kind: str) -> None:
        """Of that kind; how it went is in the book."""
        try:
            said = await getattr(self, kind)()
        except (httpx.HTTPError, OSError) as error:
            said = type(error).__name__
        self.book.outcomes[f"{kind}: {said}"] += 1

    async def whole(self) -> object:
        """Read to the end."""
        began_s, first = time.perf_counter(), True
        async with self.http.stream("POST", self.url + SPEECH, json=self.body()) as reply:
            async for _ in reply.aiter_raw():
                if first:
                    self.book.first_ms.append((time.perf_counter() - began_s) * 1e3)
                first = False
            return reply.status_code

    async def events(self) -> object:
        """As server-sent events; the kind of the last."""
        body, last = {**self.body(), "stream_format": "sse"}, "nothing"
        async with self.http.stream("POST", self.url + SPEECH, json=body) as reply:
            async for line in reply.aiter_lines():
                last = line[7:] if line.startswith("event: ") else last
        return last

    async def socket(self) -> object:
        """Two turns on a socket, the second cancelled half of the time."""
        async with connect(self.url.replace("http", "ws", 1) + STREAM, max_size=None) as socket:
            await socket.send(json.dumps({"type": "session.update", "seed": FRAMES}))
            for turn in range(2):
                for word in self.dice.choice(TEXTS).split(" "):
                    text = {"type": "input_text.append", "text": word + " "}
                    await socket.send(json.dumps(text))
                await socket.send(json.dumps({"type": "input_text.end"}))
                if turn and self.dice.random() < 0.5:
                    await socket.send(json.dumps({"type": "response.cancel"}))
                async for message in socket:
                    if isinstance(message, str) and json.loads(message)["type"] in (
                        "speech.audio.done",
                        "response.cancelled",
                        "error",
                    ):
                        break
        return "over"

    async def leaves(self) -> object:
        """Go away: before the first byte, after it, or later."""
        parts = self.dice.choice((0, 1, 3))
        async with self.http.stream("POST", self.url + SPEECH, json=self.body()) as reply:
            async for _ in reply.aiter_raw():
                parts -= 1
                if parts < 0:
                    break
        return "left"

    async def slow(self, for_s: float = SLOW_S) -> object:
        """Read 4 kB a second for a while, from a small buffer."""
        raw = json.dumps({**self.body(), "seed": 1_000_000, "input": TEXTS[2] * 40}).encode()
        host, port = re.findall(r"//([^:]+):(\d+)", self.url)[0]
        reader, writer = await asyncio.open_connection(host, int(port), limit=4_096)
        head = f"POST {SPEECH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + raw)
        until_s = time.monotonic() + for_s
        try:
            while time.monotonic() < until_s and await reader.read(SLOW_BYTES_S // 10):
                await asyncio.sleep(0.1)
        finally:
            writer.transport.abort()
        return "left"

    async def bad(self) -> object:
        """Something that is refused."""
        reply = await self.http.post(self.url + SPEECH, json=self.dice.choice(BAD))
        return reply.status_code


def processes_of(url: str) -> dict[str, psutil.Process]:
    """Edge and engine of the server that listens there."""
    port = int(url.rpartition(":")[2])
    edge = next(
        psutil.Process(c.pid)
        for c in psutil.net_connections("tcp")
        if c.status == "LISTEN" and c.laddr.port == port and c.pid
    )
    children = [c for c in edge.children() if "resource_tracker" not in " ".join(c.cmdline())]
    return {"edge": edge, **({"engine": children[0]} if children else {})}


async def gauges(http: httpx.AsyncClient, url: str) -> dict[str, float]:
    """Those that must be back to nothing, as /metrics has them; waits a while for that."""
    found: dict[str, float] = {}
    for _ in range(100):
        text = (await http.get(url + "/metrics")).text
        lines = re.findall(r"^(\w+)(?:\{[^}]*\})? ([\d.e+-]+)$", text, re.MULTILINE)
        found = {name: float(value) for name, value in lines if name in GAUGES}
        if not any(found.values()):
            return found
        await asyncio.sleep(0.2)
    return found


async def soak(
    url: str, requests: int, minutes: float, at_once: int, seed: int, *, gpu: bool
) -> dict[str, object]:
    """So many requests, or for so long; what came of it."""
    dice, book, watched = random.Random(seed), Book(), processes_of(url)
    kinds = dice.choices(list(SHARES), list(SHARES.values()), k=requests)
    queue, gpus = iter(kinds), Gpus() if gpu else None
    limits = httpx.Limits(max_connections=None)
    began_s, done = time.monotonic(), 0
    async with httpx.AsyncClient(timeout=120, limits=limits) as http:

        async def work(number: int) -> None:
            nonlocal done
            client = Client(url, http, book, random.Random(f"{seed} {number}"))
            for kind in queue:
                await client.request(kind)
                done += 1
                if done % max(1, requests // SAMPLES) == 0:
                    book.weigh(watched, gpus)
                if minutes and time.monotonic() - began_s > minutes * 60:
                    return

        await asyncio.gather(*(work(number) for number in range(at_once)))
        left = await gauges(http, url)
    took_s = time.monotonic() - began_s
    first_ms = sorted(book.first_ms)
    return {
        "requests": done,
        "took_s": round(took_s, 1),
        "at_once": at_once,
        "seed": seed,
        "outcomes": dict(sorted(book.outcomes.items())),
        "first_ms": {
            "p50": round(statistics.median(first_ms), 1),
            "p95": round(first_ms[int(len(first_ms) * 0.95)], 1),
        },
        "gauges_at_the_end": left,
        "growth_over_the_second_half": {
            name: round(growth(mb), 4) for name, mb in book.memory_mb.items()
        },
        "memory_mb": book.memory_mb,
    }


def growth(mb: list[float]) -> float:
    """Share by which the last quarter's mean is above that of the quarter before it."""
    quarter = max(1, len(mb) // 4)
    before, after = mb[-2 * quarter : -quarter] or mb, mb[-quarter:]
    return statistics.mean(after) / statistics.mean(before) - 1


async def beside_a_slow_reader(url: str, requests: int) -> dict[str, object]:
    """First sounds of others, alone and beside one client that reads 4 kB a second."""
    found: dict[str, list[float]] = {"alone": [], "beside": []}
    async with httpx.AsyncClient(timeout=120) as http:
        for _ in range(ROUNDS):  # in turn, so that the machine's mood is in both
            for name, times in found.items():
                book = Book()
                client = Client(url, http, book, random.Random(1))
                reader = client.slow(math.inf) if name == "beside" else asyncio.sleep(0)
                slow = asyncio.create_task(reader)
                await asyncio.sleep(SETTLE_S)
                for _ in range(max(1, requests // ROUNDS)):
                    await client.whole()
                slow.cancel()
                await asyncio.wait([slow])
                times.extend(book.first_ms)
    p95 = {name: sorted(times)[int(len(times) * 0.95)] for name, times in found.items()}
    return {
        "requests_each": requests,
        "alone_p95_ms": round(p95["alone"], 2),
        "beside_p95_ms": round(p95["beside"], 2),
        "change": round(p95["beside"] / p95["alone"] - 1, 3),
    }


def main() -> None:
    """Soak, and write it down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", nargs="?", choices=("soak", "serve"), default="soak")
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so long")
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beside", type=int, default=400, help="requests beside a slow reader")
    parser.add_argument("--url", help="a server that runs")
    parser.add_argument("--gpu", action="store_true", help="watch the card's memory")
    parser.add_argument("--output", type=Path, default=Path("build/bench/soak.json"))
    options = parser.parse_args()
    if options.role == "serve":
        return serve()
    with server_of(options.url) as url:
        o = options
        soaked = asyncio.run(soak(url, o.requests, o.minutes, o.at_once, o.seed, gpu=o.gpu))
        slow = asyncio.run(beside_a_slow_reader(url, o.beside)) if o.beside else {}
    about = {"commit": commit(), "hardware": hardware(), "versions": versions()}
    result = {"command": "make soak", "soak": soaked, "beside_a_slow_reader": slow, **about}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    shown = {name: value for name, value in soaked.items() if name != "memory_mb"}
    print(json.dumps({**shown, **slow}, indent=1))


if __name__ == "__main__":
    main()
