"""A model as a run would train it, with shapes and without weights: built on torch's meta device,
in a second, for any size.

What is planned can be counted before anything is downloaded or allocated: parameters, which of them
are trained, the layers and their widths. transformers builds the model from its config.json and
PEFT puts the adapter on, so tied heads, grouped-query attention, experts, biases and target modules
are what they will be. No tensor holds a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.checkpoints.fit import auto_class, unbuildable
from holdfast.errors import ConfigError, ModelError, first_line
from holdfast.models import check_causal_lm

if TYPE_CHECKING:
    from peft import PeftConfig
    from torch import nn


def build_skeleton(
    name: str,
    *,
    revision: str = "main",
    trust_remote_code: bool = False,
    adapter: PeftConfig | None = None,
) -> nn.Module:
    """The causal LM of a config.json, on the meta device, with an adapter where one is given.

    Args:
        name: a folder that holds config.json (weights may be missing), or a hub id whose config is
            cached or can be fetched.
        revision: of a hub id.
        trust_remote_code: runs Python code that comes with the model.
        adapter: as `training.adapters.adapter_config` gives it.

    Raises:
        ModelError: no config there, another kind of model, a model that transformers cannot build,
            or an adapter that does not fit it.
        ConfigError: a setting of the adapter that does not go with experts.
    """
    import torch

    try:
        config = check_causal_lm(name, revision=revision, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model: Any = auto_class(config.model_type).from_config(
                config, trust_remote_code=trust_remote_code
            )
        model.tie_weights()
    except (ModelError, MemoryError):
        raise
    except Exception as error:  # what absurd values make of a model's code has no common base
        raise ModelError(
            f"transformers cannot build a model from the config.json of {name}: "
            f"{unbuildable(error)}"
        ) from error
    if adapter is None:
        return model  # type: ignore[no-any-return]
    from peft import get_peft_model

    try:
        with torch.device("meta"):
            return get_peft_model(model, adapter)  # type: ignore[no-any-return]
    except (
        ValueError,
        TypeError,
        RuntimeError,
        NotImplementedError,
        AttributeError,
        KeyError,
    ) as error:
        reason = first_line(error)
        if "ParamWrapper does not work with" in reason:
            raise ConfigError([_expert_problem(reason.rpartition(" with ")[2])]) from error
        raise ModelError(f"The adapter does not fit {name}: {reason}") from error


def _expert_problem(unfit: str) -> str:
    """The sentence on an adapter of experts with a setting that PEFT has for modules alone.

    Args:
        unfit: what PEFT says that it does not work with, such as "lora_dropout != 0.".
    """
    key = unfit.replace("LoRA variants like DoRA", "use_dora").split()[0].split("=")[0].strip("`.")
    value = "0" if key == "lora_dropout" else "false"
    return (
        f"{key}: expected {value} for an adapter on experts (TRL's default lora_dropout is 0.05). "
        "transformers stores experts as bare parameters, for which PEFT supports no other value. "
        f"Set {key}: {value}, or name only attention modules in lora_target_modules. 'holdfast "
        "merge' cannot merge adapters on experts."
    )
