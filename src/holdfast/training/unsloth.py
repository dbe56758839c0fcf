"""Models that Unsloth has loaded are refused; those that it has saved are models like any other.

`FastLanguageModel` replaces the forward passes of a model's classes by its own, and
`import unsloth` those of TRL's trainers. Neither goes through the backbone and the head as
holdfast's loss does: cross-entropy is computed inside the model, hidden states need not come out,
and padding and packed documents are understood in another way. What a retention method would
compute there is not known, so nothing is computed.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from holdfast.errors import ModelError


def refuse_unsloth(trainer: type, model: Any) -> None:
    """Refuses a model or a trainer whose passes Unsloth has replaced.

    Args:
        trainer: the class that will train.
        model: a loaded model, or anything else.

    Raises:
        ModelError: Unsloth has replaced the forward pass of one of the model's modules, or a base
            of the trainer.
    """
    what = None
    for base in trainer.__mro__:
        if _is_unsloths(base):
            what = f"the trainer is {base.__name__} ({base.__module__})"
    if isinstance(model, nn.Module):
        for module in model.modules():
            if _is_unsloths(type(module)) or _is_unsloths(inspect.unwrap(module.forward)):
                what = f"the forward pass of {type(module).__name__} is Unsloth's"
    if what is not None:
        raise ModelError(
            f"Expected a model loaded by transformers, but {what}. The forward pass of Unsloth "
            "returns no hidden states, which the loss and the teachers need. Load the model with "
            "AutoModelForCausalLM.from_pretrained in a process that does not import unsloth. "
            "Models that Unsloth saved (save_pretrained, save_pretrained_merged) can be loaded "
            "there."
        )


def _is_unsloths(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("unsloth")
