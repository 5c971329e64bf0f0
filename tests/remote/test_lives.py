"""An engine whose process ends, hangs or fails, and what its sessions and newcomers meet."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.remote import faulty
from tests.remote.faulty import SEEDS

from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.errors import DeviceLost, EngineFailure, Unavailable
from vivace.host import LoopThread
from vivace.remote.lives import LIFE, Event, Life, Lives
from vivace.session import Session
from vivace.types import FinishReason, Sampling, SpeechRequest

TEXT = "Hello there, how are you?"
PATIENT = EngineConfig(max_sessions=4, slo_ttfa_s=600.0, restarts=100)


def host_of(engine: Engine) -> Lives:
    assert isinstance(engine._host, Lives)
    return engine._host


def say(engine: Engine, seed: int) -> Session:
    return engine.say(TEXT, SpeechRequest(sampling=Sampling(seed=seed), guards=False))


def ended(session: Session) -> FinishReason:
    while not session.outbox.exhausted:
        session.outbox.wait()
        session.outbox.take()
    assert session.done is not None
    return session.done.reason


def until(true: Callable[[], bool]) -> None:
    """Wait for it; what never comes is the test's timeout."""
    pause = threading.Event()
    while not true():
        pause.wait(0.01)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(parts=faulty.faulty, config=PATIENT, host=Lives) as engine:
        yield engine


def well_again(engine: Engine) -> None:
    """It speaks, and nothing is held."""
    until(lambda: engine.ready)
    assert sum(len(chunk.codes) for chunk in say(engine, 30)) == 30
    until(lambda: engine.stats().slots_free == 4)
    assert (engine.stats().waiting, engine.lost) == (0, None)


@pytest.mark.parametrize("call", faulty.CALLS)
@pytest.mark.parametrize("fault", ["raise", "memory"])
def test_a_fault_of_one_request_ends_it_alone(engine: Engine, fault: str, call: str) -> None:
    process = host_of(engine)._process
    session = say(engine, SEEDS[fault, call])
    assert ended(session) is FinishReason.ERROR
    well_again(engine)
    assert host_of(engine)._process is process, "not a new one"


@pytest.mark.parametrize("call", faulty.CALLS)
def test_a_killed_process_ends_all_that_is_open_and_another_takes_over(
    engine: Engine, call: str
) -> None:
    until(lambda: engine.ready)
    process = host_of(engine)._process
    others = [say(engine, 1_000_000) for _ in range(2)]
    silent = engine.open()
    session = say(engine, SEEDS["kill", call])
    for one in (session, *others, silent):
        assert ended(one) is FinishReason.ERROR
        assert one.done is not None and isinstance(one.done.error, EngineFailure)
    until(lambda: not process.alive)
    well_again(engine)
    assert host_of(engine)._process is not process


def test_an_idle_process_that_is_killed_is_replaced(engine: Engine) -> None:
    process = host_of(engine)._process
    process.kill()
    process.ended.wait()
    assert not engine.ready
    until(lambda: host_of(engine)._process is not process)
    well_again(engine)


def test_who_comes_meanwhile_is_told_when_to_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVACE_ONCE", str(tmp_path / "once"))
    with Engine(parts=faulty.stuck_later, config=PATIENT, host=Lives) as engine:
        first = host_of(engine)._worker
        host_of(engine)._process.kill()
        until(lambda: engine.restarting)
        with pytest.raises(Unavailable, match="restarted") as refused:
            engine.open()
        assert refused.value.retry_after_s is not None and refused.value.retry_after_s >= 1.0
        assert not engine.ready and not engine.alive and engine.lost is None
        assert engine.stats().active == 0
        until(lambda: host_of(engine)._worker is not first)
    second = host_of(engine)._worker
    assert second is not None and second.exitcode is not None, "closing waits for no start"


@pytest.mark.parametrize(("fault", "call"), [("stop", "frame"), ("hang", "voice")])
def test_a_process_that_hangs_is_ended_and_replaced(fault: str, call: str) -> None:
    config = EngineConfig(max_sessions=4, slo_ttfa_s=600.0, hang_s=0.5)
    with Engine(parts=faulty.faulty, config=config, host=Lives) as engine:
        silent, session = engine.open(), say(engine, SEEDS[fault, call])
        assert ended(session) is ended(silent) is FinishReason.ERROR
        well_again(engine)


@pytest.mark.parametrize("call", faulty.CALLS)
def test_a_lost_device_is_no_matter_for_a_new_process(call: str) -> None:
    with Engine(parts=faulty.faulty, config=PATIENT, host=Lives) as engine:
        other, session = engine.open(), say(engine, SEEDS["lost", call])
        assert ended(session) is ended(other) is FinishReason.ERROR
        until(lambda: engine.lost is not None)
        assert isinstance(engine.lost, DeviceLost)
        assert not engine.ready and not engine.restarting
        with pytest.raises(DeviceLost):
            engine.open()


def test_one_that_ends_too_often_is_given_up() -> None:
    config = EngineConfig(restarts=2)
    with Engine(parts=faulty.faulty, config=config, host=Lives) as engine:
        for _ in range(3):
            until(lambda: engine.ready)
            assert ended(say(engine, SEEDS["kill", "frame"])) is FinishReason.ERROR
        until(lambda: engine.lost is not None)
        with pytest.raises(EngineFailure):
            engine.open()
        assert host_of(engine).life is Life.LOST


def test_a_restart_that_fails_is_tried_again_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVACE_ONCE", str(tmp_path / "once"))
    with Engine(parts=faulty.once, config=EngineConfig(restarts=2), host=Lives) as engine:
        host_of(engine)._process.kill()
        until(lambda: engine.lost is not None)
        assert "a start that fails" in str(engine.lost)
        assert len(host_of(engine)._ends) == 3


def test_ends_long_ago_are_forgotten() -> None:
    config = EngineConfig(restarts=1, restarts_s=0.0)
    with Engine(parts=faulty.faulty, config=config, host=Lives) as engine:
        for _ in range(3):
            until(lambda: engine.ready)
            assert ended(say(engine, SEEDS["kill", "frame"])) is FinishReason.ERROR
        until(lambda: engine.ready)


def test_only_legal_steps() -> None:
    reached = {Life.RUNNING}
    for _ in Life:
        reached |= {LIFE[pair] for pair in itertools.product(reached, Event) if pair in LIFE}
    assert reached == set(Life)
    assert all(LIFE[Life.CLOSED, event] is Life.CLOSED for event in Event)
    assert (Life.LOST, Event.READY) not in LIFE and (Life.RUNNING, Event.READY) not in LIFE


def test_in_a_thread_it_stays_broken_and_another_engine_speaks() -> None:
    config = EngineConfig(max_sessions=4, slo_ttfa_s=600.0)
    with Engine(parts=faulty.faulty, config=config, host=LoopThread) as engine:
        silent, session = engine.open(), say(engine, SEEDS["lost", "frame"])
        assert ended(session) is ended(silent) is FinishReason.ERROR
        until(lambda: engine.lost is not None)
        assert not engine.alive
        with pytest.raises(EngineFailure):
            engine.open()
        assert engine.stats().waiting == 0
    with Engine(parts=faulty.faulty, config=config, host=LoopThread) as engine:
        assert ended(say(engine, 30)) is FinishReason.STOP
