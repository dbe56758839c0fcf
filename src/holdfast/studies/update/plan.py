"""What an update was asked to do: its keys, checked as a whole before anything runs, and the models that it makes.

```yaml
base: meta-llama/Meta-Llama-3-8B
instruct: meta-llama/Meta-Llama-3-8B-Instruct
corpus: [news/]                       # anything that `holdfast data prepare` reads
after: 2023-12-01                     # only documents that are new
tokens: 100M                          # of the corpus; left out: all of it
train: {learning_rate: 1.0e-5, bf16: true}
evaluation: {suites: [instruction_residual]}
output_dir: runs/update
```

Source: Balancing Continuous Pre-Training, section 2.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from holdfast.config.declare import settings_of
from holdfast.config.decode import Given, coerce_all, decode, with_floats
from holdfast.config.values import Mistake
from holdfast.data.prepare.corpus import CorpusOptions
from holdfast.errors import ConfigError
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, StudiedModel
from holdfast.runs.on_policy import SamplingSettings
from holdfast.studies.update.settings import (
    SELF_DISTILLATION,
    CommonSettings,
    FamilySettings,
    GridSettings,
    UpdateSettings,
    home,
)
from holdfast.support.files import to_jsonable
from holdfast.support.secrets import without_secrets
from holdfast.support.token_counts import shown_tokens

if TYPE_CHECKING:
    from holdfast.studies.engine.study import Job

HELD_OUT_DOCUMENTS = 500
"""Held-out documents that are measured at most."""
CORPUS_KEYS = tuple(s.name for s in settings_of(CorpusOptions))
NEW_TEXT = "new_text"
"""The suite of the held-out new text."""
MODEL = "model"
"""Attribute of a job: the model that it makes."""
TRAIN_DEFAULTS: dict[str, Any] = {
    "learning_rate": 1e-5,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.03,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8,
    "save_strategy": "steps",
    "save_steps": 0.1,
    "save_total_limit": 1,
    "logging_steps": 10,
    "report_to": "none",
}
"""Of the continued models, where the user says nothing. The paper does not print its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualConfig(GridSettings):
    """An update, checked, with nothing left open. Made by `update_config`."""

    kind: ClassVar[str] = "update"
    """Of its record."""
    settings: ClassVar[type[CommonSettings]] = UpdateSettings
    """What it is read from."""
    name: str
    output_dir: Path
    keep: Literal["all", "result", "none"] = "all"
    """Whose weights stay on disk."""
    budgets: tuple[int | None, ...] = ()
    """Tokens each; None: all of the corpus."""
    continued: tuple[str, ...]
    """Families whose models are continued."""
    evaluation: dict[str, Any]
    choose_by: tuple[str, ...] = ()
    """Entries that choose the scale of an update."""
    storage: str = ""
    workers: int | None = 1
    """Models at a time on this machine."""
    resolved: dict[str, Any]
    """As plain JSON; itself a valid configuration."""

    @property
    def measures(self) -> tuple[str, ...]:
        """What a finished model reports to the storage."""
        return ("score",)

    @property
    def corpus_options(self) -> dict[str, Any]:
        """Which documents are read, of what was asked for."""
        return {key: value for key in CORPUS_KEYS if (value := getattr(self, key)) is not None}

    @property
    def chooses(self) -> bool:
        """Whether one of several scales is chosen."""
        return len(self.scales) > 1

    def differences(self, old: Mapping[str, Any]) -> list[str]:
        """What sets this one apart from the configuration that a folder or a storage was begun with; a sentence each.
        Values are compared as their declarations read them: `"3"` of a command line is the 3 of a file."""
        before, now = self._read(old), self._read(self.resolved)
        differences = []
        for key in sorted({*before, *now} - {"output_dir", "workers", "keep", "storage"}):
            if before.get(key) != now.get(key):
                differences.append(f"{key}: was {old.get(key)!r}, is {self.resolved.get(key)!r}")
        return differences

    def _read(self, record: Mapping[str, Any]) -> dict[str, Any]:
        known = {setting.name: setting for setting in settings_of(self.settings)}
        values = {key: value for key, value in record.items() if value is not None}
        return values | coerce_all(known, values)[0]

    @property
    def folder(self) -> Path:
        """Where the new text lies."""
        return self.output_dir

    # ---------------------------------------------------------------------------------------------------------- models

    def jobs(self) -> list[Job]:
        """A model each, as the storage queues them."""
        from holdfast.studies.engine.study import LABEL, Job

        return [Job(attributes={LABEL: model.label, MODEL: model.name}) for model in self.models()]

    def given(self, model: StudiedModel) -> str:
        """The path of what a model starts from."""
        if model.start == DERIVED:
            return self.derived[model.family]
        return str(getattr(self.families[model.family], model.start))

    def run_name(self, model: StudiedModel) -> str:
        """The run folder's name of the continued model that a model is, or is made of."""
        return self._model(model.family, model.start, budget=model.budget, seed=model.seed, continued=True).name

    def models(self) -> list[StudiedModel]:
        """Every model of the report, none of them made yet."""
        return list(self._models())

    def _models(self) -> Iterator[StudiedModel]:
        for family, start in itertools.product(self.families, (BASE, INSTRUCT)):
            yield self._model(family, start, path=True)
        for family, budget, seed in itertools.product(self.continued, self.budgets, self.seeds):
            yield from self._continued(family, budget, seed)
        for family, other in itertools.product(self.families, repeat=2):
            if self.siblings and other != family:
                yield from self._with_residual(self._model(family, BASE), other)
        for name, path in self.derived.items():
            derived = self._placed(StudiedModel(name=name, label=name, start=DERIVED, family=name, path=path))
            yield derived
            for family in self.families:
                yield from self._with_residual(derived, family)

    def _continued(self, family: str, budget: int | None, seed: int) -> Iterator[StudiedModel]:
        """What is continued on one budget, and what brings its instruction following back."""
        models = [self._model(family, s, budget=budget, seed=seed, continued=True) for s in self.starts]
        yield from models
        if self.residuals and BASE in self.starts:
            yield from self._with_residual(models[0], family)
        if BASE in self.starts:
            yield from self._tuned(models[0])
        for model in models if self.restore is not None else ():
            if model.start == INSTRUCT:
                yield from self._restored(model)

    def _tuned(self, continued: StudiedModel) -> Iterator[StudiedModel]:
        """The continued base tuned once more, where there are conversations to tune it on."""
        yield from ()

    def _restored(self, continued: StudiedModel) -> Iterator[StudiedModel]:
        assert self.restore is not None
        for way in dict.fromkeys(self.restore.by):
            by_itself = way == SELF_DISTILLATION
            prefix = "self-" if by_itself else ""
            yield dataclasses.replace(
                continued,
                name=f"{continued.name}-{prefix}distilled",
                label=f"{continued.label} + {prefix}distillation",
                distilled=not by_itself,
                self_distilled=by_itself,
            )

    def _model(
        self,
        family: str,
        start: str,
        *,
        budget: int | None = None,
        seed: int = 0,
        continued: bool = False,
        path: bool = False,
    ) -> StudiedModel:
        """A base or instruct model, as given or continued."""
        names, label = [family, start], f"{family} {start}".lstrip()
        if continued and budget is None:
            names.append("new")
            label += " + new text"
        elif continued and budget is not None:
            names.append(shown_tokens(budget))
            label += f" + {shown_tokens(budget)} tokens"
        if continued and len(self.seeds) > 1:
            names.append(f"seed{seed}")
            label += f", seed {seed}"
        return self._placed(
            StudiedModel(
                name="-".join(filter(None, names)),
                label=label,
                start=start,
                family=family,
                budget=budget,
                seed=seed,
                tokens=-1 if continued else 0,  # counted when it is trained
                path=str(getattr(self.families[family], start)) if path else "",
            )
        )

    def _placed(self, model: StudiedModel) -> StudiedModel:
        """The model under the name that it has beside all others."""
        return model

    def _with_residual(self, start: StudiedModel, family: str) -> Iterator[StudiedModel]:
        residual = "residual" if family in ("", start.family) else f"{family} residual"
        name = f"{start.name}-{residual.replace(' ', '-')}"
        added = dataclasses.replace(start, residual=family, path="")
        if self.scales == (1.0,):
            yield dataclasses.replace(added, name=name, label=f"{start.label} + {residual}", scale=self.scales[0])
            return
        for scale in self.scales:
            label = f"{start.label} + {scale:g} x {residual}"
            yield dataclasses.replace(added, name=f"{name}-x{scale:g}", label=label, scale=scale)


# -------------------------------------------------------------------------------------------------------------- reading


def update_config(values: Mapping[str, Any] | Given, *, source: str | None = None) -> ResidualConfig:
    """The configuration of one update.

    Args:
        values: keys of `UpdateSettings`.
        source: the file, for messages.

    Raises:
        ConfigError: with every mistake at once.
    """
    settings, request = read_settings(UpdateSettings, values, source)
    return whole_config(
        ResidualConfig,
        settings,
        request,
        settings.output_dir or Path("runs/update"),
        families={"": FamilySettings(base=settings.base, instruct=settings.instruct)},
        continued=("",),
        budgets=(settings.tokens,),
        seeds=(settings.seed,),
        # 1 is what the others are held against
        scales=(*settings.scales, 1.0) if settings.scales else (1.0 if settings.scale is None else settings.scale,),
        starts=(BASE, INSTRUCT) if settings.continued_instruct or settings.restore else (BASE,),
        siblings=False,
    )


T = TypeVar("T", bound=CommonSettings)
C = TypeVar("C", bound=ResidualConfig)


def read_settings(cls: type[T], values: Mapping[str, Any] | Given, source: str | None) -> tuple[T, Given]:
    """The settings, and what is measured looked up; every mistake at once.

    Raises:
        ConfigError: there is one.
    """
    request = values if isinstance(values, Given) else Given(values=dict(values), file=source)
    request.values = request.set_here(cls)
    settings, mistakes = decode(cls, request.values)
    if not any(m.path[:1] == ("evaluation",) for m in mistakes):
        mistakes += _evaluation_problems(request.values.get("evaluation"))
    request.check(mistakes)
    assert settings is not None
    return with_floats(settings), request


def whole_config(cls: type[C], asked: CommonSettings, given: Given, out: Path, **grid: Any) -> C:
    """The whole configuration, its training configuration read by the code that will, where models and corpus are
    there.

    Raises:
        ConfigError: that refused it.
    """
    from holdfast.runs.config import train_config

    known = {field.name for field in dataclasses.fields(cls)}
    values = {f.name: getattr(asked, f.name) for f in dataclasses.fields(asked) if f.name in known} | grid
    families: dict[str, FamilySettings] = {}
    for name, family in values["families"].items():
        families[name] = FamilySettings(base=home(family.base), instruct=home(family.instruct))
    resolved = {key.replace("-", "_"): value for key, value in given.values.items() if key != "storage"}
    values |= {
        "name": values.get("name") or out.name,
        "output_dir": out,
        "storage": values.get("storage") or f"sqlite:///{out}/study.db",
        "families": families,
        "derived": {name: home(model) for name, model in values.get("derived", {}).items()},
        "corpus": tuple(map(home, asked.corpus)),
        "scales": tuple(dict.fromkeys(values["scales"])),
        "train": {**TRAIN_DEFAULTS, **asked.train},
        "evaluation": _suites(asked.evaluation),
        "resolved": without_secrets(to_jsonable(resolved)),
    }
    config = cls(**values)
    for key, settings in _example_runs(config):
        try:
            train_config(settings)
        except ConfigError as error:
            given.check(Mistake(path=(), text=f"{key}: {problem}") for problem in error.problems)
    return config


def _example_runs(config: ResidualConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """A training of each kind, under the key that says how it is done."""
    pair, run = next(iter(config.families.values())), Path("run")
    base, instruct = str(pair.base), str(pair.instruct)
    if not (config.continued and config.corpus and base):
        return
    yield "train", training_settings(config, base, run, Path(config.corpus[0]), seed=0)
    for way in config.restore.by if config.restore is not None else ():
        teacher = None if way == SELF_DISTILLATION else instruct
        yield "restore", restoring_settings(config, instruct, teacher, run, seed=0)


def _suites(evaluation: Any) -> dict[str, Any]:
    if isinstance(evaluation, Mapping):
        return dict(evaluation)
    return {"suites": [evaluation] if isinstance(evaluation, str) else evaluation}


def _evaluation_problems(evaluation: Any) -> list[Mistake]:
    from holdfast.evaluation.suite import parse_evaluation

    if not evaluation or "${" in str(evaluation):
        return []  # names of files that are still to be made
    plan, problems = parse_evaluation(_suites(evaluation))
    mistakes = [Mistake(path=(), text=sentence) for sentence in problems]
    if NEW_TEXT in plan.suites:
        text = "is the name of the held-out new text; call your suite otherwise."
        mistakes.append(Mistake(path=("evaluation", NEW_TEXT), text=text))
    return mistakes


def training_settings(config: ResidualConfig, model: str, out: Path, data: Path, *, seed: int) -> dict[str, Any]:
    """The configuration of one continued model, as `holdfast train --config` takes it.

    Whole documents in windows, attention and positions confined to each, long documents split (Balancing Continuous
    Pre-Training, section 3.1.1).
    """
    packing = {"packing": True, "packing_strategy": "bfd_split"}
    return {
        **packing,
        **config.train,
        "model_name_or_path": model,
        "dataset_name": str(data),
        "output_dir": str(out),
        "max_length": config.window,
        "num_train_epochs": config.epochs,
        "seed": seed,
    }


_NOT_RESTORING = ("retention", "packing", "packing_strategy", "num_train_epochs", "max_steps", "max_length")
"""Keys of the continuation that say nothing of the second stage."""


def restoring_settings(
    config: ResidualConfig, model: str, teacher: str | None, out: Path, *, seed: int
) -> dict[str, Any]:
    """The configuration of the second stage of one model, as `holdfast train --config` takes it.

    Args:
        config: with `restore`.
        model: the continued instruct model.
        teacher: the instruct model of before; None: the model itself, which reads the prompts' answers.
        out: the run's folder.
    """
    restore = config.restore
    assert restore is not None and restore.prompts is not None
    annealing = {"direction": restore.direction, "teacher": "online", "teacher_model": teacher}
    sampling = {f.name: getattr(restore, f.name) for f in dataclasses.fields(SamplingSettings)}
    if teacher is None:
        sampling["self_distillation"] = restore.direction
    return {
        **{k: v for k, v in config.train.items() if k not in _NOT_RESTORING},
        **restore.train,
        "model_name_or_path": model,
        "dataset_name": restore.prompts,
        "output_dir": str(out),
        "max_steps": restore.steps,
        "on_policy": sampling,
        "retention": [] if teacher is None else [{"label_annealing": annealing}],
        "seed": seed,
    }
