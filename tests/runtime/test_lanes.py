"""What a card would meet: padded sizes, steps in flight, no wait of the host, no late capture."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden import read
from tests.golden.load import Model
from tests.runtime.rig import SIZES, begin, on_lanes, prompt_of, runner_of, speak

from vivace.runtime.passes import FrameShape, any_frame
from vivace.runtime.runner import Runner, cost_table
from vivace.runtime.state import Filter
from vivace.types import SAMPLES_PER_FRAME, Row, Sampling


@pytest.fixture(scope="module")
def voice(model: Callable[[str], Model]) -> Model:
    return model("custom_voice")


@pytest.fixture(scope="module")
def padded(voice: Model) -> Iterator[Runner]:
    yield runner_of(voice)


@pytest.mark.parametrize("rows", range(1, 9))
def test_padded_rows_change_nothing(voice: Model, padded: Runner, rows: int) -> None:
    """Every size, with none to three rows of padding."""
    seeds = list(range(rows))
    assert np.array_equal(speak(padded, seeds), speak(runner_of(voice, sizes=None), seeds))
    scratch = padded.state.scratch
    assert not padded.state.counts[:, scratch].any()


def test_case_53_a_seed_draws_the_same_codes_whoever_is_beside_it(padded: Runner) -> None:
    alone = [speak(padded, [42]) for _ in range(3)]
    beside = [speak(padded, [*others, 42]) for others in (range(7), range(7, 14), range(3))]
    for codes in (*alone, *beside):
        assert np.array_equal(codes[-1], alone[0][0])
    assert not np.array_equal(beside[0][0], alone[0][0])


def test_case_55_after_the_warm_up_every_step_has_its_graph_and_nobody_waits(
    voice: Model,
) -> None:
    runner = runner_of(voice, common=any_frame(voice.spec, 3))
    tokens, sound = on_lanes(runner)
    runner.warm_up(SIZES)
    tokens.waited = sound.waited = 0
    pad, extreme = voice.spec.text_ids.tts_pad, Sampling(top_k=0, top_p=0.5, min_frames=99)
    for slot in range(8):
        runner.open(slot, Sampling(min_frames=99) if slot else extreme, slot)
        assert runner.room(slot, 12 + 6)
        runner.begin(slot, prompt_of(voice, 12, head=5))
        for _ in range(4):
            runner.prefill(slot, 64)
    for count in range(1, 9):
        assert runner.room(count - 1, 150)
        runner.frame([Row(slot, pad) for slot in range(count)])
        for frames in range(1, 5):
            runner.voice(range(count), frames)
    for slot in range(8):
        runner.close(slot)
    assert not tokens.late and not sound.late
    assert not tokens.waits.seen and not sound.waits.seen
    assert tokens.waited == sound.waited == 0


def test_a_padded_step_costs_what_it_is_padded_to() -> None:
    frame = {size: float(size) for size in SIZES.frame}
    voice = {
        frames: {rows: float(100 * frames + rows) for rows in SIZES.codec_rows}
        for frames in SIZES.codec_frames
    }
    costs = cost_table(SIZES, frame, voice, {2: 2.0, 4: 4.0})
    assert [costs.frame[rows] for rows in range(1, 9)] == [1, 2, 4, 4, 8, 8, 8, 8]
    assert [costs.prefill[rows] for rows in range(1, 5)] == [2, 2, 4, 4]
    assert costs.voice_s(2, 4) == 403
    assert costs.voice_s(1, 3) == 201 + 101  # two passes: of two frames, and of one


def test_without_kernels_what_is_unusual_has_no_graph(voice: Model) -> None:
    usual = Filter(50, nucleus=False)
    runner = runner_of(voice, common=FrameShape(0, 2, usual, usual))
    tokens, _ = on_lanes(runner)
    runner.warm_up(SIZES)
    for sampling, positions, late in (
        (Sampling(), 100, 0),
        (Sampling(top_k=51), 100, 1),
        (Sampling(subtalker_top_p=0.9), 100, 1),
        (Sampling(), 150, 1),
    ):
        tokens.late.clear()
        runner.open(0, sampling, 1)
        assert runner.room(0, positions)
        runner.frame([Row(0, 0)])
        assert len(tokens.late) == late
        runner.close(0)


def test_a_reference_is_decoded_by_captured_passes(model: Callable[[str], Model]) -> None:
    m = model("base")
    request = read.case("base", read.names("base")[0]).rows[0].request
    assert request.clone is not None and request.clone.ref_codes is not None
    runner = runner_of(m)
    _, sound = on_lanes(runner)
    runner.warm_up(SIZES)
    prompt = prompt_of(m, 12)
    codes = np.tile(request.clone.ref_codes, (3, 1))[:7]
    runner.open(0, Sampling(), 1)
    runner.room(0, 64)
    runner.begin(0, type(prompt)(prompt.text, prompt.codec, None, codes))
    assert not sound.late
    assert runner.decoder.sound.state[-1][0] == 7 and runner.decoder.voiced[0] == 0


def test_a_frame_past_the_end_of_speech_harms_nobody(voice: Model) -> None:
    """A row is launched once more before its flag is read, then its slot and pages go to others."""
    runner = runner_of(voice, slots=3, common=any_frame(voice.spec, 3))
    fresh = speak(runner, [7, 8])
    begin(runner, 0, prompt_of(voice), Sampling(min_frames=99), 1)
    begin(runner, 2, prompt_of(voice), Sampling(), 9)
    runner.tokens.do(lambda: runner.state.counts[0, 2].fill_(runner.state.width * 64))
    for _ in range(2):  # at the end of all its pages
        runner.frame([Row(0, 0), Row(2, 0)]).result()
    runner.close(0)
    runner.close(2)
    assert np.array_equal(speak(runner, [7, 8]), fresh)


@settings(max_examples=20)
@given(st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=1, max_size=8))
def test_case_56_sound_is_the_same_in_any_chunks(
    padded: Runner, schedules: list[list[int]]
) -> None:
    """Streams with schedules of their own, in batches with others, equal one decode of all."""
    frames = max(sum(schedule) for schedule in schedules)
    slots = range(len(schedules))
    speak(padded, [3] * len(schedules), frames)  # the same codes everywhere, left in the rings
    whole = padded.voice([0], frames).result()[0]
    for slot in slots:
        padded.decoder.open(slot)
    heard: list[list[np.ndarray]] = [[] for _ in slots]
    for turn in range(3):
        for size in {s[turn] for s in schedules if len(s) > turn}:
            batch = [i for i, s in enumerate(schedules) if len(s) > turn and s[turn] == size]
            for slot, pcm in zip(batch, padded.voice(batch, size).result(), strict=True):
                heard[slot].append(pcm)
    for schedule, chunks in zip(schedules, heard, strict=True):
        pcm = np.concatenate(chunks)
        assert len(pcm) == sum(schedule) * SAMPLES_PER_FRAME
        np.testing.assert_allclose(pcm, whole[: len(pcm)], rtol=0, atol=1e-4)
