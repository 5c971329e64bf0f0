"""How often does the voice miss its end? A thousand seeded requests with and without the cap.

    python tests/voice/runaway.py [COUNT] > benchmarks/results/voice_runaway.json

A runaway is speech that the cap stopped or, without it, that lasted longer than the cap allows.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.text.cap import cap_frames
from vivace.types import FinishReason, SpeechRequest

TEXTS = Path(__file__).parents[2] / "training" / "judge"
MOST_FRAMES = 375  # 30 s


def count(engine: Engine, texts: list[str], requests: int, *, guards: bool) -> dict[str, int]:
    """Requests that ran away, and those that ended at a limit of any kind."""
    limits = runaways = 0
    for start in range(0, requests, 100):
        picked = [(i, texts[i % len(texts)]) for i in range(start, min(start + 100, requests))]
        sessions = [
            (text, engine.say(text, SpeechRequest(sampling=_seeded(engine, i), guards=guards)))
            for i, text in picked
        ]
        for text, session in sessions:
            frames = sum(len(chunk.codes) for chunk in session)
            assert session.done is not None
            limits += session.done.reason is FinishReason.LENGTH
            runaways += frames > cap_frames(text)
    return {"requests": requests, "ended_at_a_limit": limits, "longer_than_the_cap": runaways}


def _seeded(engine: Engine, seed: int):  # type: ignore[no-untyped-def]
    return replace(engine.defaults, seed=seed, max_frames=MOST_FRAMES)


def main() -> None:
    """Both counts as JSON."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    texts = [t for f in sorted(TEXTS.glob("*.txt")) for t in f.read_text().splitlines()]
    with Engine(config=EngineConfig(max_sessions=16, max_queue=100, slo_ttfa_s=3600.0)) as engine:
        result = {
            "command": "python tests/voice/runaway.py " + str(requests),
            "commit": subprocess.getoutput("git rev-parse --short HEAD"),
            "without_guard": count(engine, texts, requests, guards=False),
            "with_guard": count(engine, texts, requests, guards=True),
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
