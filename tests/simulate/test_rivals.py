"""The policies to compare with do what they are said to do."""

from vivace.config import EngineConfig, Profile
from vivace.schedule.costs import FREE, Costs
from vivace.schedule.track import Track
from vivace.simulate.rivals import Rival, everybody, first_come, round_robin

CONFIG = EngineConfig(profile=Profile(frame_rows=2, codec_rows=2))
COSTS = Costs(FREE, CONFIG.profile)


def stream(made: int = 0, voiced: int = 0, **fields: object) -> Track:
    base = {"slot": 0, "prefilled": True, "made": made, "voiced": voiced, "taken": voiced}
    return Track(0.0, **{**base, **fields})  # type: ignore[arg-type]


def frames(rival: Rival, tracks: list[Track]) -> list[int]:
    return [tracks.index(t) for t in rival.plan(tracks, 0.0, talk=True, speak=False).frame]


def test_round_robin_goes_on_behind_the_last_and_first_come_stays_with_the_first() -> None:
    tracks = [stream() for _ in range(5)]
    turn, first = round_robin(CONFIG, COSTS), first_come(CONFIG, COSTS)
    assert [frames(turn, tracks) for _ in range(3)] == [[0, 1], [2, 3], [4, 0]]
    assert [frames(first, tracks) for _ in range(3)] == [[0, 1]] * 3


def test_chunks_follow_the_ramp_and_a_batch_has_one_size() -> None:
    rival = first_come(CONFIG, COSTS)
    assert [rival.chunk(stream(99, voiced)) for voiced in (0, 1, 3, 7, 50)] == [1, 2, 4, 8, 8]
    assert rival.chunk(stream(9, 7, finished=True)) == 2
    new, other, grown = stream(1), stream(2), stream(9, 1)
    result = rival.plan([new, grown, other], 0.0, talk=False, speak=True)
    assert result.voice == (new, other) and result.voice_frames == 1
    assert not rival.plan([stream(2, 1)], 0.0, talk=False, speak=True)


def test_a_lane_that_is_taken_and_a_paused_reader_get_nothing() -> None:
    rival = round_robin(CONFIG, COSTS)
    far = stream(CONFIG.profile.ahead_frames, CONFIG.profile.ahead_frames, taken=0)
    assert not rival.plan([far, stream(text_ready=False)], 0.0, talk=True, speak=True)
    assert not rival.plan([stream(5), Track(0.0, slot=1)], 0.0, talk=False, speak=False)


def test_no_admission_lets_everybody_in_where_a_slot_is_free() -> None:
    gate = everybody(CONFIG, COSTS)
    last = CONFIG.max_sessions
    assert gate.room(last - 1, 99, pressed=True) and not gate.room(last, 0, pressed=False)
    assert not gate.forecast(last, 10_000).refused and not gate.tired(1e9)
