"""What an update, or a study of the residual, was asked to do: its keys, checked as a whole before anything runs, and
the models that it makes.

```yaml
base: meta-llama/Meta-Llama-3-8B
instruct: meta-llama/Meta-Llama-3-8B-Instruct
corpus: [news/]                       # anything that `holdfast data prepare corpus` reads
after: 2023-12-01                     # only documents that are new
tokens: 100M                          # of the corpus; left out: all of it
train: {learning_rate: 1.0e-5, bf16: true}
evaluation: {suites: [instruction_residual]}
output_dir: runs/update
```

A study names several pairs, budgets and scales, and is made of the same models:

```yaml
families:
  llama-3: {base: meta-llama/Meta-Llama-3-8B, instruct: meta-llama/Meta-Llama-3-8B-Instruct}
  llama-3.1: {base: meta-llama/Llama-3.1-8B, instruct: meta-llama/Llama-3.1-8B-Instruct}
continued: [llama-3]                  # which are continued on the new text
budgets: [100M, 500M, 1B]
derived: {docchat: cerebras/Llama3-DocChat-1.0-8B}
```

Source: paper 004, sections 2 to 4: table 2 (budgets), table 3 (siblings), table 4 (derived models).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.config.declare import settings_of
from holdfast.config.decode import Given, decode
from holdfast.config.values import Mistake, Refused, coerce
from holdfast.errors import ConfigError
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, StudiedModel
from holdfast.studies.residual.settings import DOCUMENTS, CommonSettings, StudySettings, UpdateSettings, home
from holdfast.support.files import fingerprint
from holdfast.support.token_counts import shown_tokens

if TYPE_CHECKING:
    from holdfast.studies.engine.study import Job

HELD_OUT_DOCUMENTS = 500
"""Held-out documents that are measured at most."""
CORPUS_KEYS = tuple(s.name for s in settings_of(CommonSettings) if s.meta.group == DOCUMENTS)
MODEL = "model"
"""Attribute of a study's trial: the model that it makes."""
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


@dataclass(frozen=True, kw_only=True)
class Family:
    """A base and what was tuned from it."""

    name: str
    """ "" where there is only one."""
    base: str
    instruct: str


@dataclass(frozen=True, kw_only=True)
class ResidualConfig:
    """An update or a study, checked. Made by `update_config` and `study_config`."""

    kind: str
    """"update" or "study"."""
    name: str
    families: tuple[Family, ...]
    corpus: tuple[str, ...]
    corpus_options: dict[str, Any]
    held_out: float
    budgets: tuple[int | None, ...]
    """Tokens each; None: all of the corpus."""
    epochs: float
    window: int
    train: dict[str, Any]
    """The user's keys over `TRAIN_DEFAULTS`."""
    evaluation: dict[str, Any]
    keep: str
    output_dir: Path
    seeds: tuple[int, ...] = (0,)
    continued: tuple[str, ...] = ("",)
    """Families whose models are continued."""
    starts: tuple[str, ...] = (BASE, INSTRUCT)
    residuals: bool = True
    siblings: bool = False
    derived: dict[str, str] = field(default_factory=dict)
    scales: tuple[float, ...] = (1.0,)
    choose_by: tuple[str, ...] = ()
    workers: int | None = None
    storage: str = ""
    small: str | None = None
    world: dict[str, Any] = field(default_factory=dict)
    resolved: dict[str, Any] = field(default_factory=dict)
    """As plain JSON; itself a valid configuration."""

    @property
    def key(self) -> str:
        """Fingerprint of what decides the models and what is measured."""
        return fingerprint(
            {k: v for k, v in self.resolved.items() if k not in ("output_dir", "workers", "keep", "name")}, length=16
        )

    def family(self, name: str) -> Family:
        """A family by name."""
        return next(f for f in self.families if f.name == name)

    def differences(self, old: Mapping[str, Any]) -> list[str]:
        """What sets this one apart from the configuration that a folder or a storage was begun with; a sentence
        each."""
        found = []
        for key in sorted({*old, *self.resolved} - {"output_dir", "workers", "keep", "storage"}):
            if _meant(self.kind, key, old.get(key)) != _meant(self.kind, key, self.resolved.get(key)):
                found.append(f"{key}: was {old.get(key)!r}, is {self.resolved.get(key)!r}")
        return found

    @property
    def chooses(self) -> bool:
        """Whether an update has to choose among scales."""
        return self.kind == "update" and len(self.scales) > 1

    @property
    def measures(self) -> tuple[str, ...]:
        """What a finished model reports to the storage."""
        return ("score",)

    def jobs(self) -> list[Job]:
        """A model each, as the storage queues them."""
        from holdfast.studies.engine.study import LABEL, Job

        return [Job(attributes={LABEL: model.label, MODEL: model.name}) for model in self.models()]

    def models(self) -> list[StudiedModel]:
        """Every model of the report, none of them made yet."""
        return list(_models(self))


# --------------------------------------------------------------------------------------------------------------- models


def _models(config: ResidualConfig) -> Iterator[StudiedModel]:
    for family in config.families:
        for start, path in ((BASE, family.base), (INSTRUCT, family.instruct)):
            yield StudiedModel(
                name=_joined(family.name, start),
                label=_words(family.name, start),
                start=start,
                family=family.name,
                path=path,
            )
    for name in config.continued:
        for budget in config.budgets:
            for seed in config.seeds:
                made = [_continued(config, name, start, budget, seed) for start in config.starts]
                yield from made
                if config.residuals and made and made[0].start == BASE:
                    yield from (_with_residual(config, made[0], name, scale) for scale in config.scales)
    if config.siblings:
        for family in config.families:
            for other in config.families:
                if other.name != family.name:
                    given = StudiedModel(
                        name=_joined(family.name, BASE), label=_words(family.name, BASE), start=BASE, family=family.name
                    )
                    yield from (_with_residual(config, given, other.name, scale) for scale in config.scales)
    for name, path in config.derived.items():
        derived = StudiedModel(name=name, label=name, start=DERIVED, family=name, path=path)
        yield derived
        for family in config.families:
            yield from (_with_residual(config, derived, family.name, scale) for scale in config.scales)


def _continued(config: ResidualConfig, family: str, start: str, budget: int | None, seed: int) -> StudiedModel:
    amount = shown_tokens(budget) if budget is not None else "new"
    several = len(config.seeds) > 1
    return StudiedModel(
        name=_joined(family, start, amount, f"seed{seed}" if several else ""),
        label=f"{_words(family, start)} + {f'{amount} tokens' if budget is not None else 'new text'}"
        + (f", seed {seed}" if several else ""),
        start=start,
        family=family,
        budget=budget,
        seed=seed,
        tokens=-1,  # counted when it is trained
    )


def _with_residual(config: ResidualConfig, start: StudiedModel, family: str, scale: float) -> StudiedModel:
    import dataclasses

    own = family == start.family
    scaled = f"x{scale:g}" if len(config.scales) > 1 or scale != 1 else ""
    added = "residual" if own or not family else f"{family} residual"
    return dataclasses.replace(
        start,
        name=_joined(start.name, added.replace(" ", "-"), scaled),
        label=f"{start.label} + {f'{scale:g} x ' if scaled else ''}{added}",
        residual=family,
        scale=scale,
        path="",
    )


def is_continued(model: StudiedModel) -> bool:
    """Whether a model is one that training made (its residual, if any, left aside)."""
    return model.tokens != 0


def run_name(model: StudiedModel, config: ResidualConfig) -> str:
    """The run folder's name of the continued model that a model is, or is made of."""
    return _continued(config, model.family, model.start, model.budget, model.seed).name


def _joined(*parts: str) -> str:
    return "-".join(p for p in parts if p)


def _words(family: str, start: str) -> str:
    return f"{family} {start}" if family else start


# -------------------------------------------------------------------------------------------------------------- reading


def update_config(
    values: Mapping[str, Any] | Given, *, source: str | None = None, base_dir: Path | None = None
) -> ResidualConfig:
    """The configuration of one update.

    Args:
        values: keys of `UpdateSettings`.
        source: the file, for messages.
        base_dir: the file's folder, which paths in `evaluation` start from.

    Raises:
        ConfigError: with every mistake at once.
    """
    given = _given(values, source)
    asked = _decode(UpdateSettings, given, base_dir)
    out = asked.output_dir or Path("runs/update")
    scales = (*asked.scales, 1.0) if asked.scales else (1.0 if asked.scale is None else asked.scale,)
    config = ResidualConfig(
        kind="update",
        name=out.name,
        families=(Family(name="", base=home(asked.base), instruct=home(asked.instruct)),),
        budgets=(asked.tokens,),
        seeds=(asked.seed,),
        scales=tuple(dict.fromkeys(scales)),  # 1 is what the others are held against
        starts=(BASE, INSTRUCT) if asked.continued_instruct else (BASE,),
        choose_by=asked.choose_by,
        **_common(asked, given, out),
    )
    return _checked(config, given)


def study_config(
    values: Mapping[str, Any] | Given, *, source: str | None = None, base_dir: Path | None = None
) -> ResidualConfig:
    """The configuration of a study; as `update_config`, with keys of `StudySettings`.

    Raises:
        ConfigError: with every mistake at once.
    """
    given = _given(values, source)
    asked = _decode(StudySettings, given, base_dir)
    out = asked.output_dir or Path(f"runs/{asked.name or 'residual'}")
    families: tuple[Family, ...]
    families, derived = (
        tuple(Family(name=n, base=home(f.base), instruct=home(f.instruct)) for n, f in asked.families.items()),
        {name: home(model) for name, model in asked.derived.items()},
    )
    if asked.small:
        from holdfast.studies.residual.small_world import models_of, recipe_of

        families, others = models_of(recipe_of(asked.world), {})
        derived |= others
    names = tuple(f.name for f in families)
    budgets: tuple[int | None, ...] = asked.budgets or ((None,) if asked.corpus or asked.small else ())
    continued = names[:1] if asked.continued is None else tuple(n for n in names if n in asked.continued)
    config = ResidualConfig(
        kind="study",
        name=asked.name or out.name,
        families=families,
        budgets=budgets,
        seeds=asked.seeds,
        scales=tuple(dict.fromkeys(asked.scales)) or (1.0,),
        starts=tuple(s for s in (BASE, INSTRUCT) if s in asked.starts),
        continued=continued if budgets else (),
        residuals=asked.residuals,
        siblings=len(families) > 1 if asked.siblings is None else asked.siblings,
        derived=derived,
        workers=asked.workers,
        storage=asked.storage or f"sqlite:///{out}/study.db",
        small=asked.small,
        world=asked.world,
        **_common(asked, given, out),
    )
    return _checked(config, given)


T = TypeVar("T", bound=CommonSettings)


def _given(values: Mapping[str, Any] | Given, source: str | None) -> Given:
    return values if isinstance(values, Given) else Given(values=dict(values), file=source)


def _decode(cls: type[T], given: Given, base_dir: Path | None) -> T:
    """The settings, and what is measured looked up; every mistake at once.

    Raises:
        ConfigError: there is one.
    """
    given.values = {k: v for k, v in given.values.items() if v is not None}
    asked, mistakes = decode(cls, given.values)
    if not any(m.path[:1] == ("evaluation",) for m in mistakes):
        mistakes += _evaluation_problems(given.values.get("evaluation"), base_dir)
    given.check(mistakes)
    assert asked is not None
    return asked


def _common(asked: CommonSettings, given: Given, out: Path) -> dict[str, Any]:
    options = {key: given.values[key] for key in CORPUS_KEYS if key in given.values}
    typed = {key: getattr(asked, key) for key in options}
    return {
        "corpus": tuple(map(home, asked.corpus)),
        "corpus_options": typed,
        "held_out": float(asked.held_out),
        "epochs": float(asked.epochs),
        "window": asked.window,
        "train": {**TRAIN_DEFAULTS, **asked.train},
        "evaluation": _suites(asked.evaluation),
        "keep": asked.keep,  # type: ignore[attr-defined]  # of both settings, with defaults of their own
        "output_dir": out,
        "resolved": {k.replace("-", "_"): _plain(v) for k, v in given.values.items() if k != "storage"},
    }


def _suites(evaluation: Any) -> dict[str, Any]:
    if isinstance(evaluation, str):
        return {"suites": [evaluation]}
    return {"suites": evaluation} if isinstance(evaluation, list) else dict(evaluation)


def _evaluation_problems(evaluation: Any, base_dir: Path | None) -> list[Mistake]:
    from holdfast.evaluation.suite import parse_evaluation

    if not evaluation or "${" in str(evaluation):
        return []  # names that are known once the small world is there
    plan, found = parse_evaluation(_suites(evaluation), base_dir=base_dir)
    mistakes = [Mistake(path=(), text=sentence) for sentence in found]
    if NEW_TEXT in plan.suites:
        text = "is the name of the held-out new text; call your suite otherwise."
        mistakes.append(Mistake(path=("evaluation", NEW_TEXT), text=text))
    return mistakes


def _checked(config: ResidualConfig, given: Given) -> ResidualConfig:
    """The configuration, its training configuration read by the code that will, where models and corpus are there.

    Raises:
        ConfigError: that refused it.
    """
    from holdfast.runs.config import train_config

    if config.continued and config.corpus and config.small is None:
        try:
            train_config(
                training_settings(config, config.families[0].base, Path("run"), Path(config.corpus[0]), seed=0)
            )
        except ConfigError as error:
            given.check(Mistake(path=(), text=f"train: {problem}") for problem in error.problems)
    return config


NEW_TEXT = "new_text"
"""The suite of the held-out new text."""


def training_settings(config: ResidualConfig, model: str, out: Path, data: Path, *, seed: int) -> dict[str, Any]:
    """The configuration of one continued model, as `holdfast train --config` takes it.

    Whole documents in windows, attention and positions confined to each, long documents split (paper 004, section
    3.1.1).
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


def _meant(kind: str, key: str, value: Any) -> Any:
    """A value of a key as its declaration reads it, so that `"3"` of a command line is the 3 of a file."""
    known = {s.name: s for s in settings_of(UpdateSettings if kind == "update" else StudySettings)}
    try:
        return coerce(known[key], value) if key in known and value is not None else value
    except Refused:
        return value


def _plain(value: Any) -> Any:
    """Plain JSON of what YAML read: dates become text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
