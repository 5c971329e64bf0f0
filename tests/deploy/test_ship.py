"""Packages are built, installed where nothing is, and started as the files of deploy/ start them.

`make test-ship`: minutes, and gigabytes where torch comes with CUDA (TORCH_INDEX names another
index to take it from, as for the image).
"""

import array
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
import wave
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from tests.deploy.files import DEPLOY, ROOT, dockerfile, entry, starts

pytestmark = [pytest.mark.ship, pytest.mark.timeout(1800)]

MODEL = "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"  # of the files; the voice in the box stands in
OURS = ("PYTHON", "VIVACE_", "XDG_", "HF_", "VIRTUAL_ENV", "TRITON_")


def clean(**more: str) -> dict[str, str]:
    """The environment without what this program and its environment have set."""
    return {k: v for k, v in os.environ.items() if not k.startswith(OURS)} | more


def build(source: Path, out: Path, *what: str) -> None:
    command = [sys.executable, "-m", "build", *what, "--outdir", str(out), str(source)]
    subprocess.run(command, env=clean(), check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, out)
    return out


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


@pytest.fixture(scope="module")
def wheel(dist: Path) -> dict[str, bytes]:
    """The files of the wheel."""
    (path,) = dist.glob("*.whl")
    return members(path)


@pytest.fixture(scope="module")
def metadata(wheel: dict[str, bytes]) -> Message:
    (name,) = (name for name in wheel if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(wheel[name])


def test_the_wheel_of_the_sdist_is_the_wheel_of_the_tree(
    wheel: dict[str, bytes], tmp_path: Path
) -> None:
    build(ROOT, tmp_path, "--wheel")
    (path,) = tmp_path.glob("*.whl")
    assert members(path) == wheel


def test_the_wheel_is_the_package_and_nothing_else(wheel: dict[str, bytes]) -> None:
    source = ROOT / "src"
    files = (path for path in source.rglob("*") if path.is_file())
    expected = {path.relative_to(source).as_posix() for path in files if path.suffix != ".pyc"}
    assert {name for name in wheel if ".dist-info/" not in name} == expected
    for name in ("py.typed", "voice/model.safetensors", "voices/styles.yaml", "costs/h200.json"):
        assert f"vivace/{name}" in expected
    assert {"vivace/server/page/static/app.js", "vivace/bench/texts.tsv"} <= expected


def test_the_sdist_has_what_its_makefile_needs(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    makes = {"Makefile", "constraints.txt", "scripts/make_venv.sh", "tests/conftest.py"}
    assert makes | {"deploy/Dockerfile", "docs/structure.md", "LICENSE"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(".wt")]


def test_metadata(metadata: Message, wheel: dict[str, bytes]) -> None:
    assert (metadata["Name"], metadata["License-Expression"]) == ("vivace", "Apache-2.0")
    assert metadata["Description-Content-Type"] == "text/markdown"
    # The voice's card has the notices of what it was trained on.
    licences = metadata.get_all("License-File")
    assert licences == ["LICENSE", "src/vivace/voice/README.md"]
    for name in licences:
        (path,) = (path for path in wheel if path.endswith(f".dist-info/licenses/{name}"))
        assert wheel[path] == (ROOT / name).read_bytes()
    needs = [need for need in metadata.get_all("Requires-Dist") or [] if "extra ==" not in need]
    assert len(needs) >= 10
    assert all("<" in need and ">=" in need for need in needs), "bounds both ways"
    assert {"cluster", "bench"} <= set(metadata.get_all("Provides-Extra") or [])
    assert "Typing :: Typed" in (metadata.get_all("Classifier") or [])


@pytest.fixture(scope="module")
def venv(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing in it but what the CPU image has, by its own lines."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    index = os.environ.get("TORCH_INDEX") or os.environ.get("PIP_INDEX_URL")
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    env = clean(PATH=path, TORCH_INDEX=index or "https://pypi.org/simple")
    for line in dockerfile()["cpu"].pips:
        here = line.replace("/opt/vivace/", f"{ROOT}/").replace("/wheels/", f"{dist}/")
        subprocess.run(["sh", "-ec", here], env=env, check=True, cwd=folder)
    return folder


def test_packages_agree_and_none_is_of_the_tests(venv: Path) -> None:
    pip = [str(venv / "bin" / "pip")]
    subprocess.run([*pip, "check"], env=clean(), check=True)
    listed = subprocess.check_output([*pip, "list", "--format", "json"], env=clean())
    names = {one["name"] for one in json.loads(listed)}
    assert "vivace" in names
    assert not names & {"pytest", "httpx", "ray", "matplotlib", "transformers"}


def check_speech(wav: io.BytesIO | Path) -> None:
    """It is sound of some length that can be heard."""
    with wave.open(wav if isinstance(wav, io.BytesIO) else str(wav)) as file:
        assert file.getframerate() == 24_000
        samples = array.array("h", file.readframes(1 << 30))
    assert len(samples) > 0.3 * 24_000
    assert max(map(abs, samples)) > 1_000


def test_the_command_speaks(venv: Path, tmp_path: Path) -> None:
    env = clean(HOME=str(tmp_path / "home"))
    command = [venv / "bin" / "vivace", "say", "Hello", "-o", "x.wav"]
    subprocess.run(command, env=env, check=True, cwd=tmp_path)
    check_speech(tmp_path / "x.wav")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def healthy(venv: Path, port: int) -> bool:
    """What the image's health check says."""
    command = json.loads(dockerfile()["cpu"].last("HEALTHCHECK").partition("CMD ")[2])
    command[0] = str(venv / "bin" / command[0])
    quiet = subprocess.DEVNULL
    env = clean(VIVACE_PORT=str(port))
    return not subprocess.run(command, env=env, stderr=quiet, check=False).returncode


@contextmanager
def started(venv: Path, start: str, port: int, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The server as a file starts it, its folders under `place`; ready, and terminated at last."""
    how, voice = starts()[start], next(venv.rglob("vivace/voice"))
    command = entry(dockerfile()["cpu"]) if start != "systemd" else ["vivace"]
    command = [str(venv / "bin" / command[0]), *(a.replace(MODEL, str(voice)) for a in how.args)]
    own = {k: f"{place}{v}" if v.startswith("/") else v for k, v in how.env.items()}
    own |= {"VIVACE_HOST": "127.0.0.1", "VIVACE_PORT": str(port), "HOME": str(place / "home")}
    (place / "cwd").mkdir(parents=True)
    process = subprocess.Popen(command, env=clean(**own), cwd=place / "cwd")
    try:
        while not healthy(venv, port):
            assert process.poll() is None, "it ended before it was ready"
            time.sleep(0.2)
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("start", starts())
def test_the_server_serves(start: str, venv: Path, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    assert not healthy(venv, port)
    with started(venv, start, port, tmp_path / "root"):
        order = json.dumps({"input": "Hello there.", "response_format": "wav"}).encode()
        head = {"Content-Type": "application/json"}
        with urlopen(Request(f"{url}/v1/audio/speech", order, head), timeout=120) as response:
            check_speech(io.BytesIO(response.read()))
        for path, words in (("/", b"<html"), ("/metrics", b"vivace_ready"), ("/health", b"ok")):
            browser = Request(url + path, headers={"Accept": "text/html"})
            with urlopen(browser, timeout=60) as response:
                assert words in response.read()
    # Containers can write where a volume is, and services in their own folders: nowhere else.
    root = tmp_path / "root"
    written = {path.relative_to(root).parts[0] for path in root.rglob("*") if path.is_file()}
    assert written <= {"data", "var"}, sorted(written)


def test_the_example_of_settings_is_one(venv: Path) -> None:
    command = [venv / "bin" / "vivace", "config", "--config", DEPLOY / "vivace.toml"]
    shown = subprocess.check_output(command, env=clean(), text=True)
    assert f'log_format = "json"  # {DEPLOY}/vivace.toml' in shown
