"""How soon speech that was made before begins: first bytes of hits, over HTTP on this machine.

    PYTHONPATH=. python benchmarks/cache.py --output benchmarks/results/cache.json

A tone stands for speech; the engine is asked once.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import httpx
from tests.fakes import FakeEngine, Play
from tests.server.live import serving

from vivace.audio.encode import warm
from vivace.bench.machine import command, commit, hardware, versions
from vivace.config import ServerConfig
from vivace.types import FRAME_S

SPEECH = "/v1/audio/speech"
FORMATS = ("pcm", "wav", "mp3", "opus", "flac")


def first_ms(client: httpx.Client, body: dict[str, object]) -> tuple[str, float]:
    """Hit or miss, and milliseconds from the request to the first bytes of its answer."""
    started_s = time.perf_counter()
    with client.stream("POST", SPEECH, json=body) as reply:
        pieces = reply.iter_raw()
        next(pieces)
        took_ms = (time.perf_counter() - started_s) * 1e3
        for _ in pieces:
            pass
        return reply.headers["x-vivace-cache"], took_ms


def hits_ms(client: httpx.Client, form: str, rounds: int) -> list[float]:
    """The times of so many hits, shortest first."""
    body: dict[str, object] = {"input": "Hello.", "response_format": form}
    while first_ms(client, body)[0] == "miss":
        pass  # it is being kept
    took = [first_ms(client, body) for _ in range(rounds)]
    assert all(kind == "hit" for kind, _ in took)
    return sorted(ms for _, ms in took)


def measure(rounds: int, audio_s: float) -> dict[str, dict[str, float]]:
    """First bytes of hits in each format."""
    figures = {}
    engine = FakeEngine()
    engine.play = Play(chunks=round(audio_s / FRAME_S))
    with tempfile.TemporaryDirectory() as folder:
        config = ServerConfig(cache_dir=Path(folder), cache=True)
        with serving(engine, config) as live, httpx.Client(base_url=live.url) as client:
            for form in FORMATS:
                took = hits_ms(client, form, rounds)
                figures[form] = {
                    "p50_ms": round(statistics.median(took), 2),
                    "p99_ms": round(took[int(0.99 * rounds)], 2),
                }
    return figures


def about() -> dict[str, object]:
    """Where and how it was measured."""
    return {
        "command": command(),
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
    }


def main() -> None:
    """Measure, print, write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=300)
    options.add_argument("--audio-s", type=float, default=10.0)
    options.add_argument("--output", type=Path)
    asked = options.parse_args()
    warm()
    figures = {"audio_s": asked.audio_s, "hits": measure(asked.rounds, asked.audio_s)}
    print(json.dumps(figures, indent=2))
    if asked.output is not None:
        asked.output.write_text(json.dumps(about() | figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
