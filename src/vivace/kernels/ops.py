"""What the modules call: every kernel's launch under one name."""

from vivace.kernels.attention import Scratch, attend
from vivace.kernels.draw import draw, embed
from vivace.kernels.linear import add_product, gated, norm, product

__all__ = ["Scratch", "add_product", "attend", "draw", "embed", "gated", "norm", "product"]
