"""What a plan is made of: one value an entry, one a plan, and the table of kinds. Nothing is loaded here.

An entry's class is its declaration: types, bounds and docstrings of its fields are what a suite file may write (see
`holdfast.evaluation.suite`). `KINDS` says for each kind which class it makes and which module measures it; a new kind
is a class, a module with `measure` and `check`, and one line there.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from holdfast.config.declare import Meta, Seed
from holdfast.evaluation.judge.settings import ReplySettings

TASK_SUFFIXES = (".yaml", ".yml")

CODE_FAMILIES = {"humaneval": "humaneval", "humaneval_instruct": "humaneval", "mbpp": "mbpp", "mbpp_instruct": "mbpp"}
"""Tasks whose answers are programs, by the form of their rows. They run in the sandbox, and only where the user allows
it."""
_UNREAD_BY_CODE = {
    "humaneval": ("apply_chat_template",),
    "mbpp": ("apply_chat_template",),
    "humaneval_instruct": ("num_fewshot", "fewshot_data"),
    "mbpp_instruct": ("num_fewshot", "fewshot_data"),
}
"""Settings that these tasks' prompts have no place for (`code.programs`): conversations or examples."""


# ------------------------------------------------------------------------------------------------ what a value may be


def _word(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
        raise ValueError
    return str(value)


def _template(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError('a text such as "Question: {question}"')
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(value) if field is not None]
    except ValueError as error:
        expected = f'a template such as "Question: {{question}}" (a brace that is text is written twice; {error})'
        raise ValueError(expected) from None
    if not fields or not all(fields):
        raise ValueError('a template that names columns, such as "Question: {question}"')
    return value


def _options(value: Any) -> Any:
    if isinstance(value, str) and value:  # a column with each row's own
        return value
    texts = list(value.values()) if isinstance(value, Mapping) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError
    if len(texts) < 2 or len(set(texts)) < len(texts):
        raise ValueError
    return value if isinstance(value, Mapping) else tuple(texts)


_TEXT: dict[str, Any] = {"type": ["string", "integer"], "minLength": 1}
_TEXTS: dict[str, Any] = {"type": "string", "minLength": 1}
Word = Annotated[str, Meta(parse=_word, expected="text that is not empty", json_schema=lambda: _TEXT)]
WordOrNone = Annotated[str | None, Meta(parse=_word, expected="text that is not empty", json_schema=lambda: _TEXT)]
Template = Annotated[str, Meta(parse=_template, json_schema=lambda: _TEXTS)]
TemplateOrNone = Annotated[str | None, Meta(parse=_template, json_schema=lambda: _TEXTS)]
CountOrNone = Annotated[int | None, Meta(ge=1)]
Options = Annotated[
    tuple[str, ...] | str,
    Meta(
        parse=_options,
        expected='at least two different texts such as [" negative", " positive"], label: text, or a column',
        json_schema=lambda: {
            "anyOf": [
                _TEXTS,
                {"type": "array", "items": _TEXTS, "minItems": 2, "uniqueItems": True},
                {"type": "object", "additionalProperties": _TEXTS, "minProperties": 2},
            ]
        },
    ),
]


# -------------------------------------------------------------------------------------------------------- the entries


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What all entries have in common."""

    batched: ClassVar[bool] = False
    """Whether its figures depend on the plan's batch size."""
    against_start: ClassVar[bool] = False
    """Whether it holds a model against the one it was tuned from, as `start` of `runner.evaluate`."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Packages beside torch and transformers whose versions its figures depend on."""

    suite: Annotated[str, Meta(yaml=False)]
    """"source", "target" or a name of the user's."""
    name: Word
    """Unique within its suite; by default the stem of the data file, or the task's name."""
    chat_template_kwargs: Annotated[dict[str, Any], Meta(metavar="'{enable_thinking: false}'")] = dataclasses.field(
        default_factory=dict
    )
    """Variables of the chat template, where prompts are written by it; {enable_thinking: false} has models that think
    reply at once."""

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        raise NotImplementedError

    @property
    def unread(self) -> tuple[str, ...]:
        """Fields that change nothing of what this entry measures."""
        return ()

    def local_files(self) -> list[Path]:
        """Local files that decide what is measured."""
        raise NotImplementedError

    def deciding(self) -> dict[str, Any]:
        """The settings that its key is computed from: without names and places, so that a moved or renamed file with
        the same content is the same evaluation."""
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("suite", "name")}
        if not self.chat_template_kwargs:  # evaluations from before it are found
            del settings["chat_template_kwargs"]
        for name in ("data", "fewshot_data", "reference"):
            if settings.get(name) is not None and Path(settings[name]).exists():
                settings[name] = Path(settings[name]).name
        return {**settings, "kind": self.kind}


@dataclass(frozen=True, kw_only=True)
class DataEntry(Entry):
    """What entries over rows of a file have in common."""

    data: Word
    """A data file, a folder, or a hub id; an absolute path once read."""
    split: Word = "train"
    """Split of the data; a single local file is the split "train", a hub id needs one."""
    config: WordOrNone = None
    """Configuration name of a hub data set."""
    max_documents: CountOrNone = None
    """Only the first so many rows; null: all."""

    def local_files(self) -> list[Path]:
        """The data file, where it is no hub id."""
        return [Path(self.data)] if Path(self.data).exists() else []


@dataclass(frozen=True, kw_only=True)
class PerplexityEntry(DataEntry):
    """Held-out text, or completions given prompts, to be scored token by token."""

    window: Annotated[int | None, Meta(ge=2)] = None
    """Longest context in tokens; null: the model's maximum."""
    stride: CountOrNone = None
    """New tokens per window in documents longer than `window`; null: half of it. Cost grows with window / stride."""
    text: TemplateOrNone = None
    """`str.format` template over the columns for plain text."""
    prompt: TemplateOrNone = None
    """Template of what is given; comes with `completion`."""
    completion: TemplateOrNone = None
    """Template of what is scored."""
    memorisation: Annotated[bool, Meta(yaml=False)] = False
    """Also counts the tokens that were the model's most likely one, and the entropy of its distributions."""

    @property
    def kind(self) -> str:
        """ "perplexity" or "memorisation"."""
        return "memorisation" if self.memorisation else "perplexity"

    def problems(self) -> list[str]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        found = []
        if (self.prompt is None) != (self.completion is None):
            found.append(
                "`prompt` and `completion` go together: what is given, and what is scored. Add the other one, or use "
                "`text`."
            )
        if self.text is not None and self.prompt is not None:
            found.append(
                "`text` and `prompt` exclude each other: either the whole text is scored or only the completion."
            )
        if self.window is not None and self.stride is not None and self.stride >= self.window:
            found.append(
                f"stride: expected less than the window ({self.window}), got {self.stride}; a token needs at least one "
                "before it in its window."
            )
        return found


@dataclass(frozen=True, kw_only=True)
class ClassesEntry(DataEntry):
    """Texts to be classified by the likelihood of each class's name."""

    prompt: Template
    """`str.format` template over the columns: what is given, such as "{text}\\nThis review is"."""
    options: Options
    """What the classes are called, as the model would continue the prompt: in the order of the labels 0, 1, ..., or by
    label; or the column with each row's own list of them, for questions whose answers differ (SIQA)."""
    labels: Annotated[tuple[str, ...], Meta(yaml=False)] = ()
    """The label column's values in the order of `options`; empty: whole numbers from 0."""
    label: Word = "label"
    """Column with the right class."""

    @property
    def kind(self) -> str:
        """ "classes"."""
        return "classes"


@dataclass(frozen=True, kw_only=True)
class QuestionsEntry(DataEntry):
    """What entries over questions with options of their own have in common: rows of prompt, options and answer (the
    right option's index from 0), and image or images where there are some."""

    apply_chat_template: bool = False
    """The prompt becomes a user's message in the tokenizer's chat template, and an option begins the reply."""
    group: WordOrNone = None
    """Column whose values the report draws apart, such as the subject."""
    unit: WordOrNone = None
    """Column that questions about the same thing share: they are one sample, whose accuracy is their mean. Without it
    questions that hang together count as so many samples, and intervals are too narrow."""

    def local_files(self) -> list[Path]:
        """The data file, and those of its images."""
        from holdfast.evaluation.images import image_files

        return [*super().local_files(), *image_files(self)]

    def deciding(self) -> dict[str, Any]:
        """As of every entry; without `unit` where it is not used, so that evaluations from before it are found."""
        settings = super().deciding()
        if self.unit is None:
            del settings["unit"]
        return settings


@dataclass(frozen=True, kw_only=True)
class ChoicesEntry(QuestionsEntry):
    """Questions with options of their own, answered by the likelihood of each option; rows of prompt, options and
    answer (the right option's index from 0)."""

    length_normalised: bool = True
    """Divides an option's log-likelihood by its tokens; false takes the sum."""

    @property
    def kind(self) -> str:
        """ "choices"."""
        return "choices"


LETTERED_PROMPT = "{prompt}\n{options}\nAnswer:"
"""How a question is asked with letters: `options` are lines such as "A. blue"."""


@dataclass(frozen=True, kw_only=True)
class LetteredEntry(QuestionsEntry):
    """Questions with options of their own, asked with a letter for each option and answered by the likeliest letter;
    rows as of choices."""

    prompt: Template = LETTERED_PROMPT
    """`str.format` template over the columns, in which {options} are the lines "A. ...", "B. ..."."""

    @property
    def kind(self) -> str:
        """ "lettered"."""
        return "lettered"

    def problems(self) -> list[str]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        named = [field for _, field, _, _ in string.Formatter().parse(self.prompt)]
        if "options" in named:
            return []
        return [
            f"prompt: expected a template with {{options}}, where the lettered options stand, got {self.prompt!r}. "
            "Without them nothing says what the letters mean."
        ]


@dataclass(frozen=True, kw_only=True)
class InstructionsEntry(DataEntry):
    """Prompts with instructions whose following a program checks; rows of prompt (or messages), instruction_id_list and
    kwargs, as IFEval has them."""

    batched: ClassVar[bool] = True

    max_new_tokens: Annotated[int, Meta(ge=1)] = 256
    """The longest reply; greedy, it ends earlier where the model ends it."""
    apply_chat_template: bool = False
    """Puts a prompt in the tokenizer's chat template; messages always are."""

    @property
    def kind(self) -> str:
        """ "instructions"."""
        return "instructions"


@dataclass(frozen=True, kw_only=True)
class WinRateEntry(DataEntry, ReplySettings):
    """Prompts whose replies a judge, a language model behind an OpenAI-compatible endpoint, holds against other replies
    to them, in both orders; rows with a prompt."""

    batched: ClassVar[bool] = True

    judge_model: Word
    """The judge's name, as the endpoint knows it."""
    base_url: Word
    """The endpoint's address, such as http://localhost:8000/v1."""
    api_key_env: WordOrNone = None
    """Environment variable with the key (OPENAI_API_KEY for api.openai.com, else none)."""
    reference: WordOrNone = None
    """A file with the replies that a model's are held against; null: those of the model that it was tuned from, or of
    the first of several models."""
    max_new_tokens: Annotated[int, Meta(ge=1)] = 512
    """The longest reply; greedy, it ends earlier where the model ends it."""
    apply_chat_template: bool = False
    """Puts a prompt in the tokenizer's chat template."""

    @property
    def kind(self) -> str:
        """ "win_rate"."""
        return "win_rate"

    @property
    def against_start(self) -> bool:  # type: ignore[override]
        """Without a file of replies."""
        return self.reference is None

    def local_files(self) -> list[Path]:
        """The prompts and the replies."""
        return [*super().local_files(), *([Path(self.reference)] if self.reference is not None else [])]

    def deciding(self) -> dict[str, Any]:
        """As of every entry; without the address, which changes with every server that is started."""
        return {k: v for k, v in super().deciding().items() if k not in ("base_url", "api_key_env")}

    def problems(self) -> list[str]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        from holdfast.support.endpoint import Endpoint

        if "@" in self.base_url or "?" in self.base_url:  # it stands in records
            return ["base_url: expected an address without user, password or query. Name the key by `api_key_env`."]
        return [f"{problem}." for problem in Endpoint(base_url=self.base_url).problems()]


@dataclass(frozen=True, kw_only=True)
class TaskEntry(Entry):
    """One lm-evaluation-harness task or group of tasks."""

    batched: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("lm_eval",)

    task: Word
    """Built-in task or group, or the path of a task YAML."""
    data: WordOrNone = None
    """A local file that replaces the task's data set; prompts, choices and metrics stay the task's own."""
    fewshot_data: WordOrNone = None
    """A local file with the examples shown before each question; null with `data`: drawn from `data` itself, never the
    question asked."""
    num_fewshot: Annotated[int | None, Meta(ge=0)] = None
    """Examples shown before each question; null: what the task says."""
    limit: CountOrNone = None
    """Only the first so many questions (of each subtask of a group); null: all."""
    apply_chat_template: bool = False
    """Puts the questions in the tokenizer's chat template."""
    metric: WordOrNone = None
    """The metric to lead with; null: accuracy where there is one, else exact match, else the task's first."""
    answers: Annotated[bool, Meta(yaml=False)] = False
    """Looks at the distribution at the answer position in place of the task's own metrics."""
    samples: CountOrNone = None
    """Programs a problem, of tasks whose answers are programs; null: 1."""
    temperature: Annotated[float | None, Meta(gt=0, lt=100)] = None
    """Of sampling where there are several programs a problem; null: 0.8 (Chen et al. 2021 take 0.8 for pass@100 and 0.2
    for pass@1)."""

    @property
    def kind(self) -> str:
        """ "task", "answers" or "code"."""
        return "answers" if self.answers else "code" if self.task in CODE_FAMILIES else "task"

    @property
    def unread(self) -> tuple[str, ...]:
        """Of a task whose answers are programs: what its prompts have no place for."""
        return _UNREAD_BY_CODE[self.task] if self.kind == "code" else ()

    @property
    def is_file(self) -> bool:
        """True where `task` is the path of a task YAML."""
        return self.task.endswith(TASK_SUFFIXES)

    def local_files(self) -> list[Path]:
        """Its data and, of a task YAML, all that the YAML reads."""
        from holdfast.evaluation.tasks.tasks import local_files

        return local_files(self)

    def deciding(self) -> dict[str, Any]:
        """As of every entry, a task YAML by its name."""
        return {**super().deciding(), "task": Path(self.task).name if self.is_file else self.task}

    def problems(self) -> list[str]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        found = [
            f"{key}: only for tasks whose answers are programs ({', '.join(CODE_FAMILIES)})."
            for key in ("samples", "temperature")
            if getattr(self, key) is not None and self.task not in CODE_FAMILIES
        ]
        found += [f"{key}: {self.task} does not read it. Leave it out." for key in self.unread if getattr(self, key)]
        if self.kind == "code" and self.metric not in (None, "pass@1"):
            found.append(f"metric: {self.task} leads with pass@1, got {self.metric!r}. Leave it out.")
        if self.fewshot_data is not None and self.data is None:
            found.append("fewshot_data: only used together with `data`; without it the task brings its own examples.")
        return found


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
        """One mapping a sample, with a number for each metric. The model is in eval mode, gradients are off."""
        raise NotImplementedError

    def check(self, tokenizer: Any) -> None:
        """Finds out before anything is measured whether it can be.

        Raises:
            UserError: it cannot.
        """


@dataclass(frozen=True, kw_only=True)
class OwnEntry(Entry):
    """An entry of a user's own class."""

    batched: ClassVar[bool] = True

    own: OwnMeasure
    """The class's value: a dataclass of settings."""
    file: str
    """The Python file of the class."""

    @property
    def kind(self) -> str:
        """ "own"."""
        return "own"

    def local_files(self) -> list[Path]:
        """The Python file, and what the settings name by a `Path`."""
        named = [value for value in vars(self.own).values() if isinstance(value, Path) and value.exists()]
        return [Path(self.file), *named]

    def deciding(self) -> dict[str, Any]:
        """The class's name and its settings."""
        return {"own": type(self.own).__name__, "settings": self.own, "kind": self.kind}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of entry."""

    entry: type[Entry]
    """What it makes; its docstring and fields are the kind's."""
    module: str
    """Below `holdfast.evaluation`; has `measure(model, tokenizer, entry, plan, *, report, partial)`, `check(entry,
    tokenizer)` and, where versions of more than libraries matter, `versions(entry)`."""
    source: str = "data"
    """The field that the kind's own key gives: `perplexity: prose.jsonl`."""
    flag: str | None = None
    """A field that is true in entries of this kind; they are called after it too."""
    without: tuple[str, ...] = ()
    """Fields of the class that the kind does not take."""
    key: bool = True
    """Whether it has a key of its own in a suite."""
    served: bool = True
    """Whether a model behind a server can be measured: continuations and log-probabilities are enough."""
    scores: bool = False
    """Whether it needs log-probabilities of prompts, which not every server gives."""
    images: bool = False
    """Whether its rows may have images, for vision-language models; its module's `check` takes their processor, too."""


KINDS: dict[str, Kind] = {
    "perplexity": Kind(entry=PerplexityEntry, module="text.perplexity", scores=True),
    "task": Kind(entry=TaskEntry, module="tasks.harness", source="task", images=True),
    "answers": Kind(
        entry=TaskEntry,
        module="text.answers",
        source="task",
        flag="answers",
        without=("metric", "samples", "temperature"),
        served=False,
    ),
    "memorisation": Kind(entry=PerplexityEntry, module="text.perplexity", flag="memorisation", served=False),
    "classes": Kind(entry=ClassesEntry, module="text.classes", scores=True, without=("chat_template_kwargs",)),
    "choices": Kind(entry=ChoicesEntry, module="text.choices", scores=True, images=True),
    "lettered": Kind(entry=LetteredEntry, module="text.lettered", served=False, images=True),
    "instructions": Kind(entry=InstructionsEntry, module="text.instructions"),
    "win_rate": Kind(entry=WinRateEntry, module="judge.measured", without=("split", "config")),
    "code": Kind(entry=TaskEntry, module="code.programs", key=False),
    "own": Kind(entry=OwnEntry, module="own_entry", key=False, served=False),
}
"""By name, which is the key that says what an entry of a suite is."""


# ----------------------------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True, kw_only=True)
class Average:
    """The mean of several figures, each counting once."""

    name: str
    members: tuple[tuple[str, str, str | None], ...]
    """(suite, entry, metric) of the plan; None is the entry's leading metric."""


@dataclass(frozen=True, kw_only=True)
class Along:
    """When a model is measured while it is trained, and with which entries. Start and end are measured anyway."""

    steps: Annotated[tuple[int, ...], Meta(ge=1)] = ()
    """After these optimiser steps."""
    every: CountOrNone = None
    """After every so many optimiser steps."""
    shares: Annotated[tuple[float, ...], Meta(gt=0, lt=1)] = ()
    """After these shares of all steps, each at the nearest step."""
    entries: tuple[str, ...] = ()
    """Entries by name, suite/name, or whole suites; empty: all of them."""

    def problems(self) -> list[str]:
        """What cannot be, beyond each setting's own bounds; a sentence each."""
        if self.steps or self.every is not None or self.shares:
            return []
        return ["expected steps, every or shares, which say when to measure, got none of them."]

    def reached(self, step: int, total: int) -> list[float]:
        """Which moments a step is, as shares of the steps: those of `shares` as they were asked for, else step / total;
        empty where it is none. The last step is none.

        Args:
            step: optimiser steps done.
            total: of the run.
        """
        if step >= total:
            return []
        found = [share for share in self.shares if step == max(1, round(share * total))]
        asked = step in self.steps or (self.every is not None and step % self.every == 0)
        return found or ([step / total] if asked else [])

    def names(self, entry: Entry) -> bool:
        """Whether an entry is among those that are measured."""
        return not self.entries or any(name in self.entries for name in names_of(entry))


def names_of(entry: Entry) -> tuple[str, ...]:
    """What an entry may be called in a list of entries: name, suite/name, or its suite's name."""
    return entry.name, f"{entry.suite}/{entry.name}", entry.suite


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What all entries of a plan share."""

    batch_size: Annotated[int, Meta(ge=1)] = 8
    """Texts a forward pass where they are generated, or where a model cannot share beginnings. Fixed, never automatic:
    figures depend on it in the last digits, so that comparisons need the same."""
    before: bool = True
    """Measures the start model too (`holdfast train`), which comparisons need."""
    confidence: Annotated[float, Meta(gt=0, lt=1)] = 0.95
    """Level of all intervals."""
    seed: Seed = 0
    """Of resampling, of the choice of few-shot examples and of sampled generation."""
    allow_code_execution: bool = False
    """Runs programs that the model writes, in a sandbox. Without it tasks with programs for answers are refused."""
    backend: Literal["transformers", "vllm"] = "transformers"
    """Inference engine for models on disk (`holdfast evaluate`, `holdfast update`); vllm starts `vllm serve` for each,
    on all devices. A training run measures the model that it has in memory."""
    along: Along | None = None
    """Measures while the model is trained, too (`holdfast train` in one process): `{steps: [1, 2, 5], every: 50}`."""


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan(PlanSettings):
    """All entries, source first, then target, then the others, each in the order of the config."""

    entries: tuple[Entry, ...] = ()
    averages: tuple[Average, ...] = ()
    """Means of the entries' figures; compared as such, too."""

    def record(self) -> dict[str, Any]:
        """The fields by name, for records and fingerprints; without `along` and `backend` where they are off, so that
        what was measured before there were such settings is found again."""
        fields = dataclasses.asdict(self)
        if self.along is None:
            del fields["along"]
        if self.backend == "transformers":
            del fields["backend"]
        for entry in fields["entries"]:
            if not entry["chat_template_kwargs"]:
                del entry["chat_template_kwargs"]
        return fields

    @property
    def on_the_way(self) -> EvaluationPlan:
        """What is measured while the model is trained: the entries that `along` names, all without it; no averages."""
        entries = tuple(e for e in self.entries if self.along is None or self.along.names(e))
        return dataclasses.replace(self, entries=entries, averages=(), along=None)

    @property
    def suites(self) -> tuple[str, ...]:
        """Names of the suites in order."""
        return tuple(dict.fromkeys(e.suite for e in self.entries))
