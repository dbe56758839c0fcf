"""What to do with an adapter that cannot be merged while it is read: the command that merges it once
with PEFT, or why PEFT cannot merge it either.

The command loads the base that holdfast found, which need not be the one the adapter names, with as
many rows of the vocabulary as the adapter has. Where the base ties its head to its embeddings and
the adapter changes one of them, the head gets a tensor of its own first: PEFT would change both.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.adapter_settings import PREFIX, WRAPPERS, is_adapter
from holdfast.checkpoints.sources import config_of
from holdfast.checkpoints.vocabulary import EMBEDDINGS, first_matrix

if TYPE_CHECKING:
    from holdfast.checkpoints.reader import CheckpointReader
    from holdfast.checkpoints.sources import Source

CHANGES_BASE = ("pissa", "corda", "olora", "lora_ga", "loftq")
"""Initialisations that leave a base other than the stored one."""
_REPEATED = ("pissa", "olora")
"""Those that PEFT repeats bit for bit when it loads the adapter. It draws random numbers for
`pissa_niter_4`, wants data for CorDA, quantises for LoftQ, and leaves out LoRA-GA's."""
_NO_WEIGHTS = frozenset(
    {
        "ADAPTION_PROMPT",
        "CARTRIDGE",
        "CPT",
        "MULTITASK_PROMPT_TUNING",
        "P_TUNING",
        "PREFIX_TUNING",
        "PROMPT_TUNING",
        "SHADOW",
    }
)
"""Kinds that are no change of weights."""
_VOCABULARY = frozenset({*EMBEDDINGS, "lm_head", "embed_out", "output_layer"})
"""Modules with one row a token."""
_UNMERGED = ("alora_invocation_tokens", "arrow_config", "layer_replication")
"""Settings of LoRA that PEFT does not merge."""


def merge_advice(
    adapter: CheckpointReader, settings: Mapping[str, Any], base: Source, *, tied: bool
) -> str:
    """What to do with an adapter in place of merging it while it is read; one line.

    Args:
        adapter: its tensors.
        settings: its adapter_config.json.
        base: the model it belongs to.
        tied: the base ties its head to its embeddings.
    """
    if settings.get("peft_type") in _NO_WEIGHTS or any(settings.get(key) for key in _UNMERGED):
        return "PEFT cannot merge this adapter either. Load the adapter with PEFT on its base."
    start = str(settings.get("init_lora_weights")).lower()
    if start.startswith(CHANGES_BASE) and start not in _REPEATED:
        return (
            "PEFT cannot reconstruct the changed base. Merge the adapter in the training script, "
            "while this base is in memory: "
            "model.merge_and_unload().save_pretrained(FOLDER)."
        )
    if is_adapter(base.folder):
        return (
            f"The adapter's base {base.folder} is an adapter, too. First merge the base into a "
            "model, and name this model as the adapter's base."
        )
    steps = _steps(adapter, base, tied)
    return f"Merge it once with: python -c {shlex.quote('; '.join(steps))}"


def _steps(adapter: CheckpointReader, base: Source, tied: bool) -> list[str]:
    """The statements of a program that merges the adapter."""
    config = config_of(base)
    architectures = config.get("architectures")
    model_class = "AutoModelForCausalLM"
    if architectures and "auto_map" not in config:
        model_class = str(architectures[0])
    steps = [
        f"from transformers import {model_class} as M",
        "from peft import PeftModel as P",
        f"m = M.from_pretrained({_quoted(base.folder)})",
    ]
    trained = {WRAPPERS.sub("", name.removeprefix(PREFIX)): name for name in adapter.names()}
    embedding, ours = first_matrix(base.entries, EMBEDDINGS), first_matrix(trained, EMBEDDINGS)
    if embedding is not None and ours is not None:
        rows = adapter.entries[trained[ours]].shape[0]
        if rows != base.entries[embedding].shape[0]:
            steps.append(f"m.resize_token_embeddings({rows}, mean_resizing=False)")
    vocabulary = [name for name in adapter.names() if not _VOCABULARY.isdisjoint(name.split("."))]
    if tied and vocabulary:
        steps += [
            "from copy import deepcopy",
            "m.set_output_embeddings(deepcopy(m.get_output_embeddings()))",
            "m.config.tie_word_embeddings = m.config.get_text_config().tie_word_embeddings = False",
        ]
    merged = f"P.from_pretrained(m, {_quoted(adapter.folder)}).merge_and_unload()"
    return [*steps, f"{merged}.save_pretrained({_quoted(f'{adapter.folder}-merged')})"]


def _quoted(path: object) -> str:
    """A path as a string of Python, in the quotes that do not end those of the shell."""
    return json.dumps(str(path), ensure_ascii=False)
