"""The loop in a real process: starts that fail, deaths on either side, storms, slow readers."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.remote import builds

from vivace.config import EngineConfig, Profile
from vivace.engine import Engine
from vivace.errors import CheckpointError, EngineFailure, Unavailable
from vivace.host import Build, LoopThread, MakeHost
from vivace.remote.near import LoopProcess
from vivace.session import Session
from vivace.text.cap import cap_frames
from vivace.types import FinishReason, Sampling, SpeechRequest

ROOT = Path(__file__).parents[2]
TEXT = "Hello there, how are you?"
CONFIG = EngineConfig(max_sessions=4, max_queue=500, slo_ttfa_s=600.0)


def engine_of(
    build: Build = builds.by_seed,
    config: EngineConfig = CONFIG,
    host: MakeHost = LoopProcess,
) -> Engine:
    return Engine(parts=build, config=config, host=host)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engine_of() as engine:
        yield engine


def say(engine: Engine, frames: int, text: str = TEXT) -> Session:
    request = SpeechRequest(sampling=Sampling(seed=frames), guards=False)
    return engine.say(text, request)


def endless(engine: Engine) -> Session:
    return say(engine, 1_000_000)


def worker(engine: Engine) -> psutil.Process:
    host = engine._host
    assert isinstance(host, LoopProcess)
    return psutil.Process(host._worker.pid)  # type: ignore[attr-defined]


def ended(session: Session) -> FinishReason:
    """Its reason, once what is left of it has been taken."""
    while not session.outbox.exhausted:
        session.outbox.wait()
        session.outbox.take()
    assert session.done is not None
    return session.done.reason


def given_back(engine: Engine) -> bool:
    """Is everything, once the loop has come round? Sessions are heard one after another."""
    for _ in range(1000):
        list(say(engine, 1))
        stats = engine.stats()
        if (stats.slots_free, stats.waiting) == (stats.slots_total, 0):
            return True
    return False


def test_what_the_loop_measures_is_known_at_the_edge(engine: Engine) -> None:
    """It comes once a second, however busy the loop is."""

    def waits() -> int:
        return sum(engine.readings.meters.wait.counts)

    before = waits()
    spoken = 0
    while before == waits() or len(engine.readings.meters.lanes) < 3:
        list(say(engine, 1))
        spoken += 1
    assert waits() <= before + spoken
    assert set(engine.readings.meters.lanes) == {"frame", "prompt", "codec"}
    assert engine.readings.counts.steps <= engine.stats().steps


def test_the_same_speech_as_in_this_process(engine: Engine) -> None:
    """Where chunks begin is the clocks' business."""
    with engine_of(host=LoopThread) as here:
        ours, theirs = say(engine, 40), say(here, 40)
        sound, expected = list(ours), list(theirs)
    for name in ("pcm", "codes"):
        parts = [np.concatenate([getattr(c, name) for c in chunks]) for chunks in (sound, expected)]
        assert np.array_equal(*parts)
    assert ours.done == theirs.done
    assert (engine.voices, engine.languages) == (here.voices, here.languages)
    assert (engine.defaults, engine.model_id) == (here.defaults, here.model_id)


def test_text_by_token_and_no_speech(engine: Engine) -> None:
    request = SpeechRequest(sampling=Sampling(seed=30))
    session = engine.open(request)
    for char in TEXT:
        session.append(char)
    session.end()
    assert sum(len(chunk.codes) for chunk in session) == 30
    silent = engine.say("...", request)
    assert list(silent) == [] and ended(silent) is FinishReason.NO_AUDIO


def test_the_texts_cap_holds_there_too(engine: Engine) -> None:
    session = engine.say("Hi.", SpeechRequest(sampling=Sampling(seed=1_000_000)))
    assert sum(len(chunk.codes) for chunk in session) == cap_frames("Hi.")
    assert ended(session) is FinishReason.LENGTH


def test_a_storm_of_aborts_leaves_nothing_behind(engine: Engine) -> None:
    for n in range(400):
        session = say(engine, 20 if n % 3 else 1_000_000)
        if n % 5 == 0:
            next(iter(session))
        session.cancel()
        if n % 7 == 0:
            session.cancel()
        assert ended(session) in (FinishReason.CANCELLED, FinishReason.STOP)
    opened = [endless(engine) for _ in range(400)]
    for session in opened:
        session.cancel()
    assert {ended(session) for session in opened} == {FinishReason.CANCELLED}
    assert given_back(engine)


def test_case_40_a_slow_reader_holds_back_itself_alone() -> None:
    profile = Profile(ahead_s=4.0)
    with engine_of(config=EngineConfig(max_sessions=2, profile=profile)) as engine:
        slow = endless(engine)
        heard = 0
        for _ in range(20):
            assert sum(len(chunk.codes) for chunk in say(engine, 100)) == 100
            heard += len(slow.outbox.take().codes)  # type: ignore[union-attr]
            engine.taken(slow)
        held = sum(len(chunk.codes) for chunk in slow.outbox._chunks)
        assert 0 < held <= 50 + profile.chunk_frames, "made what nobody takes"
        chunks = iter(slow)
        while heard < 1_000:
            heard += len(next(chunks).codes)
        slow.cancel()


def test_killed_engine_ends_every_session_and_is_not_ready() -> None:
    with engine_of(config=EngineConfig(max_sessions=2, slo_ttfa_s=600.0)) as engine:
        heard, unheard, queued = endless(engine), endless(engine), endless(engine)
        silent = engine.open()
        next(iter(heard))
        worker(engine).kill()
        for session in (heard, unheard, queued, silent):
            with pytest.raises(EngineFailure, match="process has ended"):
                list(session)
            assert ended(session) is FinishReason.ERROR
        assert heard.done is not None and heard.done.frames > 0
        assert not engine.ready and not engine.alive
        assert engine.stats().waiting == 0
        with pytest.raises(Unavailable):
            engine.open()
        silent.append("Too late, but no fault of the client's.")
        heard.cancel()


def test_close_ends_what_is_open() -> None:
    engine = engine_of()
    process, session = worker(engine), endless(engine)
    engine.close()
    with pytest.raises(Unavailable, match="closed"):
        list(session)
    assert not process.is_running()
    assert not engine.ready
    engine.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_the_edges_business(engine: Engine, number: signal.Signals) -> None:
    worker(engine).send_signal(number)
    assert sum(len(chunk.codes) for chunk in say(engine, 40)) == 40


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (builds.without_checkpoint, CheckpointError, "There is no folder ./nowhere."),
        (builds.broken, EngineFailure, "RuntimeError: a bug"),
        (builds.killed, EngineFailure, "exit code -9"),
    ],
)
def test_a_start_that_fails_says_why(build: Build, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        engine_of(build)


EDGE = """
import signal
import sys
from tests.remote import builds
from vivace.engine import Engine
from vivace.remote.near import LoopProcess

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    engine = Engine(parts=builds.{build}, host=LoopProcess)
    print(engine._host._worker.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("build", ["by_seed", "never"])
def test_an_edge_that_dies_leaves_nothing_behind(
    build: str, number: signal.Signals, tmp_path: Path
) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", EDGE.format(build=build)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=env,
    ) as edge:
        assert edge.stdout
        process = psutil.Process(int(edge.stdout.readline()))
        edge.send_signal(number)
        process.wait(timeout=30)
        edge.wait(timeout=30)
    assert list(tmp_path.glob("vivace-*")) == []


def test_an_edge_that_forgets_to_close_ends_all_the_same() -> None:
    edge = subprocess.run(
        [sys.executable, "-c", EDGE.format(build="by_seed")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=True,
    )
    assert edge.stderr == ""
    assert not psutil.pid_exists(int(edge.stdout))
