"""The x-vector of a clip: a mel spectrogram and an ECAPA-TDNN over it, in fp32.

One clip at a time, whole: every layer but the first few sees all of it through its mean.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivace.model.layers import Layers, Take, fill
from vivace.model.spec import SpeakerSpec
from vivace.types import SAMPLE_RATE

WINDOW = 1024  # samples of one spectrum
HOP = 256
EDGE = (WINDOW - HOP) // 2  # mirrored at both ends
FLOOR = 1e-5  # of a mel band, before the logarithm
LEAST_SAMPLES = 2 * WINDOW  # so that every mirrored edge has something to mirror


def mel_filters(bands: int) -> Tensor:
    """Triangles [bands, WINDOW // 2 + 1] of equal area on Slaney's scale, 0 to 12 kHz.

    The scale is linear below 1 kHz, 200 / 3 Hz a step, and logarithmic above, 27 steps to 6.4 times
    the frequency (Slaney, Auditory Toolbox, 1998).
    """
    linear, knee, step = 200.0 / 3, 15.0, math.log(6.4) / 27
    top = knee + math.log(SAMPLE_RATE / 2 / 1000.0) / step
    mels = torch.linspace(0.0, top, bands + 2, dtype=torch.float64)
    hertz = torch.where(mels < knee, mels * linear, 1000.0 * torch.exp(step * (mels - knee)))
    bins = torch.linspace(0, SAMPLE_RATE / 2, WINDOW // 2 + 1, dtype=torch.float64)
    low, centre, high = (part[:, None] for part in (hertz[:-2], hertz[1:-1], hertz[2:]))
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    return (torch.minimum(rising, falling).clamp(min=0) * 2.0 / (high - low)).float()


class Mel:
    """Logarithmic mel spectrogram: samples [N] of 24 kHz to [1, bands, N // HOP]."""

    def __init__(self, bands: int, device: torch.device | str) -> None:
        self.filters = mel_filters(bands).to(device)
        self.window = torch.hann_window(WINDOW, device=device)

    def __call__(self, pcm: Tensor) -> Tensor:
        """The spectrogram of at least LEAST_SAMPLES samples."""
        mirrored = F.pad(pcm[None], (EDGE, EDGE), mode="reflect")
        spectrum = torch.stft(
            mirrored, WINDOW, HOP, window=self.window, center=False, return_complex=True
        )
        power = torch.view_as_real(spectrum).square().sum(-1)
        return (self.filters @ (power + 1e-9).sqrt()).clamp(min=FLOOR).log()


class Conv(nn.Module):
    """Convolution over [1, channels, time] that keeps the length, mirrored at the ends."""

    def __init__(self, into: int, out: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(into, out, kernel, dilation=dilation)
        around = dilation * (kernel - 1)
        self.edges = (around // 2, around - around // 2)

    def load(self, take: Take, name: str) -> None:
        assert self.conv.bias is not None
        fill(self.conv.weight, take(f"{name}.weight", *self.conv.weight.shape))
        fill(self.conv.bias, take(f"{name}.bias", *self.conv.bias.shape))

    def forward(self, x: Tensor) -> Tensor:
        if self.edges != (0, 0):
            x = F.pad(x, self.edges, mode="reflect")
        out: Tensor = self.conv(x)
        return out


class Excite(nn.Module):
    """Scales each channel by what the mean of all says."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = Conv(channels, inner), Conv(inner, channels)

    def load(self, take: Take, name: str) -> None:
        self.down.load(take, f"{name}.conv1")
        self.up.load(take, f"{name}.conv2")

    def forward(self, x: Tensor) -> Tensor:
        gate = self.up(F.relu(self.down(x.mean(2, keepdim=True))))
        return x * torch.sigmoid(gate)


class Block(nn.Module):
    """Pointwise, then convolutions over groups of channels each of which hears the one before."""

    def __init__(self, into: int, out: int, kernel: int, dilation: int, s: SpeakerSpec) -> None:
        super().__init__()
        part = out // s.res2net_scale
        self.input, self.output = Conv(into, out), Conv(out, out)
        self.groups = Layers[Conv](
            Conv(part, part, kernel, dilation) for _ in range(s.res2net_scale - 1)
        )
        self.excite = Excite(out, s.se_channels)

    def load(self, take: Take, name: str) -> None:
        self.input.load(take, f"{name}.tdnn1.conv")
        for i, group in enumerate(self.groups):
            group.load(take, f"{name}.res2net_block.blocks.{i}.conv")
        self.output.load(take, f"{name}.tdnn2.conv")
        self.excite.load(take, f"{name}.se_block")

    def forward(self, x: Tensor) -> Tensor:
        first, *parts = F.relu(self.input(x)).chunk(len(self.groups) + 1, 1)
        heard = [first]
        for i, (group, part) in enumerate(zip(self.groups, parts, strict=True)):
            heard.append(F.relu(group(part if i == 0 else part + heard[-1])))
        y = F.relu(self.output(torch.cat(heard, 1)))
        out: Tensor = x + self.excite(y)
        return out


class Pool(nn.Module):
    """Mean and deviation of each channel over the time that attention picks."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.look, self.weigh = Conv(3 * channels, inner), Conv(inner, channels)

    def load(self, take: Take, name: str) -> None:
        self.look.load(take, f"{name}.tdnn.conv")
        self.weigh.load(take, f"{name}.conv")

    def forward(self, x: Tensor) -> Tensor:
        """[1, 2 * channels, 1] of x [1, channels, T]."""
        even = torch.full_like(x, 1.0 / x.shape[2])
        context = torch.cat((x, _moments(x, even).view(1, -1, 1).expand(-1, -1, x.shape[2])), 1)
        weights = self.weigh(torch.tanh(F.relu(self.look(context)))).softmax(2)
        return _moments(x, weights)


def _moments(x: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean and deviation [1, 2 * channels, 1] over time."""
    mean = (weights * x).sum(2, keepdim=True)
    spread = (weights * (x - mean).square()).sum(2, keepdim=True)
    return torch.cat((mean, spread.clamp(min=1e-12).sqrt()), 1)


class SpeakerEncoder(nn.Module):
    """A clip to the vector that stands in for a named speaker."""

    def __init__(self, spec: SpeakerSpec) -> None:
        super().__init__()
        first, *inner, last = spec.channels
        self.first = Conv(spec.mel_dim, first, spec.kernels[0], spec.dilations[0])
        widths = [first, *inner]
        self.blocks = Layers[Block](
            Block(into, out, kernel, dilation, spec)
            for into, out, kernel, dilation in zip(
                widths, inner, spec.kernels[1:-1], spec.dilations[1:-1], strict=False
            )
        )
        self.mix = Conv(last, last, spec.kernels[-1], spec.dilations[-1])
        self.pool = Pool(last, spec.attention_channels)
        self.out = Conv(2 * last, spec.dim)
        self.mel = Mel(spec.mel_dim, self.out.conv.weight.device)

    def load(self, take: Take) -> None:
        self.first.load(take, "speaker_encoder.blocks.0.conv")
        for i, block in enumerate(self.blocks, 1):
            block.load(take, f"speaker_encoder.blocks.{i}")
        self.mix.load(take, "speaker_encoder.mfa.conv")
        self.pool.load(take, "speaker_encoder.asp")
        self.out.load(take, "speaker_encoder.fc")

    def forward(self, pcm: Tensor) -> Tensor:
        """The x-vector [dim] of samples [N], N at least LEAST_SAMPLES, -1..1 at 24 kHz."""
        x = F.relu(self.first(self.mel(pcm)))
        heard = []
        for block in self.blocks:
            x = block(x)
            heard.append(x)
        x = F.relu(self.mix(torch.cat(heard, 1)))
        vector: Tensor = self.out(self.pool(x))
        return vector.flatten()
