"""What a run's methods remember between steps, in a checkpoint: plain values in `STATE_FILE`,
tensors beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from holdfast.checkpoints.live_tensors import gathered
from holdfast.errors import ConfigError
from holdfast.retention.protocol import ActiveMethod, RetentionMethod
from holdfast.support.files import write_json
from holdfast.training.checkpoint_parts import SEALED, STATE_FILE, TENSOR_FILE


def whole_states(active: Sequence[ActiveMethod]) -> list[dict[str, Any]]:
    """The methods' states with whole tensors on the CPU; all ranks have to call it, because they
    gather shards."""
    states = []
    for method in active:
        state = method.state_dict()
        states.append({key: _whole(value) for key, value in state.items()})
    return states


def save_states(
    folder: Path,
    methods: Sequence[RetentionMethod],
    states: Sequence[Mapping[str, Any]],
    **run: Any,
) -> None:
    """Writes states into a checkpoint's folder; one process does.

    Args:
        folder: the checkpoint's.
        methods: of the run.
        states: theirs, as `whole_states` gives them.
        run: what else the run keeps, plain values.
    """
    entries: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for index, (method, state) in enumerate(zip(methods, states, strict=True)):
        plain = {}
        tensor_names = []
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensor_names.append(name)
                tensors[f"{index}.{name}"] = value
            else:
                plain[name] = value
        entries.append(
            {"method": method.identity(), "state": plain, "tensors": sorted(tensor_names)}
        )
    if tensors:
        from safetensors.torch import save_file

        save_file(tensors, str(folder / TENSOR_FILE))
    write_json(folder / STATE_FILE, {"methods": entries, **run, SEALED: True})


def load_states(
    folder: Path, methods: Sequence[RetentionMethod], active: Sequence[ActiveMethod]
) -> dict[str, Any] | None:
    """Gives the methods their states back.

    Returns:
        What else was saved; None where the checkpoint has no such file.

    Raises:
        ConfigError: it is of other methods.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        return None
    saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    before = [entry["method"] for entry in saved["methods"]]
    if before != [json.loads(json.dumps(method.identity())) for method in methods]:
        raise ConfigError(
            f"{folder} was written with retention {before}, but this run has "
            f"{[m.identity() for m in methods]}. Continue with the same methods or choose a new "
            "output_dir."
        )
    tensors: dict[str, Tensor] = {}
    if (folder / TENSOR_FILE).is_file():
        from safetensors.torch import load_file

        tensors = load_file(str(folder / TENSOR_FILE))
    for index, (entry, method) in enumerate(zip(saved["methods"], active, strict=True)):
        own_tensors = {key: tensors[f"{index}.{key}"] for key in entry["tensors"]}
        method.load_state_dict({**entry["state"], **own_tensors})
    return saved


def _whole(value: Any) -> Any:
    """A state's tensor as it is stored; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    return gathered(value).detach().cpu().contiguous()
