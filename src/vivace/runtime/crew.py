"""The runners of several models behind the loop's one: a slot is of the model it was opened for."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from vivace.meters import Stock
from vivace.runtime.runner import Runner
from vivace.text.prompt import Prompt
from vivace.types import Frames, Pcm, Pending, Row, Sampling


class Crew:
    """Owner of which model each slot speaks with. Lanes, codec and pages are the runners' own."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        """`runners` are those of the models in their order, each made `beside` those before it."""
        self.runners = list(runners)
        self._of = [self.runners[0]] * self.slots

    @property
    def first(self) -> Runner:
        """The one that all others share with."""
        return self.runners[0]

    @property
    def slots(self) -> int:
        """Sessions at a time."""
        return self.first.state.slots

    @property
    def depth(self) -> int:
        """Token steps under way, of all models."""
        return self.first.depth

    @property
    def poll_s(self) -> float:
        """How often to look whether a step is done."""
        return self.first.poll_s

    @property
    def late(self) -> int:
        """Steps without a graph and kernels compiled since the last of them was warm."""
        return self.runners[-1].late

    def stock(self) -> Stock:
        """What there is to give of what they share, and what the caches of all of them did."""
        stocks = [runner.stock() for runner in self.runners]
        pools = {id(r.pages): stock for r, stock in zip(self.runners, stocks, strict=True)}
        return replace(
            stocks[0],
            pages=sum(stock.pages for stock in pools.values()),
            pages_free=sum(stock.pages_free for stock in pools.values()),
            prefix_hits=sum(stock.prefix_hits for stock in stocks),
            prefix_misses=sum(stock.prefix_misses for stock in stocks),
            prefix_bytes=sum(stock.prefix_bytes for stock in stocks),
        )

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a step is done, where a thread can."""
        self.first.watch(wake)

    def open(self, slot: int, sampling: Sampling, seed: int, model: int = 0) -> None:
        """Make the slot a fresh one of that model."""
        self._of[slot] = self.runners[model]
        self._of[slot].open(slot, sampling, seed)

    def close(self, slot: int) -> None:
        """Take back what the slot holds."""
        self._of[slot].close(slot)

    def room(self, slot: int, positions: int) -> bool:
        """Make room for that many positions in all, if there is any."""
        return self._of[slot].room(slot, positions)

    def begin(self, slot: int, prompt: Prompt) -> bool:
        """Take a prompt; false if rows of it are to be laid down by `prefill`."""
        return self._of[slot].begin(slot, prompt)

    def prefill(self, slot: int, rows: int) -> Pending[bool]:
        """Lay down its next rows; true once all but the last are there."""
        return self._of[slot].prefill(slot, rows)

    def frame(self, rows: Sequence[Row]) -> Pending[Frames]:
        """Make the next frame of every row; they are of one model."""
        runner = self._of[rows[0].slot]
        assert all(self._of[row.slot] is runner for row in rows), "a step is one model's"
        return runner.frame(rows)

    def voice(self, slots: Sequence[int], frames: int) -> Pending[Pcm]:
        """Decode the next frames of every slot, of whatever models."""
        return self.first.decoder.voice(slots, frames)
