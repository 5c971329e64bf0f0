"""What is counted of one session: the listener's clock starts with the first sound."""

from vivace.schedule.track import Track
from vivace.types import FRAME_S


def test_a_listener_who_ran_dry_starts_again_from_now() -> None:
    track = Track(0.0, deadline_s=95.0)
    track.sent(2, 2 * FRAME_S, 100.0)
    assert track.deadline_s == 100.0 + 2 * FRAME_S
    track.sent(1, FRAME_S, 100.0)
    assert track.deadline_s == 100.0 + 3 * FRAME_S


def test_a_listener_who_was_sent_no_sound_has_heard_nothing() -> None:
    track = Track(1.0, prefilled=True, made=4, voicing=3)
    track.sent(3, 0.0, 100.0)
    assert (track.voiced, track.held, track.deadline_s) == (3, 3, None)
    track.sent(1, 0.25, 200.0)
    assert (track.deadline_s, track.voiced - track.held) == (200.25, 4)
