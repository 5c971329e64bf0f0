"""The `vivace` command, run in this process."""

from collections.abc import Callable

Run = Callable[..., tuple[int, str, str]]  # ARGS of `vivace`; its status, stdout and stderr


def one_line(stderr: str) -> str:
    """What it says, which must be one line."""
    assert stderr.startswith("vivace: ")
    assert stderr.count("\n") == 1
    return stderr
