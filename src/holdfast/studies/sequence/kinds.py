"""What a sequence study may train: language models, or classifiers. All that differs between them is here: the keys of
a training, what measures it, and how one model is trained and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import ConfigError
from holdfast.records.evaluation import EvaluationFolder
from holdfast.studies.engine.models import (
    MEASURED,
    Trained,
    measure_model,
    measuring_processes,
    train_model,
    training_problems,
)

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.studies.engine.worker import Task

LANGUAGE, CLASSIFIER = "language", "classifier"


class Kind(Protocol):
    """See the module."""

    def keys(self) -> list[str]:
        """Of a training configuration."""

    def read_evaluation(self, evaluation: Mapping[str, Any]) -> tuple[Any, list[str]]:
        """What is measured, suite by suite beside what they share, with `entries` that have `suite` and `name`; and
        what is wrong with it."""

    def problems(self, settings: Mapping[str, Any]) -> list[str]:
        """What is wrong with a training configuration."""

    def check_base(self, name: str, train: Mapping[str, Any]) -> None:
        """Looks at the base's files.

        Raises:
            ModelError: the base is not whole.
        """

    def train(
        self, settings: Mapping[str, Any], tasks: Sequence[str], points: int, *, cache: Path, task: Task
    ) -> Trained:
        """Trains and measures a model.

        Args:
            settings: the training configuration.
            tasks: whose held-out losses are measured on the way.
            points: how often.
            cache: for evaluations.
            task: what the worker does.
        """

    def measure(
        self, model: Path, plan: Any, place: Path, *, cache: Path, task: Task, train: Mapping[str, Any]
    ) -> EvaluationFolder:
        """Measures a model that was not trained, such as a merge; `train`: the study's common keys of training."""

    def fisher(self, model: Path, train: Mapping[str, Any], place: Path, *, samples: int) -> Path:
        """The Fisher diagonal of a model on a task's data, computed once.

        Args:
            model: of a single task.
            train: the task's training configuration.
            place: gets it.
            samples: at most.
        """


class LanguageModels:
    """See `Kind`: `holdfast train` and `holdfast evaluate`."""

    def keys(self) -> list[str]:
        """See `Kind`."""
        from holdfast.runs.settings import training_keys

        return training_keys()

    def read_evaluation(self, evaluation: Mapping[str, Any]) -> tuple[EvaluationPlan, list[str]]:
        """See `Kind`."""
        from holdfast.evaluation.suite import parse_evaluation

        return parse_evaluation(evaluation)

    def problems(self, settings: Mapping[str, Any]) -> list[str]:
        """See `Kind`."""
        return training_problems(settings)

    def check_base(self, name: str, train: Mapping[str, Any]) -> None:
        """See `Kind`."""
        from holdfast.models import check_model

        check_model(name, trust_remote_code=bool(train.get("trust_remote_code")))

    def train(
        self, settings: Mapping[str, Any], tasks: Sequence[str], points: int, *, cache: Path, task: Task
    ) -> Trained:
        """See `Kind`."""
        return train_model(settings, tasks, points, cache=cache, task=task)

    def measure(
        self, model: Path, plan: EvaluationPlan, place: Path, *, cache: Path, task: Task, train: Mapping[str, Any]
    ) -> EvaluationFolder:
        """See `Kind`."""
        return measure_model(model, plan, place, cache=cache, task=task, processes=measuring_processes(train, plan))

    def fisher(self, model: Path, train: Mapping[str, Any], place: Path, *, samples: int) -> Path:
        """See `Kind`."""
        from holdfast.runs.fisher import compute_fisher

        return compute_fisher(model, train["dataset_name"], samples=samples, output_dir=place, overwrite=True).folder


class Classifiers:
    """See `Kind`: small networks on samples with a label each."""

    def keys(self) -> list[str]:
        """See `Kind`."""
        from holdfast.runs.classifier import known_keys

        return known_keys()

    def read_evaluation(self, evaluation: Mapping[str, Any]) -> tuple[Any, list[str]]:
        """See `Kind`."""
        from holdfast.runs.classifier import read_plan

        return read_plan(evaluation)

    def problems(self, settings: Mapping[str, Any]) -> list[str]:
        """See `Kind`."""
        from holdfast.runs.classifier import classifier_config

        return classifier_config(settings)[1]

    def check_base(self, name: str, train: Mapping[str, Any]) -> None:
        """See `Kind`."""
        from holdfast.training.classifier import load_network

        load_network(name)

    def train(
        self, settings: Mapping[str, Any], tasks: Sequence[str], points: int, *, cache: Path, task: Task
    ) -> Trained:
        """See `Kind`."""
        from holdfast.runs.classifier import classifier_config, train_classifier

        config, problems = classifier_config(settings)
        if config is None or problems:
            raise ConfigError(problems)
        run, curves = train_classifier(
            config,
            on_step=lambda step, steps: task.check(),
            curve=[i / points for i in range(1, points)] if points else (),
            watched=tasks if points else (),
        )
        return Trained(measured=run.evaluated("result"), tokens=int(run.read().training["tokens"]), curves=curves)

    def measure(
        self, model: Path, plan: Any, place: Path, *, cache: Path, task: Task, train: Mapping[str, Any]
    ) -> EvaluationFolder:
        """See `Kind`."""
        from holdfast.runs.classifier import evaluate_classifier, weights_hash
        from holdfast.training.classifier import load_network

        found = EvaluationFolder(place / MEASURED)
        identity = {"name": str(model), "hash": weights_hash(model)}
        evaluate_classifier(load_network(model), plan, found, identity=identity)
        return found

    def fisher(self, model: Path, train: Mapping[str, Any], place: Path, *, samples: int) -> Path:
        """See `Kind`."""
        from holdfast.training.classifier import Classes, fisher_information, load_network, read_samples

        classes = Classes(groups=tuple(map(tuple, train.get("groups", ()))))
        data = read_samples(train["dataset_name"])
        return fisher_information(load_network(model), data, place, count=samples, classes=classes)


KINDS: dict[str, Kind] = {LANGUAGE: LanguageModels(), CLASSIFIER: Classifiers()}
"""By name, as `kind:` has it."""
