"""Cost tables and their correction while serving."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.config import Profile
from vivace.errors import CheckpointError
from vivace.schedule.costs import LEAST, MOST, Costs, CostTable, at

TABLE = CostTable(
    {1: 0.01, 4: 0.016}, {1: {1: 0.002, 8: 0.009}, 8: {1: 0.008, 8: 0.05}}, {16: 0.02}
)
QUICK = Costs(TABLE, Profile())  # never corrected
SMALL = Profile(frame_rows=4, codec_rows=4)


def costs() -> Costs:
    return Costs(TABLE, SMALL)


def test_measured_sizes_are_as_measured_and_between_them_it_is_linear() -> None:
    assert at(TABLE.frame, 1) == 0.01 and at(TABLE.frame, 4) == 0.016
    assert at(TABLE.frame, 2) == pytest.approx(0.012)
    assert TABLE.voice_s(8, 8) == 0.05
    assert TABLE.voice_s(1, 4) == pytest.approx(0.002 + 3 / 7 * 0.006)


def test_beyond_the_measured_sizes_it_goes_on_as_before() -> None:
    assert at(TABLE.frame, 7) == pytest.approx(0.022)
    assert at({4: 0.5, 8: 0.6}, 1) == 0.5, "smaller than measured is not cheaper than measured"
    assert at({4: 0.5}, 100) == 0.5
    assert at({1: 0.5, 2: 0.1}, 100) == 0.5, "a falling slope does not fall below the first"


@given(st.integers(1, 128), st.integers(1, 32))
def test_the_quick_reach_holds_what_the_table_says(rows: int, frames: int) -> None:
    codec_rows = min(rows, Profile().codec_rows)
    assert QUICK.frame_s(rows) == at(TABLE.frame, rows)
    assert QUICK.voice_s(codec_rows, frames) == TABLE.voice_s(codec_rows, frames)


@pytest.mark.parametrize(
    "lanes",
    [
        ({}, {1: {1: 1.0}}, {1: 1.0}),
        ({1: 1.0}, {}, {1: 1.0}),
        ({1: 1.0}, {1: {}}, {1: 1.0}),
        ({1: 1.0}, {1: {1: 1.0}}, {}),
        ({0: 1.0}, {1: {1: 1.0}}, {1: 1.0}),
        ({1: 0.0}, {1: {1: 1.0}}, {1: 1.0}),
        ({1: 1.0}, {1: {1: -1.0}}, {1: 1.0}),
    ],
)
def test_a_table_without_times_is_refused(lanes: tuple[object, ...]) -> None:
    with pytest.raises(CheckpointError, match="cost table"):
        CostTable(*lanes)  # type: ignore[arg-type]


def test_a_device_that_has_slowed_is_believed_after_a_while() -> None:
    slow = costs()
    for _ in range(300):
        slow.learn("frame", slow.frame_s(1), 0.015)
    assert slow.frame_s(1) == pytest.approx(0.015, rel=0.01)
    assert slow.frame_s(4) == pytest.approx(0.024, rel=0.01)
    assert slow.voice_s(1, 1) == 0.002, "the lanes are corrected apart"


@given(st.lists(st.floats(1e-6, 1e3), max_size=200))
def test_a_correction_stays_within_bounds(times: list[float]) -> None:
    wild = Costs(TABLE, SMALL)
    for took_s in times:
        wild.learn("voice", wild.voice_s(1, 1), took_s)
    assert LEAST <= wild.off["voice"] <= MOST


def test_only_a_correction_worth_planning_for_makes_a_version() -> None:
    steady = costs()
    for _ in range(100):
        steady.learn("frame", steady.frame_s(2), steady.frame_s(2) * 1.001)
    assert steady.version == 0
    for _ in range(100):
        steady.learn("frame", steady.frame_s(2), 0.024)
    assert 0 < steady.version < 30


def test_lateness_is_the_mean_of_what_steps_take_longer() -> None:
    late = costs()
    late.learn("frame", 0.01, 0.005)
    assert late.late_s == 0.0, "early steps do not make up for late ones"
    for _ in range(300):
        late.learn("prefill", 0.02, 0.03)
    assert late.late_s == pytest.approx(0.01, rel=0.01)


def test_prompts_that_are_known_cost_a_newcomer_nothing() -> None:
    kept = costs()
    assert kept.newcomer_s == kept.prompt_s
    for _ in range(100):
        kept.met(known=True)
    assert kept.newcomer_s < 0.01 * kept.prompt_s and 0 < kept.version <= 10
    for _ in range(100):
        kept.met(known=False)
    assert kept.newcomer_s > 0.99 * kept.prompt_s


FRAMES = st.tuples(st.floats(1e-3, 0.05), st.floats(1e-5, 0.01))  # of a step, of each more row


@given(st.lists(FRAMES, min_size=1, max_size=4), st.data())
def test_a_turn_of_any_mixture_takes_no_longer_than_is_said(
    models: list[tuple[float, float]], data: st.DataObject
) -> None:
    tables = [CostTable({1: a, 5: a + 4 * b}, TABLE.voice, TABLE.prefill) for a, b in models]
    mixed = Costs(tables[0], SMALL)
    for model, table in enumerate(tables):
        mixed.add(model, table)
    counts = data.draw(
        st.lists(st.integers(0, 9), min_size=len(models), max_size=len(models)).filter(any)
    )
    mixed.use([model for model, count in enumerate(counts) if count])
    took_s = sum(mixed.tokens[model].turn_s(count) for model, count in enumerate(counts) if count)
    steps = sum(-(-count // SMALL.frame_rows) for count in counts)
    said = mixed.turn_s(sum(counts))
    if steps == sum(count > 0 for count in counts):  # each model's rows go in one step
        assert took_s <= said * (1 + 1e-9)
    assert said == pytest.approx(took_s) or mixed.mixed


def test_models_that_nobody_speaks_with_cost_nothing() -> None:
    two = costs()
    two.add(1, CostTable({1: 0.03, 4: 0.04}, TABLE.voice, {16: 0.5}))
    alone, version = two.turn_s(3), two.version
    two.use([0, 1])
    assert two.mixed and two.version > version
    assert two.turn_s(1) == 0.03 and two.turn_s(3) > alone + 0.03
    assert two.prompt_s == pytest.approx(0.5)
    two.use([])
    assert two.mixed, "with nobody there nothing is planned anew"
    two.use([1])
    assert not two.mixed and two.turn_s(1) == 0.03
    two.use([0])
    assert two.turn_s(3) == alone and two.prompt_s == pytest.approx(0.02)


def test_a_models_steps_teach_nothing_of_anothers() -> None:
    two = costs()
    two.add(1, TABLE, {"frame": 2.0, "prefill": 1.0, "voice": 3.0})
    assert two.frame_s(1, 1) == 2 * two.frame_s(1)
    for _ in range(300):
        two.learn("frame", two.frame_s(1, 1), 0.015, 1)
    assert two.frame_s(1, 1) == pytest.approx(0.015, rel=0.01)
    assert two.frame_s(1) == 0.01 and two.voice_s(1, 1) == 0.002
    assert two.learned(1)["frame"] == pytest.approx(1.5, rel=0.01)
    assert two.learned(0)["frame"] == 1.0
