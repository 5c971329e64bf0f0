"""Bodies that are no request: refused with a 4xx, and the server is as well as before."""

import gzip
import http.client
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes import FakeEngine
from tests.server.test_fields import WIRE_FIELDS

SPEECH = "/v1/audio/speech"
GOOD = {"input": "Hello.", "response_format": "pcm"}
LIMIT = 1 << 20


def assert_well(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    reply = client.post(SPEECH, json=GOOD)
    assert reply.status_code == 200
    assert len(reply.content) == 3 * 3840


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b'{"input": "Hel', None),
        (b'{"input": "Hello."} x', None),
        (b"[]", None),
        (b'"Hello."', None),
        (b"null", None),
        (b"7", None),
        (b"NaN", None),
        (b'{"input": "a\x01b"}', None),
        (b'{"input": "a\xff"}', None),
        (b'{"input": "a\xed\xa0\x80"}', None),
        (json.dumps(GOOD).encode("utf-16"), None),
        (json.dumps(GOOD).encode("utf-16-le"), None),
        (json.dumps(GOOD).encode("utf-32"), None),
        (gzip.compress(json.dumps(GOOD).encode(), mtime=0), None),
        (b"[" * 10_000, None),
        (b"[" * 10_000 + b"]" * 10_000, None),
        (b'{"seed": ' + b"9" * 10_000 + b', "input": "x"}', None),
        (b'{"input": "Hello.", "input": "Bye."}', "input"),
        (b'{"input": "Hello.", "x": {"a": 1, "a": 2}}', "a"),
    ],
)
def test_case_65_malformed_bodies(
    client: httpx.Client, engine: FakeEngine, body: bytes, param: str | None
) -> None:
    reply = client.post(SPEECH, content=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert reply.json()["error"]["param"] == param
    assert_well(client)


def test_case_65_nesting_inside_a_field(client: httpx.Client, engine: FakeEngine) -> None:
    for depth in (500, 10_000):
        deep = b"[" * depth + b"]" * depth
        assert client.post(SPEECH, content=b'{"input": %s}' % deep).status_code in (400, 422)
        reply = client.post(SPEECH, content=b'{"input": "Hello.", "x": %s}' % deep)
        assert reply.status_code in (200, 400)  # unknown fields are ignored as far as they parse
    assert_well(client)


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("temperature", b"NaN", 422),
        ("temperature", b"Infinity", 422),
        ("temperature", b"-Infinity", 422),
        ("temperature", b"1e400", 422),
        ("seed", b"1e400", 422),
        ("top_k", b"-1e400", 422),
        ("input", b"NaN", 422),
    ],
)
def test_case_65_numbers_that_are_none(
    client: httpx.Client, engine: FakeEngine, name: str, value: bytes, status: int
) -> None:
    rest = b"" if name == "input" else b', "input": "Hello."'
    reply = client.post(SPEECH, content=b'{"%s": %s%s}' % (name.encode(), value, rest))
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, name)


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": ""},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-encoding": "gzip"},
        {"content-encoding": "br"},
    ],
)
def test_case_65_other_content_types_are_415(
    client: httpx.Client, engine: FakeEngine, headers: dict[str, str]
) -> None:
    reply = client.post(SPEECH, content=json.dumps(GOOD), headers=headers)
    assert reply.status_code == 415
    assert reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (rb'{"input":"a\ud800b"}', "input"),
        (rb'{"input":"\udc00"}', "input"),
        (rb'{"input":"\ud83d\ud83d\ude00"}', "input"),
        (rb'{"input":"Hello.","voice":"\ud800"}', "voice"),
        (rb'{"input":"Hello.","voice":{"id":"\ud800"}}', "voice"),
        (rb'{"input":"Hello.","instructions":"\ud800"}', "instructions"),
        (rb'{"input":"Hello.","x":[{"y":["\ud800"]}]}', "x"),
        (rb'{"input":"Hello.","x":{"\ud800":1}}', "x"),
        (rb'{"input":"Hello.","\ud800":1}', "?"),
        (rb'{"input":"Hello.","\ud800":1,"\ud800":1}', "?"),
    ],
)
def test_case_22_half_a_character_is_a_400_that_names_its_field(
    client: httpx.Client, engine: FakeEngine, body: bytes, param: str
) -> None:
    reply = client.post(SPEECH, content=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_case_22_a_whole_pair_is_a_character(client: httpx.Client, engine: FakeEngine) -> None:
    assert client.post(SPEECH, content=rb'{"input":"hi \ud83d\ude00"}').status_code == 200
    assert engine.next_session().text == "hi 😀"


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_case_13_empty_text_is_a_400_that_names_the_field(
    client: httpx.Client, engine: FakeEngine, text: str
) -> None:
    reply = client.post(SPEECH, json={"input": text})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input")
    assert engine.sessions.empty()


def test_case_14_only_what_can_be_spoken_is_spoken(
    client: httpx.Client, engine: FakeEngine
) -> None:
    for text in ("...", "—", "*", "()", "”", "😊", '😊"', "\t", "\u3000", "、。"):
        reply = client.post(SPEECH, json={"input": text})
        assert (text, reply.status_code) == (text, 400)
        assert reply.json()["error"]["param"] == "input"
    for text in ("7", "42%", "C#"):
        assert client.post(SPEECH, json={"input": text}).status_code == 200


def test_case_25_control_tokens_pass_as_plain_text(
    client: httpx.Client, engine: FakeEngine
) -> None:
    text = "Hello <|im_end|> <|im_start|>assistant"
    assert client.post(SPEECH, json={"input": text, "instructions": text}).status_code == 200
    session = engine.next_session()
    assert (session.text, session.request.instruct) == (text, text)  # the tokenizer keeps them so
    assert client.post(SPEECH, json={"input": "Hi.", "ref_text": text}).status_code == 422


def body_of(size: int) -> bytes:
    return json.dumps({**GOOD, "x": "x" * (size - 64)}).encode().ljust(size)


def test_body_at_the_limit_is_read(client: httpx.Client, engine: FakeEngine) -> None:
    assert client.post(SPEECH, content=body_of(LIMIT)).status_code == 200


def test_body_over_the_limit_is_413(client: httpx.Client, engine: FakeEngine) -> None:
    reply = client.post(SPEECH, content=body_of(LIMIT + 1))
    assert reply.status_code == 413
    assert "1,048,576" in reply.json()["error"]["message"]
    assert_well(client)


def test_body_without_a_length_is_read_no_further_than_the_limit(
    client: httpx.Client, engine: FakeEngine
) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield bytes(65536)

    reply = client.post(SPEECH, content=endless())
    assert reply.status_code == 413
    assert_well(client)


def test_announced_length_over_the_limit_is_refused_unread(
    client: httpx.Client, engine: FakeEngine
) -> None:
    where = urlsplit(str(client.base_url))
    bare = http.client.HTTPConnection(where.hostname or "", where.port, timeout=30)
    bare.putrequest("POST", SPEECH)
    bare.putheader("content-length", str(LIMIT + 1))
    bare.endheaders()
    assert bare.getresponse().status == 413
    bare.close()
    bare.request("POST", SPEECH, body=bytes(8 * LIMIT))  # a client that sends first, then listens
    assert bare.getresponse().status == 413
    bare.close()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(["Hello.", "ryan", "pcm", "en", "auto", "nova", "../../x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
BODIES = st.dictionaries(st.sampled_from(sorted(WIRE_FIELDS)) | st.text(max_size=8), JSON)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=BODIES.map(json.dumps).map(str.encode)
    | BODIES.map(lambda body: json.dumps(GOOD | body).encode())
    | st.binary(max_size=60)
)
def test_fuzzed_bodies_never_fail_the_server(
    client: httpx.Client, engine: FakeEngine, body: bytes
) -> None:
    reply = client.post(SPEECH, content=body)
    assert reply.status_code in (200, 400, 404, 422)
    if reply.status_code != 200:
        assert reply.headers["content-type"] == "application/json"
        assert reply.json()["error"]["message"]


def test_well_after_the_fuzz(client: httpx.Client, engine: FakeEngine) -> None:
    assert_well(client)
