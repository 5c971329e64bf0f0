"""The routes around speech, and what every response carries."""

import httpx
import pytest
from tests.fakes import PUBLISHED_VOICES, FakeEngine


def test_case_66_health_follows_the_heartbeat(client: httpx.Client, engine: FakeEngine) -> None:
    assert client.get("/health").status_code == 200
    engine.heartbeat_age_s = 60.0
    assert client.get("/health").status_code == 503
    engine.heartbeat_age_s = 0.0
    assert client.get("/health").status_code == 200


def test_case_66_an_engine_that_has_ended_is_not_healthy(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.alive = False  # its last heartbeat was just now
    reply = client.get("/health")
    assert (reply.status_code, reply.json()["status"]) == (503, "dead")


def test_case_66_ready_follows_the_engine(client: httpx.Client, engine: FakeEngine) -> None:
    assert client.get("/ready").status_code == 200
    engine.ready = False
    assert client.get("/ready").status_code == 503
    assert client.get("/health").status_code == 200


def test_models_under_all_their_names(client: httpx.Client) -> None:
    names = ["vivace-fake", "vivace", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == names
    assert client.get("/v1/audio/models").json() == {"models": [{"id": name} for name in names]}


def test_one_model_by_any_of_its_names(client: httpx.Client) -> None:
    listed = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    for name in ("vivace-fake", "TTS-1", "gpt-4o-mini-tts-2025-12-15"):
        found = client.get(f"/v1/models/{name}").json()
        assert found == listed[found["id"]]
    for name in ("gpt-5", "org/name", "..%2f..%2fetc"):
        reply = client.get(f"/v1/models/{name}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


def test_voices_are_objects(client: httpx.Client) -> None:
    voices = client.get("/v1/audio/voices").json()["voices"]
    assert [voice["id"] for voice in voices] == PUBLISHED_VOICES
    assert set(voices[0]) == {"id", "name", "language"}


def test_one_voice_by_any_of_its_names(client: httpx.Client) -> None:
    for name in ("uncle_fu", "UNCLE_FU", "onyx"):
        assert client.get(f"/v1/audio/voices/{name}").json()["id"] == "uncle_fu"
    reply = client.get("/v1/audio/voices/nobody")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "voice_not_found")


def test_hint_names_the_way_to_speak(client: httpx.Client) -> None:
    assert "/v1/audio/speech" in client.get("/").json()["speak"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/audio/speech", 405),
        ("POST", "/health", 405),
        ("GET", "/v1/", 404),
        ("POST", "/v1/audio/speech/", 307),
        ("GET", "/v1/audio/voices/%0d%0aset-cookie:x", 404),
        ("GET", "/../../etc/passwd", 404),
    ],
)
def test_wrong_routes_get_an_envelope(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    reply = client.request(method, path)
    assert reply.status_code == status
    assert reply.headers["x-request-id"]
    if status != 307:
        assert reply.json()["error"]["type"] == "invalid_request_error"
    if status == 405:
        assert "allow" in reply.headers


@pytest.mark.parametrize("path", ["/health", "/nowhere", "/v1/audio/speech"])
def test_request_id_is_the_clients_own_if_sane(client: httpx.Client, path: str) -> None:
    def echoed(given: str) -> str:
        return client.get(path, headers={"x-request-id": given}).headers["x-request-id"]

    assert echoed("call-17:a.b_C") == "call-17:a.b_C"
    made = {echoed(odd) for odd in ("", "a b", "x" * 129, "<b>")}
    assert len(made) == 4
    assert {len(request_id) for request_id in made} == {32}


def test_styles_are_listed_and_spoken_with(client: httpx.Client, engine: FakeEngine) -> None:
    styles = {style["name"]: style for style in client.get("/v1/audio/styles").json()["styles"]}
    assert set(styles["news"]) == {"name", "english", "chinese", "about"}
    body = {"input": "Hello.", "style": "news"}
    assert client.post("/v1/audio/speech", json=body).status_code == 200
    assert engine.next_session().request.instruct == styles["news"]["english"]


def test_an_item_of_a_batch_has_its_style(client: httpx.Client, engine: FakeEngine) -> None:
    batch = {"items": [{"input": "Hello."}], "style": "news", "response_format": "wav"}
    assert client.post("/v1/audio/speech/batch", json=batch).status_code == 200
    assert engine.next_session().request.instruct
