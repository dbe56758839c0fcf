"""holdfast: fine-tune open-weight language models without losing what they know; measure what was
lost; understand why.

```python
import holdfast

config = holdfast.train_config(
    model_name_or_path="my-model", dataset_name="train.jsonl", retention=[holdfast.LabelAnnealing(weight=1.0)]
)
folder = holdfast.train(config)
```

The names below are the public interface. Each is imported from its home when it is first asked for,
so `import holdfast` costs a few milliseconds and loads no torch. Submodules are imported by their
own names (`holdfast.retention.registry`); what is not listed here may change between versions.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from holdfast.checkpoints.distance import distance as checkpoint_distance
    from holdfast.checkpoints.live import perturbed
    from holdfast.checkpoints.merge import merge
    from holdfast.checkpoints.perturb import perturb as perturb_checkpoint
    from holdfast.checkpoints.policies import Policies
    from holdfast.checkpoints.reader import CheckpointReader
    from holdfast.checkpoints.residual import apply_residual, extract_residual, transfer_residual
    from holdfast.checkpoints.summary import inspect_checkpoint
    from holdfast.errors import (
        ConfigError,
        DataError,
        HoldfastError,
        Interrupted,
        ModelError,
        NotFinite,
        RunFolderError,
        ShapeError,
        StorageError,
        TrainingDiverged,
        UserError,
    )
    from holdfast.evaluation.compare.continual import stage_matrix
    from holdfast.evaluation.compare.folders import compare_folders
    from holdfast.evaluation.compare.samples import ComparisonOptions, compare_samples
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.evaluation.loading import ModelLoading
    from holdfast.evaluation.runner import compare_runs, evaluate
    from holdfast.evaluation.session import ModelRequest, evaluate_models
    from holdfast.evaluation.suite import parse_evaluation
    from holdfast.models import Loaded
    from holdfast.ops.annealing import annealed_loss
    from holdfast.ops.heads import describe_head
    from holdfast.records.evaluation import EvaluationFolder
    from holdfast.records.run import RunFolder
    from holdfast.records.study import StudyRecord, read_study
    from holdfast.reports.run_report import write_run_report
    from holdfast.retention.methods.budget import Budget
    from holdfast.retention.methods.ema import ExponentialAverage
    from holdfast.retention.methods.ewc import EWC
    from holdfast.retention.methods.l2 import L2
    from holdfast.retention.methods.label_annealing import LabelAnnealing
    from holdfast.retention.methods.mofo import MoFO
    from holdfast.retention.methods.multitask import Multitask
    from holdfast.retention.methods.replay import Replay
    from holdfast.retention.methods.self_replay import SelfReplay
    from holdfast.retention.methods.sfa import SequentialAveraging
    from holdfast.retention.methods.token_weighting import TokenWeighting
    from holdfast.retention.methods.wise_ft import WiseFT
    from holdfast.retention.plain_loop import attach_retention
    from holdfast.retention.registry import retention as retention_methods
    from holdfast.runs.config import TrainConfig, load_train_config, train_config
    from holdfast.runs.fisher import FisherSettings, compute_fisher
    from holdfast.runs.run import train
    from holdfast.statistics.selection import select as select_trial
    from holdfast.studies.sweep.session import run_study
    from holdfast.studies.sweep.study import load_study
    from holdfast.support.progress import ProgressDisplay
    from holdfast.training.fresh_init import init_stds
    from holdfast.training.mixin import RetentionMixin
    from holdfast.training.preferences import (
        DPORetentionTrainer,
        GRPORetentionTrainer,
        KTORetentionTrainer,
        OnPolicyTrainer,
    )
    from holdfast.training.self_distillation import SelfDistillationTrainer
    from holdfast.training.trainers import RetentionTrainer, SFTRetentionTrainer

_HOMES: dict[str, tuple[str, ...]] = {
    "checkpoints.distance": ("checkpoint_distance",),
    "checkpoints.live": ("perturbed",),
    "checkpoints.merge": ("merge",),
    "checkpoints.perturb": ("perturb_checkpoint",),
    "checkpoints.policies": ("Policies",),
    "checkpoints.reader": ("CheckpointReader",),
    "checkpoints.residual": ("apply_residual", "extract_residual", "transfer_residual"),
    "checkpoints.summary": ("inspect_checkpoint",),
    "errors": (
        "ConfigError",
        "DataError",
        "HoldfastError",
        "Interrupted",
        "ModelError",
        "NotFinite",
        "RunFolderError",
        "ShapeError",
        "StorageError",
        "TrainingDiverged",
        "UserError",
    ),
    "evaluation.compare.samples": ("ComparisonOptions", "compare_samples"),
    "evaluation.compare.folders": ("compare_folders",),
    "evaluation.compare.continual": ("stage_matrix",),
    "evaluation.loading": ("ModelLoading",),
    "evaluation.runner": ("compare_runs", "evaluate"),
    "evaluation.session": ("ModelRequest", "evaluate_models"),
    "evaluation.entries": ("EvaluationPlan",),
    "evaluation.suite": ("parse_evaluation",),
    "models": ("Loaded",),
    "ops.annealing": ("annealed_loss",),
    "ops.heads": ("describe_head",),
    "reports.run_report": ("write_run_report",),
    "records.evaluation": ("EvaluationFolder",),
    "records.run": ("RunFolder",),
    "retention.methods.sfa": ("SequentialAveraging",),
    "retention.methods.wise_ft": ("WiseFT",),
    "retention.methods.ema": ("ExponentialAverage",),
    "retention.methods.budget": ("Budget",),
    "retention.methods.ewc": ("EWC",),
    "retention.methods.l2": ("L2",),
    "retention.methods.label_annealing": ("LabelAnnealing",),
    "retention.methods.mofo": ("MoFO",),
    "retention.plain_loop": ("attach_retention",),
    "retention.registry": ("retention_methods",),
    "retention.methods.multitask": ("Multitask",),
    "retention.methods.replay": ("Replay",),
    "retention.methods.self_replay": ("SelfReplay",),
    "retention.methods.token_weighting": ("TokenWeighting",),
    "statistics.selection": ("select_trial",),
    "studies.sweep.session": ("run_study",),
    "studies.sweep.study": ("load_study",),
    "records.study": ("StudyRecord", "read_study"),
    "runs.config": ("TrainConfig", "load_train_config", "train_config"),
    "runs.fisher": ("FisherSettings", "compute_fisher"),
    "support.progress": ("ProgressDisplay",),
    "training.fresh_init": ("init_stds",),
    "training.trainers": ("RetentionTrainer", "SFTRetentionTrainer"),
    "training.mixin": ("RetentionMixin",),
    "training.preferences": (
        "DPORetentionTrainer",
        "GRPORetentionTrainer",
        "KTORetentionTrainer",
        "OnPolicyTrainer",
    ),
    "training.self_distillation": ("SelfDistillationTrainer",),
    "runs.run": ("train",),
}
"""Module below `holdfast`: the public names that live there."""

_NAMED_THERE = {
    "retention_methods": "retention",
    "checkpoint_distance": "distance",
    "perturb_checkpoint": "perturb",
    "select_trial": "select",
}
"""Public names that differ from the one at home: `holdfast.retention` is the subpackage already,
and some say more away from home."""

__all__ = [
    "EWC",
    "L2",
    "Budget",
    "CheckpointReader",
    "ComparisonOptions",
    "ConfigError",
    "DPORetentionTrainer",
    "DataError",
    "EvaluationFolder",
    "EvaluationPlan",
    "ExponentialAverage",
    "FisherSettings",
    "GRPORetentionTrainer",
    "HoldfastError",
    "Interrupted",
    "KTORetentionTrainer",
    "LabelAnnealing",
    "Loaded",
    "MoFO",
    "ModelError",
    "ModelLoading",
    "ModelRequest",
    "Multitask",
    "NotFinite",
    "OnPolicyTrainer",
    "Policies",
    "ProgressDisplay",
    "Replay",
    "RetentionMixin",
    "RetentionTrainer",
    "RunFolder",
    "RunFolderError",
    "SFTRetentionTrainer",
    "SelfDistillationTrainer",
    "SelfReplay",
    "SequentialAveraging",
    "ShapeError",
    "StorageError",
    "StudyRecord",
    "TokenWeighting",
    "TrainConfig",
    "TrainingDiverged",
    "UserError",
    "WiseFT",
    "annealed_loss",
    "apply_residual",
    "attach_retention",
    "checkpoint_distance",
    "compare_folders",
    "compare_runs",
    "compare_samples",
    "compute_fisher",
    "describe_head",
    "evaluate",
    "evaluate_models",
    "extract_residual",
    "init_stds",
    "inspect_checkpoint",
    "load_study",
    "load_train_config",
    "merge",
    "parse_evaluation",
    "perturb_checkpoint",
    "perturbed",
    "read_study",
    "retention_methods",
    "run_study",
    "select_trial",
    "stage_matrix",
    "train",
    "train_config",
    "transfer_residual",
    "write_run_report",
]


def __getattr__(name: str) -> Any:
    """Imports a public name from its home and keeps it (PEP 562)."""
    for module, names in _HOMES.items():
        if name in names:
            importlib.import_module("holdfast.errors").check_platform()
            _at_home()
            value = getattr(
                importlib.import_module(f"holdfast.{module}"), _NAMED_THERE.get(name, name)
            )
            globals()[name] = value
            return value
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


@functools.cache
def _at_home() -> None:
    """What holds for every name: imports are quiet, and notebooks show runs, comparisons and
    studies."""
    importlib.import_module("holdfast.support.environment").quiet_imports()
    importlib.import_module("holdfast.support.display").show_by("holdfast.reports.displays:html")


def __dir__() -> list[str]:
    """The public names, whether imported yet or not, and the submodules that are."""
    return sorted({*globals(), *__all__})
