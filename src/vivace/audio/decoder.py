"""Files of sound into samples, each in a process that ends with it, or is ended.

A parser as large as FFmpeg is not asked to behave: a file gets so many bytes, seconds and so much
memory, and what exceeds them is killed. Limits inside our own process would not stop a call that
does not come back, nor a crash. To start a process takes a quarter of a second, so one waits ready.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import weakref
from dataclasses import dataclass

import numpy as np

from vivace.config import Limits
from vivace.errors import EngineFailure, TooLarge, Unprocessable
from vivace.types import Pcm

KNOWN = "WAV, MP3, M4A or MP4, Ogg (Opus, Vorbis, FLAC), FLAC, WebM, AAC, AIFF and CAF"
PARAM = "ref_audio"
TOO_LONG = "it took too long to decode"


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """A decoded file: mono samples [N], -1..1, at its own rate."""

    pcm: Pcm
    rate: int


class Decoder:
    """Decodes files, from any thread, one a call.

    The process that waits for the next one ends with `close`, with this object or with us.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._ready: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self.close = weakref.finalize(self, _end_all, self._ready)

    def prepare(self) -> None:
        """Start a process for the next file, if none waits."""
        if self._ready.empty() and self.close.alive:
            self._ready.put(self._start())

    def decode(self, data: bytes) -> Sound:
        """The sound of a file.

        Raises TooLarge, and Unprocessable for what is no sound, takes too long or is too long.
        """
        most = self._limits.clip_bytes
        if len(data) > most:
            raise TooLarge(
                f"`{PARAM}` has {len(data):,} bytes; the limit is {most:,}.",
                param=PARAM,
                code="clip_too_large",
            )
        answer = self._ask(data)
        line, _, samples = answer.partition(b"\n")
        if not line:
            raise _no_sound("its decoding broke down: it is damaged, or takes too much memory")
        head = json.loads(line)
        if "error" in head:
            raise _no_sound(head["error"])
        return Sound(np.frombuffer(samples, np.float32), head["rate"])

    def _ask(self, data: bytes) -> bytes:
        """What the process answers; nothing if it fell. Raises Unprocessable if time was up."""
        process = self._take()
        try:
            answer, _ = process.communicate(data, timeout=self._limits.clip_decode_s)
        except subprocess.TimeoutExpired:
            raise _no_sound(TOO_LONG) from None
        finally:
            _end(process)
            self.prepare()
        if process.returncode == -signal.SIGXCPU:
            raise _no_sound(TOO_LONG)
        return answer if process.returncode == 0 else b""

    def _take(self) -> "subprocess.Popen[bytes]":
        with contextlib.suppress(queue.Empty):
            while (ready := self._ready.get_nowait()).poll() is not None:
                _end(ready)  # it has fallen while it waited: an interrupt reaches it too
            return ready
        return self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        seconds = str(self._limits.clip_max_s)
        # It needs to find this package, and nothing else of what surrounds us.
        kept = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "vivace.audio.decoding", seconds],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=kept,
            )
        except OSError as error:
            raise EngineFailure(f"no process to decode sound with: {error}") from error


def _end_all(ready: "queue.SimpleQueue[subprocess.Popen[bytes]]") -> None:
    while not ready.empty():
        _end(ready.get_nowait())


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill it if it lives, and give back what it held."""
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # of a write that never went through
                pipe.close()
    process.wait()


def _no_sound(why: str) -> Unprocessable:
    return Unprocessable(
        f"`{PARAM}` cannot be used: {why}. Formats: {KNOWN}.", param=PARAM, code="clip_unreadable"
    )
