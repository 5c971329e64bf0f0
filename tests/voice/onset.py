"""What the trim leaves before the speech of the voice in the box, and what it takes away.

    python tests/voice/onset.py > benchmarks/results/voice_onset.json

Every text of the judge and of the benchmark, in both text modes. Left is counted from the first
sample that is sent: `bench` where `vivace bench` hears speech begin (steps of 10 ms), `fine` the
first 5 ms at -45 dBFS that 20 ms keep (steps of 0.5 ms). Dropped hops of 2.5 ms are given in dBFS,
without the first 10 ms, where the decoder starts up from nothing.
"""

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vivace.audio.onset import FADE, HOP, Onset
from vivace.audio.wav import to_s16le
from vivace.bench import listener
from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.types import SAMPLE_RATE, SAMPLES_PER_FRAME, Pcm, SpeechRequest, TextMode

ROOT = Path(__file__).parents[2]
FRAMES = 60  # of each utterance: its start is all that matters here
START_UP = 4  # hops


def texts() -> list[str]:
    """All English ones."""
    judge = [line for f in sorted(ROOT.glob("training/judge/*.txt")) for line in _lines(f)]
    rows = [line.split("\t") for line in _lines(ROOT / "src/vivace/bench/texts.tsv")]
    return judge + [text for name, text in rows if name.startswith("en-")]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def say(engine: Engine, text: str, seed: int, mode: TextMode) -> Pcm:
    """The sound of one utterance, untrimmed."""
    sampling = replace(engine.defaults, seed=seed, max_frames=FRAMES)
    session = engine.say(text, SpeechRequest(text_mode=mode, sampling=sampling, trim=False))
    return np.concatenate([chunk.pcm for chunk in session])


def trim(pcm: Pcm) -> Pcm:
    """What of it is sent, frame by frame."""
    onset = Onset()
    frames = range(0, len(pcm), SAMPLES_PER_FRAME)
    sent = [onset.feed(pcm[at : at + SAMPLES_PER_FRAME]) for at in frames]
    return np.concatenate([*sent, onset.finish()])


def bench_ms(pcm: Pcm) -> float:
    """Where the benchmark hears it begin."""
    windows = listener.loud(np.frombuffer(to_s16le(pcm), "<i2"), SAMPLE_RATE)
    first = listener.onset(windows, SAMPLE_RATE)
    assert first is not None
    return first / SAMPLE_RATE * 1000


def fine_ms(pcm: Pcm) -> float:
    """Where 5 ms, and the 20 ms that begin with them, first reach -45 dBFS."""
    square = np.concatenate(([0.0], np.cumsum(pcm.astype(np.float64) ** 2)))
    at = np.arange(0, len(pcm) - 480, 12)
    reached = [(square[at + n] - square[at]) / n >= 10**-4.5 for n in (120, 480)]
    return float(at[reached[0] & reached[1]][0]) / SAMPLE_RATE * 1000


def loudest_dropped(pcm: Pcm, dropped: int) -> float:
    """In dBFS; -120 where nothing was."""
    gone = pcm[START_UP * HOP : dropped + FADE]
    hops = gone[: len(gone) // HOP * HOP].reshape(-1, HOP)
    power = (hops.astype(np.float64) ** 2).mean(1).max(initial=0.0)
    return float(10 * np.log10(power + 1e-12))


def piece_us(pcm: Pcm) -> list[float]:
    """Microseconds for each frame fed."""
    onset, taken = Onset(), []
    for at in range(0, len(pcm), SAMPLES_PER_FRAME):
        began = time.perf_counter()
        onset.feed(pcm[at : at + SAMPLES_PER_FRAME])
        taken.append((time.perf_counter() - began) * 1e6)
    return taken


def spread(values: npt.ArrayLike) -> dict[str, float]:
    """Median, p95 and most."""
    p50, p95, most = np.percentile(values, [50, 95, 100])
    return {"p50": round(p50, 2), "p95": round(p95, 2), "max": round(most, 2)}


def measure(engine: Engine, mode: TextMode) -> dict[str, object]:
    """One text mode: every utterance with and without its silence; the rest is the same."""
    with ThreadPoolExecutor(8) as pool:
        said = [pool.submit(say, engine, text, i, mode) for i, text in enumerate(texts())]
        pairs = [(whole.result(), trim(whole.result())) for whole in said]
    dropped = [len(whole) - len(part) for whole, part in pairs]
    for gone, (whole, part) in zip(dropped, pairs, strict=True):
        faded = FADE if gone else 0
        assert np.array_equal(part[faded:], whole[gone + faded :])
    return {
        "utterances": len(pairs),
        "untrimmed_bench_ms": spread([bench_ms(whole) for whole, _ in pairs]),
        "left_bench_ms": spread([bench_ms(part) for _, part in pairs]),
        "left_fine_ms": spread([fine_ms(part) for _, part in pairs]),
        "dropped_ms": spread(np.array(dropped) / SAMPLE_RATE * 1000),
        "loudest_dropped_hop_dbfs": spread(
            [loudest_dropped(whole, gone) for gone, (whole, _) in zip(dropped, pairs, strict=True)]
        ),
        "piece_us": spread([us for whole, _ in pairs for us in piece_us(whole)]),
    }


def main() -> None:
    """Both text modes as JSON."""
    with Engine(config=EngineConfig(max_sessions=8, max_queue=1000, slo_ttfa_s=3600.0)) as engine:
        result = {
            "command": "python tests/voice/onset.py",
            "commit": subprocess.getoutput("git rev-parse --short HEAD"),
            **{mode.value: measure(engine, mode) for mode in TextMode},
        }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
