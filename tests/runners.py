"""A runner that counts instead of computing: tests say how long speech is and what fails."""

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

import numpy as np

from vivace.model.spec import CodecIds, CodecSpec, ModelSpec, TextIds, TransformerSpec
from vivace.schedule.costs import Costs
from vivace.text.prompt import Prompt
from vivace.types import SAMPLES_PER_FRAME, Frames, Pcm, Row, Sampling

STACK = TransformerSpec(8, 16, 1, 2, 1, 4, 1280, 1e6, 1e-6)
CODEC = CodecSpec(8, 8, 256, 16, 1, 16, 8, 16, 1, 2, 2, 4, 72, 1e4, 1e-5, (8, 5, 4, 3), (2, 2), {})
SPEC = ModelSpec(
    kind="custom_voice",
    size="tiny",
    text_vocab=512,
    text_hidden=8,
    talker=STACK,
    predictor=STACK,
    codebooks=16,
    text_ids=TextIds(300, 301, 302, 303, 304, 305),
    codec_ids=CodecIds(357, 358, 356, 362, 363, 364, 365),
    languages={"english": 306, "chinese": 307, "sichuan_dialect": 308},
    speakers={"ryan": 400, "eric": 401},
    dialects={"eric": "sichuan_dialect"},
    codec=CODEC,
    speaker_encoder=None,
    defaults=Sampling(seed=1),
)


P = ParamSpec("P")
R = TypeVar("R")


def finished(step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "Future[R]":
    """A step that is over as soon as it has begun."""
    future: Future[R] = Future()
    try:
        future.set_result(step(*args, **kwargs))
    except Exception as error:
        future.set_exception(error)
    return future


class FakeRunner:
    """Frame n of a slot is sixteen times n; each of its prompts ends after `length(seed)` frames.

    A frame that is asked for after the end is a row of -1, which nobody should hear.
    """

    depth = 1
    poll_s = math.inf
    known = False  # has every prompt been laid down before?
    cut = False  # may the loop end speech of its own accord? Then a codec step may go beyond it

    def __init__(
        self, length: Callable[[int], int] = lambda seed: 5, *, pages: int = 1 << 20
    ) -> None:
        self.length, self.pages = length, pages
        self.seeds: dict[int, int] = {}
        self.made: dict[int, int] = {}
        self.voiced: dict[int, int] = {}
        self.texts: dict[int, list[int]] = {}
        self.models: dict[int, int] = {}
        self.prompts: dict[int, Prompt] = {}
        self.laid: dict[int, int] = {}
        self.over: set[int] = set()  # slots whose prompt has come to its end
        self.widest = 0  # positions that any slot had room for
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        self.fault: Callable[[str, tuple[int, ...]], None] = lambda call, slots: None

    def watch(self, wake: Callable[[], None]) -> None:
        pass

    def _note(self, call: str, *slots: int) -> None:
        self.calls.append((call, slots))
        self.fault(call, tuple(self.seeds.get(slot, -1) for slot in slots))

    def fetch(self, model: int, busy: Collection[int], costs: Costs) -> bool:
        return True

    def open(self, slot: int, sampling: Sampling, seed: int, model: int = 0) -> None:
        assert slot not in self.seeds, "a slot was given out twice"
        self.models[slot] = model
        self.seeds[slot], self.made[slot], self.voiced[slot] = seed, 0, 0
        self.texts[slot] = []

    def close(self, slot: int) -> None:
        del self.seeds[slot]

    def room(self, slot: int, positions: int) -> bool:
        self.widest = max(self.widest, positions)
        return positions <= self.pages

    def begin(self, slot: int, prompt: Prompt) -> bool:
        assert prompt.after == self.made[slot], "frames must keep their numbers"
        self.over.discard(slot)
        self.prompts[slot] = prompt
        self.laid[slot] = 1  # the last row is the first frame's
        return self.known

    def prefill(self, slot: int, rows: int) -> "Future[bool]":
        return finished(self._prefill, slot, rows)

    def _prefill(self, slot: int, rows: int) -> bool:
        self._note("prefill", slot)
        self.laid[slot] += rows
        return self.laid[slot] >= len(self.prompts[slot].text)

    def frame(self, rows: Sequence[Row]) -> "Future[Frames]":
        return finished(self._frame, rows)

    def _frame(self, rows: Sequence[Row]) -> Frames:
        self._note("frame", *(row.slot for row in rows))
        assert len({self.models[row.slot] for row in rows}) == 1, "a step is one model's"
        codes = np.zeros((len(rows), 16), dtype=np.int64)
        ended = np.zeros(len(rows), dtype=np.bool_)
        for i, row in enumerate(rows):
            self.texts[row.slot].append(row.text)
            codes[i], ended[i] = self._next(row.slot)
        return Frames(codes, ended)

    def _next(self, slot: int) -> tuple[int, bool]:
        if slot in self.over:
            return -1, False
        made = self.made[slot]
        if made - self.prompts[slot].after >= self.length(self.seeds[slot]):
            self.over.add(slot)
            return 0, True
        self.made[slot] += 1
        return made, False

    def voice(self, slots: Sequence[int], frames: int) -> "Future[Pcm]":
        return finished(self._voice, slots, frames)

    def _voice(self, slots: Sequence[int], frames: int) -> Pcm:
        self._note("voice", *slots)
        pcm = np.zeros((len(slots), frames * SAMPLES_PER_FRAME), dtype=np.float32)
        for i, slot in enumerate(slots):
            first = self.voiced[slot]
            ended = self.cut or self.made[slot] >= self.length(self.seeds[slot])
            assert ended or first + frames <= self.made[slot], "decoded what was not made"
            pcm[i] = np.repeat(np.arange(first, first + frames), SAMPLES_PER_FRAME)
            self.voiced[slot] += frames
        return pcm


class Bytes:
    """A tokenizer whose ids are the text's bytes."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def stream(self) -> "Bytes":
        return self

    def feed(self, text: str) -> list[int]:
        return self.encode(text)

    def settle(self) -> list[int]:
        return []

    def finish(self) -> list[int]:
        return []


class SlowRunner(FakeRunner):
    """The same, two token steps deep, whose steps are over when the test says so."""

    depth = 2

    def __init__(self, length: Callable[[int], int] = lambda seed: 5) -> None:
        super().__init__(length)
        self.tokens: deque[Callable[[], None]] = deque()
        self.sound: deque[Callable[[], None]] = deque()

    def _later(
        self,
        lane: "deque[Callable[[], None]]",
        step: Callable[P, R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> "Future[R]":
        future: Future[R] = Future()

        def run() -> None:
            try:
                future.set_result(step(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)

        lane.append(run)
        return future

    def open(self, slot: int, sampling: Sampling, seed: int, model: int = 0) -> None:
        self._later(self.tokens, super().open, slot, sampling, seed, model)

    def close(self, slot: int) -> None:
        self._later(self.tokens, super().close, slot)

    def begin(self, slot: int, prompt: Prompt) -> bool:
        self._later(self.tokens, super().begin, slot, prompt)
        return self.known

    def prefill(self, slot: int, rows: int) -> "Future[bool]":
        return self._later(self.tokens, self._prefill, slot, rows)

    def frame(self, rows: Sequence[Row]) -> "Future[Frames]":
        return self._later(self.tokens, self._frame, rows)

    def voice(self, slots: Sequence[int], frames: int) -> "Future[Pcm]":
        return self._later(self.sound, self._voice, slots, frames)

    def run_one(self, *, sound: bool) -> bool:
        """The oldest step of a lane is over; false if none runs there."""
        lane = self.sound if sound else self.tokens
        if lane:
            lane.popleft()()
        return bool(lane)
