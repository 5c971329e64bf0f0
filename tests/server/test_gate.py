"""What stands before every route: keys, origins, and requests that are none."""

import asyncio
import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.fakes import FakeEngine, Play
from tests.server.live import connect, serving
from tests.server.test_story import Log, counted, log  # noqa: F401
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as ws

from vivace.config import ServerConfig
from vivace.errors import Forbidden
from vivace.server import gate
from vivace.server.gate import MOST_HEAD, MOST_TARGET, Gate, check_origin
from vivace.server.keys import Keys
from vivace.server.live.wire import DRAIN
from vivace.server.metrics import Metrics
from vivace.server.serve import bind, warn_of_strangers

SPEECH = "/v1/audio/speech"
AMY, BOB = "amy-key-0123456789", "bob-key-9876543210"
BODY = {"input": "Hello.", "response_format": "pcm"}
SHOWN = {"authorization": f"Bearer {AMY}"}
SOCKETS = [
    "/v1/audio/speech/stream",
    "/v1/audio/speech/ws",
    "/tts/websocket",
    "/v1/text-to-speech/ryan/stream-input",
    "/v1/text-to-speech/ryan/multi-stream-input",
]


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def url(engine: FakeEngine) -> Iterator[str]:
    keys = {"amy": AMY, "bob": BOB}
    with serving(engine, ServerConfig(api_keys=keys, key_sessions=1, key_per_minute=500)) as live:
        yield live.url


@pytest.fixture
def keyed(url: str, engine: FakeEngine) -> Iterator[httpx.Client]:
    engine.reset()
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_need_no_key(keyed: httpx.Client, path: str) -> None:
    assert keyed.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/", "/metrics", "/v1/models", "/page/app.js", "/nowhere"])
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer x"}, {"xi-api-key": AMY[:-1]}])
def test_everything_else_does(keyed: httpx.Client, path: str, headers: dict[str, str]) -> None:
    reply = keyed.get(path, headers=headers)
    assert reply.status_code == 401
    assert reply.json()["error"]["type"] == "authentication_error"
    assert reply.headers["www-authenticate"] == 'Bearer realm="vivace"'
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize(
    "headers",
    [SHOWN, {"xi-api-key": AMY}, {"x-api-key": AMY}],
    ids=["openai", "elevenlabs", "cartesia"],
)
def test_a_key_opens_in_every_vendors_way(
    keyed: httpx.Client,
    headers: dict[str, str],
    log: Log,  # noqa: F811
) -> None:
    reply = keyed.post(SPEECH, json=BODY, headers={**headers, "x-request-id": "opened"})
    assert reply.status_code == 200
    assert log.one(request_id="opened")["key"] == "amy"


def test_a_browser_asks_its_user_for_the_page(keyed: httpx.Client) -> None:
    page = {"accept": "text/html,*/*"}
    assert keyed.get("/", headers=page).headers["www-authenticate"] == 'Basic realm="vivace"'
    reply = keyed.get("/", headers=page, auth=("", AMY))
    assert (reply.status_code, "<html" in reply.text) == (200, True)


def test_a_key_is_in_no_log_and_no_metric(keyed: httpx.Client, log: Log) -> None:  # noqa: F811
    keyed.post(SPEECH, json=BODY, headers={**SHOWN, "x-request-id": "quiet"})
    log.one(request_id="quiet")
    keyed.headers.update(SHOWN)
    assert counted(keyed, "vivace_requests_total", key="amy") > 0
    assert AMY not in keyed.get("/metrics").text
    assert AMY not in repr(log.lines)


def test_refusals_for_a_key_are_counted(keyed: httpx.Client) -> None:
    keyed.get("/v1/models")
    keyed.get("/v1/models", headers={"x-api-key": "x"})
    keyed.headers.update(SHOWN)
    for why in ("missing", "unknown"):
        assert counted(keyed, "vivace_key_refusals_total", key="-", why=why) >= 1


def test_one_key_cannot_take_the_places_of_another(keyed: httpx.Client, engine: FakeEngine) -> None:
    engine.play = Play(chunks=2, open_gates=1)
    with keyed.stream("POST", SPEECH, json=BODY, headers=SHOWN) as first:
        assert first.status_code == 200
        session = engine.next_session()
        second = keyed.post(SPEECH, json=BODY, headers=SHOWN)
        assert second.status_code == 429
        assert second.headers["retry-after"] == "1"
        assert second.json()["error"]["code"] == "key_busy"
        engine.play = Play()
        other = keyed.post(SPEECH, json=BODY, headers={"x-api-key": BOB})
        assert other.status_code == 200
        session.allow(1)
        first.read()
    assert keyed.post(SPEECH, json=BODY, headers=SHOWN).status_code == 200


@pytest.mark.parametrize("body", [{"input": "Hi.", "voice": "nobody"}, {"input": ""}])
def test_a_refused_request_takes_no_place(keyed: httpx.Client, body: dict[str, str]) -> None:
    for _ in range(3):
        assert keyed.post(SPEECH, json=body, headers=SHOWN).status_code in (400, 404)
    assert keyed.post(SPEECH, json=BODY, headers=SHOWN).status_code == 200


def test_a_place_comes_back_from_who_leaves(keyed: httpx.Client, engine: FakeEngine) -> None:
    engine.play = Play(chunks=2, open_gates=1)
    sock = connect(keyed, BODY, headers=f"X-Api-Key: {AMY}\r\n")
    session = engine.next_session()
    sock.close()
    assert session.cancelled.wait(timeout=30)
    engine.play = Play()
    until(lambda: keyed.post(SPEECH, json=BODY, headers=SHOWN).status_code == 200)


def until(true: object) -> None:
    assert callable(true)
    for _ in range(1000):
        if true():
            return
    raise AssertionError("it never came true")


def test_a_minute_has_so_many(engine: FakeEngine) -> None:
    config = ServerConfig(api_keys={"amy": AMY}, key_per_minute=1)
    with serving(engine, config) as live, httpx.Client(base_url=live.url) as client:
        assert client.post(SPEECH, json=BODY, headers=SHOWN).status_code == 200
        reply = client.post(SPEECH, json=BODY, headers=SHOWN)
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "key_often")
        assert 1 <= int(reply.headers["retry-after"]) <= 60


@pytest.mark.parametrize("path", SOCKETS[:3])
def test_a_socket_without_a_key_is_not_opened(url: str, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused, ws(url.replace("http", "ws") + path):
        pass
    assert refused.value.response.status_code == 401


@pytest.mark.parametrize("path", SOCKETS)
@pytest.mark.parametrize("how", ["header", "query"])
def test_a_socket_opens_with_a_key(url: str, path: str, how: str) -> None:
    where = url.replace("http", "ws") + path
    if how == "query":
        where += f"?api_key={AMY}"
    headers = {"xi-api-key": AMY} if how == "header" else {}
    with ws(where, additional_headers=headers):
        pass


@pytest.mark.parametrize("path", SOCKETS[3:])
@pytest.mark.parametrize("key", [AMY, None, 7, "x"])
def test_the_first_message_may_hold_the_key(url: str, path: str, key: object) -> None:
    first = {"text": " ", "context_id": "a"} | ({} if key is None else {"xi_api_key": key})
    with ws(url.replace("http", "ws") + path) as sock:
        sock.send(json.dumps(first))
        if key == AMY:
            sock.send(json.dumps({"text": "Hello. ", "context_id": "a"}))
            if path.endswith("multi-stream-input"):
                sock.send(json.dumps({"context_id": "a", "close_context": True}))
            else:
                sock.send(json.dumps({"text": ""}))
            assert json.loads(sock.recv(timeout=30))["audio"]
            return
        with pytest.raises(ConnectionClosed):
            sock.recv(timeout=30)
        assert sock.close_code == 1008


def knock(path: str, *messages: Message) -> tuple[list[Message], list[Message]]:
    """What the app behind the gate hears of a socket, and what is sent; the last comes late."""
    heard: list[Message] = []
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while not heard or heard[-1]["type"] != "websocket.disconnect":
            heard.append(await receive())

    async def run() -> None:
        waiting: asyncio.Queue[Message] = asyncio.Queue()
        for message in messages[:-1]:
            waiting.put_nowait(message)
        asyncio.get_running_loop().call_later(0.2, waiting.put_nowait, messages[-1])

        async def send(message: Message) -> None:
            sent.append(message)

        door = Gate(app, Keys({"amy": AMY}), (), Metrics())
        scope = {"type": "websocket", "path": path, "query_string": b"", "headers": [], "state": {}}
        await door(scope, waiting.get, send)

    asyncio.run(run())
    return heard, sent


CONNECT: Message = {"type": "websocket.connect"}
LEFT: Message = {"type": "websocket.disconnect", "code": 1001}


@pytest.mark.parametrize("path", SOCKETS[3:])
@pytest.mark.parametrize("meanwhile", [[], [{"type": DRAIN}]])
def test_a_socket_that_waits_with_its_key_is_closed(
    monkeypatch: pytest.MonkeyPatch, path: str, meanwhile: list[Message]
) -> None:
    monkeypatch.setattr(gate, "KEY_S", 0.01)
    heard, sent = knock(path, CONNECT, *meanwhile, LEFT)
    assert heard == [CONNECT, *meanwhile, {"type": "websocket.disconnect", "code": 1008}]
    assert [(m["type"], m["code"]) for m in sent] == [("websocket.close", 1008)]


@pytest.mark.parametrize("path", SOCKETS[3:])
def test_a_socket_that_has_shown_its_key_may_be_quiet(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(gate, "KEY_S", 0.01)
    first = {"type": "websocket.receive", "text": json.dumps({"text": " ", "xi_api_key": AMY})}
    assert knock(path, CONNECT, first, LEFT) == ([CONNECT, first, LEFT], [])


def test_a_socket_whose_key_is_used_up_says_so(url: str, engine: FakeEngine) -> None:
    engine.reset()
    engine.play = Play(chunks=2, open_gates=1)
    where = url.replace("http", "ws") + f"{SOCKETS[0]}?api_key={BOB}"
    with ws(where) as one, ws(where) as two:
        for sock in (one, two):
            sock.recv(timeout=30)  # session.created
            sock.send('{"type": "input_text.append", "text": "Hello."}')
            if sock is one:
                engine.next_session()
        assert json.loads(two.recv(timeout=30))["error"]["code"] == "key_busy"


def test_text_that_is_taken_back_keeps_its_place(url: str, engine: FakeEngine) -> None:
    engine.reset()
    engine.play = Play(open_gates=0)
    with ws(url.replace("http", "ws") + f"{SOCKETS[0]}?api_key={BOB}") as sock:
        for kind in ("append", "clear", "append", "clear", "append", "end"):
            text = {"text": "Hello."} if kind == "append" else {}
            sock.send(json.dumps({"type": f"input_text.{kind}", **text}))
        sock.send('{"type": "response.cancel"}')
        kinds = [json.loads(sock.recv(timeout=30))["type"] for _ in range(5)]
    assert kinds == ["session.created", "response.created"] + ["input_text.cleared"] * 2 + [
        "response.cancelled"
    ]


# Pages of other sites.


def scope(origin: str | None, host: str = "tts.example", to: str = "10.0.0.1") -> dict[str, object]:
    headers = [(b"host", host.encode())]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    return {"type": "http", "method": "POST", "headers": headers, "server": (to, 8000)}


@pytest.mark.parametrize(
    ("asked", "keyed", "fine"),
    [
        (scope(None), False, True),
        (scope("http://tts.example"), False, True),
        (scope("https://TTS.example"), False, True),
        (scope("http://evil.example"), False, False),
        (scope("http://evil.example"), True, False),
        (scope("http://tts.example.evil"), True, False),
        (scope("null"), True, False),
        (scope(""), True, False),
        (scope("https://app.example"), False, True),
        # By the loopback interface: a name may have been pointed there.
        (scope("http://localhost:8000", "localhost:8000", "127.0.0.1"), False, True),
        (scope("http://127.0.0.1:8000", "127.0.0.1:8000", "127.0.0.1"), False, True),
        (scope("http://[::1]:8000", "[::1]:8000", "::1"), False, True),
        (scope("http://evil.example:8000", "evil.example:8000", "127.0.0.1"), False, False),
        (scope("http://evil.example:8000", "evil.example:8000", "::1"), False, False),
        (scope("http://evil.example:8000", "evil.example:8000", "::ffff:127.0.0.1"), False, False),
        (scope("http://evil.example:8000", "evil.example:8000", "127.0.0.1"), True, True),
        (scope("http://localhost:9000", "localhost:8000", "127.0.0.1"), False, False),
    ],
)
def test_whose_pages_may_speak(asked: dict[str, object], keyed: bool, fine: bool) -> None:
    allowed = ("https://app.example",)
    if fine:
        check_origin(asked, allowed, keyed=keyed)
    else:
        with pytest.raises(Forbidden):
            check_origin(asked, allowed, keyed=keyed)
    check_origin(asked, ("*",), keyed=keyed)
    check_origin({**asked, "method": "GET"}, (), keyed=keyed)


@pytest.mark.parametrize(
    ("host", "config", "warned"),
    [
        ("0.0.0.0", ServerConfig(), True),
        ("0.0.0.0", ServerConfig(api_keys={"amy": AMY}), False),
        ("127.0.0.1", ServerConfig(), False),
    ],
)
def test_a_port_that_is_open_to_all_is_warned_of(
    caplog: pytest.LogCaptureFixture, host: str, config: ServerConfig, warned: bool
) -> None:
    with bind(host, 0) as sock:
        warn_of_strangers(sock, config)
    assert ("there are no API keys" in caplog.text) == warned


def test_another_sites_page_cannot_speak_here(client: httpx.Client) -> None:
    reply = client.post(SPEECH, json=BODY, headers={"origin": "http://evil.example"})
    assert reply.status_code == 403
    assert reply.json()["error"]["code"] == "origin_not_allowed"
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("path", SOCKETS)
def test_nor_open_a_socket(client: httpx.Client, path: str) -> None:
    where = str(client.base_url).replace("http", "ws", 1) + path
    with (
        pytest.raises(InvalidStatus) as refused,
        ws(where, origin="http://evil.example"),  # type: ignore[arg-type]
    ):
        pass
    assert refused.value.response.status_code == 403
    host = urlsplit(where).netloc
    with ws(where, origin=f"http://{host}"):  # type: ignore[arg-type]
        pass


def test_a_site_can_be_let_in() -> None:
    site = {"origin": "https://app.example"}
    config = ServerConfig(cors_origins=("https://app.example",), api_keys={"amy": AMY})
    with serving(FakeEngine(), config) as live, httpx.Client(base_url=live.url) as client:
        asked = {"access-control-request-method": "POST"}
        asked |= {"access-control-request-headers": "authorization,content-type"}
        before = client.options(SPEECH, headers=site | asked)
        assert before.status_code == 200
        assert before.headers["access-control-allow-origin"] == "https://app.example"
        reply = client.post(SPEECH, json=BODY, headers=site | SHOWN)
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
        for method in ("GET", "PATCH", "DELETE"):
            asked["access-control-request-method"] = method
            assert client.options("/v1/audio/voices/x", headers=site | asked).status_code == 200
        other = client.options(SPEECH, headers={"origin": "https://evil.example", **asked})
        assert "access-control-allow-origin" not in other.headers


# What is no request, or not one that everybody reads alike.


def raw(client: httpx.Client, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """What a bare socket gets for these bytes: status, headers, body; it waits for the end."""
    where = urlsplit(str(client.base_url))
    with socket.create_connection((where.hostname, where.port), timeout=30) as sock:
        sock.sendall(data)
        reply = b""
        while more := sock.recv(65536):
            reply += more
    head, _, body = reply.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    pairs = (line.partition(": ") for line in lines)
    return int(first.split()[1]), {name.lower(): value for name, _, value in pairs}, body


def test_two_lengths_are_refused_and_nothing_after_them_is_read(client: httpx.Client) -> None:
    smuggled = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    data = (
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled
    )
    status, headers, body = raw(client, data)
    assert (status, headers["connection"]) == (400, "close")
    assert b"Transfer-Encoding and Content-Length" in body
    assert body.count(b"HTTP/1.1") == 0


@pytest.mark.parametrize("size", [MOST_TARGET, 70_000])
def test_a_long_address_is_not_echoed(client: httpx.Client, size: int) -> None:
    data = b"GET /%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % (b"a" * size)
    status, _, body = raw(client, data)
    assert status in (400, 414)
    assert len(body) < 1_000


def test_an_address_in_a_404_is_cut(client: httpx.Client) -> None:
    reply = client.get("/" + "a" * 5_000)
    assert reply.status_code == 404
    assert len(reply.content) < 500


def test_long_headers_are_refused(client: httpx.Client) -> None:
    reply = client.get("/health", headers={"x-long": "a" * MOST_HEAD})
    assert reply.status_code == 431


def test_an_address_with_its_host_is_the_same_one(client: httpx.Client) -> None:
    for target in (b"http://any.example/health", b"https://any.example/health?x=1"):
        data = b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % target
        status, _, body = raw(client, data)
        assert status == 200, body
    data = b"GET http://any.example HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert raw(client, data)[0] == 200


def test_who_sends_half_a_head_is_hung_up_on() -> None:
    with serving(FakeEngine(), ServerConfig(body_s=0.2)) as live:
        where = urlsplit(live.url)
        for begun in (b"", b"GET /health HTTP/1.1\r\nHo"):
            with socket.create_connection((where.hostname, where.port), timeout=30) as sock:
                sock.sendall(begun)
                assert sock.recv(1) == b""
        with httpx.Client(base_url=live.url) as client:  # and the next ones on a connection
            assert client.get("/health").status_code == 200
            assert client.get("/health").status_code == 200


def test_half_a_head_after_a_whole_one_is_hung_up_on() -> None:
    with serving(FakeEngine(), ServerConfig(body_s=0.2)) as live:
        where = urlsplit(live.url)
        with socket.create_connection((where.hostname, where.port), timeout=30) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            reply = b""
            while b"heartbeat_age_s" not in reply:
                reply += sock.recv(65536)
            sock.sendall(b"GET /health HT")
            while more := sock.recv(65536):
                reply += more
            assert reply.count(b"HTTP/1.1 200") == 1


def test_slow_speech_is_not_hung_up_on(engine: FakeEngine) -> None:
    engine.reset()
    engine.play = Play(chunks=2, open_gates=1)
    with (
        serving(engine, ServerConfig(body_s=0.1)) as live,
        httpx.stream("POST", f"{live.url}{SPEECH}", json=BODY, timeout=30) as reply,
    ):
        pieces = reply.iter_bytes()
        heard = len(next(pieces))
        session = engine.next_session()
        where = urlsplit(live.url)
        with socket.create_connection((where.hostname, where.port), timeout=30) as idle:
            assert idle.recv(1) == b""  # the time for a head has passed
        session.allow(1)
        assert heard + sum(map(len, pieces)) == 2 * 3840


def test_every_answer_is_what_it_says(client: httpx.Client) -> None:
    for path in ("/health", "/nowhere", "/v1/models", "/metrics"):
        assert client.get(path).headers["x-content-type-options"] == "nosniff"
