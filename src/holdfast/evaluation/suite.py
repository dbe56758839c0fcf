"""What to measure: the `evaluation:` section of a config as values, with every mistake in it found at once.

```yaml
evaluation:
  source:                       # what must be kept
    - perplexity: prose.jsonl   # held-out text, or prompts with completions
      window: 2048
    - arc_easy                  # a built-in lm-evaluation-harness task, the path of a task YAML, or a data file
    - task: arc_easy
      name: arc_local
      data: arc.jsonl           # replaces the data set that the task would fetch from the hub
      num_fewshot: 0
      limit: 200
  target:                       # what is learnt
    - perplexity: answers.jsonl
      prompt: "Question: {question}\\nAnswer:"
      completion: " {answer}"
  batch_size: 8
  before: true
```

`source` and `target` are the suites that reports know; a list under any other name is a suite too. Nothing is loaded here: no torch, no
lm_eval, so a typing mistake costs a moment and not a model. Whether a task name exists and whether a data file has the right columns is found
out by `holdfast.evaluation.runner.check_plan`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.data.readers import COMPRESSIONS, KINDS, kind_of
from holdfast.errors import did_you_mean

_TASK_SUFFIXES = (".yaml", ".yml")
_HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
_KNOWN_SUITES = ("source", "target")


@dataclass(frozen=True, kw_only=True)
class PerplexityEntry:
    """Held-out text, or completions given prompts, to be scored token by token."""

    suite: str
    """"source", "target" or a name of the user's."""
    name: str
    """Unique within its suite; the stem of the data file unless given."""
    data: str
    """Absolute path of a local file or folder, or a hub id."""
    split: str = "train"
    """Split of the data; a single local file is the split "train"."""
    config: str | None = None
    """Configuration name of a hub data set."""
    window: int | None = None
    """Longest context in tokens; None: the model's maximum."""
    stride: int | None = None
    """New tokens per window in documents longer than `window`; None: half of it. Cost grows with window / stride."""
    max_documents: int | None = None
    """Only the first so many documents; None: all."""
    text: str | None = None
    """`str.format` template over the columns for plain text."""
    prompt: str | None = None
    """Template of what is given; comes with `completion`."""
    completion: str | None = None
    """Template of what is scored."""

    @property
    def kind(self) -> str:
        return "perplexity"


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """One lm-evaluation-harness task or group of tasks."""

    suite: str
    """"source", "target" or a name of the user's."""
    name: str
    """Unique within its suite; the task's name (or the YAML file's stem) unless given."""
    task: str
    """Built-in task or group, or the absolute path of a task YAML."""
    data: str | None = None
    """Absolute path of a local file that replaces the task's data set; prompts, choices and metrics stay the task's own."""
    fewshot_data: str | None = None
    """Absolute path of the examples shown before each question; None with `data`: drawn from `data` itself, never the question asked."""
    num_fewshot: int | None = None
    """Examples shown before each question; None: what the task says."""
    limit: int | None = None
    """Only the first so many questions (of each subtask of a group); None: all."""
    apply_chat_template: bool = False
    """Puts the questions in the tokenizer's chat template."""
    metric: str | None = None
    """The metric to lead with; None: accuracy where there is one, else exact match, else the task's first."""

    @property
    def kind(self) -> str:
        return "task"

    @property
    def is_file(self) -> bool:
        """True where `task` is the path of a task YAML."""
        return self.task.endswith(_TASK_SUFFIXES)


Entry = PerplexityEntry | TaskEntry


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """All entries, source first, then target, then the others, each in the order of the config."""

    entries: tuple[Entry, ...] = ()
    batch_size: int = 8
    """Questions per forward pass of tasks. Fixed, never "auto": results depend on it, and a comparison must not."""
    before: bool = True
    """Evaluates the bare starting model too, which comparisons need."""
    confidence: float = 0.95
    """Level of all intervals."""
    seed: int = 0
    """Of resampling, of the choice of few-shot examples, and of sampled generation."""

    @property
    def suites(self) -> tuple[str, ...]:
        """Names of the suites in order."""
        return tuple(dict.fromkeys(e.suite for e in self.entries))

    @property
    def tasks(self) -> dict[str, TaskEntry]:
        """The tasks by name, and by "suite/name" where two suites have one of the same name."""
        tasks = [e for e in self.entries if isinstance(e, TaskEntry)]
        names = [t.name for t in tasks]
        return {t.name if names.count(t.name) == 1 else f"{t.suite}/{t.name}": t for t in tasks}


# ------------------------------------------------------------------------------------------------ what a value may be


def _whole(minimum: int) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        good = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
        return None if good else f"a whole number of at least {minimum}"

    return check


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _word(value: Any) -> str | None:
    return None if isinstance(value, str) and value.strip() else "a text that is not empty"


def _fraction(value: Any) -> str | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1
    return None if good else "a number between 0 and 1"


def _template(value: Any) -> str | None:
    if not isinstance(value, str):
        return 'a text such as "Question: {question}"'
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(value) if field is not None]
    except ValueError as error:
        return f'a template such as "Question: {{question}}" (a brace that is text is written twice; {error})'
    if not fields or any(not field for field in fields):
        return 'a template that names columns, such as "Question: {question}"'
    return None


_PERPLEXITY_KEYS: dict[str, Callable[[Any], str | None]] = {
    "perplexity": _word,
    "name": _word,
    "split": _word,
    "config": _word,
    "window": _whole(2),
    "stride": _whole(1),
    "max_documents": _whole(1),
    "text": _template,
    "prompt": _template,
    "completion": _template,
}
_TASK_KEYS: dict[str, Callable[[Any], str | None]] = {
    "task": _word,
    "name": _word,
    "data": _word,
    "fewshot_data": _word,
    "num_fewshot": _whole(0),
    "limit": _whole(1),
    "apply_chat_template": _flag,
    "metric": _word,
}
_PLAN_KEYS: dict[str, Callable[[Any], str | None]] = {
    "batch_size": _whole(1),
    "before": _flag,
    "confidence": _fraction,
    "seed": _whole(0),
}


# ------------------------------------------------------------------------------------------------------------ parsing


def parse_evaluation(config: Any, *, base_dir: str | Path | None = None) -> tuple[EvaluationPlan, list[str]]:
    """Reads the value under `evaluation:`.

    Args:
        config: the mapping as YAML gives it; None is an empty plan.
        base_dir: folder that relative paths start from (the config file's); the working directory is tried second.

    Returns:
        The plan of all entries that are sound, and one sentence a problem. Nothing is raised: the caller collects the problems of
        its other sections first.
    """
    problems: list[str] = []
    if config is None:
        return EvaluationPlan(), problems
    if not isinstance(config, Mapping):
        return EvaluationPlan(), [f"evaluation: expected suites such as `source:` with a list of entries, got {_show(config)}."]
    base = Path(base_dir) if base_dir is not None else None
    settings: dict[str, Any] = {}
    suites: dict[str, list[Entry]] = {}
    for key, value in config.items():
        if key in _PLAN_KEYS:
            if wanted := _PLAN_KEYS[key](value):
                problems.append(f"evaluation.{key}: expected {wanted}, got {_show(value)}.")
            else:
                settings[key] = value
        elif isinstance(value, list):
            near = did_you_mean(str(key), _KNOWN_SUITES)
            if key not in _KNOWN_SUITES and near:
                problems.append(f"evaluation.{key}: unknown suite.{near} A suite of your own needs a name less like it.")
            suites[str(key)] = _parse_suite(str(key), value, base, problems)
        elif key in _KNOWN_SUITES:
            if value is not None:  # all entries commented out is no mistake
                problems.append(f"evaluation.{key}: expected a list of entries (lines that start with '- '), got {_show(value)}.")
        else:
            known = [*_KNOWN_SUITES, *_PLAN_KEYS]
            problems.append(
                f"evaluation.{key}: unknown key.{did_you_mean(str(key), known)} Known: {', '.join(known)}, or a suite (a list of entries)."
            )
    order = [*(s for s in _KNOWN_SUITES if s in suites), *(s for s in suites if s not in _KNOWN_SUITES)]
    return EvaluationPlan(entries=tuple(e for s in order for e in suites[s]), **settings), problems


def _parse_suite(suite: str, values: Iterable[Any], base: Path | None, problems: list[str]) -> list[Entry]:
    entries: list[Entry] = []
    seen: dict[str, int] = {}
    for index, value in enumerate(values):
        where = f"evaluation.{suite}[{index}]"
        entry = _parse_entry(suite, where, value, base, problems)
        if entry is None:
            continue
        if entry.name in seen:
            problems.append(
                f"{where}: the name '{entry.name}' is taken by evaluation.{suite}[{seen[entry.name]}]. Give one of the two another `name:`."
            )
        seen.setdefault(entry.name, index)
        entries.append(entry)
    return entries


def _parse_entry(suite: str, where: str, value: Any, base: Path | None, problems: list[str]) -> Entry | None:
    if isinstance(value, str) and value.strip():
        value = {_kind_of_string(value, base): value}
    if not isinstance(value, Mapping):
        problems.append(f"{where}: expected a task name, a data file, or a mapping with `perplexity:` or `task:`, got {_show(value)}.")
        return None
    if ("perplexity" in value) == ("task" in value):
        both = "both" if "task" in value else "neither"
        near = "" if "task" in value else next((n for n in (did_you_mean(str(k), ("perplexity", "task")) for k in value) if n), "")
        problems.append(f"{where}: expected either `perplexity: <data file>` or `task: <task>`, got {both}.{near}")
        return None
    kind = "perplexity" if "perplexity" in value else "task"
    known = _PERPLEXITY_KEYS if kind == "perplexity" else _TASK_KEYS
    before = len(problems)
    for key, item in value.items():
        if key not in known:
            problems.append(f"{where}.{key}: unknown key.{did_you_mean(str(key), known)} Known for {kind} entries: {', '.join(known)}.")
        elif wanted := known[key](item):
            problems.append(f"{where}.{key}: expected {wanted}, got {_show(item)}.")
    sound = {k: v for k, v in value.items() if k in known and not known[k](v)}
    entry = _perplexity(suite, where, sound, base, problems) if kind == "perplexity" else _task(suite, where, sound, base, problems)
    return entry if len(problems) == before else None


def _perplexity(suite: str, where: str, value: dict[str, Any], base: Path | None, problems: list[str]) -> PerplexityEntry | None:
    if ("prompt" in value) != ("completion" in value):
        problems.append(f"{where}: `prompt` and `completion` go together: what is given, and what is scored. Add the other one, or use `text`.")
    if "text" in value and "prompt" in value:
        problems.append(f"{where}: `text` and `prompt` exclude each other: either the whole text is scored or only the completion.")
    if "window" in value and "stride" in value and value["stride"] >= value["window"]:
        problems.append(
            f"{where}.stride: expected less than the window ({value['window']}), got {value['stride']}; "
            "a token needs at least one before it in its window."
        )
    source = value.pop("perplexity", None)
    if source is None:
        return None
    data = _locate(source, base)
    if data is None:
        if not _HUB_ID.match(source) or _looks_like_path(source):
            problems.append(f"{where}.perplexity: {_missing(source, base)}")
            return None
        data = source
        if "split" not in value:
            problems.append(
                f"{where}: '{source}' is no local file, so it is read as a hub data set, which needs `split:` (for example `split: test`)."
            )
    return PerplexityEntry(suite=suite, data=data, name=value.pop("name", None) or _stem(source), **value)


def _task(suite: str, where: str, value: dict[str, Any], base: Path | None, problems: list[str]) -> TaskEntry | None:
    for key in ("data", "fewshot_data"):
        if key in value:
            path = _locate(value[key], base)
            if path is None:
                problems.append(f"{where}.{key}: {_missing(value[key], base)}")
            else:
                value[key] = path
    if "fewshot_data" in value and "data" not in value:
        problems.append(f"{where}.fewshot_data: only used together with `data`; without it the task brings its own examples.")
    task = value.pop("task", None)
    if task is None:
        return None
    name = value.pop("name", None) or (_stem(task) if task.endswith(_TASK_SUFFIXES) else task)
    if task.endswith(_TASK_SUFFIXES):
        path = _locate(task, base)
        if path is None:
            problems.append(f"{where}.task: {_missing(task, base)}")
            return None
        task = path
    elif _is_data_name(task):
        problems.append(
            f"{where}.task: expected the name of a task or a task YAML, got the data file '{task}'. Write `perplexity: {task}` to score its text."
        )
    return TaskEntry(suite=suite, name=name, task=task, **value)


# -------------------------------------------------------------------------------------------------------------- paths


def _kind_of_string(value: str, base: Path | None) -> str:
    """A bare string is a data file where it is named like one or is one, and a task otherwise."""
    if value.endswith(_TASK_SUFFIXES):
        return "task"
    return "perplexity" if _is_data_name(value) or _locate(value, base) is not None else "task"


def _is_data_name(value: str) -> bool:
    return kind_of(Path(value)) is not None


def _looks_like_path(value: str) -> bool:
    return _is_data_name(value) or value.startswith((".", "~", "/"))


def _candidates(value: str, base: Path | None) -> list[Path]:
    path = Path(value).expanduser()
    if path.is_absolute() or base is None:
        return [path]
    return list(dict.fromkeys([base / path, path]))


def _locate(value: str, base: Path | None) -> str | None:
    for path in _candidates(value, base):
        if path.exists():
            return str(path.resolve())
    return None


def _missing(value: str, base: Path | None) -> str:
    looked = " and ".join(str(p.absolute()) for p in _candidates(value, base))
    folder = _candidates(value, base)[0].parent
    near = did_you_mean(Path(value).name, (p.name for p in folder.iterdir())) if folder.is_dir() else ""
    hub = "" if _looks_like_path(value) or value.endswith(_TASK_SUFFIXES) else " A hub data set is written owner/name."
    return f"no such file or folder '{value}' (looked for {looked}).{near}{hub}"


def _stem(value: str) -> str:
    name = Path(value).name
    for suffix in (*COMPRESSIONS, *KINDS, *_TASK_SUFFIXES):  # the compression is the outer one
        name = name.removesuffix(suffix)
    return name or value


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
