"""Maximal update parametrisation: initialisation, factors, and the coordinate check of Yang et al. 2022, appendix
D.1."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from holdfast.errors import ConfigError
from holdfast.papers.ladder.settings import TRAIN
from holdfast.runs.config import train_config
from holdfast.runs.run import train
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


def test_the_base_width_has_no_factors() -> None:
    model = decoder(BASE)
    assert mup_(model, base_width=BASE) == {}
    head, sigma = model.lm_head.weight, model.config.initializer_range
    assert float(head.std()) == pytest.approx(sigma, rel=0.05)


def test_seeds() -> None:
    first, same, other = decoder(64), decoder(64), decoder(64)
    for model, seed in ((first, 1), (same, 1), (other, 2)):
        mup_(model, base_width=BASE, seed=seed)
    pairs = zip(first.parameters(), same.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) and (a.ndim == 1 or not torch.equal(a, c)) for a, b, c in pairs)


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


def moved(width: int, *, mup: bool, tokenizer: Any) -> float:
    """How much the logits of an olmo2 decoder, written as the ladder writes it, change in a run of four steps."""
    from transformers import AutoModelForCausalLM

    from holdfast.training.fresh_model import Decoder, write_fresh

    size = Decoder(
        architecture="olmo2", layers=2, width=width, heads=width // 16, mlp=2 * width, context=64, more={}
    )  # the ladder's own architecture
    place = Path(f"{width}-{mup}")
    factors = write_fresh(size, tokenizer, place / "start", seed=1, base_width=BASE if mup else None)
    settings = {
        **{k: v for k, v in TRAIN.items() if not k.startswith("save")},
        "model_name_or_path": str(place / "start"),
        "dataset_name": "text.jsonl",
        "max_steps": 4,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "learning_rate": 5e-3,
        "learning_rate_multipliers": factors,
        "use_cpu": True,
        "output_dir": str(place / "run"),
    }
    train(train_config(settings), console=Console(quiet=True))
    ids = torch.randint(5, len(tokenizer), (8, 24), generator=torch.Generator().manual_seed(3))
    before, after = (
        AutoModelForCausalLM.from_pretrained(place / name)(input_ids=ids).logits.detach() for name in ("start", "run")
    )
    return float((after - before).pow(2).mean().sqrt())


@pytest.mark.slow
def test_coordinate_check_of_the_ladders_own_runs(desk: Path, tokenizer: Any) -> None:
    """The same through `training.run.train` on a fresh folder, so that a factor that does not reach the optimiser
    shows."""
    rows = [{"text": f"Names refer to objects; {n} binds a name, and a list of {n * n} holds it."} for n in range(64)]
    Path("text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    held, plain = (slope([moved(w, mup=mup, tokenizer=tokenizer) for w in WIDTHS]) for mup in (True, False))
    assert -0.4 < held < 0.1
    assert plain > held + 0.4
