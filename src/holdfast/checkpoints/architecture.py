"""Whether checkpoints mean the same by their weights: what their configurations say of the
computation.

Equal names and shapes are not enough. Rotary base and scaling, the number of heads, norm epsilon,
activation, windows, soft caps and scales decide what a weight does, and the average of weights that
do different things does neither. What only says how a model was saved, trained or is to be run
(dtype, dropout, special tokens, context length) is left aside, and so are sizes that tensors show.

Configurations that differ as texts are filled in by transformers' own classes, so that a key left
at its default, or written as an earlier version did (`rope_theta`, `rope_scaling`), is no
difference.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.checkpoints.fit import completed_config
from holdfast.checkpoints.sources import read_config

_ASIDE = re.compile(
    r"_?name_or_path|transformers_version|architectures|auto_map|(torch_)?dtype|_?attn_implementation\w*|use_cache"
    r"|use_associative_scan|use_mamba\w+|quantization_config|id2label|label2id|num_labels|pretraining_tp|return_dict"
    r"|(vocab|hidden|intermediate)_size|num_hidden_layers|tie_word_embeddings|max_window_layers|num_logits_to_keep"
    r"|max_position_embeddings|n_positions|n_ctx|max_seq_len|model_max_length|output_\w+|summary_\w+|mtp_\w+"
    r"|\w*_token_(id|ids|index)|\w*drop(out)?(_\w+)?|init\w*|\w*_(aux|z)_loss\w*|\w*jitter\w*|num_nextn_predict_layers"
)
"""Last parts of keys that say nothing of what weights mean, or what tensors or another policy
say."""


SHAPE = (
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
"""Of config.json: what a model and what was tuned from it have in common. The vocabulary may have
grown."""


def shape_differences(base: Mapping[str, Any], tuned: Mapping[str, Any]) -> list[str]:
    """In what a model cannot have been tuned from another, such as `hidden_size 8 and 16`.

    Args:
        base, tuned: contents of config.json.
    """
    different = []
    for key in SHAPE:
        if base.get(key) != tuned.get(key):
            different.append(f"{key} {base.get(key)} and {tuned.get(key)}")
    return different


def config_differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Keys in which configurations differ that decide what weights mean, each with its value in
    every one of them; None where a configuration does not have it.

    Args:
        configs: contents of config.json. One without a `model_type` describes no model, and is an
            error of none.
    """
    if not all(config.get("model_type") for config in configs):
        return {}
    if not _differing([dict(_flat(config)) for config in configs]):
        return {}
    return _differing([dict(_flat(completed_config(config))) for config in configs])


def meaning_of_weights(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration says of what weights mean, by dotted key; without what is left aside."""
    return dict(_flat(config))


def anchor_differences(anchor: str | os.PathLike[str], config: Mapping[str, Any]) -> str:
    """In what the configuration of an anchor's folder says something else of what weights mean than
    that of the model that is trained; empty where it does not, or where the folder has none (an
    adapter)."""
    theirs = read_config(anchor)
    if theirs.get("model_type") != config.get(
        "model_type"
    ):  # a model that also sees, of which the text part is trained
        theirs = theirs.get("text_config", theirs)
    return "; ".join(difference_texts(config_differences([theirs, config]), ["there", "here"]))


def difference_texts(differences: Mapping[str, Sequence[Any]], names: Sequence[str]) -> list[str]:
    """The differences, each as `key: value (who, who), other value (who)`."""
    lines = []
    for key, values in differences.items():
        owners: dict[str, list[str]] = {}
        for value, name in zip(values, names, strict=True):
            owners.setdefault("not set" if value is None else str(value), []).append(name)
        with_owners = [f"{value} ({', '.join(who)})" for value, who in owners.items()]
        lines.append(f"{key}: {', '.join(with_owners)}")
    return lines


def _differing(flat: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    keys: dict[str, None] = {}
    for config in flat:
        keys |= dict.fromkeys(config)
    differing = {}
    for key in keys:
        values = [config.get(key) for config in flat]
        if any(value != values[0] for value in values):
            differing[key] = values
    return differing


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """What decides, by dotted key."""
    for key, value in config.items():
        if _ASIDE.fullmatch(key):
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
