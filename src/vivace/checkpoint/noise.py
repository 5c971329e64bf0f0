"""Random tensors by name: plain noise, the speaker encoder, and a speech tokenizer that sounds."""

import hashlib
import math

import torch
from torch import Tensor

from vivace.checkpoint.tensors import Shape
from vivace.checkpoint.weights import Unfilled
from vivace.model.codec import Codec
from vivace.model.spec import CodecSpec

GELU_POWER = 0.425  # E[gelu(x)^2] for a standard normal x
RMS = 0.12  # of the waveform, about that of speech: its peaks stay below 1


class Noise:
    """Seeded normal noise by tensor name: the order in which tensors are made does not matter."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.seed, self.dtype = seed, dtype

    def normal(self, name: str, shape: Shape, std: float = 1.0) -> Tensor:
        """Noise of mean 0."""
        digest = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        return torch.empty(shape, dtype=self.dtype).normal_(0.0, std, generator=generator)

    def layer(self, name: str, shape: Shape, gain: float = 1.0) -> Tensor:
        """A layer's weight [out, in, ...]: output of power gain^2 for an input of power 1."""
        return self.normal(name, shape, gain / math.sqrt(math.prod(shape[1:])))

    def constant(self, shape: Shape, value: float) -> Tensor:
        """All alike."""
        return torch.full(shape, value, dtype=self.dtype)


class CodecNoise:
    """Makes the tensors of the speech tokenizer: every stage keeps the power of its input."""

    def __init__(self, spec: CodecSpec, noise: Noise) -> None:
        self.spec, self.noise = spec, noise
        self.last = f"decoder.decoder.{len(spec.upsample_rates) + 2}.conv"
        self.gain = 1e-3  # of the last layer: far from clipping

    def calibrate(self, frames: int = 8) -> None:
        """Set the gain at which random codes sound as loud as speech."""
        with Unfilled():
            codec = Codec(self.spec)
        generator = torch.Generator().manual_seed(self.noise.seed)
        shape = (1, frames, self.spec.quantizers)
        codes = torch.randint(self.spec.codebook_size, shape, generator=generator)
        with torch.inference_mode():
            codec.load(lambda name, *shape: self(name, shape))
            pcm, _ = codec(codes, codec.fresh(1))
        self.gain *= RMS / pcm[:, pcm.shape[1] // 2 :].std().item()  # the start is fainter

    def __call__(self, name: str, shape: Shape) -> Tensor:
        """The tensor `name`."""
        if name.startswith(self.last):
            x = self.noise.layer(name, shape, self.gain)
            return x - x.mean(-1, keepdim=True)  # kernels of sum 0 pass nothing below hearing
        if name.endswith("cluster_usage"):
            return self.noise.normal(name, shape, 0.3).exp()
        if name.endswith("initialized"):
            return self.noise.constant(shape, 1.0)
        return self._weight(name, shape) if len(shape) > 1 else self._vector(name, shape)

    def _vector(self, name: str, shape: Shape) -> Tensor:
        if name.endswith(("alpha", "beta")):
            return self.noise.normal(name, shape, 0.3)
        if name.endswith(("gamma", "scale")):
            return self.noise.constant(shape, 0.3)
        if name.endswith("norm.weight"):
            return self.noise.constant(shape, 1.0)
        return self.noise.normal(name, shape, 0.05)

    def _weight(self, name: str, shape: Shape) -> Tensor:
        if "embed" in name:
            # The entries of all quantizers sum to a power of 1.
            return self.noise.normal(name, shape, 1 / math.sqrt(self.spec.quantizers))
        if ".block.1.conv" in name and name.startswith("decoder."):
            return self._interpolation(name, shape)
        if ".0.conv" in name and name.startswith("decoder.upsample"):  # [in, out, rate]
            return self.noise.normal(name, shape, 1 / math.sqrt(shape[0]))
        if name.endswith("pwconv2.weight"):
            return self.noise.layer(name, shape, 1 / math.sqrt(GELU_POWER))
        if ".conv2.conv" in name:
            return self.noise.layer(name, shape, 0.5)
        return self.noise.layer(name, shape)

    def _interpolation(self, name: str, shape: Shape) -> Tensor:
        """Kernels [in, out, 2 rate] that draw lines between samples, so that sound is no hiss."""
        rate = shape[2] // 2
        up = (torch.arange(rate) + 0.5) / rate
        mix = self.noise.normal(name, (*shape[:2], 1), 1 / math.sqrt(shape[0]))
        return mix * torch.cat((up, up.flip(0)))
