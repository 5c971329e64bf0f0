"""The policy alone: who runs next, and that nobody is forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from vivace.config import Profile
from vivace.schedule.policy import MOST_PENDING, Need, need, plan
from vivace.schedule.track import Track
from vivace.types import FRAME_S

PROFILE = Profile(first_frames=1, chunk_frames=4)


def heard(slack_s: float, **fields: object) -> Track:
    """A stream whose listener runs dry in `slack_s` from time 100."""
    base = {"slot": 0, "prefilled": True, "made": 10, "voiced": 10, "taken": 10}
    return Track(0.0, deadline_s=100.0 + slack_s, **{**base, **fields})  # type: ignore[arg-type]


def unheard(arrived_s: float, **fields: object) -> Track:
    return Track(arrived_s, **{"slot": 1, "prefilled": True, **fields})  # type: ignore[arg-type]


def test_needs_follow_the_listeners_clock() -> None:
    guard, lead = PROFILE.guard_s, PROFILE.lead_s
    assert need(heard(guard - 0.01), 100.0, PROFILE) is Need.URGENT
    assert need(heard(guard + 0.01), 100.0, PROFILE) is Need.LEAD
    assert need(heard(lead + 0.01), 100.0, PROFILE) is Need.AHEAD
    assert need(unheard(0.0), 100.0, PROFILE) is Need.FIRST


def test_who_runs_dry_first_comes_first_then_the_oldest_newcomer() -> None:
    tracks = [unheard(5.0), heard(1.0), unheard(4.0), heard(0.1), heard(0.05)]
    order = plan(tracks, 100.0, PROFILE).frame
    assert [tracks.index(t) for t in order] == [4, 3, 2, 0, 1]


def test_streams_far_ahead_step_aside_only_while_somebody_needs_the_card() -> None:
    ahead, new = heard(10.0), unheard(1.0)
    assert plan([ahead, new], 100.0, PROFILE).frame == (new,)
    assert plan([ahead], 100.0, PROFILE).frame == (ahead,)
    waiting_for_text = unheard(1.0, text_ready=False)
    assert plan([ahead, waiting_for_text], 100.0, PROFILE).frame == (ahead,)


def test_the_first_chunk_is_one_frame_and_later_ones_grow_with_the_lead() -> None:
    first = plan([unheard(1.0, made=3)], 100.0, PROFILE)
    assert first.voice_frames == PROFILE.first_frames == 1
    assert plan([heard(1.0, made=12)], 100.0, PROFILE).voice == ()
    assert plan([heard(1.0, made=14)], 100.0, PROFILE).voice_frames == 4
    assert plan([heard(0.1, made=12)], 100.0, PROFILE).voice_frames == 2
    assert plan([heard(1.0, made=12, finished=True)], 100.0, PROFILE).voice_frames == 2


def test_the_most_pressing_stream_sets_the_chunk_and_others_join() -> None:
    anchor, fits, short = heard(0.05, made=13), heard(0.1, made=15), heard(0.12, made=11)
    result = plan([short, fits, anchor], 100.0, PROFILE)
    assert result.voice == (anchor, fits) and result.voice_frames == 3


def test_a_reader_too_far_behind_is_paused() -> None:
    behind = int(PROFILE.ahead_s / FRAME_S) + 1
    paused = heard(30.0, made=behind, voiced=behind, taken=0)
    assert not plan([paused], 100.0, PROFILE)


def test_a_listener_who_ran_dry_starts_again_from_now() -> None:
    track = heard(-5.0)
    track.sent(2, 100.0)
    assert track.deadline_s == 100.0 + 2 * FRAME_S
    track.sent(1, 100.0)
    assert track.deadline_s == 100.0 + 3 * FRAME_S


@st.composite
def tracks(draw: st.DrawFn) -> Track:
    taken = draw(st.integers(0, 500))
    voiced = taken + draw(st.integers(0, 500))
    track = Track(draw(st.floats(0, 100)), slot=draw(st.integers(0, 99)))
    track.prefilled = draw(st.booleans())
    if track.prefilled:
        track.taken, track.voiced = taken, voiced
        track.made = voiced + draw(st.integers(0, MOST_PENDING))
        track.finished, track.text_ready = draw(st.booleans()), draw(st.booleans())
        if voiced:
            track.deadline_s = draw(st.floats(95, 140))
    return track


@given(st.lists(tracks(), max_size=40))
def test_a_plan_is_always_possible(some: list[Track]) -> None:
    result = plan(some, 100.0, PROFILE)
    assert len(result.frame) <= PROFILE.frame_rows and len(result.voice) <= PROFILE.codec_rows
    assert len(result.prefill) <= PROFILE.prefills
    assert all(not t.prefilled for t in result.prefill)
    for t in result.frame:
        assert t.prefilled and t.text_ready and not t.finished and t.pending < MOST_PENDING
    for t in result.voice:
        assert t.pending >= result.voice_frames >= 1
    assert len(set(map(id, result.frame))) == len(result.frame)


@given(st.lists(tracks(), min_size=1, max_size=40), st.floats(0.001, 0.05))
def test_nobody_starves(some: list[Track], step_s: float) -> None:
    """Every session whose text is there speaks ten more frames in bounded time."""
    for t in some:
        t.finished, t.text_ready, t.taken = False, True, t.voiced
    goal = {id(t): t.voiced + 10 for t in some}
    now = 100.0
    for _ in range(40 * len(some) + 4000):
        step = plan(some, now, PROFILE)
        for t in step.voice:
            t.sent(step.voice_frames, now)
            t.taken = t.voiced
        for t in step.prefill:
            t.prefilled = True
        for t in step.frame:
            t.made += 1
        now += step_s
        if all(t.voiced >= goal[id(t)] for t in some):
            return
    raise AssertionError([t for t in some if t.voiced < goal[id(t)]])
