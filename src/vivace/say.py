"""Writes a session's sound while it is made, and tells how it went: the work of `vivace say`."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vivace.audio.decoder import Decoder
from vivace.audio.reference import prepare
from vivace.audio.wav import SAMPLE_BYTES, to_s16le, wav_header
from vivace.config import Limits
from vivace.errors import InvalidRequest
from vivace.server.clips import check_words
from vivace.text.clean import clean
from vivace.types import SAMPLE_RATE, Chunk, Clip, FinishReason

if TYPE_CHECKING:
    from vivace.session import Session

STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class Said:
    """How it went; both times count from the request, and without sound there is no first."""

    reason: FinishReason
    audio_s: float
    first_s: float
    whole_s: float

    def __str__(self) -> str:
        rtf = self.whole_s / self.audio_s if self.audio_s else 0.0
        return (
            f"{self.audio_s:.2f} s of sound in {self.whole_s:.2f} s (RTF {rtf:.2f}), first after "
            f"{self.first_s * 1000:.0f} ms, finish reason {self.reason}"
        )


def check_output(*outputs: Path | None) -> None:
    """Refuse places that cannot be written before a model is loaded for nothing."""
    for output in outputs:
        if output == STDOUT and sys.stdout.isatty():
            raise InvalidRequest("Stdout is a terminal: pipe the samples somewhere.")
        if output is None or output == STDOUT:
            continue
        if output.is_dir():
            raise InvalidRequest(f"{output} is a folder: name a file in it.")
        if not output.parent.is_dir():
            raise InvalidRequest(f"{output} cannot be written: there is no folder {output.parent}.")
        if not os.access(output if output.exists() else output.parent, os.W_OK):
            raise InvalidRequest(f"{output} cannot be written: no permission.")


def read_clip(
    file: Path | None, words: str, silence_ms: int, language: str, limits: Limits, *, alone: bool
) -> Clip | None:
    """The clip of a voice, before a model is loaded for nothing; warnings go to stderr.

    Raises InvalidRequest, and its children, for what is no clip and for options that do not go
    together.
    """
    if file is None:
        if words or alone:
            raise InvalidRequest("--ref-text and --x-vector-only go with --ref-audio.")
        return None
    if not (alone or words.strip()):
        raise InvalidRequest("--ref-audio needs --ref-text, its words, or --x-vector-only.")
    decoder = Decoder(limits)
    try:
        sound = decoder.decode(file.read_bytes())
    finally:
        decoder.close()
    pcm, warnings = prepare(sound, limits, as_it_is=silence_ms == 0)
    text = "" if alone else clean(words, "ref_text")
    if text:
        warnings += check_words(text, len(pcm) / SAMPLE_RATE, language)
    elif words:
        warnings.append("--ref-text is not used: --x-vector-only takes the voice alone")
    for warning in warnings:
        print(f"vivace: {warning}", file=sys.stderr)
    return Clip(pcm, text, silence_ms)


def write_speech(session: "Session", output: Path, dump: Path | None = None) -> Said:
    """Write a session's sound to a WAV file, or as bare s16le samples to stdout if it is `-`.

    No file is touched until there is sound. `dump` gets the model's own output as an .npz: `codes`
    [frames, codebooks], `pcm` [samples] and `prompt_ids`, the text as it was tokenised.
    """
    started_s = time.perf_counter()
    chunks = iter(session)
    first = next(chunks, None)
    first_s = time.perf_counter() - started_s
    heard: list[Chunk] = []
    if first is not None:
        with _sink(output) as write:
            for chunk in chain([first], chunks):
                write(to_s16le(chunk.pcm))
                heard.append(chunk)
    whole_s = time.perf_counter() - started_s
    if dump is not None and heard:
        _dump(dump, heard, session.prompt_ids)
    assert session.done is not None
    audio_s = sum(len(chunk.pcm) for chunk in heard) / SAMPLE_RATE
    return Said(session.done.reason, audio_s, first_s, whole_s)


@contextmanager
def _sink(output: Path) -> Iterator[Callable[[bytes], object]]:
    """Where the samples go, each as soon as it is there."""
    if output == STDOUT:
        yield lambda data: (sys.stdout.buffer.write(data), sys.stdout.buffer.flush())
        return
    with output.open("wb") as file:
        file.write(wav_header())
        try:
            yield file.write
        finally:
            if file.seekable():
                samples = (file.tell() - len(wav_header())) // SAMPLE_BYTES
                file.seek(0)
                file.write(wav_header(samples))


def _dump(path: Path, heard: list[Chunk], prompt_ids: list[int]) -> None:
    with path.open("wb") as file:  # given a path, numpy would add .npz to another name
        np.savez(
            file,
            codes=np.concatenate([chunk.codes for chunk in heard]),
            pcm=np.concatenate([chunk.pcm for chunk in heard]),
            prompt_ids=np.array(prompt_ids, dtype=np.int64),
        )
