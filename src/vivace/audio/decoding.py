"""Decodes one file of sound: the body of a process that does nothing else and may be killed.

    python -m vivace.audio.decoding MOST_SECONDS < file > answer

The answer is a line of JSON, `{"rate": 48000}` or `{"error": "..."}`, and then mono samples in
fp32. FFmpeg is a large parser of whatever strangers send: here it has no network, no files, little
memory, and takes nobody with it when it falls.
"""

import contextlib
import io
import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
import numpy.typing as npt

MORE_BYTES: Final = 512 << 20  # of memory, beside what the process starts with
MORE_CPU_S: Final = 20
LEAST_RATE, MOST_RATE = 8_000, 192_000
FORMATS: Final = "wav,w64,mp3,mov,ogg,flac,matroska,aac,aiff,caf"  # as FFmpeg calls them
# A header that tells of more than this does not mean it: sound that was streamed has such.
MOST_TOLD_S: Final = 3600.0
LAST_PAGE: Final = 4  # a flag of Ogg
CUT_OFF: Final = 0.9  # of what the header tells; with less the file is not all there

Block = npt.NDArray[np.float32]


class Fault(Exception):
    """Why there is no sound, for the one who has sent it."""


def limit() -> None:
    """Let this process have little of the machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (MORE_CPU_S, MORE_CPU_S))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def decode(data: bytes, most_s: float) -> tuple[int, Block]:
    """Rate and mono samples [N] of the first stream of sound. Raises Fault."""
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "none"}
    try:
        with av.open(io.BytesIO(data), "r", options=options, metadata_errors="ignore") as file:
            if not file.streams.audio:
                raise Fault("there is no sound in it")
            stream = file.streams.audio[0]
            # There is none where the header breaks off before it says what codec it is.
            if (codec := getattr(stream, "codec_context", None)) is None:
                raise Fault("it is damaged, or of no codec that is known here")
            codec.thread_count = 1
            blocks = list(_blocks(file, stream, most_s))
            told_s = _told_s(file, stream)
    except (av.error.FFmpegError, ValueError) as error:
        raise Fault("it is damaged, or of no format that is known here") from error
    except MemoryError as error:
        raise Fault("it takes too much memory to decode") from error
    if not blocks:
        raise Fault("there is no sound in it")
    rate = blocks[0][0]
    pcm = np.concatenate([block for _, block in blocks])
    _check_whole(data, len(pcm) / rate, told_s)
    return rate, pcm


def _check_whole(data: bytes, there_s: float, told_s: float) -> None:
    """Raise Fault for a file of which the end is missing, where that can be seen."""
    if data[:4] == b"RIFF":  # FFmpeg goes by the file's own length
        told_s = there_s * (8 + int.from_bytes(data[4:8], "little")) / len(data)
    if data[:4] == b"OggS" and not _has_last_page(data[data.rfind(b"OggS") :]):
        raise Fault("it is cut off: its last page is missing")
    if told_s < MOST_TOLD_S and there_s < CUT_OFF * told_s:
        raise Fault(f"it is cut off: {told_s:.1f} s are promised, {there_s:.1f} s are there")


def _has_last_page(page: bytes) -> bool:
    """Is this page of Ogg (RFC 3533) marked as the last one, and all there?"""
    if len(page) < 27 or not page[5] & LAST_PAGE:
        return False
    segments = page[27 : 27 + page[26]]
    return len(page) >= 27 + len(segments) + sum(segments)


def _blocks(
    file: av.container.InputContainer, stream: av.AudioStream, most_s: float
) -> Iterator[tuple[int, Block]]:
    """Rate and samples of each decoded frame, until there is too much."""
    rate, samples = 0, 0
    for frame in _frames(file, stream):
        rate = rate or frame.sample_rate
        if frame.sample_rate != rate:
            raise Fault("its sample rate changes on the way")
        if not LEAST_RATE <= rate <= MOST_RATE:
            raise Fault(f"its rate is {rate} Hz; it must be from {LEAST_RATE} to {MOST_RATE}")
        samples += frame.samples
        if samples > most_s * rate:
            raise Fault(f"it lasts more than {most_s:g} s")
        yield rate, mono(frame)


def _frames(file: av.container.InputContainer, stream: av.AudioStream) -> Iterator[av.AudioFrame]:
    """What is decoded. Sound that was cut out of a stream may begin with half a packet."""
    begun = False
    for packet in file.demux(stream):
        try:
            frames = packet.decode()
        except av.error.InvalidDataError:
            if begun:
                raise
            continue
        begun = begun or bool(frames)
        yield from frames


def mono(frame: av.AudioFrame) -> Block:
    """The mean of a frame's channels [N], -1..1; what is louder is full scale. Raises Fault."""
    values: npt.NDArray[Any] = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    if values.dtype == np.uint8:
        scaled = values / 128.0 - 1.0
    elif np.issubdtype(values.dtype, np.integer):
        scaled = values / 2.0 ** (8 * values.itemsize - 1)
    else:
        scaled = values
    if not np.isfinite(scaled).all():  # files of floats may hold what is no number
        raise Fault("some of its samples are no finite numbers")
    mean: Block = scaled.clip(-1.0, 1.0).astype(np.float32).mean(0)
    return mean


def _told_s(file: av.container.InputContainer, stream: av.AudioStream) -> float:
    """How long its header says it is; 0 where it does not."""
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return (file.duration or 0) / av.time_base


def main() -> None:
    """Answer what came on stdin."""
    av.logging.set_level(av.logging.PANIC)
    with contextlib.suppress(OSError, ValueError):  # no /proc, or lower limits already
        limit()
    out = sys.stdout.buffer
    try:
        rate, pcm = decode(sys.stdin.buffer.read(), float(sys.argv[1]))
        out.write(json.dumps({"rate": rate}).encode() + b"\n" + pcm.tobytes())
    except Fault as fault:
        out.write(json.dumps({"error": str(fault)}).encode() + b"\n")
    out.flush()


if __name__ == "__main__":
    main()
