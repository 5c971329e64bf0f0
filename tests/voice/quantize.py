"""As good with int8 weights? The voice in the box, fp32 against int8, heard by the recogniser.

python tests/voice/quantize.py [--count COUNT] > benchmarks/results/quantize-voice.json
python tests/voice/quantize.py --heard FOLDER... > OUT.json

`--heard` takes what `full_size.py` wrote on a card, a folder for each kind of weight.
"""

import argparse
import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import jiwer
import numpy as np

from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.types import SAMPLE_RATE, FinishReason, SpeechRequest

TRAINING = Path(__file__).parents[2] / "training"


def judge() -> ModuleType:
    """The recogniser that the voice was made with."""
    spec = importlib.util.spec_from_file_location("judge", TRAINING / "judge.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def spoken(texts: Sequence[str], quantize: str) -> tuple[list["np.ndarray"], int]:
    """Their sound, text n with seed n, and how many ended by themselves."""
    config = EngineConfig(quantize=quantize, max_sessions=4, max_queue=500, slo_ttfa_s=3600.0)
    with Engine(config=config) as engine:
        wishes = [replace(engine.defaults, seed=seed) for seed in range(len(texts))]
        sessions = [
            engine.say(text, SpeechRequest(sampling=wish))
            for text, wish in zip(texts, wishes, strict=True)
        ]
        sounds = [np.concatenate([chunk.pcm for chunk in session]) for session in sessions]
        ended = [s.done is not None and s.done.reason is FinishReason.STOP for s in sessions]
    return sounds, sum(ended)


def lines(name: str) -> list[str]:
    """One list of texts."""
    return (TRAINING / "judge" / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def here(count: int, wer: Callable[..., float]) -> Iterator[tuple[str, dict[str, object]]]:
    """What the voice in the box says on this machine, by kind of weight."""
    everyday = lines("everyday")
    texts = [everyday[i % len(everyday)] for i in range(count)]
    for quantize in ("none", "int8"):
        sounds, ended = spoken(texts, quantize)
        yield (
            quantize,
            {
                "wer_percent": wer(texts, sounds),
                "audio_s": round(sum(map(len, sounds)) / SAMPLE_RATE, 1),
                "ended_by_themselves": ended,
            },
        )


def written(
    folders: Sequence[Path], wer: Callable[..., float]
) -> Iterator[tuple[str, dict[str, object]]]:
    """What was said elsewhere, by folder and list of texts."""
    for path in (path for folder in folders for path in sorted(folder.glob("*.npz"))):
        kept = np.load(path)
        sounds = np.split(kept["pcm"].astype(np.float32) / 32768, kept["ends"][:-1])
        row = {
            "wer_percent": wer(lines(path.stem.split("_")[0]), sounds),
            "audio_s": round(len(kept["pcm"]) / SAMPLE_RATE, 1),
        }
        yield f"{path.parent.name}, {path.stem}", row


def main() -> None:
    """Word error rates as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--heard", type=Path, nargs="+")
    args = parser.parse_args()
    ears = judge()
    recogniser = ears.Recogniser()

    def wer(texts: Sequence[str], sounds: Sequence["np.ndarray"]) -> float:
        heard = [ears.normal(recogniser.hear(sound)) for sound in sounds]
        return round(100 * jiwer.wer([ears.normal(text) for text in texts], heard), 2)

    found = written(args.heard, wer) if args.heard else here(args.count, wer)
    about = {
        "command": shlex.join(["python", *sys.argv]),
        "commit": subprocess.getoutput("git rev-parse --short HEAD"),
    }
    print(json.dumps({**about, **dict(found)}, indent=1))


if __name__ == "__main__":
    main()
