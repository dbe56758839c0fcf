"""What decides a model's figures beside its weights, and what two models differ in: the tokenizer,
the chat template, the length of the context, the dtype, and what config.json says of the weights.

It stands in `Evaluation.model` of every entry that a model is loaded for. Behind a server none of
it is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.checkpoints.architecture import meaning_of_weights
from holdfast.records.evaluation import Evaluation
from holdfast.support.files import fingerprint

KEYS = ("tokenizer", "chat_template", "context", "dtype", "config")
"""Of `Evaluation.model`: hashes, tokens, and such as "bfloat16"."""
_NAMES = {"tokenizer": "tokenizer", "chat_template": "chat template", "config": "config.json"}
_MEANINGS = {
    "tokenizer": "The tokenizers differ before and after (vocabulary, rules or special tokens): "
    "the models read the same text as different tokens.",
    "chat_template": "The chat templates differ before and after.",
    "context": "The context has {before:,} tokens before and {after:,} after: longer text is "
    "cut for one model only.",
    "dtype": (
        "The dtype was {before} before and {after} after. This may explain a small difference."
    ),
}


def circumstances(model: Any, tokenizer: Any, tokenizer_rules: str) -> dict[str, Any]:
    """What is known of a model that was loaded, by `KEYS`.

    Args:
        model: a Hugging Face causal LM, or what stands in for one.
        tokenizer: with its chat template, or none.
        tokenizer_rules: hash of what makes ids of a text.
    """
    from holdfast.evaluation.text.perplexity import context_of

    values: dict[str, Any] = {
        "tokenizer": tokenizer_rules,
        "chat_template": fingerprint(getattr(tokenizer, "chat_template", None), length=16),
        "context": context_of(model),
    }
    for parameter in model.parameters() if hasattr(model, "parameters") else ():
        if parameter.is_floating_point():
            values["dtype"] = str(parameter.dtype).removeprefix("torch.")
            break
    if hasattr(model.config, "to_dict"):
        values["config"] = fingerprint(meaning_of_weights(model.config.to_dict()), length=16)
    return {key: value for key, value in values.items() if value is not None}


def remarks_on_circumstances(pairs: Sequence[tuple[Evaluation, Evaluation]]) -> list[str]:
    """What two models differ in, and whether they are the same; a sentence each.

    Args:
        pairs: evaluations of one entry before and after.
    """
    differences: dict[str, tuple[Any, Any]] = {}
    is_known = False
    same_weights = bool(pairs)
    for before, after in pairs:
        weights = before.model.get("hash")
        same_weights = same_weights and weights is not None and weights == after.model.get("hash")
        for key in KEYS:
            values = before.model.get(key), after.model.get(key)
            if None in values:
                continue
            if values[0] == values[1]:
                is_known = True
            else:
                differences.setdefault(key, values)
    notes = []
    for key, text in _MEANINGS.items():
        if key in differences:
            before_value, after_value = differences[key]
            notes.append(text.format(before=before_value, after=after_value))
    if not same_weights:
        return notes
    others = [_NAMES.get(key, key) for key in KEYS if key in differences]
    if others:
        notes.append(
            "Both have the same weights (equal hashes), but a different "
            f"{', a different '.join(others)}."
        )
    elif is_known:
        notes.append(
            "Both are the same model (equal hashes): every difference is measurement noise."
        )
    else:
        notes.append(
            "Both have the same weights (equal hashes); tokenizer, template and dtype are not "
            "recorded."
        )
    return notes
