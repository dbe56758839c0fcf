"""When two configurations are one run: what of a configuration decides the trained weights, and how
to say what differs.

`resolve` writes a configuration down as plain JSON (itself a valid configuration, secrets left
out). `deciding` keeps the part that the trained weights depend on, in one canonical form; its
fingerprint is a run's key. So a run continues in its folder when logging, saving, evaluation or the
number of loading workers change, and refuses to when the learning rate does. Contents of files are
not looked at here.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import re
from collections.abc import Mapping
from typing import Any

from holdfast.config.declare import Setting
from holdfast.retention.protocol import FORMERLY
from holdfast.retention.registry import parse_retention
from holdfast.runs.settings import known_settings
from holdfast.runs.trainers import trainer_named
from holdfast.support.files import to_jsonable
from holdfast.support.secrets import SECRET

_ALWAYS = (
    "model_name_or_path",
    "dataset_name",
    "output_dir",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_length",
    "packing",
    "optim",
    "weight_decay",
    "max_grad_norm",
    "seed",
    "dtype",
    "bf16",
    "fp16",
    "use_peft",
)
"""Keys that `resolved` states although they are at their defaults."""

_NOT_DECIDING = re.compile(
    r"output_dir|report_to|run_name|project|trackio_.*|log_.*|logging_.*|disable_tqdm|debug|skip_memory_metrics|include_.*|prediction_loss_only"
    r"|save_.*|enable_jit_checkpoint|push_to_hub|hub_.*|resume_from_checkpoint|restore_callback_states_from_checkpoint|local_rank|do_(train|eval|predict)"
    r"|eval_.*|per_device_eval_batch_size|batch_eval_metrics|bf16_full_eval|fp16_full_eval|metric_for_best_model|greater_is_better"
    r"|dataset_test_split|dataset_num_proc|dataloader_(num_workers|pin_memory|persistent_workers|prefetch_factor|multiprocessing_context)"
    r"|(activation|gradient)_checkpointing(_kwargs)?|activation_offloading|torch_empty_cache_steps|ddp_.*|use_cpu|fused_layers|evaluation|env"
)
"""Keys that leave the trained weights alone (recomputing activations changes memory and time, not
the result), or change them by rounding alone, like the number of threads (`fused_layers`)."""
_CHOOSES_BEST = re.compile(
    r"eval_(strategy|steps|delay|packing|dataset_name|dataset_split)|save_(strategy|steps)|metric_for_best_model|greater_is_better|dataset_test_split"
)
"""Of those, the keys that decide after all when `load_best_model_at_end` picks the result."""


def resolve(
    parts: Mapping[str, Any], values: Mapping[str, Any], known: Mapping[str, Setting]
) -> dict[str, Any]:
    """The main settings, then everything that differs from its default."""
    resolved: dict[str, Any] = {}
    for name in _ALWAYS:
        if name not in known:  # of another trainer
            continue
        value = _plain(getattr(parts[known[name].source], name))
        if value is not None:
            resolved[name] = value
    for name, value in values.items():
        if name in resolved or name in SECRET or known[name].source == "launch":
            continue
        if value != known[name].default:
            resolved[name] = _plain(value)
    return resolved


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items() if str(k) not in SECRET}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {k: _plain(v) for k, v in set_fields(value).items()}
    return to_jsonable(value)


def set_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not at their defaults (None where a field has none)."""
    fields = {}
    for f in dataclasses.fields(value):
        default = None if f.default is dataclasses.MISSING else f.default
        if getattr(value, f.name) != default:
            fields[f.name] = getattr(value, f.name)
    return fields


def deciding(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `resolved` that decides the trained weights, in one canonical form (3.0 is 3,
    `./model/` is `model`)."""
    known = known_settings(trainer_named(resolved))
    best = bool(resolved.get("load_best_model_at_end"))
    settings = {}
    for name, value in resolved.items():
        aside = _NOT_DECIDING.fullmatch(name) and not (best and _CHOOSES_BEST.fullmatch(name))
        if aside or (name in known and known[name].source == "launch" and name != "num_processes"):
            continue
        if (
            name in ("model_name_or_path", "dataset_name")
            and isinstance(value, str)
            and os.path.exists(value)
        ):
            value = os.path.normpath(value)
        settings[name] = _canonical(value)
    if resolved.get("early_stopping"):
        settings["early_stopping"] = _canonical([resolved["early_stopping"], _watched(resolved)])
    methods, problems = parse_retention(resolved.get("retention"), load=False)
    if not problems:
        settings["retention"] = [_canonical(m.identity()) for m in methods if not m.off]
    return settings


def _watched(resolved: Mapping[str, Any]) -> Any:
    """What `early_stopping` looks at and when: of the evaluation, that much decides the result."""
    from holdfast.evaluation.suite import parse_evaluation

    plan, _ = parse_evaluation(resolved.get("evaluation"))
    names = {rule["entry"] for rule in resolved["early_stopping"]}
    entries = {}
    for entry in plan.entries:
        if f"{entry.suite}/{entry.name}" in names:
            entries[f"{entry.suite}/{entry.name}"] = entry.deciding()
    when = plan.along and {
        k: v for k, v in dataclasses.asdict(plan.along).items() if k != "entries"
    }
    return to_jsonable(
        {"along": when, "entries": entries, "batch_size": plan.batch_size, "seed": plan.seed}
    )


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(k): _canonical(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(v) for v in value]
    return value


def explain_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Why two `resolved` configurations have different keys: one line a setting,
    `learning_rate: 1e-05 before, 2e-05 now`.

    Empty when the two are one run.

    Args:
        old: of the run in the folder (`RunRecord.config`).
        new: of the run asked for.
    """
    before, now = deciding(old), deciding(new)
    differences = []
    for name in dict.fromkeys([*before, *now]):
        if before.get(name) != now.get(name):
            old_value, new_value = _brief(name, before.get(name)), _brief(name, now.get(name))
            differences.append(f"{name}: {old_value} before, {new_value} now")
    return differences


def _brief(name: str, value: Any) -> str:
    if name == "retention":
        items = []
        for identity in value or []:
            if "method" in identity:
                method = identity["method"]
                aside = {"method", "from", *FORMERLY.get(method, ())}
                items.append(
                    {
                        identity.get("from", method): {
                            k: v for k, v in identity.items() if k not in aside
                        }
                    }
                )
        methods, problems = parse_retention(items, load=False)
        if not problems:
            labels = []
            for parsed in methods:
                source = f" with source {parsed.sha256[:12]}" if parsed.sha256 else ""
                labels.append(parsed.label() + source)
            return " + ".join(labels) or "none"
    if value is None:
        return "not set"
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
