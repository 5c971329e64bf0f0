"""The codec's kernels against their twins, and the fused codec against the codec."""

import importlib
import importlib.util
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vivace.checkpoint import load
from vivace.checkpoint.embedded import embedded
from vivace.config import EngineConfig
from vivace.engine import Engine
from vivace.model.codec import Codec
from vivace.model.spec import CodecSpec
from vivace.types import Codes, SpeechRequest, TextMode

if importlib.util.find_spec("triton") is None:
    pytest.skip("kernels need Triton", allow_module_level=True)


def _interpreted() -> tuple[ModuleType, ModuleType]:
    """The kernels and their codec; without a card, for Triton's interpreter."""
    importlib.import_module("triton.experimental.gluon")  # else the first launch does so
    names = ("vivace.kernels.codec", "vivace.model.codec_fused")
    kernels, fused = map(importlib.import_module, names)
    return kernels, fused


kernels, codec_fused = _interpreted()
Conv, Memory, FusedCodec = kernels.Conv, kernels.Memory, codec_fused.FusedCodec


# As small as tiles allow: a window of 12, two layers with shared key heads, two stages.
SMALL = CodecSpec(
    32, 32, 64, 16, 1, 64, 32, 48, 2, 4, 2, 8, 12, 1e4, 1e-5, (2, 2), (2, 2), {}
)  # fmt: skip


@pytest.fixture(autouse=True)
def exact_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card the library's convolutions would round their inputs."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def some(*shape: int, seed: int = 0, device: str = "cpu") -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def memory(size: int, device: str, slots: int = 4) -> Memory:
    """One that has seen something, its slots on different sides and at different positions."""
    return Memory(
        some(2, slots, size, seed=1, device=device),
        some(1, slots, 32, 16, seed=2, device=device),
        some(1, slots, 32, 16, seed=3, device=device),
        torch.tensor([0, 1, 2, 5], dtype=torch.int32, device=device),
        torch.tensor([0, 3, 31, 100], dtype=torch.int32, device=device),
    )


def assert_same(memory: Memory, expected: Memory) -> None:
    for name in Memory.__slots__:
        ours, theirs = getattr(memory, name), getattr(expected, name)
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


@pytest.mark.parametrize(("taps", "dilation"), [(1, 1), (2, 1), (3, 1), (7, 1), (7, 9)])
@pytest.mark.parametrize(("rows", "time"), [(1, 1), (2, 3), (3, 40)])
def test_convolution_is_its_twin(
    device: str, taps: int, dilation: int, rows: int, time: int
) -> None:
    """With a history longer than the chunk and shorter, in slots of any order and side."""
    bias, snake = some(48, device=device), [some(24, seed=i, device=device) for i in (5, 6)]
    conv = kernels.Conv(some(taps * 32, 48, device=device), bias, taps, dilation, offset=16)
    slots = torch.tensor([3, 1, 0][:rows], device=device)
    x, residual = some(rows, time, 32, seed=7, device=device), some(rows, time, 48, device=device)
    ours, theirs = (memory(16 + 32 * 54, device) for _ in range(2))
    options: dict[str, Any] = {"residual": residual, "snake": kernels.Snake(*snake)}
    out = kernels.convolve(x, conv, ours, slots, **options)
    expected = twin(x, conv, theirs, slots, **options)
    for a, b in zip(out, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-4)
    assert_same(ours, theirs)


def twin(x: Tensor, conv: kernels.Conv, memory: Memory, slots: Tensor, **options: Any) -> Any:
    """The same call on the plain twin."""
    names = ("norm_eps", "gated", "gelu", "residual", "clamp", "snake", "keep", "out_dtype")
    base = {"gated": False, "gelu": False, "clamp": False, "keep": True} | options
    return kernels._convolve_twin(x, conv, memory, slots, *(base.get(name) for name in names))


@pytest.mark.parametrize(
    "options",
    [{"norm_eps": 1e-5}, {"gelu": True}, {"clamp": True}, {"gated": True}, {"keep": False}],
    ids=str,
)
def test_what_comes_before_and_after_is_its_twin(device: str, options: dict[str, Any]) -> None:
    conv = kernels.Conv(some(32, 48, device=device), None)
    x = some(2, 5, 64 if "gated" in options else 32, device=device)
    if "keep" in options:
        options = options | {
            "snake": kernels.Snake(some(48, device=device), some(48, device=device))
        }
    slots = torch.tensor([3, 1], device=device)
    m = memory(16, device)
    for a, b in zip(
        kernels.convolve(x, conv, m, slots, **options), twin(x, conv, m, slots, **options),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-4)


def test_fp16_saturates(device: str) -> None:
    conv = Conv(some(32, 16, device=device).mul(1e4).half(), None)
    x, slots = some(1, 2, 32, device=device).half(), torch.tensor([0], device=device)
    for call in (kernels.convolve, twin):
        out, _ = call(x, conv, memory(16, device), slots)
        assert out.abs().max() == 65504.0


@pytest.mark.parametrize("time", [1, 4, 9])
def test_depthwise_convolution_is_its_twin(monkeypatch: pytest.MonkeyPatch, time: int) -> None:
    parts = [some(40, seed=i) for i in range(3)]
    layer = kernels.Depthwise(some(7, 40), *parts, 1e-6, 8)
    ours, theirs = (memory(8 + 6 * 40, "cpu") for _ in range(2))
    x, slots = some(2, time, 40, seed=9), torch.tensor([3, 1])
    out = on_device(kernels.refine, x, layer, ours, slots)
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    expected = kernels.refine(x, layer, theirs, slots)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    assert_same(ours, theirs)


@pytest.mark.parametrize("time", [1, 5, 20])
def test_attention_is_its_twin(monkeypatch: pytest.MonkeyPatch, time: int) -> None:
    """At the start, inside the first window, past the ring's end, far on."""
    window = kernels.Window(4, 2, 8, 12, 1e4 ** -(torch.arange(0, 8, 2) / 8))
    ours, theirs = memory(16, "cpu"), memory(16, "cpu")
    qkv, slots = some(4, time, 64), torch.tensor([3, 1, 2, 0])
    out = on_device(kernels.attend, qkv, window, 0, ours, slots)
    monkeypatch.setattr(kernels, "INTERPRETED", False)
    expected = kernels.attend(qkv, window, 0, theirs, slots)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    assert_same(ours, theirs)


def on_device(call: Any, *args: Any) -> Tensor:
    """The call's result; on a card its arguments go there and the memory comes back."""
    if not torch.cuda.is_available():
        out: Tensor = call(*args)
        return out
    moved = [move(arg) for arg in args]
    out = call(*moved).cpu()
    for arg, there in zip(args, moved, strict=True):
        if isinstance(arg, Memory):
            for name in Memory.__slots__:
                getattr(arg, name).copy_(getattr(there, name))
    return out


def move(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cuda()
    if hasattr(value, "__slots__"):
        return type(value)(*(move(getattr(value, name)) for name in value.__slots__))
    return value


@pytest.fixture(scope="module")
def small() -> Codec:
    """A codec of random weights whose every layer is heard."""
    torch.manual_seed(0)
    codec = Codec(SMALL)
    for name, p in codec.named_parameters():
        if "norm" not in name:
            fan = p[0].numel() if p.dim() == 3 else p.shape[0]
            torch.nn.init.normal_(p, std=0.5 if "conv2" in name else 1.0)
            p.data.mul_(fan**-0.5 if p.dim() > 1 and p.shape[-1] > 1 else 0.3)
    torch.nn.init.normal_(codec.last.conv.weight, std=0.01)
    return codec.requires_grad_(False)


def codes_of(codec: Codec, rows: int, frames: int) -> Tensor:
    rng = torch.Generator().manual_seed(rows)
    return torch.randint(0, codec.spec.codebook_size, (rows, frames, 16), generator=rng)


def streamed(fused: Any, codes: Tensor, slots: Tensor, chunks: Sequence[int]) -> Tensor:
    at, pieces = 0, list[Tensor]()
    for frames in chunks:
        pieces.append(fused(codes[:, at : at + frames], slots))
        at += frames
    return torch.cat(pieces, 1)


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, the kernels' twins run."""
    monkeypatch.setattr(kernels, "INTERPRETED", False)


@pytest.fixture(params=["twins", "kernels"])
def fused(request: pytest.FixtureRequest, small: Codec, device: str) -> Any:
    if request.param == "twins":
        request.getfixturevalue("twins")
        return FusedCodec(small, 4, torch.float32)
    assert device == "cuda" or kernels.INTERPRETED
    return FusedCodec(deepcopy(small).to(device), 4, torch.float32)


def test_fused_codec_is_the_codec_whatever_the_chunks(small: Codec, fused: Any) -> None:
    device = fused.codebooks.device
    codes = codes_of(small, 2, 15)
    expected, _ = small(codes, small.fresh(2))
    slots = torch.tensor([3, 1], device=device)
    pcm = streamed(fused, codes.to(device), slots, [1, 14]).cpu()
    assert expected.std() > 0.02 and expected.abs().max() < 1.0, "not much of a test"
    torch.testing.assert_close(pcm, expected, atol=1e-4, rtol=0)


def test_a_slot_that_was_reset_hears_nothing_of_its_last_stream(small: Codec, fused: Any) -> None:
    device = fused.codebooks.device
    codes, slots = codes_of(small, 2, 3).to(device), torch.tensor([2, 0], device=device)
    first = fused(codes, slots)
    fused.reset(2)
    again = fused(codes, slots)
    assert torch.equal(again[0], first[0]) and not torch.equal(again[1], first[1])


def test_a_slot_goes_on_from_what_another_has_come_to(small: Codec, fused: Any) -> None:
    device = fused.codebooks.device
    codes, slots = codes_of(small, 1, 9).to(device), torch.tensor([2], device=device)
    fused(codes[:, :3], slots)
    taken = fused.take(2)
    first = fused(codes[:, 3:], slots)
    fused(codes, slots - 2)
    fused.lay(0, taken)
    assert torch.equal(fused(codes[:, 3:], slots - 2), first)


def test_packing_leaves_the_codec_as_it_was(small: Codec) -> None:
    before = [p.clone() for p in small.parameters()]
    FusedCodec(small, 1, torch.float32)
    assert all(map(torch.equal, before, small.parameters()))


def test_only_widths_of_whole_tiles_are_packed(codec: Codec, small: Codec) -> None:
    fits = codec_fused.fits
    assert fits(small.spec) and not fits(codec.spec)


@pytest.fixture(scope="module")
def speech() -> Codes:
    """Two seconds that the embedded voice says."""
    with Engine(config=EngineConfig(device="cpu", max_sessions=1)) as engine:
        sampling = replace(engine.defaults, seed=1, max_frames=24)
        request = SpeechRequest(text_mode=TextMode.WHOLE, sampling=sampling)
        chunks = list(engine.say("Please turn left after the bridge.", request))
    return np.concatenate([chunk.codes for chunk in chunks])


@pytest.mark.usefixtures("twins")
@pytest.mark.parametrize(("dtype", "least_db"), [(torch.float16, 60.0), (torch.float32, 110.0)])
def test_signal_to_noise_on_speech_of_the_embedded_voice(
    speech: Codes, dtype: torch.dtype, least_db: float
) -> None:
    """Against fp32, on frames of its own speech; bfloat16 stays at 42 dB and is not used."""
    codec = load(embedded(), torch.device("cpu"), torch.float32).codec
    codes = torch.from_numpy(speech)[None]
    with torch.inference_mode():
        expected, _ = codec(codes, codec.fresh(1))
        pcm = streamed(FusedCodec(codec, 1, dtype), codes, torch.tensor([0]), [1, 2, 9, 12])
    noise = (pcm - expected).square().mean()
    assert 10 * torch.log10(expected.square().mean() / noise) > least_db
