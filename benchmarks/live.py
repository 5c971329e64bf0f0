"""The native socket under a client's eyes: cancels, many turns, words at a pace.

    python benchmarks/live.py cancel turns words --output benchmarks/results/live.json

Talks to servers in processes of their own. For words that is `vivace serve` with the embedded
voice, then with random weights that sound from the first frame on; for the others it is the same
server with a runner that takes as long as a card would and computes nothing, so that sixteen
sessions are no load for a small machine.
"""

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import typed
from talk import Figures, Talk, link, noted, percentiles

from vivace.bench.link import parts
from vivace.bench.machine import commit, hardware
from vivace.config import EngineConfig, ServerConfig
from vivace.engine import Engine
from vivace.remote.near import LoopProcess
from vivace.server.serve import address_of, bind, run

LONG = "This is a sentence that goes on for quite a while, and then there is another one. " * 12
SESSIONS, CANCELS = 16, 20
ENDLESS = 1_000_000  # frames: longer than its text may become
TURNS, CANCELLED = 1_000, 0.3


async def cancel(url: str, server: psutil.Process) -> Figures:
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


async def turns(url: str, server: psutil.Process) -> Figures:
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


def on_card(
    measure: Callable[[str, psutil.Process], Coroutine[Any, Any, Figures]],
) -> Callable[[], Figures]:
    """A measure of the server with the runner that only waits."""

    def run() -> Figures:
        with serving([sys.executable, __file__, "serve"]) as (url, server):
            return asyncio.run(noted(measure(url, server)))

    return run


def words() -> Figures:
    """Texts word by word, on every set-up."""
    found: Figures = {}
    serve = [sys.executable, "-m", "vivace", "serve", "--port", "0"]
    for name, (voice, ahead) in typed.SETUPS.items():
        with typed.checkpoint(voice=voice) as folder:
            needs, took_s = typed.needs(folder, ahead)
            more = ["--model", str(folder), "--text-lead", str(ahead)]
            with serving([*serve, *more]) as (url, _):
                figures = asyncio.run(noted(typed.words(url, needs)))
        found[name] = {**figures, "processor_ms_from_word_to_sound": percentiles(took_s)}
    return found


MEASURES = {"cancel": on_card(cancel), "turns": on_card(turns), "words": words}


def serve_card() -> None:
    """A server before the runner that only waits, until it is told to stop."""
    config = EngineConfig(max_sessions=SESSIONS)
    with Engine(parts=parts, config=config, host=LoopProcess) as engine:
        sock = bind("127.0.0.1", 0)
        run(engine, ServerConfig(), sock, lambda: print(address_of(sock), flush=True))


@contextmanager
def serving(command: list[str]) -> Iterator[tuple[str, psutil.Process]]:
    """A server in a process of its own: where it is, and which."""
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
        server.wait(60)


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
        result[name] = MEASURES[name]()
        print(name, json.dumps(result[name]))
    if asked.output:
        asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
