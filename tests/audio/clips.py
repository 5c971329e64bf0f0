"""Clips in every container: the same sound, by a formula, at any rate."""

import io

import av
import numpy as np

from vivace.types import Pcm

SECONDS = 2.0
# name, FFmpeg's container and codec, does it keep every sample, the rates it has (None: any)
FORMATS = {
    "wav": ("wav", "pcm_s16le", True, None),
    "wav-s24": ("wav", "pcm_s24le", True, None),
    "wav-f32": ("wav", "pcm_f32le", True, None),
    "flac": ("flac", "flac", True, None),
    "ogg-flac": ("ogg", "flac", True, None),
    "aiff": ("aiff", "pcm_s16be", True, None),
    "mp3": ("mp3", "libmp3lame", False, None),
    "m4a": ("ipod", "aac", False, None),
    "mp4": ("mp4", "aac", False, None),
    "aac": ("adts", "aac", False, None),
    "ogg": ("ogg", "libopus", False, (8_000, 16_000, 24_000, 48_000)),
    "webm": ("webm", "libopus", False, (8_000, 16_000, 24_000, 48_000)),
}


def voice(rate: int, seconds: float = SECONDS) -> Pcm:
    """Something like a voice, below 3 kHz so that every rate holds it, without a click."""
    t = np.arange(round(rate * seconds)) / rate
    tones = (np.sin(2 * np.pi * f * t + i) / (i + 1) for i, f in enumerate((150, 310, 470, 930)))
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * 3 * t)
    edges = np.minimum(1, np.minimum(t, seconds - t) / 0.1)
    return (0.2 * sum(tones) * swell * edges).astype(np.float32)


def packed(name: str, rate: int, channels: int = 1, pcm: Pcm | None = None) -> bytes:
    """A file of that format; both channels of stereo are the sound, one louder by a half."""
    container, codec, _, _ = FORMATS[name]
    mono = voice(rate) if pcm is None else pcm
    gains = [[1.0]] if channels == 1 else [[1.5], [0.5]]
    layout, out = "mono" if channels == 1 else "stereo", io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate)
        assert isinstance(stream, av.AudioStream)
        stream.layout = layout
        if not name.startswith(("wav", "flac", "ogg-flac", "aiff")):
            stream.bit_rate = 64_000 * channels if rate > 8_000 else 24_000 * channels
        sound = np.ascontiguousarray(mono * np.array(gains, np.float32))
        frame = av.AudioFrame.from_ndarray(sound, format="fltp", layout=layout)
        frame.sample_rate, frame.pts = rate, 0
        for piece in (frame, None):
            file.mux(stream.encode(piece))
    return out.getvalue()


def aligned(heard: Pcm, sent: Pcm, most: int = 4_000) -> tuple[Pcm, Pcm]:
    """Both without what an encoder puts in front: shifted by where they are most alike."""
    size = len(heard) + len(sent)
    spectrum = np.fft.rfft(heard, size) * np.fft.rfft(sent, size).conj()
    shift = int(np.fft.irfft(spectrum, size)[:most].argmax())
    length = min(len(heard) - shift, len(sent))
    return heard[shift : shift + length], sent[:length]
