"""Engines' parts that a fresh process can build by name, on a runner that counts, without torch."""

import os
import signal
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tests.runners import SPEC, Bytes, FakeRunner

from vivace.errors import CheckpointError
from vivace.schedule.costs import FREE

if TYPE_CHECKING:
    from vivace.parts import Parts


def parts(runner: FakeRunner) -> "Parts":
    known = {"model_id": "counted", "spec": SPEC, "tokenizer": Bytes()}
    return SimpleNamespace(
        sessions=None,
        **known,
        runner=runner,
        costs=FREE,
        device="none",
        cloner=None,
        beside=(),
    )  # type: ignore[return-value]


def by_seed() -> "Parts":
    """Speech of as many frames as its seed says."""
    return parts(FakeRunner(lambda seed: seed))


def without_checkpoint() -> "Parts":
    raise CheckpointError("There is no folder ./nowhere.")


def broken() -> "Parts":
    raise RuntimeError("a bug")


def killed() -> "Parts":
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def never() -> "Parts":
    """Says that it loads, on stdout, and does so for ever."""
    print(os.getpid(), flush=True)
    threading.Event().wait()
    raise AssertionError
