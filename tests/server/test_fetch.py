"""Clips from URLs: off unless allowed; then https, public addresses, no detours, bounded."""

import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
import trustme
from tests.fakes import FakeEngine
from tests.server.live import serving

from vivace.config import Limits, ServerConfig
from vivace.errors import TooLarge, Unprocessable
from vivace.server import clips, fetch

BODY = {"input": "Hello.", "response_format": "pcm", "x_vector_only": True}


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "192.0.2.1", "224.0.0.1", "255.255.255.255"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1"),
        "64:ff9b::a9fe:a9fe",
    ],
)
def test_36_addresses_that_are_not_public(address: str) -> None:
    assert not fetch.is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808"])
def test_addresses_that_are(address: str) -> None:
    assert fetch.is_public(address)


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Every name resolves to these; the addresses that are connected to."""
    reached: list[str] = []

    def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, 1, 6, "", (address, port)) for address in addresses]

    def create_connection(place: tuple[str, int], timeout: float) -> socket.socket:
        reached.append(place[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(fetch.socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(fetch.socket, "create_connection", create_connection)
    return reached


@pytest.mark.parametrize(
    "addresses", [("127.0.0.1",), ("169.254.169.254",), ("8.8.8.8", "127.0.0.1"), ("::1",)]
)
def test_36_a_name_of_a_private_address_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    reached = resolving(monkeypatch, *addresses)
    with pytest.raises(Unprocessable, match="could not be fetched") as caught:
        fetch.fetch("https://innocent.example/x.wav", Limits())
    assert not reached and addresses[-1] not in caught.value.message


def test_36_what_is_connected_to_is_what_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is resolved once: by the second time it may mean another address."""
    reached = resolving(monkeypatch, "8.8.8.8", "1.1.1.1")
    with pytest.raises(Unprocessable):
        fetch.fetch("https://innocent.example/x.wav", Limits())
    assert reached == ["8.8.8.8", "1.1.1.1"]


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/x.wav",
        "https://",
        "https:///x.wav",
        "https://example.com:8443/x.wav",
        "https://me:secret@example.com/x.wav",
        "https://example.com:port/x.wav",
        "https://exa mple.com/\r\nHost: x",
        "https://[::1/x.wav",
    ],
)
def test_36_urls_that_are_not_even_resolved(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("resolved")

    monkeypatch.setattr(fetch.socket, "getaddrinfo", never)
    with pytest.raises(Unprocessable):
        fetch.fetch(url, Limits())


# A server behind a public name, as far as the fetcher sees.

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]
ANSWERS: dict[str, Answer] = {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        ANSWERS[self.path](self)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[int, ssl.SSLContext]]:
    """The port of a TLS server, and a context that trusts it."""
    authority = trustme.CA()
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("clips.example").configure_cert(ours)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = ours.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    theirs = ssl.create_default_context()
    authority.configure_trust(theirs)
    yield server.server_address[1], theirs
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def get(place: tuple[int, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
    """Fetch a path of that server; only its address is taken for a public one."""
    port, context = place
    monkeypatch.setattr(fetch, "PORT", port)
    monkeypatch.setattr(fetch, "public_addresses", lambda host: ["127.0.0.1"])

    def run(path: str, limits: Limits = Limits(), host: str = "clips.example") -> bytes:  # noqa: B008
        return fetch.fetch(f"https://{host}{path}", limits, context)

    return run


def body(data: bytes, **headers: str) -> Answer:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        for name, value in {"content-length": str(len(data)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def test_a_file_behind_a_public_name(get: Callable[..., bytes]) -> None:
    ANSWERS["/x.wav?a=1"] = body(b"RIFF" * 100_000)
    assert get("/x.wav?a=1") == b"RIFF" * 100_000


def test_the_name_must_be_that_of_the_certificate(get: Callable[..., bytes]) -> None:
    ANSWERS["/x.wav"] = body(b"RIFF")
    with pytest.raises(Unprocessable):
        get("/x.wav", host="other.example")


@pytest.mark.parametrize("status", [301, 302, 307, 308, 204, 206, 401, 404, 500])
def test_36_no_redirect_is_followed(get: Callable[..., bytes], status: int) -> None:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("location", "https://clips.example/x.wav")
        handler.send_header("content-length", "0")
        handler.end_headers()

    ANSWERS["/moved"], ANSWERS["/x.wav"] = answer, body(b"RIFF")
    with pytest.raises(Unprocessable, match="without redirects"):
        get("/moved")


def test_a_file_over_the_limit(get: Callable[..., bytes]) -> None:
    ANSWERS["/large"] = body(bytes(300_000))
    with pytest.raises(TooLarge, match="100,000 bytes"):
        get("/large", Limits(clip_bytes=100_000))


FRAMINGS = {
    "headers": ("", b"x"),
    "length": ("content-length: 1000000\r\n\r\n", b"x"),
    "chunks": ("transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "until it is closed": ("\r\n", b"x"),
    "closed at the end": ("connection: close\r\n\r\n", b"x"),
    "closed at its length": ("connection: close\r\ncontent-length: 1000000\r\n\r\n", b"x"),
    "closed after chunks": (
        "connection: close\r\ntransfer-encoding: chunked\r\n\r\n",
        b"1\r\nx\r\n",
    ),
}


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("framing", FRAMINGS)
def test_36_who_drips_is_cut_off(get: Callable[..., bytes], framing: str, silent: bool) -> None:
    """A byte now and then keeps a read alive; the deadline is of the whole, however it is framed.

    One who says nothing more after the start is cut off as well.
    """
    done, cut = threading.Event(), threading.Event()
    start, drop = FRAMINGS[framing]

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.wfile.write(f"HTTP/1.1 200 OK\r\n{start}".encode() + drop)
        try:
            while not done.wait(0.02):
                if not silent:
                    handler.wfile.write(drop)
        except OSError:
            cut.set()
        handler.close_connection = True

    ANSWERS["/drip"] = answer
    try:
        with pytest.raises(Unprocessable):
            get("/drip", Limits(clip_decode_s=0.5))
        assert silent or cut.wait(30), "it was still read from"
    finally:
        done.set()


def test_a_body_that_ends_too_early(get: Callable[..., bytes]) -> None:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        body(b"RIFF", **{"content-length": "1000"})(handler)
        handler.close_connection = True

    ANSWERS["/short"] = answer
    assert get("/short") == b"RIFF", "the decoder sees that it is cut off"


@pytest.mark.parametrize("allowed", [False, True])
def test_36_the_replay(
    monkeypatch: pytest.MonkeyPatch, allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Over HTTP: nothing is fetched, and the answer tells nothing of what stands behind it."""
    resolved: list[str] = []

    def public_addresses(host: str) -> list[str]:
        resolved.append(host)
        return real(host)

    real = fetch.public_addresses
    monkeypatch.setattr(fetch, "public_addresses", public_addresses)
    urls = [
        "http://127.0.0.1:1/x.wav",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "https://127.0.0.1/x.wav",
        "https://[::1]/x.wav",
        "https://localhost/x.wav",
    ]
    with (
        serving(FakeEngine("base"), ServerConfig(ref_urls=allowed)) as live,
        httpx.Client(base_url=live.url, timeout=60) as client,
    ):
        for url in urls:
            reply = client.post("/v1/audio/speech", json=BODY | {"ref_audio": url})
            error = reply.json()["error"]
            assert (reply.status_code, error["param"]) == (422, "ref_audio")
            assert "not public" not in error["message"] and "refused" not in error["message"]
    assert resolved == (["127.0.0.1", "::1", "localhost"] if allowed else [])


def test_a_url_that_is_allowed_becomes_a_voice(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.audio.clips import packed

    wav = packed("wav", 24_000)
    monkeypatch.setattr(clips, "fetch", lambda url, limits: wav)
    with (
        serving(FakeEngine("base"), ServerConfig(ref_urls=True)) as live,
        httpx.Client(base_url=live.url, timeout=60) as client,
    ):
        body = BODY | {"ref_audio": " https://clips.example/x.wav"}
        assert client.post("/v1/audio/speech", json=body).status_code == 200
