"""The `vivace` command."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vivace import cli, doctor
from vivace.errors import (
    CheckpointError,
    EngineFailure,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `vivace ARGS`; gives its status and what it wrote to stdout and stderr."""

    def run(*args: object, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["vivace", *map(str, args)])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            cli.app()
        code = ended.value.code
        return code if isinstance(code, int) else 0, *capsys.readouterr()

    return run


def one_line(stderr: str) -> str:
    assert stderr.startswith("vivace: ")
    assert stderr.count("\n") == 1
    return stderr


def test_help_is_light() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import sys, vivace.cli; print('torch' in sys.modules)"],
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
        ("serve", "--port", "70000"),
        ("serve", "--max-sessions", "0"),
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


def test_doctor_notes_a_taken_port(run: Run) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, out, _ = run("doctor", "--port", taken.getsockname()[1])
    assert status == 0
    assert "note     port" in out
