"""Speak the texts with hibari-tts on many cores, as shards of int16 audio cut to whole frames.

    python speech.py --texts train.txt --out /dev/shm/speech --workers 13 --seconds 400

A shard `speech_*.npz` holds `index` (line numbers in the text file), `frames` (80 ms frames of each
clip) and `audio` (the clips one after the other, 24 kHz). DONE says that no more come.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt

RATE, FRAME = 24_000, 1_920
GAIN = 2.0  # the voice peaks at about 0.4
AUDIBLE = 0.004  # mean magnitude over 10 ms that counts as sound
HEAD_S, TAIL_S = 0.015, 0.12
MAX_FRAMES = 250
Audio = npt.NDArray[np.float32]


def cut(sound: Audio) -> Audio | None:
    """Speech from 15 ms before its onset to 120 ms after its end, in whole frames."""
    level = np.convolve(np.abs(sound), np.ones(240, np.float32) / 240, "same")
    audible = np.flatnonzero(level > AUDIBLE)
    if len(audible) == 0:
        return None
    start = max(0, audible[0] - int(HEAD_S * RATE))
    sound = sound[start : audible[-1] + int(TAIL_S * RATE)].copy()
    fade = min(240, len(sound))
    ramp = np.linspace(0, 1, fade, dtype=np.float32)
    sound[:fade] *= ramp
    sound[-fade:] *= ramp[::-1]
    return np.pad(sound, (0, -len(sound) % FRAME))


@dataclass
class Shard:
    """Clips waiting to be written."""

    index: list[int] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    audio: list[npt.NDArray[np.int16]] = field(default_factory=list)

    def add(self, index: int, sound: Audio) -> None:
        self.index.append(index)
        self.frames.append(len(sound) // FRAME)
        self.audio.append((np.clip(sound, -1, 1) * 32767).astype(np.int16))

    def seconds(self) -> float:
        return sum(self.frames) * FRAME / RATE

    def write(self, path: Path) -> None:
        """Under another name first, so that a reader never sees half a file."""
        part = path.with_name(f"part_{path.name}")
        np.savez(
            part,
            index=np.array(self.index, np.int32),
            frames=np.array(self.frames, np.int32),
            audio=np.concatenate(self.audio),
        )
        part.rename(path)


def clips(lines: list[str], numbers: range, seed: int) -> Iterator[tuple[int, Audio]]:
    """Speak the lines of these numbers; those the voice cannot say are left out."""
    from hibari import Hibari

    voice = Hibari()
    for i in numbers:
        sound = cut(GAIN * np.asarray(voice(lines[i], seed=seed + i), np.float32))
        if sound is not None and 4 <= len(sound) // FRAME <= MAX_FRAMES:
            yield i, sound


def work(worker: int, args: argparse.Namespace, lines: list[str], start: float) -> None:
    shard, count, wanted = Shard(), 0, 120.0
    for i, sound in clips(lines, range(worker, len(lines), args.workers), args.seed):
        shard.add(i, sound)
        late = time.time() - start > args.seconds
        if late or shard.seconds() > wanted:
            shard.write(args.out / f"speech_{worker:02}_{count:04}.npz")
            shard, count, wanted = Shard(), count + 1, 600.0
        if late:
            return
    if shard.index:
        shard.write(args.out / f"speech_{worker:02}_{count:04}.npz")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this long")
    parser.add_argument("--limit", type=int, default=None, help="speak only so many lines")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    lines, start = args.texts.read_text().splitlines()[: args.limit], time.time()
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=work, args=(w, args, lines, start)) for w in range(args.workers)
    ]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    (args.out / "DONE").touch()
    print(f"speech: done after {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
