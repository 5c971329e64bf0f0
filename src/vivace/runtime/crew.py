"""The runners of several models behind the loop's one: a slot is of the model it was opened for."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from vivace.meters import Stock
from vivace.runtime.lanes import StreamLane, ThreadLane
from vivace.runtime.runner import Runner
from vivace.runtime.shelf import Shelf
from vivace.schedule.costs import Costs, CostTable
from vivace.text.prompt import Prompt
from vivace.types import Frames, Pcm, Pending, Row, Sampling


@dataclass(frozen=True, slots=True)
class Warm:
    """A runner that is ready, and what its steps take."""

    runner: Runner
    costs: CostTable


class Crew:
    """Owner of which model each slot speaks with. What is in memory is the shelf's."""

    def __init__(self, shelf: Shelf[Warm]) -> None:
        """On the shelf is at least one model, and stays there as long as none other is."""
        first = next(iter(shelf.held.values())).runner
        self.shelf, self.shared = shelf, first.shared
        self.slots, self.depth, self.poll_s = first.state.slots, first.depth, first.poll_s
        self._of: list[Runner | None] = [None] * self.slots

    @property
    def first(self) -> Runner:
        """One of those that are in memory."""
        return next(iter(self.shelf.held.values())).runner

    @property
    def runners(self) -> dict[int, Runner]:
        """Those that are in memory, by the numbers of their models."""
        return {model: self.shelf.held[model].runner for model in sorted(self.shelf.held)}

    def fetch(self, model: int, busy: Collection[int], costs: Costs) -> bool:
        """Is the model in memory? If not, it will be, in the place of others that are not busy.

        What its steps take is told to `costs`. Raises CheckpointError if it cannot be loaded.
        """
        before = self.runners if model not in self.shelf.held else {}
        warm = self.shelf.fetch(model, busy)
        for gone in before.keys() - self.shelf.held.keys():
            self._let_go(before[gone])
        if warm is None:
            return False
        known = costs.tokens.get(model)
        if known is None or known.table is not warm.costs:
            costs.add(model, warm.costs)
        return True

    def _let_go(self, runner: Runner) -> None:
        self._of = [None if of is runner else of for of in self._of]
        runner.forget()

    def stock(self) -> Stock:
        """What there is to give of what they share, and what the caches of all of them did."""
        stocks = [warm.runner.stock() for warm in list(self.shelf.held.values())]
        pools = [pages for _, pages in self.shared.pools]
        return replace(
            stocks[0],
            pages=sum(pages.total for pages in pools),
            pages_free=sum(pages.free for pages in pools),
            prefix_hits=sum(stock.prefix_hits for stock in stocks),
            prefix_misses=sum(stock.prefix_misses for stock in stocks),
            prefix_bytes=sum(stock.prefix_bytes for stock in stocks),
        )

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a step is done, where a thread can, or a model has been loaded."""
        self.shelf.wake = wake
        for lane in (self.shared.tokens, self.shared.decoder.lane):
            if isinstance(lane, ThreadLane):
                lane.wake = wake
            elif isinstance(lane, StreamLane):
                lane.serving = True

    def open(self, slot: int, sampling: Sampling, seed: int, model: int = 0) -> None:
        """Make the slot a fresh one of that model, which is in memory."""
        self._of[slot] = runner = self.shelf.held[model].runner
        runner.open(slot, sampling, seed)

    def close(self, slot: int) -> None:
        """Take back what the slot holds."""
        if (runner := self._of[slot]) is not None:
            runner.close(slot)

    def _runner(self, slot: int) -> Runner:
        runner = self._of[slot]
        assert runner is not None, "the slot was opened"
        return runner

    def room(self, slot: int, positions: int) -> bool:
        """Make room for that many positions in all, if there is any."""
        return self._runner(slot).room(slot, positions)

    def begin(self, slot: int, prompt: Prompt) -> bool:
        """Take a prompt; false if rows of it are to be laid down by `prefill`."""
        return self._runner(slot).begin(slot, prompt)

    def prefill(self, slot: int, rows: int) -> Pending[bool]:
        """Lay down its next rows; true once all but the last are there."""
        return self._runner(slot).prefill(slot, rows)

    def frame(self, rows: Sequence[Row]) -> Pending[Frames]:
        """Make the next frame of every row; they are of one model."""
        runner = self._runner(rows[0].slot)
        assert all(self._of[row.slot] is runner for row in rows), "a step is one model's"
        return runner.frame(rows)

    def voice(self, slots: Sequence[int], frames: int) -> Pending[Pcm]:
        """Decode the next frames of every slot, of whatever models."""
        return self.shared.decoder.voice(slots, frames)
