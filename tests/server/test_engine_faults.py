"""What clients meet when the engine behind them fails: one terminal event, a time, then speech."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from tests.remote import faulty
from tests.remote.faulty import SEEDS
from tests.server.live import Live, serving
from websockets.sync.client import ClientConnection, connect

from vivace.config import EngineConfig, ServerConfig
from vivace.engine import Engine
from vivace.remote import near
from vivace.remote.lives import Lives

SPEECH, STREAM = "/v1/audio/speech", "/v1/audio/speech/stream"
# The longest speech of these texts is more than the sockets on the way hold.
ENDLESS = {"input": "Hello there, how are you? " * 300, "seed": 1_000_000}
CONFIG = EngineConfig(max_sessions=8, slo_ttfa_s=600.0, restarts=100, trim=False)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(parts=faulty.faulty, config=CONFIG, host=Lives) as engine:
        yield engine


@pytest.fixture(scope="module")
def live(engine: Engine) -> Iterator[Live]:
    with serving(engine) as live:
        yield live


@pytest.fixture
def client(live: Live) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=60) as client:
        yield client


def process_of(engine: Engine) -> Any:
    return engine._host._process  # type: ignore[attr-defined]


def until(true: Callable[[], object]) -> None:
    pause = threading.Event()
    while not true():
        pause.wait(0.01)


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    return (json.loads(line[6:]) for line in lines if line.startswith("data: "))


@contextmanager
def socket_to(url: str, seed: int) -> Iterator[ClientConnection]:
    """A turn that speaks for as long as its seed says."""
    with connect(f"ws://{urlsplit(url).netloc}{STREAM}", max_size=None) as socket:
        for message in (
            {"type": "session.update", "seed": seed, "encoding": "base64"},
            {"type": "input_text.append", "text": ENDLESS["input"]},
            {"type": "input_text.end"},
        ):
            socket.send(json.dumps(message))
        yield socket


def terminal(socket: ClientConnection) -> list[dict[str, Any]]:
    """The ends that a socket is told, up to the answer to a message after them."""
    ends = []
    for message in socket:
        said = json.loads(message)
        if said["type"] == "speech.audio.done":
            ends.append(said)
            socket.send(json.dumps({"type": "nonsense"}))
        elif said["type"] == "error":
            return ends
    raise AssertionError("the socket was closed")


def test_a_killed_engine_is_one_terminal_event_for_each_and_speech_again(
    live: Live, client: httpx.Client, engine: Engine
) -> None:
    until(lambda: engine.ready)
    with ExitStack() as stack:
        sse = stack.enter_context(
            client.stream("POST", SPEECH, json={**ENDLESS, "stream_format": "sse"})
        )
        heard = events(sse.iter_lines())
        assert next(heard)["type"] == "speech.audio.delta"
        raw = stack.enter_context(
            client.stream("POST", SPEECH, json={**ENDLESS, "response_format": "pcm"})
        )
        pieces = raw.iter_raw()
        next(pieces)
        socket = stack.enter_context(socket_to(live.url, 1_000_000))
        while json.loads(socket.recv())["type"] != "speech.audio.delta":
            pass
        process_of(engine).kill()
        *_, last = (event["type"] for event in heard)
        assert last == "speech.audio.error", "the last event, after which the body ends well"
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)
        (end,) = terminal(socket)
        assert end["error"]["type"] == "server_error" and end["finish_reason"] == "error"
    until(lambda: client.get("/ready").status_code == 200)
    reply = client.post(SPEECH, json={"input": "Hello.", "seed": 5, "response_format": "pcm"})
    assert len(reply.content) == 5 * 3840


def test_who_comes_while_it_restarts_gets_503_with_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVACE_ONCE", str(tmp_path / "once"))
    with (
        Engine(parts=faulty.stuck_later, config=CONFIG, host=Lives) as engine,
        serving(engine) as live,
        httpx.Client(base_url=live.url, timeout=60) as client,
    ):
        process_of(engine).kill()
        until(lambda: engine.restarting)
        assert client.get("/ready").status_code == 503
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "restarting")
        reply = client.post(SPEECH, json={"input": "Hello."})
        assert reply.status_code == 503 and int(reply.headers["retry-after"]) >= 1
        assert reply.json()["error"]["code"] == "restarting"
        with socket_to(live.url, 5) as socket:
            (end,) = terminal(socket)
            assert end["error"]["code"] == "restarting"


@pytest.mark.parametrize("call", faulty.CALLS)
@pytest.mark.parametrize("fault", ["raise", "memory"])
def test_a_fault_inside_is_its_own_clients_alone(
    client: httpx.Client, engine: Engine, fault: str, call: str
) -> None:
    until(lambda: engine.ready)
    body = {"input": ENDLESS["input"], "seed": SEEDS[fault, call], "stream_format": "sse"}
    status = {"raise": 500, "memory": 503}[fault]
    with client.stream("POST", SPEECH, json=body) as reply:
        ends = [e["type"] for e in events(reply.iter_lines()) if e["type"] != "speech.audio.delta"]
    begun = call in ("frame", "voice")
    assert (reply.status_code, ends) == ((200, ["speech.audio.error"]) if begun else (status, []))
    assert client.get("/ready").status_code == 200
    assert client.get("/health").json()["status"] == "ok"


def test_an_encoder_that_fails_ends_its_own_response(
    live: Live, client: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: engine.ready)
    from vivace.audio.encode import Pipeline

    encode, left = Pipeline.encode, iter([1, 1])

    def fail_at_the_third(self: Pipeline, pcm: Any) -> bytes:
        if self is not healthy and next(left, None) is None:
            raise MemoryError("scripted")
        return encode(self, pcm)

    healthy = None
    monkeypatch.setattr(Pipeline, "encode", fail_at_the_third)
    with client.stream("POST", SPEECH, json={**ENDLESS, "stream_format": "sse"}) as reply:
        ends = [e["type"] for e in events(reply.iter_lines()) if e["type"] != "speech.audio.delta"]
    assert ends == ["speech.audio.error"]
    with socket_to(live.url, 1_000_000) as socket:
        (end,) = terminal(socket)
        assert end["error"]["type"] == "server_error"
    monkeypatch.undo()
    until(lambda: engine.stats().slots_free == 8)
    reply = client.post(SPEECH, json={"input": "Hello.", "seed": 5, "response_format": "pcm"})
    assert len(reply.content) == 5 * 3840


SERVE = """
import sys, vivace.cli
from dataclasses import replace
from tests.remote import faulty
import vivace.engine

class Engine(vivace.engine.Engine):
    def __init__(self, model, *, config, **kwargs):
        super().__init__(parts=faulty.faulty, config=replace(config, costs_dir=None), **kwargs)

if __name__ == "__main__":
    vivace.engine.Engine = Engine
    sys.argv = ["vivace", "serve", "--port", "0", *sys.argv[1:]]
    vivace.cli.app()
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`vivace serve` in a process of its own; its address is its first word."""
    script = tmp_path / "served.py"
    script.write_text(SERVE)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def address(program: subprocess.Popen[str]) -> str:
    assert program.stdout
    return program.stdout.readline().split()[-1]


def test_a_lost_device_ends_the_server_with_its_status(program: subprocess.Popen[str]) -> None:
    url = address(program)
    body = {"input": "Hello.", "seed": SEEDS["lost", "prefill"]}
    reply = httpx.post(url + SPEECH, json=body, timeout=60)
    assert reply.status_code == 500
    _, told = program.communicate(timeout=60)
    assert program.returncode == 4
    assert "the engine is lost: the card has failed" in told


def test_an_engine_that_ends_too_often_ends_the_server(program: subprocess.Popen[str]) -> None:
    url = address(program)
    body = {"input": "Hello.", "seed": SEEDS["kill", "prefill"]}
    for _ in range(4):
        until(lambda: _ready(url))
        assert httpx.post(url + SPEECH, json=body, timeout=60).status_code == 500
    program.communicate(timeout=60)
    assert program.returncode == 3


def _ready(url: str) -> bool:
    return httpx.get(url + "/ready", timeout=60).status_code == 200


def test_sigterm_ends_a_server_whose_engine_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """The streams wait for sound that never comes; the grace is what ends them."""
    monkeypatch.setattr(near, "STOP_S", 1)
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(parts=faulty.faulty, config=CONFIG, host=Lives))
        live = stack.enter_context(serving(engine, ServerConfig(drain_s=1)))
        client = stack.enter_context(httpx.Client(base_url=live.url, timeout=60))
        raw = stack.enter_context(
            client.stream("POST", SPEECH, json={**ENDLESS, "response_format": "pcm"})
        )
        pieces = raw.iter_raw()
        next(pieces)
        socket = stack.enter_context(socket_to(live.url, 1_000_000))
        while json.loads(socket.recv())["type"] != "speech.audio.delta":
            pass
        psutil.Process(process_of(engine)._worker.pid).send_signal(signal.SIGSTOP)
        live.server.should_exit = True
        live.join()
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)
