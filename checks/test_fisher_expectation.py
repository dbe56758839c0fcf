"""The sampled Fisher information against its expectation, which takes hundreds of draws."""

from __future__ import annotations

import torch
from datasets import Dataset

from holdfast.retention.fisher import diagonal_fisher
from holdfast.training import method_services as host_module
from holdfast.training.forward import install_forward
from tiny import build_model


def test_sampled_fisher_approaches_the_exact_one():
    """Over many draws, whole sequences: the expectation of the squared score under the model's own distribution, token
    by token."""
    torch.manual_seed(1)
    model = build_model(12, layers=1, width=8).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)  # far from uniform predictions
    ids = [3, 7, 1, 9, 4, 11]
    named = dict(model.named_parameters())
    exact = {n: torch.zeros_like(p) for n, p in named.items()}
    logs = model(input_ids=torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    for place in range(len(ids) - 1):
        for token in range(12):
            gradients = torch.autograd.grad(logs[place, token], list(named.values()), retain_graph=True)
            for total, gradient in zip(exact.values(), gradients, strict=True):
                total += logs[place, token].exp().detach() * gradient**2 / (len(ids) - 1)

    install_forward(model)

    class Alone:
        def first(self):
            return True

        def sum_(self, tensors):
            pass

        def sample_gradients(self, rows, *, sampled, seed):
            batches = ((i, host_module.padded([rows[i]], 64, torch.device("cpu"))) for i in range(len(rows)))
            return host_module.sample_gradients(model, batches, sampled=sampled, seed=seed)

    rows = Dataset.from_list([{"input_ids": ids, "labels": ids}] * 500)
    found = diagonal_fisher(Alone(), named, rows, sampled=True, seed=0).values
    empirical = diagonal_fisher(Alone(), named, rows.select([0]), sampled=False, seed=0).values
    apart = {n: float((v - exact[n]).abs().sum() / exact[n].sum()) for n, v in found.items()}
    assert max(apart.values()) < 0.2, apart
    biased = {n: float((v - exact[n]).abs().sum() / exact[n].sum()) for n, v in empirical.items()}
    assert min(biased.values()) > 0.3, "the labels' own gradients are another quantity here"
