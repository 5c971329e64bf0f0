"""On a card: published shapes in bfloat16 against fp32 twins, and graphs against launches."""

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.kernels.stacks import Stacks, narrow, stacks, widened
from torch import Tensor

from vivace.model.fused import use_kernels
from vivace.model.paged import Paged
from vivace.model.spec import TransformerSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card"),
]
LAYERS, PAGE = 4, 64
SPEC: Any = SimpleNamespace(
    talker=TransformerSpec(2048, 6144, LAYERS, 16, 8, 128, 3072, 1e6, 1e-6),
    predictor=TransformerSpec(1024, 3072, 2, 16, 8, 128, 2048, 1e6, 1e-6),
    codebooks=16,
    text_vocab=8,
    text_hidden=2048,
)


@pytest.fixture(scope="module", params=["bfloat16", "int8", "fp8"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def plain(kind: str) -> Stacks:  # once for each kind, so that gigabytes go when the next comes
    return stacks(SPEC, torch.device("cuda"), torch.bfloat16)


@pytest.fixture(scope="module")
def fused(plain: Stacks, kind: str) -> Stacks:
    made = deepcopy(plain)
    if kind != "bfloat16":
        narrow(made, kind)
    assert use_kernels(made.talker, made.predictor)
    return made


@pytest.fixture(scope="module")
def twin(plain: Stacks, kind: str) -> Stacks:
    wide = Stacks(deepcopy(plain.talker).float(), deepcopy(plain.predictor).float())
    return wide if kind == "bfloat16" else widened(wide, kind)


def cache(rows: int, context: int) -> Paged:
    width = context // PAGE + 1
    shape = (2, LAYERS, rows * width, PAGE, 8, 128)
    keys, values = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    table = torch.randperm(rows * width, device="cuda").view(rows, width)
    slots = torch.arange(rows, device="cuda")
    position = (context - slots % 3).clamp(min=0)
    return Paged(keys, values, table, position, slots)


def off(found: Tensor, expected: Tensor) -> float:
    difference = (found.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    return float(difference.max())


@pytest.mark.parametrize("rows", [1, 2, 3, 16, 128])
@pytest.mark.parametrize("context", [0, 64, 500, 5000])
@torch.inference_mode()
def test_talker(fused: Stacks, twin: Stacks, rows: int, context: int) -> None:
    if rows * context > 100_000:
        pytest.skip("gigabytes of keys in fp32")
    held = cache(rows, context)
    x = torch.randn(rows, 2048, device="cuda").to(torch.bfloat16)
    wide = Paged(held.keys.float(), held.values.float(), held.table, held.position, held.slots)
    assert off(fused.talker(x, held), twin.talker(x.float(), wide)) < 0.02
    assert off(held.keys.flatten(-2), wide.keys.flatten(-2)) < 0.03


@pytest.mark.parametrize("rows", [1, 2, 3, 128])
@torch.inference_mode()
def test_a_graph_makes_the_same_frame(fused: Stacks, rows: int) -> None:
    expected = fused.frame(rows)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = fused.frame(rows)
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found, expected)
