"""Reference clips: every format, rate and channel count; what is none; what is refused with why."""

import contextlib
import io
import struct
import wave
from collections.abc import Iterator

import av
import numpy as np
import pytest
from tests.audio.clips import FORMATS, SECONDS, aligned, packed, voice

from vivace.audio import decoding
from vivace.audio.decoder import Decoder, Sound
from vivace.audio.decoding import Fault
from vivace.audio.reference import BLOCK, EDGE_BLOCKS, prepare, resampled
from vivace.config import Limits
from vivace.errors import TooLarge, Unprocessable
from vivace.types import SAMPLE_RATE, Pcm

LIMITS = Limits()
CLOSE = 1e-2
RATES = (8_000, 16_000, 22_050, 44_100, 48_000)
EVERY = [
    (name, rate, channels)
    for name, (_, _, _, rates) in FORMATS.items()
    for rate in rates or RATES
    for channels in (1, 2)
]


@pytest.mark.parametrize(("name", "rate", "channels"), EVERY)
def test_32_33_the_same_clip_in_every_container(name: str, rate: int, channels: int) -> None:
    """Within 1e-2 of what was sent.

    Sample by sample where the format keeps samples. A lossy one keeps what is heard and not the
    samples, and may put silence in front: there the clips are aligned first, and the measure is the
    root mean square of the difference.
    """
    found, pcm = decoding.decode(packed(name, rate, channels), LIMITS.clip_max_s)
    assert found == (48_000 if "opus" in FORMATS[name][1] else rate)
    heard, sent = resampled(Sound(pcm, found)), voice(SAMPLE_RATE)
    if FORMATS[name][2]:
        assert len(heard) == len(sent)
        np.testing.assert_allclose(heard, sent, rtol=0, atol=CLOSE)
    else:
        assert len(heard) - len(sent) < 0.25 * SAMPLE_RATE
        heard, sent = aligned(heard, sent)
        assert len(sent) > 0.95 * SECONDS * SAMPLE_RATE
        assert np.sqrt(np.square(heard - sent).mean()) < CLOSE


def test_the_mean_of_the_channels_and_not_their_sum() -> None:
    left = voice(48_000)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((2, 2, 48_000, 0, "NONE", ""))
        both = np.stack([left, np.zeros_like(left)], 1)
        file.writeframes((32767 * both).astype("<i2").tobytes())
    _, pcm = decoding.decode(out.getvalue(), 30)
    np.testing.assert_allclose(pcm, left / 2, rtol=0, atol=1e-4)


def floats(*samples: float, width: int = 4) -> bytes:
    """A WAV file of floats in which these samples stand amid a voice."""
    kind = np.dtype(f"<f{width}")
    pcm = voice(24_000).astype(kind)
    pcm[9_000 : 9_000 + len(samples)] = samples
    form = struct.pack("<HHIIHH", 3, 1, 24_000, 24_000 * width, width, 8 * width)
    data = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", pcm.nbytes)
    return b"RIFF" + struct.pack("<I", 4 + len(data) + pcm.nbytes) + b"WAVE" + data + pcm.tobytes()


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("sample", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_no_finite_number(sample: float, width: int) -> None:
    with pytest.raises(Fault, match="no finite numbers"):
        decoding.decode(floats(sample, width=width), 30)


@pytest.mark.parametrize(("loudest", "width"), [(1.5, 4), (3e38, 4), (1e300, 8)])
def test_a_sample_beyond_full_scale_is_full_scale(loudest: float, width: int) -> None:
    rate, pcm = decoding.decode(floats(loudest, -loudest, width=width), 30)
    assert pcm[9_000:9_002].tolist() == [1.0, -1.0]
    clip, _ = prepare(Sound(pcm, rate), LIMITS)
    assert np.abs(clip).max() == 1


@pytest.mark.parametrize("name", FORMATS)
def test_33_a_file_that_is_cut_off(name: str) -> None:
    """Refused where its end can be missed; frames of MP3 or AAC alone are only a shorter clip."""
    whole = packed(name, 24_000)
    for share in (0.02, 0.3, 0.6):
        try:
            _, pcm = decoding.decode(whole[: int(len(whole) * share)], 30)
        except Fault as fault:
            assert str(fault)
        else:
            assert name in ("mp3", "aac") and len(pcm) < SECONDS * 24_000 * (share + 0.1)


@pytest.mark.parametrize("name", ["m4a", "mp4"])
def test_33_an_mp4_that_is_cut_off_anywhere_in_its_index(name: str) -> None:
    """Also where it no longer says of which codec its sound is."""
    whole = packed(name, 24_000)
    for end in range(whole.rindex(b"moov"), len(whole)):
        with contextlib.suppress(Fault):  # at the very end there is sound in it
            decoding.decode(whole[:end], 30)


@pytest.mark.parametrize("size", [0, 1, 44, 1_024, 100_000])
def test_33_random_bytes(size: int) -> None:
    for seed in range(5):
        with pytest.raises(Fault):
            decoding.decode(np.random.default_rng(seed).bytes(size), 30)


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        "#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/x.wav\n",
        "ffconcat version 1.0\nfile /etc/passwd\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=audio 9 RTP/AVP 0\n",
        "<?xml version='1.0'?><MPD><Period/></MPD>",
    ],
)
def test_36_no_list_of_other_places_is_followed(text: str) -> None:
    with pytest.raises(Fault, match="no format that is known"):
        decoding.decode(text.encode(), 30)


def test_a_picture_and_a_film_without_sound() -> None:
    out = io.BytesIO()
    with av.open(out, "w", format="matroska") as file:
        stream = file.add_stream("mpeg4", rate=5)
        assert isinstance(stream, av.VideoStream)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        for piece in (frame, None):
            file.mux(stream.encode(piece))
    with pytest.raises(Fault, match="no sound"):
        decoding.decode(out.getvalue(), 30)


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 2_000_000_000])
def test_58_streamed_wav_headers_promise_nothing(size: int) -> None:
    whole = packed("wav", 24_000)
    data = whole.index(b"data") + 4
    streamed = bytearray(whole)
    streamed[4:8] = streamed[data : data + 4] = struct.pack("<I", size)
    assert len(decoding.decode(bytes(streamed), 30)[1]) == pytest.approx(48_000, abs=50)


def test_a_rate_below_speech() -> None:
    with pytest.raises(Fault, match="4000 Hz; it must be from 8000"):
        decoding.decode(packed("wav", 4_000), 30)


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    decoder = Decoder(LIMITS)
    decoder.prepare()
    yield decoder
    decoder.close()


def test_the_process_answers_as_the_function(decoder: Decoder) -> None:
    for name in ("wav", "mp3", "webm"):
        data = packed(name, 48_000, 2)
        sound = decoder.decode(data)
        rate, pcm = decoding.decode(data, 30)
        assert sound.rate == rate
        np.testing.assert_array_equal(sound.pcm, pcm)
    with pytest.raises(Unprocessable, match="WAV, MP3, M4A") as caught:
        decoder.decode(b"no sound at all")
    assert caught.value.param == "ref_audio"


def test_33_a_bomb_is_left_before_it_is_whole(decoder: Decoder) -> None:
    """Hours of silence in 9 MB."""
    hours = packed("flac", 8_000, pcm=np.zeros(8_000 * 60 * 60, np.float32))
    assert len(hours) < LIMITS.clip_bytes
    with pytest.raises(Unprocessable, match="more than 30 s"):
        decoder.decode(hours)


def test_too_many_bytes_are_not_looked_at(decoder: Decoder) -> None:
    with pytest.raises(TooLarge, match="10,485,760") as caught:
        decoder.decode(bytes(LIMITS.clip_bytes + 1))
    assert caught.value.param == "ref_audio"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("while True: pass", "took too long"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGXCPU)", "took too long"),
        ("x = bytearray(1 << 40)", "broke down"),
        ("import os; os._exit(9)", "broke down"),
    ],
)
def test_33_what_does_not_come_back_is_killed(
    monkeypatch: pytest.MonkeyPatch, body: str, why: str
) -> None:
    """A process that hangs, eats or falls is a refusal, and the next file finds a fresh one."""
    from vivace.audio import decoder as module

    started: list[str] = []
    popen = module.subprocess.Popen

    def start(command: list[str], **options: object) -> object:
        started.append(command[2])
        spoilt = ["-c", body] if len(started) == 1 else command[1:]
        return popen([command[0], *spoilt], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(module.subprocess, "Popen", start)
    patience = Limits(clip_decode_s=1.0 if body.startswith("while") else 60.0)
    ours = Decoder(patience)
    with pytest.raises(Unprocessable, match=why):
        ours.decode(packed("wav", 24_000))
    ours._limits = LIMITS
    assert ours.decode(packed("wav", 24_000)).rate == 24_000
    ours.close()
    assert ours._ready.empty()


def test_a_process_that_falls_while_it_waits_is_replaced(decoder: Decoder) -> None:
    decoder.prepare()
    waiting = decoder._ready.get_nowait()
    waiting.kill()
    waiting.wait()
    decoder._ready.put(waiting)
    assert decoder.decode(packed("wav", 24_000)).rate == 24_000


def at(pcm: Pcm, level_db: float) -> Pcm:
    """With so many dBFS of root mean square."""
    return (pcm * 10 ** (level_db / 20) / np.sqrt(np.square(pcm).mean())).astype(np.float32)


def prepared(pcm: Pcm, rate: int = SAMPLE_RATE) -> tuple[Pcm, list[str]]:
    return prepare(Sound(pcm, rate), LIMITS)


def test_34_quiet_speech_is_speech() -> None:
    for level_db in (-20, -45, -50):
        pcm, warnings = prepared(at(voice(SAMPLE_RATE), level_db))
        assert len(pcm) > 0.9 * SECONDS * SAMPLE_RATE and not warnings


@pytest.mark.parametrize(
    ("pcm", "told"),
    [
        (np.zeros(5 * SAMPLE_RATE, np.float32), "no level at all"),
        (np.full(5 * SAMPLE_RATE, 0.25, np.float32), "no level at all"),  # an offset alone
        (at(voice(SAMPLE_RATE), -90), "-8[0-9] dBFS"),
    ],
)
def test_34_silence_is_refused_with_its_level(pcm: Pcm, told: str) -> None:
    with pytest.raises(Unprocessable, match=told) as caught:
        prepared(pcm)
    assert (caught.value.param, caught.value.code) == ("ref_audio", "clip_silent")


@pytest.mark.parametrize("before_s", [0.0, 2.4, 4.8])
def test_34_too_short_a_clip_says_what_is_wanted(before_s: float) -> None:
    """200 ms, alone or in five seconds of silence."""
    sound = np.zeros(5 * SAMPLE_RATE, np.float32)
    start = round(before_s * SAMPLE_RATE)
    sound[start : start + 4_800] = at(voice(SAMPLE_RATE, 0.2), -20)
    with pytest.raises(Unprocessable, match=r"must have 0\.5 to 30 s") as caught:
        prepared(sound if before_s else sound[:4_800])
    assert caught.value.code == "clip_too_short"


def test_34_clipping_and_an_offset_are_no_reason_to_refuse() -> None:
    square = np.sign(np.sin(np.arange(2 * SAMPLE_RATE) / 20)).astype(np.float32)
    pcm, warnings = prepared(square)
    assert len(pcm) == len(square) and "clipped" in warnings[0]
    pcm, warnings = prepared(voice(SAMPLE_RATE) + 0.2)
    assert len(pcm) > 0.9 * SECONDS * SAMPLE_RATE and not warnings


def test_silence_is_left_out_at_the_ends_only() -> None:
    """By the clip's own level: quiet speech in quiet noise ends where loud speech would."""
    rest = np.zeros(SAMPLE_RATE, np.float32)
    noise = np.random.default_rng(0).standard_normal(5 * SAMPLE_RATE).astype(np.float32)
    sound = np.concatenate((rest, voice(SAMPLE_RATE, 1.0), rest, voice(SAMPLE_RATE, 1.0), rest))
    starts = []
    for gain in (1.0, 0.05):
        pcm, _ = prepared(gain * (sound + 1e-4 * noise))
        assert 3.0 * SAMPLE_RATE <= len(pcm) <= 3.0 * SAMPLE_RATE + 2 * (EDGE_BLOCKS + 1) * BLOCK
        starts.append(len(pcm))
    assert starts[0] == starts[1]


def test_as_it_is_nothing_is_left_out() -> None:
    sound = np.concatenate((np.zeros(SAMPLE_RATE, np.float32), voice(SAMPLE_RATE)))
    pcm, _ = prepare(Sound(sound, SAMPLE_RATE), LIMITS, as_it_is=True)
    np.testing.assert_array_equal(pcm, sound)


def test_32_a_telephones_rate_is_taken_with_a_warning() -> None:
    pcm, warnings = prepared(voice(8_000), 8_000)
    assert abs(len(pcm) - SECONDS * SAMPLE_RATE) < 5 * BLOCK
    assert "8000 Hz" in warnings[0]


@pytest.mark.parametrize("rate", RATES)
def test_the_length_after_resampling(rate: int) -> None:
    for samples in (rate, rate + 1, rate - 1):
        sound = Sound(voice(rate)[:samples], rate)
        assert len(resampled(sound)) == -(-samples * SAMPLE_RATE // rate)
