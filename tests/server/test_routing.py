"""Requests to a server of several models find the one they mean, in every dialect."""

from collections.abc import Iterator

import httpx
import pytest
from tests.fakes import FakeEngine
from tests.server.socket.client import Socket, app_of
from tests.test_roster import DESIGN, NAMED, SMALL_NAMED, TUNED

from vivace.config import ServerConfig
from vivace.errors import NotFound, Unprocessable, VivaceError
from vivace.server.app import create_app
from vivace.server.order import Order, read_order
from vivace.server.shelf import open_shelf

OFFERS = [NAMED, SMALL_NAMED, TUNED, DESIGN]
CONFIG = ServerConfig(model_aliases=("fast=small", "anything"), voice_aliases={"boss": "greta"})


@pytest.fixture(autouse=True)
def several(engine: FakeEngine) -> Iterator[None]:
    engine.others = OFFERS
    engine.voices = [*NAMED.voices, TUNED.voices[0]]
    yield
    engine.others = []


def order(engine: FakeEngine, **fields: object) -> Order:
    return read_order({"input": "Hello.", **fields}, engine, CONFIG)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "model", "voice"),
    [
        ({}, "named", "ryan"),
        ({"model": "tts-1"}, "named", "ryan"),
        ({"model": "anything", "voice": "greta"}, "tuned", "greta"),
        ({"model": "fast"}, "small", "ryan"),
        ({"model": "SMALL"}, "small", "ryan"),
        ({"model": "tuned"}, "tuned", "greta"),
        ({"model": "tuned", "voice": "Ryan"}, "tuned", "ryan"),
        ({"voice": "GRETA"}, "tuned", "greta"),
        ({"voice": {"id": "greta"}}, "tuned", "greta"),
        ({"speaker": "greta"}, "tuned", "greta"),
        ({"voice": "boss"}, "tuned", "greta"),
        ({"voice": "ash"}, "named", "ryan"),
        ({"voice": "ryan", "instructions": "Softly."}, "named", "ryan"),
        ({"instructions": "An old man."}, "design", None),
        ({"instructions": " "}, "named", "ryan"),
        ({"task_type": "VoiceDesign", "instructions": "Old."}, "design", None),
        ({"task_type": "CustomVoice", "instructions": "Old."}, "named", "ryan"),
        ({"model": "design", "voice": "alloy", "instructions": "Old."}, "design", None),
    ],
)
def test_an_order_finds_its_model(
    engine: FakeEngine, fields: dict[str, object], model: str, voice: str | None
) -> None:
    placed = order(engine, **fields)
    assert (placed.request.model, placed.request.voice) == (model, voice)


@pytest.mark.parametrize(
    ("fields", "model"),
    [({}, "named"), ({"instructions": "An old man."}, "design"), ({"voice": "greta"}, "tuned")],
)
def test_a_style_describes_no_voice(
    engine: FakeEngine, fields: dict[str, object], model: str
) -> None:
    body = {"input": "Hello.", "style": "news", **fields}
    placed = read_order(body, engine, CONFIG, open_shelf(CONFIG))  # type: ignore[arg-type]
    assert placed.request.model == model


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"model": "gpt-5"}, NotFound, "model"),
        ({"model": "tuned", "voice": "eric"}, NotFound, "voice"),
        ({"model": "small", "task_type": "base"}, Unprocessable, "task_type"),
        ({"task_type": "base"}, Unprocessable, "task_type"),
        ({"voice": "nobody"}, NotFound, "voice"),
    ],
)
def test_what_no_model_can_do_is_refused_by_name(
    engine: FakeEngine, fields: dict[str, object], error: type[VivaceError], param: str
) -> None:
    with pytest.raises(error) as refusal:
        order(engine, **fields)
    assert refusal.value.param == param


def test_all_models_are_listed_under_their_names(client: httpx.Client) -> None:
    listed = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert listed[:4] == ["named", "small", "tuned", "design"] and "tts-1" in listed
    assert [m["id"] for m in client.get("/v1/audio/models").json()["models"]] == listed
    theirs = client.get("/v1/models", headers={"xi-api-key": "x"}).json()
    assert [model["model_id"] for model in theirs] == listed[:4]
    assert client.get("/").json()["models"] == listed[:4]


def test_voices_are_those_of_all_models_or_of_one(client: httpx.Client) -> None:
    def voices(query: str) -> list[str]:
        return [v["id"] for v in client.get(f"/v1/audio/voices{query}").json()["voices"]]

    assert voices("") == ["ryan", "eric", "greta"] == voices("?model=tts-1")
    assert voices("?model=tuned") == ["greta", "ryan"] and voices("?model=design") == []
    assert client.get("/v1/audio/voices?model=gpt-5").status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/audio/speech", {"input": "Hi.", "model": "small"}),
        ("/v1/text-to-speech/ryan", {"text": "Hi.", "model_id": "small"}),
        ("/v1/text-to-speech/greta", {"text": "Hi.", "model_id": "eleven_flash_v2_5"}),
        ("/tts/bytes", {"transcript": "Hi.", "model_id": "small", "voice": "ryan"}),
        ("/tts/bytes", {"transcript": "Hi.", "model_id": "sonic-3", "voice": "greta"}),
    ],
)
def test_vendors_name_our_models_too(
    client: httpx.Client, engine: FakeEngine, path: str, body: dict[str, object]
) -> None:
    assert client.post(path, json=body).status_code == 200
    meant = "small" if "small" in body.values() else "tuned"
    assert engine.next_session().request.model == meant


def test_an_alias_of_a_model_that_is_not_here_is_found_out_at_the_start(
    engine: FakeEngine,
) -> None:
    with pytest.raises(NotFound, match="alias fast is for nowhere"):
        create_app(engine, ServerConfig(model_aliases=("fast=nowhere",)))  # type: ignore[arg-type]


async def test_a_socket_says_which_model_it_has_chosen(engine: FakeEngine) -> None:
    """It may change from turn to turn."""
    async with Socket(app_of(engine)) as socket:
        await socket.until("session.created")
        for wishes, meant in (({"model": "small"}, "small"), ({"model": None}, "named")):
            socket.say("session.update", **wishes)
            assert (await socket.until("session.updated"))[-1]["model"] == meant
        socket.say("session.update", voice="greta")
        socket.say("input_text.append", text="Hi.")
        socket.say("input_text.end")
        await socket.until("speech.audio.done")
    assert engine.next_session().request.model == "tuned"
