"""Packages that a run's settings need beside those that come with holdfast, looked for before any
work."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.errors import Problem
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.evaluation.kinds.win_rate import WinRateEntry
from holdfast.support.endpoint import missing_package

TRACKERS: dict[str, tuple[str, ...]] = {
    "wandb": ("wandb",),
    "tensorboard": ("tensorboard", "tensorboardX"),
    "mlflow": ("mlflow",),
    "trackio": ("trackio",),
    "comet_ml": ("comet_ml",),
    "clearml": ("clearml",),
    "swanlab": ("swanlab",),
    "neptune": ("neptune",),
    "codecarbon": ("codecarbon",),
    "dagshub": ("dagshub",),
    "dvclive": ("dvclive",),
    "flyte": ("flytekit",),
    "kubeflow": ("kubeflow",),
    "azure_ml": ("azureml",),
}
"""Modules, of which one is enough, by the name that `report_to` takes."""
OPTIMISERS: dict[str, tuple[str, str]] = {
    "galore": ("galore_torch", "galore-torch"),
    "apollo": ("apollo_torch", "apollo-torch"),
    "lomo": ("lomo_optim", "lomo-optim"),
    "adalomo": ("lomo_optim", "lomo-optim"),
    "grokadamw": ("grokadamw", "grokadamw"),
    "schedule_free": ("schedulefree", "schedulefree"),
    "stable_adamw": ("optimi", "torch-optimi"),
    "adamw_torch_4bit": ("torchao", "torchao"),
    "adamw_torch_8bit": ("torchao", "torchao"),
    "adamw_anyprecision": ("torchdistx", "torchdistx"),
}
"""Module and distribution by the beginning of an optimiser's name; those with 8 bits and pages are
bitsandbytes'."""
_BITSANDBYTES = ("adamw_bnb_8bit", "adamw_8bit", "paged_", "lion_", "ademamix", "rmsprop_bnb")
_DISTRIBUTIONS = {"comet_ml": "comet-ml", "flytekit": "flytekit", "azureml": "azureml-mlflow"}
FLASH = "flash-attn --no-build-isolation"


def check_packages(values: Mapping[str, Any], *, here: bool = True) -> list[str]:
    """Sentences on packages that are not there, with the line that installs them.

    Args:
        values: a run's settings.
        here: whether the run is to be on this machine; of another one it is not known what is
            there.
    """
    lacking = "which is not installed" if here else "which was not checked on the other machine"
    problems: list[str] = []
    for key, value, modules, distribution in needed(values):
        if not here or not any(map(_is_there, modules)):
            text = f"{value} needs the package {modules[0]}, {lacking}: pip install {distribution}"
            problems.append(Problem(key, text))
    return problems


def judges_need(plan: EvaluationPlan) -> list[str]:
    """Sentences on entries that ask a judge, where the package that asks is not installed.

    Args:
        plan: what is measured.
    """
    problems: list[str] = []
    for entry in plan.entries:
        if isinstance(entry, WinRateEntry):
            for problem in missing_package("judging"):
                problems.append(Problem("evaluation", f"{entry.suite}/{entry.name}: {problem}"))
    return problems


Need = tuple[str, str, tuple[str, ...], str]
"""(key, its value, modules of which one is enough, what pip installs) of a setting."""


def needed(values: Mapping[str, Any]) -> Iterator[Need]:
    """Everything that settings need.

    Args:
        values: a run's settings.
    """
    trackers = values.get("report_to") or []
    for name in [trackers] if isinstance(trackers, str) else trackers:
        if (modules := TRACKERS.get(str(name))) is not None:
            yield "report_to", str(name), modules, _DISTRIBUTIONS.get(modules[0], modules[0])
    yield from _needed_for_attention(str(values.get("attn_implementation") or ""))
    if values.get("use_liger_kernel"):
        yield "use_liger_kernel", "true", ("liger_kernel",), "liger-kernel"
    for key in ("load_in_4bit", "load_in_8bit"):
        if values.get(key):
            yield key, "true", ("bitsandbytes",), "bitsandbytes"
    yield from _needed_for_optimiser(
        str(getattr(values.get("optim"), "value", values.get("optim") or ""))
    )
    deepspeed = [key for key in ("deepspeed", "use_deepspeed") if values.get(key)]
    if str(values.get("accelerate_config") or "").startswith("zero"):
        deepspeed.append("accelerate_config")
    for key in deepspeed[:1]:
        yield key, str(values[key])[:40], ("deepspeed",), "deepspeed"


def _needed_for_attention(name: str) -> Iterator[Need]:
    if name in ("flash_attention_2", "flash_attention_3"):
        module = "flash_attn" if name.endswith("2") else "flash_attn_interface"
        yield (
            "attn_implementation",
            name,
            (module, "kernels"),
            FLASH if name.endswith("2") else "kernels",
        )
    elif "/" in name:
        yield "attn_implementation", name, ("kernels",), "kernels"


def _needed_for_optimiser(name: str) -> Iterator[Need]:
    if name.startswith(_BITSANDBYTES):
        yield "optim", name, ("bitsandbytes",), "bitsandbytes"
    for begin, (module, distribution) in OPTIMISERS.items():
        if name.startswith(begin):
            yield "optim", name, (module,), distribution


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
