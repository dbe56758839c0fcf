"""Which of PEFT's methods trains a model: LoRA, as `trl sft` has it, or orthogonal subspace
fine-tuning (OSF).

```yaml
use_peft: true
peft_method: osf              # PEFT's OSFConfig; `lora` is TRL's LoraConfig
osf_effective_rank: 0.5       # preserved: the largest half of each matrix's singular directions
```

OSF (Nayak et al. 2025, Sculpting Subspaces, arXiv:2504.07097) keeps the directions of the largest
singular values of each weight matrix and trains the rest, W = U_high S_high V_high + U_low S_low
V_low, with U_low and V_low orthogonal to the kept ones. PEFT projects their gradients,

    dU_low <- dU_low - U_high (U_high' dU_low)        dV_low <- dV_low - (dV_low V_high') V_high

which is enough for an optimiser that follows them, and not for one that scales them element by
element: in 200 steps of Adam a large share of U_low comes to lie within the kept directions. So the
factors themselves are projected in the same way after every optimiser step, as mini_trainer, the
authors' code, does. The bases of the kept directions are float32 and orthonormal whatever the
base's dtype; the half-precision ones that PEFT keeps would, applied a thousand times, change the
length of what they should leave alone.

Imports neither TRL nor PEFT before a function is called.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from holdfast.checkpoints.fit import loading_problem, misfit_error
from holdfast.checkpoints.reader import CheckpointReader
from holdfast.checkpoints.sources import listing
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from peft import PeftConfig
    from torch import Tensor, nn
    from trl import ModelConfig


@dataclass(frozen=True, kw_only=True)
class AdapterArguments:
    """Which PEFT method `use_peft` means, beside TRL's model arguments."""

    peft_method: Literal["lora", "osf"] = "lora"
    """PEFT method of use_peft: lora, or osf (orthogonal subspace fine-tuning)."""
    osf_effective_rank: float | int | None = None
    """OSF: how many singular directions of each matrix stay frozen (those with the largest singular
    values). A number below 1 is a share of the matrix's smaller side. The other directions are
    trained. Default: half."""
    osf_target_modules: list[str] | None = None
    """OSF: names of the modules to train, or all-linear. Default: PEFT's target modules for the
    architecture."""


def adapter_config(
    model: ModelConfig, adapter: AdapterArguments, added_tokens: Sequence[int] = ()
) -> PeftConfig | None:
    """PEFT's configuration for `SFTTrainer`, None for full fine-tuning.

    Args:
        model, adapter: the settings.
        added_tokens: ids of tokens that are new to the model; LoRA trains their rows and the head,
            as TRL has it where it adds them.
    """
    if not model.use_peft or adapter.peft_method == "lora":
        from trl import get_peft_config

        config = get_peft_config(model)
        if config is not None:
            config.target_modules = _targets(config.target_modules)
            if added_tokens:
                config.trainable_token_indices = {"embed_tokens": list(added_tokens)}
                config.modules_to_save = list({*(config.modules_to_save or ()), "lm_head"})
        return config
    from peft import OSFConfig

    return OSFConfig(
        task_type=model.lora_task_type,
        effective_rank=adapter.osf_effective_rank,
        target_modules=_targets(adapter.osf_target_modules),
    )


def _targets(targets: Any) -> Any:
    """Target modules as PEFT takes them. TRL gives a list of one on as a word, which PEFT reads as
    a pattern for whole names, so that `[q_proj]` would match nothing; `all-linear` and patterns are
    meant as words."""
    if isinstance(targets, (list, tuple)) and len(targets) == 1:
        targets = targets[0]
    return {targets} if isinstance(targets, str) and targets.isidentifier() else targets


@contextlib.contextmanager
def new_adapters_off(model: nn.Module, config: Any) -> Iterator[None]:
    """Inside, the layers of a LoRA adapter that has just been put into the model do nothing, which
    saves their time. Where they are not the identity at the start (PiSSA and the like), the model
    is its start with them, and they stay.

    Args:
        model: with the adapter's layers in it.
        config: the adapter's; None: there is none.
    """
    if getattr(config, "init_lora_weights", None) not in (True, "gaussian", "orthogonal"):
        yield
        return
    from peft.tuners.lora import LoraLayer

    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    trained = []
    for layer in layers:
        trained += [(parameter, parameter.requires_grad) for parameter in layer.parameters()]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for parameter, requires_grad in trained:  # switching sets it, too
            parameter.requires_grad_(requires_grad)


def load_adapter(model: Any, folder: str) -> Any:
    """`model` (a base of the adapter's architecture) with the adapter that lies in `folder` on it,
    as PEFT wraps it.

    Raises:
        ModelError: tensors of the adapter are missing or of another shape; PEFT would start them
            anew.
    """
    from peft import PeftModel, get_peft_model_state_dict

    result = PeftModel.from_pretrained(model, folder)
    with CheckpointReader(folder) as stored:
        expected = get_peft_model_state_dict(result, save_embedding_layers=False)
        entries = stored.entries
        shapes = []
        for name, tensor in expected.items():
            if name in entries and entries[name].shape != tuple(tensor.shape):
                shapes.append((name, entries[name].shape, tuple(tensor.shape)))
        if problem := loading_problem(
            {"missing_keys": expected.keys() - entries.keys(), "mismatched_keys": shapes}
        ):
            raise misfit_error(folder, problem, config="adapter_config.json")
    return result


def merged_weight(module: nn.Module, adapter: str) -> Tensor:
    """The weight of a PEFT layer with its adapter merged into it, as `merge_and_unload` would leave
    it; the layer stays as it is.

    Args:
        module: a layer that PEFT put around a base layer with a `weight`; nothing is merged into
            it.
        adapter: the adapter's name.
    """
    weight = module.base_layer.weight.detach()  # type: ignore[operator, union-attr]
    variant = getattr(module, "lora_variant", {}).get(adapter)
    if variant is None:
        return weight + module.get_delta_weight(adapter).to(weight)  # type: ignore[operator]
    merged = variant.merge_safe(module, adapter, weight.clone())
    module._caches.pop(f"{adapter}-weight_norm", None)  # type: ignore[operator, union-attr]
    return merged.detach()


def complete_osf(model: nn.Module, *, sharded: bool) -> Callable[[], None] | None:
    """Checks a model that PEFT may have prepared for OSF, and confines its factors: their gradients
    from now on, and the factors themselves whenever what is returned is called, which has to be
    after every optimiser step. Other models are left as they are.

    PEFT hangs its projections of gradients on the factors, and then, where the base is in half
    precision, replaces the factors by float32 ones without them (0.21; `cast_adapter_dtype`). Ours
    take their place.

    Args:
        model: as `SFTTrainer` has made it.
        sharded: whether the run shares parameters out over processes.

    Returns:
        What projects the factors; None where there are none.

    Raises:
        ConfigError: nothing is left to train, more directions are to be kept than a matrix has, or
            the run is sharded: whole matrices are projected.
    """
    kinds = [config.peft_type for config in getattr(model, "peft_config", {}).values()]
    if "OSF" not in [str(getattr(kind, "value", kind)) for kind in kinds]:
        return None
    import torch
    from peft.tuners.osf import OSFLayer

    if sharded:
        raise ConfigError(
            "peft_method: osf projects gradients with whole matrices and cannot be sharded (FSDP, "
            "DeepSpeed). Use DDP, or peft_method: lora."
        )
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, OSFLayer)
    }
    larger = []
    for name, layer in layers.items():
        for adapter in layer.osf_svd_params:
            rank = model.peft_config[adapter].effective_rank or 0
            if rank > min(layer.out_features, layer.in_features):
                larger.append(f"{name} ({layer.out_features} x {layer.in_features}, {rank} kept)")
    if larger:
        raise ConfigError(
            f"osf_effective_rank: larger than the smaller side of {listing(larger)}. Lower it, or "
            "give a share below 1."
        )
    if not any(p.numel() for p in model.parameters() if p.requires_grad):
        raise ConfigError(
            "peft_method: osf finds nothing to train: "
            + (
                "osf_effective_rank keeps every direction of the targeted matrices. Lower it."
                if layers
                else "none of the targets is an nn.Linear."
            )
        )
    confined = []
    for layer in layers.values():
        layer._detach_hooks()
        for adapter, factors in layer.osf_svd_params.items():
            low = layer._osf_U_low_init[adapter], layer._osf_V_low_init[adapter].T
            high_u = dict(layer._osf_U_high.items()).get(adapter)
            high_v = dict(layer._osf_V_high.items()).get(adapter)
            u = _kept_directions(high_u, low[0])
            v = _kept_directions(None if high_v is None else high_v.T, low[1])
            factors["U_low"].register_hook(functools.partial(_without, u))
            factors["V_low"].register_hook(lambda gradient, v=v: _without(v, gradient.T).T)
            confined.append((factors, u, v))

    @torch.no_grad()
    def project() -> None:
        for factors, u, v in confined:
            factors["U_low"].copy_(_without(u, factors["U_low"]))
            factors["V_low"].copy_(_without(v, factors["V_low"].T).T)

    return project


def _kept_directions(high: Tensor | None, low: Tensor) -> Tensor:
    """An orthonormal basis of the kept directions, `[n, k]`, float32 at least.

    Args:
        high: `[n, k]` that spans them; None: they are what `low` leaves of the whole space, as
            where PEFT keeps none.
        low: `[n, r - k]`, orthonormal but for rounding.
    """
    import torch

    dtype = torch.promote_types(low.dtype, torch.float32)
    if high is not None:
        return torch.linalg.qr(high.detach().to(dtype)).Q
    return (
        torch.linalg.qr(low.detach().to(dtype), mode="complete").Q[:, low.shape[1] :].contiguous()
    )


def _without(kept: Tensor, columns: Tensor) -> Tensor:
    """Columns `[n, m]` without their part in the span of `kept` `[n, k]`; what is orthogonal to it
    stays as it is, but for rounding of what is taken off."""
    wide = columns.to(kept.dtype)
    return (wide - kept @ (kept.T @ wide)).to(columns.dtype)
