"""Playback and loudness on signals that are known to the sample."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.fake import RATE, silence, tone

from vivace.bench.listener import gaps_s, heard_at, longest_silence_s, loud, onset, play


def samples(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, "<i2")


def test_a_stream_ahead_of_its_listener_never_stalls() -> None:
    playback = play([(1.0, 2400), (1.05, 2400), (1.2, 2400)], RATE)
    assert playback.stalls_s == []
    assert playback.begins_s == pytest.approx([1.0, 1.1, 1.2])


def test_each_stall_is_as_long_as_the_listener_waited() -> None:
    """80 ms each: the second comes 30 ms late, the third in time, the fourth 250 ms late."""
    pieces = [(1.0, 1920), (1.11, 1920), (1.19, 1920), (1.52, 1920)]
    playback = play(pieces, RATE)
    assert playback.stalls_s == pytest.approx([0.03, 0.25])
    assert playback.begins_s == pytest.approx([1.0, 1.11, 1.19, 1.52])


def test_a_buffer_delays_the_start_and_swallows_shorter_stalls() -> None:
    pieces = [(1.0, 1920), (1.11, 1920), (1.52, 1920)]
    playback = play(pieces, RATE, 0.1)
    assert playback.begins_s == pytest.approx([1.1, 1.18, 1.52])
    assert playback.stalls_s == pytest.approx([0.26])  # dry at 1.26


def test_a_sample_is_heard_after_the_stalls_before_it() -> None:
    pieces = [(1.0, 1920), (1.2, 1920)]
    playback = play(pieces, RATE)
    assert heard_at(0, pieces, playback, RATE) == 1.0
    assert heard_at(1919, pieces, playback, RATE) == pytest.approx(1.0 + 1919 / RATE)
    assert heard_at(1920, pieces, playback, RATE) == pytest.approx(1.2)
    with pytest.raises(IndexError):
        heard_at(3840, pieces, playback, RATE)


@given(st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 4800)), min_size=1, max_size=20))
def test_playing_takes_the_sound_and_its_stalls(steps: list[tuple[float, int]]) -> None:
    now, pieces = 5.0, []
    for delay_s, count in steps:
        now += delay_s
        pieces.append((now, count))
    playback = play(pieces, RATE)
    end_s = playback.begins_s[-1] + pieces[-1][1] / RATE
    sound_s = sum(count for _, count in pieces) / RATE
    assert end_s == pytest.approx(5.0 + steps[0][0] + sound_s + sum(playback.stalls_s), abs=1e-4)
    assert all(begin >= at for begin, (at, _) in zip(playback.begins_s, pieces, strict=True))


@pytest.mark.parametrize("quiet_ms", [0, 10, 40, 130, 1000])
def test_onset_is_the_first_window_that_holds_sound(quiet_ms: int) -> None:
    """Windows of 20 ms every 10 ms: the one that is half tone begins 10 ms before the tone."""
    found = onset(loud(samples(silence(quiet_ms / 1e3) + tone(0.5)), RATE), RATE)
    assert found == max(quiet_ms - 10, 0) * RATE // 1000


def test_one_loud_window_alone_is_a_click() -> None:
    click = silence(0.2) + tone(0.002) + silence(0.2)
    windows = loud(samples(click), RATE)
    assert 0 < windows.sum() <= 2
    pairs = silence(0.205) + tone(0.001) + silence(0.2)
    assert onset(loud(samples(pairs), RATE), RATE) is not None  # in two windows that overlap


@pytest.mark.parametrize(("dbfs", "audible"), [(-44.5, True), (-45.5, False)])
def test_the_threshold_is_45_db_below_full_scale(dbfs: float, audible: bool) -> None:
    """A sine's level is 3 dB under its peak."""
    peak = 10 ** (dbfs / 20) * 2**0.5 * 32768 / 32767
    assert (onset(loud(samples(tone(0.5, peak)), RATE), RATE) is not None) == audible


def test_a_constant_offset_is_silence() -> None:
    offset = np.full(RATE // 2, 3000, dtype=np.int16)
    assert onset(loud(offset, RATE), RATE) is None
    assert onset(loud(offset + samples(tone(0.5, 0.05)), RATE), RATE) == 0


def test_sound_shorter_than_a_window_has_none() -> None:
    assert len(loud(samples(tone(0.009)), RATE)) == 0
    assert onset(loud(samples(tone(0.019)), RATE), RATE) is None


def test_the_longest_silence_is_inside_or_after_speech_not_before_it() -> None:
    pcm = silence(3) + tone(0.3) + silence(0.5) + tone(0.3) + silence(1.2)
    assert longest_silence_s(loud(samples(pcm), RATE)) == pytest.approx(1.2, abs=0.02)
    assert longest_silence_s(loud(samples(silence(3)), RATE)) == 0.0


def test_gaps_are_between_arrivals() -> None:
    assert gaps_s([(1.0, 9), (1.25, 9), (2.0, 9)]) == pytest.approx([0.25, 0.75])
    assert gaps_s([(1.0, 9)]) == []
