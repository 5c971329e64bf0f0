"""How fast the codec of the published shape is on this card, plain and fused, graph by graph.

    python benchmarks/codec.py > benchmarks/results/codec-h200.json

Random weights; milliseconds are medians. `snr_db` is against fp32 on the same random codes.
"""

import json
import math
import statistics
import subprocess
import time
from collections.abc import Callable

import torch
from torch import Tensor

from vivace.model.codec import Codec
from vivace.model.codec_fused import FusedCodec
from vivace.model.layers import Rope
from vivace.model.spec import CodecSpec
from vivace.types import FRAME_S

SPEC = CodecSpec(
    1024, 512, 2048, 16, 1, 1536, 512, 1024, 8, 16, 16, 64, 72, 1e4, 1e-5, (8, 5, 4, 3), (2, 2), {}
)  # fmt: skip
SHAPES = [(1, 1), (1, 2), (1, 4), (4, 1), (8, 1), (8, 4), (16, 2), (32, 1), (32, 4), (32, 12)]
SHAPES += [(64, 4), (128, 1)]
PLAIN = [(1, 1), (8, 4), (32, 12)]
SLOTS = 128


def random_codec() -> Codec:
    """Weights of about unit gain in every layer."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        codec = Codec(SPEC)
    for name, p in codec.named_parameters():
        if name == "codebooks":
            torch.nn.init.normal_(p, std=0.25)
        elif p.dim() == 3:
            fan = 2 * p.shape[0] if "up.conv" in name else p[0].numel()
            torch.nn.init.normal_(p, std=(0.4 if "conv2" in name else 1.0) * fan**-0.5)
        elif p.dim() == 2 and p.shape[1] > 1:
            torch.nn.init.normal_(p, std=p.shape[0] ** -0.5)
        elif name.endswith("gain"):
            torch.nn.init.constant_(p, 0.3)
        elif name.endswith("bias"):
            torch.nn.init.normal_(p, std=0.02)
    codec.transformer.rope = Rope(SPEC.head_dim, SPEC.rope_theta, "cuda")
    return codec.requires_grad_(False)


def median_ms(call: Callable[[], object], times: int = 30) -> float:
    """Of calls one after the other, by events."""
    taken = []
    for _ in range(times + 3):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begun.record()
        call()
        ended.record()
        ended.synchronize()
        taken.append(begun.elapsed_time(ended))
    return round(statistics.median(taken[3:]), 4)


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """The call as one graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def some_codes(rows: int, frames: int) -> Tensor:
    """Random ones."""
    return torch.randint(0, SPEC.codebook_size, (rows, frames, SPEC.quantizers), device="cuda")


def row(variant: str, rows: int, frames: int, ms: float) -> dict[str, object]:
    """One line of the table."""
    speed = round(rows * frames * FRAME_S * 1e3 / ms)
    return {"variant": variant, "rows": rows, "frames": frames, "ms": ms, "x_real_time": speed}


def plain(dtype: torch.dtype) -> list[dict[str, object]]:
    """The codec in plain torch: launched, and as a graph."""
    codec, out = random_codec(), []
    rope = codec.transformer.rope
    codec.to(dtype)
    codec.transformer.rope = rope
    kind = str(dtype).removeprefix("torch.")
    for rows, frames in PLAIN:
        codes, state = some_codes(rows, frames), codec.fresh(rows)
        call = lambda codes=codes, state=state: codec(codes, state)  # noqa: E731
        out.append(row(f"plain {kind}", rows, frames, median_ms(call)))
        out.append(row(f"plain {kind}, graph", rows, frames, median_ms(captured(call))))
    return out


def fused(dtype: torch.dtype, shapes: list[tuple[int, int]]) -> list[dict[str, object]]:
    """The fused codec, as graphs."""
    codec, out = FusedCodec(random_codec(), SLOTS, dtype), []
    codec.compile(shapes)
    kind = str(dtype).removeprefix("torch.")
    for rows, frames in shapes:
        codes, slots = some_codes(rows, frames), torch.arange(rows, device="cuda")
        replay = captured(lambda codes=codes, slots=slots: codec(codes, slots))
        out.append(row(f"fused {kind}, graph", rows, frames, median_ms(replay)))
    return out


def snr_db(dtype: torch.dtype) -> float:
    """Over 32 frames of four rows in chunks of four."""
    codec = random_codec()
    ours, state, slots = FusedCodec(codec, 4, dtype), codec.fresh(4), torch.arange(4, device="cuda")
    ours.compile([(4, 4)])
    signal = noise = 0.0
    for _ in range(8):
        codes = some_codes(4, 4)
        pcm = ours(codes, slots)
        expected, state = codec(codes, state)
        signal += expected.square().sum().item()
        noise += (pcm - expected).square().sum().item()
    return round(10 * math.log10(signal / noise), 1)


@torch.inference_mode()
def main() -> None:
    """All variants as JSON."""
    fresh = FusedCodec(random_codec(), SLOTS)
    began = time.perf_counter()
    fresh.compile(SHAPES)
    compiled_s = round(time.perf_counter() - began, 1)
    variants = [*plain(torch.float32), *plain(torch.float16)]
    variants += [*fused(torch.float16, SHAPES), *fused(torch.bfloat16, PLAIN)]
    result = {
        "command": "python benchmarks/codec.py",
        "commit": subprocess.getoutput("git rev-parse --short HEAD"),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "compiled_s": compiled_s,  # for all shapes below, or loaded if they were compiled before
        "snr_db": {str(dtype): snr_db(dtype) for dtype in (torch.float16, torch.bfloat16)},
        "variants": variants,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
