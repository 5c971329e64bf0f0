"""The voice in the box at full size on one card: writes what it says, to be judged elsewhere.

    python tests/voice/full_size.py CHECKPOINT OUT [--device cuda] [--quantize none int8 fp8]
    python tests/voice/quantize.py --heard OUT/none OUT/int8 OUT/fp8

CHECKPOINT is written with `vivace synth-checkpoint CHECKPOINT --from embedded` if it is not there.
OUT gets a folder for each kind of weight, with one .npz for each list of texts and text mode: `pcm`
s16 [samples], `ends` [texts].
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from vivace.checkpoint.embedded import embedded
from vivace.checkpoint.widen import write_widened
from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.types import SAMPLE_RATE, SpeechRequest, TextMode

TEXTS = Path(__file__).parents[2] / "training" / "judge"


def speak(engine: Engine, name: str, mode: TextMode, out: Path) -> dict[str, object]:
    """All texts of one list at once; seeds are their numbers, as in the other tests."""
    texts = (TEXTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    started = time.perf_counter()
    sessions = [
        engine.say(text, SpeechRequest(text_mode=mode, sampling=replace(engine.defaults, seed=i)))
        for i, text in enumerate(texts)
    ]
    sounds = [np.concatenate([chunk.pcm for chunk in session]) for session in sessions]
    took_s = time.perf_counter() - started
    pcm = np.clip(np.concatenate(sounds) * 32767, -32768, 32767).astype("<i2")
    np.savez(out / f"{name}_{mode.value}.npz", pcm=pcm, ends=np.cumsum([len(s) for s in sounds]))
    audio_s = len(pcm) / SAMPLE_RATE
    return {"texts": f"{name} {mode.value}", "audio_s": audio_s, "x_realtime": audio_s / took_s}


def main() -> None:
    """Write, load, speak, and print one JSON line for each list."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quantize", nargs="+", default=["none"])
    parser.add_argument("--texts", nargs="+", default=["everyday", "digits"])
    parser.add_argument("--modes", nargs="+", type=TextMode, default=list(TextMode))
    args = parser.parse_args()
    started = time.perf_counter()
    if not args.checkpoint.exists():
        write_widened(args.checkpoint, embedded(), size="1.7b")
    print(f"written after {time.perf_counter() - started:.0f} s", flush=True)
    config = EngineConfig(device=args.device, max_sessions=16, max_queue=100, slo_ttfa_s=3600.0)
    for kind in args.quantize:
        out = args.out / kind
        out.mkdir(parents=True, exist_ok=True)
        with Engine(args.checkpoint, config=replace(config, quantize=kind)) as engine:
            print(f"{kind}: ready after {time.perf_counter() - started:.0f} s", flush=True)
            for name in args.texts:
                for mode in args.modes:
                    print(json.dumps(speak(engine, name, mode, out)), flush=True)


if __name__ == "__main__":
    main()
