"""Weights of the talker and the code predictor in 8 bits: int8, or on a card fp8 (e4m3).

A few rows' products wait for their weights from memory, so fewer bytes are less time. A column of
weights has one scale. So has, on the CPU, a row of activations, which its dot products want in int8
too: a row's sums are whole numbers, the same whatever else is in its batch. On a card activations
stay in bfloat16.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from vivace import kernels
from vivace.errors import CheckpointError
from vivace.kernels.packed import LEAST, Packed, pack
from vivace.model.layers import Block, Layers, Linear
from vivace.model.predictor import Predictor
from vivace.model.talker import Talker

ENGINE: Final = "fbgemm"
KINDS: Final = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
ABLE: Final = {"int8": (8, 0), "fp8": (8, 9)}  # the least compute capability


def levels() -> int:
    """Steps on either side of an activation's zero, which is one more: the kernel's are unsigned.

    Without dot products of four it adds pairs in 16 bits, which 127 * 127 twice does not overflow.
    """
    return 127 if torch.cpu._is_vnni_supported() else 63


class Int8(Linear):
    """A linear layer whose weight [in, out] is packed int8."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Round `weight` [in, out] to 255 steps a column; the scale of zeros does not matter."""
        nn.Module.__init__(self)
        self.bias = None if bias is None else nn.Parameter(bias)
        scale = weight.abs().amax(0).float().clamp(min=LEAST) / 127
        self.packed, self.levels = _pack(weight.T.float().contiguous(), scale), levels()
        self.shape = weight.shape

    @classmethod
    def of(cls, linear: Linear) -> "Int8":
        """The same layer, rounded."""
        return cls(linear.weight.data, None if linear.bias is None else linear.bias.data)

    def forward(self, x: Tensor) -> Tensor:
        y, scale = self._product(x)
        return y.mul_(scale) if self.bias is None else torch.addcmul(self.bias, y, scale)

    def onto(self, residual: Tensor, x: Tensor) -> Tensor:
        y, scale = self._product(x)
        return torch.addcmul(residual, y, scale)

    def _product(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The product of rows [N, in] scaled to 1 at most, and the scales [N, 1]."""
        scale = torch.linalg.vector_norm(x, torch.inf, 1, keepdim=True).clamp_(min=LEAST)
        op = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        y: Tensor = op(x / scale, 1.0 / self.levels, self.levels + 1, self.packed)
        return y, scale


def _pack(weight: Tensor, scale: Tensor) -> Any:
    """Weights [out, in] as the kernel wants them. Raises CheckpointError where there is none."""
    if ENGINE not in torch.backends.quantized.supported_engines:
        raise CheckpointError("int8 on the CPU needs an x86 processor; leave out --quantize")
    before = torch.backends.quantized.engine
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tensor's type will go; the packed weight stays
        rounded = torch.quantize_per_channel(weight, scale.double(), zeros, 0, torch.qint8)
    try:
        torch.backends.quantized.engine = ENGINE
        return torch.ops.quantized.linear_prepack(rounded, None)
    finally:
        torch.backends.quantized.engine = before


class Narrow(Linear):
    """A linear layer whose weight [in, out] is in 8 bits, on a card's kernels."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kind: torch.dtype) -> None:
        """Round `weight` [in, out]."""
        nn.Module.__init__(self)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        for name, tensor in pack(weight, kind)._asdict().items():
            self.register_buffer(name, tensor)
        self.values: Tensor
        self.scale: Tensor
        self.done: Tensor

    @classmethod
    def of(cls, linear: Linear, kind: torch.dtype) -> "Narrow":
        """The same layer, rounded."""
        return cls(linear.weight.data, None if linear.bias is None else linear.bias.data, kind)

    @property
    def held(self) -> Packed:
        return Packed(self.values, self.scale, self.done)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = kernels.ops.product(x, self.held)
        return y if self.bias is None else y.add_(self.bias)

    def onto(self, residual: Tensor, x: Tensor) -> Tensor:
        y = residual.clone()
        kernels.ops.add_product(y, x, self.held)
        return y


def check(wish: str, device: torch.device, dtype: torch.dtype, *, ours: bool) -> None:
    """Can weights be as wished? `ours`: our kernels may be used. Raises CheckpointError if not."""
    if wish == "none":
        return
    if wish not in KINDS:
        raise CheckpointError(f"no weights of {wish!r}; --quantize takes none, int8 or fp8")
    if device.type == "cpu":
        if wish != "int8" or dtype != torch.float32:
            raise CheckpointError("on the CPU there is --quantize int8 alone, and in float32")
        return
    if dtype != torch.bfloat16:
        raise CheckpointError("--quantize on a card is for --dtype bfloat16, or auto")
    able = torch.cuda.get_device_capability(device)
    if able < ABLE[wish]:
        raise CheckpointError(
            f"--quantize {wish} needs compute capability {_dotted(ABLE[wish])}, and this card has "
            f"{_dotted(able)}"
        )
    if kernels.ops is None or not ours:
        raise CheckpointError("--quantize on a card needs our kernels, which are off or fail here")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _replace_in(blocks: Layers[Block], make: Callable[[Linear], Linear]) -> None:
    for block in blocks:
        attention, mlp = block.attention, block.mlp
        attention.qkv, attention.out = make(attention.qkv), make(attention.out)
        mlp.gate_up, mlp.down = make(mlp.gate_up), make(mlp.down)


def replace_products(
    talker: Talker, predictor: Predictor, make: Callable[[Linear], Linear]
) -> None:
    """Put what `make` makes of it in the place of every product of both, one after the other."""
    _replace_in(talker.layers, make)
    _replace_in(predictor.layers, make)
    talker.text_up, talker.text_out = make(talker.text_up), make(talker.text_out)
    talker.codec_head = make(talker.codec_head)
    if isinstance(predictor.project, Linear):
        predictor.project = make(predictor.project)
    predictor.heads = Layers[Linear](map(make, predictor.heads))


@torch.inference_mode()
def quantize(talker: Talker, predictor: Predictor, kind: str = "int8") -> None:
    """Round every product of both in place.

    On the CPU they are in fp32, and the text's embeddings, more bytes than all that, are kept in
    bfloat16: as the checkpoint has them, as a rule. On "meta" what comes out has the right size.
    """
    cpu = talker.text_embedding.weight.device.type == "cpu"
    replace_products(talker, predictor, Int8.of if cpu else partial(Narrow.of, kind=KINDS[kind]))
    talker.text_embedding.to(torch.bfloat16)
