"""`GET /openapi.json` is what the server does."""

import re
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from tests.fakes import FakeEngine
from tests.server.live import serving
from tests.server.test_fields import WIRE_FIELDS

from vivace.config import ServerConfig
from vivace.server.app import create_app

SPEECH = "/v1/audio/speech"
WRONG: dict[str, object] = {"string": [1], "boolean": "yes", "integer": 1.5, "number": "1"}
Schema = dict[str, Any]


@pytest.fixture
def described(client: httpx.Client) -> Schema:
    document: Schema = client.get("/openapi.json").json()
    return document


def body_of(described: Schema, path: str) -> Schema:
    schema: Schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return schema["schema"]


def bodies(described: Schema) -> list[tuple[str, Schema]]:
    """Path and schema of every body of one text."""
    posts = [
        path for path, ways in described["paths"].items() if "requestBody" in ways.get("post", {})
    ]
    return [
        (path, body_of(described, path))
        for path in posts
        if not ("voice" in path and "text-to-speech" not in path) and not path.endswith("batch")
    ]


def test_every_route_is_there_and_no_other(described: Schema, engine: FakeEngine) -> None:
    app = create_app(engine)
    while not isinstance(app, Starlette):  # what is around it has no routes
        app = getattr(app, "_app")  # noqa: B009
    served = {
        (re.sub(r":\w+}", "}", route.path), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert served == {(p, method) for p, ways in described["paths"].items() for method in ways}
    assert all(way["summary"] for ways in described["paths"].values() for way in ways.values())


def test_a_post_has_a_body_or_is_refused(described: Schema) -> None:
    for path, ways in described["paths"].items():
        if "post" in ways:
            refused = "200" not in ways["post"]["responses"]
            bare = refused or path.endswith("/renew")
            assert ("requestBody" in ways["post"]) != bare, path


def test_forms_name_their_files(described: Schema) -> None:
    files = {}
    for path, ways in described["paths"].items():
        content = ways.get("post", {}).get("requestBody", {}).get("content", {})
        if form := content.get("multipart/form-data"):
            schema = form["schema"]
            binary = {n for n, field in schema["properties"].items() if field.get("format")}
            assert binary <= set(schema["required"])
            assert "name" in schema["properties"]
            files[path] = binary
    assert files == {
        "/v1/audio/voices": {"audio_sample"},
        "/v1/audio/voice_consents": {"recording"},
        "/v1/voices/add": {"files"},
        "/v1/voices/{voice}/edit": set(),
        "/voices/clone": {"clip"},
    }


def test_what_it_refers_to_is_there(described: Schema) -> None:
    for reference in set(re.findall(r"'\$ref': '#/([^']+)'", str(described))):
        at: Any = described
        for step in reference.split("/"):
            at = at[step]
        assert at


def test_names_are_used_once(described: Schema) -> None:
    ids = [way["operationId"] for ways in described["paths"].values() for way in ways.values()]
    assert len(set(ids)) == len(ids)


def test_a_value_of_another_type_is_refused_by_its_name(
    described: Schema, client: httpx.Client
) -> None:
    seen = 0
    for path, schema in bodies(described):
        (needed,) = schema["required"]
        for name, field in schema["properties"].items():
            kind = field["type"][0] if name != needed and "object" not in field["type"] else None
            if kind in WRONG:
                body = {needed: "Hello.", name: WRONG[kind]}
                reply = client.post(path.replace("{voice}", "ryan"), json=body)
                assert (reply.status_code, reply.json()["error"]["param"]) == (422, name), path
                seen += 1
    assert seen > 40


def test_the_bounds_are_the_servers(described: Schema, client: httpx.Client) -> None:
    seen = 0
    for path, schema in bodies(described):
        (needed,) = schema["required"]
        for name, field in schema["properties"].items():
            if "maximum" not in field:
                continue
            for beyond in (field["maximum"] + 1, field.get("minimum", 0) - 1):
                reply = client.post(path, json={needed: "Hello.", name: beyond})
                assert reply.status_code == 422, (path, name, beyond)
            seen += 1
    assert seen > 10


def test_what_it_takes_is_taken(described: Schema, client: httpx.Client) -> None:
    free = {"model", "voice", "speaker", "language", "task_type", "style"}  # names of things
    free |= {"ref_audio", "ref_text", "ref_silence_ms", "x_vector_only"}  # for base checkpoints
    for name, field in body_of(described, SPEECH)["properties"].items():
        values = [value for value in field.get("enum", []) if value is not None]
        if "maximum" in field:
            values = [field["maximum"]] if name != "min_new_tokens" else [field["minimum"]]
        if field.get("type") == ["boolean", "null"]:
            values = [True]
        if field.get("type") == "null" or name in free | {
            "x_vector_only",
            "x_vector_only_mode",
            "sample_rate",
        }:
            continue
        for value in values or ["Hello."]:
            reply = client.post(SPEECH, json={"input": "Hello.", name: value})
            assert reply.status_code == 200, (name, value, reply.text)


@pytest.mark.parametrize("kind", ["custom_voice", "voice_design", "base"])
def test_the_fields_do_not_depend_on_the_checkpoint(
    described: Schema, client: httpx.Client, engine: FakeEngine, kind: str
) -> None:
    engine.reset(kind)
    now = client.get("/openapi.json").json()
    names = set(body_of(described, SPEECH)["properties"])
    assert set(body_of(now, SPEECH)["properties"]) == names
    assert names == WIRE_FIELDS


def test_each_status_that_is_met_is_there(described: Schema, client: httpx.Client) -> None:
    known = described["paths"][SPEECH]["post"]["responses"]
    tries = [
        client.post(SPEECH, json={"input": "Hello."}),
        client.post(SPEECH, json={}),
        client.post(SPEECH, json={"input": "Hello.", "voice": "nobody"}),
        client.post(SPEECH, json={"input": "Hello.", "speed": 9}),
        client.post(SPEECH, content=b"x", headers={"content-type": "text/plain"}),
        client.post(SPEECH, content=b" " * (2 << 20), headers={"content-type": "application/json"}),
    ]
    assert [reply.status_code for reply in tries] == [200, 400, 404, 422, 415, 413]
    assert all(str(reply.status_code) in known for reply in tries)
    kinds = known["200"]["content"]
    assert tries[0].headers["content-type"] in kinds


def test_what_the_gate_says_is_there(described: Schema, engine: FakeEngine) -> None:
    config = ServerConfig(api_keys={"anna": "0123456789abcdef" * 2})
    elsewhere = {"origin": "https://elsewhere.example"}
    with serving(engine, config) as live, httpx.Client(base_url=live.url) as stranger:
        for path, ways in described["paths"].items():
            for method, way in ways.items():
                known = way["responses"]
                alone = stranger.request(method, path)
                page = stranger.request(method, path, headers=elsewhere)
                met = {alone.status_code, page.status_code} & {401, 403}
                assert met == {int(status) for status in known} & {401, 403}, (method, path)


def test_a_clip_is_for_base_checkpoints(client: httpx.Client) -> None:
    for name, value in {"ref_audio": "UklGRg==", "ref_text": "Hi.", "x_vector_only": True}.items():
        error = client.post(SPEECH, json={"input": "Hello.", name: value}).json()["error"]
        assert (error["param"], error["code"]) == (name, "not_supported")
