"""A classifier's run: measured, trained with retention methods, measured again; a folder as every run's.

```yaml
model_name_or_path: runs/even          # a folder of `training.classifier.save_network`
dataset_name: odd_train.safetensors    # inputs and labels
retention: [{sfa: {p: 0.25}}]
evaluation: {even: [{accuracy: even_heldout.safetensors}], odd: [{accuracy: odd_heldout.safetensors}]}
```

A run takes seconds, so it is made anew rather than resumed. Of a finished one nothing is computed again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.config.declare import Meta, deciding, settings_of
from holdfast.config.decode import decode
from holdfast.errors import DataError, ModelError, NotFinite
from holdfast.records.evaluation import Evaluation, EvaluationFolder
from holdfast.records.run import RunFolder, RunRecord
from holdfast.support.files import fingerprint

if TYPE_CHECKING:
    from torch import nn

    from holdfast.retention.protocol import RetentionMethod
    from holdfast.training.classifier import Classes, FitSettings, Samples

Groups = tuple[tuple[int, ...], ...]
_GROUPS = {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0}}}


def _groups(value: Any) -> Groups:
    """Lists of classes.

    Raises:
        ValueError: anything else.
    """
    if not isinstance(value, (list, tuple)) or not all(
        isinstance(g, (list, tuple)) and g and all(type(c) is int and c >= 0 for c in g) for g in value
    ):
        raise ValueError
    return tuple(tuple(g) for g in value)


GroupsOf = Annotated[
    Groups,
    Meta(parse=_groups, expected="lists of classes, as in [[0, 2, 4], [1, 3, 5]]", json_schema=lambda: _GROUPS),
]


@dataclass(frozen=True, kw_only=True)
class AccuracyEntry:
    """Samples to be classified."""

    accuracy: str
    """A safetensors file with inputs and labels."""
    name: str = "accuracy"
    """Of the entry in its suite."""
    groups: GroupsOf = ()
    """The classes among which an answer is chosen: the group of the label. Empty: all."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """An entry of a suite."""

    suite: str
    entry: AccuracyEntry

    @property
    def name(self) -> str:
        """Of the entry in its suite."""
        return self.entry.name


@dataclass(frozen=True, kw_only=True)
class ClassifierPlan:
    """What is measured of a classifier."""

    entries: tuple[Measured, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClassifierConfig:
    """A run, everything resolved."""

    model: str
    data: str
    fit: FitSettings
    groups: Groups
    known: Groups
    retention: tuple[RetentionMethod, ...]
    evaluation: ClassifierPlan
    output_dir: Path
    resolved: dict[str, Any]

    @property
    def classes(self) -> Classes:
        """The outputs that stand against each other."""
        from holdfast.training.classifier import Classes

        return Classes(groups=self.groups, known=self.known)

    @property
    def key(self) -> str:
        """Of what decides the weights, files by their content."""
        methods = [m.identity() for m in self.retention]
        named = [Path(p) for m in methods for p in m.values() if isinstance(p, str) and p]
        files: list[str | Path] = [
            f for p in named for f in (sorted(p.glob("*.safetensors")) if p.is_dir() else [p]) if f.is_file()
        ]
        return fingerprint(
            [
                weights_hash(self.model),
                *map(_file_hash, [self.data, *files]),
                deciding(self.fit),
                self.groups,
                self.known,
                methods,
            ]
        )


@dataclass(frozen=True, kw_only=True)
class _Data:
    """Keys beside those of `FitSettings`."""

    model_name_or_path: str
    """Folder of the network that training begins with."""
    dataset_name: str
    """A safetensors file with inputs and labels."""
    groups: GroupsOf = ()
    """A sample's softmax is over the group that its label is in; empty: over all classes."""
    known: GroupsOf = ()
    """What a teacher has learnt: label annealing's KL is over these groups; empty: over what the loss is."""


def known_keys() -> list[str]:
    """Keys of a classifier's training configuration."""
    from holdfast.training.classifier import FitSettings

    return [s.name for cls in (_Data, FitSettings) for s in settings_of(cls)] + [
        "retention",
        "evaluation",
        "output_dir",
    ]


def read_plan(evaluation: Mapping[str, Any]) -> tuple[ClassifierPlan, list[str]]:
    """What is measured: entries by suite, and every mistake."""
    entries: list[Measured] = []
    problems: list[str] = []
    for suite, items in evaluation.items():
        if not isinstance(items, (list, Mapping, str)):
            problems.append(f"{suite}: expected entries such as {{accuracy: FILE}}, got {items!r}.")
            continue
        for number, item in enumerate(items if isinstance(items, list) else [items]):
            one, mistakes = decode(AccuracyEntry, item if isinstance(item, Mapping) else {"accuracy": item})
            problems += [f"{suite}[{number}]: {m.sentence()}" for m in mistakes]
            if one is not None:
                if any(e.suite == suite and e.name == one.name for e in entries):
                    problems.append(f"{suite}[{number}].name: {one.name!r} stands there twice; name one otherwise.")
                entries.append(Measured(suite=suite, entry=one))
    return ClassifierPlan(entries=tuple(entries)), problems


def classifier_config(values: Mapping[str, Any]) -> tuple[ClassifierConfig | None, list[str]]:
    """A run from its keys, and every mistake; files are looked at."""
    from holdfast.retention.registry import parse_retention
    from holdfast.training.classifier import FitSettings

    given = dict(values)
    methods, mistakes = parse_retention(given.pop("retention", None))
    plan, problems = read_plan(given.pop("evaluation", {}))
    output_dir = Path(given.pop("output_dir", "run"))
    of_data = {s.name for s in settings_of(_Data)}
    data, wrong = decode(_Data, {k: v for k, v in given.items() if k in of_data})
    fit, also = decode(FitSettings, {k: v for k, v in given.items() if k not in of_data})
    problems += [m.sentence() for m in (*mistakes, *wrong, *also)]
    if data is None or fit is None or problems:
        return None, problems
    config = ClassifierConfig(
        model=data.model_name_or_path,
        data=data.dataset_name,
        fit=fit,
        groups=data.groups,
        known=data.known,
        retention=tuple(methods),
        evaluation=plan,
        output_dir=output_dir,
        resolved=dict(values),
    )
    return config, _file_problems(config)


def _file_problems(config: ClassifierConfig) -> list[str]:
    """Networks and samples that are not there or do not fit each other."""
    from holdfast.training.classifier import load_network

    problems = []
    try:
        model = load_network(config.model)
    except ModelError as error:
        return [f"model_name_or_path: {error}"]
    files = {"dataset_name": (config.data, config.groups)}
    files |= {f"{e.suite}/{e.name}": (e.entry.accuracy, e.entry.groups) for e in config.evaluation.entries}
    for where, (file, groups) in files.items():
        try:
            samples = _samples(file)
        except DataError as error:
            problems.append(f"{where}: {error}")
            continue
        width, most = math.prod(samples.inputs.shape[1:]), int(samples.labels.max())
        if width != model.config["inputs"] or most >= model.config["outputs"]:
            problems.append(
                f"{where}: expected samples of {model.config['inputs']} numbers and classes below "
                f"{model.config['outputs']}, as the network has them, got {width} and {most} in {file}."
            )
        strange = sorted(set(samples.labels.tolist()) - {c for group in groups for c in group}) if groups else []
        problems += [f"{where}.groups: the classes {strange} of {file} are in no group."] if strange else []
    return problems


def train_classifier(
    config: ClassifierConfig,
    *,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    curve: Sequence[float] = (),
    watched: Sequence[str] = (),
) -> tuple[RunFolder, dict[str, list[tuple[float, float]]]]:
    """Runs a configuration, or finds it done.

    Args:
        config: see `classifier_config`.
        on_step: gets (step, steps) after each step; raises where training has to stop.
        curve: shares of the run at which held-out losses are measured.
        watched: the suites whose first entries they are of.

    Returns:
        The run's folder, and by suite (share, nats per sample).

    Raises:
        HoldfastError: see `training.classifier.fit`.
    """
    from holdfast.support.environment import hardware, now, versions
    from holdfast.training.classifier import fit, load_network, save_network

    run = RunFolder(config.output_dir)
    asked = [[dataclasses.asdict(e), _file_hash(e.entry.accuracy)] for e in config.evaluation.entries]
    key = fingerprint([config.key, asked, list(curve), list(watched)])
    if run.exists() and (done := run.read()).status == "finished" and done.config_key == key:
        return run, {k: [(x, y) for x, y in v] for k, v in done.training["curves"].items()}
    model = load_network(config.model)
    start = {"name": config.model, "hash": weights_hash(config.model)}
    evaluate_classifier(model, config.evaluation, run.evaluated("start"), identity=start)
    entries = [next(e for e in config.evaluation.entries if e.suite == suite) for suite in watched]
    found: dict[str, list[tuple[float, float]]] = {}

    def measure(share: float) -> None:
        for one in entries:
            found.setdefault(one.suite, []).append((share, _mean_nats(model, one.entry)))

    marks = list(curve)

    def stepped(step: int, steps: int) -> None:
        on_step(step, steps)
        for share in [s for s in marks if step >= s * steps]:
            marks.remove(share)
            measure(step / steps)

    record = RunRecord(
        name=config.output_dir.name,
        command="classifier",
        config=config.resolved,
        config_key=key,
        retention=[m.record() for m in config.retention],
        model=start,
        data={"name": config.data, "hash": _file_hash(config.data)},
        seed=config.fit.seed,
        versions=versions(),
        hardware=hardware(),
        created=now(),
    )
    run.path.mkdir(parents=True, exist_ok=True)
    run.write(record)
    measure(0.0)
    fitted = fit(
        model,
        _samples(config.data),
        config.fit,
        retain=config.retention,
        classes=config.classes,
        folder=run.path,
        on_step=stepped,
        load=_samples,
    )
    measure(1.0)
    save_network(model, run.path)
    result = {"name": str(run.path), "hash": weights_hash(run.path)}
    evaluate_classifier(model, config.evaluation, run.evaluated("result"), identity=result)
    about = {"steps": fitted.steps, "tokens": fitted.samples, "seconds": fitted.seconds, "final": fitted.final}
    run.write(
        dataclasses.replace(
            record,
            status="finished",
            stage="done",
            finished=now(),
            data={**record.data, "mixed": fitted.data},
            training={**about, "curves": found},
        )
    )
    return run, found


def evaluate_classifier(
    model: nn.Module, plan: ClassifierPlan, folder: EvaluationFolder, *, identity: Mapping[str, Any]
) -> list[Evaluation]:
    """Measures a classifier, or finds it measured: accuracy, and the loss in nats per sample.

    Args:
        model: in any mode; dropout is off.
        plan: what is measured.
        folder: gets an evaluation an entry, with a row a sample.
        identity: the model's name and the hash of its weights.

    Raises:
        DataError: a file that cannot be read, or a label in no group.
        NotFinite: the model's losses are NaN or infinite.
    """
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.evaluation.measures import Outcome
    from holdfast.statistics.estimates import Ratio

    figures = {
        "acc": Ratio(numerator="acc", unit="accuracy", higher_is_better=True),
        "nats": Ratio(numerator="nats", unit="nats/sample"),  # not its exponential, which overflows from 710 on
    }
    done = []
    for one in plan.entries:
        file, groups = one.entry.accuracy, one.entry.groups
        key = fingerprint([identity["hash"], _file_hash(file), groups])
        there = folder.find(one.suite, one.name)
        if there is None or there.key != key:
            nats, answers = _answers(model, _samples(file), groups)
            golds = _samples(file).labels.tolist()
            rows = [
                {"doc": f"{_file_hash(file)[:16]}-{i}", "nats": n, "acc": float(a == g), "gold": g, "answer": a}
                for i, (n, a, g) in enumerate(zip(nats, answers, golds, strict=True))
            ]
            outcome = Outcome(rows=rows, figures=figures)
            there = Evaluation(
                suite=one.suite,
                name=one.name,
                kind="classes",
                primary=outcome.primary,
                metrics=outcome.metrics(EvaluationPlan()),
                settings=dataclasses.asdict(one.entry),
                model=dict(identity),
                key=key,
                failed=outcome.failed,
            )
            folder.write(there, rows)
        if there.failed is not None:
            raise NotFinite(f"{one.suite}/{one.name}: {there.failed} What was measured means nothing.")
        done.append(there)
    return done


def _answers(model: nn.Module, samples: Samples, groups: Groups) -> tuple[list[float], list[int]]:
    """Of every sample -log p(right class), nats, and the most likely class."""
    import torch

    from holdfast.training.classifier import EVALUATED, Classes, masked

    training = model.training
    model.eval()
    nats, answers = [], []
    with torch.no_grad():
        parts = zip(samples.inputs.split(EVALUATED), samples.labels.split(EVALUATED), strict=True)
        for inputs, labels in parts:
            logits = masked(model(inputs), labels, Classes(groups=groups))
            nats += torch.nn.functional.cross_entropy(logits, labels, reduction="none").tolist()
            answers += logits.argmax(1).tolist()
    model.train(training)
    return nats, answers


def _mean_nats(model: nn.Module, entry: AccuracyEntry) -> float:
    nats, _ = _answers(model, _samples(entry.accuracy), entry.groups)
    return sum(nats) / len(nats)


def weights_hash(folder: str | Path) -> str:
    """SHA-256 of a network's weights."""
    from holdfast.training.classifier import WEIGHTS

    return _file_hash(Path(folder) / WEIGHTS)


def _file_hash(file: str | Path) -> str:
    import hashlib

    path = Path(file)
    if not path.is_file():
        raise DataError(f"no such file: {file}.")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _samples(file: str) -> Samples:
    from holdfast.support.paths import expanded

    path = expanded(file)
    about = path.stat() if path.is_file() else None
    return _read(str(path), None if about is None else (about.st_mtime_ns, about.st_size))


@lru_cache(maxsize=64)
def _read(path: str, version: Any) -> Samples:
    """Kept, since a study's runs share their files."""
    from holdfast.training.classifier import read_samples

    return read_samples(path)
