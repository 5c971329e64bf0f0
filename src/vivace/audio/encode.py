"""One streaming encoder per response: sound goes in as it is made, bytes come out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

import numpy as np

from vivace.audio.container import CODECS, Container, flac_with_length
from vivace.audio.ends import Ends
from vivace.audio.g711 import a_law, mu_law
from vivace.audio.resample import Resample
from vivace.audio.stretch import Stretch
from vivace.audio.wav import (
    A_LAW,
    F32,
    MU_LAW,
    S16,
    WavKind,
    to_f32le,
    to_s16,
    to_s16le,
    wav_header,
    with_length,
)
from vivace.types import SAMPLE_RATE, SAMPLES_PER_FRAME, Pcm

TELEPHONE_RATE: Final = 8_000
ANY_RATE: Final = range(8_000, 48_001)


class Encoder(Protocol):
    """Encodes one stream. Whatever header it has is part of its first bytes."""

    def encode(self, pcm: Pcm) -> bytes:
        """The bytes that these samples complete; may be empty."""
        ...

    def finish(self) -> bytes:
        """What is still owed when no more samples come."""
        ...

    def close(self) -> None:
        """Give back what it holds, at its end or before."""
        ...


class Stage(Protocol):
    """Turns one stream of samples into another."""

    def feed(self, pcm: Pcm) -> Pcm:
        """What these samples complete; may be empty."""
        ...

    def finish(self) -> Pcm:
        """What is still owed when no more samples come."""
        ...


class Raw:
    """Bare samples, mono, each sent whole."""

    def __init__(self, pack: Callable[[Pcm], bytes], rate: int) -> None:
        self._pack = pack

    def encode(self, pcm: Pcm) -> bytes:
        """One, two or four bytes a sample."""
        return self._pack(pcm)

    def finish(self) -> bytes:
        """Nothing."""
        return b""

    def close(self) -> None:
        """Nothing."""


class Wav:
    """One header of unknown length, then samples, then nothing."""

    def __init__(
        self, rate: int, pack: Callable[[Pcm], bytes] = to_s16le, kind: WavKind = S16
    ) -> None:
        self._rate, self._pack, self._kind, self._started = rate, pack, kind, False

    def encode(self, pcm: Pcm) -> bytes:
        """The samples, behind the header the first time."""
        header = b"" if self._started else wav_header(None, self._rate, self._kind)
        self._started = True
        return header + self._pack(pcm)

    def finish(self) -> bytes:
        """Nothing, or the header of a file without samples."""
        return b"" if self._started else wav_header(0, self._rate, self._kind)

    def close(self) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Format:
    """A response format: its name, content type, encoder and sample rates in Hz.

    `seal` tells a stream that has ended, and has not been sent yet, how many samples it holds.
    `resamples` says that the encoder takes 24 kHz and changes the rate itself, `light` that a
    chunk costs well below a millisecond, `bare` that no header tells the rate.
    """

    name: str
    media_type: str
    open: Callable[[int], Encoder]
    rates: range | tuple[int, ...] = ANY_RATE
    rate: int = SAMPLE_RATE
    seal: Callable[[bytes, int], bytes] = lambda stream, samples: stream
    resamples: bool = False
    light: bool = False
    bare: bool = False


def _mu_law(pcm: Pcm) -> bytes:
    return mu_law(to_s16(pcm))


def _a_law(pcm: Pcm) -> bytes:
    return a_law(to_s16(pcm))


def _lossy(name: str, kbit: int | None = None) -> Callable[[int], Encoder]:
    """FFmpeg changes the rate: soxr holds back 10 ms, and MP3 would begin a frame later."""
    codec = CODECS[name]
    if kbit is not None:
        codec = replace(codec, options=codec.options | {"b": f"{kbit}k"})
    return lambda rate: Container(codec, rate, SAMPLE_RATE)


def _flac(rate: int) -> Encoder:
    return Container(CODECS["flac"], rate, rate)


# MP3 and AAC begin with some 1,000 samples of silence that no decoder of a stream can know of, and
# end on a whole packet of theirs: below 44.1 kHz that would be more than 60 ms.
_FULL_BAND: Final = (44_100, 48_000)

FORMATS: Final[Mapping[str, Format]] = {
    form.name: form
    for form in (
        Format("mp3", "audio/mpeg", _lossy("mp3"), _FULL_BAND, 48_000, resamples=True),
        Format(
            "opus",
            "audio/ogg",
            _lossy("opus"),
            (8_000, 12_000, 16_000, 24_000, 48_000),
            resamples=True,
        ),
        Format("aac", "audio/aac", _lossy("aac"), _FULL_BAND, 48_000, resamples=True),
        Format("flac", "audio/flac", _flac, seal=flac_with_length),
        Format("wav", "audio/wav", Wav, seal=with_length, light=True),
        Format("pcm", "audio/pcm", partial(Raw, to_s16le), light=True, bare=True),
        Format(
            "mulaw", "audio/PCMU", partial(Raw, _mu_law), rate=TELEPHONE_RATE, light=True, bare=True
        ),
        Format(
            "alaw", "audio/PCMA", partial(Raw, _a_law), rate=TELEPHONE_RATE, light=True, bare=True
        ),
    )
}

# Other vendors' names for how a sample is written, bare or in a WAV file.
PACKINGS: Final[Mapping[str, tuple[Callable[[Pcm], bytes], WavKind]]] = {
    "pcm_s16le": (to_s16le, S16),
    "pcm_f32le": (to_f32le, F32),
    "pcm_mulaw": (_mu_law, MU_LAW),
    "pcm_alaw": (_a_law, A_LAW),
}


def bare(packing: str) -> Format:
    """Samples alone, each written as the packing of that name says."""
    return replace(FORMATS["pcm"], name=packing, open=partial(Raw, PACKINGS[packing][0]))


def in_wav(packing: str) -> Format:
    """The same behind a WAV header of unknown length; for streams only."""
    pack, kind = PACKINGS[packing]
    return replace(FORMATS["wav"], open=partial(Wav, pack=pack, kind=kind))


def lossy_at(name: str, kbit: int) -> Format:
    """MP3, Opus or AAC at a rate of bits of the client's choice."""
    return replace(FORMATS[name], open=_lossy(name, kbit))


class Pipeline:
    """From a session's chunks to one response's bytes: ends, pace, rate, format.

    The bytes do not depend on how the sound was cut into chunks.
    """

    def __init__(self, form: Format, rate: int | None = None, speed: float = 1.0) -> None:
        rate = rate or form.rate
        self._form, self._encoder, self._samples = form, form.open(rate), 0
        self._stages: list[Stage] = [Ends()]
        if speed != 1:
            self._stages.append(Stretch(speed))
        if rate != SAMPLE_RATE and not form.resamples:
            self._stages.append(Resample(rate))

    def encode(self, pcm: Pcm) -> bytes:
        """The bytes that these samples at 24 kHz complete; may be empty."""
        for stage in self._stages:
            pcm = stage.feed(pcm)
        return self._encoded(pcm)

    def finish(self) -> bytes:
        """All that is still owed."""
        tail: Pcm = np.zeros(0, np.float32)
        for stage in self._stages:
            tail = np.concatenate([stage.feed(tail), stage.finish()])
        return self._encoded(tail) + self._encoder.finish()

    def close(self) -> None:
        """Give back what the encoder holds."""
        self._encoder.close()

    def sealed(self, stream: bytes) -> bytes:
        """The whole stream, after its end, with its length in it where the format has a place."""
        return self._form.seal(stream, self._samples) if self._samples else stream

    def _encoded(self, pcm: Pcm) -> bytes:
        if not len(pcm):
            return b""
        self._samples += len(pcm)
        return self._encoder.encode(pcm)


def warm() -> None:
    """Encode a moment of silence in every format: the first of each takes some 10 ms more."""
    for form in FORMATS.values():
        pipeline = Pipeline(form, speed=1.5)
        pipeline.encode(np.zeros(SAMPLES_PER_FRAME, np.float32))
        pipeline.finish()
