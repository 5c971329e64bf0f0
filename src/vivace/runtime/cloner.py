"""Takes voices from clips, one at a time, beside the lanes.

A voice is made once and a stream's steps many times, so this work gives way: on the CPU it has one
thread and one core, on a card a stream of the lowest priority, and a clip goes through it in parts
of about a second, between which a step that waits gets its turn.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from vivace.errors import Overloaded, Unavailable
from vivace.model.codec_encoder import CodecEncoder
from vivace.model.speaker import LEAST_SAMPLES, SpeakerEncoder
from vivace.types import SAMPLE_RATE, SAMPLES_PER_FRAME, Clip, Clone, Pcm

MOST_WAITING = 32
AGAIN_S = 2.0  # when to come back, if so many wait


def with_silence(clip: Clip) -> Pcm:
    """The clip's samples and the silence behind them: whole frames, unless none is wanted."""
    if not clip.silence_ms:
        return clip.pcm
    silence = SAMPLE_RATE * clip.silence_ms // 1000
    silence += -(len(clip.pcm) + silence) % SAMPLES_PER_FRAME
    return np.concatenate((clip.pcm, np.zeros(silence, np.float32)))


class Cloner:
    """The encoders of a base checkpoint and the thread they run on."""

    def __init__(self, speaker: SpeakerEncoder, codec: CodecEncoder) -> None:
        self._speaker, self._codec = speaker, codec
        self.device = speaker.out.conv.weight.device
        self._stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device, priority=0)  # type: ignore[no-untyped-call]
        self._thread = ThreadPoolExecutor(1, "vivace-cloner", torch.set_num_threads, (1,))
        self._places = threading.Semaphore(MOST_WAITING)

    def submit(self, clip: Clip) -> "Future[Clone]":
        """Take the clip's voice when those before it are done.

        Raises Overloaded if many wait, Unavailable after `close`.
        """
        if not self._places.acquire(blocking=False):
            text = f"{MOST_WAITING} clips wait to be encoded"
            raise Overloaded(text, retry_after_s=AGAIN_S)
        try:
            future = self._thread.submit(self._clone, clip)
        except RuntimeError:
            self._places.release()
            raise Unavailable("the engine is closed") from None
        future.add_done_callback(lambda _: self._places.release())
        return future

    def warm_up(self) -> None:
        """Encode a second of silence, so that the first clip waits for no set-up."""
        self.submit(Clip(np.zeros(SAMPLE_RATE, np.float32), "warm up")).result()

    def close(self) -> None:
        """Encode no more; what waits is cancelled."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _clone(self, clip: Clip) -> Clone:
        assert len(clip.pcm) >= LEAST_SAMPLES
        try:
            return self._encode(clip)
        except torch.cuda.OutOfMemoryError as error:
            raise Unavailable("the device has no memory left to encode a clip") from error

    @torch.inference_mode()
    def _encode(self, clip: Clip) -> Clone:
        with self._aside():
            x_vector = self._speaker.forward(self._send(clip.pcm)).cpu().numpy()
            if not clip.ref_text:
                return Clone(x_vector)
            codes = self._codec.forward(self._send(with_silence(clip))).cpu().numpy()
        return Clone(x_vector, codes, clip.ref_text)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On a card: its own stream, and convolutions that round nothing to fewer digits.

        That is a setting of the whole process; the lanes' steps are captured graphs, which keep
        what they were captured with.
        """
        if self._stream is None:
            yield
            return
        exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with torch.cuda.stream(self._stream), exact:
            yield

    def _send(self, pcm: Pcm) -> Tensor:
        return torch.tensor(pcm, dtype=torch.float32, device=self.device)
