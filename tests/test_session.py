"""A session from other threads and event loops, on an engine whose runner only counts."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.remote.hosts import HOSTS
from tests.runners import SPEC, Bytes, FakeRunner

from vivace import tables
from vivace.config import EngineConfig, Profile
from vivace.engine import Engine
from vivace.errors import InvalidRequest, NotFound, Overloaded, Unavailable, Unprocessable
from vivace.host import LoopThread, MakeHost
from vivace.parts import Parts
from vivace.schedule.costs import FREE
from vivace.session import Session
from vivace.types import Clone, FinishReason, Sampling, SpeechRequest

TEXT = "Hello there, how are you?"


def engine_of(runner: FakeRunner, host: MakeHost = LoopThread, **config: object) -> Engine:
    parts = Parts("fake", SPEC, Bytes(), runner)  # type: ignore[arg-type]
    settings = EngineConfig(**{"slo_ttfa_s": 600.0, **config})  # type: ignore[arg-type]
    return Engine(config=settings, parts=parts, host=host)


@pytest.fixture(params=HOSTS)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with engine_of(FakeRunner(), HOSTS[request.param]) as engine:
        yield engine


def test_iterating_gives_every_chunk_and_then_the_end(engine: Engine) -> None:
    session = engine.say(TEXT)
    codes = [int(code) for chunk in session for code in chunk.codes[:, 0]]
    assert codes == [0, 1, 2, 3, 4]
    assert session.done is not None and session.done.reason is FinishReason.STOP
    assert list(session) == [], "iterating again finds the end"


async def test_many_sessions_in_one_event_loop(engine: Engine) -> None:
    async def speak() -> list[int]:
        return [int(c) async for chunk in engine.say(TEXT) for c in chunk.codes[:, 0]]

    assert await asyncio.gather(*(speak() for _ in range(40))) == [[0, 1, 2, 3, 4]] * 40


async def test_text_from_one_task_and_sound_in_another(engine: Engine) -> None:
    session = engine.open()

    async def write() -> None:
        for word in TEXT.split(" "):
            session.append(word + " ")
            await asyncio.sleep(0)
        session.end()

    _, chunks = await asyncio.gather(write(), _collect(session))
    assert chunks == [0, 1, 2, 3, 4]
    assert bytes(session.prompt_ids).decode() == TEXT


async def _collect(session):  # type: ignore[no-untyped-def]
    return [int(c) async for chunk in session for c in chunk.codes[:, 0]]


async def test_a_reader_that_is_cancelled_while_waiting_leaves_nothing_behind(
    engine: Engine,
) -> None:
    session = engine.open()
    reader = asyncio.create_task(_collect(session))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert session.outbox._listeners == []
    session.append(TEXT)
    session.end()
    assert await _collect(session) == [0, 1, 2, 3, 4]


def test_case_49_over_slots_and_queue_is_refused_and_the_rest_is_served() -> None:
    gate = threading.Event()
    runner = FakeRunner()
    runner.fault = lambda call, seeds: (gate.wait(30), None)[1]
    with engine_of(runner, max_sessions=2, max_queue=3) as engine:
        sessions = [engine.say(TEXT) for _ in range(5)]
        with pytest.raises(Overloaded) as refusal:
            engine.say(TEXT)
        assert refusal.value.retry_after_s > 0
        gate.set()
        assert all(list(session) for session in sessions)
        assert list(engine.say(TEXT)), "room again"


def test_everything_is_given_back(engine: Engine) -> None:
    for n in range(30):
        session = engine.say(TEXT)
        if n % 2:
            session.cancel()
        list(session)
    stats = engine.stats()
    assert (stats.slots_free, stats.active, stats.waiting) == (stats.slots_total, 0, 0)


def test_a_closed_engine_refuses() -> None:
    engine = engine_of(FakeRunner())
    engine.close()
    with pytest.raises(Unavailable):
        engine.open()
    assert not engine.ready


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"voice": "nova"}, NotFound, "voice"),
        ({"voice": "../../x"}, NotFound, "voice"),
        ({"voice": ""}, NotFound, "voice"),
        ({"language": "klingon"}, Unprocessable, "language"),
        ({"clone": Clone(x_vector=None)}, Unprocessable, "ref_audio"),  # type: ignore[arg-type]
        ({"instruct": "x" * 9000}, Unprocessable, "instructions"),
    ],
)
def test_what_the_model_cannot_do_is_refused_by_name(
    engine: Engine, fields: dict[str, object], error: type[Exception], param: str
) -> None:
    with pytest.raises(error) as refusal:
        engine.open(SpeechRequest(**fields))  # type: ignore[arg-type]
    assert refusal.value.param == param  # type: ignore[attr-defined]
    assert engine.stats().waiting == 0


BAD_SAMPLING: list[dict[str, object]] = [
    {"temperature": -1.0},
    {"temperature": float("nan")},
    {"temperature": "1"},
    {"subtalker_temperature": 2.1},
    {"top_k": -5},
    {"top_k": 1.5},
    {"subtalker_top_k": True},
    {"top_p": -1.0},
    {"subtalker_top_p": 1.1},
    {"repetition_penalty": -0.1},
    {"seed": 2**63},
    {"seed": -1},
    {"seed": "x"},
    {"min_frames": 2**70},
    {"max_frames": 0},
]


@pytest.mark.parametrize("fields", BAD_SAMPLING, ids=str)
def test_sampling_out_of_range_never_reaches_the_engines_thread(
    engine: Engine, fields: dict[str, object]
) -> None:
    with pytest.raises(Unprocessable) as refusal:
        engine.open(SpeechRequest(sampling=Sampling(**fields)))  # type: ignore[arg-type]
    assert refusal.value.param == next(iter(fields))


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (EngineConfig, {"max_sessions": 0}),
        (EngineConfig, {"max_queue": -9}),
        (EngineConfig, {"threads": -1}),
        (EngineConfig, {"max_context": 1}),
        (Profile, {"frame_rows": 0}),
        (Profile, {"codec_rows": 0}),
        (Profile, {"prefills": 0}),
        (Profile, {"first_frames": 0}),
        (Profile, {"chunk_frames": 0}),
        (Profile, {"chunk_frames": 65}),
        (Profile, {"first_frames": 9, "chunk_frames": 8}),
        (Profile, {"ahead_s": 0.0}),
    ],
)
def test_a_config_that_cannot_run_is_refused_by_its_field(
    config: type[EngineConfig] | type[Profile], fields: dict[str, float]
) -> None:
    with pytest.raises(Unprocessable) as refusal:
        config(**fields)  # type: ignore[arg-type]
    assert refusal.value.param in (*fields, "chunk_frames")


def test_a_refused_piece_does_not_count(engine: Engine) -> None:
    session = engine.open()
    session.append("Hi ")
    with pytest.raises(Unprocessable):
        session.append("x" * 80_000)
    session.append("ok.")
    session.end()
    assert list(session) and bytes(session.prompt_ids) == b"Hi ok."


def test_an_end_that_is_refused_ends_the_session(engine: Engine) -> None:
    session = engine.open()
    session.append("Hi \ud83d")
    with pytest.raises(InvalidRequest):
        session.end()
    list(session)
    assert session.done is not None and session.done.reason is FinishReason.CANCELLED


def test_case_37_names_match_whatever_their_case(engine: Engine) -> None:
    session = engine.say(TEXT, SpeechRequest(voice="RYAN", language="English"))
    assert session.request.voice == "ryan" and session.request.language == "english"
    assert list(session)


def test_say_leaves_nothing_behind_when_the_last_piece_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequest):
        engine.say("Hi \ud83d")  # what the end finds out: the other half never came
    assert list(engine.say(TEXT))
    stats = engine.stats()
    assert (stats.active, stats.waiting) == (0, 0)


def test_opening_while_closing_is_refused_or_ends() -> None:
    for _ in range(20):
        engine = engine_of(FakeRunner(lambda seed: 1000))
        opened: list[Session] = []

        def open_many(engine: Engine = engine, opened: list[Session] = opened) -> None:
            with contextlib.suppress(Unavailable):
                for _ in range(80):
                    opened.append(engine.open())

        thread = threading.Thread(target=open_many)
        thread.start()
        engine.close()
        thread.join()
        assert all(session.done is not None for session in opened)


def test_text_after_the_end_is_refused(engine: Engine) -> None:
    session = engine.say(TEXT)
    with pytest.raises(InvalidRequest, match="has ended"):
        session.append("more")
    session.end()
    assert list(session)


def test_case_22_half_a_surrogate_pair_waits_for_its_other_half(engine: Engine) -> None:
    session = engine.open(SpeechRequest(normalize=False))
    session.append("Hi \ud83d")
    session.append("\ude00 there")
    session.end()
    assert list(session) and bytes(session.prompt_ids).decode() == "Hi 😀 there"
    broken = engine.open()
    with pytest.raises(InvalidRequest) as refusal:
        broken.append("a\ud800b")
    assert refusal.value.param == "input"
    broken.cancel()
    assert list(broken) == []


def test_what_serving_has_taught_of_the_costs_is_there_at_the_next_start(tmp_path: Path) -> None:
    for _ in range(2):
        with engine_of(FakeRunner(lambda seed: 40), costs_dir=tmp_path) as engine:
            assert list(engine.say(TEXT))
    (kept,) = tmp_path.glob("*.json")
    learned = tables.learned(kept)
    assert set(learned) == {"frame", "voice", "prefill", "late_s"} and learned["frame"] != 1.0
    assert tables.read(kept) == FREE
    kept.write_text("{")
    with engine_of(FakeRunner(), costs_dir=tmp_path) as engine:  # a broken file costs nothing
        assert list(engine.say(TEXT))


@pytest.mark.parametrize("host", HOSTS)
def test_text_to_have_before_a_first_frame_counts_wherever_the_loop_runs(host: str) -> None:
    """The loop has a script of its own where it is in another process."""
    runner = FakeRunner()
    with engine_of(runner, HOSTS[host], text_lead=3) as engine:
        slow, quick = engine.open(), engine.open()
        slow.append("a b")
        quick.append("Hello there.")
        quick.end()
        assert list(quick)  # in its turn behind the other's text
        assert len(runner.prompts) == 1
        slow.cancel()
