"""What other servers do, behind the same protocol: round robin and first come, first served.

Both know no listener's clock. A chunk's size is a fixed ramp, and a codec batch has one size. Their
admission, `Open`, lets everybody in and wait.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from vivace.config import EngineConfig, Profile
from vivace.schedule.admission import Admission, Forecast
from vivace.schedule.costs import Costs
from vivace.schedule.pace import Pacer
from vivace.schedule.policy import MOST_PENDING, Plan
from vivace.schedule.track import Track

RAMP = (1, 2, 4)  # frames of the first chunks; later ones are as large as the profile lets them


@dataclass(slots=True)
class Rival:
    """Serves in the order of arrival; with `rotates`, from behind the last that was served."""

    profile: Profile
    rotates: bool
    due_s: float = math.inf
    young: int = 0
    pressed: bool = False
    lead_s: float = 0.0  # sound is played as soon as it is there
    last_talked: Track | None = None
    last_voiced: Track | None = None

    def plan(self, tracks: Sequence[Track], now: float, *, talk: bool, speak: bool) -> Plan:
        """The next step of each lane that is free. Prompts first, then whoever's turn it is."""
        cold = (t for t in tracks if not (t.prefilled or t.laying))
        prefill = tuple(islice(cold, self.profile.prefills)) if talk else ()
        frame = self._frame(self._from(tracks, self.last_talked)) if talk else ()
        voice, frames = self._voice(self._from(tracks, self.last_voiced)) if speak else ((), 0)
        self.last_talked = frame[-1] if frame else self.last_talked
        self.last_voiced = voice[-1] if voice else self.last_voiced
        return Plan(prefill, frame, voice, frames)

    def _from(self, tracks: Sequence[Track], last: Track | None) -> Sequence[Track]:
        if not self.rotates or last not in tracks:
            return tracks
        behind = tracks.index(last) + 1
        return [*tracks[behind:], *tracks[:behind]]

    def _frame(self, tracks: Iterable[Track]) -> tuple[Track, ...]:
        """The first that can, and those behind it that are of its model."""
        full = self.profile.ahead_frames
        ready = [
            t
            for t in tracks
            if t.prefilled and t.text_ready and not t.finished
            if t.pending + t.flying < MOST_PENDING and t.voiced - t.taken < full
        ]
        alike = (t for t in ready if t.model == ready[0].model)
        return tuple(islice(alike, self.profile.frame_rows))

    def _voice(self, tracks: Iterable[Track]) -> tuple[tuple[Track, ...], int]:
        """The first that has its chunk, and those behind it whose chunk is as large."""
        ready = [t for t in tracks if not t.voicing and 0 < self.chunk(t) <= t.pending]
        if not ready:
            return (), 0
        frames = self.chunk(ready[0])
        alike = (t for t in ready if self.chunk(t) == frames)
        return tuple(islice(alike, self.profile.codec_rows)), frames

    def chunk(self, t: Track) -> int:
        """Frames of its next chunk: the ramp's, or what is left at the end of its speech."""
        at, size = 0, 0
        for size in RAMP:
            at += size
            if at > t.voiced:
                break
        else:
            size = self.profile.chunk_frames
        size = min(size, self.profile.chunk_frames)
        return min(size, t.pending) if t.finished or not t.text_ready else size


class Open(Admission):
    """Everybody is let in, and waits for a slot as long as it takes."""

    def room(self, seated: int, young: int, *, pressed: bool) -> bool:
        """Wherever a slot is free."""
        return seated < self.sessions

    def forecast(self, seated: int, waiting: int) -> Forecast:
        """Nobody is refused."""
        return Forecast(0.0, 0.0)

    def tired(self, waited_s: float) -> bool:
        """Nobody is sent away."""
        return False


def round_robin(config: EngineConfig, costs: Costs) -> Rival:
    """Everybody in turn."""
    return Rival(config.profile, rotates=True)


def first_come(config: EngineConfig, costs: Costs) -> Rival:
    """Who came first is served first, however far ahead of its listener it is."""
    return Rival(config.profile, rotates=False)


def everybody(config: EngineConfig, costs: Costs) -> Open:
    """The admission of a server that has none."""
    pacer = Pacer(config.profile, costs)
    return Open(pacer, config.max_sessions, config.max_queue, config.slo_ttfa_s)
