"""Whether documents that a run packs into one row stay apart: tried on a tiny copy of the model,
before anything is loaded."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from holdfast.checkpoints.fit import auto_class
from holdfast.checkpoints.named import located
from holdfast.retention.protocol import PACKED_WHOLE


def packing_key(values: Mapping[str, Any]) -> str | None:
    """The setting by which documents share a row and are to be kept apart, None where they do
    not."""
    if values.get("packing"):
        strategy = str(values.get("packing_strategy") or PACKED_WHOLE[0])  # TRL's default
        return "packing" if strategy in (*PACKED_WHOLE, "bfd-requeue") else None
    return "padding_free" if values.get("padding_free") else None


def check_packing(values: Mapping[str, Any], config: Any = None, *, here: bool = True) -> list[str]:
    """What keeps documents from being packed, in one sentence; none where they stay apart, where
    each can be run by itself, or where it is found out only with the model.

    Args:
        values: a run's settings.
        config: the model's, of transformers; None: it is read where the model is a folder.
        here: whether the run is to be on this machine; of another one it is not known which
            packages are there.
    """
    from holdfast.training.document_attention import packing_refusal

    problem = _problem(values, config)
    if not problem or runs_alone(problem, values) or (not here and problem.endswith("installed")):
        return []
    return [packing_refusal(str(packing_key(values)), problem)]


def packing_notes(values: Mapping[str, Any]) -> list[str]:
    """What becomes of documents that would see each other in one row; nothing where they stay
    apart, or are refused."""
    from holdfast.training.documents_alone import alone_note

    problem = _problem(values)
    return (
        [alone_note(problem.partition(" ")[0])] if problem and runs_alone(problem, values) else []
    )


def runs_alone(problem: str, values: Mapping[str, Any]) -> bool:
    """Whether documents with such a problem go through the model one by one."""
    from holdfast.training.document_attention import is_leak
    from holdfast.training.documents_alone import may_run_alone

    return is_leak(problem) and may_run_alone(values)


def _problem(values: Mapping[str, Any], config: Any = None) -> str | None:
    """As of `packing_problem`; None where nothing is packed, or where the model's configuration is
    not here."""
    key, name = packing_key(values), values.get("model_name_or_path")
    if key is None or (
        config is None and not (isinstance(name, str) and os.path.isdir(located(name)))
    ):
        return None
    from transformers import AutoConfig

    from holdfast.support.environment import quiet_transformers
    from holdfast.training.document_attention import packing_problem

    if config is None:
        try:
            config = AutoConfig.from_pretrained(
                located(str(name)), trust_remote_code=bool(values.get("trust_remote_code"))
            )
        except (
            Exception
        ):  # what absurd values raise has no common base; whoever loads the model says it in words
            return None
    more = values.get("model_init_kwargs")
    attention = values.get("attn_implementation")
    if isinstance(more, Mapping):
        attention = more.get("attn_implementation", attention)
    make = functools.partial(
        auto_class(config.model_type).from_config,
        trust_remote_code=bool(values.get("trust_remote_code")),
        attn_implementation=attention if attention in ("sdpa", "eager", "flex_attention") else None,
    )
    with quiet_transformers():
        return packing_problem(
            config, make, attention=attention, own=not values.get("torch_compile")
        )
