"""What a plan is made of: one value an entry, one a plan. Nothing is loaded here.

An entry's class is its kind: its fields are what a suite file may write (see
`holdfast.evaluation.suite`), `requests` reads what a model is asked, `scores` asks a model,
`versions` names the rules that its figures depend on. The kinds are in
`holdfast.evaluation.kinds`, one a file.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from holdfast.config.declare import Meta, Seed

if TYPE_CHECKING:
    from holdfast.evaluation.measures import Outcome, Subject

TASK_SUFFIXES = (".yaml", ".yml")

# ------------------------------------------------------------------------------ what a value may be


def _word(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
        raise ValueError
    return str(value)


def template_fields(template: str) -> list[str]:
    """The columns that a `str.format` template names.

    Raises:
        ValueError: it is no template.
    """
    pieces = string.Formatter().parse(template)
    return [column for _, column, _, _ in pieces if column is not None]


def _template(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError('a text such as "Question: {question}"')
    try:
        fields = template_fields(value)
    except ValueError as error:
        expected = (
            f'a template such as "Question: {{question}}" (write a literal brace twice; {error})'
        )
        raise ValueError(expected) from None
    if not fields or not all(fields):
        raise ValueError('a template that names columns, such as "Question: {question}"')
    return value


def are_options(texts: Any) -> bool:
    """Whether a value is a list of at least two different texts, none of them empty."""
    if not isinstance(texts, (list, tuple)):
        return False
    if not all(isinstance(text, str) and text for text in texts):
        return False
    return len(texts) >= 2 and len(set(texts)) == len(texts)


def _options(value: Any) -> Any:
    if isinstance(value, str) and value:  # a column with each row's own
        return value
    texts = list(value.values()) if isinstance(value, Mapping) else value
    if not are_options(texts):
        raise ValueError
    return value if isinstance(value, Mapping) else tuple(texts)


_TEXT: dict[str, Any] = {"type": ["string", "integer"], "minLength": 1}
_TEXTS: dict[str, Any] = {"type": "string", "minLength": 1}
Word = Annotated[
    str, Meta(parse=_word, expected="text that is not empty", json_schema=lambda: _TEXT)
]
WordOrNone = Annotated[
    str | None, Meta(parse=_word, expected="text that is not empty", json_schema=lambda: _TEXT)
]
Template = Annotated[str, Meta(parse=_template, json_schema=lambda: _TEXTS)]
TemplateOrNone = Annotated[str | None, Meta(parse=_template, json_schema=lambda: _TEXTS)]
CountOrNone = Annotated[int | None, Meta(ge=1)]
Options = Annotated[
    tuple[str, ...] | str,
    Meta(
        parse=_options,
        expected='at least two different texts (a list such as [" negative", " positive"], or a '
        "mapping from label to text), or the name of a column",
        json_schema=lambda: {
            "anyOf": [
                _TEXTS,
                {"type": "array", "items": _TEXTS, "minItems": 2, "uniqueItems": True},
                {"type": "object", "additionalProperties": _TEXTS, "minProperties": 2},
            ]
        },
    ),
]


# -------------------------------------------------------------------------------------- the entries


Processor = Callable[[], Any]
"""Loads a vision-language model's processor, or finds it loaded. Where one is expected, None means
that the model takes text only."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Fields that all entries have in common."""

    kind: ClassVar[str] = ""
    """Name of the kind in `kinds.KINDS`. It is also the entry's key in a suite, unless `written` is
    false."""
    former: ClassVar[str] = ""
    """Earlier name of the kind, which suites may still use."""
    written: ClassVar[bool] = True
    """Whether a suite has a key for entries of this kind."""
    source: ClassVar[str] = "data"
    """The field that gets the value of the kind's key: `perplexity: prose.jsonl` sets `data`."""
    file_settings: ClassVar[tuple[str, ...]] = ("reference",)
    """Further fields that name local files."""
    name_suffix: ClassVar[str] = ""
    """Suffix of an entry's default name."""
    shipped: ClassVar[str] = ""
    """Word to write instead of a file to use data that comes with holdfast; empty: there is no such
    data."""
    without: ClassVar[tuple[str, ...]] = ()
    """Fields that cannot be set in a suite."""
    batched: ClassVar[bool] = False
    """Whether the entry's figures depend on the plan's batch size."""
    against_start: ClassVar[bool] = False
    """Whether the entry compares a model with its base (the argument `start` of
    `runner.evaluate`)."""
    served: ClassVar[bool] = True
    """Whether the entry can measure a served model, because it needs only continuations and
    log-probabilities."""
    takes_images: ClassVar[bool] = False
    """Whether the entry's rows may have images, for vision-language models."""
    runs_code: ClassVar[bool] = False
    """Whether the entry runs programs that the model writes."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Packages other than torch and transformers whose versions affect the entry's figures."""
    unread: ClassVar[tuple[str, ...]] = ()
    """Fields that do not affect what this entry measures."""

    suite: Annotated[str, Meta(yaml=False)]
    """"keep", "learn" or a name that the user chose."""
    name: Word
    """Unique within its suite; by default the stem of the data file, or the task's name."""
    chat_template_kwargs: Annotated[dict[str, Any], Meta(metavar="'{enable_thinking: false}'")] = (
        dataclasses.field(default_factory=dict)
    )
    """Variables of the chat template, if prompts use it. {enable_thinking: false} makes
    reasoning models reply at once."""

    @property
    def path(self) -> str:
        """Suite and name, for messages."""
        return f"{self.suite}/{self.name}"

    def local_files(self) -> list[Path]:
        """Local files that decide what is measured."""
        raise NotImplementedError

    def deciding(self) -> dict[str, Any]:
        """The settings that its key is computed from: without names and places, so that a moved or
        renamed file with the same content is the same evaluation."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del settings["suite"], settings["name"]
        if not self.chat_template_kwargs:  # evaluations from before it are found
            del settings["chat_template_kwargs"]
        for name in ("data", "fewshot_data", "reference"):
            if settings.get(name) is not None and Path(settings[name]).exists():
                settings[name] = Path(settings[name]).name
        return {**settings, "kind": self.kind}

    def requests(self, tokenizer: Any, processor: Processor | None = None) -> Any:
        """What a model is asked, read and looked at without one.

        Args:
            tokenizer: of the model.
            processor: of a vision-language model.

        Returns:
            What `scores` takes, as each kind needs it.

        Raises:
            UserError: the entry's task, data or tokenizer does not fit.
        """
        raise NotImplementedError

    def scores(self, requests: Any, on: Subject) -> Outcome:
        """Asks the model, and gives a row a sample with the figures that come out of them.

        Args:
            requests: those of this entry, made with the subject's tokenizer.
            on: the model.

        Raises:
            UserError: the model does not fit.
        """
        raise NotImplementedError

    def measure(self, on: Subject) -> Outcome:
        """The scores of the entry's requests.

        Raises:
            UserError: the entry's task, data, tokenizer or model does not fit.
        """
        return self.scores(self.requests(on.tokenizer, on.processor), on)

    def count(self, requests: Any) -> int:
        """How many samples come of requests; 0 where only measuring tells."""
        return len(requests)

    def versions(self) -> dict[str, str]:
        """What decides its figures beside the model, the data and libraries: rules and small models
        by version."""
        return {}

    def needs_scores(self, tokenizer: Any) -> bool:
        """Whether it needs log-probabilities of prompts, which not every server gives."""
        return False


@dataclass(frozen=True, kw_only=True)
class DataEntry(Entry):
    """Fields of all entries whose samples are rows of a file."""

    data: Word
    """A data file, a folder or a hub id. Relative paths become absolute when the entry is read."""
    split: Word = "train"
    """Split of the data. A single local file is the split "train"; a hub id needs a split."""
    config: WordOrNone = None
    """Configuration name of a hub data set."""
    max_documents: CountOrNone = None
    """Only the first N rows; null: all."""

    def local_files(self) -> list[Path]:
        """The data file, where it is no hub id."""
        is_here = self.data != self.shipped and Path(self.data).exists()
        return [Path(self.data)] if is_here else []


class OwnMeasure:
    """Base of a user's own kind of entry: a dataclass whose fields are its settings.

    ```python
    @dataclass(frozen=True, kw_only=True)
    class Length(OwnMeasure):
        metrics = {"letters": True}

        prompt: str = "Hello"

        def measure(self, model, tokenizer):
            ...
    ```
    """

    metrics: ClassVar[Mapping[str, bool]] = {}
    """Figures by name, true where higher is better; the first leads."""

    def measure(self, model: Any, tokenizer: Any) -> Iterable[Mapping[str, Any]]:
        """One mapping a sample, with a number for each metric. The model is in eval mode, gradients
        are off."""
        raise NotImplementedError

    def check(self, tokenizer: Any) -> None:
        """Finds out before anything is measured whether it can be.

        Raises:
            UserError: it cannot.
        """


# ----------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True, kw_only=True)
class Average:
    """The mean of several figures, each counting once."""

    name: str
    members: tuple[tuple[str, str, str | None], ...]
    """(suite, entry, metric) of the plan; None is the entry's leading metric."""


@dataclass(frozen=True, kw_only=True)
class Along:
    """When a model is measured while it is trained, and with which entries. Start and end are
    measured anyway."""

    steps: Annotated[tuple[int, ...], Meta(ge=1)] = ()
    """Measure after these optimiser steps."""
    every: CountOrNone = None
    """Measure every N optimiser steps."""
    shares: Annotated[tuple[float, ...], Meta(gt=0, lt=1)] = ()
    """Measure after these shares of all optimiser steps, each rounded to a whole step."""
    entries: tuple[str, ...] = ()
    """Entries (by name or as suite/name) and whole suites (by name); default: all entries."""

    def problems(self) -> list[str]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        if self.steps or self.every is not None or self.shares:
            return []
        return ["expected steps, every or shares (when to measure), got none of them."]

    def reached(self, step: int, total: int) -> list[float]:
        """Which moments a step is, as shares of the steps: those of `shares` as they were asked
        for, else step / total; empty where it is none. The last step is none.

        Args:
            step: optimiser steps done.
            total: of the run.
        """
        if step >= total:
            return []
        shares = [share for share in self.shares if step == max(1, round(share * total))]
        if shares:
            return shares
        is_multiple = self.every is not None and step % self.every == 0
        return [step / total] if is_multiple or step in self.steps else []

    def names(self, entry: Entry) -> bool:
        """Whether an entry is among those that are measured."""
        return not self.entries or any(name in self.entries for name in names_of(entry))


def names_of(entry: Entry) -> tuple[str, ...]:
    """What an entry may be called in a list of entries: name, suite/name, or its suite's name."""
    return entry.name, entry.path, entry.suite


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What all entries of a plan share."""

    batch_size: Annotated[int, Meta(ge=1)] = 8
    """Batch size for generation, and for models that cannot share prefixes. Compare models at the
    same batch size, because the last digits of results depend on it. It is never automatic."""
    before: bool = True
    """Also measure the initial model (`holdfast train`). Comparisons need it."""
    confidence: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    """Confidence level of all intervals."""
    seed: Seed = 0
    """Random seed of resampling, few-shot examples and sampled generation."""
    allow_code_execution: bool = False
    """Allow programs written by the model, in a sandbox. Without it, tasks whose answers are
    programs are refused."""
    along: Along | None = None
    """Also measure during `holdfast train`, as in `{steps: [1, 2, 5], every: 50}`. With several
    processes, the weights are saved at these steps and measured after training."""


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan(PlanSettings):
    """The entries to evaluate: keep first, then learn, then the others, each in the order of the
    config."""

    entries: tuple[Entry, ...] = ()
    averages: tuple[Average, ...] = ()
    """Averages over entries. An average is compared like an entry."""

    def record(self) -> dict[str, Any]:
        """The fields by name, for records and fingerprints. It leaves `along` out if that is off,
        so that evaluations from before that setting existed are still found."""
        fields = dataclasses.asdict(self)
        if self.along is None:
            del fields["along"]
        for entry in fields["entries"]:
            if not entry["chat_template_kwargs"]:
                del entry["chat_template_kwargs"]
        return fields

    @property
    def on_the_way(self) -> EvaluationPlan:
        """The plan of the evaluations during training: the entries that `along` names, or all
        entries without `along`. It has no averages."""
        entries = (
            self.entries if self.along is None else tuple(filter(self.along.names, self.entries))
        )
        return dataclasses.replace(self, entries=entries, averages=(), along=None)

    @property
    def suites(self) -> tuple[str, ...]:
        """Names of the suites in order."""
        return tuple(dict.fromkeys(e.suite for e in self.entries))
