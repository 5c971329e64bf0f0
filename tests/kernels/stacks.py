"""Talkers and predictors of random weights, in whatever size."""

from dataclasses import dataclass
from functools import partial

import torch

from vivace.kernels.packed import pack
from vivace.model.fused import frame
from vivace.model.layers import Linear, RMSNorm
from vivace.model.predictor import Predictor
from vivace.model.quant import KINDS, Narrow, replace_products
from vivace.model.spec import ModelSpec
from vivace.model.talker import Talker


@dataclass
class Stacks:
    talker: Talker
    predictor: Predictor

    def frame(self, rows: int = 1, context: int = 0) -> torch.Tensor:
        return frame(self.talker, self.predictor, rows, context)


def around_one(_: str, *shape: int) -> torch.Tensor:
    return 1 + torch.randn(shape) / 4


def stacks(spec: ModelSpec, device: torch.device, dtype: torch.dtype = torch.float32) -> Stacks:
    with torch.device(device):
        made = Stacks(Talker(spec), Predictor(spec))
    for module in (made.talker, made.predictor):
        for parameter in module.requires_grad_(False).to(dtype).parameters():
            parameter.normal_(std=parameter.shape[-2] ** -0.5 if parameter.dim() > 1 else 1.0)
        for norm in (part for part in module.modules() if isinstance(part, RMSNorm)):
            norm.load(around_one, *["weight"] * norm.weight[..., 0].numel())
        for block in module.layers:
            block.fold()
    p = made.predictor
    p.norm.fold_into(*p.heads)
    p.table.copy_(p.project(p.embeddings.flatten(0, 1)).view_as(p.table))
    return made


def narrow(made: Stacks, kind: str) -> Stacks:
    """In 8 bits, on the CPU as on a card."""
    replace_products(made.talker, made.predictor, partial(Narrow.of, kind=KINDS[kind]))
    return made


def widened(made: Stacks, kind: str) -> Stacks:
    """With the weights that those stand for."""

    def same(linear: Linear) -> Linear:
        linear.weight.copy_(pack(linear.weight, KINDS[kind]).wide(linear.weight.dtype))
        return linear

    replace_products(made.talker, made.predictor, same)
    return made
