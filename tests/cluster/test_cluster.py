"""`vivace cluster` with two replicas of the embedded voice: the whole of it, on this machine."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

pytestmark = pytest.mark.timeout(600)

SPEECH, STREAM = "/v1/audio/speech", "/v1/audio/speech/stream"
# As much speech as its text may become, which is far more than what sockets hold on their way.
ENDLESS: dict[str, Any] = {
    "input": "Hello there, how are you? " * 300,
    "stream_format": "sse",
    "response_format": "pcm",
    "seed": 1_000_000,
}


def until(true: Callable[[], object]) -> None:
    pause = threading.Event()
    while not true():
        pause.wait(0.05)


@contextmanager
def running(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`vivace cluster` with two replicas; the process and its address."""
    flags = ["--replicas", "2", "--gpus", "0", "--cpus", "0", "--port", "0", *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    with subprocess.Popen(
        [sys.executable, "-m", "vivace", "cluster", "--slo-ttfa-ms", "600000", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    ) as process:
        assert process.stdout
        try:
            url = next(line for line in process.stdout if "is ready on" in line).split()[-1]
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield process, url
        finally:
            process.terminate()
            process.wait(timeout=120)


@contextmanager
def client_of(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=300) as client:
        until(lambda: sum(r["ready"] for r in replicas(client)) == 2)
        yield client


@pytest.fixture(scope="module")
def speaking() -> Iterator[httpx.Client]:
    """Two that speak with the embedded voice."""
    with running("--offline") as (_, url), client_of(url) as client:
        yield client


@pytest.fixture(scope="module")
def counting() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Two that compute nothing, whose streams never end by themselves."""
    with running("--build", "tests.remote.builds:by_seed") as found:
        yield found


def replicas(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/cluster").json()["replicas"]
    return found


def events(reply: httpx.Response) -> Iterator[dict[str, Any]]:
    return (json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: "))


def test_streams_start_on_both_and_speak_alike(speaking: httpx.Client) -> None:
    body = {"input": "Hello there, how are you?", "seed": 3, "response_format": "pcm"}

    def speak(_: int) -> httpx.Response:
        return speaking.post(SPEECH, json=body)

    with ThreadPoolExecutor(6) as threads:
        replies = list(threads.map(speak, range(6)))
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.headers["x-vivace-replica"] for reply in replies}) == 2
    assert len({len(reply.content) for reply in replies}) == 1, "the same codes"
    until(lambda: all(r["spoken"] for r in replicas(speaking)))


def test_a_voice_goes_where_it_is_warm(counting: tuple[subprocess.Popen[str], str]) -> None:
    """The replicas' own counters tell."""
    with client_of(counting[1]) as client:
        for _ in range(5):
            body = {"input": "Hello.", "voice": "eric", "response_format": "pcm", "seed": 3}
            assert client.post(SPEECH, json=body).status_code == 200
        told = lambda: sorted(r["spoken"].get("eric", 0) for r in replicas(client))  # noqa: E731
        until(lambda: sum(told()) == 5)
        assert told() == [0, 5]


def test_a_killed_replica_takes_its_own_streams_alone_and_comes_back(
    counting: tuple[subprocess.Popen[str], str],
) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(client_of(counting[1]))
        streams = [
            stack.enter_context(client.stream("POST", SPEECH, json=ENDLESS)) for _ in range(4)
        ]
        sockets = [stack.enter_context(_socket(client)) for _ in range(2)]
        heard = {stream: events(stream) for stream in streams}
        assert {next(one)["type"] for one in heard.values()} == {"speech.audio.delta"}
        victim = _whose(streams[0])
        mine = [stream for stream in streams if _whose(stream) == victim]
        others = [stream for stream in streams if _whose(stream) != victim]
        assert len(mine) == len(others) == 2
        os.kill(victim, signal.SIGKILL)
        said = client.post(SPEECH, json={**ENDLESS, "seed": 3, "stream_format": "audio"})
        assert said.status_code == 200 and _whose(said) != victim
        for stream in mine:
            ends = [e["type"] for e in heard[stream] if e["type"] != "speech.audio.delta"]
            assert ends == ["speech.audio.error"]
        for stream in others:
            further = [next(heard[stream])["type"] for _ in range(400)]
            assert set(further) == {"speech.audio.delta"}
        assert sorted(map(_end, sockets)) == ["error 1011", "goes on"]
        until(lambda: sum(r["ready"] for r in replicas(client)) == 2)
        assert victim not in {r["pid"] for r in replicas(client)}


def _whose(reply: httpx.Response) -> int:
    return int(reply.headers["x-vivace-replica"])


@contextmanager
def _socket(client: httpx.Client) -> Iterator[ClientConnection]:
    """A turn that speaks for a while."""
    host = urlsplit(str(client.base_url)).netloc
    with connect(f"ws://{host}{STREAM}", max_size=None, ping_interval=None) as socket:
        for message in (
            {"type": "session.update", "encoding": "base64", "seed": ENDLESS["seed"]},
            {"type": "input_text.append", "text": ENDLESS["input"]},
            {"type": "input_text.end"},
        ):
            socket.send(json.dumps(message))
        while json.loads(socket.recv())["type"] != "speech.audio.delta":
            pass
        yield socket


def _end(socket: ClientConnection) -> str:
    """How it ends, or that its turn goes on."""
    errors = []
    try:
        for _ in range(400):
            kind = json.loads(socket.recv())["type"]
            if kind != "speech.audio.delta":
                errors.append(kind)
    except ConnectionClosed as closed:
        assert closed.rcvd is not None
        return " ".join([*errors, str(closed.rcvd.code)])
    return "goes on"


def test_sigterm_ends_it_and_its_replicas(counting: tuple[subprocess.Popen[str], str]) -> None:
    process, url = counting
    pids = [r["pid"] for r in httpx.get(url + "/cluster").json()["replicas"]]
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 0
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
