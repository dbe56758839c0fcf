"""How far a model drifted: KL, change of the loss and product with the Fisher information, against float64."""

from __future__ import annotations

import copy

import pytest
import torch

from holdfast.errors import DataError
from holdfast.evaluation.text.drift import Drift, row_piece
from holdfast.evaluation.text.perplexity import Piece
from tiny import build_model


def pieces() -> list[Piece]:
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, 60, (length,), generator=generator).tolist() for length in (20, 7, 33)]
    return [Piece(document=n, ids=ids, targets=list(range(1, len(ids), 2))) for n, ids in enumerate(rows)]


def moved(model, size: float):
    """The same model, moved in a random direction."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in other.parameters():
            p += size * p.std(correction=0) * torch.randn(p.shape, generator=generator)
    return other


def distributions(model, of: list[Piece]):
    """Log-probabilities of all positions in float64, and the tokens that stand there."""
    model = copy.deepcopy(model).double().eval()
    with torch.no_grad():
        logps = [model(torch.tensor([p.ids])).logits[0].log_softmax(-1)[[t - 1 for t in p.targets]] for p in of]
    return torch.cat(logps), torch.tensor([p.ids[t] for p in of for t in p.targets])


def test_nothing_has_drifted_at_the_start() -> None:
    model = build_model()
    found = Drift(model, pieces()).since(model)
    assert (found.rise, found.kl, found.fisher) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12) and found.loss > 1


@pytest.mark.parametrize("size", [0.003, 0.1])
def test_against_float64(size: float) -> None:
    start = build_model()
    now = moved(start, size)
    found = Drift(start, pieces()).since(now)
    (p, tokens), (q, _) = distributions(start, pieces()), distributions(now, pieces())
    own, other = (logp.gather(1, tokens[:, None])[:, 0] for logp in (p, q))
    assert found.loss == pytest.approx(-float(own.mean()), rel=1e-6)
    assert found.kl == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), rel=2e-3)
    assert found.rise == pytest.approx(float((own - other).mean()), rel=1e-3, abs=1e-6)
    assert found.fisher == pytest.approx(float((own - other).square().mean()), rel=1e-3)


def test_for_a_small_step_it_is_the_product_with_the_fisher_information() -> None:
    """d'Fd of the empirical Fisher information a token, by a gradient a token in float64."""
    start = build_model().double()
    now = moved(start, 1e-3)
    of = pieces()[1:2]
    ways = [b.detach() - a.detach() for a, b in zip(start.parameters(), now.parameters(), strict=True)]
    products = []
    for target in of[0].targets:
        logp = start(torch.tensor([of[0].ids])).logits[0, target - 1].log_softmax(-1)[of[0].ids[target]]
        gradients = torch.autograd.grad(logp, list(start.parameters()), materialize_grads=True)
        products.append(sum(float((g * d).sum()) for g, d in zip(gradients, ways, strict=True)) ** 2)
    assert Drift(start, of).since(now).fisher == pytest.approx(sum(products) / len(products), rel=0.02)


def test_positions_are_spread_and_kept_ones_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.evaluation.text.drift.POSITIONS", 5)
    start, now = build_model(), moved(build_model(), 0.05)
    drift = Drift(start, pieces())
    assert [len(row.targets) for row in drift.rows] == [2, 3] and drift.tensors.shape[0] == 5  # of 29
    again = Drift(now, pieces(), kept=drift.tensors)  # the model is not asked for the start
    assert again.since(now) == drift.since(now)
    with pytest.raises(DataError, match="at 5 positions, got 4"):
        Drift(start, pieces(), kept=drift.tensors[:4])
    with pytest.raises(DataError, match="a token that can be scored"):
        Drift(start, [Piece(document=0, ids=[1, 2], targets=[])])


def test_the_first_document_of_a_row_is_taken_as_far_as_it_is_trained_on() -> None:
    ids, labels = torch.tensor([[5, 6, 7, 8, 9, 0]]), torch.tensor([[-100, -100, 7, 8, 9, -100]])
    assert row_piece({"input_ids": ids, "labels": labels}, longest=4).targets == [2, 3]
    padded = {"input_ids": ids, "labels": labels, "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0]])}
    assert row_piece(padded, longest=99).ids == [5, 6, 7, 8, 9]
    shared = {"input_ids": ids, "labels": labels, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}
    assert row_piece(shared, longest=99) == Piece(document=0, ids=[5, 6, 7], targets=[2])
