"""A client in the server's own loop: no network, so every order of messages can be had."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Self

from starlette.types import ASGIApp, Message
from tests.runners import SPEC, Bytes, FakeRunner

from vivace.config import EngineConfig, ServerConfig
from vivace.engine import Engine
from vivace.host import LoopThread
from vivace.parts import Parts
from vivace.server.app import create_app
from vivace.server.live.native import TURN_ID

STREAM, NARI = "/v1/audio/speech/stream", "/v1/audio/speech/ws"
FRAME_BYTES = 3840
HELD_S = 60.0  # longer than the busiest machine takes to give a session back


def counted(runner: FakeRunner | None = None, **config: Any) -> Engine:
    """The real engine on a runner that counts; seed n speaks for n frames a piece."""
    runner = runner or FakeRunner(lambda seed: seed)
    parts = Parts("counted", SPEC, Bytes(), runner)  # type: ignore[arg-type]
    config = {"slo_ttfa_s": 600.0, "trim": False, **config}
    return Engine(parts=parts, config=EngineConfig(**config), host=LoopThread)


async def given_back(engine: Engine) -> None:
    """Until the engine holds no session."""
    try:
        async with asyncio.timeout(HELD_S):
            while (s := engine.stats()).slots_free != s.slots_total or s.waiting:
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"sessions are held: {engine.stats()}") from None


class Socket:
    """One connection. `reading` cleared, it takes no bytes: the server's writers wait."""

    def __init__(self, app: ASGIApp, path: str = STREAM, subprotocols: Sequence[str] = ()) -> None:
        self._app = app
        self._scope = {
            "type": "websocket",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [],
            "subprotocols": list(subprotocols),
            "scheme": "ws",
            "asgi": {"version": "3.0"},
        }
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._heard: asyncio.Queue[Message] = asyncio.Queue()
        self.reading = asyncio.Event()
        self.reading.set()
        self.accepted: Message = {}
        self.closed: tuple[int, str] | None = None
        self._left = False

    async def __aenter__(self) -> Self:
        self.push({"type": "websocket.connect"})
        self.task = asyncio.create_task(self._app(self._scope, self._inbox.get, self._take))
        self.accepted = await self._heard.get()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()
        self.reading.set()
        await self.task

    async def _take(self, message: Message) -> None:
        await self.reading.wait()
        if self._left:
            raise OSError("the client left")
        if message["type"] == "websocket.close":
            self.closed = message["code"], message["reason"]
        self._heard.put_nowait(message)

    def push(self, message: Message) -> None:
        """One of ASGI's own messages."""
        self._inbox.put_nowait(message)

    def leave(self) -> None:
        """Go without a word."""
        if not self._left:
            self._left = True
            self.push({"type": "websocket.disconnect", "code": 1006})

    def raw(self, message: str | bytes) -> None:
        """Send anything."""
        kind = "text" if isinstance(message, str) else "bytes"
        self.push({"type": "websocket.receive", kind: message})

    def say(self, type: str, **fields: object) -> None:
        """Send a message."""
        self.raw(json.dumps({"type": type, **fields}))

    def waiting(self) -> int:
        """How many messages can be heard at once."""
        return self._heard.qsize()

    async def hear(self) -> Any:
        """The next message: JSON read, samples as (turn, bytes), the end as None."""
        message = await self._heard.get()
        if message["type"] == "websocket.close":
            return None
        if (data := message.get("bytes")) is not None:
            return (
                (TURN_ID.unpack(data[:4])[0], data[4:]) if self._scope["path"] == STREAM else data
            )
        return json.loads(message["text"])

    async def until(self, type: str) -> list[Any]:
        """All messages up to the next of that type, which is the last."""
        heard: list[Any] = []
        while not (heard and isinstance(heard[-1], dict) and heard[-1]["type"] == type):
            heard.append(await self.hear())
            assert heard[-1] is not None, f"closed before {type}: {heard}, {self.closed}"
        return heard


def app_of(engine: Any, **config: Any) -> ASGIApp:
    """The app before it."""
    return create_app(engine, ServerConfig(**config))


def audio(heard: list[Any]) -> bytes:
    """The samples in what was heard."""
    return b"".join(message[1] for message in heard if isinstance(message, tuple))
