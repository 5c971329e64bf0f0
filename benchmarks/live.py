"""The native socket under a client's eyes: cancels, many turns, words at a pace.

    python benchmarks/live.py cancel turns words --output benchmarks/results/live.json

Talks to servers in processes of their own. For words that is `vivace serve` with the embedded
voice; for the others it is the same server with a runner that takes as long as a card would and
computes nothing, so that sixteen sessions are no load for a small machine.
"""

import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from websockets.asyncio.client import ClientConnection, connect

from vivace.bench.link import parts
from vivace.bench.machine import commit, hardware
from vivace.config import EngineConfig, ServerConfig
from vivace.engine import Engine
from vivace.remote.near import LoopProcess
from vivace.server.serve import address_of, bind, run

LONG = "This is a sentence that goes on for quite a while, and then there is another one. " * 12
TEXTS = (
    "Hello there, how are you today?",
    "The train to the coast leaves at nine.",
    "I have found three places near you.",
    "Please hold the line for a moment.",
    "That is a very good question.",
    "Your order will be there tomorrow.",
)
SESSIONS, CANCELS = 16, 20
ENDLESS = 1_000_000  # frames: longer than its text may become
TURNS, CANCELLED = 1_000, 0.3
WORD_S, SPOKEN = 0.2, 60


class Talk:
    """One connection; keeps book of what comes after a turn's end."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.over: set[int] = set()
        self.late_bytes = 0

    async def say(self, type: str, **fields: object) -> float:
        """Send a message; when it was sent."""
        await self.socket.send(json.dumps({"type": type, **fields}))
        return time.perf_counter()

    async def hear(self) -> dict[str, Any]:
        """The next message; `sound` stands for samples."""
        message = await self.socket.recv()
        if isinstance(message, str):
            told: dict[str, Any] = json.loads(message)
            if told["type"] in ("speech.audio.done", "response.cancelled"):
                self.over.add(told["turn_id"])
            return told
        turn = int.from_bytes(message[:4], "little")
        self.late_bytes += (len(message) - 4) * (turn in self.over)
        return {"type": "sound", "turn_id": turn}

    async def until(self, *types: str) -> dict[str, Any]:
        """The next message of one of these types."""
        while (told := await self.hear())["type"] not in types:
            pass
        return told


Measure = Callable[[str, psutil.Process], Awaitable[dict[str, object]]]


def percentiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(seconds)
    at = {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 95, 99)}
    return {name: round(s * 1e3, 2) for name, s in {**at, "max": ordered[-1]}.items()}


def link(url: str) -> Any:
    """A connection to the socket whose library reads one message ahead at most."""
    return connect(f"{url}/v1/audio/speech/stream", compression=None, max_queue=1, proxy=None)


async def cancel(url: str, server: psutil.Process) -> dict[str, object]:
    """From a cancel to its acknowledgement: 16 clients that do not read until they have sent it."""
    took: list[float] = []
    late: list[int] = []

    async def one(seed: int) -> None:
        dice = random.Random(seed)
        async with link(url) as socket:
            talk = Talk(socket)
            await talk.say("session.update", seed=ENDLESS)
            for _ in range(CANCELS):
                await talk.say("input_text.append", text=LONG)
                await talk.until("sound")
                await asyncio.sleep(dice.uniform(0.5, 1.5))  # reads nothing meanwhile
                sent_s = await talk.say("response.cancel")
                await talk.until("response.cancelled")
                took.append(time.perf_counter() - sent_s)
            await talk.say("input_text.end")  # an empty turn: whatever was late is here by then
            await talk.until("speech.audio.done")
            late.append(talk.late_bytes)

    async with asyncio.TaskGroup() as tasks:
        for seed in range(SESSIONS):
            tasks.create_task(one(seed))
    return {
        "sessions": SESSIONS,
        "cancels": len(took),
        "ack_ms": percentiles(took),
        "late_bytes": sum(late),
    }


async def turns(url: str, server: psutil.Process) -> dict[str, object]:
    """A thousand turns on one connection, three in ten cancelled: late bytes, memory."""
    dice, cancels, rss = random.Random(0), 0, []
    async with link(url) as socket:
        talk = Talk(socket)
        await talk.say("session.update", seed=12)  # frames of speech
        for turn in range(1, TURNS + 1):
            await talk.say("input_text.append", text="Yes, of course.")
            if dice.random() < CANCELLED:
                cancels += 1
                await asyncio.sleep(dice.uniform(0, 0.05))
                await talk.say("response.cancel")
            else:
                await talk.say("input_text.end")
            end = await talk.until("speech.audio.done", "response.cancelled")
            assert end["turn_id"] == turn, end
            if turn % 100 == 0:
                family = [server, *server.children(recursive=True)]
                rss.append(round(sum(p.memory_info().rss for p in family) / 1e6, 1))
    return {"turns": TURNS, "cancels": cancels, "late_bytes": talk.late_bytes, "server_rss_mb": rss}


async def words(url: str, server: psutil.Process) -> dict[str, object]:
    """A word every 200 ms: how many had been sent when sound came, and how long after the last."""
    after: list[float] = []
    needed: list[int] = []
    async with link(url) as socket:
        talk = Talk(socket)
        for turn in range(SPOKEN):
            heard = asyncio.create_task(_first_sound(talk))
            sent: list[float] = []
            for word in TEXTS[turn % len(TEXTS)].split():
                sent.append(await talk.say("input_text.append", text=word + " "))
                await asyncio.sleep(WORD_S)
            await talk.say("input_text.end")
            first_s = await heard
            before = [s for s in sent if s <= first_s]
            needed.append(len(before))
            after.append(first_s - before[-1])
            await talk.until("speech.audio.done")
    return {
        "turns": SPOKEN,
        "words_per_s": 1 / WORD_S,
        "words_needed": {str(n): needed.count(n) for n in sorted(set(needed))},
        "mean_words_needed": round(statistics.mean(needed), 2),
        "first_sound_after_last_needed_word_ms": percentiles(after),
    }


async def _first_sound(talk: Talk) -> float:
    await talk.until("sound")
    return time.perf_counter()


MEASURES: dict[str, tuple[Measure, str]] = {
    "cancel": (cancel, "card"),
    "turns": (turns, "card"),
    "words": (words, "voice"),
}


def serve_card() -> None:
    """A server before the runner that only waits, until it is told to stop."""
    config = EngineConfig(max_sessions=SESSIONS)
    with Engine(parts=parts, config=config, host=LoopProcess) as engine:
        sock = bind("127.0.0.1", 0)
        run(engine, ServerConfig(), sock, lambda: print(address_of(sock), flush=True))


@contextmanager
def serving(kind: str) -> Iterator[tuple[str, psutil.Process]]:
    """A server in a process of its own: where it is, and which."""
    voice = [sys.executable, "-m", "vivace", "serve", "--port", "0"]
    command = voice if kind == "voice" else [sys.executable, __file__, "serve"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if address := re.search(r"http(://[\d.:]+)", line):
                yield f"ws{address[1]}", psutil.Process(server.pid)
                return
        raise SystemExit("the server did not start")
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Measure what was asked for and write it down."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("measures", nargs="+", choices=[*MEASURES, "serve"])
    options.add_argument("--output", type=Path)
    asked = options.parse_args()
    if asked.measures == ["serve"]:
        serve_card()
        return
    result: dict[str, object] = {
        "command": f"python benchmarks/live.py {' '.join(asked.measures)}",
        "commit": commit(),
        "hardware": hardware(),
    }
    for name in asked.measures:
        measure, kind = MEASURES[name]
        with serving(kind) as (url, server):
            result[name] = asyncio.run(measure(url, server))
        print(name, json.dumps(result[name]))
    if asked.output:
        asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
