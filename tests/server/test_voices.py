"""Voices that clients make: kept, found on every route, changed, exported, refused with words."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from cartesia import Cartesia
from elevenlabs.client import ElevenLabs
from tests.fakes import HIDDEN, FakeEngine
from tests.server.live import serving
from tests.voices.makers import clone, same

from vivace.audio.decoding import decode as decode_any
from vivace.audio.wav import to_s16, wav_header
from vivace.config import Limits, ServerConfig
from vivace.errors import Unprocessable
from vivace.types import SAMPLES_PER_FRAME, Clip, Clone, Pcm
from vivace.voices.store import Making, Store

VOICES, CONSENTS, SPEECH = "/v1/audio/voices", "/v1/audio/voice_consents", "/v1/audio/speech"


WORDS = "Words that fit."


def wav(seconds: float = 1.0, level: float = 0.3) -> bytes:
    """A clip as clients send it: a tone."""
    count = int(seconds * 24_000)
    pcm = (level * np.sin(np.arange(count) * 0.05)).astype(np.float32)
    return wav_header(count) + to_s16(pcm).tobytes()


def decode(data: bytes, *, as_it_is: bool = False) -> tuple[Pcm, list[str]]:
    """In this process, without the bounds of another: the tests of the decoder have those."""
    try:
        rate, pcm = decode_any(data, 30.0)
    except Exception as error:
        raise Unprocessable(f"`ref_audio`: {error}", param="ref_audio") from None
    assert rate == 24_000
    return pcm, [] if as_it_is or pcm.max() < 0.9 else ["ref_audio is clipped"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "voices"


class Cloning(FakeEngine):
    """An engine whose voices are of their clips."""

    def __init__(self) -> None:
        super().__init__("base")
        self.made: list[Clip] = []

    def clone(self, clip: Clip, model: str | None = None) -> Clone:
        """A vector of the clip's own; with its words also a frame of codes for each of its own."""
        self.made.append(clip)
        vector = np.full(self.spec.talker.hidden, np.abs(clip.pcm).mean(), np.float32)
        if not clip.ref_text:
            return Clone(vector)
        frames = -(-len(clip.pcm) // SAMPLES_PER_FRAME)
        return Clone(vector, np.full((frames, 16), len(clip.pcm) % 2048), clip.ref_text)


@pytest.fixture
def engine() -> Cloning:
    return Cloning()


@pytest.fixture
def client(engine: Cloning, folder: Path) -> Iterator[httpx.Client]:
    limits = Limits(clip_bytes=100_000)
    config = ServerConfig(voices_dir=folder, voices_max=5, limits=limits, voice_aliases={})
    with (
        serving(engine, config, decode) as live,
        httpx.Client(base_url=live.url, timeout=30) as client,
    ):
        yield client


def post(
    client: httpx.Client, path: str = VOICES, file: str = "audio_sample", **fields: str
) -> Any:
    return client.post(path, data=fields, files={file: ("clip.wav", wav(), "audio/wav")})


def made(client: httpx.Client, name: str = "Anna", **fields: str) -> dict[str, Any]:
    reply = post(client, name=name, **fields)
    assert reply.status_code == 200, reply.text
    voice: dict[str, Any] = reply.json()
    return voice


def fault(reply: httpx.Response) -> tuple[int, str | None, str | None]:
    error = reply.json()["error"]
    return reply.status_code, error["param"], error["code"]


def spoken(engine: Cloning) -> Any:
    return engine.next_session().request


def test_made_listed_spoken_with_and_deleted(client: httpx.Client, engine: Cloning) -> None:
    voice = made(client, ref_text="Hello there.", description="Warm.")
    assert voice["object"] == "audio.voice" and voice["id"].startswith("voice_")
    (listed,) = client.get(VOICES).json()["voices"]
    assert listed.items() <= voice.items()
    assert client.get(f"{VOICES}/ANNA").json() == listed
    for name in ("Anna", "anna", voice["id"], {"id": voice["id"]}):
        assert client.post(SPEECH, json={"input": "Hi.", "voice": name}).status_code == 200
        request = spoken(engine)
        assert request.clone.ref_text == "Hello there."
        assert request.voice is None
    deleted = client.delete(f"{VOICES}/anna").json()
    assert deleted["deleted"] is True and deleted["id"] == voice["id"]
    assert client.get(VOICES).json()["voices"] == []
    assert fault(client.post(SPEECH, json={"input": "Hi.", "voice": "Anna"})) == (
        *(404, "voice", "voice_not_found"),
    )


def test_a_voice_outlives_the_server_without_being_made_again(
    client: httpx.Client, engine: Cloning, folder: Path
) -> None:
    made(client, ref_text="Hello there.")
    client.post(SPEECH, json={"input": "Hi.", "voice": "anna"})
    before = spoken(engine).clone
    again = Cloning()
    with (
        serving(again, ServerConfig(voices_dir=folder), decode) as live,
        httpx.Client(base_url=live.url) as other,
    ):
        assert other.post(SPEECH, json={"input": "Hi.", "voice": "anna"}).status_code == 200
        assert same(spoken(again).clone, before)
    assert again.made == []


def test_the_voices_own_manner_holds_where_a_request_does_not_say(
    client: httpx.Client, engine: FakeEngine
) -> None:
    made(client, language="de", seed="7")

    def request(**fields: object) -> Any:
        body = {"input": "Hi.", "voice": "anna", **fields}
        assert client.post(SPEECH, json=body).status_code == 200
        return spoken(engine)

    own = request()
    assert (own.language, own.sampling.seed) == ("german", 7)
    other = request(language="en", seed=8)
    assert (other.language, other.sampling.seed) == ("english", 8)
    reply = post(client, name="b", instructions="Slowly.")
    assert "cannot follow" in reply.headers["x-vivace-warning"]
    assert reply.json()["instructions"] == "Slowly."


def test_changed(client: httpx.Client) -> None:
    voice = made(client)
    changes = {"name": "Berta", "description": "Cold.", "language": "zh", "seed": 3}
    changed = client.post(f"{VOICES}/anna", json={**changes, "instructions": "Fast."}).json()
    assert (changed["name"], changed["language"], changed["seed"]) == ("Berta", "chinese", 3)
    assert (changed["id"], changed["content"]) == (voice["id"], voice["content"])
    assert client.get(f"{VOICES}/berta").json()["instructions"] == "Fast."
    assert fault(client.post(f"{VOICES}/berta", json={"nmae": "x"})) == (422, "nmae", None)
    assert fault(client.post(f"{VOICES}/berta", json={"name": "../x"})) == (
        *(422, "name", "bad_name"),
    )


def test_case_29_one_clip_under_two_names_is_one_content(client: httpx.Client) -> None:
    first, second = made(client, "a"), made(client, "b")
    assert first["content"] == second["content"] and first["id"] != second["id"]
    assert made(client, "c", ref_text="Words.")["content"] != first["content"]


def test_exported_and_taken_in(client: httpx.Client, engine: Cloning) -> None:
    voice = made(client, ref_text="Hello there.")
    reply = client.get(f"{VOICES}/anna/file")
    assert reply.headers["content-type"] == "application/octet-stream"
    assert voice["id"] in reply.headers["content-disposition"]
    head = {"content-type": "application/octet-stream"}
    taken = client.post(f"{VOICES}/import?name=Berta", content=reply.content, headers=head)
    assert taken.status_code == 200
    assert taken.json()["content"] == voice["content"]
    assert len(engine.made) == 1  # it was not made again
    assert fault(client.post(f"{VOICES}/import", content=b"x" * 100, headers=head))[0] == 400
    assert fault(client.post(f"{VOICES}/import", json={}))[0] == 400
    clash = client.post(f"{VOICES}/import", content=reply.content, headers=head)
    assert fault(clash) == (422, "name", "voice_exists")


def test_a_designed_voice_needs_a_model_that_designs(client: httpx.Client) -> None:
    body = {"type": "prompt", "name": "x", "prompt": "A deep voice."}
    reply = client.post(VOICES, json=body)
    assert fault(reply) == (422, "type", "no_design_checkpoint")
    assert "voice_design" in reply.json()["error"]["message"]
    assert fault(client.post(VOICES, json=body | {"prompt": " "})) == (400, "prompt", None)
    assert fault(client.post(VOICES, json=body | {"prompt": "x" * 4097}))[:2] == (422, "prompt")
    assert fault(post(client, name="x", prompt="A deep voice."))[:2] == (422, "prompt")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (400, "name", None)),
        ({"name": "../../x"}, (422, "name", "bad_name")),
        ({"name": ""}, (422, "name", "bad_name")),
        ({"name": "x" * 65}, (422, "name", "bad_name")),
        ({"name": "x", "type": "other"}, (422, "type", None)),
        ({"name": "x", "language": "Klingon"}, (422, "language", "language_not_found")),
        ({"name": "x", "seed": "-1"}, (422, "seed", None)),
        ({"name": "x", "seed": "1.5"}, (422, "seed", None)),
        ({"name": "x", "seed": "9" * 30}, (422, "seed", None)),
        ({"name": "x", "instructions": "x" * 4097}, (422, "instructions", "text_too_long")),
        ({"name": "x", "description": "x" * 1001}, (422, "description", "text_too_long")),
        ({"name": "x", "consent": "cons_none"}, (404, "consent", "consent_not_found")),
        ({"name": "x", "x_vector_only": "maybe"}, (422, "x_vector_only", None)),
        ({"name": "x", "ref_text": "x" * 70_000}, (400, None, None)),
    ],
)
def test_bad_fields_are_named_and_keep_nothing(
    client: httpx.Client,
    engine: Cloning,
    fields: dict[str, str],
    expected: tuple[int, str | None, str | None],
) -> None:
    assert fault(post(client, **fields)) == expected
    assert client.get(VOICES).json()["voices"] == []
    assert engine.made == []


def test_bad_forms_are_refused(client: httpx.Client) -> None:
    def send(files: object = None, **rest: Any) -> tuple[int, str | None, str | None]:
        return fault(client.post(VOICES, data={"name": "x"}, files=files, **rest))  # type: ignore[arg-type]

    clip = ("clip.wav", wav())
    assert send({"other": clip}) == (400, "audio_sample", None)
    assert send([("audio_sample", clip)] * 2) == (422, "audio_sample", None)
    assert send([("audio_sample", clip)] * 9)[0] in (400, 413)
    assert send({"audio_sample": ("clip.wav", b"")}) == (422, "audio_sample", None)
    assert send({"audio_sample": ("clip.wav", b"noise" * 200)}) == (422, "audio_sample", None)
    big = ("clip.wav", b"x" * 500_000)
    assert send({"audio_sample": big}) == (413, None, "body_too_large")
    form = {"content-type": "multipart/form-data; boundary=x"}
    for raw in (b"", b"--x", b"junk", b"--x\r\nContent-Disposition: form-data\r\n\r\nv\r\n--x--"):
        assert fault(client.post(VOICES, content=raw, headers=form))[0] == 400, raw
    twice = b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\nv\r\n' * 2 + b"--x--\r\n"
    assert fault(client.post(VOICES, content=twice, headers=form))[:2] == (400, "name")
    for kind in ("text/plain", "multipart/form-data", "application/x-www-form-urlencoded"):
        reply = client.post(VOICES, content=b"name=x", headers={"content-type": kind})
        assert reply.status_code == 415
    assert client.get(VOICES).json()["voices"] == []
    assert client.get("/health").status_code == 200


def test_what_the_clip_is_warned_of_is_told(client: httpx.Client) -> None:
    clip = ("clip.wav", wav(level=1.0))
    reply = client.post(VOICES, data={"name": "x", "other": "1"}, files={"audio_sample": clip})
    assert "clipped" in reply.headers["x-vivace-warning"]
    assert "ignored unknown fields: other" in reply.headers["x-vivace-warning"]


def test_x_vector_only_and_no_clip(client: httpx.Client, folder: Path) -> None:
    voice = made(client, ref_text="Hello.", x_vector_only="true", keep_clip="false")
    assert voice["mode"] == "x_vector"
    store = Store(folder)
    kept = store.get("anna")
    assert kept.clone.ref_codes is None and store.clip(kept) == b""
    assert fault(client.post(f"{VOICES}/anna/renew")) == (422, "voice", "no_clip")


def test_too_many_and_twice(client: httpx.Client, engine: Cloning) -> None:
    for number in range(5):
        made(client, f"v{number}")
    assert fault(post(client, name="one more")) == (422, None, "too_many_voices")
    client.delete(f"{VOICES}/v0")
    assert fault(post(client, name="V1")) == (422, "name", "voice_exists")
    assert len(engine.made) == 5  # both were refused before the long work


def test_a_voice_of_another_model_is_made_anew_from_its_clip(
    client: httpx.Client, engine: Cloning
) -> None:
    before = made(client, ref_text=WORDS)
    engine.spec.talker.hidden = 2 * HIDDEN
    engine.spec.prints = type(engine.spec.prints)("weights", "another encoder")
    for _ in range(2):
        assert client.post(SPEECH, json={"input": "Hi.", "voice": "anna"}).status_code == 200
        assert len(spoken(engine).clone.x_vector) == 2 * HIDDEN
    assert len(engine.made) == 2  # once at first, once more for this model
    after = client.post(f"{VOICES}/anna/renew").json()  # and now for good
    assert after["id"] == before["id"] and after["content"] != before["content"]
    assert np.array_equal(engine.made[0].pcm, engine.made[-1].pcm)  # of the very same clip
    assert client.post(SPEECH, json={"input": "Hi.", "voice": "anna"}).status_code == 200
    assert len(spoken(engine).clone.x_vector) == 2 * HIDDEN
    assert len(engine.made) == 3


def test_without_its_clip_it_is_refused_with_words(client: httpx.Client, engine: Cloning) -> None:
    made(client, keep_clip="false")
    engine.spec.talker.hidden = 2 * HIDDEN
    refused = client.post(SPEECH, json={"input": "Hi.", "voice": "anna"})
    assert fault(refused) == (422, "voice", "voice_of_another_model")
    assert "no clip is kept" in refused.json()["error"]["message"]


def test_a_voice_of_another_encoder_is_warned_of(
    client: httpx.Client, engine: Cloning, folder: Path
) -> None:
    Store(folder).add(Making("x"), clone(hidden=HIDDEN), "another")
    reply = client.post(SPEECH, json={"input": "Hi.", "voice": "x"})
    assert "another model's encoder" in reply.headers["x-vivace-warning"]


def test_base_without_a_voice_is_refused_and_openais_names_say_nothing(
    client: httpx.Client,
) -> None:
    made(client)
    for fields in ({}, {"voice": "alloy"}, {"voice": None}):
        assert fault(client.post(SPEECH, json={"input": "Hi.", **fields}))[:2] == (400, "ref_audio")
    for name in ("", "../../x", "nobody", "/etc/passwd"):
        reply = client.post(SPEECH, json={"input": "Hi.", "voice": name})
        assert fault(reply) == (404, "voice", "voice_not_found")
        assert "Anna" in reply.json()["error"]["message"]


def test_a_clip_goes_before_a_name_and_not_beside_a_kept_voice(
    client: httpx.Client, engine: Cloning
) -> None:
    made(client)
    body = {"input": "Hi.", "voice": "anna"}
    clip = {"ref_audio": base64.b64encode(wav(2.0)).decode(), "x_vector_only": True}
    reply = client.post(SPEECH, json=body | clip)
    assert reply.status_code == 200, reply.text
    assert "voice is not used" in reply.headers["x-vivace-warning"]
    assert len(engine.made) == 2
    for name, value in {"ref_text": "x", "x_vector_only": True, "ref_silence_ms": 1}.items():
        assert fault(client.post(SPEECH, json=body | {name: value}))[:2] == (422, name)
    assert client.post(SPEECH, json=body | {"x_vector_only": False}).status_code == 200


def test_aliases_may_stand_for_kept_voices(engine: Cloning, folder: Path) -> None:
    Store(folder).add(Making("Anna"), clone(hidden=HIDDEN), "encoder")
    config = ServerConfig(voices_dir=folder, voice_aliases={"nova": "Anna"})
    with serving(engine, config) as live, httpx.Client(base_url=live.url) as client:
        assert client.post(SPEECH, json={"input": "Hi.", "voice": "nova"}).status_code == 200
        assert spoken(engine).clone is not None


@pytest.mark.parametrize("kind", ["custom_voice", "voice_design"])
def test_without_a_base_checkpoint_none_is_made(folder: Path, kind: str) -> None:
    Store(folder).add(Making("Zelda"), clone(hidden=HIDDEN), "encoder")
    engine = FakeEngine(kind)
    config = ServerConfig(voices_dir=folder)
    with serving(engine, config) as live, httpx.Client(base_url=live.url) as client:
        for path, file in ((VOICES, "audio_sample"), ("/v1/voices/add", "files")):
            reply = post(client, path, file, name="x")
            assert fault(reply)[2] == "no_base_checkpoint"
        assert post(client, "/voices/clone", "clip", name="x").status_code == 422
        assert "Zelda" not in client.get(VOICES).text
        fields = {"voice": "Zelda", "instructions": "Deep."}
        reply = client.post(SPEECH, json={"input": "Hi.", **fields})
        assert fault(reply) == (404, "voice", "voice_not_found")


def test_a_server_without_a_folder_keeps_none(engine: Cloning) -> None:
    with serving(engine, None, decode) as live, httpx.Client(base_url=live.url) as client:
        assert fault(post(client, name="x")) == (422, None, "not_supported")
        assert fault(client.get(CONSENTS)) == (422, None, "not_supported")
        assert client.get(VOICES).json()["voices"] == []


def test_the_checkpoints_own_voices_stay(folder: Path) -> None:
    config = ServerConfig(voices_dir=folder)
    with serving(FakeEngine(), config) as live, httpx.Client(base_url=live.url) as client:
        reply = client.delete(f"{VOICES}/ryan")
        assert fault(reply)[:2] == (422, "voice")
        assert fault(client.delete(f"{VOICES}/nobody")) == (404, "voice", "voice_not_found")


def test_consents(client: httpx.Client) -> None:
    def consent(name: str) -> dict[str, Any]:
        fields = {"name": name, "language": "en-US"}
        reply = client.post(CONSENTS, data=fields, files={"recording": ("r.wav", wav())})
        assert reply.status_code == 200, reply.text
        said: dict[str, Any] = reply.json()
        return said

    first, second = consent("Anna A."), consent("Bert B.")
    assert first["object"] == "audio.voice_consent" and first["language"] == "en-US"
    listed = client.get(CONSENTS).json()
    assert {c["id"] for c in listed["data"]} == {first["id"], second["id"]}
    page = client.get(CONSENTS, params={"limit": 1}).json()
    assert page["has_more"] is True
    rest = client.get(CONSENTS, params={"after": page["last_id"]}).json()
    assert rest["has_more"] is False and len(rest["data"]) == 1
    url = f"{CONSENTS}/{first['id']}"
    assert client.post(url, json={"name": "Anna"}).json()["name"] == "Anna"
    voice = made(client, consent=first["id"])
    assert voice["consent"] == first["id"]
    assert client.delete(url).json()["deleted"] is True
    assert fault(client.get(url)) == (404, "consent", "consent_not_found")
    assert client.get(f"{VOICES}/anna").json()["consent"] == first["id"]  # the record stays
    assert fault(client.get(CONSENTS, params={"limit": "0"})) == (422, "limit", None)
    assert fault(client.post(CONSENTS, data={"name": "x"}, files={"recording": b"x"}))[0] == 400


def test_an_empty_recording_is_no_consent(client: httpx.Client) -> None:
    before = client.get(CONSENTS).json()["data"]
    for empty in (("r.wav", b""), ("r.wav", b"", "audio/wav")):
        fields = {"name": "Anna", "language": "en-US"}
        reply = client.post(CONSENTS, data=fields, files={"recording": empty})
        assert fault(reply) == (422, "recording", "clip_empty")
    assert client.get(CONSENTS).json()["data"] == before


# As their clients do it.


def test_openais_sdk(client: httpx.Client) -> None:
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as sdk:
        consent = sdk.audio.voice_consents.create(
            name="Anna", language="en-US", recording=("r.wav", wav())
        )
        voice = sdk.audio.voices.create(
            name="Anna", consent=consent.id, audio_sample=("a.wav", wav())
        )
        assert (voice.object, voice.type, voice.name) == ("audio.voice", "audio_sample", "Anna")
        sound = sdk.audio.speech.create(model="tts-1", voice={"id": voice.id}, input="Hi.")
        assert sound.content
        assert sdk.audio.voice_consents.retrieve(consent.id) == consent
        assert [each.id for each in sdk.audio.voice_consents.list()] == [consent.id]
        assert sdk.audio.voice_consents.delete(consent.id).deleted
        assert sdk.audio.voices.delete(voice.id).deleted
        with pytest.raises(openai.UnprocessableEntityError, match="voice_design"):
            sdk.audio.voices.create(name="x", prompt="A deep voice.", type="prompt")


def test_elevenlabs_sdk(client: httpx.Client, engine: Cloning) -> None:
    sdk = ElevenLabs(base_url=str(client.base_url), api_key="none", httpx_client=client)
    made = sdk.voices.ivc.create(
        name="Anna", files=[("a.wav", wav())], description="Warm.", labels={"accent": "northern"}
    )
    assert made.requires_verification is False
    voice = sdk.voices.get(made.voice_id)
    assert (voice.name, voice.category, voice.description) == ("Anna", "cloned", "Warm.")
    assert voice.labels == {"accent": "northern"}
    assert made.voice_id in [each.voice_id for each in sdk.voices.get_all().voices]
    assert b"".join(sdk.text_to_speech.convert(made.voice_id, text="Hi."))
    assert spoken(engine).clone is not None
    assert sdk.voices.update(made.voice_id, name="Berta").status == "ok"
    assert sdk.voices.get(made.voice_id).name == "Berta"
    assert sdk.voices.delete(made.voice_id).status == "ok"
    reply = post(client, "/v1/voices/add", "files", name="x", remove_background_noise="true")
    assert fault(reply)[:2] == (422, "remove_background_noise")
    for labels in ("[]", "{", '{"a": 1}', '"x"'):
        assert (
            fault(post(client, "/v1/voices/add", "files", name="x", labels=labels))[1] == "labels"
        )


def test_cartesias_sdk(client: httpx.Client, engine: Cloning) -> None:
    with Cartesia(base_url=str(client.base_url), api_key="none") as sdk:
        use_cartesia(sdk, client, engine)


def use_cartesia(sdk: Cartesia, client: httpx.Client, engine: Cloning) -> None:
    made = sdk.voices.clone(clip=("a.wav", wav()), name="Anna", language="de")
    assert (made.name, made.language, made.access) == ("Anna", "de", "private")
    assert [each.id for each in sdk.voices.list()] == [made.id]
    sdk.voices.update(made.id, name="Berta", description="Cold.")
    found = sdk.voices.get(made.id)
    assert (found.name, found.description, found.is_owner) == ("Berta", "Cold.", True)
    body = {
        "model_id": "sonic-3",
        "transcript": "Hi.",
        "voice": {"mode": "id", "id": made.id},
        "output_format": {"container": "wav", "encoding": "pcm_s16le", "sample_rate": 24_000},
    }
    assert client.post("/tts/bytes", json=body).status_code == 200
    request = spoken(engine)
    assert isinstance(request.clone, Clone) and request.language == "german"
    sdk.voices.delete(made.id)
    assert client.get(f"/voices/{made.id}").status_code == 404
    reply = post(client, "/voices/clone", "clip", name="x", language="en", base_voice_id="y")
    assert fault(reply)[:2] == (422, "base_voice_id")


def test_vllm_omnis_shape(client: httpx.Client) -> None:
    fields = {
        "name": "anna",
        "consent": "rec-1",
        "ref_text": "Hello.",
        "speaker_description": "Low",
    }
    voice = made(client, **fields)
    assert voice["success"] is True and voice["voice"]["name"] == "anna"
    (listed,) = client.get(VOICES).json()["uploaded_voices"]
    assert listed == voice["voice"]
    assert (listed["consent"], listed["ref_text"]) == ("rec-1", "Hello.")
    assert listed["speaker_description"] == "Low" and listed["file_size"] > 0
    assert client.delete(f"{VOICES}/anna").json()["success"] is True


KEY = "amy-key-0123456789"
MAKING = [  # path, the file's field, other fields
    (VOICES, "audio_sample", {"name": "B"}),
    (VOICES, "audio_sample", {"name": "B", "type": "prompt", "prompt": "Warm."}),
    (CONSENTS, "recording", {"name": "B", "language": "en"}),
    ("/v1/voices/add", "files", {"name": "B"}),
    ("/voices/clone", "clip", {"name": "B", "language": "en"}),
    (f"{VOICES}/import", "", {}),
    (f"{VOICES}/Anna/renew", "", {}),
]


@pytest.mark.parametrize(("path", "file", "fields"), MAKING)
def test_what_makes_a_voice_counts_in_its_keys_quota(
    engine: Cloning, folder: Path, path: str, file: str, fields: dict[str, str]
) -> None:
    Store(folder).add(Making("Anna"), clone(), "tiny", b"x")
    config = ServerConfig(voices_dir=folder, api_keys={"amy": KEY}, key_per_minute=1)
    headers = {"authorization": f"Bearer {KEY}"}
    with (
        serving(engine, config, decode) as live,
        httpx.Client(base_url=live.url, headers=headers) as client,
    ):
        files = {file: ("clip.wav", wav(), "audio/wav")} if file else None
        first = client.post(path, data=fields, files=files)
        assert first.status_code != 429
        again = client.post(path, data=fields, files=files)
        assert fault(again)[::2] == (429, "key_often")
        assert client.get(VOICES).status_code == 200  # to look is free


def test_a_voice_that_is_made_or_refused_leaves_its_place(engine: Cloning, folder: Path) -> None:
    config = ServerConfig(voices_dir=folder, api_keys={"amy": KEY}, key_sessions=1)
    headers = {"authorization": f"Bearer {KEY}"}
    with (
        serving(engine, config, decode) as live,
        httpx.Client(base_url=live.url, headers=headers) as client,
    ):
        assert post(client, name="Anna").status_code == 200
        assert post(client, name="Anna").status_code == 422
        assert post(client, name="Berta").status_code == 200


def test_a_folder_that_goes_bad_leaves_other_speech(folder: Path) -> None:
    engine = FakeEngine()
    with (
        serving(engine, ServerConfig(voices_dir=folder), decode) as live,
        httpx.Client(base_url=live.url) as client,
    ):
        folder.rename(folder.with_name("elsewhere"))
        folder.write_text("no folder")
        body = {"input": "Hi.", "voice": engine.voices[0].id}
        assert client.post(SPEECH, json=body).status_code == 200
        assert client.get("/metrics").status_code == 200
        assert client.get(VOICES).status_code == 200


@pytest.mark.parametrize(
    "limit", ["0", "101", "1000", "10000", "9" * 5000, "-1", "", "1.0", "\u0661"]
)
def test_a_pages_limit_is_bounded(client: httpx.Client, limit: str) -> None:
    assert client.get(CONSENTS, params={"limit": "100"}).status_code == 200
    assert fault(client.get(CONSENTS, params={"limit": limit}))[:2] == (422, "limit")


@pytest.mark.parametrize(
    ("card", "ref_text", "clip", "param"),
    [
        ({"language": "klingon"}, "Hello.", b"", "language"),
        ({"instruct": "x" * 5000}, "Hello.", b"", "instructions"),
        ({"prompt": "x" * 5000}, "Hello.", b"", "prompt"),
        ({}, "x" * 1001, b"", "ref_text"),
        ({}, "\u2026 !", b"", "ref_text"),
        ({}, "More than can be said in a second. " * 9, b"", "ref_text"),
        ({}, "Hello.", b"no clip", "ref_audio"),
        ({"created_s": 1e300}, "Hello.", b"", None),
    ],
)
def test_a_file_holds_only_what_could_be_made_here(
    client: httpx.Client,
    tmp_path: Path,
    card: dict[str, Any],
    ref_text: str,
    clip: bytes,
    param: str | None,
) -> None:
    created_s = card.pop("created_s", 1.0)
    there = Store(tmp_path / "there", now_s=lambda: created_s)
    there._folder.put = lambda id, data: data  # type: ignore[assignment, method-assign, return-value]
    data: Any = there.add(Making("Anna", **card), clone(ref_text=ref_text), "tiny", clip)
    head = {"content-type": "application/octet-stream"}
    reply = client.post(f"{VOICES}/import", content=data, headers=head)
    assert reply.status_code in (400, 422) and fault(reply)[1] == param
    assert client.get(VOICES).json()["voices"] == []


@pytest.mark.parametrize("name", ["Zoe\u0308", "Zo\u00eb", "ZOE\u0308", "zo\u00eb"])
@pytest.mark.parametrize("kept", ["Zoe\u0308", "Zo\u00eb"])
def test_a_name_is_found_however_its_accents_are_written(
    client: httpx.Client, engine: Cloning, kept: str, name: str
) -> None:
    id = made(client, kept)["id"]
    body = {"input": "Hi.", "voice": name}
    assert client.post(SPEECH, json=body).status_code == 200
    assert spoken(engine).clone is not None
    assert client.get(f"{VOICES}/{name}").json()["id"] == id


@pytest.mark.parametrize("name", ["Stra\u00dfe", "STRASSE", "strasse"])
def test_every_route_folds_a_name_alike(client: httpx.Client, engine: Cloning, name: str) -> None:
    id = made(client, "Stra\u00dfe")["id"]
    assert client.post(SPEECH, json={"input": "Hi.", "voice": name}).status_code == 200
    assert spoken(engine).clone is not None
    assert client.get(f"{VOICES}/{name}").json()["id"] == id
    assert client.delete(f"{VOICES}/{name}").json()["id"] == id
