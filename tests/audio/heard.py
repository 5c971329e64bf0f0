"""What decoders make of our bytes: FFmpeg (through PyAV) and libsndfile."""

import io
from typing import Final

import av
import numpy as np
import numpy.typing as npt
import soundfile

from vivace.types import SAMPLE_RATE

Sound = npt.NDArray[np.float64]

RAW_CODECS: Final = {"pcm": "s16le", "mulaw": "mulaw", "alaw": "alaw"}
SNDFILE_RAW: Final = {"pcm": "PCM_16", "mulaw": "ULAW", "alaw": "ALAW"}


def by_ffmpeg(data: bytes, form: str, rate: int = SAMPLE_RATE) -> tuple[Sound, int]:
    """Samples [n] in -1..1 and their rate."""
    options = {"sample_rate": str(rate), "ch_layout": "mono"} if form in RAW_CODECS else {}
    with av.open(io.BytesIO(data), format=RAW_CODECS.get(form), options=options) as file:
        resampler = av.AudioResampler(format="flt", layout="mono")
        frames = [
            out.to_ndarray()[0]
            for frame in file.decode(audio=0)
            for out in resampler.resample(frame)
        ]
        return np.concatenate(frames).astype(float), file.streams.audio[0].rate


def by_sndfile(data: bytes, form: str, rate: int = SAMPLE_RATE) -> tuple[Sound, int]:
    """The same by libsndfile, which has no AAC."""
    raw = {}
    if form in SNDFILE_RAW:
        raw = dict(format="RAW", subtype=SNDFILE_RAW[form], samplerate=rate, channels=1)
    with soundfile.SoundFile(io.BytesIO(data), **raw) as file:
        file.seekable = lambda: False  # read as a stream: there is no end to seek to yet
        blocks = [file.read(4096)]
        while len(blocks[-1]):
            blocks.append(file.read(4096))
        return np.concatenate(blocks), file.samplerate
