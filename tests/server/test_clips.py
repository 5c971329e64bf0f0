"""Reference clips over HTTP: read, decoded, encoded once; what is none is refused by its field."""

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.audio.clips import FORMATS, packed, voice
from tests.fakes import FakeEngine
from tests.server.live import serving

from vivace.config import EngineConfig, ServerConfig
from vivace.engine import Engine
from vivace.errors import Overloaded, Unavailable, VivaceError
from vivace.server.clips import Clones, Reference, check_words, data_of, most_body
from vivace.types import Clone

SPEECH = "/v1/audio/speech"
WORDS = "The words of the clip."


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


WAV = packed("wav", 24_000)
CLIP = encoded(WAV)
BODY = {"input": "Hello.", "response_format": "pcm", "ref_audio": CLIP, "ref_text": WORDS}


@pytest.fixture(scope="module")
def _base() -> Iterator[tuple[FakeEngine, httpx.Client]]:
    engine = FakeEngine("base")
    with serving(engine) as live, httpx.Client(base_url=live.url, timeout=60) as client:
        yield engine, client


@pytest.fixture
def engine(_base: tuple[FakeEngine, httpx.Client]) -> FakeEngine:
    _base[0].reset("base")
    return _base[0]


@pytest.fixture
def client(_base: tuple[FakeEngine, httpx.Client], engine: FakeEngine) -> httpx.Client:
    return _base[1]


def test_a_clip_becomes_the_voice_of_the_request(client: httpx.Client, engine: FakeEngine) -> None:
    reply = client.post(SPEECH, json=BODY | {"ref_silence_ms": 40})
    assert reply.status_code == 200 and "x-vivace-warning" not in reply.headers
    clip = engine.clips.get_nowait()
    assert (clip.ref_text, clip.silence_ms) == (WORDS, 40)
    assert abs(len(clip.pcm) - len(voice(24_000))) < 4_800
    assert engine.next_session().request.clone is engine.voice


def test_an_x_vector_needs_no_words(client: httpx.Client, engine: FakeEngine) -> None:
    for name in ("x_vector_only", "x_vector_only_mode"):
        body = {**BODY, name: True, "seed": 3, "language": "en"}
        del body["ref_text"]
        assert client.post(SPEECH, json=body).status_code == 200
    assert engine.clips.get_nowait().ref_text == ""
    assert engine.clips.empty(), "the same clip is encoded once"
    reply = client.post(SPEECH, json=BODY | {"x_vector_only": True})
    assert "ref_text is not used" in reply.headers["x-vivace-warning"]


@pytest.mark.parametrize("name", FORMATS)
def test_33_every_format(client: httpx.Client, name: str) -> None:
    assert (
        client.post(SPEECH, json=BODY | {"ref_audio": encoded(packed(name, 48_000, 2))}).status_code
        == 200
    )


@pytest.mark.parametrize(
    "spelt",
    [
        CLIP,
        f"data:audio/wav;base64,{CLIP}",
        f"data:audio/mpeg;codecs=x;base64,{CLIP}",  # what it is called does not matter
        f"DATA:;BASE64,{CLIP}",
        base64.urlsafe_b64encode(WAV).decode(),
        CLIP.rstrip("="),
        "\n".join(CLIP[i : i + 76] for i in range(0, len(CLIP), 76)),
        f"  {CLIP}\r\n",
        f"data:audio/wav;base64, {CLIP}",
    ],
)
def test_33_base64_as_it_comes(spelt: str) -> None:
    assert data_of(spelt, ServerConfig()) == WAV


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("", 400),
        ("  ", 400),
        ("x", 400),
        ("Hello, world!", 400),
        ("../../etc/passwd", 400),
        ("C:\\clip.wav", 422),
        ("/etc/passwd", 422),  # base64, of no sound
        ("tests/audio/clip", 422),
        ("data:audio/wav,RIFF", 400),
        ("data:audio/wav;base64,", 400),
        ("data:audio/wav;base64,%%%", 400),
        ("file:///etc/passwd", 422),
        ("ftp://x/y.wav", 422),
        ("http://127.0.0.1:1/x.wav", 422),
        ("https://example.com/x.wav", 422),
        (encoded(b"RIFF" + bytes(1_000)), 422),
        (encoded(np.random.default_rng(0).bytes(1_024)), 422),
        (encoded(WAV[: len(WAV) // 2]), 422),
        (encoded(packed("wav", 24_000, pcm=np.zeros(120_000, np.float32))), 422),
        (encoded(packed("wav", 24_000, pcm=voice(24_000, 0.2))), 422),
        *(
            (encoded(packed("wav-f32", 24_000, pcm=np.where(voice(24_000) > 0.1, bad, 0))), 422)
            for bad in (np.float32("nan"), np.float32("inf"))
        ),
        (encoded(packed("flac", 8_000, pcm=np.zeros(8_000 * 900, np.float32))), 422),
        ("A" * (14 << 20), 413),
    ],
)
def test_28_33_34_36_what_is_no_clip(
    client: httpx.Client, engine: FakeEngine, source: str, status: int
) -> None:
    reply = client.post(SPEECH, json=BODY | {"ref_audio": source})
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, "ref_audio")
    assert "/tmp" not in reply.text and "Traceback" not in reply.text
    assert engine.sessions.empty() and client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({"ref_audio": None}, "ref_audio", 400),
        ({"ref_audio": 1}, "ref_audio", 422),
        ({"ref_text": None}, "ref_text", 400),
        ({"ref_text": "  "}, "ref_text", 400),
        ({"ref_text": "..."}, "ref_text", 422),
        ({"ref_text": ["x"]}, "ref_text", 422),
        ({"ref_text": "x" * 1_001}, "ref_text", 422),
        ({"ref_text": "word " * 190}, "ref_text", 422),  # in two seconds
        ({"x_vector_only": "true"}, "x_vector_only", 422),
        ({"x_vector_only": True, "x_vector_only_mode": False}, "x_vector_only_mode", 422),
        ({"ref_silence_ms": -1}, "ref_silence_ms", 422),
        ({"ref_silence_ms": 5_001}, "ref_silence_ms", 422),
        ({"task_type": "CustomVoice"}, "task_type", 422),
        ({"task_type": "base", "ref_audio": None}, "ref_audio", 400),
    ],
)
def test_28_fields_that_do_not_go_together(
    client: httpx.Client, engine: FakeEngine, fields: dict[str, object], param: str, status: int
) -> None:
    reply = client.post(SPEECH, json=BODY | fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)
    assert engine.sessions.empty()


def test_25_control_tokens_in_the_words_are_words(client: httpx.Client, engine: FakeEngine) -> None:
    words = "Hello <|im_end|> \u200bthere"
    assert client.post(SPEECH, json=BODY | {"ref_text": words}).status_code == 200
    assert engine.clips.get_nowait().ref_text == "Hello <|im_end|> there"


def test_words_and_their_time() -> None:
    assert check_words(WORDS, 2.0, "english") == []
    assert "short for a clip of 20.0 s" in check_words(WORDS, 20.0, "english")[0]
    with pytest.raises(VivaceError, match="cannot be said in the clip's"):
        check_words(WORDS * 5, 0.5, "english")


def test_29_a_label_is_no_voice(client: httpx.Client, engine: FakeEngine) -> None:
    """The same clip under two labels, then the same label over two clips."""
    for label in ("a", "b"):
        reply = client.post(SPEECH, json=BODY | {"voice": label, "ref_text": "Label."})
        assert reply.status_code == 200
        assert "voice is not used" in reply.headers["x-vivace-warning"]
    assert engine.clips.qsize() == 1
    other = encoded(packed("wav", 24_000, pcm=voice(24_000, 1.5)))
    client.post(SPEECH, json=BODY | {"voice": "a", "ref_audio": other, "ref_text": "Label."})
    first, second = engine.clips.get_nowait(), engine.clips.get_nowait()
    assert first.key != second.key


def test_instructions_are_dropped_and_said_so(client: httpx.Client, engine: FakeEngine) -> None:
    reply = client.post(SPEECH, json=BODY | {"instructions": "Whisper."})
    assert "instructions are not used" in reply.headers["x-vivace-warning"]
    assert engine.next_session().request.instruct == ""


@pytest.mark.parametrize(
    ("error", "status"),
    [(Overloaded("full", retry_after_s=2.0), 429), (Unavailable("closed"), 503)],
)
def test_what_the_engine_answers_is_passed_on_and_not_kept(
    client: httpx.Client, engine: FakeEngine, error: VivaceError, status: int
) -> None:
    engine.voice = error
    body = BODY | {"ref_text": f"Words for {status}."}
    assert client.post(SPEECH, json=body).status_code == status
    engine.voice = Clone(np.zeros(8, np.float32))
    assert client.post(SPEECH, json=body).status_code == 200


def test_warnings_about_a_clip_reach_the_client(client: httpx.Client) -> None:
    reply = client.post(SPEECH, json=BODY | {"ref_audio": encoded(packed("wav", 8_000))})
    assert "8000 Hz" in reply.headers["x-vivace-warning"]


def test_69_a_batch_begins_when_all_its_clips_are_clips(
    client: httpx.Client, engine: FakeEngine
) -> None:
    shared = {"ref_audio": CLIP, "ref_text": "Shared words.", "response_format": "pcm"}
    items = [{"input": f"Item {i}."} for i in range(5)]
    reply = client.post(f"{SPEECH}/batch", json={"items": items, **shared})
    assert reply.json()["succeeded"] == 5 and engine.clips.qsize() == 1
    while not engine.sessions.empty():
        assert engine.next_session().request.clone is engine.voice
    items[3]["ref_audio"] = encoded(b"no sound")
    reply = client.post(f"{SPEECH}/batch", json={"items": items, **shared})
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, "items[3].ref_audio")
    assert engine.sessions.empty()


def test_server_sent_events_and_speech_without_a_stream(client: httpx.Client) -> None:
    events = client.post(SPEECH, json=BODY | {"stream_format": "sse"})
    assert "speech.audio.done" in events.text
    assert client.post(SPEECH, json=BODY | {"stream": False}).status_code == 200


def test_a_clip_wanted_twice_at_once_is_encoded_once(
    client: httpx.Client, engine: FakeEngine
) -> None:
    go, begun = threading.Event(), threading.Event()
    clone = engine.clone

    def slow(clip: object, model: str | None = None) -> Clone:
        begun.set()
        assert go.wait(60)
        return clone(clip, model)  # type: ignore[arg-type]

    engine.clone = slow  # type: ignore[method-assign]
    try:
        with ThreadPoolExecutor(4) as pool:
            body = BODY | {"ref_text": "Wanted twice."}
            replies = [pool.submit(client.post, SPEECH, json=body) for _ in range(4)]
            assert begun.wait(60)
            assert client.get("/health").status_code == 200
            go.set()
            assert {reply.result().status_code for reply in replies} == {200}
    finally:
        del engine.clone  # type: ignore[method-assign]
    assert engine.clips.qsize() == 1


def test_bodies_have_room_for_a_clip_where_there_is_cloning(engine: FakeEngine) -> None:
    limits = ServerConfig().limits
    assert most_body(engine, limits) > limits.clip_bytes * 4 // 3 + limits.body_bytes  # type: ignore[arg-type]
    engine.reset()
    assert most_body(engine, limits) == limits.body_bytes  # type: ignore[arg-type]


def test_the_digest_is_of_all_that_shapes_the_voice() -> None:
    ours = Reference("x", "words", "auto")
    others = [
        Reference("y", "words", "auto"),
        Reference("x", "word", "auto"),
        Reference("x", "words", "english"),
        Reference("x", "words", "auto", 0),
    ]
    assert len({r.digest for r in [ours, *others]}) == 5
    assert Reference("x", "words", "auto").digest == ours.digest


async def test_voices_kept_are_bounded(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivace.server.clips.KEPT", 2)
    clones = Clones(ServerConfig())
    for words in ("one", "two", "three", "one"):
        await clones.voice(engine, Reference(CLIP, words, "auto"))  # type: ignore[arg-type]
    assert [engine.clips.get_nowait().ref_text for _ in range(4)][-1] == "one"
    assert len(clones._made) == 2


async def test_a_socket_makes_the_voice_before_its_first_turn(
    client: httpx.Client, engine: FakeEngine
) -> None:
    import websockets

    url = str(client.base_url).replace("http", "ws")
    async with websockets.connect(f"{url}{SPEECH}/stream") as socket:
        update = {"type": "session.update", "ref_audio": CLIP, "ref_text": "Foreseen."}
        await socket.send(json.dumps(update))
        clip = await asyncio.to_thread(engine.clips.get, timeout=60)
        assert clip.ref_text == "Foreseen."
        for text in ("One.", "Two."):
            await socket.send(json.dumps({"type": "input_text.append", "text": text}))
            await socket.send(json.dumps({"type": "input_text.end"}))
            session = await asyncio.to_thread(engine.next_session)
            assert session.request.clone is engine.voice
    assert engine.clips.empty()


# The whole matrix, on real engines.


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, httpx.Client]]:
    """Servers of tiny checkpoints by their kind."""
    from vivace.checkpoint.synth import write_synthetic

    config = EngineConfig(device="cpu", max_sessions=4, threads=1, slo_ttfa_s=600.0)
    with ExitStack() as stack:
        clients = {}
        for kind in ("custom_voice", "voice_design", "base"):
            folder: Path = tmp_path_factory.mktemp("kinds") / kind
            write_synthetic(folder, kind=kind)
            live = stack.enter_context(serving(stack.enter_context(Engine(folder, config=config))))
            clients[kind] = stack.enter_context(httpx.Client(base_url=live.url, timeout=120))
        yield clients


FIELDS: dict[str, object] = {
    "voice": "alloy",
    "ref_audio": CLIP,
    "ref_text": WORDS,
    "instructions": "Calm.",
    "x_vector_only": True,
}
CLONING = ("ref_audio", "ref_text", "x_vector_only")


def expected(kind: str, names: set[str]) -> set[str] | None:
    """The fields of which a refusal may name one; None is speech."""
    if kind != "base":
        wrong = names & set(CLONING)
        missing = {"instructions"} - names if kind == "voice_design" else set[str]()
        return (wrong | missing) or None
    if "ref_audio" not in names:
        return {"ref_audio"}
    return None if names & {"ref_text", "x_vector_only"} else {"ref_text"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["custom_voice", "voice_design", "base"])
def test_28_every_subset_of_the_fields(real: dict[str, httpx.Client], kind: str) -> None:
    client = real[kind]
    base = {"input": "Hello.", "response_format": "pcm", "max_new_tokens": 3, "seed": 1}
    for number in range(2 ** len(FIELDS)):
        names = {name for bit, name in enumerate(FIELDS) if number >> bit & 1}
        reply = client.post(SPEECH, json=base | {name: FIELDS[name] for name in names})
        wanted = expected(kind, names)
        if wanted is None:
            assert reply.status_code == 200 and len(reply.content) > 0, (names, reply.text)
        else:
            assert 400 <= reply.status_code < 500, (names, reply.text)
            assert reply.json()["error"]["param"] in wanted, (names, reply.text)
    assert client.get("/health").json()["status"] == "ok"


def test_27_the_clip_and_its_silence_are_cut_and_nothing_else(
    real: dict[str, httpx.Client],
) -> None:
    """As many samples as frames were asked for, whatever stands before them."""
    body = {**BODY, "max_new_tokens": 5, "min_new_tokens": 5, "trim": False, "seed": 2}
    for silence_ms in (0, 500):
        reply = real["base"].post(SPEECH, json=body | {"ref_silence_ms": silence_ms})
        assert reply.status_code == 200
        assert len(reply.content) == 5 * 1920 * 2


async def test_a_socket_speaks_with_a_clip(real: dict[str, httpx.Client]) -> None:
    import websockets

    url = str(real["base"].base_url).replace("http", "ws")
    async with websockets.connect(f"{url}{SPEECH}/stream", max_size=None) as socket:
        said = []

        async def until(kind: str) -> dict[str, object]:
            while True:
                message = await socket.recv()
                if isinstance(message, str):
                    said.append(json.loads(message))
                    if said[-1]["type"] == kind:
                        return said[-1]  # type: ignore[no-any-return]

        created = await until("session.created")
        assert created["limits"]["message_bytes"] > 10 << 20  # type: ignore[index]
        await socket.send(json.dumps({"type": "session.update", "ref_audio": CLIP}))
        error = await until("error")
        assert error["error"]["param"] == "ref_text"  # type: ignore[index]
        update = {"type": "session.update", "ref_audio": CLIP, "ref_text": WORDS}
        await socket.send(json.dumps(update | {"max_new_tokens": 4}))
        await until("session.updated")
        for _ in range(2):
            await socket.send(json.dumps({"type": "input_text.append", "text": "Hello."}))
            await socket.send(json.dumps({"type": "input_text.end"}))
            assert (await until("speech.audio.done"))["audio_s"] > 0  # type: ignore[operator]
        await socket.send(json.dumps(update | {"ref_audio": encoded(b"no sound")}))
        await until("session.updated")
        await socket.send(json.dumps({"type": "input_text.append", "text": "Hello."}))
        await socket.send(json.dumps({"type": "input_text.end"}))
        done = await until("speech.audio.done")
        assert (done["finish_reason"], done["error"]["param"]) == ("error", "ref_audio")  # type: ignore[index]
