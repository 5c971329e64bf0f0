"""Faults of the engine under a running server: what its clients hear, and how soon it speaks again.

    python benchmarks/faults.py --output benchmarks/results/faults.json

The server is vivace's own with the voice in the box, in a process of its own; its runner fails a
call for the seeds that say so. While a fault comes, six streams of events and two sockets speak.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
from tests.remote.faulty import CALLS, SEEDS, Wrong
from websockets.asyncio.client import connect

from vivace.bench.machine import commit, hardware, versions
from vivace.config import EngineConfig, ServerConfig
from vivace.engine import Engine
from vivace.remote.lives import Lives
from vivace.server.serve import address_of, bind, run

TEXT = "This is a sentence that goes on for a while, and then there is another one."
STREAMS, SOCKETS = 6, 2
HANG_S = 2.0
CONFIG = EngineConfig(
    max_sessions=16, slo_ttfa_s=600.0, hang_s=HANG_S, restarts=1_000, restarts_s=1.0
)
ENDS = ("speech.audio.done", "speech.audio.error")


def build() -> Any:
    """The voice in the box, which goes wrong."""
    from vivace.parts import load_parts

    parts = load_parts(None, CONFIG, revision=None, offline=True)
    return replace(parts, runner=Wrong(parts.runner))  # type: ignore[arg-type]


def serve() -> None:
    """The server's process."""
    sock = bind("127.0.0.1", 0)
    with Engine(parts=build, config=CONFIG, host=Lives) as engine:
        run(engine, ServerConfig(), sock, lambda: print(address_of(sock), flush=True))
    sys.exit(4 if engine.lost else 0)


class Client:
    """One that listens to the end, and keeps the ends it is told."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.begun = asyncio.Event()
        self.ends: list[str] = []
        self.ended_s = 0.0

    def _hear(self, event: dict[str, Any]) -> None:
        self.begun.set()
        if event["type"] in ENDS:
            self.ends.append("error" if "error" in event else "done")
            self.ended_s = time.monotonic()

    async def stream(self, http: httpx.AsyncClient, seed: int) -> None:
        """Over HTTP, as events."""
        body = {"input": TEXT, "seed": seed, "stream_format": "sse"}
        async with http.stream("POST", self.url + "/v1/audio/speech", json=body) as reply:
            if reply.status_code != 200:
                self._hear({"type": ENDS[1], "error": reply.status_code})
            async for line in reply.aiter_lines():
                if line.startswith("data: "):
                    self._hear(json.loads(line[6:]))

    async def talk(self) -> None:
        """Over a socket; it stays open for a second end, should there be one."""
        where = self.url.replace("http", "ws", 1) + "/v1/audio/speech/stream"
        async with connect(where, max_size=None) as socket:
            for message in (
                {"type": "session.update", "seed": 1, "encoding": "base64"},
                {"type": "input_text.append", "text": TEXT},
                {"type": "input_text.end"},
            ):
                await socket.send(json.dumps(message))
            async for message in socket:
                event = json.loads(message)
                if event["type"] == "error":  # the answer to what was asked after the end
                    return
                if event["type"].startswith("speech."):
                    self._hear(event)
                if event["type"] in ENDS:
                    await socket.send(json.dumps({"type": "nonsense"}))


class Server:
    """The process under test."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "serve"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self.process.stdout
        self.url = self.process.stdout.readline().decode().strip()

    @property
    def engine(self) -> psutil.Process:
        """Its engine's process: the largest of its children."""
        children = psutil.Process(self.process.pid).children()
        return max(children, key=lambda child: child.memory_info().rss)

    async def answers(self, http: httpx.AsyncClient, status: int) -> None:
        """Until /ready does so."""
        while (await http.get(self.url + "/ready")).status_code != status:
            await asyncio.sleep(0.02)


Fault = Callable[[Server, httpx.AsyncClient], Awaitable[None]]


async def kill(server: Server, http: httpx.AsyncClient) -> None:
    """As the kernel does when memory is short."""
    server.engine.kill()


async def kill_twice(server: Server, http: httpx.AsyncClient) -> None:
    """The next one too, while it loads."""
    server.engine.kill()
    await server.answers(http, 503)
    await asyncio.sleep(0.5)
    server.engine.kill()


async def stop(server: Server, http: httpx.AsyncClient) -> None:
    """It hangs, and says nothing."""
    server.engine.send_signal(signal.SIGSTOP)


def inside(fault: str, call: str) -> Fault:
    """In a call of the runner's, for one more request."""

    async def ask(server: Server, http: httpx.AsyncClient) -> None:
        client = Client(server.url)
        await client.stream(http, SEEDS[fault, call])
        assert client.ends == ["error"], client.ends

    return ask


async def measure(server: Server, fault: Fault, *, idle: bool = False) -> dict[str, object]:
    """One fault; the clients' ends and the way back."""
    streams = [] if idle else [Client(server.url) for _ in range(STREAMS)]
    sockets = [] if idle else [Client(server.url) for _ in range(SOCKETS)]
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=None))
        await server.answers(http, 200)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for client in streams:
            tasks.create_task(client.stream(http, 1))
        for client in sockets:
            tasks.create_task(client.talk())
        for client in (*streams, *sockets):
            await client.begun.wait()
        began_s = time.monotonic()
        await fault(server, http)
        faulted_s = time.monotonic()
        if fault in (kill, kill_twice, stop):
            if fault is not kill_twice:
                await server.answers(http, 503)
            await server.answers(http, 200)
        ready_s = time.monotonic()
        probe = Client(server.url)
        await probe.stream(http, 1)
    clients = [*streams, *sockets]
    print(f"{time.monotonic() - began_s:.1f} s", file=sys.stderr, flush=True)
    failed = [client for client in clients if client.ends == ["error"]]
    return {
        "clients": len(clients),
        "one_terminal_event": sum(len(client.ends) == 1 for client in clients),
        "failed": len(failed),
        "last_terminal_s": round(max((c.ended_s - began_s for c in failed), default=0.0), 3),
        "fault_s": round(faulted_s - began_s, 3),
        "ready_s": round(ready_s - began_s, 3),
        "speaks_again": probe.ends == ["done"],
    }


async def lost() -> dict[str, object]:
    """A device that is lost ends the server."""
    server = Server()
    began_s = time.monotonic()
    async with httpx.AsyncClient(timeout=60) as http:
        await inside("lost", "prefill")(server, http)
    status = await asyncio.to_thread(server.process.wait, 60)
    return {"exit_status": status, "exit_s": round(time.monotonic() - began_s, 3)}


async def all_of_them() -> dict[str, object]:
    """Every fault, one after the other, on one server."""
    server = Server()
    try:
        found: dict[str, object] = {
            "killed while idle": await measure(server, kill, idle=True),
            "killed while streaming": await measure(server, kill),
            "killed again while loading": await measure(server, kill_twice),
            f"hangs (SIGSTOP; noticed after {HANG_S:g} s)": await measure(server, stop),
        }
        for fault in ("raise", "memory"):
            for call in CALLS:
                found[f"{fault} in {call}"] = await measure(server, inside(fault, call))
    finally:
        server.process.terminate()
        await asyncio.to_thread(server.process.wait)
    return {**found, "device lost": await lost()}


def main() -> None:
    """Measure, and write it down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", nargs="?", choices=("measure", "serve"), default="measure")
    parser.add_argument("--output", type=Path, default=Path("build/bench/faults.json"))
    options = parser.parse_args()
    if options.role == "serve":
        serve()
    about = {"commit": commit(), "hardware": hardware(), "versions": versions()}
    result = {
        "command": "make bench-faults",
        "faults": asyncio.run(all_of_them()),
        **about,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
