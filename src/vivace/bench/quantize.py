"""What weights in 8 bits cost and save: a frame's time, memory, and how far codes are off.

    python -m vivace.bench.quantize CHECKPOINT --output benchmarks/results/quantize.json
    python -m vivace.bench.quantize CHECKPOINT --device cuda --output OUT.json

On the CPU everything in one process, turn by turn, since a machine's speed changes: the decode step
of one stream in fp32 and int8, and the codec in fp32 and bfloat16, which runs beside it. On a card
frames are replays of a graph, in bfloat16, int8 and fp8.
"""

import argparse
import copy
import json
import resource
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.bench.kernels import ROWS, Step, speed
from vivace.bench.machine import commit, hardware, versions
from vivace.checkpoint import Model, load
from vivace.model.codec import Codec
from vivace.model.fused import frame, use_kernels
from vivace.model.quant import KINDS, Int8, quantize
from vivace.model.talker import Talker
from vivace.types import FRAME_S

CONTEXT: Final = 100  # positions behind the frame that is timed
LEAST: Final = -1e4  # a logit below says that the id is not there
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


def errors(a: Tensor, b: Tensor) -> dict[str, float]:
    """How far logits b [N, vocab] are off from a, of ids that are not held down as never drawn."""
    drawn = a.amin(0) > LEAST
    a, b = a[:, drawn], b[:, drawn]
    p, q = a.log_softmax(-1), b.log_softmax(-1)
    return {
        "relative_error": round(((a - b).norm() / a.norm()).item(), 4),
        "kl_nats": round(F.kl_div(q, p, log_target=True, reduction="batchmean").item(), 5),
        "same_argmax": round((a.argmax(-1) == b.argmax(-1)).float().mean().item(), 3),
    }


def of_random_codes(model: Model) -> Tensor:
    """First code's logits [64, vocab] after any codes."""
    torch.manual_seed(0)
    ids = torch.randint(0, model.spec.codec_ids.eos, (64,))
    return logits(model.talker, model.talker.codes(ids))


def of_first_codes(talker: Talker, pad: int) -> Tensor:
    """First code's logits [64, vocab] after each of the first codes, over text that has ended."""
    ids = torch.arange(64, device=talker.codec_embedding.weight.device)
    return logits(talker, talker.codes(ids) + talker.text(torch.full_like(ids, pad)))


def logits(talker: Talker, x: Tensor) -> Tensor:
    """First code's logits [N, vocab] of rows that each stand alone at position 0."""
    rope = talker.rope.at(torch.zeros(1, device=x.device), x.dtype)
    groups = talker.spec.heads // talker.spec.kv_heads
    for block in talker.layers:
        x = block(x, rope, lambda q, k, v: v.repeat_interleave(groups, 1).flatten(1))
    return talker.logits(talker.norm(x))


def snr_db(codec: Codec, small: Codec) -> float:
    """How far the codec's sound is off in its other type, on random codes."""
    torch.manual_seed(0)
    codes = torch.randint(0, codec.spec.codebook_size, (1, 32, codec.spec.quantizers))
    a, _ = codec(codes, codec.fresh(1))
    b, _ = small(codes, small.fresh(1))
    return round((20 * torch.log10(a.norm() / (a - b.float()).norm())).item(), 1)


@torch.inference_mode()
def measure_card(path: Path) -> dict[str, object]:
    """Memory, speed and logits of each kind of weight, which are printed as they come."""
    plain = load(path, "cuda", torch.bfloat16)
    pad = plain.spec.text_ids.tts_pad
    wide = of_first_codes(load(path, "cuda", torch.float32).talker, pad)
    near = of_first_codes(plain.talker, pad)
    found: dict[str, object] = {"checkpoint": path.name}
    for kind in ("bf16", *KINDS):
        talker, predictor = copy.deepcopy((plain.talker, plain.predictor))
        if kind != "bf16":
            quantize(talker, predictor, kind)
        off = of_first_codes(talker, pad)
        if not use_kernels(talker, predictor):
            raise SystemExit(f"{kind}: the kernels do not run here")
        found[kind] = row = {
            "talker_and_predictor_mb": size_mb(talker, predictor),
            "first_code_logits": {"from_fp32": errors(wide, off), "from_bf16": errors(near, off)},
            "rows": {rows: _steps(Step(talker, predictor, rows, CONTEXT)) for rows in ROWS},
        }
        print(json.dumps({kind: row}), flush=True)
    return found


def _steps(step: Step) -> dict[str, object]:
    """Milliseconds of a frame and its parts, and each product's microseconds and GB/s."""
    products = {
        name: {kind: speed(*of) for kind, of in step.products(stack).items()}
        for name, stack in (("talker", step.talker), ("predictor", step.predictor))
    }
    return {**step.times(), "products": products}


@torch.inference_mode()
def measure(path: Path, threads: int, rounds: int) -> dict[str, object]:
    """All of it on the CPU, for one checkpoint."""
    torch.set_num_threads(threads)
    plain = load(path, "cpu", torch.float32)
    rounded = load(path, "cpu", torch.float32)
    quantize(rounded.talker, rounded.predictor)
    small = copy.deepcopy(plain.codec).to(torch.bfloat16)
    codes = torch.zeros(1, CHUNK, plain.codec.spec.quantizers, dtype=torch.int64)
    works: dict[str, Callable[[], object]] = {
        "frame, fp32": lambda: frame(plain.talker, plain.predictor, 1, CONTEXT),
        "frame, int8": lambda: frame(rounded.talker, rounded.predictor, 1, CONTEXT),
        f"codec, {CHUNK} frames, fp32": lambda: plain.codec(codes, plain.codec.fresh(1)),
    }
    in_bf16 = torch.cpu._is_avx512_bf16_supported()  # else it takes minutes
    if in_bf16:
        works[f"codec, {CHUNK} frames, bf16"] = lambda: small(codes, small.fresh(1))
    took = times(works, rounds)
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
        "first_code_logits": errors(of_random_codes(plain), of_random_codes(rounded)),
        "codec_bf16_snr_db": snr_db(plain.codec, small) if in_bf16 else None,
    }


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    if args.device == "cuda":
        result = measure_card(args.checkpoint)
    else:
        taken = measure(args.checkpoint, args.threads, args.rounds)
        result = {"rounds": args.rounds, **taken}
    about = {
        "command": shlex.join(["python", "-m", "vivace.bench.quantize", *sys.argv[1:]]),
        "commit": commit(),
        "hardware": hardware(),
        "versions": versions(),
    }
    args.output.write_text(json.dumps(about | result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
