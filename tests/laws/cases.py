"""One or more configurations of every registered method, for the laws that all methods must satisfy.

A method that is registered without a case here fails `test_every_method_has_a_case`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from extending import write_method
from holdfast.training.method_laws import SETTINGS, largest_difference, weights
from tiny import SENTENCES, build_model, build_tokenizer
from vision_models import (
    ARCHITECTURES,
    WITH_VIDEOS,
    build_processor,
    build_vision_model,
    vision_rows,
)

REPLAY = "<replay>"
"""Stands for the path of the replay file, which only exists inside a test."""
CACHE = "<cache>"
"""Stands for a folder of the test's own."""

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "label_annealing": {
        "forward": {"weight": 2.0},
        "reverse, T=2, all tokens": {"weight": 1.0, "temperature": 2.0, "direction": "reverse", "tokens": "all"},
        "jsd, target masked": {"weight": 2.0, "direction": "jsd", "beta": 0.3, "mask_target": True},
        "cached": {"weight": 2.0, "teacher": "cached", "cache_dir": CACHE},
    },
    "token_weighting": {
        "eaft": {"alpha": 0.7},
        "dft, blended": {"kind": "dft", "coefficient": 0.6},
        "talr": {"kind": "talr"},
    },
    "l2": {
        "default": {"coefficient": 0.5},
        "decoupled, disk": {"coefficient": 5.0, "decoupled": True, "reference_device": "disk"},
    },
    "ewc": {
        "data": {"coefficient": 3.0, "data": REPLAY},
        "sampled, decoupled, disk": {
            "coefficient": 3.0,
            "data": REPLAY,
            "estimator": "sampled",
            "decoupled": True,
            "reference_device": "disk",
        },
    },
    "sfa": {"p=0.4": {"p": 0.4, "beta": 0.3}, "every 2, reset": {"every": 2, "reset_optimizer": True}},
    "wise_ft": {
        "alpha=0.7": {"alpha": 0.7},
    },
    "ema": {"every 2": {"decay": 0.5, "every": 2}},
    "replay": {"10 %": {"data": REPLAY, "fraction": 0.1}},
    "self_replay": {
        "from the start": {"fraction": 0.2, "max_new_tokens": 24, "batch_size": 4, "cache_dir": CACHE},
        "prompts": {
            "prompts": REPLAY,
            "fraction": 0.2,
            "max_new_tokens": 12,
            "batch_size": 3,
            "cache_dir": CACHE,
        },
    },
    "multitask": {"half": {"data": REPLAY, "share": 0.5}},
    "budget": {
        "kl": {"kl": 0.01},
        "held out": {"kl": 0.01, "data": REPLAY, "every": 2},
    },
    "mofo": {"a fifth": {"fraction": 0.2}},
}
"""Active configurations: each must change the weights of a short run."""

OFF: dict[str, dict[str, Any]] = {
    "label_annealing": {"weight": 0.0},
    "token_weighting": {"coefficient": 0.0},
    "l2": {"coefficient": 0.0},
    "sfa": {"beta": 0.0, "p": 0.5},
    "wise_ft": {"alpha": 1.0},
    "ema": {"decay": 0.0},
    "mofo": {"fraction": 1.0},
    "replay": {"data": REPLAY, "fraction": 0.0},
    "self_replay": {"fraction": 0.0},
    "multitask": {"data": REPLAY, "share": 0.0},
    "ewc": {"coefficient": 0.0, "data": REPLAY},
    "budget": {"kl": math.inf},
}
"""The configuration that is direct fine-tuning."""

BESIDE: dict[str, dict[str, dict[str, Any]]] = {"budget": {"label_annealing": {"weight": 1.0}}}
"""What a method needs beside it to do anything."""

TRAINED: dict[str, dict[str, Any]] = {"mofo": {"optim": "adamw_torch", "learning_rate": 1e-2, "double": True}}
"""How a method is trained where others are by plain SGD: it chooses by Adam's momenta, where rounding may choose
another parameter; in float64 there is hardly any."""

OWN = "own"
"""Stands for the method of docs/extending.md, whose draws are the same on any number of ranks."""
SECOND_PASS = "second_pass"
"""Stands for the method of `second_pass.py`, which has a second forward pass in its loss."""
OWN_CASES: dict[str, dict[str, Any]] = {OWN: {"rate": 0.3}, SECOND_PASS: {"weight": 3.0}}

ALL = [(name, label) for name, cases in CASES.items() for label in cases]
FIRST = [(name, next(iter(cases))) for name, cases in CASES.items()]
"""One case a method, for what costs much; the slow tests do the same with `ALL`."""
KINDS = ("label_annealing", "ewc", "sfa", "replay", "self_replay", "budget")
"""A method of each kind: a loss with a teacher, a pull, an average, other data, the start's own data, a control; for
what methods of a kind do alike."""

RESUMED = ("label_annealing", "ewc", "sfa", "replay")
"""A method a place (loss, gradient, weights, data), for runs that are continued."""

QUICK = [("direct", ""), *(case for case in FIRST if case[0] in KINDS), (OWN, ""), (SECOND_PASS, "")]
"""What two ranks train in every run of the tests."""
EVERY = [("direct", ""), *ALL, (OWN, ""), (SECOND_PASS, "")]


WITH_IMAGES = {
    "replay": {"data": REPLAY, "fraction": 0.4, "unit": "examples"},
    "self_replay": {"fraction": 0.4, "unit": "examples", "max_new_tokens": 12, "batch_size": 4, "cache_dir": CACHE},
}
"""What a method is configured as where rows hold images, if otherwise than by its first case: a batch's tokens are not
known before it is made."""
SEEING = [(name, ARCHITECTURES[number % 2]) for number, name in enumerate(("direct", *CASES))]
"""Every method on one of the vision-language models, turn by turn."""
SEEING_ALL = [(name, images) for name in ("direct", *CASES) for images in ARCHITECTURES]
SEEING_TOO = [(name, images) for name in ("direct", "label_annealing") for images in WITH_VIDEOS]
"""Architectures that most tests leave out."""


def seeing(name: str) -> dict[str, dict[str, Any]]:
    """A method's first case on a vision-language model, with what it needs."""
    return spec(name, next(iter(CASES.get(name, {"": {}})))) | (
        {name: WITH_IMAGES[name]} if name in WITH_IMAGES else {}
    )


def spec(name: str, label: str) -> dict[str, dict[str, Any]]:
    """A case as a config's `retention:`, with what it needs; "direct" is plain fine-tuning."""
    if name == "direct":
        return {}
    if name in OWN_CASES:
        return {name: OWN_CASES[name]}
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

    folder.mkdir(parents=True, exist_ok=True)
    file = f"method{os.environ.get('RANK', '')}.py"  # ranks write side by side
    second_pass = Path(__file__).with_name("second_pass.py")
    names = {OWN: f"{write_method(folder, name=file)}:Dropback", SECOND_PASS: f"{second_pass}:SecondPass"}
    inside = {REPLAY: str(write_replay(folder)), CACHE: str(folder / "cache")}
    return retention(
        [
            {names.get(name, name): {k: inside.get(v, v) if isinstance(v, str) else v for k, v in values.items()}}
            for name, values in spec.items()
        ]
    )


def lora(**changes: Any) -> Any:
    from peft import LoraConfig

    settings = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", "lora_dropout": 0.1}
    return LoraConfig(**{**settings, **changes})


def make_trainer(
    folder: Path,
    retain: Mapping[str, dict[str, Any]] | Sequence[Any] = (),
    *,
    model: Any = None,
    data: Any = None,
    evaluated: Any = None,
    collator: Any = None,
    peft: Any = None,
    multipliers: Mapping[str, float] | None = None,
    images: str | None = None,
    train_only: Sequence[str] = (),
    double: bool = False,
    **settings: Any,
):
    """The trainer of all tests: the tiny model and a handful of sentences, 6 steps of 4 samples, unless told otherwise.

    Args:
        folder: of the run (`folder/run`) and the files that methods read.
        retain: methods, or a case as `spec` gives it.
        peft: an adapter's configuration; True: `lora()`.
        images: an architecture of `vision_models`: its model, processor and rows in place of the others.
        double: whether the model is in float64.
        settings: of `SFTConfig`.
    """
    from datasets import Dataset, disable_progress_bars
    from trl import SFTConfig

    from holdfast.data.formats import rows_by_name
    from holdfast.training.trainers import SFTRetentionTrainer

    disable_progress_bars()
    defaults = {"output_dir": str(folder / "run"), "max_length": 64, **SETTINGS}
    tokenizer = build_tokenizer() if images is None else build_processor(images)
    if images is not None:
        model = build_vision_model(images) if model is None else model
        data = vision_rows() if data is None else data
    model = build_model() if model is None else model
    return SFTRetentionTrainer(
        model=model.double() if double else model,
        args=SFTConfig(**{**defaults, **settings}),
        train_dataset=Dataset.from_list(rows()) if data is None else data,
        eval_dataset=evaluated,
        data_collator=collator,
        processing_class=tokenizer,
        peft_config=lora() if peft is True else peft or None,
        retain=methods(retain, folder) if isinstance(retain, Mapping) else list(retain),
        load_rows=rows_by_name(tokenizer),
        learning_rate_multipliers=multipliers,
        train_only=train_only,
    )


def history(trainer: Any, key: str) -> list[float]:
    """The logged figures of a name."""
    return [row[key] for row in trainer.state.log_history if key in row]


__all__ = [
    "ALL",
    "BESIDE",
    "CASES",
    "EVERY",
    "FIRST",
    "KINDS",
    "OFF",
    "OWN",
    "QUICK",
    "REPLAY",
    "RESUMED",
    "SECOND_PASS",
    "SEEING",
    "SEEING_ALL",
    "SEEING_TOO",
    "TRAINED",
    "history",
    "largest_difference",
    "lora",
    "make_trainer",
    "methods",
    "rows",
    "seeing",
    "spec",
    "weights",
]
