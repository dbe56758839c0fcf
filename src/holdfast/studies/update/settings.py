"""The keys of an update, each with its type, bounds and default, declared once.

Keys that name a model are looked at here too; what needs the files is checked by `plan`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from holdfast.config.declare import Meta, Seed
from holdfast.config.values import Refused
from holdfast.config.yaml_text import from_yaml
from holdfast.data.prepare.corpus import CorpusOptions
from holdfast.data.sources import is_path
from holdfast.errors import ConfigError, Problem, did_you_mean
from holdfast.records.residual import BASE, INSTRUCT
from holdfast.runs.on_policy import SamplingSettings
from holdfast.studies.engine.keys import SeedSettings
from holdfast.support.paths import expanded
from holdfast.support.token_counts import read_tokens

WINDOW = 4096
"""Tokens of a packed window (Balancing Continuous Pre-Training, section 3.1.1)."""
NEW_TEXT = "new_text"
"""The suite of the held-out new text."""
HELD_OUT = 0.01
"""Share of the new documents that is not trained on and measured."""
_SET_HERE = {
    "seed": "seed",
    "max_length": "window",
    "num_train_epochs": "epochs",
    "evaluation": "evaluation",
}
_OWN = ("model_name_or_path", "dataset_name", "datasets", "output_dir", "keep", "learn", *_SET_HERE)


def train_word(word: str) -> Any:
    """One word of `--train`: `KEY=VALUE` as a mapping, each value read as YAML; a file's name, or a
    mapping, as it is.

    Raises:
        ValueError: neither.
    """
    if word.endswith((".yaml", ".yml")) or word.lstrip().startswith("{"):
        return from_yaml(word)
    name, equals, value = word.partition("=")
    if not name or not equals:
        raise ValueError("expected KEY=VALUE, a mapping or a YAML file")
    read = from_yaml(value)
    with contextlib.suppress(ValueError):
        read = float(read) if isinstance(read, str) else read  # YAML reads 1e-5 as text
    return {name: read}


def train_keys(value: Any) -> dict[str, Any]:
    """The keys of 'holdfast train', from a mapping, a YAML file or words of the command line.

    Raises:
        ValueError: neither.
        Refused: the file cannot be read, or keys that this job sets itself.
    """
    from holdfast.config.yaml_file import read_yaml

    problems: list[Problem] = []
    if isinstance(value, list):  # words of a command line
        if len(value) > 1 and all(isinstance(word, Mapping) for word in value):
            value = [{key: item for word in value for key, item in word.items()}]
        value = value[0] if len(value) == 1 else None
    if isinstance(value, (str, Path)):
        try:
            file = read_yaml(Path(value), option="train:")
        except ConfigError as error:
            raise Refused(Problem((), str(error))) from None
        problems += [Problem((), sentence) for sentence in file.sentences(file.problems)]
        value = file.values
    if not isinstance(value, Mapping):
        raise ValueError
    keys = {str(key): item for key, item in value.items()}
    for key in keys.keys() & set(_OWN):
        del keys[key]
        text = (
            f"is set by the key '{_SET_HERE[key]}'. Use this key."
            if key in _SET_HERE
            else "is set for this job. Leave it out."
        )
        problems.append(Problem(key, text))
    if problems:
        raise Refused(*problems)
    return keys


def read_suites(value: Any) -> dict[str, Any]:
    """What is measured, from a mapping of suites, or names of shipped suites and files.

    Raises:
        ValueError: something else.
    """
    if isinstance(value, Mapping):
        return dict(value)
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        raise ValueError
    return {"suites": list(names)}


Tokens = Annotated[int, Meta(parse=read_tokens, expected="a number of tokens such as 100M")]


def read_day(value: Any) -> str:
    """A day such as 2024-01-15, as text or as YAML reads it."""
    from holdfast.data.prepare.dates import cut_off

    return cut_off(value).isoformat()


DAY = Meta(
    parse=read_day,
    expected="a date such as 2024-01-15",
    json_schema=lambda: {"type": "string", "format": "date"},
    group=CorpusOptions.settings_group,
    metavar="DATE",
)


@dataclass(frozen=True, kw_only=True)
class RestoreSettings(SamplingSettings):
    """On-policy distillation as a second stage: the continued instruct model answers prompts, and
    is held to the instruct model of before at its own tokens (see
    `training.preferences.OnPolicyTrainer`)."""

    prompts: Annotated[str | None, Meta(metavar="FILE")] = None
    """File of prompts. Answers in it are ignored."""
    steps: Annotated[int, Meta(ge=1)] = 100
    """Number of optimiser steps."""
    direction: Literal["forward", "reverse", "jsd"] = "reverse"
    """Direction of the divergence. forward: KL(teacher || model); reverse: KL(model || teacher);
    jsd: between them."""
    train: Annotated[
        dict[str, Any],
        Meta(parse=train_keys, expected="keys of 'holdfast train' or a YAML file"),
    ] = field(default_factory=dict)
    """Keys of 'holdfast train' for this stage. They override those of the continued training."""


def _evaluation_schema() -> dict[str, Any]:
    return {"type": ["object", "array", "string"]}


@dataclass(frozen=True, kw_only=True)
class CommonSettings(CorpusOptions):
    """Keys of an update and of a study. Which documents are read is said as in 'holdfast data
    prepare'."""

    corpus: Annotated[tuple[str, ...], Meta(metavar="PATH", repeatable=True)] = ()
    """Files and folders with the new text."""
    after: Annotated[str | None, DAY] = None
    """Only documents of this day or later, such as 2023-12-01."""
    before: Annotated[str | None, DAY] = None
    """Only documents before this day."""
    # None: not given, and so not in the record of the corpus
    titles: Annotated[
        bool | None, Meta(group=CorpusOptions.settings_group, section="documents")
    ] = None  # type: ignore[assignment]
    """Put the title in front of the text."""
    held_out: Annotated[float, Meta(ge=0, lt=1)] = HELD_OUT
    """Share of the documents to hold out and measure."""
    epochs: Annotated[float, Meta(gt=0)] = 1.0
    """Number of passes over the new text."""
    window: Annotated[int, Meta(ge=8)] = WINDOW
    """Length of a packed window, in tokens."""
    train: Annotated[
        dict[str, Any],
        Meta(
            parse=train_keys,
            parse_word=train_word,
            metavar="KEY=VALUE",
            expected="keys of 'holdfast train' or a YAML file",
        ),
    ] = field(default_factory=dict)
    """Keys of 'holdfast train' for continued pre-training, or a YAML file."""
    evaluation: Annotated[
        dict[str, Any],
        Meta(
            parse=read_suites,
            metavar="SUITE",
            repeatable=True,
            expected="suites",
            json_schema=_evaluation_schema,
        ),
    ] = field(default_factory=dict)
    """Evaluation of every model, as in 'holdfast train': shipped suites or YAML files. The
    held-out new text is always measured."""
    restore: Annotated[
        RestoreSettings | None, Meta(metavar="'{prompts: FILE}'", section="rivals")
    ] = None
    """Also train the instruct model on the new text, then restore it by on-policy distillation from
    the original one, for comparison with the residual."""

    def restore_problems(self, *, given: bool) -> list[Problem]:
        """What keeps the second stage from being made.

        Args:
            given: whether prompts have to be named.
        """
        if self.restore is None:
            return []
        problems, prompts = [], self.restore.prompts
        if prompts is None and given:
            problems.append(
                Problem(("restore", "prompts"), "is missing: a file with prompts to answer.")
            )
        if prompts is not None and is_path(prompts) and not Path(home(prompts)).exists():
            problems.append(Problem(("restore", "prompts"), f"no such file or folder: {prompts}."))
        if self.train.get("use_peft") or self.restore.train.get("use_peft"):
            text = (
                "expected full training, because later stages need all weights, got use_peft. "
                "Leave one out."
            )
            problems.append(Problem("restore", text))
        return problems

    def evaluation_problems(self) -> list[Problem | str]:
        """What keeps models from being measured; names of files that are still to be made are not
        looked at."""
        from holdfast.evaluation.suite import parse_evaluation

        if not self.evaluation or "${" in str(self.evaluation):
            return []
        plan, problems = parse_evaluation(self.evaluation)
        mistakes: list[Problem | str] = [*problems]
        if NEW_TEXT in plan.suites:
            text = "is the name of the held-out new text; choose another name for your suite."
            mistakes.append(Problem(("evaluation", NEW_TEXT), text))
        return mistakes

    def corpus_problems(self, *, needed: bool) -> list[Problem]:
        """Files that are not there."""
        problems = []
        for name in map(home, self.corpus):
            if Path(name).exists() and not (Path(name).is_file() or Path(name).is_dir()):
                problems.append(
                    Problem("corpus", f"expected a file or a folder, but {name} is neither.")
                )
            elif not Path(name).exists():
                folder = Path(name).parent
                beside = [p.name for p in folder.iterdir()] if folder.is_dir() else []
                text = f"no such file or folder: {name}.{did_you_mean(Path(name).name, beside)}"
                problems.append(Problem("corpus", text))
        if not self.corpus and needed:
            text = "is missing: files or folders with the new text (text, JSONL, Parquet)."
            problems.append(Problem("corpus", text))
        if self.after and self.before and self.after >= self.before:
            text = (
                f"expected an earlier day than {self.before}, got {self.after}. The day of "
                "'before' is itself left out."
            )
            problems.append(Problem("after", text))
        return problems


@dataclass(frozen=True, kw_only=True)
class UpdateSettings(CommonSettings):
    """`holdfast update`."""

    base: str | None = None
    """The base model, a folder or a hub id."""
    instruct: str | None = None
    """The instruct model that was tuned from the base."""
    tokens: Annotated[
        int | None, Meta(parse=read_tokens, expected="a number of tokens such as 100M")
    ] = None
    """Number of tokens of the new text to train on, such as 100M (default: all)."""
    continued_instruct: Annotated[bool, Meta(section="rivals")] = False
    """Also train the instruct model itself on the new text, to measure what it forgets."""
    scale: float = 1.0
    """Factor on the residual."""
    seed: Seed = 0
    """Seed of training and of all random draws."""
    keep_weights: Literal["all", "result", "none"] = "all"
    """Models whose weights stay on disk."""
    output_dir: Annotated[Path | None, Meta(metavar="FOLDER")] = None
    """Folder of all output (default: runs/update)."""

    def problems(self) -> list[Problem | str]:
        """Models and files that are not there, and keys that do not go together."""
        problems: list[Problem | str] = [
            *pair_problems(self.base, self.instruct, ()),
            *self.corpus_problems(needed=True),
            *self.evaluation_problems(),
        ]
        problems += self.restore_problems(given=True)
        return problems


@dataclass(frozen=True, kw_only=True)
class FamilySettings:
    """A base and what was tuned from it."""

    base: str | None = None
    instruct: str | None = None


@dataclass(frozen=True, kw_only=True)
class GridSettings(SeedSettings, CommonSettings):
    """What is made from which models; an update has one pair, a study may have several."""

    families: dict[str, FamilySettings] = field(default_factory=dict)
    """Pairs of a base and an instruct model, by name."""
    starts: tuple[str, ...] = (BASE, INSTRUCT)
    """Models to train on the new text: base, instruct."""
    residuals: bool = True
    """For each token budget, add the residual to the base that was trained on it."""
    siblings: bool | None = None
    """Add every family's residual to every other family's base (if there are several)."""
    derived: dict[str, str] = field(default_factory=dict)
    """Other models that were derived from a base, by name. Every residual is added to each."""
    scales: Annotated[tuple[float, ...], Meta(least=1)] = (1.0,)
    """Factors on the residual; each of them is tried."""


def pair_problems(base: str | None, instruct: str | None, path: tuple[str, ...]) -> list[Problem]:
    """What is wrong with a base and the model that was tuned from it."""
    problems = [*model_problems(base, (*path, BASE)), *model_problems(instruct, (*path, INSTRUCT))]
    if base and base == instruct:
        problems.append(
            Problem((*path, INSTRUCT), f"is the base itself ({base}); the residual would be 0.")
        )
    return problems


def model_problems(name: str | None, path: tuple[str, ...]) -> list[Problem]:
    """What is wrong with the name of a model."""
    from holdfast.errors import dotted
    from holdfast.runs.config_checks import check_model

    key = dotted(path)
    if not name:
        text = f"is missing: a folder or a hub id, as in '{key}: meta-llama/Meta-Llama-3-8B'."
        return [Problem(path, text)]
    if (expanded(name) / "adapter_config.json").is_file():
        return []  # an adapter is a model too: it is merged into its base on the fly
    return [Problem(path, problem.text) for problem in check_model(name)]


def home(name: Any) -> str:
    """A path with `~` as the home folder; other names as they are."""
    text = str(name or "")
    return str(expanded(text)) if text.startswith("~") else text
