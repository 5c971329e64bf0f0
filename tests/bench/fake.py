"""A speech server that sends what a script says, in every wire format that the bench speaks.

As a program it serves four seconds of speech in real time, to see what the client can do:

    python tests/bench/fake.py vivace bench run --target openai --url {url}/v1 --rps 100 ...
"""

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

RATE = 24_000


def tone(seconds: float, level: float = 0.3, rate: int = RATE) -> bytes:
    """A sine of 440 Hz as 16-bit samples."""
    t = np.arange(round(seconds * rate)) / rate
    return (np.sin(2 * np.pi * 440 * t) * level * 32767).astype("<i2").tobytes()


def silence(seconds: float, rate: int = RATE) -> bytes:
    """As many zeros."""
    return bytes(2 * round(seconds * rate))


def wav(pcm: bytes, size: int | None = None, rate: int = RATE, channels: int = 1) -> bytes:
    """A WAV file that names `size` bytes of samples."""
    size = len(pcm) if size is None else size
    head = b"RIFF" + min(size + 36, 0xFFFFFFFF).to_bytes(4, "little") + b"WAVEfmt "
    head += (16).to_bytes(4, "little") + (1).to_bytes(2, "little") + channels.to_bytes(2, "little")
    head += rate.to_bytes(4, "little") + (rate * 2 * channels).to_bytes(4, "little")
    head += (2 * channels).to_bytes(2, "little") + (16).to_bytes(2, "little")
    return head + b"data" + size.to_bytes(4, "little") + pcm


@dataclass
class Script:
    """What every request gets: pieces after their delays, and how the answer is framed."""

    pieces: list[tuple[float, bytes]] = field(default_factory=lambda: [(0.0, tone(0.4))])
    status: int = 200
    content_type: str | None = "audio/pcm"
    headers: dict[str, str] = field(default_factory=dict)
    framing: str = "chunked"  # length, close
    breaks: bool = False  # closes before the end
    error: str = ""  # on a socket: sent instead of the end
    hangs: bool = False


@dataclass
class Seen:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: Any  # an object over HTTP, the list of messages over a socket


class Fake:
    """The server, in a thread of its own; scripts may change between requests."""

    def __init__(self, script: Script | Callable[[int], Script] | None = None) -> None:
        self.script = script or Script()
        self.seen: list[Seen] = []

    def _next(self) -> Script:
        script = self.script
        return script if isinstance(script, Script) else script(len(self.seen))

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, EOFError), contextlib.closing(writer):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:])}
            length = int(headers.get("content-length", 0))  # none: somebody wants a socket
            body = json.loads(await reader.readexactly(length)) if length else None
            script = self._next()
            self.seen.append(Seen(lines[0].split(" ")[1], headers, body))
            await self._answer(script, writer)

    async def _answer(self, script: Script, writer: asyncio.StreamWriter) -> None:
        head = {"connection": "close", **script.headers}
        if script.content_type:
            head["content-type"] = script.content_type
        whole = b"".join(piece for _, piece in script.pieces)
        chunked = script.framing == "chunked"
        if chunked:
            head["transfer-encoding"] = "chunked"
        elif script.framing == "length":
            head["content-length"] = str(len(whole))
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        start = f"HTTP/1.1 {script.status} x\r\n{lines}\r\n".encode("latin-1")
        for delay_s, piece in script.pieces:
            if delay_s:
                await asyncio.sleep(delay_s)
            writer.write(start + (b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece))
            start = b""
        if script.hangs:
            await asyncio.sleep(3600)
        if not script.breaks:
            writer.write(start + (b"0\r\n\r\n" if chunked else b""))
        with contextlib.suppress(ConnectionError):
            await writer.drain()

    async def _socket(self, socket: ServerConnection) -> None:
        assert socket.request
        path = socket.request.path
        seen = Seen(path, {k.lower(): v for k, v in socket.request.headers.raw_items()}, [])
        script = self._next()
        self.seen.append(seen)
        kind = next(talk for part, talk in _TALKS.items() if part in path)
        with contextlib.suppress(ConnectionClosed):
            await kind(socket, seen.body, script)

    async def _start(self) -> None:
        self.http = await asyncio.start_server(self._http, "127.0.0.1", 0, backlog=1024)
        self.ws: Server = await serve(
            self._socket,
            "127.0.0.1",
            0,
            subprotocols=["nari.speech.v1"],  # type: ignore[list-item]
            select_subprotocol=lambda _, offered: offered[0] if offered else None,
        )
        self.url = f"http://127.0.0.1:{self.http.sockets[0].getsockname()[1]}"
        self.ws_url = f"ws://127.0.0.1:{self.ws.sockets[0].getsockname()[1]}"

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()

        async def main() -> None:
            await self._start()
            ready.set()
            self._stopped = asyncio.Event()
            await self._stopped.wait()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            if others:
                await asyncio.wait(others, timeout=10)
            self.http.close()
            self.ws.close()
            await self.ws.wait_closed()

        def serve_all() -> None:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(main())

        self._thread = threading.Thread(target=serve_all, daemon=True)
        self._thread.start()
        assert ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(30)


async def _told(socket: ServerConnection, messages: list[Any]) -> Any:
    messages.append(json.loads(await socket.recv()))
    return messages[-1]


async def _pieces(script: Script) -> Any:
    for delay_s, piece in script.pieces:
        if delay_s:
            await asyncio.sleep(delay_s)
        yield piece


async def _vivace(socket: ServerConnection, messages: list[Any], script: Script) -> None:
    await socket.send(json.dumps({"type": "session.created"}))
    assert (await _told(socket, messages))["type"] == "session.update"
    await socket.send(json.dumps({"type": "session.updated"}))
    while (await _told(socket, messages))["type"] != "input_text.end":
        pass
    await socket.send(json.dumps({"type": "response.created", "turn_id": 1}))
    async for piece in _pieces(script):
        await socket.send((1).to_bytes(4, "little") + piece)
    done = {"type": "speech.audio.done", "finish_reason": script.headers.get("stop", "stop")}
    if script.error:
        done |= {"finish_reason": "error", "error": {"message": script.error}}
    if not script.breaks:
        await socket.send(json.dumps(done))
    await socket.close(1000)


async def _nari(socket: ServerConnection, messages: list[Any], script: Script) -> None:
    await socket.send(json.dumps({"type": "session.created", "protocol": "nari.speech.v1"}))
    assert (await _told(socket, messages))["type"] == "request.start"
    await socket.send(json.dumps({"type": "request.configured"}))
    while (told := await _told(socket, messages))["type"] != "input_text.end":
        ack = {"type": "input_text.ack", "sequence": told["sequence"], "request_id": None}
        await socket.send(json.dumps(ack))
    await socket.send(json.dumps({"type": "response.started", "request_id": "r"}))
    async for piece in _pieces(script):
        await socket.send(piece)
    if script.error:
        error = {"type": "t", "code": "c", "message": script.error}
        await socket.send(json.dumps({"type": "error", "request_id": "r", "error": error}))
    elif not script.breaks:
        done = {"type": "response.done", "stop_reason": script.headers.get("stop", "stop")}
        await socket.send(json.dumps(done))
    await socket.close(1000)


async def _elevenlabs(socket: ServerConnection, messages: list[Any], script: Script) -> None:
    while (await _told(socket, messages))["text"] != "":
        pass
    async for piece in _pieces(script):
        audio = base64.b64encode(piece).decode()
        await socket.send(json.dumps({"audio": audio, "isFinal": None, "alignment": None}))
    if script.error:
        await socket.send(json.dumps({"message": script.error, "error": "x", "code": 1008}))
    elif not script.breaks:
        await socket.send(json.dumps({"audio": None, "isFinal": True}))
    await socket.close(1000 if not script.breaks else 1011)


async def _cartesia(socket: ServerConnection, messages: list[Any], script: Script) -> None:
    while (told := await _told(socket, messages))["continue"]:
        pass
    same = {"context_id": told["context_id"], "status_code": 206}
    async for piece in _pieces(script):
        data = base64.b64encode(piece).decode()
        await socket.send(json.dumps({"type": "chunk", "data": data, "done": False, **same}))
    if script.error:
        error = {"type": "error", "done": True, "title": "x", "message": script.error, **same}
        await socket.send(json.dumps(error))
    elif not script.breaks:
        await socket.send(json.dumps({"type": "done", "done": True, **same}))
    else:
        await socket.close(1011)
    await socket.wait_closed()


_TALKS = {
    "/v1/audio/speech/stream": _vivace,
    "/v1/audio/speech/ws": _nari,
    "/stream-input": _elevenlabs,
    "/tts/websocket": _cartesia,
}


def four_seconds() -> Script:
    """A frame of 80 ms, and one after another in real time, ahead by half a second."""
    frame = tone(0.08)
    return Script([(0.02, frame), *[(0.0, frame)] * 6, *[(0.08, frame)] * 43])


def fill(words: list[str], fake: Fake) -> Iterator[str]:
    """The command with the server's addresses in it."""
    for word in words:
        yield word.replace("{url}", fake.url).replace("{ws_url}", fake.ws_url)


if __name__ == "__main__":
    with Fake(four_seconds()) as fake:
        sys.exit(subprocess.run([*fill(sys.argv[1:], fake)], check=False).returncode)
