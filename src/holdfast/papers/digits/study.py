"""Figure 1 of "Soup to Go": a small network learns the even digits and then the odd ones.

The paper has "a small, custom neural network on 2 sequential MNIST tasks ... separated by label
introduced in Moriarity (2020)". That post (seanmoriarity.com, "Continual Learning with Elastic
Weight Consolidation in TensorFlow 2") trains a layer of 128 ReLU on images whose label is
floor(digit / 2): an even digit and the odd one after it have one label, so that both tasks share
*five* outputs. Adam at its default rate of 0.001, batches of 32, six epochs a task. It prints 0.975
and 0.976 for both tasks at once, 0.985 for the even digits, and 0.985 and 0.221 for the odd and the
even ones after the odd ones. These are the default settings here.

*Class-incremental* (`DigitsSettings.class_incremental`, ours): each of the ten digits has an output
of its own, and all ten stand against each other at a question. EWC is known to fail there, whatever
it is compared with.

What the post and the paper leave open or do otherwise: the Fisher information is the mean of squared
gradients of single images (the post squares gradients summed over a batch and over all outputs), of
as many images as its 1,000 batches hold; no dropout (the post has it in EWC's network alone).

The images are scikit-learn's scanned digits of 8 x 8 pixels, or MNIST's where a folder with them is
given. Of each way to train on the odd digits (an *arm*) the study keeps which held-out images the
network answers rightly.

The training loop is plain PyTorch; the methods act through `attach_retention`. A seed's results are
written when all its networks are trained, so a study that was stopped goes on with the next seed.

output_dir/
  seeds/seed-0.json   right answers of every arm's network
  sequence.json       the record, as of `holdfast sequence`
  report.html         the page
"""

from __future__ import annotations

import copy
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from holdfast.errors import TrainingDiverged
from holdfast.papers.digits.data import read_digits, read_mnist
from holdfast.records.figure import Figure
from holdfast.records.sequence import (
    MULTITASK,
    SEQUENTIAL,
    SINGLE,
    ArmResult,
    SequenceModel,
    SequenceRecord,
    TaskScore,
)
from holdfast.records.study import SampleCorrelation
from holdfast.retention.fisher import fingerprints, save_fisher
from holdfast.retention.plain_loop import attach_retention
from holdfast.retention.protocol import RetentionMethod
from holdfast.retention.registry import method_class
from holdfast.statistics.paired import Flips
from holdfast.statistics.samples_part import Contributions, correlation
from holdfast.studies.engine.study import PAGE
from holdfast.studies.sequence.settings import Arm, read_arms
from holdfast.support.environment import hardware, now, say, versions
from holdfast.support.files import fingerprint, read_object, write_json

OLD, NEW = "even", "odd"
TASKS = {OLD: (0, 2, 4, 6, 8), NEW: (1, 3, 5, 7, 9)}
"""The classes of each task, in the order in which the tasks are learnt."""
BATCH = 32
OPTIMIZERS: dict[str, Any] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
VERSION = 2
"""Of what a seed's results mean; raise it where results that are there should be made again."""


@dataclass(frozen=True, kw_only=True)
class DigitsSettings:
    """What is trained; figure 1's protocol where nothing is said."""

    name: str
    output_dir: Path
    arms: Sequence[Any]
    """Arms to train, as under `arms` of `holdfast sequence`; sequential fine-tuning is always
    included."""
    epochs: int = 6
    """Number of passes over each task's images."""
    seeds: Sequence[int] = (0, 1, 2)
    """Seeds for the order of the images. All seeds have the same images and initial weights."""
    labels: Literal["half", "digit"] = "half"
    """half: the label is floor(digit / 2), so both tasks share five outputs. digit: the label is
    the digit, so there are ten outputs."""
    hidden: int = 128
    """Neurons of the one hidden layer."""
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 0.001
    fisher_samples: int = 32_000
    """Largest number of old-task images from which EWC estimates the Fisher information."""
    mnist: str = ""
    """Folder with the four IDX files of MNIST. "" takes scikit-learn's digits instead."""

    @classmethod
    def class_incremental(cls, **settings: Any) -> DigitsSettings:
        """Ten outputs, and a network and training of ours: 64 neurons, plain SGD, 20 epochs."""
        ours: dict[str, Any] = {
            "labels": "digit",
            "hidden": 64,
            "optimizer": "sgd",
            "learning_rate": 0.1,
            "epochs": 20,
            "fisher_samples": 600,
        }
        return cls(**{**ours, **settings})

    @property
    def protocol(self) -> dict[str, Any]:
        """Everything that decides a seed's results, as plain JSON."""
        return {
            "epochs": self.epochs,
            "arms": list(self.arms),
            "labels": self.labels,
            "hidden": self.hidden,
            "optimizer": self.optimizer,
            "learning_rate": self.learning_rate,
            "fisher_samples": self.fisher_samples,
            "images": "MNIST" if self.mnist else "scikit-learn's digits",
        }

    @property
    def resolved(self) -> dict[str, Any]:
        """The settings as plain JSON."""
        return {**self.protocol, "seeds": list(self.seeds)}

    @property
    def outputs(self) -> int:
        """Of the network."""
        return 5 if self.labels == "half" else 10

    def differences(self, old: Mapping[str, Any]) -> list[str]:
        """What differs from the settings of a study in the folder, a sentence each."""
        differences = []
        for key, value in self.resolved.items():
            if old.get(key) != value:
                differences.append(f"{key}: was {old.get(key)}, is {value}")
        return differences


@dataclass(frozen=True)
class Samples:
    """Images of one task."""

    inputs: Tensor
    """`[N, pixels]` float32 in [0, 1]."""
    labels: Tensor
    """`[N]` int64."""

    def with_others(self, others: Samples) -> Samples:
        """These and others."""
        inputs = torch.cat([self.inputs, others.inputs])
        return Samples(inputs, torch.cat([self.labels, others.labels]))


# ----------------------------------------------------------------------------------------- training


def train(
    model: nn.Module,
    samples: Samples,
    settings: DigitsSettings,
    *,
    seed: int,
    methods: Sequence[RetentionMethod] = (),
) -> nn.Module:
    """A copy of the model that has learnt the samples with the methods.

    Raises:
        TrainingDiverged: a loss that is not finite.
    """
    model = copy.deepcopy(model)
    optimizer = OPTIMIZERS[settings.optimizer](model.parameters(), lr=settings.learning_rate)
    epochs = settings.epochs
    steps = epochs * math.ceil(len(samples.labels) / BATCH)
    retention = attach_retention(methods, model, optimizer, total_steps=steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(samples.labels), generator=generator)
        for numbers in order.split(BATCH):
            optimizer.zero_grad()
            loss = cross_entropy(model(samples.inputs[numbers]), samples.labels[numbers])
            if not torch.isfinite(loss):
                raise TrainingDiverged(
                    f"The loss is {loss.item()}. Use a lower learning rate or coefficient."
                )
            loss.backward()
            retention.add_gradients()
            optimizer.step()
            retention.after_step()
    return model


def with_replay(new: Samples, old: Samples, *, fraction: float, seed: int) -> Samples:
    """The new samples with old ones among them, mixed as the method `replay` mixes rows."""
    import datasets

    from holdfast.data.mixing import mix_replay

    together = new.with_others(old)
    inputs, labels = together.inputs, together.labels
    pairs = torch.arange(len(labels)).repeat_interleave(2).view(-1, 2).tolist()
    rows = datasets.Dataset.from_dict({"input_ids": pairs, "labels": pairs})
    count = len(new.labels)
    replayed = rows.select(range(count, len(labels)))
    mixed, _ = mix_replay(rows.select(range(count)), replayed, fraction=fraction, seed=seed)
    numbers = torch.tensor(mixed["input_ids"])[:, 0]
    return Samples(inputs[numbers], labels[numbers])


def write_fisher(model: nn.Module, samples: Samples, folder: Path, *, most: int) -> None:
    """Writes the diagonal Fisher information of a model, the mean of squared gradients of single
    samples, as EWC reads it.

    Args:
        model: the old task's.
        samples: of the old task.
        folder: gets it.
        most: how many samples it is computed on, at most.
    """
    numbers = range(len(samples.labels))
    chosen = sorted(Random(0).sample(numbers, len(numbers))[:most])
    parameters = dict(model.named_parameters())
    sums = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for number in chosen:
        loss = cross_entropy(model(samples.inputs[number]), samples.labels[number])
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        for total, gradient in zip(sums.values(), gradients, strict=True):
            total.addcmul_(gradient, gradient)
    means = {name: total / len(chosen) for name, total in sums.items()}
    save_fisher(
        folder, means, {"samples": len(chosen), "model": {"weights": fingerprints(parameters)}}
    )


@dataclass(frozen=True)
class Tasks:
    """The images of both tasks."""

    training: dict[str, Samples]
    held_out: dict[str, Samples]

    @classmethod
    def read(cls, settings: DigitsSettings) -> Tasks:
        """The images that the settings name, with their labels.

        Raises:
            DataError: MNIST's files cannot be read.
        """
        images = read_mnist(Path(settings.mnist)) if settings.mnist else read_digits()
        training, held_out = {}, {}
        for task, classes in TASKS.items():
            some = images.of_classes(classes)
            training[task] = _samples(some.train, some.train_labels, settings)
            held_out[task] = _samples(some.test, some.test_labels, settings)
        return cls(training, held_out)

    def answers(self, model: nn.Module) -> dict[str, list[int]]:
        """By task which held-out images a network answers rightly (0 or 1)."""
        right = {}
        for task, samples in self.held_out.items():
            with torch.no_grad():
                answers = model(samples.inputs).argmax(1)
            right[task] = (answers == samples.labels).int().tolist()
        return right


def _samples(pixels: Any, digits: Any, settings: DigitsSettings) -> Samples:
    labels = digits // 2 if settings.labels == "half" else digits
    return Samples(torch.from_numpy(pixels), torch.from_numpy(labels))


def train_seed(settings: DigitsSettings, arms: Sequence[Arm], seed: int) -> dict[str, Any]:
    """Trains every arm with a seed.

    Returns:
        By model (the arms' labels, "base" and the old task's) which held-out images of each task it
        answers rightly (0 or 1), and how far it is from the old task's model.

    Raises:
        DataError: MNIST's files cannot be read.
        TrainingDiverged: a loss that is not finite.
    """
    tasks = Tasks.read(settings)
    old, new = tasks.training[OLD], tasks.training[NEW]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = nn.Linear(old.inputs.shape[1], settings.hidden)
        base = nn.Sequential(first, nn.ReLU(), nn.Linear(settings.hidden, settings.outputs))
    old_model = train(base, old, settings, seed=seed)
    models = {"base": base, OLD: old_model}
    with tempfile.TemporaryDirectory() as scratch:
        fisher = Path(scratch) / "fisher"
        if any("ewc" in arm.kind for arm in arms):
            write_fisher(old_model, old, fisher, most=settings.fisher_samples)
        for arm in arms:
            start = base if arm.kind in (SINGLE, MULTITASK) else old_model
            samples = new.with_others(old) if arm.kind == MULTITASK else new
            methods = []
            for item in arm.retention:
                [(name, parameters)] = item.items()
                if name == "replay":
                    fraction = parameters["fraction"]
                    samples = with_replay(samples, old, fraction=fraction, seed=seed)
                    continue
                if name == "ewc":
                    parameters = {**parameters, "fisher": str(fisher)}
                methods.append(method_class(name)(**parameters))
            models[arm.label] = train(start, samples, settings, seed=seed, methods=methods)
    results = {}
    for label, model in models.items():
        results[label] = {"right": tasks.answers(model), "distance": distance(model, old_model)}
    return results


def distance(model: nn.Module, other: nn.Module) -> float:
    """L2 distance of two networks' weights."""
    squares = 0.0
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        squares += float((mine.detach().double() - theirs.detach().double()).square().sum())
    return math.sqrt(squares)


# ---------------------------------------------------------------------------------------- the study


def run_digits(
    settings: DigitsSettings, *, console: Any = None, workers: int | None = None
) -> SequenceRecord:
    """Runs the study, or goes on with it, and writes record and page.

    Args:
        settings: what is trained.
        console: a `rich.console.Console` for progress; None: a new one on standard output.
        workers: is not used: a network trains in a second, or some of MNIST.

    Returns:
        The record as in sequence.json.

    Raises:
        DataError: MNIST's files cannot be read.
        TrainingDiverged: a loss that is not finite.
        RunFolderError, StorageError: the folder cannot be written.
    """
    from rich.console import Console

    from holdfast.reports.html import write_page
    from holdfast.reports.sequence_report import sequence_page

    console = console or Console()
    created = now()
    arms = read_arms(settings.arms, [], [])
    key = fingerprint([VERSION, settings.protocol])
    results: dict[int, dict[str, Any]] = {}
    for seed in settings.seeds:
        file = settings.output_dir / "seeds" / f"seed-{seed}.json"
        stored = read_object(file) if file.is_file() else {}
        if stored.get("key") != key:
            say(console, f"{settings.name}: seed {seed}, {len(arms) + 1} networks")
            stored = {"key": key, "results": train_seed(settings, arms, seed)}
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, stored)
        results[seed] = stored["results"]
    record = digits_record(settings, arms, results, created=created)
    record.write(settings.output_dir)
    write_page(sequence_page(record), settings.output_dir / PAGE)
    return record


def digits_record(
    settings: DigitsSettings,
    arms: Sequence[Arm],
    results: Mapping[int, Mapping[str, Any]],
    *,
    created: str,
) -> SequenceRecord:
    """The study's record: every arm's accuracy at the end, and how much better than sequential
    fine-tuning it is."""
    first = next(iter(results.values()))
    accuracy: dict[str, Any] = {
        "name": "digits",
        "metric": "acc",
        "unit": "accuracy",
        "higher_is_better": True,
    }
    tasks = {}
    for task in TASKS:
        tasks[task] = TaskScore(
            suite=task, before=statistics.fmean(first["base"]["right"][task]), **accuracy
        )
    models = []
    for seed, networks in results.items():
        for label, network in networks.items():
            if label != "base":
                about = {
                    "trained": [OLD] if label == OLD else [OLD, NEW],
                    "distance": network["distance"],
                }
                models.append(
                    SequenceModel(name=label, label=label, seed=seed, state="complete", **about)
                )
    arm_results = [arm_result(arm, results, tasks) for arm in arms]
    return SequenceRecord(
        name=settings.name,
        status="finished",
        created=created,
        finished=now(),
        config=settings.resolved,
        tasks=tasks,
        orders=[list(TASKS)],
        seeds=list(results),
        models=models,
        arms=arm_results,
        correlations=correlations(arm_results, results, tasks),
        versions=versions(),
        hardware=hardware(),
    )


def arm_result(
    arm: Arm, results: Mapping[int, Mapping[str, Any]], tasks: Mapping[str, TaskScore]
) -> ArmResult:
    """One arm with its figures."""
    sequential = read_arms([], [], [])[0].label

    def right(label: str, task: str) -> dict[int, Sequence[int]]:
        return {seed: networks[label]["right"][task] for seed, networks in results.items()}

    scores, against = {}, {}
    for task, about in tasks.items():
        # of the arm that trains each task alone, a task's score is that of its own model
        after = right(OLD if arm.kind == SINGLE and task == OLD else arm.label, task)
        gain = gain_over(right("base", task), after)
        by_seed = {seed: about.before + difference for seed, difference in gain.by_seed.items()}
        scores[task] = Figure(
            value=about.before + gain.value, by_seed=by_seed, samples_half=gain.samples_half
        )
        if arm.kind != SEQUENTIAL:
            against[task] = gain_over(right(sequential, task), after)
    moved = Figure.over_seeds(
        {seed: networks[arm.label]["distance"] for seed, networks in results.items()}
    )
    return ArmResult(
        arm=arm.label,
        kind=arm.kind,
        strength=arm.strength,
        order=list(TASKS),
        retention=arm.retention,
        old_data=arm.old_data,
        models=[OLD, arm.label],
        scores=scores,
        against=against,
        distance=None if arm.kind == SINGLE else moved,
    )


def correlations(
    arms: Sequence[ArmResult],
    results: Mapping[int, Mapping[str, Any]],
    tasks: Mapping[str, TaskScore],
) -> list[SampleCorrelation]:
    """How far two arms gain over the base on the same images, by task."""
    known = []
    for task, about in tasks.items():
        changes = {}
        for number, arm in enumerate(arms):
            label = arm.models[0] if arm.kind == SINGLE and task == OLD else arm.models[-1]
            gains = []
            for networks in results.values():
                after, before = networks[label]["right"][task], networks["base"]["right"][task]
                gains.append(np.subtract(after, before))
            gain = np.mean(gains, axis=0)
            images = tuple(map(str, range(len(gain))))
            changes[number] = Contributions(samples=images, values=gain - gain.mean())
        entry = (about.suite, about.name, about.metric)
        known.append(correlation(entry, changes))
    return [c for c in known if c is not None]


def gain_over(before: Mapping[int, Sequence[int]], after: Mapping[int, Sequence[int]]) -> Figure:
    """How much more often `after` is right than `before`, paired by seed and image, with an
    interval over both."""
    by_seed, halves = {}, []
    for seed, answers in after.items():
        pairs = list(zip(before[seed], answers, strict=True))
        flips = Flips(lost=pairs.count((1, 0)), gained=pairs.count((0, 1)), n=len(pairs))
        low, high = flips.interval()
        by_seed[seed] = flips.estimate
        halves.append((high - low) / 2)
    return Figure.over_seeds(by_seed, statistics.fmean(halves))
