"""Speech that runs away: where it is cut, what is drawn again, and what nobody else hears of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runners import FakeRunner, SlowRunner
from tests.test_loop import TEXT, Bench, done, drain, frames

from vivace.errors import EngineFailure
from vivace.session import Session
from vivace.text.cap import cap_frames
from vivace.types import (
    SAMPLES_PER_FRAME,
    Cut,
    FinishReason,
    Frames,
    Pcm,
    Row,
    Sampling,
    TextMode,
)
from vivace.watch import MOST_HELD, sub_seed

EVER = 100_000  # frames: it never ends by itself
LONG = "Hello there, how are you today? " * 8  # a cap of more than 40 s
TONE = np.sin(np.arange(SAMPLES_PER_FRAME) / 10).astype(np.float32)


class Speech(FakeRunner):
    """Frames from `loud[seed]` on are silent, the others a tone; codes are `codes[seed](n)`."""

    def __init__(self, length: Callable[[int], int] = lambda seed: EVER) -> None:
        super().__init__(length)
        self.loud: dict[int, int] = {}
        self.codes: dict[int, Callable[[int], int]] = {}

    def _frame(self, rows: Sequence[Row]) -> Frames:
        out = super()._frame(rows)
        for i, row in enumerate(rows):
            again = self.codes.get(self.seeds[row.slot])
            if again is not None:
                out.codes[i] = again(int(out.codes[i, 0]))
        return out

    def _voice(self, slots: Sequence[int], frames: int) -> Pcm:
        number = super()._voice(slots, frames)
        for i, slot in enumerate(slots):
            loud = self.loud.get(self.seeds.get(slot, -1), EVER)
            number[i] = np.where(number[i] < loud, np.tile(TONE, frames), 0.0)
        return number


def cuts(bench: Bench) -> dict[Cut, int]:
    """How often which guard has ended a piece, where it has."""
    return {cut: count for cut, count in bench.loop.counts.cuts.items() if count}


def hear(bench: Bench, *sessions: Session) -> list[list[int]]:
    """Frames of all of them, by readers that take what there is."""
    heard: list[list[int]] = [[] for _ in sessions]
    for _ in range(20_000):
        moved = bench.loop.step()
        for said, session in zip(heard, sessions, strict=True):
            said.extend(frames(drain(session)))
        if not moved and all(session.done for session in sessions):
            return heard
        bench.now += 0.001
    raise AssertionError("it does not come to an end")


def test_case_2_silence_after_the_text_ends_speech_at_its_frame() -> None:
    bench = Bench(Speech())
    bench.runner.loud[0] = 60  # type: ignore[attr-defined]
    session = bench.open(LONG)
    bench.run()
    chunks = drain(session)
    said = len(LONG.strip()) + 1  # a byte of text under each frame, then its end
    assert said > 60, "what is silent while text is left is a pause"
    assert done(session).reason is FinishReason.LENGTH and done(session).cut is Cut.SILENCE
    assert frames(chunks) == list(range(said + 25)), "2 s of silence after the text"
    assert sum(len(c.pcm) for c in chunks) == (said + 25) * SAMPLES_PER_FRAME
    assert cuts(bench) == {Cut.SILENCE: 1} and len(bench.loop.free) == 4


def test_whole_text_is_consumed_before_the_first_frame() -> None:
    bench = Bench(Speech())
    bench.runner.loud[0] = 60  # type: ignore[attr-defined]
    session = bench.open(LONG, text_mode=TextMode.WHOLE)
    bench.run()
    assert frames(drain(session)) == list(range(60 + 25))
    assert done(session).cut is Cut.SILENCE


def test_a_pause_is_no_end() -> None:
    class Pausing(Speech):
        def _voice(self, slots: Sequence[int], frames: int) -> Pcm:
            number = FakeRunner._voice(self, slots, frames)
            return np.where(number % 30 < 6, np.tile(TONE, (len(slots), frames)), 0.0).astype(
                np.float32
            )

    bench = Bench(Pausing(lambda seed: 300), guard_silence_s=2.0)
    session = bench.open(LONG, text_mode=TextMode.WHOLE)
    bench.run()
    assert done(session).reason is FinishReason.STOP, "24 silent frames in a row, of 25"
    assert done(session).frames == 300


@pytest.mark.parametrize("off", [{"guards": False}, {"guard_silence_s": 0.0}])
def test_silence_is_no_end_where_the_guard_is_off(off: dict[str, object]) -> None:
    bench = Bench(Speech(lambda seed: 300), **off)
    bench.runner.loud[0] = 60  # type: ignore[attr-defined]
    session = bench.open(LONG, text_mode=TextMode.WHOLE)
    bench.run()
    assert done(session).reason is FinishReason.STOP and done(session).frames == 300
    assert not cuts(bench)


def test_a_request_can_turn_all_guards_off() -> None:
    bench = Bench(Speech(lambda seed: 2_000))
    runner = bench.runner
    assert isinstance(runner, Speech)
    runner.loud[0], runner.codes[0] = 30, lambda n: n % 3
    session = bench.open("Hi!", guards=False)
    hear(bench, session)
    assert done(session).reason is FinishReason.STOP and done(session).frames == 2_000
    assert not cuts(bench)


def test_codes_that_go_round_end_speech_and_the_next_piece_is_spoken() -> None:
    bench = Bench(Speech(lambda seed: 200), piece_s=2.0)
    runner = bench.runner
    assert isinstance(runner, Speech)
    runner.codes[0] = lambda n: n % 7 if n < 100 else n
    session = bench.open("One two three, four five six, seven eight nine. " * 2)
    bench.run()
    made = done(session)
    assert cuts(bench) == {Cut.LOOP: 1, Cut.CAP: 1}, "the second piece has no loop"
    assert made.reason is FinishReason.LENGTH and made.cut is Cut.CAP, "the last of them"
    assert made.frames == 64 + cap_frames("One two three, four five six, seven eight nine.")


def test_case_1_4_a_cap_says_so_and_a_wish_of_the_client_is_no_guard() -> None:
    bench = Bench(Speech())
    capped = bench.open("2次", language="chinese")
    wished = bench.open(LONG, most_in_all=20.0)
    bench.run()
    cap = cap_frames("2次", "chinese")
    assert (done(capped).reason, done(capped).cut) == (FinishReason.LENGTH, Cut.CAP)
    assert done(capped).frames == cap and cap * 0.08 < 3.0
    assert (done(wished).reason, done(wished).cut) == (FinishReason.LENGTH, None)
    assert cuts(bench) == {Cut.CAP: 1}


@pytest.mark.parametrize(
    "text", ["7" * 200, "ha" * 400, "Pneumono" * 15], ids=["digits", "repeats", "one word"]
)
def test_case_12_endless_text_has_a_bounded_end(text: str) -> None:
    bench = Bench(Speech())
    session = bench.open(text)
    hear(bench, session)
    assert done(session).reason is FinishReason.LENGTH
    assert done(session).frames <= cap_frames(text) + cap_frames("") * text.count(" ") + 100


# What nobody has heard is drawn again.


@pytest.mark.parametrize("runs", ["cap", "silence", "loop"])
def test_what_nobody_listens_to_yet_is_drawn_again_when_it_runs_away(runs: str) -> None:
    other = sub_seed(0, 1)
    bench = Bench(Speech(lambda seed: EVER if seed == 0 else 9))
    runner = bench.runner
    assert isinstance(runner, Speech)
    if runs == "silence":
        runner.loud[0] = 9
    if runs == "loop":
        runner.codes[0] = lambda n: n % 5
    runner.codes[other] = lambda n: 500 + n
    text = "Hi there!" if runs == "cap" else TEXT * 2
    session = bench.open(text, patient=True)
    bench.run()
    assert frames(drain(session)) == [500 + n for n in range(9)]
    made = done(session)
    assert (made.reason, made.cut, made.redraws) == (FinishReason.STOP, None, 1)
    assert (made.frames, made.seed, made.text_tokens) == (9, 0, len(text))
    assert cuts(bench) == {Cut(runs): 1} and bench.loop.counts.redraws == 1
    assert bench.ended == [session] and len(bench.loop.free) == 4


def test_a_second_attempt_is_kept_however_it_ends() -> None:
    bench = Bench(Speech())
    session = bench.open("Hi!", patient=True)
    bench.run()
    made = done(session)
    assert (made.reason, made.cut, made.redraws) == (FinishReason.LENGTH, Cut.CAP, 1)
    assert frames(drain(session)) == list(range(cap_frames("Hi!")))


@pytest.mark.parametrize("fields", [{}, {"patient": True, "sampling": Sampling(
    temperature=0.0, subtalker_temperature=0.0)}], ids=["heard", "greedy"])  # fmt: skip
def test_what_is_heard_or_would_be_the_same_is_not_drawn_again(fields: dict[str, object]) -> None:
    bench = Bench(Speech())
    session = bench.open("Hi!", **fields)
    bench.run()
    assert done(session).redraws == 0 and done(session).cut is Cut.CAP


def test_no_more_than_ten_seconds_are_kept_back() -> None:
    bench = Bench(Speech(lambda seed: 400))
    session = bench.open(LONG, patient=True)
    voiced: list[int] = []
    while not session.outbox._chunks:
        assert bench.loop.step()
        bench.now += 0.001
        voiced += [turn.track.voiced for turn in bench.loop.turns.values()]
    assert 0 < max(voiced[:-1]) <= MOST_HELD < voiced[-1]
    assert hear(bench, session) == [list(range(400))]


def test_a_small_lead_does_not_deadlock_what_is_kept_back() -> None:
    profile = replace(Bench().config.profile, ahead_s=0.5)
    bench = Bench(Speech(lambda seed: 40), profile=profile)
    session = bench.open(LONG, patient=True)
    assert hear(bench, session) == [list(range(40))]
    assert done(session).reason is FinishReason.STOP


@pytest.mark.parametrize("patient", [False, True])
def test_silence_alone_is_drawn_again_before_anybody_hears_it(patient: bool) -> None:
    """Where the silence before speech is trimmed, a second of it has not been sent."""
    bench = Bench(Speech(lambda seed: 40))
    bench.runner.loud[0] = 0  # type: ignore[attr-defined]
    session = bench.open(TEXT * 4, trim=True, patient=patient)
    bench.run()
    made = done(session)
    assert (made.reason, made.redraws) == (FinishReason.STOP, 1)
    assert sum(len(chunk.pcm) for chunk in drain(session)) == 40 * SAMPLES_PER_FRAME
    voiced = [slots for call, slots in bench.runner.calls if call == "voice"]
    assert len(voiced) < 40 + 40, "the silent one is given up after a second of it"


def test_case_7_an_end_at_once_is_drawn_again() -> None:
    bench = Bench(FakeRunner(lambda seed: 0 if seed == 0 else 6))
    session, other = bench.open(), bench.open()
    bench.run()
    assert frames(drain(session)) == frames(drain(other)) == list(range(6))
    assert (done(session).redraws, done(other).redraws) == (1, 0)


def test_text_that_is_still_written_is_replayed() -> None:
    bench = Bench(FakeRunner(lambda seed: 0 if seed == 0 else 50))
    session = bench.open(None)
    session.append("Hello ")
    bench.run()
    session.append("there, ")
    bench.run()
    session.append("you.")
    session.end()
    bench.run()
    assert done(session).redraws == 1 and done(session).frames == 50
    text = b"Hello there, you."
    prompt = bench.runner.prompts[0]
    said = [prompt.text[-1], *bench.runner.texts[0][1 : len(text)]]
    assert bytes(said) == text


def test_a_turn_that_is_cancelled_while_it_is_decoded_is_not_drawn_again() -> None:
    runner = SlowRunner(lambda seed: EVER)
    bench = Bench(runner)
    session = bench.open("Hi!", patient=True)
    for _ in range(5_000):
        bench.loop.step()
        if bench.loop.speaking is not None and cuts(bench):
            break
        runner.run_one(sound=False)
        if not cuts(bench):
            runner.run_one(sound=True)
        bench.now += 0.01
    assert cuts(bench) == {Cut.CAP: 1}
    session.cancel()
    for _ in range(20):
        bench.loop.step()
        runner.run_one(sound=False)
        runner.run_one(sound=True)
    assert done(session).reason is FinishReason.CANCELLED and not bench.loop.counts.redraws
    assert len(bench.loop.free) == 4


@given(
    st.lists(st.tuples(st.sampled_from([0, 3, EVER]), st.booleans()), min_size=1, max_size=5),
    st.lists(st.booleans(), max_size=300),
)
def test_the_same_is_said_whatever_runs_beside_it(
    wishes: list[tuple[int, bool]], order: list[bool]
) -> None:
    """Whether and where speech is cut and drawn again depends on its frames alone."""
    runner = SlowRunner(lambda seed: wishes[seed][0] if seed < 10 else 4)
    runner.cut = True
    bench = Bench(runner, max_sessions=2)
    sessions = [bench.open("Hi!", patient=patient) for _, patient in wishes]
    for sound in [True, *order]:
        bench.loop.step()
        runner.run_one(sound=sound)
        bench.now += 0.01
    while bench.loop.turns:
        bench.loop.step()
        runner.run_one(sound=True)
        runner.run_one(sound=False)
        bench.now += 0.01
    cap = cap_frames("Hi!")
    for session, (length, patient) in zip(sessions, wishes, strict=True):
        again = not length or (length == EVER and patient)
        expected = 4 if again else min(length, cap)
        assert frames(drain(session)) == list(range(expected))
        assert done(session).redraws == again
    assert len(bench.loop.free) == 2


# Numbers that are none.


def test_sound_that_is_not_of_numbers_is_an_error_of_its_own_session() -> None:
    class Broken(Speech):
        def _voice(self, slots: Sequence[int], frames: int) -> Pcm:
            pcm = super()._voice(slots, frames)
            for i, slot in enumerate(slots):
                if self.seeds.get(slot) == 1 and self.voiced[slot] > 3:
                    pcm[i, -5] = np.nan
            return pcm

    bench = Bench(Broken(lambda seed: 12), max_sessions=4)
    sessions = [bench.open() for _ in range(4)]
    bench.run()
    error = done(sessions[1]).error
    assert isinstance(error, EngineFailure) and error.code == "not_numbers"
    assert all(np.isfinite(c.pcm).all() for s in sessions for c in drain(s))
    assert [done(s).reason for s in sessions].count(FinishReason.STOP) == 3
    assert bench.loop.counts.spoilt == 1 and len(bench.loop.free) == 4


def test_what_a_slot_has_beyond_its_end_may_be_anything() -> None:
    class Ragged(Speech):
        def _voice(self, slots: Sequence[int], frames: int) -> Pcm:
            pcm = super()._voice(slots, frames)
            for i, slot in enumerate(slots):
                beyond = self.voiced[slot] - self.made[slot]
                if beyond > 0:
                    pcm[i, -beyond * SAMPLES_PER_FRAME :] = np.nan
            return pcm

    bench = Bench(Ragged(lambda seed: 3 + 5 * seed))
    sessions = [bench.open() for _ in range(4)]
    bench.run()
    assert [done(s).reason for s in sessions] == [FinishReason.STOP] * 4


def test_a_turn_that_no_step_has_heard_of_is_ended_with_the_others() -> None:
    bench = Bench()
    session = bench.open()
    bench.loop.dismiss()
    assert done(session).reason is FinishReason.ERROR and done(session).redraws == 0


def test_it_is_drawn_again_by_the_model_that_drew_it_first() -> None:
    bench = Bench(FakeRunner(lambda seed: 0 if seed == 0 else 6))
    session = bench.open()
    bench.loop._listen()
    (turn,) = bench.loop.turns.values()
    turn.track.model = 1
    bench.loop.costs.tokens[1] = bench.loop.costs.tokens[0]
    bench.run()
    assert done(session).redraws == 1 and bench.runner.models[0] == 1
