"""Over a real connection: what the protocol below does, and clients that do not read."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from tests.runners import FakeRunner
from tests.server.live import serving
from tests.server.socket.client import counted, given_back
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from vivace.engine import Engine

WORDS = "Hello there, how are you today? I am well, and so is everybody else. "


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with counted(FakeRunner(lambda seed: seed), max_sessions=16) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with serving(engine) as live:
        yield live.url.replace("http", "ws") + "/v1/audio/speech/stream"


def linked(url: str) -> Any:
    """A connection that takes a message at a time from the system's buffer."""
    return connect(url, compression=None, max_queue=1, max_size=None, proxy=None)


async def say(socket: ClientConnection, type: str, **fields: object) -> None:
    await socket.send(json.dumps({"type": type, **fields}))


async def until(socket: ClientConnection, type: str) -> list[Any]:
    heard: list[Any] = []
    while not (heard and isinstance(heard[-1], dict) and heard[-1]["type"] == type):
        message = await socket.recv()
        heard.append(message if isinstance(message, bytes) else json.loads(message))
    return heard


async def test_case_44_message_over_the_limit_closes_with_1009(url: str, engine: Engine) -> None:
    async with linked(url) as socket:
        await say(socket, "input_text.append", text="Hello. ")
        await say(socket, "input_text.append", text="a" * (1_100 << 10))
        with pytest.raises(ConnectionClosed) as closed:
            await until(socket, "never")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009
    await given_back(engine)


async def test_case_41_cancel_with_a_client_that_does_not_read(url: str, engine: Engine) -> None:
    async with linked(url) as socket:
        await say(socket, "session.update", seed=5_000)
        for turn in (1, 3, 5):  # an empty turn after each
            await say(socket, "input_text.append", text=WORDS * 200)
            await say(socket, "input_text.end")
            while not isinstance(await socket.recv(), bytes):
                pass
            # The session is full and paused: its writer waits for this client.
            steps = -1
            while steps != (steps := engine.stats().steps) or engine.stats().slots_free == 16:
                await asyncio.sleep(0.05)
            assert engine.stats().slots_free == 15
            await say(socket, "response.cancel")
            await given_back(engine)  # before a byte is read
            late = await until(socket, "response.cancelled")
            assert late[-1]["turn_id"] == turn
            await say(socket, "input_text.end")  # what is late comes before its end
            after = await until(socket, "speech.audio.done")
            assert not [message for message in after if isinstance(message, bytes)]


async def test_connection_that_ends_without_a_word(url: str, engine: Engine) -> None:
    async with linked(url) as socket:
        await say(socket, "session.update", seed=1_000)
        await say(socket, "input_text.append", text=WORDS * 20)
        while not isinstance(await socket.recv(), bytes):
            pass
        socket.transport.abort()
    await given_back(engine)


async def test_thousand_turns_are_one_connection(url: str, engine: Engine) -> None:
    """A slice of `make bench-live`: no late byte, flat memory, three in ten cancelled."""
    process, sizes = psutil.Process(), []
    async with linked(url) as socket:
        await say(socket, "session.update", seed=4)
        over: set[int] = set()
        for turn in range(1, 301):
            await say(socket, "input_text.append", text="Yes, of course.")
            cancels = turn % 10 in (3, 6, 9)
            await say(socket, "response.cancel" if cancels else "input_text.end")
            end = "response.cancelled" if cancels else "speech.audio.done"
            heard = await until(socket, end)
            assert heard[-1]["turn_id"] == turn
            ids = {int.from_bytes(m[:4], "little") for m in heard if isinstance(m, bytes)}
            assert not ids & over
            over.add(turn)
            if turn in (100, 300):
                sizes.append(process.memory_info().rss)
    assert sizes[1] - sizes[0] < 8 << 20
    await given_back(engine)


@pytest.mark.timeout(600)  # loads the voice in a process of its own
async def test_drain_finishes_turns_that_are_open() -> None:
    command = [sys.executable, "-m", "vivace", "serve", "--port", "0", "--in-process"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = await asyncio.to_thread(server.stdout.readline)
        url = line.split()[-1].replace("http", "ws") + "/v1/audio/speech/stream"
        async with linked(url) as idle, linked(url) as socket:
            await say(socket, "session.update", seed=7)
            await say(socket, "input_text.append", text=WORDS)
            while not isinstance(await socket.recv(), bytes):
                pass
            server.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed) as closed:
                await until(idle, "never")
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
            await say(socket, "input_text.append", text=" I am well.")
            await say(socket, "input_text.end")
            done = (await until(socket, "speech.audio.done"))[-1]
            assert done["finish_reason"] == "stop"
            with pytest.raises(ConnectionClosed):
                await until(socket, "never")
        assert (
            await asyncio.to_thread(server.wait, 300) == -signal.SIGTERM or server.returncode == 0
        )
    finally:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()
