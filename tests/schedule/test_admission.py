"""Whom to take in, who waits, and when the others are to come back."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulate.worlds import table

from vivace.config import Profile
from vivace.schedule.admission import Admission
from vivace.schedule.costs import Costs, CostTable
from vivace.schedule.pace import Pacer
from vivace.tables import find, read

CPU, CARD = read(find("cpu2")), read(find("h200"))


def admission(
    of: CostTable = CPU, sessions: int = 16, queue: int = 8, slo_s: float = 3.0
) -> Admission:
    profile = Profile()
    return Admission(Pacer(profile, Costs(of, profile)), sessions, queue, slo_s)


@pytest.mark.parametrize("of", [CPU, CARD, *(table(random.Random(i)) for i in range(10))])
def test_as_many_as_the_lanes_carry_and_one_more_is_too_many(of: CostTable) -> None:
    gate = admission(of, sessions=100_000)
    most = gate.most
    assert 1 <= most < 100_000
    assert most == 1 or gate.load(most) <= gate.pacer.profile.full
    assert gate.load(most + 1) > gate.pacer.profile.full


def test_slots_are_a_bound_too() -> None:
    assert admission(CARD, sessions=3).most == 3
    gate = admission(CARD, sessions=3)
    assert gate.room(2, 0, pressed=False) and not gate.room(3, 0, pressed=False)


def test_young_streams_are_not_let_in_all_at_once() -> None:
    gate = admission(CPU)
    assert gate.room(gate.most - 1, 0, pressed=False)
    assert not gate.room(gate.most - 1, gate.most - 1, pressed=False)


def test_nobody_is_let_in_beside_a_listener_about_to_run_dry_when_the_load_is_high() -> None:
    gate = admission(CPU)
    assert not gate.room(gate.most - 1, 0, pressed=True)
    assert gate.room(0, 0, pressed=True)


def test_nobody_is_refused_while_there_is_room() -> None:
    gate = admission(CPU, queue=1, slo_s=0.001)
    for seated in range(gate.most):
        assert not gate.forecast(seated, 0).refused


def test_the_queue_is_bounded_in_count_and_in_predicted_wait() -> None:
    gate = admission(CPU, queue=2, slo_s=600.0)
    assert not gate.forecast(gate.most, 1).refused
    assert gate.forecast(gate.most, 2).refused
    quick = admission(CPU, queue=1000, slo_s=1.0)
    waiting = next(n for n in range(1000) if quick.forecast(quick.most, n).refused)
    assert 0 <= waiting < 1000
    assert quick.forecast(quick.most, waiting).first_audio_s > 1.0


@given(st.integers(0, 64), st.integers(0, 500), st.floats(0.1, 60.0))
def test_the_time_to_come_back_is_whole_seconds_and_no_longer_than_the_queue(
    seated: int, waiting: int, stay_s: float
) -> None:
    gate = admission(CPU, queue=4, slo_s=0.5)
    gate.stay_s = stay_s
    told = gate.forecast(min(seated, gate.most), waiting)
    assert told.first_audio_s > 0.0
    if told.refused:
        assert told.retry_after_s == int(told.retry_after_s) >= 1.0
        assert told.retry_after_s <= told.first_audio_s + stay_s + 1.0


def test_longer_stays_mean_a_longer_wait() -> None:
    gate = admission(CPU)
    before = gate.forecast(gate.most, 3).first_audio_s
    for _ in range(100):
        gate.left(20.0)
    assert gate.stay_s == pytest.approx(20.0, rel=0.01)
    assert gate.forecast(gate.most, 3).first_audio_s > before


def test_patience_ends() -> None:
    gate = admission(slo_s=2.0)
    assert not gate.tired(2.0) and gate.tired(10.0)
