"""One streaming encoder per response format: sound goes in as it is made, bytes come out."""

from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Protocol

from vivace.audio.wav import to_s16le, wav_header
from vivace.types import Pcm


class Encoder(Protocol):
    """Encodes one stream. Whatever header it has is part of its first bytes."""

    media_type: ClassVar[str]

    def encode(self, pcm: Pcm) -> bytes:
        """The bytes that these samples complete; may be empty."""
        ...

    def finish(self) -> bytes:
        """What is still owed when no more samples come."""
        ...


class RawPcm:
    """Bare samples: signed 16-bit little-endian, mono, 24 kHz."""

    media_type: ClassVar[str] = "audio/pcm"

    def encode(self, pcm: Pcm) -> bytes:
        """Two bytes a sample."""
        return to_s16le(pcm)

    def finish(self) -> bytes:
        """Nothing."""
        return b""


class Wav:
    """One header of unknown length, then samples, then nothing."""

    media_type: ClassVar[str] = "audio/wav"

    def __init__(self) -> None:
        self._started = False

    def encode(self, pcm: Pcm) -> bytes:
        """Two bytes a sample, behind the header the first time."""
        header = b"" if self._started else wav_header()
        self._started = True
        return header + to_s16le(pcm)

    def finish(self) -> bytes:
        """Nothing, or the header of a file without samples."""
        return b"" if self._started else wav_header(0)


ENCODERS: Final[Mapping[str, Callable[[], Encoder]]] = {"wav": Wav, "pcm": RawPcm}
