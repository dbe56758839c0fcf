"""Runs on the model's own text: `on_policy:` in a training configuration.

```yaml
model_name_or_path: runs/continued        # what training on new text has made
dataset_name: prompts.jsonl               # prompts; answers that stand beside them are left out
on_policy: {max_completion_length: 256}
retention:
  - label_annealing: {direction: reverse, teacher: online, reference: ORIGINAL}
```

The model answers the prompts, and label annealing's divergence from its teacher at the sampled
tokens is the whole loss (`training.preferences.OnPolicyTrainer`).

```yaml
dataset_name: conversations.jsonl         # prompts with answers
on_policy: {self_distillation: reverse}
```

Here the teacher is the model of the start, which reads the answer of the data behind the prompt
(`training.self_distillation`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.config.declare import Meta
from holdfast.data.prompts import (
    DEMONSTRATION,
    after_prompt,
    before_answer,
    encoded_prompt,
    prompts_alone,
    with_demonstration,
)
from holdfast.errors import DataError, Problem
from holdfast.retention.methods.budget import Budget
from holdfast.retention.protocol import (
    LOSS_TERM,
    TOKEN_WEIGHTS,
    RetentionMethod,
    TokenLoss,
    changes_data,
)

if TYPE_CHECKING:
    from holdfast.runs.config import TrainConfig

_KEY = "on_policy"
_ONLY_LABELS = (
    "packing",
    "padding_free",
    "assistant_only_loss",
    "completion_only_loss",
    "train_on",
    "dataset_streaming",
    "streaming",
    "data",
)
"""Settings that speak of rows with labels."""


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """How a model answers prompts while it is trained; names as in `trl.DistillationConfig`."""

    max_completion_length: Annotated[int, Meta(ge=1)] = 256
    """Maximum number of tokens in an answer."""
    temperature: Annotated[float, Meta(gt=0)] = 1.0
    """Temperature for sampling answers. The divergence has a temperature of its own: that of
    label_annealing, or 1 with self_distillation."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Nucleus sampling (top-p): samples from the most likely tokens with this total
    probability."""


@dataclass(frozen=True, kw_only=True)
class OnPolicySettings(SamplingSettings):
    """How a model answers prompts while it is trained, and who its teacher is."""

    self_distillation: Literal["forward", "reverse", "jsd"] | None = None
    """Self-distillation (SDFT): the teacher is the initial model, which also reads the data's
    answer after the prompt. The value is the direction of the divergence. null: no
    self-distillation; label annealing provides teacher and divergence."""


def _problems_of(term: TokenLoss) -> Iterator[str]:
    """What of label annealing does not go with `on_policy`; a sentence each."""
    if term.teacher.kind == "cached":
        yield Problem(
            ("retention", "label_annealing", "teacher"),
            (
                f"expected 'online' or 'adapter_off' with {_KEY}, got 'cached'. Its text is not known "
                "before training."
            ),
        )
    if term.mask_target:
        yield Problem(
            ("retention", "label_annealing", "mask_target"),
            f"expected false with {_KEY}, got true. The divergence is the only loss here, and "
            "mask_target would leave each sampled token out of it.",
        )


def problems(
    methods: Sequence[RetentionMethod], values: Mapping[str, Any], given: Collection[str]
) -> Iterator[str]:
    """What does not go with `on_policy`; a sentence each.

    Args:
        methods: the run's.
        values: its settings.
        given: keys that the user set.
    """
    active = [method for method in methods if not method.off]
    terms = [term for method in active if (term := method.token_loss()) is not None]
    alone = values[_KEY].self_distillation is not None
    if alone and terms:
        yield (
            Problem(
                "retention",
                f"label_annealing has its own teacher, and with {_KEY}.self_distillation the "
                "initial model is the teacher. Leave one of the two out.",
            )
        )
    if not terms and not alone:
        yield (
            Problem(
                _KEY,
                "expected label_annealing with a weight above 0 under retention, got none. The "
                "only loss is the divergence from its teacher. Add label_annealing, with the "
                "model before fine-tuning as reference.",
            )
        )
    for term in terms:
        yield from _problems_of(term)
    for method in active:
        if isinstance(method, Budget) and terms:
            yield (
                Problem(
                    ("retention", "budget"),
                    "adapts the weight of label_annealing to balance it with another loss, but "
                    f"with {_KEY} label_annealing is the only loss. Leave budget out.",
                )
            )
        if method.needs & {TOKEN_WEIGHTS, LOSS_TERM}:
            yield Problem(
                ("retention", method.name),
                "changes the loss that is computed on labels, but "
                f"{_KEY} trains without labels. Leave one out.",
            )
        if changes_data(method):
            yield (
                Problem(
                    ("retention", method.name),
                    f"mixes rows with labels into the data, but {_KEY} trains without labels. "
                    "Leave one out.",
                )
            )
    if str(values.get("loss_type") or "nll") == "dft":
        yield Problem(
            "loss_type",
            f"dft weights the loss on labels, but {_KEY} trains without labels. Leave one out.",
        )
    if (
        str(getattr(values.get("eval_strategy"), "value", values.get("eval_strategy")) or "no")
        != "no"
    ):
        yield (
            Problem(
                "eval_strategy",
                f"measures rows with labels, but {_KEY} trains without labels. Instead, list "
                "held-out files under evaluation, and set evaluation.along.",
            )
        )
    for key in _ONLY_LABELS:
        if key in given and values.get(key, True):
            yield Problem(
                key,
                f"has no effect with {_KEY}, which trains on the model's own answers. Leave it "
                "out.",
            )


def read_prompts(rows: Any, read: Any, *, answers: bool = False) -> Any:
    """Rows with nothing but a `prompt`: text, or messages up to where an answer begins.

    Args:
        rows: as the files have them.
        read: what makes one of the known layouts of them (see `data.formats.standardise`), for all
            but prompts alone.
        answers: also keep the answer, text, as `privileged_context`; every row has to have one.

    Raises:
        DataError: no known layout, images, no row with a prompt; with `answers` a row without a
            question of the user and its answer.
    """
    rows = rows if prompts_alone(rows.column_names) else read(rows)
    if "images" in rows.column_names:
        raise DataError(f"{_KEY}: expected prompts of text, got rows with images.")
    if "input_ids" in rows.column_names and "messages" not in rows.column_names:
        raise DataError(f"{_KEY}: expected prompts as text or messages, got tokenised rows.")
    prompts = rows.map(
        lambda row: {
            "prompt": _prompt(row),
            **({DEMONSTRATION: after_prompt(row)} if answers else {}),
        },
        remove_columns=rows.column_names,
    )
    if answers:
        lacking = []
        for number, row in enumerate(prompts, 1):
            if not (_asks(row) and row[DEMONSTRATION]):
                lacking.append(number)
        if lacking:
            raise DataError(
                f"{_KEY}.self_distillation: every row needs a question and its answer, which the "
                f"teacher reads. {len(lacking)} of {len(prompts)} rows lack one of them, the first "
                f"is row {lacking[0]}. Remove these rows."
            )
        return prompts
    with_prompt = prompts.filter(lambda row: bool(row["prompt"]))
    if not len(with_prompt):
        raise DataError(f"{_KEY}: expected prompts, but all {len(prompts)} rows have none.")
    return with_prompt


def _asks(row: Mapping[str, Any]) -> bool:
    """Whether a prompt is text, or ends with text of the user: where the demonstration is put
    behind."""
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return bool(prompt.strip())
    return bool(prompt) and prompt[-1]["role"] == "user" and isinstance(prompt[-1]["content"], str)


def _prompt(row: Mapping[str, Any]) -> Any:
    if "text" in row:
        return row["text"]
    return before_answer(row["messages"]) if "messages" in row else row["prompt"]


def completion_length(config: TrainConfig) -> int:
    """Tokens of a sampled answer at most."""
    if config.holdfast.on_policy is not None:
        return config.holdfast.on_policy.max_completion_length
    return int(config.training.max_completion_length)  # of GRPOConfig


def check_lengths(config: TrainConfig, rows: Any, tokenizer: Any, context: int | None) -> int:
    """Tokens of the longest prompt.

    Args:
        config: of the run.
        rows: as `read_prompts` gives them.
        tokenizer: the model's.
        context: tokens that the model can read; None: any number.

    Raises:
        DataError: prompts that leave no room for an answer.
    """
    longest, row_of_longest = max(
        (_tokens(row, tokenizer), number) for number, row in enumerate(rows)
    )
    room = completion_length(config)
    if context is not None and longest + room > context:
        trainer = config.holdfast.trainer if config.holdfast.on_policy is None else _KEY
        raise DataError(
            f"{trainer}: the prompt of row {row_of_longest + 1} has {longest} tokens. An "
            f"answer may have {room} more, and the model's context holds {context}. Lower "
            "max_completion_length, or leave long prompts out."
        )
    return longest


def _tokens(row: Mapping[str, Any], tokenizer: Any) -> int:
    """Of the longer of the prompts that model and teacher read."""
    return len(
        encoded_prompt(
            {"prompt": with_demonstration(row)} if DEMONSTRATION in row else row, tokenizer
        )
    )
