"""Times the decode step at the published 1.7B shapes: whole, in parts, and kernel by kernel.

`python -m vivace.bench.kernels OUT.json` on a card; weights are random, launches are replays of
graphs. The same step in plain torch, in graphs as well, is what the kernels gain on.
"""

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import torch
from torch import Tensor

from vivace.bench.machine import command, commit, hardware, versions
from vivace.kernels import ops
from vivace.model.fused import embed_frames, use_kernels
from vivace.model.layers import Block, Linear
from vivace.model.paged import Paged
from vivace.model.predictor import Predictor
from vivace.model.sampling import Guard, Picks, Rows
from vivace.model.spec import ModelSpec, TransformerSpec
from vivace.model.talker import Talker

TALKER = TransformerSpec(2048, 6144, 28, 16, 8, 128, 3072, 1e6, 1e-6)
PREDICTOR = TransformerSpec(1024, 3072, 5, 16, 8, 128, 2048, 1e6, 1e-6)
TEXT_VOCAB, EOS, PAGE = 20_000, 2150, 64  # a tenth of the text table does
ROWS = (1, 8, 32, 128)
CONTEXTS = (160,)
REPLAYS = 30

Call = Callable[..., object]


def main(out: Path) -> None:
    """Measure, print a line each, and write everything to `out`."""
    talker, predictor = _stacks()
    assert use_kernels(talker, predictor)
    found: dict[str, list[dict[str, object]]] = {"steps": [], "kernels": []}

    def keep(kind: str, **row: object) -> None:
        found[kind].append(row)
        print(*(f"{name} {value}" for name, value in row.items()), flush=True)

    for rows in ROWS:
        for context in CONTEXTS:
            step = Step(talker, predictor, rows, context)
            keep("steps", rows=rows, context=context, kernels=True, **step.times())
        for name, (calls, size) in Step(talker, predictor, rows, 160).kernels().items():
            keep("kernels", kernel=name, rows=rows, **speed(calls, size))
    talker.fused = predictor.fused = False
    for rows in (1, 32, 128):
        step = Step(talker, predictor, rows, 160)
        keep("steps", rows=rows, context=160, kernels=False, **step.times())
    about = {"command": command(), "commit": commit(), "hardware": hardware()}
    out.write_text(json.dumps({**found, **about, "versions": versions()}, indent=1) + "\n")


def _stacks() -> tuple[Talker, Predictor]:
    """Of random weights in bfloat16."""
    parts = {"talker": TALKER, "predictor": PREDICTOR, "codebooks": 16}
    spec = cast(ModelSpec, SimpleNamespace(**parts, text_vocab=TEXT_VOCAB, text_hidden=2048))
    with torch.device("cuda"):
        stacks = Talker(spec), Predictor(spec)
    for stack in stacks:
        for parameter in stack.to(torch.bfloat16).requires_grad_(False).parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-2] ** -0.5)
    stacks[1].table.normal_()
    return stacks


@dataclass
class Step:
    """One step of `rows` sessions with `context` positions behind each."""

    talker: Talker
    predictor: Predictor
    rows: int
    context: int

    def __post_init__(self) -> None:
        s, rows = self.talker.spec, self.rows
        width = self.context // PAGE + 1
        shape = (2, s.layers, rows * width, PAGE, s.kv_heads, s.head_dim)
        keys, values = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        self.slots = torch.arange(rows, device="cuda")
        table = torch.randperm(rows * width, device="cuda").view(rows, width)
        self.cache = Paged(keys, values, table, self._each(self.context), self.slots)
        self.x = torch.randn(rows, s.hidden, device="cuda").to(torch.bfloat16)
        stacks = self.talker, self.predictor
        self.draws = [self._draws(stack.spec.vocab) for stack in stacks]
        self.later = Picks(self.draws[1], self.predictor.codebooks - 1, stacks[1].spec.vocab)
        seen = torch.zeros(rows, s.vocab, dtype=torch.bool, device="cuda")
        bias = torch.zeros(s.vocab, device="cuda")
        self.guard = Guard(seen, self._each(1.05), self._each(2), bias, EOS)

    def _each(self, value: float) -> Tensor:
        return torch.full((self.rows,), value, device="cuda")

    def _draws(self, vocab: int) -> Rows:
        t, k, p, frame = map(self._each, (0.9, 50, torch.inf, 100))
        return Rows(t, k, p, self.slots, frame, vocab, False, self.slots)

    def times(self) -> dict[str, float]:
        """Milliseconds of talker, predictor and everything between two frames."""
        calls = {"talker": self.talk, "predictor": self.predict, "frame": self.frame}
        return {f"{name}_ms": round(graph_ms(call), 3) for name, call in calls.items()}

    def talk(self) -> Tensor:
        """A talker step."""
        out: Tensor = self.talker(self.x, self.cache)
        return out

    def predict(self) -> Tensor:
        """A predictor pass over a frame."""
        out: Tensor = self.predictor(self.x, self.x, self.later)
        return out

    def frame(self) -> None:
        """A frame, from one input to the next."""
        x = self.x[self.slots] + self.talker.text(self.slots)
        hidden = self.talker(x, self.cache)
        first = self.talker.first(hidden, self.draws[0], self.guard)
        later = self.predictor(hidden, self.talker.codes(first), self.later)
        codes = torch.cat((first[:, None], later), 1)
        self.x[self.slots] = embed_frames(self.talker, self.predictor, codes)

    def kernels(self) -> dict[str, tuple[list[Call], int]]:
        """Of each kernel its calls, over the talker's layers where it has weights, and its bytes.

        Codes are drawn from flat logits, which random weights give, and from peaked ones.
        """
        talker = self._attention(self.talker, self.cache, self.context)
        found = {"attention, talker": talker, **self.products(self.talker)}
        attention = self._attention(self.predictor, self.predictor.pages(self.rows, self.x)[9], 10)
        found["attention, predictor"] = attention
        vocab = self.predictor.spec.vocab
        logits = torch.randn(self.rows, vocab, device="cuda").to(torch.bfloat16)
        draws, codes, table = self.draws[1].by_slot(), self.slots.clone(), self.predictor.table[0]
        for name, given in (("flat", logits), ("peaked", 9 * logits)):
            draw = partial(ops.draw, given, draws, 3, codes, table=table)
            found[f"draw, {name}"] = [draw] * 20, given.nbytes
        return found

    def products(self, stack: Talker | Predictor) -> dict[str, tuple[list[Call], int]]:
        """Those of a stack's layers, and the bytes of a weight."""
        s = stack.spec
        x, heads, mid = (
            torch.randn(self.rows, size, device="cuda").to(torch.bfloat16)
            for size in (s.hidden, s.heads * s.head_dim, s.intermediate)
        )
        found = dict[str, tuple[list[Call], int]]()
        kinds: dict[str, tuple[Call, Callable[[Block], Linear]]] = {
            "qkv": (partial(ops.product, x), lambda b: b.attention.qkv),
            "out": (partial(ops.add_product, x, heads), lambda b: b.attention.out),
            "gate, up, silu": (partial(ops.gated, x, eps=1e-6), lambda b: b.mlp.gate_up),
            "down": (partial(ops.add_product, x, mid), lambda b: b.mlp.down),
        }
        for name, (call, of) in kinds.items():
            weights = [of(block).held for block in stack.layers]
            found[name] = [partial(call, weight=w) for w in weights], weights[0].nbytes
        return found

    def _attention(
        self, stack: Talker | Predictor, cache: Paged, seen: int
    ) -> tuple[list[Call], int]:
        s = stack.spec
        if stack is self.talker:
            cache = cache.split(s.heads)
        x = torch.randn(self.rows, s.hidden, device="cuda").to(torch.bfloat16)
        heads = s.heads + 2 * s.kv_heads
        qkv = torch.randn(self.rows, heads * s.head_dim, device="cuda").to(torch.bfloat16)
        calls: list[Call] = []
        for i, block in list(enumerate(stack.layers)) * 4:
            norm = block.attention.qk_norm
            assert norm is not None
            frequency = stack.rope.frequencies
            calls += [partial(cache.attend, i, x, qkv, norm.weight, frequency, norm.eps)]
        return calls, 4 * self.rows * seen * s.kv_heads * s.head_dim


def speed(calls: list[Call], size: int) -> dict[str, float]:
    """Microseconds of each, and how fast it reads its `size` bytes."""
    us = 1e3 * graph_ms(lambda: [call() for call in calls]) / len(calls)
    return {"us": round(us, 2), "gb_s": round(size / us / 1e3)}


@torch.inference_mode()
def graph_ms(call: Call) -> float:
    """Median milliseconds of a graph's replays."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        call()
    taken = [_replay(graph) for _ in range(REPLAYS)]
    return statistics.median(taken)


def _replay(graph: torch.cuda.CUDAGraph) -> float:
    began = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    began.record()
    graph.replay()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
