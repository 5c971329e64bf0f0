"""The server before the real engine on a runner that counts: what needs an exact hand on it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse

import httpx
import pytest
from tests.remote.hosts import HOSTS
from tests.runners import SPEC, Bytes, FakeRunner
from tests.server.live import connect, serving

from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.errors import Overloaded
from vivace.host import MakeHost
from vivace.parts import Parts

SPEECH = "/v1/audio/speech"
BODY = {"input": "Hello there, how are you?", "response_format": "pcm"}
FRAME_BYTES = 3840
# Longer than what sockets hold on their way, as far as the cap on such a text lets it be.
ENDLESS = {**BODY, "input": "Hello there, how are you? " * 300, "seed": 0}


def turns(client: httpx.Client, true: Callable[[], bool]) -> None:
    """Until it is true. Each round trip gives the server's loop its turn."""
    for _ in range(20_000):
        if true():
            return
        client.get("/health")
    raise AssertionError("it never became true")


class Bench:
    """A runner whose frames wait while it is frozen, a clock that stands, a server, a client."""

    def __init__(self, host: MakeHost) -> None:
        self.host = host
        self.now_s = 0.0
        self.steps = -1
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.runner = FakeRunner(lambda seed: 20 if seed else 1_000_000)
        self.go_on.set()

        def wait(call: str, seeds: tuple[int, ...]) -> None:
            if call == "frame" and not self.go_on.is_set():
                self.reached.set()
                assert self.go_on.wait(timeout=60)

        self.runner.fault = wait

    def idle(self) -> bool:
        """Has the engine made nothing since the last time somebody asked?"""
        before, self.steps = self.steps, self.engine.stats().steps
        return before == self.steps

    @contextmanager
    def serve(self, **config: int) -> Iterator[httpx.Client]:
        parts = Parts("counted", SPEC, Bytes(), self.runner)  # type: ignore[arg-type]
        self.engine = Engine(
            parts=parts,
            config=EngineConfig(slo_ttfa_s=600.0, trim=False, **config),  # type: ignore[arg-type]
            clock=lambda: self.now_s,
            host=self.host,
        )
        with (
            self.engine,
            serving(self.engine) as live,
            httpx.Client(base_url=live.url, timeout=60) as client,
        ):
            try:
                yield client
            finally:
                self.go_on.set()


@pytest.fixture(params=HOSTS)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(HOSTS[request.param])


def test_case_66_a_frozen_engine_fails_health(bench: Bench) -> None:
    with bench.serve() as client:
        assert client.get("/health").status_code == 200
        bench.go_on.clear()
        with connect(client, BODY):
            assert bench.reached.wait(timeout=60)
            bench.now_s = 60.0
            assert client.get("/health").status_code == 503
            bench.go_on.set()
        assert len(client.post(SPEECH, json=BODY).content) == 20 * FRAME_BYTES
        assert client.get("/health").status_code == 200


def test_case_38_leaving_the_queue_frees_the_place(bench: Bench) -> None:
    with bench.serve(max_sessions=1, max_queue=1) as client:
        with connect(client, ENDLESS):  # it fills the sockets, then holds its slot
            turns(client, lambda: bench.engine.stats().active == 1)
            with connect(client, BODY):
                turns(client, lambda: bench.engine.stats().waiting == 1)
                assert client.post(SPEECH, json=BODY).status_code == 429
            turns(client, lambda: bench.engine.stats().waiting == 0)
            assert bench.engine.stats().active == 1
        turns(client, lambda: bench.engine.stats().active == 0)
        assert client.post(SPEECH, json=BODY).status_code == 200


def test_case_40_a_slow_reader_holds_back_itself_alone(bench: Bench) -> None:
    with bench.serve(max_sessions=2) as client, connect(client, ENDLESS) as slow:
        turns(client, lambda: bench.engine.stats().active == 1)
        for _ in range(50):
            assert len(client.post(SPEECH, json=BODY).content) == 20 * FRAME_BYTES
        turns(client, bench.idle)
        assert bench.engine.stats().active == 1
        reply = HTTPResponse(slow)
        reply.begin()
        heard = len(reply.read())  # with the body's clean end, or this raises
        turns(client, lambda: bench.engine.stats().active == 0)
        assert heard == max(bench.runner.made.values()) * FRAME_BYTES


def test_a_refusal_by_the_loop_is_429_with_its_time(bench: Bench) -> None:
    def refuse(call: str, seeds: tuple[int, ...]) -> None:
        raise Overloaded("no sound before then", retry_after_s=41.5)

    bench.runner.fault = refuse
    with bench.serve() as client:
        reply = client.post(SPEECH, json=BODY)
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "42")
        assert reply.json()["error"]["code"] == "overloaded"
        turns(client, lambda: bench.engine.stats().waiting == 0)
