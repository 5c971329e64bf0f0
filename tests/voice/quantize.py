"""As good with int8 weights? The voice in the box, fp32 against int8, heard by the recogniser.

python tests/voice/quantize.py [COUNT] > benchmarks/results/quantize-voice.json
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
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


def main() -> None:
    """Word error rates as JSON."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    lines = (TRAINING / "judge" / "everyday.txt").read_text(encoding="utf-8").splitlines()
    texts = [lines[i % len(lines)] for i in range(count)]
    ears = judge()
    recogniser, said = ears.Recogniser(), [ears.normal(text) for text in texts]
    result: dict[str, object] = {
        "command": f"python tests/voice/quantize.py {count}",
        "commit": subprocess.getoutput("git rev-parse --short HEAD"),
        "texts": count,
    }
    for quantize in ("none", "int8"):
        sounds, ended = spoken(texts, quantize)
        heard = [ears.normal(recogniser.hear(sound)) for sound in sounds]
        result[quantize] = {
            "wer_percent": round(100 * jiwer.wer(said, heard), 2),
            "audio_s": round(sum(map(len, sounds)) / SAMPLE_RATE, 1),
            "ended_by_themselves": ended,
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
