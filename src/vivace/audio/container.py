"""Compressed sound in its container, made by FFmpeg while the samples come."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

import av

from vivace.audio.wav import to_s16
from vivace.types import Pcm


@dataclass(frozen=True, slots=True)
class Codec:
    """What FFmpeg calls a container and the codec in it, with the options of both."""

    container: str
    name: str
    options: dict[str, str] = field(default_factory=dict)
    container_options: dict[str, str] = field(default_factory=dict)


CODECS: Final[Mapping[str, Codec]] = {
    # No Xing frame and no tags: both describe a whole that nobody knows yet. No reservoir: it keeps
    # quiet packets back until louder ones fill them, which is 100 ms where speech begins. Level 7
    # costs a quarter less than LAME's usual 5; at this rate of bits there is no need for either.
    "mp3": Codec(
        "mp3",
        "libmp3lame",
        {"b": "128k", "compression_level": "7", "reservoir": "0"},
        {"write_xing": "0", "id3v2_version": "0"},
    ),
    # A page for each packet of 20 ms, or a listener would wait for a second of them.
    "opus": Codec("ogg", "libopus", {"b": "64k"}, {"page_duration": "20000"}),
    "aac": Codec("adts", "aac", {"b": "96k"}),
    # Blocks of 40 ms, or the first frame would make none; without the 8 kB it leaves for tags.
    "flac": Codec("flac", "flac", {"frame_size": "960"}, {"metadata_header_padding": "0"}),
}

# Each packet leaves when it is made; nothing random and no version of FFmpeg is written.
_AT_ONCE: Final = {"fflags": "+flush_packets+bitexact"}


class Container:
    """One stream of one codec at `rate`, from samples at `source_rate`, sent packet by packet.

    It may be closed from any thread, also while another encodes (PyAV would crash). FFmpeg works
    without Python's lock.
    """

    def __init__(self, codec: Codec, rate: int, source_rate: int) -> None:
        self._source_rate, self._samples = source_rate, 0
        self._out = _Collected()
        self._file = av.open(
            self._out, "w", format=codec.container, options=_AT_ONCE | codec.container_options
        )
        stream = self._file.add_stream(
            codec.name, rate=rate, options={"flags": "+bitexact"} | codec.options
        )
        assert isinstance(stream, av.AudioStream)
        stream.layout = "mono"
        self._stream: av.AudioStream | None = stream
        self._one_at_a_time = threading.Lock()

    def encode(self, pcm: Pcm) -> bytes:
        """The bytes that these samples [n] complete; the header is among the first."""
        frame = av.AudioFrame.from_ndarray(to_s16(pcm)[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = self._source_rate, self._samples
        frame.time_base = Fraction(1, self._source_rate)
        self._samples += len(pcm)
        with self._one_at_a_time:
            self._mux(frame)
            return self._out.take()

    def finish(self) -> bytes:
        """What the encoder held back, and the container's end; nothing if there was no sound."""
        with self._one_at_a_time:
            if self._samples:
                self._mux(None)
            return self._shut()

    def close(self) -> None:
        """Give the memory back, 7 MB of it for FLAC: file and stream hold on to each other.

        What is encoded after that makes no bytes.
        """
        with self._one_at_a_time:
            self._shut()

    def _shut(self) -> bytes:
        self._stream = None
        self._file.close()
        return self._out.take()

    def _mux(self, frame: av.AudioFrame | None) -> None:
        if self._stream is not None:
            self._file.mux(self._stream.encode(frame))


def flac_with_length(stream: bytes, samples: int) -> bytes:
    """A streamed FLAC that has ended, its first block told how many samples [n] follow.

    The number is 36 bits long and begins in the middle of byte 21; zero says that nobody knows.
    """
    word = int.from_bytes(stream[21:26], "big") | samples
    return stream[:21] + word.to_bytes(5, "big") + stream[26:]


class _Collected:
    """A file without places: FFmpeg writes to it and cannot go back."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, data: bytes) -> int:
        self._bytes += data
        return len(data)

    def take(self) -> bytes:
        data = bytes(self._bytes)
        self._bytes.clear()
        return data
