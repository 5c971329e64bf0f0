"""How large chunks must be so that so many streams never run dry."""

import random
from dataclasses import replace

import pytest
from tests.simulate.worlds import table

from vivace.config import MOST_CHUNK, PROFILES, Profile
from vivace.schedule.costs import Costs, CostTable
from vivace.schedule.pace import Pacer
from vivace.tables import find, read
from vivace.types import FRAME_S

TABLES = [read(find("cpu2")), read(find("h200")), *(table(random.Random(i)) for i in range(20))]


def pacer(of: CostTable, profile: Profile = PROFILES["balanced"]) -> Pacer:
    return Pacer(profile, Costs(of, profile))


@pytest.mark.parametrize("of", TABLES)
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_sizes_are_ones_that_can_run(of: CostTable, profile: Profile) -> None:
    paces = pacer(of, profile)
    for streams in (1, 2, 3, 7, 16, 60, 128, 300):
        pace = paces.at(streams)
        assert 1 <= pace.rows <= min(streams, profile.codec_rows)
        assert profile.first_frames <= pace.chunk <= profile.chunk_frames
        assert 1 <= pace.first <= MOST_CHUNK // 2 and 1 <= pace.least <= profile.chunk_frames
        assert pace.guard_s >= profile.guard_s


@pytest.mark.parametrize("of", TABLES)
def test_more_streams_are_more_load_longer_turns_and_no_smaller_chunks(of: CostTable) -> None:
    paces = pacer(of)
    few, *more = [paces.at(n) for n in range(1, 65)]
    for many in more:
        assert many.turn_s >= few.turn_s
        assert many.turn_load == pytest.approx(many.turn_s / FRAME_S)
        assert many.least >= few.least
        few = many


def test_a_load_is_what_it_says() -> None:
    paces = pacer(read(find("cpu2")))
    for streams in range(1, 17):
        pace = paces.at(streams)
        a_frame_s = paces.costs.voice_s(pace.rows, pace.chunk) / (pace.rows * pace.chunk)
        assert pace.voice_load == pytest.approx(streams * a_frame_s / FRAME_S)


def test_one_stream_waits_for_nobody() -> None:
    alone = pacer(read(find("h200"))).at(1)
    assert alone.step_s == 0.0 and alone.first == 1


def test_a_slower_codec_asks_for_more_before_the_first_sound() -> None:
    quick = read(find("h200"))
    voice = {n: {r: 20 * s for r, s in points.items()} for n, points in quick.voice.items()}
    assert pacer(replace(quick, voice=voice)).at(8).lead_s > pacer(quick).at(8).lead_s


def test_lateness_widens_the_guard_once_it_is_worth_it() -> None:
    paces = pacer(read(find("h200")))
    before = paces.at(8)
    assert paces.at(8) is before, "paces are kept"
    for _ in range(100):
        paces.costs.learn("frame", 0.006, 0.02)
    assert paces.at(8).guard_s > before.guard_s
