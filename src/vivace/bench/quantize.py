"""What int8 weights cost and save on this CPU: a frame's time, memory, and how far codes are off.

    python -m vivace.bench.quantize CHECKPOINT --output benchmarks/results/quantize.json

Everything in one process, turn by turn, since a machine's speed changes: the decode step of one
stream in fp32 and int8, and the codec in fp32 and bfloat16, which runs beside it.
"""

import argparse
import copy
import json
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.bench.machine import commit, hardware, versions
from vivace.checkpoint import Model, load
from vivace.model.codec import Codec
from vivace.model.fused import frame
from vivace.model.quant import Int8, quantize
from vivace.types import FRAME_S

CONTEXT: Final = 100  # positions behind the frame that is timed
CHUNK: Final = 8  # frames of the codec in one go


def size_mb(*modules: nn.Module) -> float:
    """Megabytes of parameters and buffers, packed weights among them."""
    total = 0
    for module in modules:
        total += sum(
            t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers())
        )
        total += sum(m.shape.numel() for m in module.modules() if isinstance(m, Int8))
    return round(total / 1e6, 1)


def times(works: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each: by the clock, and of the cores' time, which neighbours disturb less."""
    wall: dict[str, list[float]] = {name: [] for name in works}
    core: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            began_s, used_s = time.perf_counter(), time.process_time()
            work()
            if turn:  # the first one warms up
                wall[name].append((time.perf_counter() - began_s) * 1e3)
                core[name].append((time.process_time() - used_s) * 1e3)
    return {
        name: {
            "least_ms": round(min(wall[name]), 1),
            "median_ms": round(sorted(wall[name])[rounds // 2], 1),
            "least_core_ms": round(min(core[name]), 1),
            "median_core_ms": round(sorted(core[name])[rounds // 2], 1),
        }
        for name in works
    }


def errors(plain: Model, rounded: Model) -> dict[str, float]:
    """How far the first codes' logits are off after a frame's worth of every layer."""
    torch.manual_seed(0)
    ids = torch.randint(0, plain.spec.codec_ids.eos, (64,))
    x = plain.talker.codes(ids)
    a, b = (_logits(model, x) for model in (plain, rounded))
    p, q = a.log_softmax(-1), b.log_softmax(-1)
    return {
        "relative_error": round(((a - b).norm() / a.norm()).item(), 4),
        "kl_nats": round(F.kl_div(q, p, log_target=True, reduction="batchmean").item(), 5),
        "same_argmax": round((a.argmax(-1) == b.argmax(-1)).float().mean().item(), 3),
    }


def _logits(model: Model, x: Tensor) -> Tensor:
    """First code's logits [N, vocab] of rows that each stand alone at position 0."""
    rope = model.talker.rope.at(torch.zeros(1), x.dtype)
    groups = model.spec.talker.heads // model.spec.talker.kv_heads
    for block in model.talker.layers:
        x = block(x, rope, lambda q, k, v: v.repeat_interleave(groups, 1).flatten(1))
    return model.talker.logits(model.talker.norm(x))


def snr_db(codec: Codec, small: Codec) -> float:
    """How far the codec's sound is off in its other type, on random codes."""
    torch.manual_seed(0)
    codes = torch.randint(0, codec.spec.codebook_size, (1, 32, codec.spec.quantizers))
    a, _ = codec(codes, codec.fresh(1))
    b, _ = small(codes, small.fresh(1))
    return round((20 * torch.log10(a.norm() / (a - b.float()).norm())).item(), 1)


@torch.inference_mode()
def measure(path: Path, threads: int, rounds: int) -> dict[str, object]:
    """All of it, for one checkpoint."""
    torch.set_num_threads(threads)
    plain = load(path, "cpu", torch.float32)
    rounded = load(path, "cpu", torch.float32)
    quantize(rounded.talker, rounded.predictor)
    small = copy.deepcopy(plain.codec).to(torch.bfloat16)
    codes = torch.zeros(1, CHUNK, plain.codec.spec.quantizers, dtype=torch.int64)
    took = times(
        {
            "frame, fp32": lambda: frame(plain.talker, plain.predictor, 1, CONTEXT),
            "frame, int8": lambda: frame(rounded.talker, rounded.predictor, 1, CONTEXT),
            f"codec, {CHUNK} frames, fp32": lambda: plain.codec(codes, plain.codec.fresh(1)),
            f"codec, {CHUNK} frames, bf16": lambda: small(codes, small.fresh(1)),
        },
        rounds,
    )
    return {
        "checkpoint": path.name,
        "threads": threads,
        "frame_s": FRAME_S,
        "talker_and_predictor_mb": {
            "fp32": size_mb(plain.talker, plain.predictor),
            "int8": size_mb(rounded.talker, rounded.predictor),
        },
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        "times": took,
        "first_code_logits": errors(plain, rounded),
        "codec_bf16_snr_db": snr_db(plain.codec, small),
    }


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    result = measure(args.checkpoint, args.threads, args.rounds)
    command = f"python -m vivace.bench.quantize CHECKPOINT --threads {args.threads}"
    about = {
        "command": command,
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
        "rounds": args.rounds,
    }
    args.output.write_text(json.dumps(about | result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
