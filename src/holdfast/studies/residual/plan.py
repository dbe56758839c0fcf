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

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, did_you_mean
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, StudiedModel
from holdfast.support.files import fingerprint
from holdfast.support.token_counts import read_tokens, shown_tokens

if TYPE_CHECKING:
    from holdfast.studies.engine.storage import Job

WINDOW = 4096
"""Tokens of a packed window (paper 004, section 3.1.1)."""
HELD_OUT = 0.01
"""Share of the new documents that is not trained on and measured."""
HELD_OUT_DOCUMENTS = 500
"""Held-out documents that are measured at most."""
KEEP = ("all", "result", "none")
CORPUS_KEYS = {
    "kind": "of the corpus' files: auto, text, rows, wet, fundus",
    "text_column": "the column with the text",
    "date_column": "the column with the date",
    "after": "only documents of this date or later (ISO)",
    "before": "only documents before this date (ISO)",
    "undated": "keep or drop documents without a date",
    "minimum_characters": "shorter documents are left out",
    "near_duplicates": "similarity from which two documents are one, such as 0.8",
    "titles": "put the title in front of the text",
}
COMMON_KEYS = {
    "corpus": "files and folders with the new text",
    **CORPUS_KEYS,
    "held_out": f"share of the documents that is measured and not trained on ({HELD_OUT:g})",
    "epochs": "passes over the new text (1)",
    "window": f"tokens of a packed window ({WINDOW})",
    "train": "keys of 'holdfast train' for the continued models",
    "evaluation": "what is measured of every model, as in 'holdfast train'; the held-out new text always is",
    "keep": "whose weights stay on disk: all, result, none",
    "output_dir": "folder of everything",
}
UPDATE_KEYS = {
    "base": "the base model, a folder or a hub id",
    "instruct": "the instruct model that was tuned from it",
    "tokens": "of the new text that are trained on, such as 100M (all of it)",
    "continued_instruct": "true: also continues the instruct model itself, to see what that would have cost",
    "scale": "factor on the residual (1)",
    "scales": "several, of which one is chosen by what is measured",
    "choose_by": "entries of the evaluation that choose the scale (all but the new text)",
    "seed": "of the training and of what is drawn (0)",
    **COMMON_KEYS,
}
STUDY_KEYS = {
    "name": "of the study in its storage (the file's name)",
    "families": "pairs of base and instruct by name",
    "continued": "families that are continued on the new text (the first)",
    "starts": "what is continued: base, instruct (both)",
    "budgets": "tokens of the new text, such as [100M, 500M, 1B]",
    "residuals": "true: base + residual at every budget (true)",
    "siblings": "true: every family's residual on every other family's base (true where there are several)",
    "derived": "other children of a base by name, which get every residual",
    "scales": "factors on the residual that are tried ([1])",
    "seeds": "repetitions of everything that is trained ([0])",
    "small": "build small models and new facts offline, for a study of minutes: world",
    "world": "settings of that small world",
    "workers": "models at a time on this machine",
    "storage": "a database that several machines share; default: a file in the folder",
    **COMMON_KEYS,
}
MODEL = "model"
"""Attribute of a study's trial: the model that it makes."""
_OWN = (
    "model_name_or_path",
    "dataset_name",
    "datasets",
    "output_dir",
    "evaluation",
    "seed",
    "max_length",
    "num_train_epochs",
    "source",
    "target",
)
_NAME = re.compile(r"[A-Za-z0-9][\w.]*(-[\w.]+)*")
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
            if old.get(key) != self.resolved.get(key):
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
        from holdfast.studies.engine.storage import LABEL, Job

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
    values: Mapping[str, Any], *, source: str | None = None, base_dir: Path | None = None
) -> ResidualConfig:
    """The configuration of one update.

    Args:
        values: keys of `UPDATE_KEYS`.
        source: the file, for messages.
        base_dir: the file's folder, which paths in `evaluation` start from.

    Raises:
        ConfigError: with every mistake at once.
    """
    return _Reader(values, UPDATE_KEYS, "update", base_dir).read(source)


def study_config(
    values: Mapping[str, Any], *, source: str | None = None, base_dir: Path | None = None
) -> ResidualConfig:
    """The configuration of a study; as `update_config`, with keys of `STUDY_KEYS`.

    Raises:
        ConfigError: with every mistake at once.
    """
    return _Reader(values, STUDY_KEYS, "study", base_dir).read(source)


class _Reader:
    """Reads one configuration and collects what is wrong with it."""

    def __init__(self, values: Mapping[str, Any], keys: Mapping[str, str], kind: str, base_dir: Path | None) -> None:
        self.keys, self.kind, self.base_dir = keys, kind, base_dir
        self.problems: list[str] = [
            f"unknown key '{k}'.{did_you_mean(str(k), keys)} Known: {', '.join(keys)}."
            if not did_you_mean(str(k), keys)
            else f"unknown key '{k}'.{did_you_mean(str(k), keys)}"
            for k in values
            if k not in keys
        ]
        self.values = {k: v for k, v in values.items() if k in keys and v is not None}

    def read(self, source: str | None) -> ResidualConfig:
        kind, values = self.kind, self.values
        small = values.get("small")
        if small is not None and small != "world":
            self.problems.append(f"small: expected 'world', got {small!r}.")
        families, others = self._small_models() if small else (self._families(), {})
        corpus = self._corpus(small is not None)
        budgets: tuple[int | None, ...]
        seeds: tuple[int, ...]
        starts: tuple[str, ...]
        derived: dict[str, str]
        if kind == "update":
            budgets = (self._tokens("tokens", values["tokens"]),) if "tokens" in values else (None,)
            seeds = (self._whole("seed", 0, least=0),)
            scales = self._scales()
            starts = (BASE, INSTRUCT) if self._flag("continued_instruct", False) else (BASE,)
            continued = tuple(f.name for f in families)
            siblings, derived = False, {}
        else:
            budgets = tuple(self._tokens("budgets", b) for b in self._list("budgets")) or (
                (None,) if "corpus" in values or small else ()
            )
            seeds = tuple(self._seed(s) for s in self._list("seeds", [0]))
            scales = self._scales()
            starts = self._among("starts", (BASE, INSTRUCT))
            names = tuple(f.name for f in families)
            continued = self._among("continued", names, default=names[:1]) if budgets else ()
            siblings = self._flag("siblings", len(families) > 1)
            derived = {**self._derived(names), **others}
        options = {k: values[k] for k in CORPUS_KEYS if k in values}
        for key in ("after", "before"):
            if key in options:
                options[key] = str(options[key])  # YAML reads 2024-01-01 as a date
        train = self._train()
        out = Path(
            str(
                values.get("output_dir")
                or (f"runs/{values.get('name', 'residual')}" if kind == "study" else "runs/update")
            )
        ).expanduser()
        config = ResidualConfig(
            kind=kind,
            name=str(values.get("name") or out.name),
            families=families,
            corpus=corpus,
            corpus_options=options,
            held_out=self._share("held_out", HELD_OUT),
            budgets=budgets,
            epochs=self._positive("epochs", 1.0),
            window=self._whole("window", WINDOW, least=8),
            train=train,
            evaluation=self._evaluation(),
            keep=self._word("keep", KEEP, "all" if kind == "update" else "none"),
            output_dir=out,
            seeds=seeds,
            continued=continued,
            starts=starts,
            residuals=True if kind == "update" else self._flag("residuals", True),
            siblings=siblings,
            derived=derived,
            scales=scales,
            choose_by=tuple(str(e) for e in self._list("choose_by")),
            workers=self._whole("workers", None, least=0),
            storage=str(values.get("storage") or f"sqlite:///{out}/study.db"),
            small=small,
            world=dict(values["world"]) if isinstance(values.get("world"), Mapping) else {},
            resolved={k: _plain(v) for k, v in values.items() if k != "storage"},
        )
        if config.choose_by and not config.chooses:
            self.problems.append(
                "choose_by: says how one of several scales is chosen; give scales: [0.5, 1] too, or leave it out."
            )
        self._check_train(config)
        if self.problems:
            raise ConfigError(list(dict.fromkeys(self.problems)), source=source)
        return config

    # ------------------------------------------------------------------------------------------------------ its parts

    def _small_models(self) -> tuple[tuple[Family, ...], dict[str, str]]:
        """Pairs and derived models of the small world, which are still to be made."""
        from holdfast.studies.residual.small_world import models_of, recipe_of

        given = self.values.get("world") or {}
        if not isinstance(given, Mapping):
            self.problems.append(
                f"world: expected settings of the small world, as in 'world: {{sibling: true}}', got {given!r}."
            )
            return (), {}
        try:
            return models_of(recipe_of(given), {})
        except ConfigError as error:
            self.problems += error.problems
            return (), {}

    def _families(self) -> tuple[Family, ...]:
        values = self.values
        if self.kind == "update":
            given = {"": {k: values.get(k) for k in (BASE, INSTRUCT)}}
        else:
            given = values.get("families") or {}
            if not isinstance(given, Mapping) or not given:
                self.problems.append(
                    f"families: expected pairs by name, as in 'llama-3: {{base: MODEL, instruct: MODEL}}', got "
                    f"{given or 'nothing'}."
                )
                return ()
        found = []
        for name, pair in given.items():
            where = f"families.{name}." if name else ""
            if name and not _NAME.fullmatch(str(name)):
                self.problems.append(f"families: expected names of letters, digits, '.', '_' and '-', got {name!r}.")
            if not isinstance(pair, Mapping) or set(pair) - {BASE, INSTRUCT}:
                self.problems.append(f"families.{name}: expected {{base: MODEL, instruct: MODEL}}, got {pair!r}.")
                continue
            for role in (BASE, INSTRUCT):
                self._model(f"{where}{role}", pair.get(role))
            if pair.get(BASE) and pair.get(BASE) == pair.get(INSTRUCT):
                self.problems.append(f"{where}instruct: is the base itself ({pair[BASE]}); the residual would be 0.")
            found.append(Family(name=str(name), base=_home(pair.get(BASE)), instruct=_home(pair.get(INSTRUCT))))
        return tuple(found)

    def _model(self, key: str, name: Any) -> None:
        from holdfast.runs.config_checks import check_model

        if name is not None and not isinstance(name, str):
            self.problems.append(f"{key}: expected a folder or a hub id, got {name!r}.")
        elif name and (Path(name).expanduser() / "adapter_config.json").is_file():
            return  # an adapter is a model too: it is merged into its base on the fly
        elif not name:
            self.problems.append(f"{key} is missing: a folder or a hub id, as in '{key}: meta-llama/Meta-Llama-3-8B'.")
        else:
            self.problems += check_model(name, key=key)

    def _corpus(self, small: bool) -> tuple[str, ...]:
        found = tuple(_home(str(c)) for c in self._list("corpus"))
        for name in found:
            if not Path(name).exists():
                folder = Path(name).parent
                beside = [p.name for p in folder.iterdir()] if folder.is_dir() else []
                self.problems.append(f"corpus: no such file or folder: {name}.{did_you_mean(Path(name).name, beside)}")
        needed = self.kind == "update" or bool(self.values.get("budgets"))
        if not found and needed and not small:
            self.problems.append(
                "corpus is missing: files or folders with the new text (text, JSONL, Parquet, WET, output of fundus)."
            )
        return found

    def _derived(self, families: Sequence[str]) -> dict[str, str]:
        given = self.values.get("derived") or {}
        if not isinstance(given, Mapping):
            self.problems.append(
                f"derived: expected models by name, as in 'docchat: cerebras/Llama3-DocChat-1.0-8B', got {given!r}."
            )
            return {}
        for name, model in given.items():
            if name in families or not _NAME.fullmatch(str(name)):
                self.problems.append(
                    f"derived: expected a name of its own of letters, digits, '.', '_' and '-', got {name!r}."
                )
            self._model(f"derived.{name}", model)
        return {str(k): _home(v) for k, v in given.items()}

    def _train(self) -> dict[str, Any]:
        given = self.values.get("train") or {}
        if isinstance(given, (str, Path)):
            from holdfast.config.yaml_file import read_yaml

            try:
                read = read_yaml(Path(given))
            except ConfigError as error:
                self.problems.append(f"train: {error}")
                return dict(TRAIN_DEFAULTS)
            self.problems += read.sentences(read.mistakes)
            given = read.values
        if not isinstance(given, Mapping):
            self.problems.append(f"train: expected keys of 'holdfast train' or a YAML file, got {given!r}.")
            given = {}
        for key in _OWN:
            if key in given:
                instead = {
                    "seed": "seed",
                    "max_length": "window",
                    "num_train_epochs": "epochs",
                    "evaluation": "evaluation",
                }.get(key)
                self.problems.append(
                    f"train.{key}: is set here by '{instead}'."
                    if instead
                    else f"train.{key}: is this job's own; leave it out."
                )
        return {**TRAIN_DEFAULTS, **{k: v for k, v in given.items() if k not in _OWN}}

    def _check_train(self, config: ResidualConfig) -> None:
        """Has the training configuration read by the code that will, where models and corpus are there."""
        if self.problems or not config.continued or (config.small is None and not config.corpus):
            return
        if config.small is not None:
            return  # its models are not made yet
        from holdfast.runs.config import train_config

        try:
            train_config(
                {**training_settings(config, config.families[0].base, Path("run"), Path(config.corpus[0]), seed=0)}
            )
        except ConfigError as error:
            self.problems += [f"train: {p}" for p in error.problems]

    def _evaluation(self) -> dict[str, Any]:
        from holdfast.evaluation.suite import parse_evaluation

        given = self.values.get("evaluation") or {}
        if isinstance(given, (str, Path)):
            given = {"suites": [str(given)]}
        if isinstance(given, list):
            given = {"suites": given}
        if "${" in str(given):
            return dict(given)  # names that are known once the small world is there
        plan, found = parse_evaluation(given, base_dir=self.base_dir)
        self.problems += found
        if NEW_TEXT in plan.suites:
            self.problems.append(
                f"evaluation.{NEW_TEXT}: is the name of the held-out new text; call your suite otherwise."
            )
        return dict(given) if isinstance(given, Mapping) else {}

    def _scales(self) -> tuple[float, ...]:
        values = self.values
        if "scale" in values and "scales" in values:
            self.problems.append("scale, scales: give one of the two.")
        given = self._list("scales") if "scales" in values else [values.get("scale", 1.0)]
        found = []
        for value in given:
            try:
                if isinstance(value, bool) or not math.isfinite(float(value)):
                    raise ValueError
                found.append(float(value))
            except (TypeError, ValueError):
                self.problems.append(f"scales: expected finite numbers, got {value!r}.")
        if "scales" in values and self.kind == "update" and 1.0 not in found:
            found.append(1.0)  # what the others are held against
        return tuple(dict.fromkeys(found)) or (1.0,)

    # ------------------------------------------------------------------------------------------------------ small ones

    def _list(self, key: str, default: Sequence[Any] = ()) -> list[Any]:
        value = self.values.get(key, list(default))
        return list(value) if isinstance(value, (list, tuple)) else [value]

    def _tokens(self, key: str, value: Any) -> int:
        try:
            return read_tokens(value)
        except ValueError as error:
            self.problems.append(f"{key}: {error}.")
            return 1

    def _seed(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.problems.append(f"seeds: expected whole numbers from 0, got {value!r}.")
            return 0
        return value

    def _whole(self, key: str, default: Any, *, least: int) -> Any:
        value = self.values.get(key, default)
        if value is default:
            return value
        try:
            if isinstance(value, bool) or int(value) != float(value) or int(value) < least:
                raise ValueError
        except (TypeError, ValueError):
            self.problems.append(f"{key}: expected a whole number of at least {least}, got {value!r}.")
            return default
        return int(value)

    def _positive(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        try:
            if isinstance(value, bool) or not 0 < float(value) < math.inf:
                raise ValueError
        except (TypeError, ValueError):
            self.problems.append(f"{key}: expected a number above 0, got {value!r}.")
            return default
        return float(value)

    def _share(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        try:
            if isinstance(value, bool) or not 0 <= float(value) < 1:
                raise ValueError
        except (TypeError, ValueError):
            self.problems.append(f"{key}: expected a share from 0 to below 1, got {value!r}.")
            return default
        return float(value)

    def _flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            self.problems.append(f"{key}: expected true or false, got {value!r}.")
            return default
        return value

    def _word(self, key: str, known: Sequence[str], default: str) -> str:
        value = str(self.values.get(key, default)).lower()
        if value not in known:
            self.problems.append(
                f"{key}: expected one of {', '.join(known)}, got {value!r}.{did_you_mean(value, known)}"
            )
            return default
        return value

    def _among(self, key: str, known: Sequence[str], *, default: Sequence[str] | None = None) -> tuple[str, ...]:
        found = self._list(key, known if default is None else default)
        for value in found:
            if value not in known:
                self.problems.append(
                    f"{key}: expected some of {', '.join(known)}, got {value!r}.{did_you_mean(str(value), known)}"
                )
        return tuple(v for v in known if v in found)


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


def _home(name: Any) -> str:
    text = str(name or "")
    return str(Path(text).expanduser()) if text.startswith("~") else text


def _plain(value: Any) -> Any:
    """Plain JSON of what YAML read: dates become text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
