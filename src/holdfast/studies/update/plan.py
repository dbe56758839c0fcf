"""What an update was asked to do: its keys, checked as a whole before anything runs, and the models
that it makes.

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
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from holdfast.config.declare import settings_of
from holdfast.config.decode import with_floats
from holdfast.data.prepare.corpus import CorpusOptions
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, StudiedModel
from holdfast.runs.on_policy import SamplingSettings
from holdfast.studies.engine.base import NOT_DECIDING, StudyConfigBase
from holdfast.studies.engine.keys import BaseStudySettings
from holdfast.studies.update.settings import (
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
NOT_RESTORING = (
    "retention",
    "packing",
    "packing_strategy",
    "num_train_epochs",
    "max_steps",
    "max_length",
)
"""Keys of the continuation that say nothing of the second stage."""
G = TypeVar("G", bound=GridSettings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateGrid(GridSettings, BaseStudySettings):
    """An update as a grid of one pair."""

    toy: ClassVar[None] = None
    continued: tuple[str, ...] = ("",)
    """Families whose models get continued pre-training."""
    budgets: tuple[int | None, ...] = ()
    """Numbers of tokens; None: the whole corpus."""
    keep_weights: Literal["all", "result", "none"] = "all"
    """Models whose weights stay on disk."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateConfig(StudyConfigBase[Any]):
    """An update."""

    settings_class: ClassVar[type[Any]] = UpdateSettings
    kind: ClassVar[str] = "update"
    """Class of its record."""

    @staticmethod
    def normalised(request: UpdateSettings) -> UpdateGrid:
        """The one pair as a family, one budget, one seed."""
        request = with_floats(request)
        folder = request.output_dir or Path("runs/update")
        grid = UpdateGrid(
            **{
                field.name: getattr(request, field.name)
                for field in dataclasses.fields(CommonSettings)
            },
            name=folder.name or "update",
            output_dir=folder,
            workers=1,
            families={"": FamilySettings(base=request.base, instruct=request.instruct)},
            budgets=(request.tokens,),
            seeds=(request.seed,),
            scales=(request.scale,),
            starts=(BASE, INSTRUCT) if request.continued_instruct or request.restore else (BASE,),
            siblings=False,
            keep_weights=request.keep_weights,
        )
        return completed(grid)

    @staticmethod
    def recorded(request: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """What was given, and no default."""
        resolved = {}
        for key, value in given.items():
            if key != "storage":
                resolved[key.replace("-", "_")] = value
        return without_secrets(to_jsonable(resolved))

    def resumable_changes(self, old: Mapping[str, Any]) -> Collection[str]:
        """What is kept on the disk, and who works."""
        return ("keep_weights", *NOT_DECIDING)

    def part_problems(self) -> Sequence[str]:
        """What the code that trains says, where models and corpus are there."""
        return self.run_problems()

    def validate_without_files(self) -> Sequence[str]:
        """The same: what a small world makes is looked at when it is there."""
        return self.run_problems()

    def runs(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """A training of each kind, under the key that says how it is done."""
        request, run = self.request, Path("run")
        pair = next(iter(request.families.values()))
        base, instruct = str(pair.base), str(pair.instruct)
        if not (request.continued and request.corpus and base):
            return
        yield "train", self.training(base, run, Path(request.corpus[0]), seed=0)
        if request.restore is not None:
            yield "restore", self.restoring(instruct, instruct, run, seed=0)

    @property
    def corpus_options(self) -> dict[str, Any]:
        """Which documents are read, of what was asked for."""
        options = {}
        for key in CORPUS_KEYS:
            value = getattr(self.request, key)
            if value is not None:
                options[key] = value
        return options

    @property
    def folder(self) -> Path:
        """Where the new text lies."""
        return self.output_dir

    # --------------------------------------------------------------------------------------- models

    def jobs(self) -> list[Job]:
        """A model each, as the storage queues them."""
        from holdfast.studies.engine.study import LABEL, Job

        jobs = []
        for model in self.models():
            jobs.append(Job(attributes={LABEL: model.label, MODEL: model.name}))
        return jobs

    def given(self, model: StudiedModel) -> str:
        """The path of what a model starts from."""
        if model.start == DERIVED:
            return self.request.derived[model.family]
        return str(getattr(self.request.families[model.family], model.start))

    def run_name(self, model: StudiedModel) -> str:
        """The run folder's name of the continued model that a model is, or is made of."""
        return self._model(
            model.family, model.start, budget=model.budget, seed=model.seed, continued=True
        ).name

    def models(self) -> list[StudiedModel]:
        """Every model of the report, none of them made yet."""
        return list(self._models())

    def _models(self) -> Iterator[StudiedModel]:
        for family, start in itertools.product(self.request.families, (BASE, INSTRUCT)):
            yield self._model(family, start, path=True)
        for family, budget, seed in itertools.product(
            self.request.continued, self.request.budgets, self.request.seeds
        ):
            yield from self._continued(family, budget, seed)
        for family, other in itertools.product(self.request.families, repeat=2):
            if self.request.siblings and other != family:
                yield from self._with_residual(self._model(family, BASE), other)
        for name, path in self.request.derived.items():
            derived = self._placed(
                StudiedModel(name=name, label=name, start=DERIVED, family=name, path=path)
            )
            yield derived
            for family in self.request.families:
                yield from self._with_residual(derived, family)

    def _continued(self, family: str, budget: int | None, seed: int) -> Iterator[StudiedModel]:
        """What is continued on one budget, and what brings its instruction following back."""
        models = []
        for start in self.request.starts:
            models.append(self._model(family, start, budget=budget, seed=seed, continued=True))
        yield from models
        if self.request.residuals and BASE in self.request.starts:
            yield from self._with_residual(models[0], family)
        if BASE in self.request.starts:
            yield from self._tuned(models[0])
        for model in models if self.request.restore is not None else ():
            if model.start == INSTRUCT:
                name, label = f"{model.name}-distilled", f"{model.label} + distillation"
                yield dataclasses.replace(model, name=name, label=label, distilled=True)

    def _tuned(self, continued: StudiedModel) -> Iterator[StudiedModel]:
        """The continued base tuned once more, where there are conversations to tune it on."""
        yield from ()

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
        if continued and len(self.request.seeds) > 1:
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
                path=str(getattr(self.request.families[family], start)) if path else "",
            )
        )

    def _placed(self, model: StudiedModel) -> StudiedModel:
        """The model under the name that it has beside all others."""
        return model

    def _with_residual(self, start: StudiedModel, family: str) -> Iterator[StudiedModel]:
        residual = "residual" if family in ("", start.family) else f"{family} residual"
        name = f"{start.name}-{residual.replace(' ', '-')}"
        added = dataclasses.replace(start, residual=family, path="")
        for scale in self.request.scales:
            factor, ending = f"{scale:g} x ", f"-x{scale:g}"
            if self.request.scales == (1.0,):
                factor = ending = ""
            label = f"{start.label} + {factor}{residual}"
            yield dataclasses.replace(added, name=f"{name}{ending}", label=label, scale=scale)

    # ------------------------------------------------------------------------------------- training

    def training(self, model: str, out: Path, data: Path, *, seed: int) -> dict[str, Any]:
        """The configuration of one continued model, as `holdfast train --config` takes it.

        Whole documents in windows, attention and positions confined to each, long documents split
        (Balancing Continuous Pre-Training, section 3.1.1).
        """
        return {
            "packing": True,
            "packing_strategy": "bfd_split",
            **self.request.train,
            "model_name_or_path": model,
            "dataset_name": str(data),
            "output_dir": str(out),
            "max_length": self.request.window,
            "num_train_epochs": self.request.epochs,
            "seed": seed,
        }

    def restoring(self, model: str, teacher: str, out: Path, *, seed: int) -> dict[str, Any]:
        """The configuration of the second stage of one model, as `holdfast train --config` takes
        it.

        Args:
            model: the continued instruct model.
            teacher: the instruct model of before.
            out: the run's folder.
        """
        restore = self.request.restore
        assert restore is not None and restore.prompts is not None
        sampling = {f.name: getattr(restore, f.name) for f in dataclasses.fields(SamplingSettings)}
        annealing = {"direction": restore.direction, "teacher": "online", "reference": teacher}
        return {
            **self.second_stage(),
            **restore.train,
            "model_name_or_path": model,
            "dataset_name": restore.prompts,
            "output_dir": str(out),
            "max_steps": restore.steps,
            "on_policy": sampling,
            "retention": [{"label_annealing": annealing}],
            "seed": seed,
        }

    def second_stage(self) -> dict[str, Any]:
        """What a training after the continuation takes over from it: hardware, precision, rate and
        batch."""
        train = dict(self.request.train)
        for key in NOT_RESTORING:
            train.pop(key, None)
        return train


def completed(request: G) -> G:
    """Settings with paths in full, each scale once, and what training has where nothing is said."""
    families: dict[str, FamilySettings] = {}
    for name, family in request.families.items():
        families[name] = FamilySettings(base=home(family.base), instruct=home(family.instruct))
    return dataclasses.replace(
        request,
        families=families,
        derived={name: home(model) for name, model in request.derived.items()},
        corpus=tuple(map(home, request.corpus)),
        scales=tuple(dict.fromkeys(request.scales)),
        train={**TRAIN_DEFAULTS, **request.train},
    )
