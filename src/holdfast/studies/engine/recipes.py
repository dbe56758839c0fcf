"""How a study makes its models. A recipe says what a model is made of; `make` makes and measures
it, or finds it made.

Everything lies in the recipe's folder: a run that is finished is not trained again, weights that
are there are not built again, an entry that was measured is not measured again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.evaluation.loading import ModelLoading
from holdfast.studies.engine.models import MEASURED, MadeModel, measure_model, train_model

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.studies.engine.worker import Task

FISHER = "fisher"
"""Behind the name of a merged part's folder: of its Fisher information."""
EVALUATIONS = "evaluations"
"""Behind the name of a built model's folder: of what was measured of it."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """A model that is there; it is only measured."""

    model: str
    """Folder or hub id."""
    folder: Path
    """Gets what is measured, in a folder `label`."""
    label: str = MEASURED
    loading: ModelLoading = ModelLoading()


@dataclass(frozen=True, kw_only=True)
class Trained:
    """An ordinary run, which measures its result itself."""

    settings: Mapping[str, Any]
    """As `holdfast train --config` takes them, with `output_dir`."""
    watched: tuple[str, ...] = ()
    """Suites whose first held-out text is also measured on the way."""
    points: int = 0
    """How often, in equal parts of the steps; 0: not at all."""


@dataclass(frozen=True, kw_only=True)
class Merged:
    """A merge of several models."""

    parts: tuple[Path, ...]
    method: str
    parameters: Mapping[str, Any]
    folder: Path
    fisher_data: tuple[str, ...] = ()
    """Data of each part, on which its Fisher information is computed; empty: the method needs
    none."""
    fisher_samples: int = 0


@dataclass(frozen=True, kw_only=True)
class Residual:
    """A continued base plus `scale` times what an instruct model has over the old base."""

    instruct: str
    base: str
    onto: str
    scale: float
    folder: Path
    adapter_base: str | None = None
    """The model that `onto` is an adapter of; None: it is none."""


Recipe = Given | Trained | Merged | Residual


def has_weights(folder: str | Path) -> bool:
    """Whether the weights of a model are in a folder; they appear whole."""
    return any(Path(folder).glob("*.safetensors"))


def make(
    recipe: Recipe, plan: EvaluationPlan, *, cache: Path | None, task: Task, processes: int = 1
) -> MadeModel:
    """Makes a model and measures it, or finds it.

    Args:
        recipe: what it is made of.
        plan: what is measured; of a `Trained` one its own settings say that.
        cache: for evaluations; None: they are shared with nobody.
        task: what the worker does.
        processes: that share the questions about a model which no run measured.

    Raises:
        HoldfastError: training, building or measuring failed.
    """
    if isinstance(recipe, Trained):
        return train_model(recipe.settings, recipe.watched, recipe.points, cache=cache, task=task)
    if isinstance(recipe, Given):
        measured = measure_model(
            recipe.model,
            plan,
            recipe.folder,
            cache=cache,
            task=task,
            processes=processes,
            label=recipe.label,
            loading=recipe.loading,
        )
        return MadeModel(measured=measured)
    folder = recipe.folder
    if not has_weights(folder):
        build(recipe)
    evaluations = folder.with_name(f"{folder.name}.{EVALUATIONS}")
    measured = measure_model(folder, plan, evaluations, cache=cache, task=task, processes=processes)
    return MadeModel(measured=measured)


def build(recipe: Merged | Residual) -> None:
    """Writes the weights of a model that is computed from others."""
    if isinstance(recipe, Residual):
        from holdfast.checkpoints.residual import transfer_residual

        request: dict[str, Any] = {"scale": recipe.scale, "adapter_base": recipe.adapter_base}
        transfer_residual(
            recipe.instruct, recipe.base, recipe.onto, recipe.folder, overwrite=True, **request
        )
        return
    from holdfast.checkpoints.merge import merge

    parameters = dict(recipe.parameters)
    if recipe.fisher_data:
        parameters["fisher"] = _fisher_folders(recipe)
    merge(recipe.parts, recipe.folder, method=recipe.method, overwrite=True, **parameters)


def _fisher_folders(recipe: Merged) -> list[Path]:
    """Computes the Fisher information of each part on its data, beside the part."""
    from holdfast.runs.fisher import FisherSettings, compute_fisher

    folders, settings = [], FisherSettings(samples=recipe.fisher_samples)
    for model, data in zip(recipe.parts, recipe.fisher_data, strict=True):
        output_dir = model.with_name(f"{model.name}.{FISHER}")
        fisher = compute_fisher(model, data, settings, output_dir=output_dir, overwrite=True)
        folders.append(fisher.folder)
    return folders
