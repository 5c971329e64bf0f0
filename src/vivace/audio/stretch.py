"""Faster or slower speech at the same pitch, in the stream: FFmpeg's atempo filter."""

from fractions import Fraction

import av
import av.filter
import numpy as np

from vivace.types import SAMPLE_RATE, Pcm

SLOWEST_STEP = 0.5  # the slowest that one atempo does; two of them do a quarter
_BLOCK = 240  # samples a push: what atempo makes of a sound goes with how it is cut
_TAIL = np.zeros(SAMPLE_RATE // 4, np.float32)  # pushes out what the filter would keep to itself


class Stretch:
    """Speech at `speed` times its pace, 0.25 to 4.

    n samples become round(n / speed), however they come; about 100 ms are on their way inside.
    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._taken = self._pushed = self._given = 0
        self._waiting: Pcm = np.zeros(0, np.float32)
        self._graph = _graph(speed)

    def feed(self, pcm: Pcm) -> Pcm:
        """What these samples [n] complete."""
        self._taken += len(pcm)
        self._push_blocks(pcm)
        out = self._pull()
        self._given += len(out)
        return out

    def finish(self) -> Pcm:
        """The rest, to the exact sample."""
        owed = round(self._taken / self._speed) - self._given
        for _ in range(1 + int(self._speed)):
            self._push_blocks(_TAIL)
        self._graph.push(None)
        return self._pull()[:owed]

    def _push_blocks(self, pcm: Pcm) -> None:
        waiting = np.concatenate([self._waiting, pcm])
        whole = len(waiting) // _BLOCK * _BLOCK
        for start in range(0, whole, _BLOCK):
            self._push(waiting[start : start + _BLOCK])
        self._waiting = waiting[whole:]

    def _push(self, block: Pcm) -> None:
        frame = av.AudioFrame.from_ndarray(block[None], format="flt", layout="mono")
        frame.sample_rate, frame.pts = SAMPLE_RATE, self._pushed
        frame.time_base = Fraction(1, SAMPLE_RATE)
        self._pushed += len(block)
        self._graph.push(frame)

    def _pull(self) -> Pcm:
        pieces: list[Pcm] = [np.zeros(0, np.float32)]
        while True:
            try:
                frame = self._graph.pull()
            except (BlockingIOError, EOFError):
                return np.concatenate(pieces)
            assert isinstance(frame, av.AudioFrame)
            pieces.append(frame.to_ndarray()[0])


def _graph(speed: float) -> av.filter.Graph:
    graph = av.filter.Graph()
    chain = [
        graph.add_abuffer(
            sample_rate=SAMPLE_RATE,
            format="flt",
            layout="mono",
            time_base=Fraction(1, SAMPLE_RATE),
        )
    ]
    while speed < SLOWEST_STEP:
        chain.append(graph.add("atempo", str(SLOWEST_STEP)))
        speed /= SLOWEST_STEP
    chain += [graph.add("atempo", repr(speed)), graph.add("abuffersink")]
    graph.link_nodes(*chain).configure()
    return graph
