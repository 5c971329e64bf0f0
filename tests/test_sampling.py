"""Draws: the filters against a plain reference, the noise against its distribution."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vivace.model.sampling import Rows, penalise

VOCAB = 64


def rows(
    n: int = 1,
    *,
    temperature: float = 1.0,
    top_k: int = VOCAB,
    top_p: float = torch.inf,
    seed: int = 0,
    frame: int = 0,
) -> Rows:
    return Rows(
        torch.full((n,), temperature),
        torch.full((n,), top_k),
        torch.full((n,), top_p),
        torch.arange(seed, seed + n),
        torch.full((n,), frame),
        widest=top_k,
        nucleus=top_p <= 1.0,
    )


def allowed(logits: Tensor, temperature: float, top_k: int, top_p: float) -> set[int]:
    """Ids the filters leave, the slow way: sort, keep k, keep until the mass before is top_p."""
    order = np.argsort(-logits.numpy(), kind="stable")[:top_k]
    odds = np.exp(logits.numpy()[order].astype(np.float64) / temperature)
    before = np.concatenate(([0.0], np.cumsum(odds / odds.sum())[:-1]))
    return {int(i) for i, mass in zip(order, before, strict=True) if mass < top_p}


def draws(row: Rows, logits: Tensor, count: int) -> np.ndarray:
    """`count` draws of one distribution, each with a seed of its own."""
    many = rows(
        count,
        temperature=float(row.temperature),
        top_k=int(row.top_k),
        top_p=float(row.top_p),
    )
    noise = many.noise(0, 1, VOCAB)[:, 0]
    return many.draw(logits.expand(count, -1), noise).numpy()


def test_noise_is_standard_gumbel_in_every_codebook() -> None:
    noise = rows(64).noise(0, 16, 2048)
    assert torch.isfinite(noise).all()
    for part in (noise, noise[:, 3], noise[..., :7]):
        assert abs(part.mean().item() - 0.5772) < 0.02
        assert abs(part.var().item() - np.pi**2 / 6) < 0.05
    flat = noise[:, :2].flatten(2)
    assert abs(np.corrcoef(flat[:, 0].flatten(), flat[:, 1].flatten())[0, 1]) < 0.01


def test_draws_follow_the_odds() -> None:
    logits = torch.linspace(-2, 2, VOCAB)
    found = np.bincount(draws(rows(temperature=0.7), logits, 40_000), minlength=VOCAB) / 40_000
    assert np.abs(found - (logits / 0.7).softmax(0).numpy()).max() < 0.005


@given(st.integers(0, 1000), st.floats(0.1, 2.0), st.integers(1, VOCAB), st.floats(0.05, 1.0))
def test_filters_leave_what_they_should(seed: int, t: float, k: int, p: float) -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    found = set(draws(rows(temperature=t, top_k=k, top_p=p), logits, 300).tolist())
    assert found <= allowed(logits, t, k, p + 1e-6)
    if len(allowed(logits, t, k, p)) == 1:
        assert found == {int(logits.argmax())}


def test_top_k_of_one_is_argmax() -> None:
    logits = torch.randn(200, VOCAB)
    row = rows(200, top_k=1)
    picked = row.draw(logits, row.noise(0, 1, VOCAB)[:, 0])
    assert torch.equal(picked, logits.argmax(-1))


def test_case_53_a_row_draws_the_same_whatever_stands_beside_it() -> None:
    logits = torch.randn(8, VOCAB)
    batch = Rows(
        torch.linspace(0.5, 1.5, 8),
        torch.tensor([1, 50, 3, VOCAB, 7, 20, 2, 64]),
        torch.tensor([torch.inf, 0.5, 0.9, torch.inf, 0.3, 1e-3, torch.inf, 0.7]),
        torch.arange(8) ** 3,
        torch.arange(8),
        widest=VOCAB,
        nucleus=True,
    )
    together = batch.draw(logits, batch.noise(5, 1, VOCAB)[:, 0])
    for i in range(8):
        solo = Rows(
            batch.temperature[i : i + 1],
            batch.top_k[i : i + 1],
            batch.top_p[i : i + 1],
            batch.seed[i : i + 1],
            batch.frame[i : i + 1],
            widest=int(batch.top_k[i]),
            nucleus=bool(batch.top_p[i] < 1),
        )
        assert solo.draw(logits[i : i + 1], solo.noise(5, 1, VOCAB)[:, 0]) == together[i]


@pytest.mark.parametrize("change", [{"seed": 1}, {"frame": 1}, {"seed": 2**62}])
def test_another_seed_or_frame_is_other_noise(change: dict[str, int]) -> None:
    assert not torch.equal(rows().noise(0, 1, 64), rows(**change).noise(0, 1, 64))


def test_noise_of_a_book_does_not_depend_on_which_others_are_asked_for() -> None:
    assert torch.equal(rows(3).noise(0, 16, 64)[:, 5:7], rows(3).noise(5, 2, 64))


@pytest.mark.parametrize(("t", "p"), [(1.0, 0.0), (1.0, 1e-38), (1e-38, 0.5), (torch.nan, 0.5)])
def test_a_row_that_underflows_still_draws_an_id(t: float, p: float) -> None:
    row = rows(2, temperature=t, top_k=50, top_p=p)
    logits = torch.randn(2, VOCAB)
    drawn = row.draw(logits, row.noise(0, 1, VOCAB)[:, 0])
    assert ((drawn >= 0) & (drawn < VOCAB)).all()


def test_penalty_divides_the_positive_and_multiplies_the_negative() -> None:
    logits = torch.tensor([[2.0, -2.0, 2.0, -2.0]])
    seen = torch.tensor([[True, True, False, False]])
    found = penalise(logits, seen, torch.tensor([4.0]))
    assert found.tolist() == [[0.5, -8.0, 2.0, -2.0]]
