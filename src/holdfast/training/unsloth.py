"""Models that Unsloth has loaded are refused; those that it has saved are models like any other.

`FastLanguageModel` replaces the forward passes of a model's classes by its own, and `import unsloth` those of TRL's
trainers. Neither goes through the backbone and the head as holdfast's loss does: cross-entropy is computed inside the
model, hidden states need not come out, and padding and packed documents are understood in another way. What a retention
method would compute there is not known, so nothing is computed.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import ModelError

_NAME = "unsloth"


def refuse_unsloth(trainer: type, model: Any) -> None:
    """Refuses a model or a trainer whose passes Unsloth has replaced.

    Args:
        trainer: the class that will train.
        model: a loaded model, or anything else.

    Raises:
        ModelError: Unsloth has replaced the forward pass of one of the model's modules, or a base of the trainer.
    """
    place = next((f"{c.__name__} ({c.__module__})" for c in trainer.__mro__ if _is_unsloths(c)), None)
    what = f"the trainer is {place}" if place else None
    modules = getattr(model, "modules", None)
    for module in () if what or not callable(modules) else modules():
        if _is_unsloths(type(module)) or _is_unsloths(module.forward):
            what = f"the forward pass of {type(module).__name__} is Unsloth's"
            break
    if what is not None:
        raise ModelError(
            f"Expected a model as transformers loads it, but {what}: its passes give no hidden states that the "
            f"loss and the teachers could use. Load the model with AutoModelForCausalLM.from_pretrained in a process "
            f"that does not import unsloth; what Unsloth has saved (save_pretrained, "
            f"save_pretrained_merged) loads there."
        )


def _is_unsloths(value: Any) -> bool:
    function = getattr(value, "__func__", getattr(value, "func", value))
    function = getattr(function, "__wrapped__", function)
    name = str(getattr(function, "__module__", "") or "")
    return name.split(".")[0].startswith(_NAME)
