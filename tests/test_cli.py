"""The `vivace` command."""

import io
import os
import shlex
import signal
import ssl
import subprocess
import sys
import wave
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import trustme
from tests.commands import Run, one_line

from vivace import cli, doctor
from vivace.audio.wav import to_s16le
from vivace.errors import (
    CheckpointError,
    EngineFailure,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)


def test_help_is_light() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import sys, vivace.cli; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "False\n"


def test_the_edge_runs_without_torch() -> None:
    modules = "vivace.engine, vivace.remote.near, vivace.server.serve"
    told = subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "False\n"


def test_help_lists_the_commands(run: Run) -> None:
    status, out, _ = run("--help")
    assert status == 0
    assert all(name in out for name in ("say", "serve", "voices", "doctor", "synth-checkpoint"))


def test_version(run: Run) -> None:
    assert run("--version")[:2] == (0, "vivace 0.1.0\n")


@pytest.mark.parametrize(
    "args",
    [
        ("sing",),
        ("say", "--seed", "-1", "Hello."),
        ("say", "--seed", "x", "Hello."),
        ("say", "--max-frames", "0", "Hello."),
        ("say", "--text-mode", "half", "Hello."),
        ("say", "--loud", "Hello."),
        ("serve", "--port", "x"),
        ("synth-checkpoint",),
    ],
)
def test_wrong_use_is_status_2(run: Run, args: tuple[str, ...]) -> None:
    status, _, err = run(*args)
    assert status == 2
    assert "Traceback" not in err
    assert "Error" in err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRequest("Half a character."), 2),
        (NotFound("No such voice.\nVoices: a, b."), 2),
        (CheckpointError("No such folder."), 2),
        (PermissionError(13, "Permission denied", "speech.wav"), 2),
        (Overloaded("Full.", retry_after_s=1), 1),
        (Unavailable("Out of memory."), 1),
        (EngineFailure("It broke."), 1),
        (KeyError("secret"), 1),
        (RuntimeError("a\nb"), 1),
    ],
)
def test_errors_are_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(doctor, "examine", fail)
    got, out, err = run("doctor")
    assert (got, out) == (status, "")
    assert str(error.args[-1]).split()[0] in one_line(err)


def test_debugging_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(doctor, "examine", fail)
    monkeypatch.setattr("sys.argv", ["vivace", "doctor"])
    monkeypatch.setenv("VIVACE_DEBUG", "1")
    with pytest.raises(KeyError):
        cli.app()


@pytest.mark.parametrize(
    ("args", "stdin", "words"),
    [
        (["..."], b"", "nothing that can be spoken"),
        ([""], b"", "nothing that can be spoken"),
        (["-"], b"", "nothing that can be spoken"),
        ([], b" \n", "nothing that can be spoken"),
        (["-"], b"a\xff", "not UTF-8 (byte 1)"),
        (["Hello.", "-o", "nowhere/x.wav"], b"", "nowhere/x.wav"),
        (["Hello.", "-o", "."], b"", "folder"),
        (["Hello.", "--dump", "nowhere/x.npz"], b"", "nowhere/x.npz"),
        (["Hello.", "--model", "./nowhere"], b"", "nowhere"),
    ],
)
def test_nothing_to_say_or_nowhere_to_write(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    args: list[str],
    stdin: bytes,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = run("say", *args, stdin=stdin)
    assert status == 2
    assert words in one_line(err)
    assert list(tmp_path.iterdir()) == []


def test_taken_port_is_told_before_the_model_loads(run: Run) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, err = run("serve", "--port", port, "--model", "./nowhere")
    assert status == 2
    assert str(port) in one_line(err)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def samples(path: Path) -> npt.NDArray[np.int16]:
    with wave.open(str(path)) as sound:
        assert sound.getparams()[:3] == (1, 2, 24_000)
        return np.frombuffer(sound.readframes(sound.getnframes()), dtype="<i2")


def test_say_writes_a_wav_and_tells_how_it_went(run: Run, home: Path) -> None:
    status, out, err = run("say", "Hello there.", "--threads", 1)
    assert (status, out) == (0, "")
    assert "finish reason stop" in err
    assert "written to speech.wav" in err
    assert len(samples(home / "speech.wav")) > 1920


def test_say_dumps_the_models_own_output(run: Run, home: Path) -> None:
    args = (
        "Hello there.",
        "--greedy",
        "--no-trim",
        "--max-frames",
        4,
        "--dump",
        "a.npz",
        "--threads",
        1,
    )
    for name, mode in (("a", "streaming"), ("b", "streaming"), ("c", "whole")):
        status, *_ = run("say", *args, "-o", f"{name}.wav", "--text-mode", mode)
        assert status == 0
        (home / "a.npz").rename(home / f"{name}.kept")
    dumps = {name: dict(np.load(home / f"{name}.kept")) for name in "abc"}
    assert set(dumps["a"]) == {"codes", "pcm", "prompt_ids"}
    assert (dumps["a"]["codes"].shape, dumps["a"]["codes"].dtype) == ((4, 16), np.int64)
    assert (dumps["a"]["pcm"].shape, dumps["a"]["pcm"].dtype) == ((4 * 1920,), np.float32)
    assert np.array_equal(dumps["a"]["codes"], dumps["b"]["codes"])
    assert not np.array_equal(dumps["a"]["codes"], dumps["c"]["codes"])
    assert np.array_equal(dumps["a"]["prompt_ids"], dumps["c"]["prompt_ids"])
    assert to_s16le(dumps["a"]["pcm"]) == samples(home / "a.wav").tobytes()


def test_say_pipes_raw_samples(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr("sys.stdout", pipe)
    args = ("-o", "-", "--seed", 3, "--max-frames", 2, "--threads", 1)
    status, _, err = run("say", *args, stdin="Grüße.".encode())
    assert status == 0
    assert "written" not in err
    assert "finish reason length" in err
    assert len(pipe.buffer.getvalue()) == 2 * 3840  # type: ignore[attr-defined]
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--voice", "nobody"), "heart"),
        (("--language", "Klingon"), "auto, english"),
        (("--device", "abacus"), "abacus"),
        (("--dtype", "float7"), "float7"),
        (("--output", "taken/x.wav"), "taken"),
    ],
)
def test_say_refuses_in_one_line(run: Run, home: Path, args: tuple[str, ...], words: str) -> None:
    (home / "taken").touch()
    status, _, err = run("say", "Hello.", "--threads", 1, *args)
    assert status == 2
    assert words in one_line(err.splitlines(keepends=True)[-1])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that takes voices from clips, and is soon done."""
    from vivace.checkpoint.synth import write_synthetic

    folder = tmp_path_factory.mktemp("synthetic") / "base"
    write_synthetic(folder, kind="base", until_text=True)
    return folder


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    from tests.audio.clips import packed

    (tmp_path / "clip.mp3").write_bytes(packed("mp3", 44_100, 2))
    return tmp_path / "clip.mp3"


@pytest.mark.parametrize(
    "how",
    [
        ("--ref-text", "Good morning."),
        ("--x-vector-only",),
        ("--x-vector-only", "--ref-text", "b"),
        ("--ref-text", "a", "--ref-silence-ms", "0"),
    ],
)
def test_say_with_the_voice_of_a_clip(
    run: Run, home: Path, base: Path, clip: Path, how: tuple[str, ...]
) -> None:
    status, _, err = run("say", "Hello.", "--model", base, "--ref-audio", clip, *how, "-o", "a.wav")
    assert status == 0 and len(samples(Path("a.wav"))) > 0
    assert ("short for a clip" in err) == ("a" in how), "what is odd about the clip is told"
    assert ("--ref-text is not used" in err) == ("b" in how)


def test_say_with_a_base_checkpoint_names_what_is_missing(run: Run, base: Path) -> None:
    status, _, err = run("say", "Hello.", "--model", base)
    said = one_line(err.splitlines(keepends=True)[-1])
    assert status == 2 and "--ref-audio" in said and "--voice" in said


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (("--ref-text", "a"), "--ref-audio"),
        (("--x-vector-only",), "--ref-audio"),
        (("--ref-audio", "{clip}"), "--x-vector-only"),
        (("--ref-audio", "{clip}", "--ref-text", "  "), "--x-vector-only"),
        (("--ref-audio", "nowhere.wav", "--x-vector-only"), "nowhere.wav"),
        (("--ref-audio", "notes.txt", "--x-vector-only"), "WAV, MP3"),
        (("--ref-audio", "{clip}", "--x-vector-only"), "does not clone"),  # the embedded voice
    ],
)
def test_say_refuses_what_is_no_clip_in_one_line(
    run: Run, home: Path, clip: Path, how: tuple[str, ...], words: str
) -> None:
    Path("notes.txt").write_text("no sound")
    status, _, err = run("say", "Hello.", *(part.format(clip=clip) for part in how))
    assert status == 2 and words in one_line(err)


def test_voices_of_the_embedded_checkpoint(run: Run, home: Path) -> None:
    status, out, _ = run("voices")
    assert status == 0
    assert "heart" in out
    assert "languages: auto, " in out


def test_voices_of_several_checkpoints(run: Run, home: Path) -> None:
    for name, kind in (("a", "custom_voice"), ("b", "base")):
        assert run("synth-checkpoint", name, "--kind", kind)[0] == 0
    status, out, _ = run("voices", "--model", "a", "--model", "b")
    assert status == 0
    first, second = out.split("b:\n")
    assert first.startswith("a:\n") and "ryan" in first
    assert "A base checkpoint has no named voices." in second


def test_synth_checkpoint_writes_one_that_is_read(run: Run, home: Path) -> None:
    status, out, _ = run("synth-checkpoint", "made", "--kind", "voice_design", "--seed", 5)
    assert (status, out) == (0, "written to made\n")
    assert "no named voices" in run("voices", "--model", "made")[1]
    status, _, err = run("synth-checkpoint", "made")
    assert status == 2
    assert "made" in one_line(err)
    for wrong in (("--size", "huge"), ("--kind", "opera"), ("--dtype", "float7")):
        status, _, err = run("synth-checkpoint", "other", *wrong)
        assert status == 2
        assert wrong[1] in one_line(err)


def test_synth_checkpoint_widens_another(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vivace.checkpoint import widen
    from vivace.checkpoint.embedded import embedded

    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        widen, "write_widened", lambda out, source, **o: asked.append((out, source, o))
    )
    (home / "small").mkdir()
    assert run("synth-checkpoint", "made", "--from", "small", "--seed", 5)[0] == 0
    assert run("synth-checkpoint", "made", "--from", "embedded", "--size", "0.6b")[0] == 0
    assert asked == [
        (Path("made"), Path("small"), {"size": "1.7b", "seed": 5, "dtype": "bfloat16"}),
        (Path("made"), embedded(), {"size": "0.6b", "seed": 0, "dtype": "bfloat16"}),
    ]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--from", "embedded", "--kind", "custom_voice"), "--kind does not go with --from"),
        (("--from", "embedded", "--mean-frames", 9), "--mean-frames does not go with --from"),
        (("--from", "nowhere"), "There is no folder 'nowhere'"),
        (("--from", "embedded", "--size", "tiny"), "Nothing can be widened to tiny"),
    ],
)
def test_synth_checkpoint_refuses_in_one_line(
    run: Run, home: Path, args: tuple[object, ...], words: str
) -> None:
    status, _, err = run("synth-checkpoint", "made", *args)
    assert status == 2
    assert words in one_line(err.splitlines(keepends=True)[-1])
    assert not (home / "made").exists()


@pytest.mark.parametrize("where", [["--in-process"], []])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_speaks_and_ends_on_a_signal(
    home: Path, where: list[str], number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "vivace", "serve", "--port", "0", "--threads", "1", *where]
    command += ["--voice-alias", "nova=heart", "--model-alias", "narrator"]
    with (
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
        ExitStack() as stack,
    ):
        stack.callback(process.kill)  # whatever fails, it must not be waited for
        assert process.stdout and process.stderr
        ready, hint = process.stdout.readline(), process.stdout.readline()
        url = ready.removeprefix("vivace is ready on ").strip()
        assert f"curl {url}/v1/audio/speech" in hint
        body = {"input": "Hello, I am vivace.", "max_new_tokens": 3, "response_format": "wav"}
        body |= {"voice": "nova", "model": "narrator", "trim": False}
        reply = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=60)
        assert reply.content[:4] == b"RIFF"
        assert len(reply.content) == 44 + 3 * 3840
        os.killpg(process.pid, number)  # as a terminal and as systemd do it, to both processes
        assert process.wait(timeout=30) == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("keyed", [False, True])
def test_what_serve_says_to_try_is_let_in(capsys: pytest.CaptureFixture[str], keyed: bool) -> None:
    from vivace.cli import _announce

    _announce("http://127.0.0.1:1", keyed=keyed)
    hint = capsys.readouterr().out.splitlines()[1].removeprefix("try: ")
    words = shlex.split(hint)
    assert words[:2] == ["curl", "http://127.0.0.1:1/v1/audio/speech"]
    headers = [words[i + 1] for i, word in enumerate(words) if word == "-H"]
    assert ("Authorization: Bearer YOUR_KEY" in headers) == keyed


@pytest.mark.parametrize("where", [["--in-process"], []])
def test_serve_without_a_checkpoint_is_one_line(home: Path, where: list[str]) -> None:
    command = [sys.executable, "-m", "vivace", "serve", "--port", "0", "--model", "./no", *where]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "./no" in one_line(ended.stderr)


def test_an_alias_names_a_voice(run: Run) -> None:
    status, _, err = run("serve", "--port", "0", "--voice-alias", "nova")
    assert status == 2
    assert "--voice-alias takes NAME=VALUE" in one_line(err)


def test_serve_with_a_certificate(home: Path, tmp_path: Path) -> None:
    authority, pair = trustme.CA(), tmp_path / "pair.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pair)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    command = [sys.executable, "-m", "vivace", "serve", "--port", "0", "--in-process"]
    with subprocess.Popen(
        [*command, "--tls-cert", str(pair)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        url = process.stdout.readline().removeprefix("vivace is ready on ").strip()
        assert url.startswith("https://")
        assert httpx.get(f"{url}/ready", verify=trust, timeout=60).status_code == 200
        process.terminate()
        assert process.wait(timeout=30) == 0


def test_a_key_needs_its_certificate(run: Run) -> None:
    status, _, err = run("serve", "--port", "0", "--tls-key", "key.pem")
    assert status == 2
    assert "--tls-cert" in one_line(err)


def test_doctor_looks_at_everything(run: Run) -> None:
    status, out, _ = run("doctor", "--port", 0)
    lines = [line.split()[:2] for line in out.splitlines()]
    assert status == 0
    assert [what for _, what in lines] == (
        ["python", "torch", "card", "cores", "memory", "disk", "hub", "port"]
    )
    assert {mark for mark, _ in lines} <= {"ok", "note"}


def test_doctor_misses_torch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    status, out, _ = run("doctor", "--port", 0)
    assert status == 1
    assert "MISSING  torch" in out


def test_doctor_knows_systems_that_will_not_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Windows")
    status, out, _ = run("doctor", "--port", 0)
    assert status == 1
    assert "MISSING  system   Windows is not supported" in out


@pytest.mark.parametrize(
    ("compilers", "headers", "says"),
    [
        ({"gcc"}, True, "ok       compiler /bin/gcc"),
        ({"clang"}, True, "ok       compiler /bin/clang"),
        (set(), True, "note     compiler no gcc or clang"),
        ({"gcc"}, False, "note     compiler no Python.h in"),
    ],
)
def test_doctor_looks_for_what_kernels_are_built_with(
    compilers: set[str],
    headers: bool,
    says: str,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    import torch

    if headers:
        (tmp_path / "Python.h").touch()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name in compilers else None)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    status, out, _ = run("doctor", "--port", 0)
    assert status == 0
    assert says in out


def test_doctor_notes_a_taken_port(run: Run) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, out, _ = run("doctor", "--port", taken.getsockname()[1])
    assert status == 0
    assert "note     port" in out
