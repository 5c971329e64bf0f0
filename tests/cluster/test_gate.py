"""The gate before replicas that tests have in their hands; no Ray."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import pytest
from tests.cluster.test_choose import report
from tests.fakes import FakeEngine, Play
from tests.server.live import serving, serving_app
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection, serve

from vivace.cluster.choose import Report
from vivace.cluster.gate import Gate, wish_of
from vivace.cluster.options import Options
from vivace.errors import Overloaded, Unavailable

SPEECH, STREAM = "/v1/audio/speech", "/v1/audio/speech/stream"
BODY = {"input": "Hello.", "response_format": "pcm", "voice": "ryan"}
FRAME_BYTES = 3840


class Yard:
    """A gate, its replicas and a client."""

    def __init__(self, reports: list[Report]) -> None:
        self.reports = reports

        async def read() -> list[Report]:
            return self.reports

        self.gate = Gate(Options(lean=2), read)


@contextlib.contextmanager
def gated(yard: Yard) -> Iterator[httpx.Client]:
    config = Options().server
    with (
        serving_app(yard.gate.app, config, lifespan="on") as live,
        httpx.Client(base_url=live.url, timeout=30) as client,
    ):
        yield client


@pytest.fixture
def engines() -> list[FakeEngine]:
    return [FakeEngine(), FakeEngine()]


@pytest.fixture
def yard(engines: list[FakeEngine]) -> Iterator[Yard]:
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(serving(engine)).url for engine in engines]
        yield Yard([report(url, pid=pid) for pid, url in enumerate(urls)])


@pytest.fixture
def client(yard: Yard) -> Iterator[httpx.Client]:
    with gated(yard) as client:
        yield client


def whose(reply: httpx.Response) -> int:
    return int(reply.headers["x-vivace-replica"])


def test_a_reply_comes_through_as_it_was(client: httpx.Client) -> None:
    reply = client.post(SPEECH, json=BODY, headers={"x-request-id": "mine"})
    assert (reply.status_code, len(reply.content)) == (200, 3 * FRAME_BYTES)
    assert reply.headers["content-type"] == "audio/pcm"
    assert reply.headers.get_list("x-request-id") == ["mine"]
    assert len(reply.headers.get_list("date")) == 1
    wrong = client.post(SPEECH, json={**BODY, "voice": "nobody"})
    assert wrong.status_code == 404 and wrong.json()["error"]["param"] == "voice"
    assert client.get("/v1/audio/voices").json()["voices"]
    assert client.post(SPEECH, content=b"[").status_code == 400
    assert client.get("/nowhere").status_code == 404


def test_sound_comes_through_while_it_is_made(
    client: httpx.Client, engines: list[FakeEngine]
) -> None:
    for engine in engines:
        engine.play = Play(chunks=2, open_gates=1)
    with client.stream("POST", SPEECH, json=BODY) as reply:
        pieces = reply.iter_raw()
        heard = next(pieces)
        assert 0 < len(heard) <= FRAME_BYTES
        engines[whose(reply)].next_session().allow(1)
        assert len(heard + b"".join(pieces)) == 2 * FRAME_BYTES


def test_a_replica_that_breaks_off_within_an_event_ends_with_one_that_can_be_read() -> None:
    """Its answer stops in the middle of a line of the stream."""
    event = 'data: {"type": "speech.audio.delta", "audio": "AAAA"}\n\n'
    head = (
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )

    def answer(listener: socket.socket) -> None:
        with listener.accept()[0] as peer:
            peer.recv(1 << 16)
            for part in (head, *(f"{len(e):x}\r\n{e}\r\n" for e in (event, event[:30]))):
                peer.sendall(part.encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=[listener], daemon=True)
        thread.start()
        yard = Yard([report(f"http://127.0.0.1:{listener.getsockname()[1]}")])
        with gated(yard) as client:
            body = {**BODY, "stream_format": "sse"}
            events = client.post(SPEECH, json=body).text.split("\n\n")
        thread.join()
    said = [json.loads(event.partition("data: ")[2])["type"] for event in events if event]
    assert said == ["speech.audio.delta", "speech.audio.error"]


def test_a_client_that_leaves_frees_its_session(
    client: httpx.Client, engines: list[FakeEngine]
) -> None:
    for engine in engines:
        engine.play = Play(chunks=3, open_gates=1)
    with client.stream("POST", SPEECH, json=BODY) as reply:
        next(reply.iter_raw())
        session = engines[whose(reply)].next_session()
    assert session.cancelled.wait(timeout=30)


def test_a_voice_stays_where_it_is_known(client: httpx.Client, yard: Yard) -> None:
    known = {whose(client.post(SPEECH, json={**BODY, "voice": "eric"})) for _ in range(6)}
    assert len(known) == 1
    other = {1 - known.pop()}
    yard.reports = [
        replace(r, count=2, spoken={"serena": 1} if {r.pid} == other else {}) for r in yard.reports
    ]
    shown = lambda: client.get("/cluster").json()["replicas"]  # noqa: E731
    while not any(replica["spoken"] for replica in shown()):
        pass
    assert {whose(client.post(SPEECH, json={**BODY, "voice": "serena"})) for _ in range(6)} == other


def test_one_that_is_full_sends_it_to_the_next_and_the_last_word_counts(
    client: httpx.Client, engines: list[FakeEngine]
) -> None:
    engines[0].play = Play(refusal=Overloaded("full", retry_after_s=7.0))
    assert {whose(client.post(SPEECH, json=BODY)) for _ in range(4)} == {1}
    engines[1].play = Play(refusal=Unavailable("restarting", retry_after_s=3.0))
    reply = client.post(SPEECH, json=BODY)
    assert reply.status_code in (429, 503) and reply.headers["retry-after"] in "73"


def test_one_that_is_gone_sends_it_to_the_next(yard: Yard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    yard.reports = [report(url, pid=9, spoken={"ryan": 1}), yard.reports[0]]
    with gated(yard) as client:
        assert [whose(client.post(SPEECH, json=BODY)) for _ in range(3)] == [0, 0, 0]
        assert not yard.gate.crowd.replicas[url].reachable


def test_without_replicas_it_says_when_to_come_back() -> None:
    with gated(Yard([])) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 503
        reply = client.post(SPEECH, json=BODY)
        assert reply.status_code == 503 and reply.headers["retry-after"] == "2"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def dying(kind: bytes, said: bytes) -> Iterator[str]:
    """A replica that says so much and is gone."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once() -> None:
            sock, _ = server.accept()
            with sock:
                while b"\r\n\r\n" not in sock.recv(65536):
                    pass
                if kind:
                    sock.sendall(HEAD % kind + b"%x\r\n%s\r\n" % (len(said), said))

        thread = threading.Thread(target=once)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_one_that_dies_before_a_word_sends_it_to_the_next(yard: Yard) -> None:
    with dying(b"", b"") as url:
        yard.reports = [report(url, pid=9, spoken={"ryan": 1}), yard.reports[0]]
        with gated(yard) as client:
            assert whose(client.post(SPEECH, json=BODY)) == 0


def test_one_that_dies_breaks_its_body_off(yard: Yard) -> None:
    with dying(b"audio/pcm", b"ab") as url:
        yard.reports = [report(url)]
        with (
            gated(yard) as client,
            pytest.raises(httpx.RemoteProtocolError),
            client.stream("POST", SPEECH, json=BODY) as reply,
        ):
            heard = b""
            for piece in reply.iter_raw():
                heard += piece
        assert heard == b"ab"


def test_one_that_dies_ends_its_events_with_one_that_says_so(yard: Yard) -> None:
    with dying(b"text/event-stream; charset=utf-8", b'data: {"type": "x"}\n\n') as url:
        yard.reports = [report(url)]
        with gated(yard) as client:
            reply = client.post(SPEECH, json={**BODY, "stream_format": "sse"})
    data = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in data] == ["x", "speech.audio.error"]


def test_a_socket_comes_through_both_ways(client: httpx.Client, yard: Yard) -> None:
    with connect(_ws(client), max_size=None) as sock:
        assert json.loads(sock.recv())["type"] == "session.created"
        sock.send(json.dumps({"type": "input_text.append", "text": "Hello."}))
        sock.send(json.dumps({"type": "input_text.end"}))
        heard = []
        while (message := sock.recv()) is not None:
            heard.append(message if isinstance(message, bytes) else json.loads(message)["type"])
            if heard[-1] == "speech.audio.done":
                break
        assert sum(len(m) - 4 for m in heard if isinstance(m, bytes)) == 3 * FRAME_BYTES
        assert sum(r.load for r in yard.gate.crowd.replicas.values()) == 1
    until(lambda: not any(r.load for r in yard.gate.crowd.replicas.values()))


def until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not true():
        pause.wait(0.01)


@pytest.mark.parametrize("clean", [True, False])
def test_a_sockets_end_comes_through_and_a_replicas_death_is_told(clean: bool) -> None:
    def end(there: ServerConnection) -> None:
        there.send("hello")
        there.recv()
        if clean:
            there.close(1008, "too much")
        else:
            there.socket.shutdown(socket.SHUT_RDWR)

    with serve(end, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yard = Yard([report(f"http://127.0.0.1:{server.socket.getsockname()[1]}")])
        with gated(yard) as client, connect(_ws(client)) as sock:
            heard = [sock.recv()]
            sock.send("go")
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    heard.append(sock.recv())
        server.shutdown()
        thread.join()
    assert closed.value.rcvd is not None
    if clean:
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "too much")
        assert heard == ["hello"]
    else:
        assert closed.value.rcvd.code == 1011
        assert json.loads(heard[1])["error"]["type"] == "server_error" and len(heard) == 2


def _ws(client: httpx.Client) -> str:
    return f"ws://{urlsplit(str(client.base_url)).netloc}{STREAM}"


@pytest.mark.parametrize(
    ("path", "body", "voice", "model"),
    [
        (SPEECH, {"voice": "ryan", "model": "tts-1"}, "ryan", "tts-1"),
        (SPEECH, {"voice": {"id": "ryan"}}, "ryan", None),
        ("/v1/text-to-speech/vivian/stream", {"text": "x", "model_id": "m"}, "vivian", None),
        ("/tts/bytes", {"voice": {"mode": "id", "id": "ryan"}}, "ryan", None),
        (SPEECH, {"voice": 7, "model": []}, None, None),
    ],
)
def test_wishes_are_read_from_every_dialect(
    path: str, body: dict[str, object], voice: str | None, model: str | None
) -> None:
    wish = wish_of(path, json.dumps(body).encode())
    assert (wish.voice, wish.model) == (voice, model)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"\xff", b'{"a":' * 10_000])
def test_a_body_that_is_none_wishes_nothing(body: bytes) -> None:
    wish = wish_of(SPEECH, body)
    assert (wish.voice, wish.model) == (None, None)


def test_metrics_of_all_are_one_page(client: httpx.Client, yard: Yard) -> None:
    client.post(SPEECH, json=BODY)
    page = client.get("/metrics").text
    names = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)), "each family once"
    assert all('replica="' in line for line in page.splitlines() if line[:1] not in ("#", ""))
    told = {w for line in page.splitlines() for w in line.split('replica="')[1:]}
    hosts = {urlsplit(r.url).netloc for r in yard.reports}
    assert {one.partition('"')[0] for one in told} == {*hosts, "gate"}


KEY = "a-key-of-sixteen-characters"


def test_keys_and_pages_of_other_sites_are_checked_at_the_gate(yard: Yard) -> None:
    config = replace(Options().server, api_keys={"amy": KEY})
    yard.gate = Gate(Options(server=config), yard.gate._read)
    shown = {"authorization": f"Bearer {KEY}"}
    with gated(yard) as client:
        assert client.get("/cluster").status_code == 401
        assert client.get("/ready").status_code == 200
        assert client.post(SPEECH, json=BODY).status_code == 401
        assert client.get("/cluster", headers=shown).status_code == 200
        assert client.post(SPEECH, json=BODY, headers=shown).status_code == 200
        evil = {**shown, "origin": "https://evil.example"}
        assert client.post(SPEECH, json=BODY, headers=evil).status_code == 403
        own = {**shown, "origin": str(client.base_url).rstrip("/")}
        assert client.post(SPEECH, json=BODY, headers=own).status_code == 200
