"""The policy alone: who runs next, and that a plan can always be carried out."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from vivace.config import MOST_CHUNK, Profile
from vivace.schedule.costs import Costs, CostTable
from vivace.schedule.policy import MOST_PENDING, Plan, Policy
from vivace.schedule.track import Track
from vivace.types import FRAME_S

NOW = 100.0
PROFILE = Profile(frame_rows=8, codec_rows=4)
SIZES = (1, 2, 4, 8)
QUICK = CostTable(
    {rows: 0.004 + 0.0001 * rows for rows in SIZES},
    {n: {rows: 0.001 + 0.0001 * rows * n for rows in SIZES} for n in SIZES},
    {16: 0.002},
)
# The first frame is slow and each more row nearly as slow: nobody joins for free.
STEEP = replace(QUICK, frame={1: 0.01, 8: 0.08})


def policy(table: CostTable = QUICK, sessions: int = 100, profile: Profile = PROFILE) -> Policy:
    return Policy(profile, Costs(table, profile), sessions)


def plan(
    tracks: list[Track], by: Policy | None = None, *, talk: bool = True, speak: bool = True
) -> Plan:
    return (by or policy()).plan(tracks, NOW, talk=talk, speak=speak)


def heard(slack_s: float, **fields: object) -> Track:
    """A stream whose listener runs dry in `slack_s`, with nothing made that is not decoded."""
    base = {"slot": 0, "prefilled": True, "made": 10, "voiced": 10, "taken": 10}
    return Track(0.0, deadline_s=NOW + slack_s, **{**base, **fields})  # type: ignore[arg-type]


def unheard(**fields: object) -> Track:
    return Track(0.0, **{"slot": 1, "prefilled": True, **fields})  # type: ignore[arg-type]


def test_without_sessions_there_is_nothing_to_do() -> None:
    assert not plan([])


def test_who_runs_dry_comes_first_then_the_unheard_by_age_then_the_rest_by_slack() -> None:
    first, second = unheard(), unheard()
    urgent, later, soon = heard(0.001), heard(1.0), heard(0.3)
    order = plan([first, second, later, soon, urgent]).frame
    assert order == (urgent, first, second, soon, later)


def test_frames_under_way_and_undecoded_count_for_the_talker() -> None:
    flying, made, bare = heard(0.2, flying=2), heard(0.2, made=13), heard(0.3)
    assert plan([made, flying, bare], speak=False).frame == (bare, flying, made)


def test_streams_far_ahead_step_aside_while_somebody_presses() -> None:
    far, urgent = heard(10.0), heard(0.001)
    assert plan([far, urgent], policy(STEEP)).frame == (urgent,)
    assert plan([far], policy(STEEP)).frame == (far,), "an idle card is not left idle"
    dry = unheard(text_ready=False)
    assert plan([far, dry], policy(STEEP)).frame == (far,), "no text, no hurry"


def test_streams_far_ahead_join_where_they_cost_the_others_little() -> None:
    far, urgent = heard(10.0), heard(0.001)
    assert plan([far, urgent]).frame == (urgent, far)


def test_when_half_the_slots_are_taken_everybody_comes_to_its_end() -> None:
    far, urgent = heard(10.0), heard(0.001)
    assert plan([far, urgent], policy(STEEP, sessions=3)).frame == (urgent, far)


def test_without_text_there_is_no_frame_and_without_frames_no_sound() -> None:
    assert not plan([heard(0.001, text_ready=False)])
    assert not plan([heard(0.001, finished=True)])
    assert plan([heard(0.001)], talk=False) == Plan()


def test_a_first_chunk_is_as_large_as_the_pace_says() -> None:
    by = policy()
    first = by.pacer.at(1).first
    assert first >= PROFILE.first_frames
    assert not plan([unheard(made=first - 1)], by).voice
    ready = unheard(made=first)
    assert plan([ready], by).voice == (ready,) and plan([ready], by).voice_frames == first


def test_a_heard_stream_waits_for_a_full_chunk_until_it_is_due() -> None:
    by = policy()
    by.plan([heard(1.0)], NOW, talk=True, speak=True)
    chunk = by.pacer.at(1).chunk
    assert chunk > 1
    waits = heard(1.0, made=10 + chunk - 1)
    assert not plan([waits], by).voice
    assert NOW < by.due_s < NOW + 1.0, "the loop is to look again before it is too late"
    due = heard(by.pacer.at(1).guard_s / 2, made=10 + chunk - 1)
    assert plan([due], by).voice == (due,)
    full = heard(1.0, made=10 + chunk)
    result = plan([full], by)
    assert result.voice == (full,) and result.voice_frames == chunk


def test_what_is_due_is_due_at_that_very_time() -> None:
    by = policy()
    waits = heard(1.0, made=11)
    by.plan([waits], NOW, talk=True, speak=True)
    assert by.plan([waits], by.due_s, talk=True, speak=True).voice == (waits,)


def test_the_last_frames_need_not_fill_a_chunk() -> None:
    tail = heard(1.0, made=11, finished=True)
    result = plan([tail])
    assert result.voice == (tail,) and result.voice_frames == 1
    dry = heard(1.0, made=11, text_ready=False)
    assert plan([dry]).voice == (dry,), "what was made is not held back while text is awaited"


def test_tails_join_a_chunk_that_is_larger_than_they_are() -> None:
    by = policy()
    chunk = by.pacer.at(2).chunk
    full, tail = heard(0.5, made=10 + chunk), heard(0.6, made=11, finished=True)
    result = plan([full, tail], by)
    assert result.voice_frames == chunk
    assert set(map(id, result.voice)) == {id(full), id(tail)}


def test_the_most_pressing_sets_the_chunk_and_is_not_made_late_by_it() -> None:
    slow = replace(QUICK, voice={1: {1: 0.02, 8: 0.16}, 8: {1: 0.16, 8: 1.28}})
    by = policy(slow)
    anchor, other = heard(0.03, made=18), heard(0.05, made=18)
    result = plan([other, anchor], by)
    assert result.voice[0] is anchor
    assert result.voice_frames == 1, "a chunk of eight would take 160 ms of its 30"
    assert other not in result.voice, "its row would make the step twice as long"


def test_a_reader_too_far_behind_is_paused_and_goes_on_when_it_has_taken() -> None:
    behind = PROFILE.ahead_frames
    paused = heard(1.0, made=behind, voiced=behind, taken=0)
    assert not plan([paused])
    paused.taken = 1
    assert plan([paused]).frame == (paused,)


def test_the_talker_never_outruns_the_ring() -> None:
    full = heard(1.0, made=10 + MOST_CHUNK)
    assert not plan([full], speak=False).frame
    nearly = heard(1.0, made=9 + MOST_CHUNK)
    assert plan([nearly], speak=False).frame == (nearly,)
    nearly.flying = 1
    assert not plan([nearly], speak=False).frame


def test_a_lane_that_is_not_free_gets_nothing() -> None:
    tracks = [Track(0.0, slot=0), heard(0.001, made=20), unheard(made=5)]
    sound = plan(tracks, talk=False)
    assert not sound.frame and not sound.prefill and sound.voice
    tokens = plan(tracks, speak=False)
    assert tokens.frame and tokens.prefill and not tokens.voice


def test_prompts_go_first_unless_a_listener_would_pay() -> None:
    cold = [Track(float(i), slot=i) for i in range(5)]
    cold[1].laying = True
    assert plan(cold).prefill[0] is cold[0]
    assert cold[1] not in plan(cold).prefill
    assert not plan([*cold, heard(0.004)]).prefill
    assert plan([*cold, heard(1.0)]).prefill


def test_it_tells_who_is_young_and_whether_somebody_is_pressed() -> None:
    by = policy()
    plan([heard(5.0), unheard(), Track(0.0, slot=3)], by)
    assert by.young == 2 and not by.pressed
    plan([heard(0.001)], by)
    assert by.young == 1 and by.pressed


@st.composite
def tracks(draw: st.DrawFn) -> Track:
    taken = draw(st.integers(0, 500))
    voiced = taken + draw(st.integers(0, 500))
    track = Track(draw(st.floats(0, 100)), slot=draw(st.integers(0, 99)))
    track.prefilled = draw(st.booleans())
    if not track.prefilled:
        track.laying = draw(st.booleans())
        return track
    track.taken, track.voiced, track.voicing = taken, voiced, draw(st.integers(0, 4))
    track.made = voiced + track.voicing + draw(st.integers(0, MOST_CHUNK - 2))
    track.flying = draw(st.integers(0, 2))
    track.finished, track.text_ready = draw(st.booleans()), draw(st.booleans())
    if voiced:
        track.deadline_s = draw(st.floats(95, 140))
    return track


@given(st.lists(tracks(), max_size=40), st.booleans(), st.booleans(), st.sampled_from([1, 40, 200]))
def test_a_plan_can_always_be_carried_out(
    some: list[Track], talk: bool, speak: bool, sessions: int
) -> None:
    result = policy(sessions=sessions).plan(some, NOW, talk=talk, speak=speak)
    assert len(result.frame) <= PROFILE.frame_rows * talk
    assert len(result.voice) <= PROFILE.codec_rows * speak
    assert len(result.prefill) <= PROFILE.prefills * talk
    assert all(not t.prefilled and not t.laying for t in result.prefill)
    for t in result.frame:
        assert t.prefilled and t.text_ready and not t.finished
        assert t.pending + t.flying < MOST_CHUNK
        assert t.voiced - t.taken < PROFILE.ahead_frames
    for t in result.voice:
        assert not t.voicing and t.pending > 0
        assert t.pending >= result.voice_frames or t.finished
    for part in (result.frame, result.voice, result.prefill):
        assert len(set(map(id, part))) == len(part)


@given(st.lists(tracks(), min_size=1, max_size=40))
def test_a_free_card_with_work_is_never_left_idle_for_good(some: list[Track]) -> None:
    """Either something is started, or the policy says when, or nothing could be done."""
    by = policy()
    if by.plan(some, NOW, talk=True, speak=True) or by.due_s < float("inf"):
        return
    for t in some:
        full = t.voiced - t.taken >= PROFILE.ahead_frames
        waits = t.finished or not t.text_ready or full or t.pending + t.flying >= MOST_CHUNK
        assert t.laying or t.voicing or (waits and not (t.pending and t.prefilled))


def test_a_listener_who_ran_dry_starts_again_from_now() -> None:
    track = heard(-5.0, voicing=2)
    track.sent(2, 2 * FRAME_S, NOW)
    assert track.deadline_s == NOW + 2 * FRAME_S and track.voicing == 0
    track.sent(1, FRAME_S, NOW)
    assert track.deadline_s == NOW + 3 * FRAME_S


@st.composite
def sessions(draw: st.DrawFn) -> list[Track]:
    """What a loop may hold between two steps, in any mixture."""
    tracks = []
    for i in range(draw(st.integers(1, 12))):
        made = draw(st.integers(0, 40))
        voiced = draw(st.integers(max(0, made - 32), made))
        heard = voiced > 0 and draw(st.booleans())
        tracks.append(
            Track(
                float(i),
                slot=i,
                prefilled=made > 0 or draw(st.booleans()),
                made=made,
                voiced=voiced,
                taken=voiced,
                held=0 if heard else voiced,
                text_ready=draw(st.booleans()),
                finished=made > 0 and draw(st.booleans()),
                deadline_s=100.0 + draw(st.floats(-5.0, 60.0)) if heard else None,
            )
        )
    return tracks


@given(sessions(), st.floats(0.0, 3.0), st.sampled_from([1e-4, 0.01, 0.3]))
def test_something_is_done_whenever_something_can_be(
    tracks: list[Track], late_s: float, step_s: float
) -> None:
    table = CostTable({1: step_s}, {1: {1: step_s}}, {16: step_s})
    costs = Costs(table, Profile(), {"late_s": late_s})
    todo = Policy(Profile(), costs, 16).plan(tracks, 100.0, talk=True, speak=True)
    can_talk = any(t.text_ready and not t.finished and t.pending < MOST_PENDING for t in tracks)
    waits = any(t.pending and (t.finished or not t.text_ready) for t in tracks)
    assert bool(todo) or not (can_talk or waits)


def test_a_token_step_is_of_the_model_that_is_most_pressed() -> None:
    costs = Costs(QUICK, PROFILE)
    costs.add(1, QUICK)
    costs.use([0, 1])
    by = Policy(PROFILE, costs, 100)
    calm, pressed, beside = heard(1.0), heard(0.1, model=1), heard(2.0, model=1)
    assert plan([calm, pressed, beside], by).frame == (pressed, beside)
    pressed.made += 20
    assert plan([calm, pressed, beside], by).frame == (calm,)
    tails = [heard(0.2, made=11, finished=True, model=model) for model in (0, 1, 0)]
    assert set(map(id, plan(tails, by).voice)) == set(map(id, tails)), "the codec mixes them"
    cold = [Track(float(i), slot=i, model=i % 2) for i in range(4)]
    assert len(plan(cold, by).prefill) > 1 and {t.model for t in plan(cold, by).prefill} == {0, 1}
