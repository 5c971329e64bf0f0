"""Signs that speech has gone wrong, from its sound and its codes: no clock, no session, no torch.

Thresholds come from what good speech does: docs/guards.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vivace.types import SAMPLES_PER_FRAME

SILENT: Final = 10 ** (-60 / 10)  # mean power of a frame of silence: -60 dBFS
EVERY: Final = 8  # frames between two looks for a loop


def powers(pcm: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Mean power [B, frames] of samples [B, frames * 1920]; not finite where one of them is not."""
    frames = pcm.reshape(len(pcm), -1, SAMPLES_PER_FRAME)
    with np.errstate(invalid="ignore", over="ignore"):
        out: npt.NDArray[Any] = np.einsum("bts,bts->bt", frames, frames) / SAMPLES_PER_FRAME
    return out


@dataclass(slots=True)
class Silence:
    """One stream's run of silent frames; `most` of them in a row are too many, 0 is never."""

    most: int
    run: int = 0

    def feed(self, power: Iterable[float]) -> int | None:
        """With how many of these frames the run is too long; None if it is not."""
        for count, value in enumerate(power, 1):
            self.run = self.run + 1 if value < SILENT else 0
            if self.run == self.most:
                return count
        return None


@dataclass(slots=True)
class Echo:
    """One stream's first codes: do they go round in a loop?

    They do if each of the last `most` is the one a period before, at least two periods long; 0 is
    never. The codes behind the first are drawn too freely to repeat, even in a loop.
    """

    most: int
    past: list[int] = field(default_factory=list)

    def feed(self, code: int) -> bool:
        """Is it a loop with this one? Looks every `EVERY` codes, whoever feeds them."""
        past, most = self.past, self.most
        past.append(code)
        if not most or len(past) % EVERY or len(past) <= most:
            return False
        if len(past) > 16 * most:
            del past[: 14 * most // EVERY * EVERY]
        longest = min(most // 2, len(past) - most)
        return any(self._repeats(period) for period in range(1, longest + 1))

    def _repeats(self, period: int) -> bool:
        past, most = self.past, self.most
        if past[-1] != past[-1 - period] or past[-2] != past[-2 - period]:
            return False
        return past[-most:] == past[-most - period : -period]
