"""A client of the native socket that keeps book, and its figures."""

import asyncio
import json
import time
from collections.abc import Coroutine
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

BEAT_S = 0.01
Figures = dict[str, object]


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
        samples = (len(message) - 4) // 2
        return {"type": "sound", "turn_id": turn, "samples": samples, "at_s": time.perf_counter()}

    async def until(self, *types: str) -> dict[str, Any]:
        """The next message of one of these types."""
        while (told := await self.hear())["type"] not in types:
            pass
        return told


def percentiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(seconds)
    at = {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 95, 99)}
    return {name: round(s * 1e3, 2) for name, s in {**at, "max": ordered[-1]}.items()}


async def noted(work: Coroutine[Any, Any, Figures]) -> Figures:
    """Its figures, and how late this event loop was meanwhile: what the machine itself adds."""
    late_s: list[float] = []

    async def watch() -> None:
        while True:
            due_s = time.perf_counter() + BEAT_S
            await asyncio.sleep(BEAT_S)
            late_s.append(time.perf_counter() - due_s)

    watching = asyncio.create_task(watch())
    try:
        figures = await work
    finally:
        watching.cancel()
    return {**figures, "client_late_ms": percentiles(late_s)}


def link(url: str) -> Any:
    """A connection to the socket whose library reads one message ahead at most."""
    return connect(f"{url}/v1/audio/speech/stream", compression=None, max_queue=1, proxy=None)
