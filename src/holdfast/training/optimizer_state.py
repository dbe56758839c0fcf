"""What a PyTorch optimiser keeps, by the names that parameters have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def state_by_name(optimizer: Any, named: Mapping[str, Tensor]) -> Callable[[str], dict[str, Any]]:
    """See `StepInfo.optimizer_state`.

    Args:
        optimizer: PyTorch's, or accelerate's around one.
        named: the parameters that it steps on.
    """
    inner = getattr(optimizer, "optimizer", optimizer)
    settings: dict[int, dict[str, Any]] = {}
    for group in inner.param_groups:
        of_group = {name: value for name, value in group.items() if name != "params"}
        settings |= dict.fromkeys(map(id, group["params"]), of_group)

    def state(name: str) -> dict[str, Any]:
        parameter = named[name]
        return {
            "optimizer": type(inner).__name__,
            **settings.get(id(parameter), {}),
            **inner.state.get(parameter, {}),
        }

    return state
