"""The gate as several processes on one port, before replicas that tests have in their hands."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.cluster.test_choose import report
from tests.cluster.test_gate import BODY, SPEECH, STREAM, until
from tests.fakes import FakeEngine, Play
from tests.server.live import serving
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from vivace.cluster.choose import Report
from vivace.cluster.gates import Gates, bind_all, enough
from vivace.cluster.options import Options
from vivace.errors import EngineFailure, InvalidRequest
from vivace.server.serve import address_of, bind

pytestmark = pytest.mark.timeout(300)


class Two:
    """Two processes of a gate before one replica."""

    def __init__(self, reports: list[Report], options: Options) -> None:
        self.socks = bind_all("127.0.0.1", 0, 2)
        self.url, self.address = address_of(self.socks[0]), self.socks[0].getsockname()
        self.gates = Gates(options, self.socks, lambda: reports)

    def serve(self, client: Callable[[], None]) -> None:
        """Serve until the client, a thread, has done its part."""
        failed = list[BaseException]()

        def play() -> None:
            try:
                client()
            except BaseException as error:
                failed.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=play)
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self.gates.serve(thread.start)
        finally:
            if thread.ident is not None:
                thread.join()  # its last signal is for these handlers
            for number, handler in before.items():
                signal.signal(number, handler)
            for sock in self.socks:
                sock.close()
        if failed:
            raise failed[0]

    def refuses(self) -> bool:
        with socket.socket() as caller:
            return caller.connect_ex(self.address) != 0

    def pids(self) -> list[int]:
        return [one.process.pid or 0 for one in self.gates._there.values()]

    def speak(self) -> int:
        return httpx.post(self.url + SPEECH, json=BODY, timeout=60).status_code

    def counted(self) -> float:
        """Answers to orders of speech, as whoever answers has them."""
        page = httpx.get(self.url + "/metrics", timeout=60).text
        lines = (
            line for line in page.splitlines() if line.startswith("vivace_http_requests_total")
        )
        mine = [line for line in lines if 'replica="gate"' in line and 'method="POST"' in line]
        return sum(float(line.split()[-1]) for line in mine)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def two(engine: FakeEngine) -> Iterator[Two]:
    with serving(engine) as live:
        yield Two([report(live.url)], Options())


def test_one_that_is_killed_is_replaced_and_all_are_counted_by_whoever_answers(two: Two) -> None:
    def client() -> None:
        assert {two.speak() for _ in range(12)} == {200}
        until(lambda: two.counted() == 12)
        victim = two.pids()[0]
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(two.pids()) == 2 and victim not in two.pids())
        assert {two.speak() for _ in range(12)} == {200}
        until(lambda: two.counted() == 24)
        for _ in range(8):  # new connections, to one and the other
            assert two.counted() == 24
            shown = httpx.get(two.url + "/cluster", timeout=60).json()["replicas"]
            assert [replica["ready"] for replica in shown] == [True]

    two.serve(client)


def test_a_replacement_that_is_killed_before_it_is_open_is_replaced_too(two: Two) -> None:
    def client() -> None:
        for _ in range(2):
            before = two.pids()
            os.kill(before[-1], signal.SIGKILL)  # the newest is the last
            until(lambda before=before: len(two.pids()) == 2 and two.pids() != before)  # type: ignore[misc]
        until(lambda: len(two.gates._open) == 2)
        assert {two.speak() for _ in range(8)} == {200}

    two.serve(client)


def test_streams_are_finished_at_the_end_and_who_calls_then_is_refused(
    two: Two, engine: FakeEngine
) -> None:
    engine.play = Play(chunks=2, open_gates=1)

    def client() -> None:
        with httpx.stream("POST", two.url + SPEECH, json=BODY, timeout=60) as reply:
            pieces = reply.iter_raw()
            heard = next(pieces)
            os.kill(os.getpid(), signal.SIGTERM)
            until(two.refuses)
            engine.next_session().allow(1)
            assert len(heard + b"".join(pieces)) == 2 * 3840

    two.serve(client)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in two.pids())


def test_a_second_signal_does_not_wait_for_them(engine: FakeEngine) -> None:
    engine.play = Play(chunks=2, open_gates=1)
    patient = replace(Options().server, drain_s=3_600)

    def client() -> None:
        with httpx.stream("POST", two.url + SPEECH, json=BODY, timeout=60) as reply:
            pieces = reply.iter_raw()
            next(pieces)
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda: two.gates._ending)
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(httpx.TransportError):
                b"".join(pieces)

    with serving(engine) as live:
        two = Two([report(live.url)], Options(server=patient))
        two.serve(client)


def test_a_clip_in_a_message_finds_room() -> None:
    def echo(there: ServerConnection) -> None:
        there.send(str(len(there.recv())))

    size = Options().server.limits.clip_bytes
    with serve(echo, "127.0.0.1", 0, max_size=None) as replica:
        thread = threading.Thread(target=replica.serve_forever)
        thread.start()
        two = Two([report(address_of(replica.socket))], Options())

        def client() -> None:
            with connect(two.url.replace("http", "ws") + STREAM) as sock:
                sock.send("x" * size)
                assert sock.recv() == str(size)

        two.serve(client)
        replica.shutdown()
        thread.join()


def test_one_that_cannot_open_ends_all() -> None:
    two = Two([], Options(server=replace(Options().server, tls_cert=Path("missing.pem"))))
    with pytest.raises(EngineFailure):
        two.serve(lambda: None)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in two.pids())


def test_connections_are_shared_out_and_the_port_is_nobody_elses() -> None:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(sock) for sock in bind_all("127.0.0.1", 0, 3)]
        address = socks[0].getsockname()
        for _ in range(100):
            stack.enter_context(socket.create_connection(address))
        for sock in socks:
            sock.setblocking(False)
            stack.enter_context(sock.accept()[0])
        with pytest.raises(InvalidRequest):
            bind(*address)


@pytest.mark.parametrize(("cores", "count"), [(1, 1), (2, 1), (8, 2), (32, 4), (128, 4)])
def test_how_many_are_enough(monkeypatch: pytest.MonkeyPatch, cores: int, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert enough(replicas=2) == count
