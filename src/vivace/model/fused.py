"""Puts talker and predictor on the kernels, if they work here."""

import logging

import torch
from torch import Tensor

from vivace import kernels
from vivace.model.paged import Paged
from vivace.model.predictor import Predictor
from vivace.model.sampling import Guard, Picks, Rows
from vivace.model.talker import Talker

log = logging.getLogger("vivace")


def use_kernels(talker: Talker, predictor: Predictor) -> bool:
    """Let decode steps run on the fused kernels; false, and plain torch, where they cannot.

    A frame is made to find out. A kernel that does not compile costs one warning and speed.
    """
    if kernels.ops is None or not (_fits(talker) and _fits(predictor)):
        return False
    talker.fused = predictor.fused = True
    try:
        frame(talker, predictor)
    except Exception as error:
        log.warning("no fused kernels, so steps are slower: %s", str(error).strip().split("\n")[0])
        talker.fused = predictor.fused = False
    return talker.fused


def _fits(stack: Talker | Predictor) -> bool:
    """Kernels want powers of two, and a type whose range rows need no norm for."""
    s = stack.spec
    sizes = s.head_dim, s.heads // s.kv_heads
    dtype = next(stack.parameters()).dtype
    return dtype in (torch.bfloat16, torch.float32) and all(n & (n - 1) == 0 for n in sizes)


def embed_frames(talker: Talker, predictor: Predictor, codes: Tensor) -> Tensor:
    """The talker's input [B, hidden] after frames of codes [B, 16]."""
    if not talker.fused:
        return talker.codes(codes[:, 0]) + predictor.embed(codes[:, 1:])
    first, later = talker.codec_embedding.weight, predictor.embeddings
    out: Tensor = kernels.ops.embed(codes, first, later)
    return out


@torch.inference_mode()
def frame(talker: Talker, predictor: Predictor, rows: int = 1, context: int = 0) -> Tensor:
    """Make a frame of any content after `context` positions: codes [rows, 16]."""
    weight = talker.codec_embedding.weight
    device, s, page = weight.device, talker.spec, 64
    slots = torch.arange(rows, device=device)
    table = torch.arange(rows * (context // page + 1), device=device).view(rows, -1)
    keys, values = torch.zeros(
        2, s.layers, table.numel(), page, s.kv_heads, s.head_dim, device=device, dtype=weight.dtype
    )
    zeros, ones = torch.zeros_like(slots), torch.ones(rows, device=device)
    draws = Rows(ones, zeros + 50, ones + torch.inf, slots, zeros, s.vocab, True, slots)
    seen = torch.zeros(rows, s.vocab, dtype=torch.bool, device=device)
    guard = Guard(seen, ones, zeros, torch.zeros(s.vocab, device=device), s.vocab - 1)
    x = weight[:rows].repeat(rows, 1)[:rows]
    hidden = talker(x, Paged(keys, values, table, zeros + context, slots))
    first = talker.first(hidden, draws, guard)
    picks = Picks(draws, predictor.codebooks - 1, predictor.spec.vocab)
    later: Tensor = predictor(hidden, talker.codes(first), picks)
    return torch.cat((first[:, None], later), 1)
