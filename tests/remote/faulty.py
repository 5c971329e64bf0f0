"""An engine's parts that go wrong where a request's seed says so, in whatever process they run."""

import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.remote.builds import parts
from tests.runners import FakeRunner

from vivace.errors import DeviceLost, Unavailable
from vivace.types import Row, Sampling

if TYPE_CHECKING:
    from vivace.parts import Parts
    from vivace.text.prompt import Prompt

CALLS = ("open", "begin", "prefill", "frame", "voice")
FAULTS = ("raise", "memory", "lost", "kill", "stop", "hang")
SEEDS = {pair: 1_000_001 + n for n, pair in enumerate(itertools.product(FAULTS, CALLS))}
PAIRS = {seed: pair for pair, seed in SEEDS.items()}


def go_wrong(fault: str) -> None:
    """As that fault does."""
    if fault == "raise":
        raise RuntimeError("scripted")
    if fault == "memory":
        raise Unavailable("no memory is left", code="out_of_memory")
    if fault == "lost":
        raise DeviceLost("the card has failed")
    if fault == "hang":
        threading.Event().wait()
    os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)


class Wrong:
    """A runner before another; it fails a call for the seeds that name it.

    Frames and sound fail once their session has been heard.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._fault: dict[int, tuple[str, str]] = {}  # by slot
        self._heard: Counter[int] = Counter()  # chunks begun, by slot: all but the last are done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def _meet(self, call: str, *slots: int) -> None:
        for slot in slots:
            fault, where = self._fault.get(slot, ("", ""))
            if where == call and (call not in ("frame", "voice") or self._heard[slot] > 1):
                go_wrong(fault)

    def open(self, slot: int, sampling: Sampling, seed: int, model: int = 0) -> None:
        self._heard[slot] = 0
        self._fault[slot] = PAIRS.get(seed, ("", ""))
        self._runner.open(slot, sampling, seed, model)
        self._meet("open", slot)

    def begin(self, slot: int, prompt: "Prompt") -> bool:
        self._meet("begin", slot)
        return bool(self._runner.begin(slot, prompt)) and self._fault[slot][1] != "prefill"

    def prefill(self, slot: int, rows: int) -> Any:
        self._meet("prefill", slot)
        return self._runner.prefill(slot, rows)

    def frame(self, rows: Sequence[Row]) -> Any:
        self._meet("frame", *(row.slot for row in rows))
        return self._runner.frame(rows)

    def voice(self, slots: Sequence[int], frames: int) -> Any:
        self._meet("voice", *slots)
        self._heard.update(slots)
        return self._runner.voice(slots, frames)


def _length(seed: int) -> int:
    return 200 if seed in PAIRS else seed


def faulty() -> "Parts":
    """Speech of as many frames as its seed says, unless that is the seed of a fault."""
    return parts(Wrong(FakeRunner(_length)))  # type: ignore[arg-type]


def once() -> "Parts":
    """The same; only the first process to build it comes up, as the file in VIVACE_ONCE tells."""
    mark = Path(os.environ["VIVACE_ONCE"])
    if mark.exists():
        raise RuntimeError("scripted: a start that fails")
    mark.touch()
    return faulty()


def stuck_later() -> "Parts":
    """The same; every process but the first loads for ever."""
    mark = Path(os.environ["VIVACE_ONCE"])
    if mark.exists():
        threading.Event().wait()
    mark.touch()
    return faulty()
