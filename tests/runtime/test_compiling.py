"""Passes are rehearsed side by side, in the mode that shares what is compiled."""

import threading
from contextvars import ContextVar
from types import SimpleNamespace

import pytest

from vivace.runtime import compiling

mode: ContextVar[object] = ContextVar("mode", default=None)


class Mode:
    """As Triton's, which is told by a context variable."""

    def __init__(self, compilers: object) -> None:
        self.compilers = compilers

    def __enter__(self) -> None:
        mode.set(self)

    def __exit__(self, *_: object) -> None:
        mode.set(None)


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    fake = SimpleNamespace(
        AsyncCompileMode=Mode,
        knobs=SimpleNamespace(runtime=SimpleNamespace(jit_post_compile_hook=None)),
    )
    monkeypatch.setattr(compiling, "_triton", lambda: fake)
    monkeypatch.setattr(compiling.os, "cpu_count", lambda: 4)
    return fake


def test_passes_run_at_the_same_time_in_one_mode() -> None:
    both, seen = threading.Barrier(2), list[object]()

    def step() -> None:
        both.wait(30)  # neither passes alone
        seen.append(mode.get())

    compiling.rehearse([step, step])
    assert len(seen) == 2 and isinstance(seen[0], Mode) and seen[0] is seen[1]
    assert mode.get() is None


def test_a_pass_that_fails_is_told() -> None:
    def fail() -> None:
        raise RuntimeError("does not compile")

    with pytest.raises(RuntimeError, match="does not compile"):
        compiling.rehearse([lambda: None, fail])


def test_what_is_compiled_later_is_counted(triton: SimpleNamespace) -> None:
    compiles = compiling.Compiles()
    triton.knobs.runtime.jit_post_compile_hook(key="k", already_compiled=False)
    assert compiles.count == 1
