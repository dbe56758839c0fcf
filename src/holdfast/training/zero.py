"""DeepSpeed ZeRO as methods see it: each rank's own stretch of the float32 weights and of the
reduced gradients.

ZeRO 1 and 2 flatten the trainable parameters, deal the flat float32 copy out over the ranks, and
step the optimiser on it inside `backward`. What `named` gives are views of this rank's stretch, one
a parameter (`checkpoints.live_tensors.FlatPart`), so the methods work where the weights lie and
nothing is gathered. A half-precision model keeps its float32 weights there, and anchors taken
before it was cast stay float32.

- `before_step`: calls back inside the engine's step, when gradients are reduced and before they are
  clipped;
- `publish`: hands weights that a method changed back to the model's own copies on all ranks.

ZeRO 3 keeps no whole parameters between forwards; methods of gradients and weights are refused
there (`problems`). Known from DeepSpeed: the engine's `step`, the optimiser's `update_lp_params`,
and each parameter's `_hp_mapping`, as its own `utils.tensor_fragment` uses them (0.14 to 0.19).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.checkpoints.live_tensors import FlatPart, as_part
from holdfast.errors import Problem
from holdfast.retention.protocol import OPTIMIZER_STATE, RetentionMethod
from holdfast.retention.services import rates_by_name, trainable_parameters


def problems(
    stage: int, methods: Sequence[RetentionMethod], model: Any, cast: torch.dtype | None
) -> list[Problem]:
    """Sentences about what ZeRO's stage cannot do with these methods.

    Args:
        stage: of ZeRO, 0 to 3.
        methods: of the run.
        model: as it was loaded.
        cast: as `engine_dtype`.
    """
    unsupported = []
    acting = [m.name for m in methods if m.place in ("gradient", "weights")]
    if per_parameter := [m.name for m in methods if OPTIMIZER_STATE in m.needs]:
        unsupported.append(
            Problem(
                "retention",
                f"{', '.join(per_parameter)} needs an optimiser with separate parameters, but "
                "DeepSpeed's has one flat tensor. Use FSDP2 (accelerate_config: fsdp2) or DDP.",
            )
        )
        acting = [name for name in acting if name not in per_parameter]
    if stage == 3 and acting:
        unsupported.append(
            Problem(
                "retention",
                f"{', '.join(acting)} changes gradients or weights, which holdfast cannot do with "
                "the shards of ZeRO 3. Use ZeRO 2 (accelerate_config: zero2). If the weights have "
                "to be sharded, too, use FSDP2 (accelerate_config: fsdp2).",
            )
        )
    if stage == 0 and cast is not None and acting:
        unsupported.append(
            Problem(
                "retention",
                f"{', '.join(acting)} changes gradients or weights, but DeepSpeed without ZeRO "
                f"exposes only the {str(cast).removeprefix('torch.')} weights, not the float32 "
                "ones. Use ZeRO 1 or 2.",
            )
        )
    if any(m.token_loss() is not None for m in methods) and is_partitioned(model):
        unsupported.append(
            Problem(
                "retention",
                "the teacher is a copy of the initial model, which holdfast cannot make from the "
                "shards of ZeRO 3. Use ZeRO 2 (accelerate_config: zero2) or FSDP2 "
                "(accelerate_config: fsdp2).",
            )
        )
    return unsupported


def is_partitioned(model: Any) -> bool:
    """Whether ZeRO 3 loaded the model, so that no process has it whole."""
    return isinstance(model, nn.Module) and any(hasattr(p, "ds_id") for p in model.parameters())


def engine_dtype(args: Any) -> torch.dtype | None:
    """The half-precision dtype that DeepSpeed casts the whole model to, None where it leaves it
    alone.

    Args:
        args: training arguments; `bf16: true` and the like have reached DeepSpeed's configuration
            by the time they are built.
    """
    config = getattr(args, "hf_deepspeed_config", None)
    if config is None:
        return None
    return (
        torch.bfloat16
        if config.is_true("bf16.enabled")
        else torch.float16
        if config.is_true("fp16.enabled")
        else None
    )


class ZeroParts:
    """This rank's parts of a model that DeepSpeed trains.

    Args:
        engine: DeepSpeed's, with its optimiser.
    """

    def __init__(self, engine: Any) -> None:
        self._engine, self._optimizer = engine, engine.optimizer
        self._parameters: dict[str, Any] = trainable_parameters(engine.module)
        self.dealt_out = any(hasattr(p, "_hp_mapping") for p in self._parameters.values())
        """Whether the weights are (ZeRO 1 and 2); otherwise (ZeRO 0 in float32) the parameters
        themselves are what is stepped."""
        self.named: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            self.named[name] = self._part(parameter) if self.dealt_out else parameter
        """By the names that the unwrapped model has; float32, `[elements of this rank]`."""

    @staticmethod
    def _part(parameter: Any) -> Tensor:
        mapping, shape, group = parameter._hp_mapping, tuple(parameter.shape), parameter._dp_group
        if mapping is None:
            return as_part(torch.empty(0, device=parameter.device), FlatPart(shape, 0, group))
        return as_part(
            mapping.hp_fragment.detach(), FlatPart(shape, mapping.lp_fragment_address.start, group)
        )

    def before_step(self, call: Callable[[], None]) -> None:
        """Has `call` called once an optimiser step with the gradients of `named` in place: reduced
        over ranks, not clipped, loss scale included."""
        original = self._engine.step

        def step(*args: Any, **kwargs: Any) -> Any:
            if self._engine.is_gradient_accumulation_boundary():
                self._with_gradients(call)
            return original(*args, **kwargs)

        self._engine.step = step

    def _with_gradients(self, call: Callable[[], None]) -> None:
        if not self.dealt_out:
            call()
            return
        gradients: list[tuple[Tensor, Tensor]] = []
        for name, fragment in self.named.items():
            gradient = self._gradient(self._parameters[name], fragment)
            if gradient is not None:
                fragment.grad = (
                    gradient if gradient.dtype == fragment.dtype else gradient.to(fragment.dtype)
                )
                gradients.append((fragment, gradient))
        call()
        for fragment, gradient in gradients:
            if fragment.grad is not None and fragment.grad.data_ptr() != gradient.data_ptr():
                gradient.copy_(fragment.grad)
            fragment.grad = None

    @staticmethod
    def _gradient(parameter: Any, part: Tensor) -> Tensor | None:
        """`[elements of this rank]`, a view of what DeepSpeed will step with; None where this rank
        has none."""
        if parameter._hp_mapping is None:
            return None
        flat: Tensor = parameter._hp_mapping.get_lp_grad_fragment(
            parameter._index_in_param_group
        ).view(-1)
        if flat.numel() != part.numel():  # the bfloat16 optimiser keeps the whole parameter's
            flat = flat.narrow(0, parameter._hp_mapping.lp_fragment_address.start, part.numel())
        return flat

    def loss_scale(self) -> float:
        """Factor on the gradients while a step is taken (float16)."""
        return float(getattr(self._optimizer, "loss_scale", 1.0) or 1.0)

    def learning_rates(self) -> dict[str, float]:
        """By parameter."""
        groups = self._optimizer.param_groups
        if not self.dealt_out:
            return rates_by_name(groups, self._parameters)
        rates = {}
        for name, parameter in self._parameters.items():
            mapping = parameter._hp_mapping
            # A rank without any of a parameter changes none of it, whatever the rate.
            rates[name] = 0.0 if mapping is None else float(groups[mapping.param_group_index]["lr"])
        return rates

    def reset_optimizer(self) -> None:
        """Moments and step counts back to 0, in place: DeepSpeed holds views of them."""
        inner = getattr(self._optimizer, "optimizer", self._optimizer)
        for state in inner.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()

    def versions(self) -> list[int]:
        """Changes when a method has changed weights in place."""
        return [fragment._version for fragment in self.named.values()]

    def publish(self, before: list[int]) -> None:
        """Hands changed weights to the model's own copies on all ranks; all ranks have to call it.

        Args:
            before: `versions` before the methods acted.
        """
        if not self.dealt_out:
            return
        changed = torch.tensor(
            float(self.versions() != before), device=next(iter(self._parameters.values())).device
        )
        torch.distributed.all_reduce(changed, op=torch.distributed.ReduceOp.MAX)
        if bool(changed):
            self._optimizer.update_lp_params()
