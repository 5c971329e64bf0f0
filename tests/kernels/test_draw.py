"""Draws in one launch against `model.sampling`, row by row, and embeddings against a sum."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vivace.kernels import draw, ops
from vivace.model.sampling import Guard, Rows

VOCAB = 60
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

params = st.tuples(
    st.floats(0.05, 2.0),
    st.integers(1, VOCAB),
    st.one_of(st.just(torch.inf), st.floats(0.05, 0.99)),
    st.integers(0, 2**63 - 1),
    st.integers(0, 10_000),
)


def rows_of(found: list[tuple[float, int, float, int, int]]) -> Rows:
    """Parameters by slot, with the rows' slots in reverse."""
    t, k, p, seed, frame = zip(*found, strict=True)
    return Rows(
        torch.tensor(t, device=DEVICE),
        torch.tensor(k, device=DEVICE),
        torch.tensor(p, device=DEVICE),
        torch.tensor(seed, device=DEVICE),
        torch.tensor(frame, device=DEVICE),
        VOCAB,
        True,
        torch.arange(len(found), device=DEVICE).flip(0),
    )


def drawn(logits: Tensor, rows: Rows, book: int) -> Tensor:
    codes = torch.full((len(logits), 16), -1, device=DEVICE)
    ops.draw(logits, rows.by_slot(), book, codes[:, book])
    return codes[:, book]


@settings(max_examples=30)
@given(st.lists(params, min_size=1, max_size=4), st.integers(0, 2**31), st.integers(0, 15))
def test_the_same_draw_as_the_twin(
    found: list[tuple[float, int, float, int, int]], seed: int, book: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(len(found), VOCAB, generator=generator) * 3).to(DEVICE)
    rows = rows_of(found)
    expected = rows.draw(logits, rows.noise(book, 1, VOCAB)[:, 0])
    assert torch.equal(drawn(logits, rows, book), expected)


def test_ties_at_the_edge_of_top_k_are_all_in() -> None:
    logits = torch.zeros(1, VOCAB, device=DEVICE)
    logits[:, :2] = 1.0
    found = {int(drawn(logits, rows_of([(5.0, 3, torch.inf, s, 0)]), 1)) for s in range(40)}
    assert len(found) > 3  # the third place is shared by everyone behind the first two


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter is NumPy
@pytest.mark.parametrize(("t", "p"), [(1.0, 0.0), (1.0, 1e-38), (1e-38, 0.5), (torch.nan, 0.5)])
def test_a_row_that_underflows_still_draws_an_id(t: float, p: float) -> None:
    codes = drawn(torch.randn(2, VOCAB, device=DEVICE), rows_of([(t, 50, p, 1, 0)] * 2), 3)
    assert ((codes >= 0) & (codes < VOCAB)).all()


def test_logits_without_their_norm_and_the_next_row() -> None:
    x, table = torch.randn(3, 48, device=DEVICE), torch.randn(VOCAB, 20, device=DEVICE)
    logits = torch.randn(3, VOCAB, device=DEVICE)
    rows = rows_of([(0.9, 50, torch.inf, s, s) for s in range(3)])
    codes = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    found = ops.draw(logits, rows.by_slot(), 2, codes, norm=(x, 1e-6), table=table)
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    assert torch.equal(codes, rows.draw(logits * scale, rows.noise(2, 1, VOCAB)[:, 0]))
    assert torch.equal(found, table[codes])


def test_a_guarded_draw_is_penalised_kept_in_bounds_and_noted() -> None:
    rows = rows_of([(0.9, 20, torch.inf, s, s % 3) for s in range(6)])
    bias = torch.zeros(VOCAB, device=DEVICE)
    bias[50:] = -torch.inf
    seen = torch.rand(6, VOCAB, device=DEVICE) < 0.3
    penalty, least = torch.linspace(1, 3, 6, device=DEVICE), torch.full((6,), 2, device=DEVICE)
    eos = 4
    guard, twin = (Guard(seen.clone(), penalty, least, bias, eos) for _ in range(2))
    logits = torch.randn(6, VOCAB, device=DEVICE) * 2
    logits[:, eos] = 30.0
    codes = torch.zeros(6, dtype=torch.int64, device=DEVICE)
    ops.draw(logits, rows.by_slot(), 0, codes, guard=guard.fields())
    assert torch.equal(codes, twin.draw(logits.clone(), rows))
    assert torch.equal(guard.seen, twin.seen)
    assert (codes < 50).all()
    assert torch.equal(codes == eos, rows.of(rows.frame) >= 2)


def test_embeddings_of_a_frame() -> None:
    first, later = torch.randn(70, 300, device=DEVICE), torch.randn(15, 50, 300, device=DEVICE)
    codes = torch.randint(0, 50, (3, 16), device=DEVICE)
    codes[:, 0] += 20
    found = ops.embed(codes, first, later)
    assert torch.allclose(found, draw.embed_twin(codes, first, later), atol=1e-5)
