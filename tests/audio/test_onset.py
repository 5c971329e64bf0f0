"""The silence before speech goes, speech stays, however the stream is cut into pieces."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivace.audio.onset import FADE, HOP, MOST_S, Onset
from vivace.audio.wav import to_s16le
from vivace.bench.listener import loud, onset
from vivace.types import SAMPLE_RATE, Pcm

FRAME = 1920


def sine(seconds: float, dbfs: float, hertz: float = 220.0) -> Pcm:
    t = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    peak = 2**0.5 * 10 ** (dbfs / 20)
    return (peak * np.sin(2 * np.pi * hertz * t)).astype(np.float32)


def noise(seconds: float, dbfs: float, seed: int = 0) -> Pcm:
    rng = np.random.default_rng(seed)
    shape = round(seconds * SAMPLE_RATE)
    return (10 ** (dbfs / 20) * rng.standard_normal(shape)).astype(np.float32)


def join(*parts: Pcm) -> Pcm:
    return np.concatenate(parts)


def trimmed(pcm: Pcm, pieces: Sequence[int] = ()) -> Pcm:
    """What a listener gets of it, fed in those pieces and then frame by frame."""
    trim, out, at = Onset(), list[Pcm](), 0
    for size in [*pieces, *[FRAME] * (len(pcm) // FRAME + 1)]:
        out.append(trim.feed(pcm[at : at + size]))
        at += size
    return np.concatenate([*out, trim.finish()])


def dropped_ms(pcm: Pcm) -> float:
    return (len(pcm) - len(trimmed(pcm))) / SAMPLE_RATE * 1000


def audible(pcm: Pcm) -> int | None:
    """Where the benchmark hears it begin."""
    return onset(loud(np.frombuffer(to_s16le(pcm), "<i2"), SAMPLE_RATE), SAMPLE_RATE)


@pytest.mark.parametrize("silence_s", [0.0, 0.01, 0.0317, 0.16, 0.5, 0.74])
@pytest.mark.parametrize("floor_dbfs", [-120.0, -85.0, -65.0])
def test_silence_goes_up_to_the_hop_before_the_speech(silence_s: float, floor_dbfs: float) -> None:
    before = noise(silence_s, floor_dbfs)
    gone_ms = dropped_ms(join(before, sine(1.0, -20)))
    assert silence_s * 1000 - 5.0 <= gone_ms <= silence_s * 1000


@given(
    silence=st.integers(0, 20_000),
    level=st.floats(-42, -6),
    pieces=st.lists(st.integers(0, 4000), max_size=8),
    seed=st.integers(0, 99),
)
def test_pieces_do_not_matter_and_the_rest_is_untouched(
    silence: int, level: float, pieces: list[int], seed: int
) -> None:
    pcm = join(np.zeros(silence, dtype=np.float32), noise(0.4, level, seed))
    out = trimmed(pcm, pieces)
    assert np.array_equal(out, trimmed(pcm))
    faded = FADE if len(out) < len(pcm) else 0
    assert np.array_equal(out[faded:], pcm[len(pcm) - len(out) + faded :])
    assert audible(out) == 0, "the benchmark hears it from its first sample on"


def test_a_dropped_start_is_faded_in() -> None:
    pcm = join(noise(0.3, -70), sine(0.5, -20))
    out = trimmed(pcm)
    cut = pcm[len(pcm) - len(out) :]
    assert out[0] == 0.0 and len(out) < len(pcm)
    assert (np.abs(out[:FADE]) <= np.abs(cut[:FADE])).all()
    assert FADE <= HOP, "the fade ends before the speech begins"


def test_a_soft_first_sound_is_not_cut() -> None:
    """A fricative of 120 ms at -48 dBFS is not audible to the benchmark; a listener misses it."""
    soft = noise(0.12, -47.5)
    assert dropped_ms(join(noise(0.2, -85), soft, sine(0.5, -20))) == pytest.approx(200, abs=5)


@pytest.mark.parametrize("level", [-46.0, -52.0, -57.0])
def test_a_voice_that_is_never_loud_is_heard(level: float) -> None:
    quiet = sine(1.5, level)
    assert dropped_ms(join(noise(0.3, -90), quiet)) == pytest.approx(300, abs=5)


def test_a_click_is_no_onset() -> None:
    click = np.zeros(FRAME, dtype=np.float32)
    click[200:230] = 0.3
    pcm = join(click, np.zeros(4 * FRAME, dtype=np.float32), sine(0.5, -20))
    assert dropped_ms(pcm) == pytest.approx(400, abs=5)


def test_an_offset_is_no_sound() -> None:
    offset = np.full(4 * FRAME, 0.02, dtype=np.float32)
    pcm = join(offset, sine(0.5, -20) + np.float32(0.02))
    assert dropped_ms(pcm) == 0, "a level over -60 dBFS is kept, whatever it is"
    assert audible(pcm) == pytest.approx(4 * FRAME, abs=480)


@pytest.mark.parametrize("floor_dbfs", [-55.0, -35.0])
def test_noise_that_can_be_heard_is_kept(floor_dbfs: float) -> None:
    assert dropped_ms(join(noise(0.4, floor_dbfs), sine(0.5, -20))) == 0


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.08, 0.5, MOST_S, 3.0])
def test_silence_without_speech_is_sent_whole(seconds: float) -> None:
    pcm = noise(seconds, -80)
    assert np.array_equal(trimmed(pcm), pcm)


def test_no_more_than_the_bound_is_held_back() -> None:
    trim, fed, sent = Onset(), 0, 0
    for _ in range(30):
        fed, sent = fed + FRAME, sent + len(trim.feed(np.zeros(FRAME, dtype=np.float32)))
        assert fed - sent <= MOST_S * SAMPLE_RATE + FRAME
    assert fed == sent
