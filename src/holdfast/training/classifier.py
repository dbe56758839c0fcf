"""Retention methods on any classifier: a training loop that hosts them, so that they are not tied to language models.

```python
model = Network(inputs=64, hidden=(64,), outputs=10)
fit(model, even, FitSettings(learning_rate=0.1))
fit(model, odd, FitSettings(learning_rate=0.1), retain=[SequentialAveraging(p=0.25)])
```

    loss = CE + weight * KL(softmax(w / T) || softmax(z / T))        nats per sample; w: teacher logits, z: the model's

The model may be any module that maps inputs `[B, ...]` to logits `[B, classes]`. What methods know as a row of tokens
is one sample here: `input_ids` holds its number twice, `labels` the class in the second place, so that mixing, choosing
and counting act on samples as they do on documents. The hooks are called at the same moments as in a language model's
run (`training.mixin`): gradients are added before clipping, weights changed after the optimiser's step.

One process, full precision. The teacher of label annealing is the start model, or `teacher_model`, without dropout; how
a language model's teacher saves memory (`teacher_dtype`, `teacher_sharded`) has no use here and is refused.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor, nn

from holdfast.config.declare import Meta, Seed
from holdfast.errors import ConfigError, DataError, ModelError, TrainingDiverged
from holdfast.ops.annealing import IGNORE, AnnealedLoss, NonFiniteLogits, annealed_loss
from holdfast.ops.heads import Head
from holdfast.retention.anchor import START, Anchors, load_anchor
from holdfast.retention.fisher import choose_rows, diagonal_fisher, fingerprints, made_of, save_fisher
from holdfast.retention.protocol import ActiveMethod, RetentionMethod, StepInfo, TokenLoss, in_turn, makes_data, stacked
from holdfast.retention.services import StepFigures
from holdfast.training.optimizer_state import state_by_name

if TYPE_CHECKING:
    from datasets import Dataset

EVALUATED = 4096
"""Samples of one batch without gradients."""
CONFIG, WEIGHTS = "config.json", "model.safetensors"
KIND = "holdfast_classifier"
MASKED = -1e20
"""Logit of an output that takes no part: a probability of 0 at any temperature, and a number still."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What a classifier learns, or is measured on."""

    inputs: Tensor
    """`[N, ...]`, float."""
    labels: Tensor
    """`[N]` int64, the class of each from 0."""

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels) or not len(self.labels):
            raise DataError(
                f"expected samples with a label each, got {len(self.inputs)} inputs and {len(self.labels)} labels."
            )
        if not bool(torch.isfinite(self.inputs).all()) or int(self.labels.min()) < 0:
            raise DataError("expected finite inputs and classes from 0, got NaN, infinity or a class below 0.")


def read_samples(file: str | Path) -> Samples:
    """The samples of a safetensors file with the tensors `inputs` `[N, ...]` and `labels` `[N]`.

    Raises:
        DataError: no such file, or other tensors in it.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = Path(file)
    if not path.is_file():
        raise DataError(f"no such file: {file}. Expected safetensors with inputs and labels.")
    try:
        found = load_file(str(path))
    except SafetensorError as error:
        raise DataError(f"{file} is no safetensors file ({error}).") from error
    if set(found) != {"inputs", "labels"} or not found["inputs"].is_floating_point():
        raise DataError(f"{file}: expected the tensors inputs (float) and labels (int64), got {sorted(found)}.")
    return Samples(inputs=found["inputs"].float(), labels=found["labels"].long())


# ------------------------------------------------------------------------------------------------------------- networks


class Network(nn.Module):
    """Layers of neurons: inputs, any number of hidden ones, a logit for each class.

    Args:
        inputs: numbers of a sample, once flattened.
        hidden: neurons of each hidden layer.
        outputs: classes.
        activation: after each hidden layer.
        dropout: of each hidden layer, in training.
        seed: of the weights, which are drawn as torch draws them.
    """

    def __init__(
        self,
        *,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        activation: Literal["relu", "tanh"] = "relu",
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = {
            "inputs": inputs,
            "hidden": list(hidden),
            "outputs": outputs,
            "activation": activation,
            "dropout": dropout,
        }
        widths = [inputs, *hidden]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
            self.output = nn.Linear(widths[-1], outputs)
        self.activation = {"relu": torch.relu, "tanh": torch.tanh}[activation]
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        """`[B, ...]` to logits `[B, outputs]`."""
        state = inputs.flatten(1)
        for layer in self.hidden:
            state = self.dropout(self.activation(layer(state)))
        logits: Tensor = self.output(state)
        return logits


def save_network(model: Network, folder: str | Path) -> Path:
    """Writes a network as a folder of config.json and safetensors, which merges, distances and anchors read."""
    from safetensors.torch import save_file

    from holdfast.checkpoints.writer import disk_errors
    from holdfast.support.files import write_json

    place = Path(folder)
    with disk_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        write_json(place / CONFIG, {"model_type": KIND, **model.config})
        save_file({n: t.contiguous() for n, t in model.state_dict().items()}, str(place / f".{WEIGHTS}"))
        (place / f".{WEIGHTS}").replace(place / WEIGHTS)
    return place


def load_network(folder: str | Path) -> Network:
    """A network as `save_network` wrote it, or as a merge of such folders.

    Raises:
        ModelError: no such network there.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    place = Path(folder)
    try:
        config = json.loads((place / CONFIG).read_text(encoding="utf-8"))
        if config.pop("model_type", None) != KIND:
            raise ModelError(f"{folder} is no classifier: {CONFIG} has another model_type.")
        model = Network(**{k: config[k] for k in ("inputs", "hidden", "outputs", "activation", "dropout")})
        model.load_state_dict(load_file(str(place / WEIGHTS)))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{folder} holds no whole classifier ({CONFIG} and {WEIGHTS}): {error}") from error
    return model


# ------------------------------------------------------------------------------------------------------------- training


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How a classifier is trained; the keys that a language model's run has too are called as there."""

    learning_rate: Annotated[float, Meta(gt=0)] = 0.1
    """Constant over the run."""
    num_train_epochs: Annotated[float, Meta(gt=0)] = 10.0
    """Passes over the data; max_steps takes its place."""
    max_steps: Annotated[int, Meta(ge=-1)] = -1
    """Optimiser steps; -1: what the epochs take."""
    per_device_train_batch_size: Annotated[int, Meta(ge=1)] = 32
    """Samples of a step."""
    optim: Literal["sgd", "adam"] = "sgd"
    """The optimiser."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Of sgd."""
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    """As torch's optimisers take it: added to the gradient."""
    max_grad_norm: Annotated[float, Meta(ge=0)] = 0.0
    """Gradients are clipped to it; 0: not at all."""
    seed: Seed = 0
    """Of the order of samples, of dropout and of what methods draw."""

    def problems(self) -> list[str]:
        """Settings that do not go together."""
        return ["momentum: belongs to sgd."] if self.momentum and self.optim != "sgd" else []


@dataclass(frozen=True, kw_only=True)
class Classes:
    """Which outputs stand against each other."""

    groups: tuple[tuple[int, ...], ...] = ()
    """A sample's softmax is over the group that its label is in: the tasks' classes where the task is known at a
    question, one group of those met so far where it is not. Empty: over all outputs."""
    known: tuple[tuple[int, ...], ...] = ()
    """What the teacher has learnt: the KL is the sum of those over these groups. Empty: over what the loss is."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What a training did."""

    steps: int
    samples: int
    """Samples seen, replayed ones and repeats included."""
    seconds: float
    data: list[dict[str, Any]] = field(default_factory=list)
    """What methods mixed in."""
    final: dict[str, float] = field(default_factory=dict)
    """Figures of the last step: `ce`, and `kl` where there is a teacher, nats per sample, and what methods report."""


Load = Callable[[str], Samples]
"""Reads the data that a method names."""
OnStep = Callable[[int, int], None]
"""Gets (step, steps) after every optimiser step."""


def fit(
    model: nn.Module,
    samples: Samples,
    settings: FitSettings,
    *,
    retain: Sequence[RetentionMethod] = (),
    classes: Classes | None = None,
    load: Load = read_samples,
    folder: str | Path | None = None,
    on_step: OnStep = lambda step, steps: None,
    say: Callable[[str], None] = lambda line: None,
) -> Fitted:
    """Trains a classifier in place.

    Args:
        model: maps inputs to logits; its parameters that require gradients are trained.
        samples: the task's.
        settings: of training.
        retain: the methods; those that are off are left out, which is plain training bit for bit.
        classes: the outputs that take part.
        load: how `data` of a method is read; default: a safetensors file.
        folder: where methods may keep what they computed (EWC's Fisher information); None: nowhere.
        on_step: called after each step, the model in training mode.
        say: gets a line on what methods do.

    Returns:
        What was done.

    Raises:
        ConfigError: methods that do not fit together, or the run.
        DataError: data that methods name cannot be read.
        TrainingDiverged: a loss that is not finite.
    """
    loop = _Loop(model, samples, settings, retain, classes or Classes(), load, folder, say)
    return loop.run(on_step)


def fisher_information(
    model: nn.Module,
    samples: Samples,
    folder: str | Path,
    *,
    count: int = 256,
    sampled: bool = False,
    classes: Classes | None = None,
    seed: int = 0,
) -> Path:
    """The diagonal Fisher information of a classifier, squared nats per sample, as a folder that `ewc: {fisher:
    FOLDER}` and merges take (`retention.fisher`, which has the definition and its sources).

    Args:
        model: whose it is.
        samples: what it is computed on.
        folder: gets it; one that is there is replaced.
        count: samples of them, at most.
        sampled: labels drawn from the model instead of the samples' own.
        classes: see `fit`.
        seed: of which samples are taken, and of the draws.

    Returns:
        The folder.

    Raises:
        ModelError: gradients that are not finite.
        RunFolderError, StorageError: the folder cannot be written.
    """
    host = _Loop(model, samples, FitSettings(), (), classes or Classes(), read_samples, None, lambda line: None)
    rows = choose_rows(_rows(torch.arange(len(samples.labels)), samples.labels), count, seed=seed, label="the samples")
    diagonal = diagonal_fisher(host, host.named, rows, sampled=sampled, seed=seed, label="the samples")
    made = made_of(
        rows,
        fingerprints(host.named),
        estimator="sampled" if sampled else "empirical",
        seed=seed,
        data="samples",
        model={},
    )
    save_fisher(folder, diagonal.values, {**made, "tokens": diagonal.tokens})
    return Path(folder)


class _Loop:
    """One training, and the `retention.services.Host` of its methods."""

    def __init__(
        self,
        model: nn.Module,
        samples: Samples,
        settings: FitSettings,
        retain: Sequence[RetentionMethod],
        classes: Classes,
        load: Load,
        folder: str | Path | None,
        say: Callable[[str], None],
    ) -> None:
        self.model, self.settings, self.classes, self._load, self._say = model, settings, classes, load, say
        self._folder = None if folder is None else Path(folder)
        self.retain = tuple(m for m in retain if not m.off)
        if written := [m.name for m in self.retain if makes_data(m)]:
            raise ConfigError(
                f"retention: {', '.join(written)} trains on what the start model writes, and a classifier writes "
                f"nothing. Leave it out, or replay data (replay)."
            )
        self.inputs, self.labels = samples.inputs.contiguous(), samples.labels
        """Of all samples that the run knows of, those of methods among them."""
        self.named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.mixed: list[dict[str, Any]] = []
        self.order = self._numbers(self._with_methods(_rows(torch.arange(len(samples.labels)), samples.labels)))
        batch = settings.per_device_train_batch_size
        per_epoch = math.ceil(len(self.order) / batch)
        whole = math.ceil(settings.num_train_epochs * per_epoch)
        self.steps = settings.max_steps if settings.max_steps > 0 else whole
        problems = [
            p for m in self.retain for p in (*m.check_run(total_steps=self.steps), *m.check_weights(self.named))
        ]
        terms = [t for t in (m.token_loss() for m in self.retain) if t is not None]
        if len(terms) > 1:
            problems.append("retention: expected one term in the loss, got several; give label_annealing once")
        self.term: TokenLoss | None = terms[0] if terms else None
        problems += _teacher_problems(self.term)
        problems += [
            f"retention: {m.name} weighs tokens; a classifier has none" for m in self.retain if m.weighs_tokens
        ]
        if problems:
            raise ConfigError(problems)
        self.teacher = None if self.term is None else _frozen(model, self.term.teacher.model, self.named)
        anchors = Anchors(self.named)
        self.active: list[ActiveMethod] = [m.start(anchors) for m in self.retain]
        self._heads: dict[int, Head] = {}

    # ---------------------------------------------------------------------------------------------------------- the run

    def run(self, on_step: OnStep) -> Fitted:
        settings, began = self.settings, time.monotonic()
        training = self.model.training
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            for method in self.active:
                method.prepare(self)
            self.model.train()
            optimizer = self._optimizer()
            seen, final, batches = 0, dict[str, float](), self._batches()
            for step in range(1, self.steps + 1):
                numbers = next(batches)
                seen += len(numbers)
                result = self._take(step, numbers, optimizer)
                if step == self.steps:
                    final = asdict(_figures([result], self.term is not None))
                on_step(step, self.steps)
        self.model.train(training)
        broken = [n for n, p in self.named.items() if not bool(torch.isfinite(p).all())]
        if broken:  # after the last step no loss has been computed with them yet
            raise TrainingDiverged(f"{', '.join(broken[:3])}: weights are not finite. Use a lower learning_rate.")
        for method in self.active:
            final |= method.metrics(self.named)
        known = {k: v for k, v in final.items() if v is not None}
        return Fitted(steps=self.steps, samples=seen, seconds=time.monotonic() - began, data=self.mixed, final=known)

    def _take(self, step: int, numbers: Tensor, optimizer: torch.optim.Optimizer) -> AnnealedLoss:
        """One optimiser step."""
        optimizer.zero_grad(set_to_none=True)
        result = self._loss(numbers, scale=1 / len(numbers))
        if not bool(torch.isfinite(result.loss)):
            raise TrainingDiverged(f"Step {step}: the loss is {float(result.loss)}. Use a lower learning_rate.")
        result.loss.backward()
        rates = dict.fromkeys(self.named, float(optimizer.param_groups[0]["lr"]))
        about = StepInfo(
            step=step,
            total_steps=self.steps,
            optimizer_state=state_by_name(optimizer, self.named),
            reset_optimizer=optimizer.state.clear,
            learning_rates=rates,
        )
        for method in in_turn(self.retain, self.active):
            method.add_gradient(self.named, about)
        if self.settings.max_grad_norm:
            nn.utils.clip_grad_norm_(self.named.values(), self.settings.max_grad_norm)
        optimizer.step()
        if any(m.wants_figures for m in self.active):
            about = replace(about, figures=_figures([result], self.term is not None))
        for method in in_turn(self.retain, self.active):
            method.after_step(self.named, about)
        return result

    def _loss(self, numbers: Tensor, *, scale: float) -> AnnealedLoss:
        """Cross-entropy and the method's KL of samples; sums, scaled."""
        inputs, labels = self.inputs.index_select(0, numbers), self.labels.index_select(0, numbers)
        logits = self.model(inputs)
        mine = masked(logits, labels, self.classes)
        learn: dict[str, Any] = {"ce_scale": scale, "backend": "reference"}
        try:
            if self.term is None or self.teacher is None:
                return annealed_loss(mine, self._head(mine), labels, **learn)
            with torch.no_grad():
                theirs = self.teacher(inputs)
            anneal: dict[str, Any] = {
                "kl_scale": next(float(a.strength or 0.0) for m, a in self._pairs if m.token_loss() is not None)
                * scale,
                "temperature": self.term.temperature,
                "direction": self.term.direction,
                "beta": self.term.beta,
            }
            if not self.classes.known:
                held = masked(theirs, labels, self.classes)
                teacher = {"teacher_hidden_NK": held, "teacher_head": self._head(held)}
                return annealed_loss(mine, self._head(mine), labels, **teacher, **learn, **anneal)
            result = annealed_loss(mine, self._head(mine), labels, **learn)
            for group in map(list, self.classes.known):
                result = _with_divergence(result, self._divergence(logits[:, group], theirs[:, group], anneal))
        except NonFiniteLogits as error:
            raise TrainingDiverged(f"The logits are not finite ({error}). Use a lower learning_rate.") from error
        return result

    def _divergence(self, mine: Tensor, theirs: Tensor, anneal: Mapping[str, Any]) -> AnnealedLoss:
        """The KL alone, at every sample."""
        head, count = self._head(mine), len(mine)
        return annealed_loss(
            mine,
            head,
            torch.full((count,), IGNORE),
            teacher_hidden_NK=theirs,
            teacher_head=head,
            kl_mask_N=torch.ones(count, dtype=torch.bool),
            ce_scale=0.0,
            backend="reference",
            **anneal,
        )

    @property
    def _pairs(self) -> Iterator[tuple[RetentionMethod, ActiveMethod]]:
        return zip(self.retain, self.active, strict=True)

    def _head(self, logits: Tensor) -> Head:
        """The identity: what the loss takes for a vocabulary's product is done already."""
        width = logits.shape[1]
        if width not in self._heads:
            self._heads[width] = Head(weight_VH=torch.eye(width, dtype=logits.dtype))
        return self._heads[width]

    def _optimizer(self) -> torch.optim.Optimizer:
        settings, parameters = self.settings, list(self.named.values())
        rate, decay = settings.learning_rate, settings.weight_decay
        if settings.optim == "adam":
            # a pass over the weights in place of ten
            return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, fused=True)
        return torch.optim.SGD(parameters, lr=rate, momentum=settings.momentum, weight_decay=decay)

    def _batches(self) -> Iterator[Tensor]:
        """Numbers of samples, in a new order each epoch."""
        generator = torch.Generator().manual_seed(self.settings.seed)
        while True:
            order = self.order[torch.randperm(len(self.order), generator=generator)]
            yield from order.split(self.settings.per_device_train_batch_size)

    # -------------------------------------------------------------------------------------------------------- the data

    def _with_methods(self, rows: Dataset) -> Dataset:
        for method in stacked(self.retain):
            rows, info = method.transform_data(rows, prepare=self.rows, seed=self.settings.seed)
            if info:
                self.mixed.append({"method": method.name, **info})
        return rows

    def _numbers(self, rows: Dataset) -> Tensor:
        table = rows.with_format("arrow")[:]
        flat = table.column("input_ids").combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return torch.as_tensor(flat.copy(), dtype=torch.long)[1::2]

    # ----------------------------------------------------------------------------------------- retention.method.Host

    def method(self, name: str) -> ActiveMethod | None:
        """See `Host.method`."""
        return next((a for m, a in self._pairs if m.name == name), None)

    def rows(self, data: str) -> Dataset:
        """See `Host.rows`; the samples of the data join those that the run knows of."""
        samples = self._load(data)
        if samples.inputs.shape[1:] != self.inputs.shape[1:]:
            shapes = list(self.inputs.shape[1:]), list(samples.inputs.shape[1:])
            raise DataError(f"{data}: expected inputs of the task's shape {shapes[0]}, got {shapes[1]}.")
        first = len(self.labels)
        self.inputs = torch.cat([self.inputs, samples.inputs])
        self.labels = torch.cat([self.labels, samples.labels])
        return _rows(torch.arange(first, len(self.labels)), samples.labels)

    @torch.no_grad()
    def mean_loss(self, rows: Dataset) -> StepFigures:
        """See `Host.mean_loss`."""
        training = self.model.training
        self.model.eval()
        found = [self._loss(part, scale=1.0) for part in self._numbers(rows).split(EVALUATED)]
        self.model.train(training)
        return _figures(found, self.term is not None)

    def scores(self, task: str) -> Sequence[float]:
        """See `Host.scores`; there is none.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"task: a classifier's training scores no tasks on its way, got {task!r}.")

    def sample_gradients(
        self, rows: Dataset, *, sampled: bool, seed: int
    ) -> Iterator[tuple[int, Mapping[str, Tensor]]]:
        """See `Host.sample_gradients`."""
        training, generator = self.model.training, torch.Generator()
        self.model.eval()
        for place, number in enumerate(self._numbers(rows).split(1)):
            self.model.zero_grad(set_to_none=True)
            logits = masked(self.model(self.inputs[number]), self.labels[number], self.classes)
            targets = self.labels[number]
            if sampled:
                generator.manual_seed(Random(f"{seed} {place}").getrandbits(63))
                targets = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)[:, 0]
            nn.functional.cross_entropy(logits, targets, reduction="sum").backward()
            yield 1, {n: p.grad for n, p in self.named.items() if p.grad is not None}
        self.model.zero_grad(set_to_none=True)
        self.model.train(training)

    def sum_(self, tensors: Mapping[str, Tensor]) -> None:
        """One process: nothing to sum."""

    def gathered(self, values: Tensor) -> Tensor:
        """See `Host.gathered`; there is one process."""
        return values

    def say(self, text: str) -> None:
        """See `Host.say`."""
        self._say(text)

    def folder(self) -> Path | None:
        """See `Host.folder`."""
        return self._folder

    def first(self) -> bool:
        """Always."""
        return True


def masked(logits: Tensor, labels: Tensor, classes: Classes) -> Tensor:
    """Logits without those outside of the label's group.

    Args:
        logits: `[B, classes]`.
        labels: `[B]` int64.
        classes: the groups; without any the logits come back as they are.

    Raises:
        DataError: a label in no group.
    """
    if not classes.groups:
        return logits
    allowed = torch.zeros(logits.shape[1], logits.shape[1], dtype=torch.bool)
    for group in map(list, classes.groups):
        for label in group:
            allowed[label, group] = True
    if len(strange := labels[~allowed[labels, labels]]):
        found = sorted(set(strange.tolist()))
        raise DataError(f"labels: expected classes among {list(map(list, classes.groups))}, got {found}.")
    return torch.where(allowed[labels], logits, MASKED)


def _rows(numbers: Tensor, labels: Tensor) -> Dataset:
    import datasets
    import pyarrow

    ends = torch.arange(0, 2 * len(numbers) + 1, 2, dtype=torch.int32).numpy()

    def pairs(first: Tensor, second: Tensor) -> Any:
        return pyarrow.ListArray.from_arrays(ends, torch.stack([first, second], 1).flatten().numpy())

    ids, classes = pairs(numbers, numbers), pairs(torch.full_like(labels, IGNORE), labels)
    return datasets.Dataset(pyarrow.table({"input_ids": ids, "labels": classes}))


def _with_divergence(result: AnnealedLoss, kl: AnnealedLoss) -> AnnealedLoss:
    return replace(result, loss=result.loss + kl.loss, kl_sum=result.kl_sum + kl.kl_sum, kl_count=kl.kl_count)


def _figures(found: Sequence[AnnealedLoss], annealed: bool) -> StepFigures:
    count = sum(int(r.ce_count) for r in found)
    kl = sum(float(r.kl_sum) for r in found) / max(1, sum(int(r.kl_count) for r in found))
    return StepFigures(ce=sum(float(r.ce_sum) for r in found) / max(1, count), kl=kl if annealed else None)


def _teacher_problems(term: TokenLoss | None) -> list[str]:
    if term is None:
        return []
    asked = term.teacher
    found = [f"label_annealing.teacher_{k}" for k in ("sharded", "dtype") if getattr(asked, k)]
    if asked.kind == "adapter_off":
        found.append("label_annealing.teacher: adapter_off")
    return [f"{what}: a classifier's teacher is a second copy as it is; leave it out" for what in found]


def _frozen(model: nn.Module, weights: str, named: Mapping[str, Tensor]) -> nn.Module:
    """The teacher: the model as it is, or with the weights of a folder."""
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    if weights != START:
        held = load_anchor(weights, named)
        with torch.no_grad():
            for name, parameter in teacher.named_parameters():
                if name in held:
                    parameter.copy_(held[name])
    return teacher
