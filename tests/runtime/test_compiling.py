"""Late compilations do not go unseen."""

from types import SimpleNamespace

import pytest

from vivace.runtime import compiling


def test_what_is_compiled_later_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(jit_post_compile_hook=None)
    fake = SimpleNamespace(knobs=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(compiling, "_triton", lambda: fake)
    compiles = compiling.Compiles()
    runtime.jit_post_compile_hook(key="k", already_compiled=False)
    assert compiles.count == 1
