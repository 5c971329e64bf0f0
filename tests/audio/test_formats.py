"""Every format: what decoders hear, in time, whatever the chunking."""

import gc
import io
import itertools
import threading
from functools import cache

import numpy as np
import psutil
import pytest
import soundfile
import soxr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.audio.heard import Sound, by_ffmpeg, by_sndfile

from vivace.audio.encode import FORMATS, Pipeline
from vivace.audio.ends import FADE_IN, FADE_OUT
from vivace.audio.wav import to_s16le
from vivace.types import FRAME_S, SAMPLE_RATE, SAMPLES_PER_FRAME, Pcm

LONGEST_DIFFERENCE_S = 0.060
FRAMES = 25


@cache
def speech(frames: int = FRAMES) -> Pcm:
    """Something like speech: a tone that wobbles, with breath in it."""
    t = np.arange(frames * SAMPLES_PER_FRAME) / SAMPLE_RATE
    tone = np.sin(2 * np.pi * 220 * t + 3 * np.sin(2 * np.pi * 3 * t)) * (1.2 + np.sin(9 * t)) * 0.2
    noise = np.random.default_rng(1).standard_normal(len(t)) * 0.01
    return (tone + noise).astype(np.float32)


def voiced(form: str, pcm: Pcm, cuts: list[int] | None = None, **how: float) -> list[bytes]:
    """The bytes after each piece, and after the end."""
    pipeline = Pipeline(FORMATS[form], **how)  # type: ignore[arg-type]
    edges = [0, *sorted(cuts or range(SAMPLES_PER_FRAME, len(pcm), SAMPLES_PER_FRAME)), len(pcm)]
    pieces = [pipeline.encode(pcm[a:b]) for a, b in itertools.pairwise(edges)]
    return [*pieces, pipeline.finish()]


def found_in(sound: Sound, rate: int, pcm: Pcm) -> tuple[float, float]:
    """How late our sound begins in what was decoded, in s, and how alike they are there, -1..1."""
    heard = soxr.resample(np.pad(sound, (0, rate // 10)), rate, SAMPLE_RATE)
    size = len(heard) + len(pcm)
    match = np.fft.irfft(np.fft.rfft(heard, size) * np.conj(np.fft.rfft(pcm, size)), size)
    late = int(np.argmax(match[: SAMPLE_RATE // 10]))
    there = np.pad(heard, (0, len(pcm)))[late : late + len(pcm)]
    return late / SAMPLE_RATE, float(np.corrcoef(there, pcm)[0, 1])


@pytest.mark.parametrize("frames", [2, 7, FRAMES])
@pytest.mark.parametrize("form", sorted(FORMATS))
def test_decoders_hear_the_whole_of_it(form: str, frames: int) -> None:
    pcm = speech(frames)
    data = b"".join(voiced(form, pcm))
    for decode in (by_ffmpeg, by_sndfile)[: 1 if form == "aac" else 2]:  # libsndfile has no AAC
        sound, rate = decode(data, form, FORMATS[form].rate)
        assert form == "opus" or rate == FORMATS[form].rate
        assert -1e-3 < len(sound) / rate - frames * FRAME_S < LONGEST_DIFFERENCE_S
        late_s, alike = found_in(sound, rate, pcm)
        assert late_s < LONGEST_DIFFERENCE_S
        assert alike > 0.98


@pytest.mark.parametrize("form", ["mp3", "aac"])
@settings(max_examples=25)
@given(extra=st.integers(0, 2000))
def test_duration_holds_at_every_length(form: str, extra: int) -> None:
    pcm = speech()[: 4 * SAMPLES_PER_FRAME + extra]
    for rate in FORMATS[form].rates:
        sound, _ = by_ffmpeg(b"".join(voiced(form, pcm, rate=rate)), form)
        assert 0 <= len(sound) / rate - len(pcm) / SAMPLE_RATE < LONGEST_DIFFERENCE_S


@pytest.mark.parametrize(
    "how", [{}, {"speed": 1.3}, {"rate": 44_100}, {"rate": 48_000, "speed": 0.3}]
)
@pytest.mark.parametrize("form", sorted(FORMATS))
@example(cuts=[121])
@given(cuts=st.lists(st.integers(0, 6 * SAMPLES_PER_FRAME), max_size=8))
@settings(max_examples=10)
def test_any_chunking_makes_the_same_bytes(
    form: str, how: dict[str, float], cuts: list[int]
) -> None:
    if how.get("rate", 0) not in (0, *FORMATS[form].rates):
        how = {}
    pcm = speech(6)
    assert b"".join(voiced(form, pcm, cuts, **how)) == b"".join(voiced(form, pcm, **how))


def test_sound_is_the_same_to_the_sample_in_every_lossless_format() -> None:
    pcm = b"".join(voiced("pcm", speech()))
    assert b"".join(voiced("wav", speech()))[44:] == pcm
    for decode in (by_ffmpeg, by_sndfile):
        sound, rate = decode(b"".join(voiced("flac", speech())), "flac")
        assert rate == SAMPLE_RATE
        assert np.rint(sound * 32768).astype("<i2").tobytes() == pcm


@pytest.mark.parametrize("form", ["wav", "flac"])
def test_a_whole_file_says_its_length(form: str) -> None:
    pipeline = Pipeline(FORMATS[form], 16_000)
    data = pipeline.sealed(pipeline.encode(speech()) + pipeline.finish())
    assert soundfile.info(io.BytesIO(data)).frames == round(len(speech()) * 2 / 3)
    sound, rate = soundfile.read(io.BytesIO(data))
    assert (len(sound), rate) == (round(len(speech()) * 2 / 3), 16_000)


def test_only_the_ends_are_touched() -> None:
    pcm = np.full(5 * SAMPLES_PER_FRAME, 0.5, np.float32)
    sound = np.frombuffer(b"".join(voiced("pcm", pcm)), "<i2")
    assert len(sound) == len(pcm)
    assert sound[FADE_IN:-FADE_OUT].tobytes() == to_s16le(pcm[FADE_IN:-FADE_OUT])
    assert sound[0] == sound[-1] == 0
    assert np.abs(np.diff(sound.astype(int))).max() < 0.04 * 16384  # half scale, no step


@pytest.mark.parametrize("speed", [0.25, 0.7, 4])
def test_a_moment_of_sound_is_stretched_exactly(speed: float) -> None:
    for length in (1, 241, 1000):
        pieces = voiced("pcm", np.full(length, 0.5, np.float32), [0], speed=speed)
        assert sum(map(len, pieces)) == 2 * round(length / speed)


@given(length=st.integers(0, 300))
def test_sound_shorter_than_its_ends_keeps_its_length(length: int) -> None:
    pcm = np.full(length, 0.5, np.float32)
    assert sum(map(len, voiced("pcm", pcm, [length // 2]))) == 2 * length


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_the_first_frame_makes_bytes_be_it_loud_or_silent(form: str) -> None:
    for level in (0.0, 1e-3, 1.0):
        assert voiced(form, level * speech())[0]


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_sound_leaves_while_it_is_made(form: str) -> None:
    """What is still inside when the last frame is in: less than two frames."""
    *pieces, last = voiced(form, speech(100))
    assert len(last) < 2 * sum(map(len, pieces)) / 100


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("samples", [0, 1, 5000])
def test_closing_before_the_end_gives_everything_back(form: str, samples: int) -> None:
    def begun() -> None:
        pipeline = Pipeline(FORMATS[form], speed=1.1)
        pipeline.encode(np.zeros(samples, np.float32))
        pipeline.close()
        pipeline.close()

    begun()
    gc.collect()
    before = psutil.Process().memory_info().rss
    for _ in range(50):
        begun()
    assert psutil.Process().memory_info().rss - before < 8 << 20  # 350 MB for FLAC left open


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac"])
def test_closing_while_another_thread_encodes_is_safe(form: str) -> None:
    for _ in range(20):
        pipeline = Pipeline(FORMATS[form])
        thread = threading.Thread(
            target=lambda pipeline=pipeline: [pipeline.encode(speech()) for _ in range(3)]
        )
        thread.start()
        pipeline.close()
        thread.join()
        assert pipeline.encode(speech()) == pipeline.finish() == b""


@pytest.mark.parametrize("form", sorted(set(FORMATS) - {"wav"}))
def test_no_sound_is_no_bytes(form: str) -> None:
    assert Pipeline(FORMATS[form]).finish() == b""


@pytest.mark.parametrize("form", sorted(FORMATS))
@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 44_100, 48_000])
def test_any_rate_keeps_the_time(form: str, rate: int) -> None:
    if rate not in FORMATS[form].rates:
        return
    sound, heard = by_ffmpeg(b"".join(voiced(form, speech(), rate=rate)), form, rate)
    assert heard == (48_000 if form == "opus" else rate)
    late_s, alike = found_in(sound, heard, speech())
    assert late_s < LONGEST_DIFFERENCE_S
    assert alike > 0.98
    if form in ("pcm", "wav", "flac", "mulaw", "alaw"):
        assert len(sound) == round(len(speech()) * rate / SAMPLE_RATE)


@pytest.mark.parametrize("speed", [0.25, 0.4, 0.5, 0.9, 1.1, 1.5, 2, 3.3, 4])
def test_speed_changes_the_time_and_not_the_pitch(speed: float) -> None:
    t = np.arange(SAMPLE_RATE * 2) / SAMPLE_RATE
    tone = (0.3 * np.sin(2 * np.pi * 440 * t)).astype(np.float32)
    sound = np.frombuffer(b"".join(voiced("pcm", tone, speed=speed)), "<i2").astype(float)
    assert len(sound) == round(len(tone) / speed)
    loud = np.abs(np.fft.rfft(sound * np.hanning(len(sound))))
    assert abs(np.argmax(loud) * SAMPLE_RATE / len(sound) - 440) < 5
    thirds = [np.sqrt((part**2).mean()) for part in np.array_split(sound, 12)]
    assert min(thirds) > 0.7 * max(thirds)  # it sounds to the end
