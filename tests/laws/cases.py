"""One or more configurations of every registered method, for the laws that all methods must satisfy.

A method that is registered without a case here fails `test_every_method_has_a_case`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.training.method_laws import largest_difference, weights
from tiny import SENTENCES, build_model, build_tokenizer

REPLAY = "<replay>"
"""Stands for the path of the replay file, which only exists inside a test."""
CACHE = "<cache>"
"""Stands for a folder of the test's own."""

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "label_annealing": {
        "forward": {"weight": 2.0},
        "reverse, T=2, all tokens": {"weight": 1.0, "temperature": 2.0, "direction": "reverse", "tokens": "all"},
        "jsd": {"weight": 2.0, "direction": "jsd", "beta": 0.3},
        "cached": {"weight": 2.0, "teacher": "cached", "cache_dir": CACHE},
    },
    "l2": {"default": {"coefficient": 0.5}, "decoupled, disk": {"coefficient": 5.0, "decoupled": True, "keep": "disk"}},
    "ewc": {
        "data": {"coefficient": 3.0, "data": REPLAY},
        "sampled, decoupled, disk": {
            "coefficient": 3.0,
            "data": REPLAY,
            "estimator": "sampled",
            "decoupled": True,
            "keep": "disk",
        },
    },
    "sfa": {"p=0.4": {"p": 0.4, "beta": 0.3}, "every 2, reset": {"every": 2, "reset_optimizer": True}},
    "wise_ft": {"alpha=0.7": {"alpha": 0.7}},
    "ema": {"every 2": {"decay": 0.5, "every": 2}},
    "replay": {"10 %": {"data": REPLAY, "fraction": 0.1}},
    "multitask": {"half": {"data": REPLAY, "share": 0.5}},
    "budget": {
        "kl": {"kl": 0.01},
        "held out": {"kl": 0.01, "data": REPLAY, "every": 2},
        "metric": {"metric_drop": "1 point", "task": "words", "every": 2},
    },
}
"""Active configurations: each must change the weights of a short run."""

OFF: dict[str, dict[str, Any]] = {
    "label_annealing": {"weight": 0.0},
    "l2": {"coefficient": 0.0},
    "sfa": {"beta": 0.0, "p": 0.5},
    "wise_ft": {"alpha": 1.0},
    "ema": {"decay": 0.0},
    "replay": {"data": REPLAY, "fraction": 0.0},
    "multitask": {"data": REPLAY, "share": 0.0},
    "ewc": {"coefficient": 0.0, "data": REPLAY},
    "budget": {"kl": math.inf},
}
"""The configuration that is direct fine-tuning."""

BESIDE: dict[str, dict[str, dict[str, Any]]] = {"budget": {"label_annealing": {"weight": 1.0}}}
"""What a method needs beside it to do anything."""

ALL = [(name, label) for name, cases in CASES.items() for label in cases]
FIRST = [(name, next(iter(cases))) for name, cases in CASES.items()]
"""One case a method, for what costs much; the slow tests do the same with `ALL`."""
KINDS = ("label_annealing", "ewc", "sfa", "replay", "budget")
"""A method of each kind: a loss with a teacher, a pull, an average, other data, a control; for what methods of a kind do alike."""


def spec(name: str, label: str) -> dict[str, dict[str, Any]]:
    """A case as a config's `retention:`, with what it needs."""
    return {**BESIDE.get(name, {}), name: CASES[name][label]}


def rows() -> list[dict[str, str]]:
    return [{"text": f"{number}. {sentence}"} for number in range(8) for sentence in SENTENCES]


def write_replay(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "replay.jsonl"
    path.write_text("".join('{"text": "Old knowledge number %d stays where it is."}\n' % i for i in range(20)))
    return path


def methods(spec: dict[str, dict[str, Any]], folder: Path) -> list[Any]:
    from holdfast.retention.registry import retention

    inside = {REPLAY: str(write_replay(folder)), CACHE: str(folder / "cache")}
    return retention(
        [
            {name: {k: inside.get(v, v) if isinstance(v, str) else v for k, v in values.items()}}
            for name, values in spec.items()
        ]
    )


def words(model: Any) -> list[float]:
    """A task for methods that measure one: the probability of the next token of old sentences, token by token."""
    import torch

    ids = torch.tensor(
        build_tokenizer()([f"Old knowledge number {i} stays where it is." for i in range(10, 14)])["input_ids"]
    )
    log_probabilities = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
    return [float(v) for v in log_probabilities.gather(-1, ids[:, 1:, None]).flatten().exp()]


def make_trainer(
    folder: Path,
    spec: dict[str, dict[str, Any]],
    *,
    peft: bool = False,
    model_seed: int = 0,
    retain: Sequence[Any] | None = None,
    **settings: Any,
):
    """A trainer over the tiny model and a handful of sentences; 6 steps of 4 samples unless told otherwise."""
    from datasets import Dataset, disable_progress_bars
    from peft import LoraConfig
    from trl import SFTConfig

    from holdfast.training.hosts import SFTRetentionTrainer

    disable_progress_bars()
    defaults = dict(
        output_dir=str(folder / "run"),
        max_steps=6,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_steps=2,
        gradient_checkpointing=False,
        disable_tqdm=True,
        max_length=64,
        seed=3,
    )
    from holdfast.data.formats import rows_by_name

    tokenizer = build_tokenizer()
    return SFTRetentionTrainer(
        model=build_model(seed=model_seed),
        args=SFTConfig(**{**defaults, **settings}),
        train_dataset=Dataset.from_list(rows()),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.1)
        if peft
        else None,
        retain=methods(spec, folder) if retain is None else list(retain),
        load_rows=rows_by_name(tokenizer),
        scorers={"words": words},
    )


__all__ = [
    "ALL",
    "BESIDE",
    "CASES",
    "FIRST",
    "KINDS",
    "OFF",
    "REPLAY",
    "largest_difference",
    "make_trainer",
    "methods",
    "rows",
    "spec",
    "weights",
]
