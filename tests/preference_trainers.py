"""Trainers of the preference hosts over the tests' tiny model, and pairs for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.training.method_laws import SETTINGS
from tiny import SENTENCES, build_model, build_tokenizer


def pairs() -> Any:
    """Prompts with two completions of different lengths."""
    from datasets import Dataset

    rows = [
        {"prompt": f"{n}. {s[:12]}", "chosen": f"{s[12:]} Indeed, number {n}.", "rejected": s[12:][::-1]}
        for n in range(4)
        for s in SENTENCES
    ]
    return Dataset.from_list(rows)


def dpo(folder: Path, retain: Sequence[Any] = (), *, data: Any = None, host: Any = None, **settings: Any) -> Any:
    """A trainer of pairs.

    Args:
        folder: the run goes into `folder/run`.
        host: the trainer's class; None: `DPORetentionTrainer`.
        settings: of `DPOConfig`; `peft_config`, `ref_model`, `model` and `eval_dataset` go to the trainer.
    """
    from datasets import disable_progress_bars
    from trl import DPOConfig

    from holdfast.training.preferences import DPORetentionTrainer

    disable_progress_bars()
    own = {k: settings.pop(k) for k in ("peft_config", "ref_model", "eval_dataset") if k in settings}
    model = settings.pop("model", None) or build_model()
    more = {"retain": list(retain)} if host is None else {}
    return (host or DPORetentionTrainer)(
        model=model,
        args=DPOConfig(**{"output_dir": str(folder / "run"), "max_length": 64, **SETTINGS, **settings}),
        train_dataset=pairs() if data is None else data,
        processing_class=build_tokenizer(),
        **more,
        **own,
    )


def judged() -> Any:
    """The completions of `pairs` one by one, every other pair turned round, so that batches hold both kinds."""
    from datasets import Dataset

    rows = []
    for number, pair in enumerate(pairs().to_list()):
        for label in (True, False) if number % 2 else (False, True):
            completion = pair["chosen" if label else "rejected"]
            rows.append({"prompt": pair["prompt"], "completion": completion, "label": label})
    return Dataset.from_list(rows)


def kto(folder: Path, retain: Sequence[Any] = (), *, data: Any = None, host: Any = None, **settings: Any) -> Any:
    """A trainer of judged answers; arguments as of `dpo`."""
    from datasets import disable_progress_bars
    from trl import KTOConfig

    from holdfast.training.preferences import KTORetentionTrainer

    disable_progress_bars()
    own = {k: settings.pop(k) for k in ("peft_config", "ref_model", "eval_dataset") if k in settings}
    model = settings.pop("model", None) or build_model()
    more = {"retain": list(retain)} if host is None else {}
    return (host or KTORetentionTrainer)(
        model=model,
        args=KTOConfig(**{"output_dir": str(folder / "run"), "max_length": 64, **SETTINGS, **settings}),
        train_dataset=judged() if data is None else data,
        processing_class=build_tokenizer(),
        **more,
        **own,
    )


def vowels(completions: Sequence[str], **_: Any) -> list[float]:
    """A reward: the share of vowels."""
    return [sum(c in "aeiou" for c in text) / (len(text) + 1) for text in completions]


def grpo(folder: Path, retain: Sequence[Any] = (), *, host: Any = None, **settings: Any) -> Any:
    """A trainer of sampled completions; arguments as of `dpo`."""
    from datasets import disable_progress_bars
    from trl import GRPOConfig

    from holdfast.training.preferences import GRPORetentionTrainer

    disable_progress_bars()
    more = {"retain": list(retain)} if host is None else {}
    defaults: Mapping[str, Any] = {"num_generations": 4, "max_completion_length": 8, "temperature": 1.0}
    return (host or GRPORetentionTrainer)(
        model=settings.pop("model", None) or build_model(),
        reward_funcs=vowels,
        args=GRPOConfig(**{"output_dir": str(folder / "run"), **SETTINGS, **defaults, **settings}),
        train_dataset=pairs().select_columns(["prompt"]),
        processing_class=build_tokenizer(),
        **more,
    )


def on_policy(folder: Path, retain: Sequence[Any] = (), *, host: Any = None, **settings: Any) -> Any:
    """A trainer of prompts; arguments as of `dpo`, `teacher_model` goes to TRL's own."""
    from datasets import disable_progress_bars
    from trl import DistillationConfig

    from holdfast.training.preferences import OnPolicyTrainer

    disable_progress_bars()
    own = {k: settings.pop(k) for k in ("peft_config", "teacher_model", "eval_dataset") if k in settings}
    model = settings.pop("model", None) or build_model()
    more = {"retain": list(retain)} if host is None else {}
    defaults: Mapping[str, Any] = {"max_completion_length": 8}
    return (host or OnPolicyTrainer)(
        model=model,
        args=DistillationConfig(**{"output_dir": str(folder / "run"), **SETTINGS, **defaults, **settings}),
        train_dataset=pairs().select_columns(["prompt"]),
        processing_class=build_tokenizer(),
        **more,
        **own,
    )


def self_distilling(folder: Path, retain: Sequence[Any] = (), *, host: Any = None, **settings: Any) -> Any:
    """A trainer of prompts with answers; arguments as of `dpo`. The model comes from a folder, from which TRL's own
    loads its teacher."""
    from datasets import disable_progress_bars
    from transformers import AutoModelForCausalLM
    from trl.experimental.sdft import SDFTConfig

    from holdfast.training.self_distillation import BEHIND, SelfDistillationTrainer

    disable_progress_bars()
    own = {k: settings.pop(k) for k in ("peft_config", "train_dataset") if k in settings}
    if not (folder / "start").is_dir():
        build_model().save_pretrained(folder / "start")
    defaults: Mapping[str, Any] = {
        "max_completion_length": 8,
        "num_generations": 1,
        "distillation_mode": "full_logits",
        "distillation_alpha": 1.0,
        "teacher_prompt_template": BEHIND,
    }
    rows = pairs().select_columns(["prompt", "chosen"]).rename_column("chosen", "privileged_context")
    more = {"retain": list(retain)} if host is None else {}
    return (host or SelfDistillationTrainer)(
        model=AutoModelForCausalLM.from_pretrained(folder / "start"),
        args=SDFTConfig(**{"output_dir": str(folder / "run"), **SETTINGS, **defaults, **settings}),
        processing_class=build_tokenizer(),
        **{"train_dataset": rows, **own},
        **more,
    )
