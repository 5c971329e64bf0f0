"""Ranks sessions by when their listener runs dry, and fills one batch per lane."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import IntEnum

from vivace.config import MOST_CHUNK, Profile
from vivace.schedule.track import Track

MOST_PENDING = MOST_CHUNK  # frames a talker may be ahead of the codec


class Need(IntEnum):
    """Why a session wants to run, most pressing first."""

    URGENT = 0  # its listener is about to run dry
    FIRST = 1  # its listener has heard nothing yet
    LEAD = 2  # it is not far enough ahead
    AHEAD = 3  # it is, and runs only where nobody is waiting


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: prompts to lay down, sessions to give a frame, sessions to decode a chunk of."""

    prefill: tuple[Track, ...] = ()
    frame: tuple[Track, ...] = ()
    voice: tuple[Track, ...] = ()
    voice_frames: int = 0

    def __bool__(self) -> bool:
        return bool(self.prefill or self.frame or self.voice)


def need(track: Track, now: float, profile: Profile) -> Need:
    """How pressing a session is at `now`."""
    if track.dry_s is None:
        return Need.FIRST
    slack = track.dry_s - now
    if slack < profile.guard_s:
        return Need.URGENT
    return Need.LEAD if slack < profile.lead_s else Need.AHEAD


def plan(tracks: Collection[Track], now: float, profile: Profile) -> Plan:
    """The next step for all sessions that hold a slot."""
    ranked = sorted(tracks, key=_rank(now, profile))
    if any(need(t, now, profile) <= Need.FIRST and _runnable(t, profile) for t in ranked):
        ranked = [t for t in ranked if need(t, now, profile) < Need.AHEAD]
    prefill = [t for t in ranked if not (t.prefilled or t.laying)][: profile.prefills]
    frame = [t for t in ranked if t.prefilled and _wants_frame(t, profile)][: profile.frame_rows]
    voice, frames = _voice(ranked, now, profile)
    return Plan(tuple(prefill), tuple(frame), tuple(voice), frames)


def _rank(now: float, profile: Profile) -> Callable[[Track], tuple[Need, float]]:
    """Order by need, then the oldest of the unheard, then the least slack of the others."""

    def key(track: Track) -> tuple[Need, float]:
        since = track.arrived_s if track.dry_s is None else track.dry_s
        return need(track, now, profile), since

    return key


def _runnable(track: Track, profile: Profile) -> bool:
    return not track.prefilled or track.pending > 0 or _wants_frame(track, profile)


def _wants_frame(track: Track, profile: Profile) -> bool:
    """Can the talker go on: text is there, and neither codec nor reader is too far behind."""
    ahead = track.pending + track.flying
    if track.finished or not track.text_ready or ahead >= MOST_PENDING:
        return False
    return track.buffered_s < profile.ahead_s


def _voice(ranked: list[Track], now: float, profile: Profile) -> tuple[list[Track], int]:
    """The most pressing session that is due sets the chunk; all that have as much join."""
    due = [t for t in ranked if t.pending and _due(t, now, profile)]
    if not due:
        return [], 0
    anchor = due[0]
    most = profile.first_frames if anchor.voiced == 0 else profile.chunk_frames
    frames = min(anchor.pending, most)
    return [t for t in due if t.pending >= frames][: profile.codec_rows], frames


def _due(track: Track, now: float, profile: Profile) -> bool:
    """Decode now: the listener is about to run dry, no more will come soon, or a chunk is full."""
    if track.finished or not track.text_ready or need(track, now, profile) is Need.URGENT:
        return True
    full = profile.first_frames if track.voiced == 0 else profile.chunk_frames
    return track.pending >= full
