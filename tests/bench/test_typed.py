"""Whose a silence is: `benchmarks/typed.py`, on times made up."""

import importlib
import itertools
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from vivace.types import SAMPLES_PER_FRAME

FRAME_S = 0.08


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    monkeypatch.delitem(sys.modules, "talk", raising=False)
    return importlib.import_module("typed")


def test_a_frame_waits_for_the_word_that_brings_its_token(typed: ModuleType) -> None:
    need = typed.Need(frames=3, after=(1, 2, 5))
    assert need.words == 3
    assert [need.word_of(frame) for frame in range(6)] == [0, 1, 2, 2, 2, 3]
    need = typed.Need(frames=1, after=(1, 2, 5), ahead=1)
    assert need.words == 2
    assert [need.word_of(frame) for frame in range(5)] == [1, 2, 2, 2, 3]


@pytest.mark.timeout(600)  # the voice itself
def test_words_that_are_certain_are_counted_as_the_engine_does(typed: ModuleType) -> None:
    needs, took_s = typed.needs(typed.embedded(), texts=typed.TEXTS[:2])
    assert [(need.frames, need.words) for need in needs.values()] == [(3, 1), (3, 3)]
    assert len(took_s) == 6


def test_silent_frames_are_those_before_the_onset(typed: ModuleType) -> None:
    pcm = np.zeros(4 * SAMPLES_PER_FRAME, dtype=np.float32)
    pcm[2 * SAMPLES_PER_FRAME :] = np.tile([0.3, -0.3], SAMPLES_PER_FRAME)
    assert typed.silent_frames(pcm) == 2


@pytest.mark.parametrize(
    ("late_s", "of_text_s", "of_engine_s"),
    [(0.05, 0.97, 0.0), (0.5, 0.98, 0.44)],
)
def test_a_silence_is_the_engines_once_it_has_had_the_word_for_a_while(
    typed: ModuleType, late_s: float, of_text_s: float, of_engine_s: float
) -> None:
    """The first frame is heard at 0.0 and over at 0.08; the second stands on the word of 1.0."""
    heard = typed.Heard(typed.Need(frames=1, after=(1, 2)), sent_s=[0.0, 1.0, 2.0])
    heard.pieces = [(0.0, SAMPLES_PER_FRAME), (1.0 + late_s, SAMPLES_PER_FRAME)]
    ((text_s, engine_s),) = heard.silences()
    assert (text_s, engine_s) == (pytest.approx(of_text_s), pytest.approx(of_engine_s))
    assert heard.first_s == 0.0 and heard.words_needed == 0


def test_sound_in_time_is_no_silence(typed: ModuleType) -> None:
    heard = typed.Heard(typed.Need(frames=1, after=(9,)), sent_s=[0.0, 9.0])
    times = itertools.count(0.01, FRAME_S - 0.001)
    heard.pieces = [(next(times), SAMPLES_PER_FRAME) for _ in range(5)]
    assert not [engine_s for _, engine_s in heard.silences() if engine_s]
