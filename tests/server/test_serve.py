"""Binding, going ready, draining."""

import http.client
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from tests.fakes import FakeEngine, Play
from tests.server.live import serving

from vivace.config import ServerConfig
from vivace.errors import InvalidRequest, NotFound
from vivace.server.app import create_app
from vivace.server.serve import address_of, bind, check_tls

SPEECH = "/v1/audio/speech"
BODY = {"input": "Hello.", "response_format": "pcm"}
FRAME_BYTES = 3840

# One stream of three chunks; each line on stdin lets one more be made.
SERVE = """
import sys, threading
from tests.fakes import FakeEngine, Play
from vivace.config import ServerConfig
from vivace.server.serve import address_of, bind, run

engine = FakeEngine()
engine.play = Play(chunks=3, open_gates=1)

def gatekeeper():
    session = engine.next_session()
    for _ in sys.stdin:
        session.allow(1)

threading.Thread(target=gatekeeper, daemon=True).start()
sock = bind("127.0.0.1", 0)
run(engine, ServerConfig(), sock, lambda: print(address_of(sock), flush=True))
print("closed")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_streams_end_and_the_engine_close(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        url = process.stdout.readline().strip()
        with httpx.stream("POST", url + SPEECH, json=BODY, timeout=30) as reply:
            pieces = reply.iter_raw()
            heard = next(pieces)
            process.send_signal(number)
            process.stdin.write("\n\n")
            process.stdin.flush()
            heard += b"".join(pieces)
        assert len(heard) == 3 * FRAME_BYTES
        assert process.communicate(timeout=30)[0] == "closed\n"
        assert process.returncode == 0


def test_a_second_signal_ends_at_once_and_without_a_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        with (
            pytest.raises(httpx.RemoteProtocolError),
            httpx.stream("POST", url + SPEECH, json=BODY, timeout=30) as reply,
        ):
            pieces = reply.iter_raw()
            next(pieces)
            for number in (signal.SIGTERM, signal.SIGINT):  # two of a kind could become one
                process.send_signal(number)
            next(pieces)
        out, err = process.communicate(timeout=30)
        assert (out, process.returncode) == ("closed\n", 0)
        assert "Traceback" not in err


def test_draining_ends_streams_and_takes_no_connection() -> None:
    engine = FakeEngine()
    engine.play = Play(chunks=3, open_gates=1)
    with (
        serving(engine) as live,
        httpx.stream("POST", live.url + SPEECH, json=BODY, timeout=30) as reply,
    ):
        pieces = reply.iter_raw()
        heard = next(pieces)
        live.server.should_exit = True
        engine.next_session().allow(2)
        heard += b"".join(pieces)
        live.join()
        with pytest.raises(httpx.ConnectError):
            httpx.get(live.url + "/ready")
    assert len(heard) == 3 * FRAME_BYTES


def test_drain_has_an_end() -> None:
    engine = FakeEngine()
    engine.play = Play(chunks=3, open_gates=1)
    with (
        serving(engine, ServerConfig(drain_s=0)) as live,
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", live.url + SPEECH, json=BODY, timeout=30) as reply,
    ):
        live.server.should_exit = True
        reply.read()
    assert engine.next_session().cancelled.is_set()


async def test_ready_is_not_draining() -> None:
    app = create_app(FakeEngine(), draining=lambda: True)  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/health")).status_code == 200


def test_taken_port_is_refused_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequest, match=f"127.0.0.1:{port} .*another --port"):
            bind("127.0.0.1", port)


def test_unknown_host_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="Cannot listen"):
        bind("256.0.0.1", 0)


def test_who_calls_while_it_loads_waits_and_the_port_is_taken() -> None:
    with bind("127.0.0.1", 0) as sock:
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(address_of(sock), timeout=httpx.Timeout(5, read=0.05))
        with pytest.raises(InvalidRequest, match="another --port"):
            bind("127.0.0.1", sock.getsockname()[1])


@pytest.mark.parametrize(
    "data",
    [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\x16\x03\x01\0\xa5\1\0\0\r\n\r\n"],
)
def test_what_is_no_http_gets_an_envelope(data: bytes) -> None:
    with serving(FakeEngine()) as live:
        port = int(live.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
            sock.sendall(data)
            reply = http.client.HTTPResponse(sock)
            reply.begin()
            assert reply.status == 400
            assert reply.headers["x-request-id"]
            assert json.loads(reply.read())["error"]["type"] == "invalid_request_error"
        assert httpx.get(live.url + "/health").status_code == 200


def test_a_stand_in_that_is_not_there_is_found_out_at_the_start() -> None:
    with pytest.raises(NotFound, match="The voice alias 'nova' is for 'Nobody', which is not here"):
        create_app(FakeEngine(), ServerConfig(voice_aliases={"a": "ryan", "nova": "Nobody"}))  # type: ignore[arg-type]


def test_address_of_ipv6_has_brackets() -> None:
    sock = SimpleNamespace(getsockname=lambda: ("::1", 80, 0, 0))
    assert address_of(sock) == "http://[::1]:80"  # type: ignore[arg-type]


def test_a_certificate_that_cannot_be_used_is_found_at_the_start(tmp_path: Path) -> None:
    check_tls(None, None)
    with pytest.raises(InvalidRequest, match="needs --tls-cert") as refused:
        check_tls(None, tmp_path / "key.pem")
    assert refused.value.param == "tls_key"
    (tmp_path / "empty.pem").touch()
    for cert in ("empty.pem", "absent.pem"):
        with pytest.raises(InvalidRequest, match=cert) as refused:
            check_tls(tmp_path / cert, None)
        assert refused.value.param == "tls_cert"


def test_the_address_says_how_to_speak() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert address_of(sock, tls=True) == f"https://127.0.0.1:{port}"
        assert address_of(sock) == f"http://127.0.0.1:{port}"
