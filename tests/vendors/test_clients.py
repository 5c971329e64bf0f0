"""The vendors' own packages with their own settings, each in a process of its own.

`VIVACE_CLIENTS` names a Python that has them, if it is not this one: `make test-clients`.
"""

import functools
import os
import queue
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes import FakeEngine, Play
from tests.integrations.test_guides import BY_CLIENTS, blocks, here, with_player
from tests.vendors.conftest import Places

CLIENTS = os.environ.get("VIVACE_CLIENTS", sys.executable)
SCRIPTS = Path(__file__).parent / "clients"
CHUNKS = 100
CASES = [
    *((name, "elevenlabs_sdk", "elevenlabs.client") for name in ("convert", "stream", "realtime")),
    *((name, "cartesia_sdk", "cartesia") for name in ("bytes", "sse", "contexts", "cancel")),
    *((name, "livekit_tts", "livekit.agents") for name in ("openai", "elevenlabs", "cartesia")),
    *((name, "pipecat_tts", "pipecat.services") for name in ("openai", "elevenlabs", "cartesia")),
]


@functools.cache
def installed(package: str) -> bool:
    found = subprocess.run([CLIENTS, "-c", f"import {package}"], capture_output=True, check=False)
    return found.returncode == 0


def need(package: str) -> None:
    if not installed(package):
        pytest.skip(f"{package} is not installed; make test-clients brings it")


def environment(places: Places, more: dict[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, **(more or {}), "SSL_CERT_FILE": str(places.trust)}


@pytest.mark.parametrize(
    ("case", "script", "package"), CASES, ids=[f"{script}-{case}" for case, script, _ in CASES]
)
def test_first_sound_before_the_last_frame(
    places: Places, engine: FakeEngine, tmp_path: Path, case: str, script: str, package: str
) -> None:
    """The last frame is not made until the client has heard something; then all goes to its end."""
    need(package)
    engine.play = Play(chunks=CHUNKS, open_gates=CHUNKS - 1)
    url = places.https if script.endswith("_sdk") else places.http
    with (
        (tmp_path / "stderr").open("w+") as faults,
        subprocess.Popen(
            [CLIENTS, str(SCRIPTS / f"{script}.py"), url, case],
            env=environment(places),
            stdout=subprocess.PIPE,
            stderr=faults,
            text=True,
        ) as client,
    ):
        try:
            assert client.stdout is not None
            first = client.stdout.readline()
            faults.seek(0)
            assert first == "first\n", faults.read()
            session = engine.next_session()
            assert session.made < CHUNKS and session.done is None
            engine.play = Play(chunks=CHUNKS)
            while session is not None:
                session.allow(1)
                try:
                    session = engine.sessions.get(block=False)
                except queue.Empty:
                    session = None
            client.stdout.read()
            code = client.wait(60)
            faults.seek(0)
            assert code == 0, faults.read()
        finally:
            client.kill()


GUIDES = [
    (guide, package, number, block)
    for guide, package in BY_CLIENTS.items()
    for number, block in enumerate(blocks(guide, "python"), 1)
]


@pytest.mark.parametrize(
    ("package", "block"),
    [(package, block) for _, package, _, block in GUIDES],
    ids=[f"{guide}-{number}" for guide, _, number, _ in GUIDES],
)
def test_guide_runs(
    places: Places, engine: FakeEngine, tmp_path: Path, package: str, block: str
) -> None:
    need(package)
    code = here(block, places.http).replace("https://127.0.0.1:8443", places.https)
    code = re.sub(r"ws://[\w.]+:8000", places.ws, code)
    env = environment(places, with_player(tmp_path))
    done = subprocess.run(
        [CLIENTS, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sounds = [path for path in tmp_path.iterdir() if path.suffix in {".raw", ".wav", ".mp3"}]
    assert done.stdout or any(path.stat().st_size for path in sounds)


def test_every_guide_has_code() -> None:
    assert {guide for guide, *_ in GUIDES} == set(BY_CLIENTS)
