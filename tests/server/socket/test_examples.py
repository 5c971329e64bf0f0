"""The code in docs/socket.md and examples/agent.py, run as a user would."""

import asyncio
import json
import os
import re
import subprocess
import sys
import wave
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from tests.runners import FakeRunner
from tests.server.live import Live, serving
from tests.server.socket.client import counted, given_back
from uvicorn import Config, Server

from vivace.config import ServerConfig
from vivace.engine import Engine
from vivace.server.live.conversation import MOST_TURNS
from vivace.server.live.native import TURN, Event, Native, State
from vivace.server.live.wire import CLOSE_CODES, MOST_POSTED
from vivace.server.live.wire import Event as LinkEvent

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "socket.md").read_text(encoding="utf-8")


@pytest.fixture
def engine() -> Iterator[Engine]:
    with counted(FakeRunner(lambda seed: 20), max_sessions=4) as engine:
        yield engine


@pytest.fixture
def live(engine: Engine) -> Iterator[Live]:
    with serving(engine) as live:
        yield live


def test_the_pages_program_writes_a_file(live: Live, tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    assert "ws://127.0.0.1:8000" in code
    code = code.replace("ws://127.0.0.1:8000", live.url.replace("http", "ws"))
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
    with wave.open(str(tmp_path / "hello.wav")) as file:
        assert file.getnframes() == 20 * 1920


def test_the_pages_tables_are_the_codes() -> None:
    said = set(re.findall(r"^\| `([a-z_.]+)` \|", PAGE, re.MULTILINE))
    assert set(Native.verbs) <= said
    short = {event: event.split(".")[-1] for event in Event}
    head = next(line for line in PAGE.splitlines() if line.startswith("| | `append`"))
    columns = re.findall(r"`(\w+)`", head)
    for state in (State.NEW, State.TAKING, State.SPEAKING):
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| {state} |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")][1:]
        for event, name in short.items():
            if event is Event.OVER:
                continue
            told, after = cells[columns.index(name)], TURN.get((state, event))
            assert told.startswith(after or ("next turn", "error")), (state, event)
    assert f"{MOST_TURNS}, of which one speaks" in PAGE
    assert f"| unread replies | {MOST_POSTED} |" in PAGE
    config = ServerConfig()
    assert f"no message for {config.idle_s:g} s | reads nothing for {config.stall_s:g} s" in PAGE
    assert f"closed, {CLOSE_CODES[LinkEvent.STALLED]}" in PAGE
    assert f"{config.limits.text_chars:,} characters" in PAGE


class Model:
    """An OpenAI-compatible language model that writes until nobody listens any more."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.left = asyncio.Event()
        self.app = Starlette(routes=[Route("/v1/chat/completions", self.chat, methods=["POST"])])

    async def chat(self, request: Request) -> StreamingResponse:
        question = (await request.json())["messages"][0]["content"]
        self.asked.append(question)
        return StreamingResponse(self._words(question), media_type="text/event-stream")

    async def _words(self, question: str) -> AsyncIterator[str]:
        endless = "story" in question
        try:
            n = 0
            while endless or n < 5:
                n += 1
                choice = {"index": 0, "delta": {"content": f"Word {n}. "}}
                part = {"id": "x", "object": "chat.completion.chunk", "choices": [choice]}
                yield f"data: {json.dumps(part)}\n\n"
                await asyncio.sleep(0.005)
            yield "data: [DONE]\n\n"
        finally:
            if endless:
                self.left.set()


async def test_the_agent_speaks_and_is_interrupted(live: Live, engine: Engine) -> None:
    model = Model()
    server = Server(Config(model.app, port=0, log_config=None, lifespan="off", ws="none"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "agent.py"),
        "--model=any",
        f"--vivace={live.url.replace('http', 'ws')}",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": "x"},
    )
    assert agent.stdin is not None
    assert agent.stdout is not None
    try:
        agent.stdin.write(b"Tell me a story.\n")
        assert len(await agent.stdout.readexactly(3840)) == 3840  # it speaks while that is written
        agent.stdin.write(b"Stop. What time is it?\n")
        await model.left.wait()
        agent.stdin.close()
        await agent.communicate()
        assert agent.returncode == 0
        assert model.asked == ["Tell me a story.\n", "Stop. What time is it?\n"]
    finally:
        if agent.returncode is None:
            agent.kill()
        server.should_exit = True
        await serving
    await given_back(engine)
