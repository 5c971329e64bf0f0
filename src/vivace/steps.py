"""What the loop asks of a runner, and the steps that run."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from vivace.schedule.costs import Costs
from vivace.text.prompt import Prompt
from vivace.turns import Turn
from vivace.types import Frames, Pcm, Pending, Row, Sampling


class Steps(Protocol):
    """What the loop asks of a runner; tests and the simulator give it a fake one.

    Two lanes, tokens (`open`, `begin`, `prefill`, `frame`, `close`) and sound (`voice`), each in
    the order of its calls. No call blocks. Slots are for sessions of any model.
    """

    @property
    def depth(self) -> int:
        """How many token steps may be started before the first is collected."""
        ...

    @property
    def poll_s(self) -> float:
        """How long the loop may sleep while steps run, if nothing wakes it."""
        ...

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a step is done; a runner that cannot has a short `poll_s`."""
        ...

    def fetch(self, model: int, busy: Collection[int], costs: Costs) -> bool:
        """Is that model in memory? If not it will be, in the place of others that are not `busy`.

        Whenever one has been loaded `costs` are told of its steps. Raises what kept it from that.
        """
        ...

    def open(self, slot: int, sampling: Sampling, seed: int, model: int = 0) -> None:
        """Make the slot a fresh one, for a session of that model, which is in memory."""
        ...

    def close(self, slot: int) -> None:
        """Take back what the slot holds."""
        ...

    def room(self, slot: int, positions: int) -> bool:
        """Make room for that many positions in all, if there is any."""
        ...

    def begin(self, slot: int, prompt: Prompt) -> bool:
        """Take a prompt; false if rows of it are to be laid down by `prefill`."""
        ...

    def prefill(self, slot: int, rows: int) -> Pending[bool]:
        """Lay down its next rows; true once all but the last are there."""
        ...

    def frame(self, rows: Sequence[Row]) -> Pending[Frames]:
        """Make the next frame of every row; they are of one model."""
        ...

    def voice(self, slots: Sequence[int], frames: int) -> Pending[Pcm]:
        """Decode the next frames of every slot: samples [B, frames * 1920].

        What a slot whose speech has ended does not have may be anything.
        """
        ...


@dataclass(frozen=True, slots=True)
class Talking:
    """A token step that runs: prompts laid down, then one frame of each of the turns."""

    since_s: float
    laid: list[tuple[Turn, Pending[bool]]]
    turns: list[Turn]
    frames: Pending[Frames] | None

    def done(self) -> bool:
        """Lanes keep their order, so the last part tells."""
        last = self.frames or (self.laid[-1][1] if self.laid else None)
        return last is None or last.done()


@dataclass(frozen=True, slots=True)
class Speaking:
    """A codec step that runs: whose chunk it decodes, and where the samples will be."""

    since_s: float
    turns: list[Turn]
    frames: int
    sound: Pending[Pcm]
