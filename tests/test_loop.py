"""The engine's loop, step by step, on a runner that counts and a clock that the test moves."""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from itertools import count, pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runners import SPEC, Bytes, FakeRunner, SlowRunner

from vivace.audio.onset import HOP
from vivace.config import EngineConfig, Profile
from vivace.errors import (
    CheckpointError,
    DeviceLost,
    EngineFailure,
    Overloaded,
    Unavailable,
    Unprocessable,
)
from vivace.loop import Loop
from vivace.schedule.admission import Admission
from vivace.schedule.costs import FREE, Costs, CostTable
from vivace.schedule.track import Track
from vivace.session import Session
from vivace.steps import Talking
from vivace.text.cap import cap_frames
from vivace.text.intake import Intake
from vivace.text.prompt import Script
from vivace.turns import Cancel, More, Turn
from vivace.types import (
    SAMPLE_RATE,
    SAMPLES_PER_FRAME,
    Chunk,
    Done,
    FinishReason,
    Pcm,
    Sampling,
    SpeechRequest,
    TextMode,
)
from vivace.watch import sub_seed

FREELY = Costs(FREE, Profile())
TEXT = "Hello there, how are you?"  # longer than the speech of most tests


class Bench:
    """A loop, its clock and the sessions on it."""

    def __init__(self, runner: FakeRunner | None = None, **config: object) -> None:
        self.now = 0.0
        self.runner = runner or FakeRunner()
        base = {"max_sessions": 4, "slo_ttfa_s": 600.0, **config}
        self.config = EngineConfig(**base)  # type: ignore[arg-type]
        self.ended: list[Session] = []
        costs = Costs(FREE, self.config.profile)
        self.loop = Loop(self.runner, self.config, lambda: self.now, self.ended.append, costs)
        self.seeds = count()

    def text(
        self, session: Session, ids: list[int], most_frames: int | None = None, *, last: bool
    ) -> None:
        self.loop.tell(More(session, ids, most_frames, last))

    def cancel(self, session: Session) -> None:
        self.loop.tell(Cancel(session))

    def taken(self, session: Session) -> None:
        pass

    def open(self, text: str | None = TEXT, **fields: object) -> Session:
        model = fields.pop("model", 0)
        sampling, most_in_all = fields.pop("sampling", Sampling()), fields.pop("most_in_all", inf)
        request = SpeechRequest(voice="ryan", **fields)  # type: ignore[arg-type]
        intake = Intake(
            Bytes(),  # type: ignore[arg-type]
            request.language,
            piece_s=self.config.piece_s or SPEC.piece_s,
            most_tokens=5_000,
            normalize=bool(request.normalize),
        )
        seed = next(self.seeds)
        session = Session(f"s{seed}", request, self, intake, most_chars=10_000)
        script = Script(SPEC, request, Bytes())
        assert isinstance(sampling, Sampling) and isinstance(most_in_all, float | int)
        turn = Turn(session, script, sampling, seed, Track(self.now, model=model))  # type: ignore[arg-type]
        turn.most_in_all = most_in_all
        self.loop.tell(turn)
        if text is not None:
            session.append(text)
            session.end()
        return session

    def run(self, most: int = 10_000, step_s: float = 0.001) -> None:
        for _ in range(most):
            if not self.loop.step():
                return
            self.now += step_s
        raise AssertionError("the loop does not come to rest")


def drain(session: Session) -> list[Chunk]:
    """What is there to take now."""
    chunks = iter(session.outbox.take, None)
    return list(chunks)


def frames(chunks: list[Chunk]) -> list[int]:
    return [int(code) for chunk in chunks for code in chunk.codes[:, 0]]


def done(session: Session) -> Done:
    assert session.done is not None
    return session.done


def test_speech_comes_in_order_and_ends_once() -> None:
    bench = Bench()
    session = bench.open()
    bench.run()
    chunks = drain(session)
    assert frames(chunks) == [0, 1, 2, 3, 4]
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    assert np.array_equal(pcm, np.repeat(np.arange(5.0), SAMPLES_PER_FRAME))
    assert done(session) == Done(FinishReason.STOP, 5, len(TEXT), seed=0)
    assert bench.ended == [session] and len(bench.loop.free) == 4


class Late(FakeRunner):
    """Its first frames are silent, the others a tone."""

    silent = 3

    def _voice(self, slots: Sequence[int], frames: int) -> Pcm:
        number = super()._voice(slots, frames)
        tone = np.tile(np.sin(np.arange(SAMPLES_PER_FRAME) / 10), (len(slots), frames))
        return np.where(number < self.silent, 0.0, tone).astype(np.float32)


@pytest.mark.parametrize("first_frames", [1, 2, 4])
def test_silence_before_the_speech_is_not_sent_and_its_codes_are(first_frames: int) -> None:
    bench = Bench(Late(lambda seed: 9), profile=Profile(first_frames=first_frames))
    session = bench.open(trim=True)
    while not (chunks := drain(session)):
        assert bench.loop.step()
        ((turn, now),) = ((t, bench.now) for t in bench.loop.turns.values())
        assert turn.track.deadline_s is None or len(session.outbox._chunks), "no clock yet"
        bench.now += 0.01
    first = chunks[0]
    sound_s = len(first.pcm) / SAMPLE_RATE
    assert turn.track.deadline_s == pytest.approx(now + sound_s), "its clock starts with the speech"
    assert len(first.pcm) - (len(first.codes) - Late.silent) * SAMPLES_PER_FRAME == HOP
    bench.run()
    chunks += drain(session)
    assert frames(chunks) == list(range(9))
    assert done(session) == Done(FinishReason.STOP, 9, len(TEXT), seed=0)


def test_a_session_that_stays_silent_is_sent_whole_and_ends() -> None:
    runner = Late(lambda seed: 5)
    runner.silent = 99
    bench = Bench(runner, profile=Profile(ahead_s=0.08))
    session = bench.open(trim=True)
    bench.run()
    (chunk,) = drain(session)
    assert frames([chunk]) == [0, 1, 2, 3, 4] and len(chunk.pcm) == 5 * SAMPLES_PER_FRAME
    assert done(session).reason is FinishReason.STOP and len(bench.loop.free) == 4


def test_first_chunk_leaves_before_the_last_frame_is_made() -> None:
    bench = Bench(FakeRunner(lambda seed: 50), profile=Profile(first_frames=1))
    session = bench.open()
    while not (chunks := drain(session)):
        assert bench.loop.step()
    assert frames(chunks) == [0]
    calls = [call for call, _ in bench.runner.calls]
    assert calls[:3] == ["prefill", "frame", "voice"], "decoded before a second was made"


def test_a_prompt_that_is_known_costs_no_step() -> None:
    """For any piece; and the admission reckons with it."""
    runner = FakeRunner(lambda seed: 6)
    runner.known = True
    bench = Bench(runner, piece_s=1.0)
    session = bench.open("A first sentence. And a second one, that is another piece.")
    assert bench.loop.step()
    assert runner.calls == [("frame", (0,))], "in the step that follows its coming"
    bench.run()
    assert {call for call, _ in runner.calls} == {"frame", "voice"}
    assert frames(drain(session)) == list(range(18)), "three pieces"
    assert bench.loop.costs.newcomer_s < bench.loop.costs.prompt_s


def test_a_crowd_of_known_prompts_does_not_hold_up_the_loop() -> None:
    """So many are taken at once; the others in steps that follow, and all are heard."""
    runner = FakeRunner(lambda seed: 3)
    runner.known = True
    bench = Bench(runner, max_sessions=32, profile=Profile(prefills=2))
    sessions = [bench.open() for _ in range(32)]
    bench.loop.step()
    assert 0 < len(runner.prompts) <= 4 < bench.loop.seated, "two known ones, two by the plan"
    bench.run()
    assert all(frames(drain(session)) == [0, 1, 2] for session in sessions)


def test_nothing_is_planned_between_two_looks_at_the_lanes() -> None:
    """While a step runs and nobody says a word; then its end is seen."""
    runner = Watched()
    loop = Loop(runner, EngineConfig(), lambda: runner.looks * 1e-3, lambda _: None, FREELY)
    loop.talking.append(Talking(0.0, [], [], runner))  # type: ignore[arg-type]
    loop._rest()
    assert runner.looks == 5
    loop.wake()
    loop._rest()
    assert runner.looks == 5, "a word wakes it before it looks"


class Watched(FakeRunner):
    """A step that is over at the fifth look."""

    poll_s = 1e-6
    looks = 0

    def done(self) -> bool:
        self.looks += 1
        return self.looks == 5


def test_the_prompt_is_the_published_one_and_text_stands_under_the_frames() -> None:
    bench = Bench(FakeRunner(lambda seed: 6))
    bench.open("abc")
    bench.run()
    ids, codec = SPEC.text_ids, SPEC.codec_ids
    prompt = bench.runner.prompts[3 - 3]
    pads = [ids.tts_pad] * 4
    assert prompt.text == [ids.im_start, ids.assistant, 10, *pads, ids.tts_bos, ord("a")]
    think = [codec.nothink, codec.think_bos, codec.think_eos]
    assert prompt.codec == [-1, -1, -1, *think, SPEC.speakers["ryan"], codec.pad, codec.bos]
    under = [ord(c) for c in "abc"] + [ids.tts_eos] + [ids.tts_pad] * 3
    assert bench.runner.texts[0] == under


def test_whole_text_stands_before_the_first_frame() -> None:
    bench = Bench()
    session = bench.open(None, text_mode=TextMode.WHOLE)
    session.append("ab")
    bench.run()
    assert not bench.runner.prompts, "the whole text was not there yet"
    session.append("c")
    session.end()
    bench.run()
    ids, codec = SPEC.text_ids, SPEC.codec_ids
    prompt = bench.runner.prompts[0]
    assert prompt.text[-5:] == [ord("a"), ord("b"), ord("c"), ids.tts_eos, ids.tts_pad]
    assert prompt.codec[-5:] == [codec.pad] * 4 + [codec.bos]
    assert set(bench.runner.texts[0]) == {ids.tts_pad}


def test_a_session_without_text_waits_and_holds_no_slot() -> None:
    bench = Bench()
    session = bench.open(None)
    bench.run()
    assert len(bench.loop.free) == 4
    session.append("a")
    bench.run()
    assert len(bench.loop.free) == 3 and frames(drain(session)) == [0]
    session.append("b")
    bench.run()
    assert frames(drain(session)) == [1], "one frame for each token while text is still to come"
    session.end()
    bench.run()
    assert frames(drain(session)) == [2, 3, 4] and done(session).reason is FinishReason.STOP


@pytest.mark.parametrize("mode", TextMode)
@pytest.mark.parametrize("text", ["", "   ", "...", "—", "😊"])
def test_case_13_14_unspeakable_text_completes_without_sound(text: str, mode: TextMode) -> None:
    bench = Bench()
    session = bench.open(text, text_mode=mode)
    bench.run()
    assert done(session).reason is FinishReason.NO_AUDIO
    assert not bench.runner.calls and drain(session) == []


def test_punctuation_before_the_first_word_is_not_lost() -> None:
    bench = Bench()
    session = bench.open(None)
    for piece in ('"', "(", "Hi", ")"):
        session.append(piece)
    session.end()
    bench.run()
    assert session.prompt_ids == list(b'"(Hi)')
    assert bench.runner.prompts[0].text[-1] == ord('"')
    assert bench.runner.texts[0][:5] == list(b'"(Hi)')


def test_case_7_a_session_that_ends_at_once_leaves_the_others_alone() -> None:
    nothing = (2, sub_seed(2, 1))  # not even when it is drawn again
    bench = Bench(FakeRunner(lambda seed: 0 if seed in nothing else 5), max_sessions=8)
    sessions = [bench.open() for _ in range(8)]
    bench.run()
    reasons = [done(session).reason for session in sessions]
    assert reasons[2] is FinishReason.NO_AUDIO
    assert reasons[:2] + reasons[3:] == [FinishReason.STOP] * 7
    assert all(frames(drain(s)) == [0, 1, 2, 3, 4] for s in sessions[:2] + sessions[3:])


def test_case_1_speech_is_capped_by_its_text_and_says_so() -> None:
    bench = Bench(FakeRunner(lambda seed: 10_000))
    session = bench.open("2次")
    bench.run()
    assert done(session).reason is FinishReason.LENGTH
    assert done(session).frames == cap_frames("2次") < 3 * 12.5
    assert len(frames(drain(session))) == done(session).frames


@pytest.mark.parametrize("most", [1, 7, 300])
def test_without_guards_only_max_frames_ends_it(most: int) -> None:
    bench = Bench(FakeRunner(lambda seed: 10_000))
    session = bench.open("Hi", guards=False, sampling=Sampling(max_frames=most))
    bench.run()
    assert done(session) == Done(FinishReason.LENGTH, most, 2, seed=0)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5])
def test_cancel_frees_the_slot_within_one_step(steps: int) -> None:
    bench = Bench(FakeRunner(lambda seed: 100))
    session, other = bench.open(), bench.open()
    for _ in range(steps):
        bench.loop.step()
    session.cancel()
    bench.loop.step()
    assert done(session).reason is FinishReason.CANCELLED
    assert drain(session) == [], "nothing follows a cancel"
    assert len(bench.loop.free) == 3
    bench.run()
    assert done(other).reason is FinishReason.LENGTH and len(bench.loop.free) == 4


def test_after_a_cancel_the_next_turn_is_let_in_whatever_is_still_under_way() -> None:
    """Where one session is all that can be served, as on a machine with other things to do."""
    runner = SlowRunner(lambda seed: 400)
    bench = Bench(runner, max_sessions=1, max_queue=0)
    spoken_over = bench.open()
    while not runner.sound:
        bench.loop.step()
        runner.run_one(sound=False)
    bench.loop.step()
    spoken_over.cancel()
    following = bench.open()
    bench.loop.step()
    assert done(spoken_over).reason is FinishReason.CANCELLED
    assert following.done is None, "it waits for the slot"
    runner.run_one(sound=True)
    bench.loop.step()
    assert bench.loop.seated == 1 and following.done is None


@pytest.mark.parametrize("call", ["prefill", "frame", "voice"])
def test_a_fault_ends_its_own_sessions_only(call: str, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.runner.fault = _fail_once(call)
    first = bench.open()
    bench.run()
    assert done(first).reason is FinishReason.ERROR
    with pytest.raises(EngineFailure):
        list(first)
    second = bench.open()
    bench.run()
    assert done(second).reason is FinishReason.STOP and len(bench.loop.free) == 4
    assert "failed" in caplog.text


def _fail_once(call: str):  # type: ignore[no-untyped-def]
    left = iter([True])

    def fault(name: str, seeds: tuple[int, ...]) -> None:
        if name == call and next(left, False):
            raise RuntimeError("scripted")

    return fault


def test_a_fault_in_a_batch_spares_who_was_not_in_it() -> None:
    bench = Bench(FakeRunner(lambda seed: 30), profile=Profile(frame_rows=2, codec_rows=2))

    def fault(call: str, seeds: tuple[int, ...]) -> None:
        if call == "frame" and 0 in seeds:
            raise RuntimeError("scripted")

    bench.runner.fault = fault
    sessions = [bench.open() for _ in range(4)]
    bench.run()
    reasons = [done(session).reason for session in sessions]
    assert reasons[0] is FinishReason.ERROR and reasons[2:] == [FinishReason.STOP] * 2


def test_case_49_more_sessions_than_slots_wait_their_turn() -> None:
    bench = Bench(max_sessions=2)
    sessions = [bench.open() for _ in range(9)]
    bench.run()
    assert [done(s).reason for s in sessions] == [FinishReason.STOP] * 9
    assert bench.ended == sessions, "first come, first served"


def test_case_40_a_slow_reader_pauses_only_itself_and_loses_nothing() -> None:
    profile = Profile(ahead_s=1.0)
    bench = Bench(FakeRunner(lambda seed: 200), profile=profile)
    slow = bench.open("word " * 90)
    bench.run()
    assert slow.done is None, "it is paused"
    made = bench.runner.made[0]
    assert made * 0.08 < profile.ahead_s + 33 * 0.08, "bounded"
    other = bench.open("word " * 90)
    heard: list[Chunk] = []
    while other.done is None:
        bench.loop.step()
        bench.now += 0.001
        heard += drain(other)
    assert frames(heard + drain(other)) == list(range(200))
    assert bench.runner.made[0] == made
    late: list[Chunk] = []
    while slow.done is None:
        late += drain(slow)
        bench.run()
    assert frames(late + drain(slow)) == list(range(200))


def test_a_reader_that_never_comes_back_is_cut_off() -> None:
    bench = Bench(FakeRunner(lambda seed: 1000), profile=Profile(ahead_s=1.0), stall_s=60.0)
    session = bench.open("word " * 200)
    bench.run()
    bench.now += 59.0
    bench.run()
    assert session.done is None
    bench.now += 2.0
    bench.run()
    assert done(session).reason is FinishReason.CANCELLED and len(bench.loop.free) == 4


def test_pages_that_run_out_end_a_session_with_an_error() -> None:
    bench = Bench(FakeRunner(lambda seed: 100, pages=20))
    session = bench.open()
    bench.run()
    assert isinstance(done(session).error, Unavailable), "a stream cut short is no success"
    assert bench.runner.made[0] == 20 - len(bench.runner.prompts[0].text) + 1


def test_a_prompt_without_room_is_refused_not_crashed() -> None:
    bench = Bench(FakeRunner(pages=3))
    session = bench.open()
    bench.run()
    assert isinstance(done(session).error, Unavailable) and len(bench.loop.free) == 4


def test_a_long_prompt_is_laid_down_piece_by_piece_between_the_frames_of_others() -> None:
    bench = Bench(FakeRunner(lambda seed: 40), profile=Profile(prefill_rows=10))
    other = bench.open()
    bench.loop.step()
    bench.loop.step()
    long = bench.open("word " * 60, text_mode=TextMode.WHOLE)
    bench.run()
    assert done(long).reason is done(other).reason is FinishReason.STOP
    calls = bench.runner.calls
    pieces = [i for i, call in enumerate(calls) if call == ("prefill", (1,))]
    assert len(pieces) == -(-(len(bench.runner.prompts[1].text) - 1) // 10)
    assert all(("frame", (0,)) in calls[a:b] for a, b in pairwise(pieces[:9]))


def test_a_slot_that_cannot_be_opened_ends_its_own_session_only() -> None:
    bench = Bench()
    opened = bench.runner.open

    def open_but_the_second(slot: int, sampling: Sampling, seed: int, model: int) -> None:
        opened(slot, sampling, seed)
        if seed == 1:
            raise RuntimeError("scripted")

    bench.runner.open = open_but_the_second  # type: ignore[method-assign]
    sessions = [bench.open() for _ in range(3)]
    bench.run()
    reasons = [done(session).reason for session in sessions]
    assert reasons == [FinishReason.STOP, FinishReason.ERROR, FinishReason.STOP]
    assert len(bench.loop.free) == 4


def test_the_context_limit_ends_a_session_with_length() -> None:
    bench = Bench(FakeRunner(lambda seed: 100), max_context=64)
    session = bench.open()
    bench.run()
    assert done(session).reason is FinishReason.LENGTH


def test_a_broken_step_ends_what_is_open_and_the_loop() -> None:
    bench = Bench()
    session = bench.open()
    broken = iter([True])

    def clock() -> float:
        if session.done is None and next(broken, False):
            raise RuntimeError("scripted")
        bench.loop.stopping = session.done is not None
        return 0.0

    bench.loop._listen()
    bench.loop.clock = clock
    bench.loop.run()
    assert isinstance(done(session).error, EngineFailure)
    assert bench.loop.broken is done(session).error


@pytest.mark.parametrize("call", ["frame", "voice"])
def test_batches_that_fail_again_and_again_are_the_engines_fault(call: str) -> None:
    bench = Bench(profile=Profile(frame_rows=2, codec_rows=2))

    def fault(name: str, seeds: tuple[int, ...]) -> None:
        if name == call:
            raise RuntimeError("scripted")

    bench.runner.fault = fault
    sessions = [bench.open() for _ in range(8)]
    bench.loop.run()
    assert isinstance(bench.loop.broken, EngineFailure)
    assert all(isinstance(done(session).error, EngineFailure) for session in sessions)
    assert bench.ended == list(dict.fromkeys(bench.ended)) and len(bench.ended) == 8


def test_faults_with_sound_between_them_stay_their_sessions_own() -> None:
    bench = Bench(FakeRunner(lambda seed: 5), max_sessions=1)

    def fault(call: str, seeds: tuple[int, ...]) -> None:
        if call == "frame" and seeds[0] % 2:
            raise RuntimeError("scripted")

    bench.runner.fault = fault
    sessions = [bench.open() for _ in range(12)]
    bench.run()
    failed = [done(session).reason is FinishReason.ERROR for session in sessions]
    assert failed == [False, True] * 6


@pytest.mark.parametrize("call", ["prefill", "frame", "voice"])
def test_a_lost_device_ends_everything_and_the_runner_is_asked_no_more(call: str) -> None:
    bench = Bench()
    lost = DeviceLost("scripted")

    def fault(name: str, seeds: tuple[int, ...]) -> None:
        if name == call:
            bench.runner.close = None  # type: ignore[assignment, method-assign]
            raise lost

    bench.runner.fault = fault
    sessions = [bench.open() for _ in range(6)]
    sessions.append(bench.open(None))  # one without text
    bench.loop.run()
    assert bench.loop.broken is lost
    assert all(done(session).error is lost for session in sessions)


def test_memory_that_runs_out_ends_its_batch_and_nothing_else() -> None:
    bench = Bench(FakeRunner(lambda seed: 5), max_sessions=1)

    def fault(call: str, seeds: tuple[int, ...]) -> None:
        if call == "frame" and seeds[0] < 5:
            raise Unavailable("no memory", code="out_of_memory")

    bench.runner.fault = fault
    sessions = [bench.open() for _ in range(7)]
    bench.run()
    errors = [done(session).error for session in sessions]
    assert all(isinstance(error, Unavailable) for error in errors[:5]) and errors[5:] == [None] * 2


@pytest.mark.parametrize("lane", ["talker", "codec"])
def test_a_step_that_never_ends_is_given_up(lane: str) -> None:
    runner = SlowRunner(lambda seed: 400)
    bench = Bench(runner, hang_s=5.0)
    session = bench.open()
    while lane == "codec" and not runner.sound:
        bench.loop.step()
        runner.run_one(sound=False)
    bench.loop.step()
    for _ in range(10):
        bench.now += 0.5
        bench.loop.step()
    bench.now += 60.0  # the whole process was stopped
    bench.loop.step()
    for _ in range(10):
        bench.now += 0.5
        bench.loop.step()
    bench.now += 0.1
    with pytest.raises(EngineFailure, match=f"{lane} does not end"):
        bench.loop.step()
    assert session.done is None, "that is for `run` to tell"


def test_closing_ends_every_session_with_an_error() -> None:
    bench = Bench(FakeRunner(lambda seed: 1000))
    sessions = [bench.open() for _ in range(6)]
    for _ in range(5):
        bench.loop.step()
    bench.loop.stopping = True
    bench.loop.run()
    assert all(isinstance(done(s).error, Unavailable) for s in sessions)
    assert len(bench.loop.free) == 4


OPERATIONS = st.sampled_from(["open", "append", "end", "cancel", "read", "step", "step", "wait"])


@given(st.lists(st.tuples(OPERATIONS, st.integers(0, 50)), max_size=120))
def test_any_order_of_events_ends_every_session_once(events: list[tuple[str, int]]) -> None:
    bench = Bench(
        FakeRunner(lambda seed: seed * 7 % 23), max_sessions=3, profile=Profile(ahead_s=0.5)
    )
    sessions: list[Session] = []
    heard: dict[Session, list[Chunk]] = {}
    for operation, number in events:
        if operation == "open" or not sessions:
            sessions.append(bench.open(None))
            heard[sessions[-1]] = []
        session = sessions[number % len(sessions)]
        _do(bench, session, operation, number, heard)
    _let_all_end(bench, sessions, heard)
    assert len(bench.ended) == len(set(bench.ended)) == len(sessions)
    assert len(bench.loop.free) == 3 and not bench.runner.seeds
    for session in sessions:
        if done(session).reason is not FinishReason.CANCELLED:
            assert frames(heard[session]) == list(range(done(session).frames))


def _do(
    bench: Bench, session: Session, operation: str, number: int, heard: dict[Session, list[Chunk]]
) -> None:
    match operation:
        case "append" if not session._ended:
            session.append("x" * number)
        case "end":
            session.end()
        case "cancel" if number < 5:
            session.cancel()
        case "read":
            heard[session] += drain(session)
        case "step":
            bench.loop.step()
        case "wait":
            bench.now += number / 10


def _let_all_end(bench: Bench, sessions: list[Session], heard: dict[Session, list[Chunk]]) -> None:
    for session in sessions:
        session.end()
    for _ in range(2000):
        bench.loop.step()
        bench.now += 0.01
        for session in sessions:
            heard[session] += drain(session)
        if all(session.done is not None for session in sessions):
            return


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield Bench()


def test_a_slot_given_up_while_the_codec_is_at_it_is_not_given_out_before_it_is_done() -> None:
    bench = Bench(FakeRunner(lambda seed: 100), max_sessions=1)
    first = bench.open()
    for _ in range(4):
        bench.loop.step()
    sound: Future[Pcm] = Future()
    decode, bench.runner.voice = bench.runner.voice, lambda slots, frames: sound  # type: ignore[method-assign]
    while bench.loop.speaking is None or bench.loop.speaking.sound is not sound:
        bench.loop.step()
        bench.now += 0.1
    first.cancel()
    second = bench.open()
    bench.loop._listen()
    bench.loop._seat(bench.now)
    assert done(first).reason is FinishReason.CANCELLED
    assert not bench.loop.free, "the codec still writes there"
    sound.set_result(np.zeros((1, SAMPLES_PER_FRAME), dtype=np.float32))
    bench.runner.voice = decode  # type: ignore[method-assign]
    bench.run()
    assert done(second).reason is FinishReason.LENGTH and len(bench.loop.free) == 1
    assert drain(first) == []


def test_text_after_the_end_or_over_the_limit_is_refused_with_the_numbers(bench: Bench) -> None:
    session = bench.open(None)
    with pytest.raises(Unprocessable, match=r"10001 characters; at most 10000"):
        session.append("x" * 10_001)


def test_a_piece_over_one_prompt_is_refused_with_the_numbers() -> None:
    bench = Bench(piece_s=1000.0)
    fresh = bench.open(None)
    with pytest.raises(Unprocessable, match=r"a piece .* 5001 tokens; one prompt holds 5000"):
        fresh.append("x" * 5001)
    with pytest.raises(Unprocessable):
        fresh.end()
    bench.run()
    assert done(fresh).reason is FinishReason.CANCELLED


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=6),
    st.lists(st.booleans(), max_size=400),
    st.sets(st.integers(0, 5), max_size=2),
)
def test_steps_under_way_change_nothing_of_what_is_said(
    lengths: list[int], order: list[bool], leaving: set[int]
) -> None:
    runner = SlowRunner(lambda seed: lengths[seed])
    bench = Bench(runner, max_sessions=3, redraws=0)
    sessions = [bench.open() for _ in lengths]
    for step, sound in enumerate(order):
        if step in leaving and step < len(sessions):
            sessions[step].cancel()
        bench.loop.step()
        runner.run_one(sound=sound)
        bench.now += 0.01
    while any(s.done is None for s in sessions):
        bench.loop.step()
        runner.run_one(sound=False)
        runner.run_one(sound=True)
        bench.now += 0.01
    for session, length in zip(sessions, lengths, strict=True):
        said = frames(drain(session))
        assert said == list(range(length))[: len(said)]
        if done(session).reason is not FinishReason.CANCELLED:
            assert len(said) == length
            assert done(session).reason is (FinishReason.STOP if length else FinishReason.NO_AUDIO)
    while runner.tokens:
        runner.run_one(sound=False)
    assert len(bench.loop.free) == 3 and not runner.seeds


def test_two_token_steps_are_under_way_and_no_more() -> None:
    runner = SlowRunner(lambda seed: 50)
    bench = Bench(runner)
    bench.open()
    bench.loop.step()
    runner.tokens.clear()  # the prompt's, never over: nothing else may start for it
    for _ in range(5):
        bench.loop.step()
    assert not runner.tokens and len(bench.loop.talking) == 1
    bench.open()
    for _ in range(5):
        bench.loop.step()
    assert len(bench.loop.talking) == 2


def test_a_first_sound_lasts_until_the_next_can_come() -> None:
    """Silence is trimmed after it was decoded: what is left of the first chunk may be too short."""
    costs = CostTable({1: 0.05}, {1: {1: 0.01}}, {1: 0.01})
    bench = Bench(FakeRunner(lambda seed: 60))
    bench.loop = Loop(
        bench.runner, bench.config, lambda: bench.now, bench.ended.append, Costs(costs, Profile())
    )
    session = bench.open()
    turn = None
    while not (chunks := drain(session)):
        assert bench.loop.step()
        turn = turn or next(iter(bench.loop.seats.values()), None)
        if turn is not None and turn.track.made == 1 and not turn.early:
            turn.early.append(np.zeros(0, dtype=np.float32))
    assert bench.loop.policy.lead_s > 0.08
    assert len(chunks[0].pcm) >= bench.loop.policy.lead_s * SAMPLE_RATE


def test_a_first_sound_waits_for_no_text() -> None:
    """What would come next is not written yet: how long it takes to make decides nothing."""
    bench = Bench(FakeRunner(lambda seed: 60))
    costs = Costs(CostTable({1: 0.05}, {1: {1: 0.01}}, {1: 0.01}), Profile())
    bench.loop = Loop(bench.runner, bench.config, lambda: bench.now, bench.ended.append, costs)
    session = bench.open(None)
    for text, heard in (("a", [0]), ("b", [1]), ("cd", [2, 3])):  # a token is a byte here
        session.append(text)
        bench.run()
        assert bench.loop.policy.lead_s > 0.08
        assert frames(drain(session)) == heard


def test_starved_and_late_are_counted_when_a_listener_falls_silent() -> None:
    bench = Bench(FakeRunner(lambda seed: 30), profile=Profile(first_frames=1, chunk_frames=4))
    bench.open()
    while not bench.loop.counts.late:
        bench.loop.step()
        bench.now += 0.2  # slower than it plays
    assert bench.loop.counts.late >= 1
    calm = Bench(FakeRunner(lambda seed: 30))
    calm.open()
    calm.run()
    assert (calm.loop.counts.late, calm.loop.counts.starved) == (0, 0)


def test_a_session_is_measured_from_its_wait_to_its_cancel() -> None:
    bench = Bench(max_sessions=1)
    bench.open()
    second = bench.open()
    bench.loop.step()
    bench.now += 0.3
    bench.run()
    meters = bench.loop.meters
    assert sum(meters.wait.counts) == 2
    assert 0.3 <= meters.wait.total < 0.4
    assert done(second).reason is FinishReason.STOP
    steps = {
        kind: sum(sum(t.counts) for t in lane.took_s.values())
        for kind, lane in meters.lanes.items()
    }
    assert set(steps) == {"frame", "prompt", "codec"} and all(steps.values())
    assert meters.lanes["codec"].rows == meters.lanes["codec"].room == steps["codec"]
    assert sum(meters.margin.counts) > 0 and sum(meters.cancel.counts) == 0
    third = bench.open()
    bench.loop.step()
    bench.loop.tell(Cancel(third, bench.now))
    bench.now += 0.02
    bench.run()
    assert sum(meters.cancel.counts) == 1
    assert meters.cancel.total == pytest.approx(0.02)


def test_sound_that_waited_for_its_text_is_not_measured_as_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Admission, "first_s", lambda *_: 1.0)  # that it is excused for
    bench = Bench()
    session = bench.open(text=None)
    session.append("Hello there. ")
    session.flush()
    bench.run()
    before = bench.loop.meters.margin.counts[:]
    bench.now += 60.0
    session.append("And on.")
    session.end()
    bench.run()
    after = bench.loop.meters.margin.counts
    assert sum(after[:5]) == sum(before[:5]) == 0, "below zero"
    assert done(session).reason is FinishReason.STOP


def test_whom_nobody_listens_to_waits_where_a_live_one_is_sent_away() -> None:
    bench = Bench(FakeRunner(lambda seed: 30), max_sessions=1, max_queue=1, slo_ttfa_s=0.0)
    first, live, patient = bench.open(), bench.open(), bench.open(patient=True)
    bench.run()
    assert isinstance(done(live).error, Overloaded)
    assert frames(drain(patient)) == frames(drain(first)) == list(range(30))


class Fetched(FakeRunner):
    """Its second model comes when the test says so, or not at all."""

    there, fault_s = False, None

    def fetch(self, model: int, busy: Collection[int], costs: Costs) -> bool:
        self.busy = set(busy)
        if model and self.fault_s is not None:
            raise CheckpointError(self.fault_s)
        if model and self.there and model not in costs.tokens:
            costs.add(model, FREE)
        return self.there or not model


def test_who_waits_for_a_model_holds_no_slot_and_nobody_up() -> None:
    runner = Fetched()
    bench = Bench(runner, max_sessions=1)
    first, other = bench.open(model=1), bench.open()
    bench.run()
    assert done(other).reason is FinishReason.STOP and first.done is None
    assert len(bench.loop.free) == 1 and not bench.loop.waiting
    runner.there = True
    bench.run()
    assert frames(drain(first)) == [0, 1, 2, 3, 4] and not bench.loop.parked


def test_a_model_that_does_not_come_ends_those_who_wait_for_it() -> None:
    runner = Fetched()
    bench = Bench(runner, load_wait_s=5.0)
    tired, gone = bench.open(model=1), bench.open(model=1)
    bench.run()
    gone.cancel()
    bench.now += 5.1
    bench.run()
    assert done(gone).reason is FinishReason.CANCELLED
    with pytest.raises(Overloaded):
        list(tired)
    runner.fault_s = "cut off"
    broken, fine = [bench.open(model=1) for _ in range(2)], bench.open()
    bench.run()
    for session in broken:
        with pytest.raises(CheckpointError, match="cut off"):
            list(session)
    assert done(fine).reason is FinishReason.STOP and not bench.loop.parked


def test_a_model_is_busy_while_sessions_or_steps_of_it_are_there() -> None:
    runner = Fetched(lambda seed: 10)
    runner.there = True
    bench = Bench(runner)
    session, other = bench.open(model=1), bench.open(None)
    bench.loop.step()
    other.append("a")
    bench.loop.step()
    assert runner.busy == {1}
    bench.run()
    assert done(session).reason is FinishReason.STOP and bench.loop._busy() == {0}
    other.end()
    bench.run()
    assert bench.loop._busy() == set()
