"""A long text is spoken piece by piece: one slot, one voice, one sound, bounded memory."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.golden import read
from tests.golden.load import Model
from tests.runners import SPEC, FakeRunner, SlowRunner
from tests.test_loop import Bench, done, drain, frames

from vivace.config import EngineConfig, Profile
from vivace.engine import Engine
from vivace.session import Session
from vivace.text.cap import cap_frames
from vivace.types import FinishReason, Sampling, SpeechRequest, TextMode

SENTENCE = "One two three, four five six. "
PIECE_S = 1.2  # each sentence is a piece


def prompts_of(runner: FakeRunner) -> list[int]:
    """The number of frames before each prompt, noted as they begin."""
    begun: list[int] = []
    begin = runner.begin

    def noted(slot: int, prompt):  # type: ignore[no-untyped-def]
        begun.append(prompt.after)
        begin(slot, prompt)

    runner.begin = noted  # type: ignore[method-assign]
    return begun


@pytest.mark.parametrize("mode", TextMode)
def test_pieces_follow_each_other_in_one_slot(mode: TextMode) -> None:
    bench = Bench(piece_s=PIECE_S)
    begun = prompts_of(bench.runner)
    session = bench.open(SENTENCE * 4, text_mode=mode)
    bench.run()
    assert begun == [0, 5, 10, 15]
    assert frames(drain(session)) == list(range(20))
    assert (done(session).reason, done(session).frames) == (FinishReason.STOP, 20)
    assert bytes(session.prompt_ids).decode() == SENTENCE.strip() * 4
    assert len(bench.loop.free) == 4 and bench.ended == [session]


def test_every_piece_has_the_same_head_and_its_own_text() -> None:
    bench = Bench(FakeRunner(lambda seed: 60), piece_s=PIECE_S)
    session = bench.open("Abcde abcde abcde abcde. Vwxyz vwxyz vwxyz vwxyz.")
    heads: list[list[int]] = []
    begin = bench.runner.begin

    def noted(slot: int, prompt):  # type: ignore[no-untyped-def]
        heads.append(prompt.text[:-1] + prompt.codec)
        begin(slot, prompt)

    bench.runner.begin = noted  # type: ignore[method-assign]
    bench.run()
    assert len(heads) == 2 and heads[0] == heads[1]
    said = [i for i in bench.runner.texts[0] if i < 256 or i == SPEC.text_ids.tts_eos]
    eos = [SPEC.text_ids.tts_eos]
    assert said == [*b"Abcde abcde abcde abcde.", *eos, *b"Vwxyz vwxyz vwxyz vwxyz.", *eos]
    assert len(frames(drain(session))) == 120


def test_case_20_twenty_thousand_characters_stay_in_little_memory() -> None:
    bench = Bench(FakeRunner(lambda seed: 200))
    session = bench.open((SENTENCE * 700)[:9_990])
    most_heard = 0
    heard: list[int] = []
    while session.done is None:
        bench.loop.step()
        bench.now += 0.001
        chunks = drain(session)
        most_heard = max(most_heard, len(chunks))
        heard += frames(chunks)
    assert heard == list(range(done(session).frames)) and len(heard) > 2_000
    assert bench.runner.widest < 600, "positions: one piece at a time"
    assert most_heard < 4, "chunks leave as they are made"


def test_case_1_4_a_piece_that_runs_away_is_cut_and_the_rest_is_said() -> None:
    bench = Bench(FakeRunner(lambda seed: 10_000), piece_s=PIECE_S)
    first, second = "One, two, three, four, five.", "Six, seven, eight, nine."
    session = bench.open(f"{first} {second}")
    bench.run()
    assert done(session).reason is FinishReason.LENGTH
    assert done(session).frames == cap_frames(first) + cap_frames(second)


@pytest.mark.parametrize("text", ["7" * 200, "ha" * 400, "a" * 120])
def test_case_12_endless_texts_end(text: str) -> None:
    bench = Bench(FakeRunner(lambda seed: 100_000), profile=Profile(ahead_s=1000.0))
    session = bench.open(text)
    bench.run()
    assert done(session).reason is FinishReason.LENGTH
    pieces = len([c for c, _ in bench.runner.calls if c == "prefill"])
    assert done(session).frames <= cap_frames(text) + 20 * pieces  # each piece has its slack


def test_a_requests_max_frames_is_for_the_whole_and_the_checkpoints_for_each_piece() -> None:
    bench = Bench(piece_s=PIECE_S)
    cut = bench.open(SENTENCE * 4, most_in_all=12)
    short = bench.open(SENTENCE * 4, sampling=Sampling(max_frames=3))
    bench.run()
    assert (done(cut).reason, done(cut).frames) == (FinishReason.LENGTH, 12)
    assert (done(short).reason, done(short).frames) == (FinishReason.LENGTH, 12)
    assert bench.runner.prompts[1].after == 9 and len(bench.loop.free) == 4


def test_the_engine_knows_whose_max_frames_it_is(engine: Engine) -> None:
    own = replace(engine.defaults, seed=1, max_frames=9)
    assert len(codes_of(engine.say(" ".join(TEXTS), SpeechRequest(sampling=own)))) == 9


def test_a_live_session_speaks_each_piece_as_it_comes_and_waits_between() -> None:
    bench = Bench(piece_s=PIECE_S)
    session = bench.open(None)
    for word in SENTENCE.split(" ")[:-1]:
        session.append(word + " ")
        bench.run()
    session.append("T")  # what follows shows that the piece is over
    bench.run()
    heard = frames(drain(session))
    assert heard == [0, 1, 2, 3, 4, 5], "and one of the next, for its one token"
    assert session.done is None
    session.append("hen some more.")
    bench.run()
    session.end()
    bench.run()
    assert heard + frames(drain(session)) == list(range(10))
    assert done(session).reason is FinishReason.STOP


def test_text_that_comes_after_its_piece_was_spoken_is_not_the_next_piece() -> None:
    """The model may end its speech while text of the piece still comes."""
    bench = Bench(FakeRunner(lambda seed: 2), piece_s=PIECE_S)
    begun = prompts_of(bench.runner)
    session = bench.open(None)
    session.append("One two three")
    bench.run()
    assert begun == [0] and frames(drain(session)) == [0, 1]
    session.append(", four five six. Seven eight nine ten eleven.")
    session.end()
    bench.run()
    assert begun == [0, 2] and frames(drain(session)) == [2, 3]
    assert done(session).reason is FinishReason.STOP


def test_case_14_pieces_without_a_sound_are_skipped_and_reported() -> None:
    bench = Bench(piece_s=PIECE_S)
    begun = prompts_of(bench.runner)
    dots, dashes = "." * 40 + " ", "- " * 40
    session = bench.open(SENTENCE + dots + SENTENCE + dashes)
    bench.run()
    assert begun == [0, 5]
    assert "".join(session.skipped).replace(" ", "") == (dots + dashes).replace(" ", "")
    assert done(session).reason is FinishReason.STOP


@pytest.mark.parametrize("text", ["...", "—", "*", "()", "”", "😊", '😊"', "、。"])
def test_case_14_a_text_without_a_sound_is_reported(text: str) -> None:
    bench = Bench()
    session = bench.open(text)
    bench.run()
    assert session.skipped == [text] and done(session).reason is FinishReason.NO_AUDIO


@pytest.mark.parametrize("text", ["", "\t", "\u3000", " \n "])
def test_case_13_an_empty_turn_completes_with_nothing_to_report(text: str) -> None:
    bench = Bench()
    session = bench.open(text)
    bench.run()
    assert session.skipped == [] and done(session).reason is FinishReason.NO_AUDIO


def test_the_listener_of_a_long_text_never_runs_dry_beside_newcomers() -> None:
    """Prompts of pieces are laid down before those of sessions that are not heard yet."""
    profile = Profile(prefills=1, prefill_rows=4, lead_s=1.0)
    bench = Bench(FakeRunner(lambda seed: 20), piece_s=PIECE_S, max_sessions=16, profile=profile)
    session = bench.open(SENTENCE * 8)
    late: list[float] = []
    while session.done is None:
        if len(bench.loop.turns) < 14:
            bench.open("Hi there.")
        bench.loop.step()
        bench.now += 0.005
        drain(session)
        turn = bench.loop.turns.get(session)
        if turn is not None and turn.track.deadline_s is not None:
            late.append(bench.now - turn.track.deadline_s)
    assert done(session).frames == 160 and max(late) < 0


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=1, max_size=4),
    st.lists(st.booleans(), max_size=300),
)
def test_steps_under_way_change_nothing_between_pieces(
    sessions: list[tuple[int, int]], order: list[bool]
) -> None:
    runner = SlowRunner(lambda seed: sessions[seed][0])
    bench = Bench(runner, max_sessions=2, piece_s=PIECE_S, redraws=0)
    opened = [bench.open(SENTENCE * pieces) for _, pieces in sessions]
    for sound in order:
        bench.loop.step()
        runner.run_one(sound=sound)
        bench.now += 0.01
    while any(s.done is None for s in opened):
        bench.loop.step()
        runner.run_one(sound=False)
        runner.run_one(sound=True)
        bench.now += 0.01
    for session, (length, pieces) in zip(opened, sessions, strict=True):
        assert frames(drain(session)) == list(range(length * pieces))


# With the tensors of a real runner.

GREEDY = Sampling(temperature=0.0, subtalker_temperature=0.0, max_frames=200)
TEXTS = ["Good morning to you all.", "It is a fine day today.", "See you soon."]


def codes_of(session: Session) -> np.ndarray:
    return np.concatenate([chunk.codes for chunk in session])


@pytest.fixture(scope="module")
def engine() -> Engine:
    with Engine(
        config=EngineConfig(device="cpu", max_sessions=4, piece_s=0.3, slo_ttfa_s=600.0)
    ) as engine:
        yield engine


@pytest.mark.parametrize("mode", TextMode)
def test_a_piece_is_said_as_if_it_stood_alone(engine: Engine, mode: TextMode) -> None:
    request = SpeechRequest(text_mode=mode, sampling=GREEDY)
    alone = [codes_of(engine.say(text, request)) for text in TEXTS]
    together = codes_of(engine.say(" ".join(TEXTS), request))
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_the_sound_goes_on_from_piece_to_piece(engine: Engine) -> None:
    """It is what the codec makes of all codes at once: no gap, no click, no fresh start."""
    from vivace.checkpoint import load
    from vivace.checkpoint.embedded import embedded

    codec = load(embedded(), torch.device("cpu"), torch.float32).codec
    chunks = list(engine.say(" ".join(TEXTS), SpeechRequest(sampling=GREEDY, trim=False)))
    codes = torch.from_numpy(np.concatenate([chunk.codes for chunk in chunks]))
    with torch.inference_mode():
        whole, _ = codec(codes[None], codec.fresh(1))
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    np.testing.assert_allclose(pcm, whole[0], rtol=0, atol=1e-5)


def test_a_seed_settles_all_pieces_in_any_company(engine: Engine) -> None:
    request = SpeechRequest(sampling=Sampling(seed=3, max_frames=200))
    alone = codes_of(engine.say(" ".join(TEXTS), request))
    sessions = [engine.say(" ".join(TEXTS), request) for _ in range(3)]
    for session in sessions:
        np.testing.assert_array_equal(codes_of(session), alone)


@pytest.mark.parametrize("mode", TextMode)
def test_a_cloned_voice_goes_on_without_its_reference_in_the_sound(
    model: Callable[[str], Model], mode: TextMode
) -> None:
    row = read.case("base", "icl_whole").rows[0]
    request = SpeechRequest(clone=row.request.clone, text_mode=mode, sampling=GREEDY)
    config = EngineConfig(
        device="cpu", max_sessions=2, max_context=512, threads=1, piece_s=0.3, slo_ttfa_s=600.0
    )
    loaded = model("base")
    with Engine(loaded.path, config=config, offline=True) as engine:
        alone = [codes_of(engine.say(text, request)) for text in TEXTS[:2]]
        chunks = list(engine.say(" ".join(TEXTS[:2]), request))
    codes = np.concatenate([chunk.codes for chunk in chunks])
    np.testing.assert_array_equal(codes, np.concatenate(alone))
    clone = row.request.clone
    assert clone is not None and clone.ref_codes is not None
    both = torch.from_numpy(np.concatenate([clone.ref_codes, codes]))
    with torch.inference_mode():
        whole, _ = loaded.codec(both[None], loaded.codec.fresh(1))
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    np.testing.assert_allclose(pcm, whole[0, -len(pcm) :], rtol=0, atol=1e-4)
