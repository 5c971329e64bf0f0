"""`vivace voices`, with a tiny base checkpoint: made, spoken with, moved, forgotten."""

import wave
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.audio.clips import packed
from tests.commands import Run, one_line
from tests.server.live import serving
from tests.voices.makers import clone

from vivace.checkpoint.synth import write_synthetic
from vivace.config import EngineConfig, ServerConfig
from vivace.engine import Engine
from vivace.keep import with_voices
from vivace.types import Clip, Clone
from vivace.voices.store import Making, Store

WORDS = "The words of the clip."
SPEECH = "/v1/audio/speech"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "base"
    write_synthetic(path, size="tiny", kind="base", until_text=True)
    return path


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp3"
    path.write_bytes(packed("mp3", 44_100))
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "voices"
    monkeypatch.setenv("VIVACE_VOICES_DIR", str(path))
    return path


@pytest.fixture
def engine(base: Path) -> Iterator[Engine]:
    config = EngineConfig(device="cpu", threads=1, max_sessions=2, slo_ttfa_s=600.0)
    with Engine(base, config=config, offline=True) as engine:
        yield engine


def test_from_a_clip_to_a_file_and_back(
    run: Run, base: Path, clip: Path, folder: Path, tmp_path: Path
) -> None:
    options = ("--ref-text", WORDS, "--language", "en", "--seed", 7, "--model", base)
    status, out, said = run("voices", "add", "Anna", clip, *options)
    assert status == 0, said
    id = out.strip()
    assert "Anna" in run("voices", "list")[1] and id in run("voices", "list")[1]
    kept = Store(folder).get("anna")
    assert (kept.card.language, kept.card.seed, kept.clone.ref_text) == ("english", 7, WORDS)

    speech = tmp_path / "speech.wav"
    asked = ("--voice", "ANNA", "--model", base, "--output", speech)
    status, _, said = run("say", "Hello.", *asked)
    assert status == 0, said
    with wave.open(str(speech)) as file:
        assert file.getnframes() > 0

    moved = tmp_path / "anna.voice"
    assert run("voices", "export", "Anna", moved)[0] == 0
    assert run("voices", "rename", "Anna", "Berta")[0] == 0
    assert run("voices", "import", moved, "--name", "Anna")[0] == 0
    names = [k.card.name for k in Store(folder).voices()]
    assert sorted(names) == ["Anna", "Berta"]  # both were made at the same time
    assert run("voices", "rm", id)[0] == 0
    assert [k.card.name for k in Store(folder).voices()] == ["Anna"]


def test_mistakes_are_one_line(run: Run, clip: Path, folder: Path, tmp_path: Path) -> None:
    Store(folder).add(Making("Anna"), clone(), "other")
    (tmp_path / "noise").write_bytes(b"noise")
    for args, words in {
        ("voices", "rm", "nobody"): "Anna",
        ("voices", "rename", "Anna", "../x"): "name",
        ("voices", "export", "nobody"): "Anna",
        ("voices", "import", str(tmp_path / "noise")): "safetensors",
        ("voices", "import", str(tmp_path / "none")): "No such file",
        ("voices", "add", "x", str(tmp_path / "none")): "No such file",
        ("voices", "add", "x", str(clip)): "base checkpoint",  # the embedded one is none
    }.items():
        status, _, said = run(*args)
        assert status == 2
        assert words in one_line(said), args


def test_a_voice_of_another_model_is_not_spoken_with(run: Run, base: Path, folder: Path) -> None:
    Store(folder).add(Making("Anna"), clone(hidden=7), "other")
    status, _, said = run("say", "Hello.", "--voice", "Anna", "--model", base)
    assert status == 2 and "renew" in one_line(said)


def test_the_users_folder_holds_voices_unless_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert with_voices(ServerConfig()).voices_dir == tmp_path / "vivace" / "voices"
    named = ServerConfig(voices_dir=tmp_path / "mine")
    assert with_voices(named) == named
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    assert with_voices(ServerConfig()).voices_dir is None


def test_after_a_restart_a_known_voice_is_not_encoded_again(
    base: Path, folder: Path, clip: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upload over HTTP, with the real decoder and encoder; the same codes before and after."""
    body = {"input": "Hello there.", "voice": "Anna", "seed": 3, "response_format": "pcm"}

    def spoken(client: httpx.Client) -> np.ndarray:
        reply = client.post(SPEECH, json=body)
        assert reply.status_code == 200, reply.text
        return np.frombuffer(reply.content, "<i2").astype(int)

    config = ServerConfig(voices_dir=folder)
    with serving(engine, config) as live, httpx.Client(base_url=live.url, timeout=60) as client:
        files = {"audio_sample": clip.read_bytes()}
        fields = {"name": "Anna", "ref_text": WORDS}
        made = client.post("/v1/audio/voices", data=fields, files=files)
        assert made.status_code == 200, made.text
        before = spoken(client)
    again = EngineConfig(device="cpu", threads=1, max_sessions=2, slo_ttfa_s=600.0)
    with Engine(base, config=again, offline=True) as second:

        def refuse(clip: Clip) -> Clone:
            raise AssertionError("it was encoded again")

        monkeypatch.setattr(second, "clone", refuse)
        with serving(second, config) as live, httpx.Client(base_url=live.url, timeout=60) as client:
            after = spoken(client)
    assert len(before) == len(after) > 0
    assert np.abs(before - after).max() < 50  # other codes differ by thousands


@pytest.fixture(scope="module")
def designer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "design"
    write_synthetic(path, size="tiny", kind="voice_design", until_text=True)
    return path


def test_designed_by_one_model_and_spoken_with_by_another(
    base: Path, designer: Path, folder: Path
) -> None:
    config = EngineConfig(device="cpu", threads=1, max_sessions=2, slo_ttfa_s=600.0)
    served = ServerConfig(voices_dir=folder)
    with (
        Engine([designer, base], config=config, offline=True) as engine,
        serving(engine, served) as live,
        httpx.Client(base_url=live.url, timeout=120) as client,
    ):
        asked = {"type": "prompt", "name": "Deep", "prompt": "A deep, calm voice.", "seed": 5}
        made = client.post("/v1/audio/voices", json=asked)
        assert made.status_code == 200, made.text
        assert (made.json()["type"], made.json()["prompt"]) == ("prompt", "A deep, calm voice.")
        reply = client.post(SPEECH, json={"input": "Hello.", "voice": "deep"})
        assert reply.status_code == 200, reply.text
        other = client.post(SPEECH, json={"input": "Hello.", "instructions": "A high voice."})
        assert other.status_code == 200, other.text
        listed = client.get("/v1/audio/voices", params={"model": engine.models[0].model_id})
        assert listed.json()["voices"] == []
    kept = Store(folder).get("deep")
    assert kept.clone.ref_text.startswith("Good morning.")
    assert kept.clone.ref_codes is not None and kept.card.clip_bytes > 0
