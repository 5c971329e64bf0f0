"""How near does good speech come to the guards? Its longest silences and repetitions, measured.

    python tests/voice/guards.py [SHORT LONG] > benchmarks/results/guards.json

SHORT seeded requests of a word or two, LONG ones of several sentences, guards on: whom they stop,
and of those whom they do not the longest run of silent frames, wherever it is, and of first codes
that each equal the one a period before, for any period that the guard looks at.
"""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from vivace.audio.guards import SILENT, powers
from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.types import Chunk, SpeechRequest

TEXTS = Path(__file__).parents[2] / "training" / "judge"
SHORT = ["Hi!", "Why?", "Yes.", "No.", "Bye.", "A", "7", "42", "Thank you.", "2 cups"]
PERIODS = range(1, 26)


def longest(flags: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> int:
    """The longest run of true ones."""
    best = run = 0
    for flag in flags:
        run = run + 1 if flag else 0
        best = max(best, run)
    return best


def measured(chunks: list[Chunk]) -> tuple[int, int]:
    """Frames of the longest silence anywhere, and of the longest repetition."""
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    codes = np.concatenate([chunk.codes for chunk in chunks])[:, 0]
    silence = longest(powers(pcm[None, : len(pcm) // 1920 * 1920])[0] < SILENT)
    return silence, max(longest(codes[p:] == codes[:-p]) for p in PERIODS)


def speak(engine: Engine, texts: list[str]) -> dict[str, object]:
    """All of them, a number for a seed."""
    silences, loops, cuts, redraws = [], [], Counter[str](), 0
    for start in range(0, len(texts), 50):
        sessions = [
            engine.say(
                text,
                SpeechRequest(sampling=replace(engine.defaults, seed=seed), trim=False),
            )
            for seed, text in enumerate(texts[start : start + 50], start)
        ]
        for session in sessions:
            silence, loop = measured(list(session))
            assert session.done is not None
            silences.append(silence)
            loops.append(loop)
            cuts[session.done.cut or "none"] += 1
            redraws += session.done.redraws
    return {
        "requests": len(texts),
        "silent_frames": {"p50": float(np.median(silences)), "most": max(silences)},
        "repeated_codes": {"p50": float(np.median(loops)), "most": max(loops)},
        "cuts": dict(cuts),
        "redraws": redraws,
    }


def main() -> None:
    """Both kinds of text as JSON."""
    short, long = (int(n) for n in sys.argv[1:3]) if len(sys.argv) > 2 else (300, 60)
    lines = [t for f in sorted(TEXTS.glob("*.txt")) for t in f.read_text().splitlines()]
    texts = {
        "short": [SHORT[i % len(SHORT)] for i in range(short)],
        "long": [" ".join(lines[(i + k) % len(lines)] for k in range(6)) for i in range(long)],
    }
    with Engine(config=EngineConfig(max_sessions=16, max_queue=100, slo_ttfa_s=3600.0)) as engine:
        result: dict[str, object] = {
            "command": f"python tests/voice/guards.py {short} {long}",
            "commit": subprocess.getoutput("git rev-parse --short HEAD"),
        }
        for name, some in texts.items():
            result[name] = speak(engine, some)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
