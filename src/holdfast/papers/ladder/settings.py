"""The keys of a ladder to be pre-trained, declared once.

```yaml
text: [c4/*.jsonl.gz]                    # read once through at most, unless max_passes says more
tokenizer: allenai/OLMo-1B-hf            # or vocab_size: one is trained on the text
architecture: olmo2
sizes:
  15M: {layers: 3, width: 192, heads: 3}
  30M: {layers: 6, width: 384, heads: 6}
budgets: [4B, 8B, 16B, 32B, 64B, 128B]   # tokens; every budget is a run of its own
context: 1024
batch_size: 256                          # windows a step
base_width: 192                          # muP: the rate holds at this width
train: {bf16: true, num_processes: 8}    # keys of 'holdfast train'
evaluation: [{perplexity: held_out.jsonl, name: web}]
```
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from holdfast.config.declare import Meta
from holdfast.config.decode import decode_named
from holdfast.config.values import Refused
from holdfast.errors import Problem
from holdfast.studies.engine import toy as toy_settings
from holdfast.studies.engine.keys import BaseStudySettings, SeedSettings
from holdfast.support.token_counts import read_tokens

_NAME = re.compile(r"[A-Za-z0-9][\w.]*")
OWN = (
    "model_name_or_path",
    "dataset_name",
    "max_length",
    "max_steps",
    "num_train_epochs",
    "packing",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "learning_rate_multipliers",
    "seed",
    "data_seed",
    "output_dir",
    "evaluation",
    "retention",
)
"""Keys of a training configuration that the ladder sets itself."""
SET_BY_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
)
"""Keys of a model's configuration that `model` may not have."""
TRAIN: dict[str, Any] = {
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "weight_decay": 0.1,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "max_grad_norm": 1.0,
    "gradient_checkpointing": False,
    "fused_layers": True,
    "save_strategy": "steps",
    "save_total_limit": 1,
    "report_to": "none",
}
"""Of pre-training, where `train` says nothing else: Overtrained Language Models, appendix C.1,
table 3. A cosine ends at zero."""
FEWEST_STEPS = 10
"""Of a budget: with fewer there is no schedule to speak of."""


def _budgets(value: Any) -> tuple[int, ...]:
    """Budgets as people write them: 4B, 64M, 1.5e6.

    Raises:
        ValueError: one that is no number of tokens.
    """
    return tuple(
        read_tokens(budget) for budget in (value if isinstance(value, (list, tuple)) else [value])
    )


Budgets = Annotated[
    tuple[int, ...],
    Meta(
        parse=_budgets,
        metavar="TOKENS",
        expected="numbers of tokens, such as 4M or 1.5B",
        json_schema=lambda: {"type": "array", "items": {"type": ["integer", "number", "string"]}},
    ),
]


@dataclass(frozen=True, kw_only=True)
class SizeSettings:
    """One size of the model."""

    layers: Annotated[int, Meta(ge=1)]
    """Decoder layers."""
    width: Annotated[int, Meta(ge=2)]
    """Hidden size, a multiple of the number of heads."""
    heads: Annotated[int, Meta(ge=1)]
    """Attention heads."""
    mlp: Annotated[int | None, Meta(ge=1)] = None
    """Width of the feed-forward layers. Default: four times the hidden size."""
    budgets: Budgets = ()
    """Token budgets of this model size. Default: the budgets of the ladder."""
    batch_size: Annotated[int | None, Meta(ge=1)] = None
    """Windows per step for this model size. Default: the batch_size of the ladder."""


def read_sizes(value: Any) -> dict[str, SizeSettings]:
    """Sizes by name, in order.

    Raises:
        ValueError: no mapping.
        Refused: what is wrong in each.
    """
    like = "{layers: 3, width: 192, heads: 3}"
    sizes, problems = decode_named(
        SizeSettings, value, name=_NAME, allowed="a name such as 15M", like=like
    )
    for name, size in sizes.items():
        if size.width % size.heads:
            text = f"expected a multiple of the number of heads ({size.heads}), got {size.width}."
            problems.append(Problem((name, "width"), text))
    if problems:
        raise Refused(*problems)
    return sizes


@dataclass(frozen=True, kw_only=True)
class _Models:
    settings_group: ClassVar[str] = "models"

    architecture: str = "olmo2"
    """Architecture, named by its model type in transformers: olmo2, llama, qwen3, ..."""
    sizes: Annotated[
        dict[str, SizeSettings],
        Meta(
            parse=read_sizes,
            expected="sizes by name, such as '15M: {layers: 3, width: 192, heads: 3}'",
            json_schema=lambda: {"type": "object", "additionalProperties": {"type": "object"}},
        ),
    ] = field(default_factory=dict)
    """Models by name. Each has layers, width and heads, and optionally mlp (default: four times the
    width), budgets and batch_size."""
    model: Annotated[dict[str, Any], Meta(json_schema=lambda: {"type": "object"})] = field(
        default_factory=dict
    )
    """Further keys of the model's configuration, such as {attention_dropout: 0.1, rope_theta:
    10000}."""
    tokenizer: Annotated[str | None, Meta(metavar="MODEL")] = None
    """Folder or hub id of the tokenizer. Default: a new tokenizer is trained on the text."""
    vocab_size: Annotated[int, Meta(ge=300)] = 2048
    """Vocabulary size of the trained tokenizer (byte-level BPE)."""
    base_width: Annotated[int | None, Meta(ge=2, section="batches")] = None
    """Model width for which the learning rate was chosen. For other widths, muP scales learning
    rates and initial weights, so that it suits them too. Default: the architecture's own
    initialisation and one learning rate for all parameters."""


@dataclass(frozen=True, kw_only=True)
class _Training:
    settings_group: ClassVar[str] = "pre-training"

    text: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="FILE")] = ()
    """Files, folders or hub data sets with plain text."""
    budgets: Budgets = ()
    """Numbers of tokens to pre-train on, in rising order. Each number is one run."""
    context: Annotated[int, Meta(ge=2)] = 1024
    """Tokens per window."""
    batch_size: Annotated[int, Meta(ge=1)] = 256
    """Windows per step, over all processes together."""
    per_device: Annotated[int | None, Meta(ge=1, section="batches")] = None
    """Windows that a device processes at once. Default: the windows of a step divided by the
    processes."""
    learning_rate: Annotated[float, Meta(gt=0, lt=1)] = 3e-4
    """Highest learning rate of the cosine schedule, which ends at zero."""
    max_passes: Annotated[float, Meta(gt=0, section="batches")] = 1.0
    """How many times the text may be read. A budget that needs more is refused."""
    train: Annotated[dict[str, Any], Meta(json_schema=lambda: {"type": "object"})] = field(
        default_factory=dict
    )
    """Further keys of 'holdfast train', such as bf16, num_processes, fsdp and weight_decay."""


def _toy_schema() -> dict[str, Any]:
    # a function, for a lambda in an annotation does not see the module's names
    return toy_settings.settings_schema("text")


@dataclass(frozen=True, kw_only=True)
class LadderSettings(_Training, _Models, SeedSettings, BaseStudySettings):
    """Keys of a ladder."""

    toy_start: ClassVar[str] = "text"

    name: str = "ladder"
    evaluation: Annotated[list[Any], Meta(repeatable=True)] = field(default_factory=list)
    """Entries that every pre-trained model is measured on, as in 'holdfast train': {perplexity:
    FILE}, {multiple_choice: FILE}, {task: NAME}."""
    overlap: Literal["refuse", "keep"] = "refuse"
    """What to do if the text contains evaluation data: refuse, or keep it and report it on the
    page."""
    toy: Annotated[str | None, Meta(json_schema=_toy_schema, former=("small",))] = None
    """Makes the text offline. Choices: pretraining, pretraining_long or pretraining_tiny."""

    def problems(self) -> list[Problem | str]:
        """What is missing, and what contradicts itself."""
        problems = super().problems()

        def wrong(key: str, text: str) -> None:
            problems.append(Problem(key, text))

        if not self.text:
            wrong("text", "is missing: files or data sets with plain text to pre-train on.")
        if not self.sizes:
            wrong(
                "sizes",
                "is missing: the models, as in {15M: {layers: 3, width: 192, heads: 3}}.",
            )
        all_budgets: dict[tuple[str, ...], tuple[int, ...]] = {("budgets",): self.budgets}
        for name, size in self.sizes.items():
            all_budgets["sizes", name, "budgets"] = size.budgets
        for path, budgets in all_budgets.items():
            if any(a >= b for a, b in itertools.pairwise(budgets)):
                text = (
                    f"expected rising budgets without repeats, got {', '.join(map(str, budgets))}."
                )
                problems.append(Problem(path, text))
        for name, size in self.sizes.items():
            batch = size.batch_size or self.batch_size
            budgets = size.budgets or self.budgets
            if not budgets:
                problems.append(
                    Problem("budgets", f"is missing: the numbers of tokens to pre-train {name} on.")
                )
            for budget in budgets:
                if budget < FEWEST_STEPS * batch * self.context:
                    text = (
                        f"expected a budget of at least {FEWEST_STEPS} steps of {batch} windows "
                        f"of {self.context} tokens for {name}, got {budget} tokens."
                    )
                    problems.append(Problem("budgets", text))
        problems += [
            Problem(("train", k), "is set by the ladder; leave it out.")
            for k in self.train
            if k in OWN
        ]
        by = "is set by `sizes` and the tokenizer; leave it out."
        problems += [Problem(("model", k), by) for k in self.model if k in SET_BY_SIZES]
        return list(dict.fromkeys(problems))
