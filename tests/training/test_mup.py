"""Maximal update parametrisation: initialisation, factors, and the coordinate check of Yang et al. 2022, appendix
D.1."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from holdfast.errors import ConfigError
from holdfast.training.learning_rates import factors_of
from holdfast.training.mup import mup_
from tiny import build_model

BASE = 64
WIDTHS = (64, 128, 256, 512)


def decoder(width: int, sigma: float = 0.02) -> Any:
    """A Llama whose heads have 16 elements at every width."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=width // 16,
        num_key_value_heads=width // 16,
        max_position_embeddings=64,
        initializer_range=sigma,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def test_spreads_and_factors() -> None:
    model = decoder(256)
    sigma = model.config.initializer_range
    factors = factors_of([n for n, _ in model.named_parameters()], mup_(model, base_width=BASE, seed=1))
    for name, p in model.named_parameters():
        if "norm" in name:
            assert torch.equal(p, torch.ones_like(p)) and factors[name] == 1
        elif "embed" in name:
            assert float(p.std()) == pytest.approx(sigma, rel=0.05) and factors[name] == 1
        else:
            spread = sigma / 4 if "lm_head" in name else sigma / 2
            assert float(p.std()) == pytest.approx(spread, rel=0.05) and factors[name] == 0.25


def grown(width: int, *, mup: bool, steps: int = 4, rate: float = 5e-3) -> tuple[float, float]:
    """How much logits and the last hidden states change in a few steps of Adam: root mean squares."""
    model = decoder(width, sigma=0.1)
    torch.manual_seed(0)
    factors = mup_(model, base_width=BASE) if mup else {}
    by_name = factors_of([n for n, _ in model.named_parameters()], factors)
    groups = [{"params": [p], "lr": rate * by_name[n]} for n, p in model.named_parameters()]
    optimiser = torch.optim.Adam(groups)
    ids = torch.randint(0, 64, (8, 24), generator=torch.Generator().manual_seed(3))
    seen = []
    for _ in range(steps + 1):
        out = model(input_ids=ids, labels=ids, output_hidden_states=True)
        seen.append((out.logits.detach(), out.hidden_states[-2].detach()))
        optimiser.zero_grad()
        out.loss.backward()
        optimiser.step()
    (first, hidden), (last, after) = seen[0], seen[-1]
    return float((last - first).pow(2).mean().sqrt()), float((after - hidden).pow(2).mean().sqrt())


def slope(values: list[float]) -> float:
    """Of log value against log width: the power with which a change grows."""
    x = torch.tensor([math.log(w) for w in WIDTHS])
    y = torch.tensor([math.log(v) for v in values])
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


@pytest.mark.slow
def test_coordinate_check() -> None:
    """Under muP a few steps change hidden states as much at every width, and logits no more; as transformers
    initialises, with one rate for all, both grow with the width."""
    logits, hidden = (slope(list(changes)) for changes in zip(*(grown(w, mup=True) for w in WIDTHS), strict=True))
    assert abs(hidden) < 0.15
    assert -0.4 < logits < 0.1, "what of the change comes from the head's first draws fades with 1 / sqrt(width)"
    logits, hidden = (slope(list(changes)) for changes in zip(*(grown(w, mup=False) for w in WIDTHS), strict=True))
    assert hidden > 1.2 and logits > 0.4


def test_tied_embeddings_are_refused() -> None:
    with pytest.raises(ConfigError, match="tie_word_embeddings: false"):
        mup_(build_model(), base_width=16)
