"""The simulator: the same run for the same seed, and nothing is lost in it."""

import random
from dataclasses import asdict

import pytest
from tests.simulate.worlds import world

from vivace.config import EngineConfig, Profile
from vivace.errors import Overloaded
from vivace.schedule.costs import CostTable
from vivace.simulate.caller import Call, Caller
from vivace.simulate.rivals import everybody, first_come, round_robin
from vivace.simulate.simulation import Simulation
from vivace.tables import find, read
from vivace.types import FRAME_S

CPU, CARD = read(find("cpu2")), read(find("h200"))


class Watched(Simulation):
    """Keeps its callers."""

    __slots__ = ("callers",)

    def run_all(self, calls: list[Call]) -> list[Caller]:
        self.callers: list[Caller] = []
        tell = self.loop.tell

        def listen(word: object) -> None:
            session = word.session  # type: ignore[attr-defined]
            if session not in self.callers:
                self.callers.append(session)
            tell(word)  # type: ignore[arg-type]

        self.loop.tell = listen  # type: ignore[assignment,method-assign]
        self.run(calls)
        return self.callers


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    runs = [world(random.Random(seed), most_calls=200).run() for _ in range(2)]
    assert [asdict(heard) for heard in runs[0]] == [asdict(heard) for heard in runs[1]]


@pytest.mark.parametrize("policy", [None, round_robin, first_come])
@pytest.mark.parametrize("admission", [None, everybody])
def test_every_call_ends_once_with_all_its_frames(policy: object, admission: object) -> None:
    rng = random.Random(3)
    calls = [Call(rng.uniform(0, 5), rng.randint(1, 90)) for _ in range(60)]
    calls += [Call(rng.uniform(0, 5), 40, tokens_s=5.0) for _ in range(10)]
    config = EngineConfig(max_sessions=8, max_queue=10)
    simulation = Watched(config, CPU, depth=2, policy=policy, admission=admission)  # type: ignore[arg-type]
    callers = simulation.run_all(calls)
    assert len(callers) == len(calls)
    for caller in callers:
        assert caller.done is not None and caller.heard.ended_s is not None
        refused = isinstance(caller.done.error, Overloaded)
        assert refused or caller.done.error is None
        assert caller.sent == (0 if refused else caller.call.frames)
        assert (caller.heard.first_s is None) == refused
    if admission is everybody:
        assert not any(caller.done.error for caller in callers if caller.done)
    assert not simulation.loop.turns and not simulation.loop.seats
    assert len(simulation.loop.free) == config.max_sessions


def test_one_call_on_an_idle_server_takes_what_the_table_says() -> None:
    simulation = Simulation(EngineConfig(max_sessions=1), CPU)
    (heard,) = simulation.run([Call(1.0, 10)])
    first = simulation.loop.admission.pacer.at(1).first
    said_s = simulation.runner.costs.prompt_s
    said_s += first * CPU.frame[1] + CPU.voice_s(1, first)
    assert heard.first_s == pytest.approx(1.0 + said_s)
    assert heard.timely_s == pytest.approx(10 * FRAME_S) and heard.stalls == 0


def test_a_card_that_cannot_keep_up_is_seen_to_stall() -> None:
    slow = {n: {r: 30 * s for r, s in points.items()} for n, points in CPU.voice.items()}
    table = type(CPU)(CPU.frame, slow, CPU.prefill)
    (heard,) = Simulation(EngineConfig(max_sessions=1), table).run([Call(0.0, 50)])
    assert heard.stalls > 0 and heard.stalled_s > 1.0
    assert heard.timely_s < 50 * FRAME_S


def test_sound_after_the_end_of_counting_is_not_counted() -> None:
    simulation = Simulation(EngineConfig(max_sessions=1), CPU, until_s=0.5)
    (heard,) = simulation.run([Call(0.0, 100)])
    assert 0.0 < heard.timely_s < 100 * FRAME_S / 2
    assert all(0.0 < busy_s <= 0.6 for busy_s in simulation.busy_s)


def test_a_caller_who_leaves_frees_its_slot() -> None:
    simulation = Simulation(EngineConfig(max_sessions=1, slo_ttfa_s=60.0), CARD)
    first, second = simulation.run([Call(0.0, 1000, leaves_s=0.1), Call(0.05, 5)])
    assert first.ended_s is not None and first.ended_s < 0.3
    assert second.first_s is not None and second.first_s > first.ended_s


def test_a_text_that_runs_dry_is_not_a_stall_of_ours() -> None:
    (heard,) = Simulation(EngineConfig(), CARD).run([Call(0.0, 60, tokens_s=2.0)])
    assert heard.stalls == 0
    assert heard.ended_s is not None and heard.ended_s > 9.0, "20 tokens at two a second"


def test_case_40_a_slow_reader_is_paused_and_the_others_do_not_notice() -> None:
    profile = Profile(ahead_s=2.0)
    others = [Call(0.1 * i, 60) for i in range(10)]
    slow = Call(0.0, 400, reads=0.5)
    config = EngineConfig(max_sessions=16, profile=profile)
    beside = Watched(config, CARD).run_all([slow, *others])
    alone = Watched(config, CARD).run_all(others)
    read_slowly = next(caller for caller in beside if caller.call is slow)
    assert read_slowly.sent == slow.frames and read_slowly.heard.stalls == 0
    ended_s = read_slowly.heard.ended_s
    assert ended_s is not None and ended_s > 0.5 * slow.frames * FRAME_S, "it was not held back"
    for with_it, without in zip([c for c in beside if c.call is not slow], alone, strict=True):
        assert with_it.heard.stalls == without.heard.stalls == 0
        assert with_it.heard.first_s is not None and without.heard.first_s is not None
        assert with_it.heard.first_s - without.heard.first_s < 0.02


def test_case_49_four_times_the_slots_at_once_all_end_in_sound_or_a_refusal() -> None:
    config = EngineConfig(max_sessions=8, max_queue=8)
    heard = Simulation(config, CPU).run([Call(i * 0.005 / 32, 40) for i in range(32)])
    refused = [h for h in heard if h.refused_s is not None]
    assert 0 < len(refused) < 32
    assert all(1.0 <= h.retry_after_s <= 30.0 for h in refused)
    at_once = [h for h in refused if h.refused_s is not None and h.refused_s - h.due_s < 0.05]
    assert len(at_once) >= 16, "nobody waits beyond the queue"
    served = [h for h in heard if h.refused_s is None]
    assert all(h.first_s is not None and h.stalls == 0 for h in served)


@pytest.mark.parametrize("tokens_s", [3.0, 7.5, 20.0])
@pytest.mark.parametrize("table", [CPU, CARD], ids=["cpu", "card"])
def test_a_text_at_a_pace_is_never_late_for_the_engine(table: CostTable, tokens_s: float) -> None:
    """One writer, nobody else: sound within 60 ms of its first token, silences are the text's."""
    (heard,) = Simulation(EngineConfig(), table, depth=2).run([Call(1.0, 90, tokens_s=tokens_s)])
    assert heard.first_s is not None and heard.ended_s is not None
    assert heard.first_s - heard.due_s < 0.06
    assert heard.stalls == 0
    assert heard.ended_s > 30 / tokens_s, "it waited for its last token"
