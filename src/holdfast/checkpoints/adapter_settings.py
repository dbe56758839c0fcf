"""What an adapter's folder says of itself: its configuration, the base it names, the run that
trained it, and whether it holds what its configuration names."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.checkpoints.reader import checkpoint_hash
from holdfast.checkpoints.sources import read_object
from holdfast.errors import ModelError
from holdfast.support.paths import expanded

FILE = "adapter_config.json"
PREFIX = "base_model.model."
"""What PEFT puts before the name of every tensor."""
TENSOR = re.compile(
    r"(?P<module>.+?)(?:\.(?P<factor>lora_[AB])\.weight|\.(?P<magnitude>lora_magnitude_vector)(?:\.weight)?"
    r"|\.token_adapter\.(?P<tokens>trainable_tokens_delta))"
)
"""Names of the tensors that belong to a module, without `PREFIX`."""
WRAPPERS = re.compile(r"\.(?:token_adapter\.base_layer|base_layer|modules_to_save)(?=\.)")
"""What PEFT puts into the name of a tensor of the model that an adapter holds."""
EXPERTS = ".experts."


def is_adapter(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds an adapter and no model of its own."""
    folder = Path(folder)
    has_model = any(
        (folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")
    )
    return (folder / FILE).is_file() and not has_model


def base_of(folder: str | os.PathLike[str]) -> str:
    """The base an adapter names: a folder or a hub id, with `@revision` where the adapter states
    one.

    Raises:
        ModelError: no readable adapter_config.json, or it names no base.
    """
    config = adapter_config(folder)
    name, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not name:
        raise ModelError(
            f"Expected base_model_name_or_path in {Path(folder) / FILE}, found none. Set it there."
        )
    return f"{name}@{revision}" if revision and not expanded(name).is_dir() else str(name)


def adapter_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """`adapter_config.json`.

    Raises:
        ModelError: it is not there or cannot be read.
    """
    return read_object(Path(folder) / FILE, "an adapter's configuration")


def trained_otherwise(
    folder: str | os.PathLike[str], base: str | os.PathLike[str] | None
) -> list[str]:
    """What keeps an adapter on its base, as it lies there, from being the model that its run
    trained and measured.

    Args:
        folder: the adapter's, with the run's record beside it where holdfast trained it.
        base: folder of the base; None: it is not known.

    Returns:
        Sentences: the base was quantised in training, or has other weights now. Empty without a
            record.
    """
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        return []
    record = read_object(folder / "run.json", "the record of a run")
    settings, model = record.get("config") or {}, record.get("model") or {}
    differences = []
    bits = next(
        (bits for bits in (4, 8) if str(settings.get(f"load_in_{bits}bit")).lower() == "true"), None
    )
    if bits is not None:
        differences.append(
            f"The run of {folder.name} trained and measured this adapter on its base in {bits} "
            "bits. On the unquantised base the adapter gives other results."
        )
    recorded = model.get("hash")
    if base is not None and recorded and not is_adapter(base) and checkpoint_hash(base) != recorded:
        differences.append(
            f"The run of {folder.name} trained this adapter on a base whose weights differ from "
            f"those of {Path(base).name} now ({str(recorded)[:12]} in its record)."
        )
    return differences


def scale_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of an adapter's configuration says what its factors are worth: equal factors are equal
    changes of the weights only where this is equal too."""
    rank, alpha = int(config.get("r") or 8), float(config.get("lora_alpha") or 8)
    return {
        "scaling": alpha / (math.sqrt(rank) if config.get("use_rslora") else rank),
        "rank_pattern": dict(config.get("rank_pattern") or {}),
        "alpha_pattern": dict(config.get("alpha_pattern") or {}),
        "use_dora": bool(config.get("use_dora")),
    }


def lacking(settings: Mapping[str, Any], names: Sequence[str], base: Iterable[str]) -> list[str]:
    """Modules that an adapter's configuration names and of which it holds nothing; a loader would
    leave them as they are, or fill them with random numbers. Configurations that name modules by a
    pattern are not judged, nor are experts where the adapter holds none: transformers fuses them,
    so that their names are those of no module.

    Args:
        settings: adapter_config.json.
        names: the adapter's tensors.
        base: the base's tensors.
    """
    targets = settings.get("target_modules")
    if settings.get("peft_type") != "LORA" or not isinstance(targets, list):
        return []
    if settings.get("layers_to_transform") or settings.get("exclude_modules"):
        return []

    def keys(module: str) -> set[tuple[str, str]]:
        """Layer and target; what lies between them may have other names in the model than in its
        file."""
        layer = next((word for word in module.split(".") if word.isdigit()), "")
        return {(layer, target) for target in targets if f".{module}".endswith(f".{target}")}

    present: set[tuple[str, str]] = set()
    for name in names:
        tensor = TENSOR.fullmatch(name.removeprefix(PREFIX))
        if tensor is not None:
            present |= keys(tensor["module"])
        elif ".lora_embedding_" in name:
            present |= keys(name.removeprefix(PREFIX).partition(".lora_embedding_")[0])
    fused = fuses_experts(names)
    problems = []
    for name in base:
        module = name.removesuffix(".weight")
        is_fused = fused and EXPERTS in f"{module}."
        if name != module and not is_fused and keys(module) - present:
            problems.append(
                f"{module}: target_modules names this module, but the adapter has no weights for it"
            )
    return problems


def fuses_experts(names: Sequence[str]) -> bool:
    """Whether no tensor of an adapter is of an expert."""
    return not any(EXPERTS in name for name in names)
