"""Weights of the talker and the code predictor in int8, a quarter of what fp32 takes, on the CPU.

One row's products wait for their weights from memory, so fewer bytes are less time. A column of
weights has one scale. So has a row of activations, which the CPU's dot products want in int8 too: a
row's sums are whole numbers, the same whatever else is in its batch.
"""

import warnings
from typing import Any, Final

import torch
from torch import Tensor, nn

from vivace.errors import CheckpointError
from vivace.model.layers import Block, Layers, Linear
from vivace.model.predictor import Predictor
from vivace.model.talker import Talker

ENGINE: Final = "fbgemm"
LEAST: Final = 1e-20  # scale of a row or column of zeros


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


def rounds(wish: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Shall weights be rounded? Raises CheckpointError for what cannot be done here."""
    if wish == "none":
        return False
    if wish != "int8":
        raise CheckpointError(f"no weights of {wish!r}; --quantize takes none or int8")
    if device.type != "cpu" or dtype != torch.float32:
        raise CheckpointError("--quantize int8 is for the CPU with --dtype float32, or auto")
    return True


def _shrink_blocks(blocks: Layers[Block]) -> None:
    for block in blocks:
        attention, mlp = block.attention, block.mlp
        attention.qkv, attention.out = Int8.of(attention.qkv), Int8.of(attention.out)
        mlp.gate_up, mlp.down = Int8.of(mlp.gate_up), Int8.of(mlp.down)


@torch.inference_mode()
def quantize(talker: Talker, predictor: Predictor) -> None:
    """Round every product of both in place, in fp32 on the CPU.

    The text's embeddings, more bytes than all that, are kept in bfloat16: as the checkpoint has
    them, as a rule.
    """
    _shrink_blocks(talker.layers)
    _shrink_blocks(predictor.layers)
    talker.text_up, talker.text_out = Int8.of(talker.text_up), Int8.of(talker.text_out)
    talker.codec_head = Int8.of(talker.codec_head)
    talker.text_embedding.to(torch.bfloat16)
    if isinstance(predictor.project, Linear):
        predictor.project = Int8.of(predictor.project)
    predictor.rounded_heads = Layers[Linear](Int8(head) for head in predictor.heads.data)
    predictor.heads = nn.Parameter(torch.empty(0))
