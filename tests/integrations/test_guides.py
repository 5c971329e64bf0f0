"""What docs/integrations tells people to run is run, and what their apps send is sent."""

import json
import os
import re
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import httpx
import pytest
import yaml
from openai import AsyncOpenAI
from tests.fakes import FakeEngine
from tests.server.live import serving

GUIDES = Path(__file__).parents[2] / "docs" / "integrations"
BY_CLIENTS = {
    "elevenlabs.md": "elevenlabs.client",
    "cartesia.md": "cartesia",
    "livekit.md": "livekit.agents",
    "pipecat.md": "pipecat.services",
}  # what tests/vendors runs where the package is there
FRAME_BYTES = 3840
TEXT = "The washing machine is done."


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(FakeEngine()) as live:
        yield live.url


def blocks(guide: str, language: str) -> list[str]:
    text = (GUIDES / guide).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def table(guide: str) -> dict[str, str]:
    """The guide's table of settings; code marks are not part of a value."""
    text = (GUIDES / guide).read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    return {name: value.strip("`") for name, value in rows}


def here(address: str, url: str) -> str:
    """An address in a guide, on the server of this test."""
    return re.sub(r"http://[\w.]+:8000", url, address)


RUNNABLE = [
    (guide.name, language, number, block)
    for guide in sorted(GUIDES.glob("*.md"))
    if guide.name not in BY_CLIENTS
    for language in ("bash", "python")
    for number, block in enumerate(blocks(guide.name, language), 1)
]


@pytest.mark.parametrize(
    ("language", "block"),
    [(language, block) for *_, language, _, block in RUNNABLE],
    ids=[f"{guide}-{language}-{number}" for guide, language, number, _ in RUNNABLE],
)
def test_block_runs(url: str, tmp_path: Path, language: str, block: str) -> None:
    if re.search(r"\bjq\b", block) and shutil.which("jq") is None:
        pytest.skip("no jq on this machine")
    printed = run(language, here(block, url), tmp_path)
    sounds = [*tmp_path.glob("*.wav"), *tmp_path.glob("*.raw")]
    assert sounds or printed
    for sound in sounds:
        data = sound.read_bytes()
        header = 44 if sound.suffix == ".wav" else 0
        assert data[:4] == b"RIFF" or not header
        assert len(data) > header and (len(data) - header) % FRAME_BYTES == 0


def run(language: str, code: str, folder: Path) -> str:
    """What the code prints; it runs in `folder` and must not fail."""
    command = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
    done = subprocess.run(
        [*command[language], code],
        cwd=folder,
        env=with_player(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def with_player(folder: Path) -> dict[str, str]:
    """An environment with this Python first, and an `aplay` that keeps what it should play."""
    bin_ = folder / "bin"
    bin_.mkdir()
    (bin_ / "aplay").write_text(f'#!/bin/sh\nexec cat > "{folder}/played.raw"\n')
    (bin_ / "aplay").chmod(0o755)
    path = os.pathsep.join([str(bin_), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


def test_the_error_in_the_guide(url: str, tmp_path: Path) -> None:
    (block,) = (block for block in blocks("openai.md", "python") if "except" in block)
    printed = run("python", here(block, url), tmp_path)
    assert printed.startswith("voice_not_found voice There is no voice 'nobody'")


def test_every_guide_is_tested() -> None:
    replayed = {"open-webui.md", "sillytavern.md", "home-assistant.md"}
    assert {guide for guide, *_ in RUNNABLE} | replayed | set(BY_CLIENTS) == {
        path.name for path in GUIDES.iterdir()
    }


def speak(endpoint: str, body: dict[str, Any], key: str | None = None) -> httpx.Response:
    """The app's request; wav in place of a format that is not served yet."""
    headers = {"authorization": f"Bearer {key}".strip()} if key is not None else {}
    reply = httpx.post(endpoint, json=body, headers=headers, timeout=30)
    if reply.status_code == 422 and reply.json()["error"]["code"] == "not_supported_yet":
        reply = httpx.post(endpoint, json=body | {"response_format": "wav"}, headers=headers)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("audio/")
    assert len(reply.content) > 500
    return reply


def test_open_webui(url: str) -> None:
    """Its server posts the browser's body with its own model and parameters."""
    (compose,) = blocks("open-webui.md", "yaml")
    env = yaml.safe_load(compose)["services"]["open-webui"]["environment"]
    base, key = here(env["AUDIO_TTS_OPENAI_API_BASE_URL"], url), env["AUDIO_TTS_OPENAI_API_KEY"]
    headers = {"authorization": f"Bearer {key}"}
    models = httpx.get(f"{base}/audio/models", headers=headers).json()["models"]
    assert env["AUDIO_TTS_MODEL"] in [model["id"] for model in models]
    voices = httpx.get(f"{base}/audio/voices", headers=headers).json()["voices"]
    assert all(voice["id"] and voice["name"] for voice in voices)
    for voice in (env["AUDIO_TTS_VOICE"], voices[0]["id"]):
        body = {"model": env["AUDIO_TTS_MODEL"], "input": TEXT, "voice": voice}
        reply = speak(
            f"{base}/audio/speech", body | json.loads(env["AUDIO_TTS_OPENAI_PARAMS"]), key
        )
        assert "x-vivace-warning" not in reply.headers
    shown = table("open-webui.md")
    assert shown["TTS Model"] == env["AUDIO_TTS_MODEL"]
    assert here(shown["API Base URL"], url) == base


def test_sillytavern(url: str) -> None:
    shown = table("sillytavern.md")
    for voice in shown["Available Voices (comma separated)"].split(","):
        body = {
            "model": shown["Model"],
            "input": TEXT,
            "voice": voice,
            "response_format": "mp3",
            "speed": float(shown["Speed"]),
        }
        speak(here(shown["Provider Endpoint"], url), body, key="")


def test_home_assistant_openai_tts(url: str) -> None:
    shown = table("home-assistant.md")
    endpoint = here(shown["API endpoint"], url)
    voices = httpx.get(endpoint.replace("/speech", "/voices")).json()["voices"]
    assert voices[0]["id"]
    body = {
        "model": shown["Model"],
        "input": TEXT,
        "voice": shown["Voice"],
        "response_format": shown["Audio format"],
        "speed": float(shown["Speed"]),
        **json.loads(shown["Extra JSON payload"]),
    }
    reply = speak(endpoint, body)
    assert "x-vivace-warning" not in reply.headers
    raw = json.dumps(body | {"response_format": "wav"}).encode()  # by urllib, as it does
    headers = {"Content-Type": "application/json", "User-Agent": "HomeAssistant-OpenAI-TTS"}
    with urlopen(Request(endpoint, raw, headers), timeout=30) as answer:
        assert answer.read()[:4] == b"RIFF"


async def test_home_assistant_through_wyoming(url: str) -> None:
    """The bridge reads the header off the stream and passes on what follows, 2,048 bytes a time."""
    _, compose = blocks("home-assistant.md", "yaml")
    env = yaml.safe_load(compose)["services"]["wyoming_openai"]["environment"]
    async with AsyncOpenAI(
        base_url=here(env["TTS_OPENAI_URL"], url), api_key=env["TTS_OPENAI_KEY"]
    ) as client:
        for voice in env["TTS_VOICES"].split():
            async with client.audio.speech.with_streaming_response.create(
                model=env["TTS_MODELS"], voice=voice, input=TEXT, response_format="wav"
            ) as response:
                data = b"".join([chunk async for chunk in response.iter_bytes(2048)])
            with wave.open(BytesIO(data)) as sound:
                assert sound.getparams()[:3] == (1, 2, 24_000)
            assert (len(data) - 44) % FRAME_BYTES == 0
            assert len(data) > FRAME_BYTES
