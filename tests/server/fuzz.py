"""Requests at random, over real sockets, to an engine that speaks at once.

Two kinds: those that OpenAPI's document describes, and those that break it, by schemathesis; and
bodies, headers and heads that no document describes. What is always true: an answer comes, it is
one that the document has, it says what was wrong with a request in the same envelope, and nothing
is our fault. As a program: how many of each were tried, and what they met.

    python -m tests.server.fuzz 10000 benchmarks/results/http-fuzz.json
"""

import itertools
import json
import logging
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.fakes import FakeEngine, Play
from tests.server.live import serving

from vivace.config import Limits, ServerConfig

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
HANGS_S = 120.0  # no request takes 0.1 s of a core
CONFIG = ServerConfig(limits=Limits(body_bytes=1 << 16), body_s=HANGS_S)
Met = Counter[str]


def trying(count: int, number: int) -> Callable[[Any], Any]:
    """Hypothesis, at that many examples from that seed."""

    def decorate(test: Any) -> Any:
        chosen = settings(
            max_examples=count,
            database=None,
            derandomize=False,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        return seed(number)(chosen(test))

    return decorate


def described(url: str, count: int, number: int = 0) -> Iterator[tuple[str, Met]]:
    """Requests by the document, good ones and bad ones: operation by operation what they met."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    for result in schema.get_all_operations():
        operation, met = result.ok(), Met()
        for mode in GenerationMode:
            with suppress(Unsatisfiable):  # nothing of it can be wrong
                _ask(operation.as_strategy(generation_mode=mode), count, number, met)
        yield operation.label, met


def _ask(cases: Any, count: int, number: int, met: Met) -> None:
    @trying(count, number)
    @given(case=cases, known=st.booleans())
    def ask(case: schemathesis.Case, known: bool) -> None:
        if known and "voice" in case.path_parameters:
            case.path_parameters["voice"] = "ryan"  # or there would hardly ever be one
        reply = case.call(timeout=HANGS_S)
        # An event is checked by its own tests: schemathesis takes the stream's schema for each's.
        events = reply.headers.get("content-type", [""])[0].startswith("text/event-stream")
        case.validate_response(reply, checks=CHECKS[:-1] if events else CHECKS)
        met[str(reply.status_code)] += 1

    ask()


# What no document describes.

POSTS = [
    "/v1/audio/speech",
    "/v1/audio/speech/batch",
    "/v1/audio/voices",
    "/v1/text-to-speech/ryan",
    "/v1/text-to-speech/ryan/stream",
    "/v1/text-to-speech/ryan/with-timestamps",
    "/v1/voices/add",
    "/tts/bytes",
    "/tts/sse",
    "/voices/clone",
]
NAMES = st.sampled_from(
    [
        *("input", "text", "transcript", "items", "voice", "model", "language", "instructions"),
        *("speed", "seed", "stream", "format", "response_format", "output_format"),
        *("voice_settings", "generation_config"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(NAMES | st.text(max_size=8), inner, max_size=6)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NAMES | st.text(max_size=8), JSON, max_size=8)
DEEP = st.integers(1, 20_000).map(lambda n: b'{"input": ' + b"[" * n + b"]" * n + b"}")
BODIES = (
    OBJECTS.map(lambda body: json.dumps({"input": "Hi.", **body}).encode())
    | JSON.map(lambda body: json.dumps(body).encode())
    | OBJECTS.map(
        lambda body: json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    )
    | OBJECTS.map(lambda body: json.dumps(body).encode("utf-16"))
    | st.binary(max_size=200)
    | DEEP
    | st.integers(1, 1 << 17).map(lambda n: b'{"input": "' + b"a" * n + b'"}')
    | st.just(b'{"seed": ' + b"9" * 10_000 + b"}")
)
TYPES = st.sampled_from(
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=latin-1",
        "text/plain",
        "multipart/form-data",
        "multipart/form-data; boundary=x",
        "",
        "a/b/c",
    ]
)
HEADERS = st.dictionaries(
    st.sampled_from(["x-request-id", "accept", "authorization", "content-encoding", "expect"])
    | st.sampled_from(["origin", "upgrade", "connection", "xi-api-key", "range", "te", "trailer"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40).map(str.strip),
    max_size=4,
)
PATHS = st.sampled_from(POSTS) | st.text(
    st.characters(min_codepoint=33, max_codepoint=126), max_size=30
).map(lambda text: "/" + text)
HEADS = st.binary(max_size=300) | st.tuples(
    st.sampled_from([b"GET", b"POST", b"OPTIONS", b"CONNECT", b"get", b"\xff"]),
    st.binary(max_size=40)
    | st.sampled_from([b"/", b"*", b"//", b"http://x/health", b"/%00", b"/%"]),
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"", b"HTTP/1.1\r\nHost: x"]),
    st.binary(max_size=80),
).map(lambda part: b"%b %b %b\r\n%b\r\n\r\n" % part)


def undescribed(url: str, count: int, number: int = 0) -> Iterator[tuple[str, Met]]:
    """Bodies, paths and headers at random, then whole heads; what they met."""
    for name, fuzz in (("any body", _bodies), ("any head", _heads)):
        met = Met()
        fuzz(url, count, number, met)
        yield name, met


def _bodies(url: str, count: int, number: int, met: Met) -> None:
    with httpx.Client(base_url=url, timeout=HANGS_S) as client:

        @trying(count, number)
        @given(path=PATHS, body=BODIES, kind=TYPES, headers=HEADERS)
        def ask(path: str, body: bytes, kind: str, headers: dict[str, str]) -> None:
            request = httpx.Request("POST", url + path, content=body, headers=headers)
            request.headers["content-type"] = kind
            judge(client.send(request), met)

        ask()


def judge(reply: httpx.Response, met: Met) -> None:
    """Is it an answer that a client can work with?"""
    assert reply.status_code < 500, (reply.status_code, reply.text)
    assert reply.headers["x-request-id"]
    if reply.status_code >= 400:
        error = reply.json()["error"]
        assert error["message"] and error["type"]
    met[str(reply.status_code)] += 1


def _heads(url: str, count: int, number: int, met: Met) -> None:
    where = urlsplit(url)

    @trying(count, number)
    @given(head=HEADS)
    def ask(head: bytes) -> None:
        with socket.create_connection((where.hostname, where.port), timeout=HANGS_S) as sock:
            sock.sendall(head)
            sock.shutdown(socket.SHUT_WR)
            reply = b""
            while more := sock.recv(65536):
                reply += more
        status = reply[9:12].decode() if reply else "nothing"  # who hangs up in a head gets none
        assert status == "nothing" or (reply.startswith(b"HTTP/1.1 ") and status < "500"), reply
        met[status] += 1

    ask()


def healthy(url: str, engine: FakeEngine) -> bool:
    """Does the server still speak, and is nothing of all that left?"""
    body = {"input": "Hello.", "response_format": "pcm"}
    reply = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=HANGS_S)
    health = httpx.get(f"{url}/health", timeout=HANGS_S)
    while not engine.sessions.empty():
        assert engine.sessions.get().done is not None
    return reply.status_code == health.status_code == 200 and len(reply.content) == 3840


def run(count: int, number: int = 0) -> dict[str, Met]:
    """`count` requests, half of them of each kind, spread over their parts; what they met."""
    engine = FakeEngine()
    engine.play = Play(chunks=1)
    with serving(engine, CONFIG) as live:
        schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
        sorts = 2 * len(list(schema.get_all_operations()))  # good ones and bad ones
        met = dict(described(live.url, -(-count // 2 // sorts), number))
        met |= dict(undescribed(live.url, count // 4, number))
        assert healthy(live.url, engine)
    return met


def main(count: int, output: Path) -> None:
    """Try, and write down what was met."""
    from vivace.bench.machine import commit

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # what is no HTTP is worth a warning, each time
    met, tried, numbers = dict[str, Met](), 0, itertools.count()
    while tried < count:
        for name, some in run(count, next(numbers)).items():
            met[name] = met.get(name, Met()) + some
            tried += sum(some.values())
    result = {"command": f"make http-fuzz EXAMPLES={count}", "commit": commit(), "requests": tried}
    result |= {"statuses": {name: dict(sorted(some.items())) for name, some in met.items()}}
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{tried} requests, none our fault; written to {output}")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
