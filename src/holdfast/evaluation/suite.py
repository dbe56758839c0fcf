"""What to measure: the `evaluation:` section of a config as values, with every mistake in it found
at once.

```yaml
evaluation:
  keep:                         # what must be kept
    - perplexity: prose.jsonl   # held-out text, or prompts with completions
      window: 2048
    - arc_easy                  # a built-in lm-evaluation-harness task, the path of a task YAML, or a data file
    - task: arc_easy
      name: arc_local
      data: arc.jsonl           # replaces the data set that the task would fetch from the hub
      num_fewshot: 0
      limit: 200
    - answer_distribution: mmlu             # the distribution at the answer position: mass on the options, entropy
      data: mmlu.jsonl
  learn:                        # what is learnt
    - perplexity: answers.jsonl
      prompt: "Question: {question}\\nAnswer:"
      completion: " {answer}"
    - memorisation: answers.jsonl   # how many of its tokens were the model's most likely ones
    - classification: reviews.jsonl    # the class whose name is the likeliest
      prompt: "{text}\\nThis review is"
      options: [" negative", " positive"]
    - multiple_choice: questions.jsonl  # rows with a prompt, options and the right one's index
    - multiple_choice_letters: questions.jsonl # the same asked with a letter for each option
      name: questions-lettered
    - instructions: asked.jsonl   # prompts whose replies a program checks, as IFEval's
      apply_chat_template: true
    - behaviour: shipped          # ends of turns, JSON, tool calls, language, refusals, length
    - win_rate: prompts.jsonl     # how often a judge prefers the replies to those of the start
      judge_model: Llama-3-70B-Instruct
      base_url: http://localhost:8000/v1
    - my_entry.py:Toxicity: {threshold: 0.5}   # a class of the user's own
  averages:
    knowledge: [arc_easy, arc_local/acc_norm]
  suites: [instruction_residual]  # what comes with holdfast, or a YAML file: its entries are added
  data: {mmlu: mmlu.jsonl}        # local files for tasks, wherever they come from
  batch_size: 8
  before: true
  along: {steps: [1, 2, 5], every: 50, entries: [keep]}   # while it is trained, too
```

`keep` and `learn` are the suites that reports know; a list under any other name is a suite too.
What an entry may say is declared by its class in `holdfast.evaluation.kinds`. Nothing is loaded
here: no torch, no lm_eval, so a typing mistake costs a moment and not a model. Whether a task name
exists and whether a data file has the right columns is found out by
`holdfast.evaluation.runner.check_plan`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.config.declare import Meta, Setting, settings_of
from holdfast.config.decode import coerce_all, decode, missing, problems_of
from holdfast.config.schema import DRAFT, object_schema
from holdfast.config.synonyms import did_you_mean_key
from holdfast.config.values import show
from holdfast.data.readers import COMPRESSIONS, kind_of
from holdfast.data.readers import KINDS as FILE_KINDS
from holdfast.errors import ConfigError, Problem, did_you_mean
from holdfast.evaluation.entries import (
    TASK_SUFFIXES,
    Average,
    Entry,
    EvaluationPlan,
    OwnMeasure,
    PlanSettings,
    names_of,
)
from holdfast.evaluation.former_names import current_section
from holdfast.evaluation.kinds import KINDS
from holdfast.evaluation.kinds.code import CodeEntry
from holdfast.evaluation.kinds.own import OwnEntry
from holdfast.evaluation.kinds.task import CODE_FAMILIES
from holdfast.evaluation.shipped import changed, locate, looks_like_path, no_such_file, read_suites
from holdfast.support.own_code import is_reference, load_class

_HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
_KNOWN_SUITES = ("keep", "learn")
KEYS = tuple(name for name, kind in KINDS.items() if kind.written)
"""The keys that say what an entry is."""
FILE_SUFFIXES = (*COMPRESSIONS, *FILE_KINDS, *TASK_SUFFIXES)


@dataclass(frozen=True, kw_only=True)
class SuiteSettings(PlanSettings):
    """What an `evaluation:` section or a suite file holds beside its suites."""

    description: str = ""
    """One line on what the suite file measures."""
    averages: Annotated[
        dict[str, Annotated[tuple[str, ...], Meta(least=1)]],
        Meta(expected="a name and a list of entries for each, as in `knowledge: [mmlu, arc_easy]`"),
    ] = dataclasses.field(default_factory=dict)
    """Averages by name: unweighted means of several metrics. Members are written entry,
    entry/metric or suite/entry/metric."""
    suites: Annotated[tuple[str, ...], Meta(expected="names such as [knowledge]")] = ()
    """Names of shipped suites, or YAML files. Their entries are added to those of the section."""
    data: Annotated[
        dict[str, str], Meta(expected="a file for each task, as in {arc_easy: ARC-Easy.jsonl}")
    ] = dataclasses.field(default_factory=dict)
    """For a task or entry, a local file that replaces its data set."""
    fewshot_data: Annotated[
        dict[str, str], Meta(expected="a file for each task, as in {arc_easy: ARC-Easy.jsonl}")
    ] = dataclasses.field(default_factory=dict)
    """For a task or entry, a local file with the few-shot examples."""
    limit: Annotated[int | None, Meta(ge=1)] = None
    """Only the first N questions of every task, and the first N documents of every text."""
    skip: Annotated[tuple[str, ...], Meta(expected="names of entries")] = ()
    """Entries to leave out. Averages that need them are left out, too."""


# ------------------------------------------------------------------------------------------ parsing


def parse_evaluation(config: Any) -> tuple[EvaluationPlan, list[Problem]]:
    """Reads the value under `evaluation:` of a configuration. It takes the mapping as YAML gives
    it; None is an empty plan. Relative paths start at the working directory.

    Returns:
        The plan of all valid entries, and the problems, one sentence each. It raises no error, so
            that the caller can collect the problems of other sections first.
    """
    plan, problems = decode_evaluation(config)
    return plan, [problem.below("evaluation") for problem in problems]


def decode_evaluation(config: Any) -> tuple[EvaluationPlan, list[Problem]]:
    """`parse_evaluation` with mistakes whose paths start below `evaluation`."""
    if config is None:
        return EvaluationPlan(), []
    if not isinstance(config, Mapping):
        text = f"expected suites such as `keep:` with a list of entries, got {show(config)}."
        return EvaluationPlan(), [Problem((), text)]
    merged, problems = _with_suites(current_section(config))
    known = {setting.name: setting for setting in settings_of(SuiteSettings)}
    settings, wrong = coerce_all(
        known, {key: value for key, value in merged.items() if key in known}
    )
    problems += wrong
    entries: list[Entry] = []
    for suite in sorted(merged, key=lambda key: [*_KNOWN_SUITES, key].index(key)):
        if suite not in known:
            entries += _suite(suite, merged[suite], known, problems)
    of_plan = {}
    for setting in settings_of(PlanSettings):
        if setting.name in settings:
            of_plan[setting.name] = settings[setting.name]
    averages = _averages(settings.get("averages", {}), entries, problems)
    plan = EvaluationPlan(entries=tuple(entries), averages=averages, **of_plan)
    plan, wrong = changed(
        plan,
        data=settings.get("data"),
        fewshot_data=settings.get("fewshot_data"),
        skip=settings.get("skip", ()),
        limit=settings.get("limit"),
    )
    return plan, [*problems, *wrong, *_plan_problems(plan), *_along_problems(plan)]


def _with_suites(config: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The mapping with what its `suites` hold added; its own settings win."""
    [setting] = [setting for setting in settings_of(SuiteSettings) if setting.name == "suites"]
    values, mistakes = coerce_all({"suites": setting}, {"suites": config.pop("suites", None)})
    if not values.get("suites"):
        return config, mistakes
    files = []
    for name in values["suites"]:
        files.append((locate(name) or name) if name.endswith(TASK_SUFFIXES) else name)
    decided = []
    for key, value in config.items():
        decided += [f"{key}.{title}" for title in value] if isinstance(value, Mapping) else [key]
    merged, problems = read_suites(files, config, decided=decided)
    return merged, [*mistakes, *(Problem("suites", text) for text in problems)]


def _suite(
    suite: str, value: Any, settings: Mapping[str, Any], problems: list[Problem]
) -> list[Entry]:
    """The entries of one key of the section that is no setting."""
    text = ""
    if isinstance(value, list):
        near = did_you_mean(suite, _KNOWN_SUITES) if suite not in _KNOWN_SUITES else ""
        if near:
            text = (
                f"unknown suite.{near} For your own suite choose a name less similar to the "
                "suggested one."
            )
            problems.append(Problem(suite, text))
        return _entries(suite, value, problems)
    if suite not in _KNOWN_SUITES:
        keys = [*_KNOWN_SUITES, *settings]
        text = (
            f"unknown key.{did_you_mean(suite, keys)} Known: {', '.join(keys)}, or a suite (a list "
            "of entries)."
        )
    elif value is not None:  # all entries commented out is no mistake
        text = f"expected a list of entries (lines that start with '- '), got {show(value)}."
    if text:
        problems.append(Problem(suite, text))
    return []


def _plan_problems(plan: EvaluationPlan) -> list[Problem]:
    """Entries that the plan's settings leave no room for."""
    problems = []
    for entry in plan.entries:
        if entry.against_start and not plan.before:
            text = (
                f"'{entry.name}' is compared with the initial model's replies, but `before: false` "
                "skips the initial model. Leave `before` out, or give a file of replies as its "
                "`reference`."
            )
            problems.append(Problem(entry.suite, text))
        if entry.runs_code and not plan.allow_code_execution:
            text = (
                f"'{entry.name}' runs programs that the model writes. Set `allow_code_execution: "
                "true` (--allow_code_execution) to run them in the sandbox, or take the entry out "
                "(`skip`)."
            )
            problems.append(Problem(entry.suite, text))
    return problems


def _along_problems(plan: EvaluationPlan) -> list[Problem]:
    """What is measured along training is part of the plan, and has a beginning."""
    if plan.along is None:
        return []
    known: list[str] = []
    for entry in plan.entries:
        known += names_of(entry)
    problems = []
    for number, name in enumerate(plan.along.entries):
        if name not in known:
            text = (
                "expected an entry or a suite of this plan, got "
                f"{show(name)}.{did_you_mean(name, known)}"
            )
            problems.append(Problem(("along", "entries", number), text))
    if not plan.entries:
        text = "there is nothing to measure. Add entries, or leave this section out."
        problems.append(Problem("along", text))
    if not plan.before:
        text = (
            "begins with the initial model, but `before: false` skips it. Leave one of the two out."
        )
        problems.append(Problem("along", text))
    return problems


def _averages(
    averages: Mapping[str, tuple[str, ...]], entries: Sequence[Entry], problems: list[Problem]
) -> tuple[Average, ...]:
    values = []
    for name, texts in averages.items():
        members = []
        for number, text in enumerate(texts):
            member = _member(text, entries)
            if member is not None:
                members.append(member)
                continue
            near = did_you_mean(text.split("/")[0], [entry.name for entry in entries])
            problem = (
                "expected an entry, entry/metric or suite/entry/metric of this plan, got "
                f"{show(text)}.{near}"
            )
            problems.append(Problem(("averages", name, number), problem))
        values.append(Average(name=name, members=tuple(members)))
    return tuple(values)


def _member(text: str, entries: Sequence[Entry]) -> tuple[str, str, str | None] | None:
    """(suite, entry, metric) of "entry", "entry/metric", "suite/entry" or "suite/entry/metric"; of
    several entries of one name the first."""
    for entry in entries:
        for name in (entry.name, entry.path):
            if text == name:
                return entry.suite, entry.name, None
            if text.startswith(f"{name}/"):
                return entry.suite, entry.name, text[len(name) + 1 :]
    return None


# ------------------------------------------------------------------------------------------ entries


@functools.cache
def settings_of_kind(name: str) -> dict[str, Setting]:
    """The keys that an entry of a kind may have, the kind's own first."""
    kind = KINDS[name]
    settings = {}
    for setting in settings_of(kind):
        if setting.meta.yaml and setting.name not in kind.without:
            settings[setting.name] = setting
    source = dataclasses.replace(settings.pop(kind.source), name=name)
    name_setting = dataclasses.replace(settings.pop("name"), default=None, optional=True)
    return {name: source, "name": name_setting, **settings}


def _entries(suite: str, values: list[Any], mistakes: list[Problem]) -> list[Entry]:
    entries: list[Entry] = []
    numbers: dict[str, int] = {}
    for number, value in enumerate(values):
        entry, problems = _entry(suite, value)
        if entry is not None and entry.name in numbers:
            text = (
                f"the name '{entry.name}' is used by evaluation.{suite}[{numbers[entry.name]}]. "
                "Give one of the two another `name:`, or measure their suites one after the "
                "other."
            )
            problems = [Problem((), text)]
        for problem in problems:
            mistakes.append(problem.below(suite, number))
        if entry is not None:
            numbers.setdefault(entry.name, number)
            entries.append(entry)
    return entries


def _entry(suite: str, value: Any) -> tuple[Entry | None, list[Problem]]:
    """The entry, None where there is a mistake."""
    if isinstance(value, str) and value.strip() and value.isprintable():
        value = {value: None} if is_reference(value) else {_kind_of_string(value): value}
    if not isinstance(value, Mapping):
        text = (
            "expected a task name, a data file, or a mapping with `perplexity:`, `task:` or "
            f"another of the kinds, got {show(value)}."
        )
        return None, [Problem((), text)]
    keys = [key for key in value if key in KEYS or is_reference(key)]
    if len(keys) != 1:
        return None, [Problem((), _not_one_kind(value, keys))]
    [key] = keys
    if is_reference(key):
        return _own(suite, key, value)
    kind = KINDS[key]
    source, fields, problems = _source_and_fields(key, value)
    if source is None or problems:
        return None, problems
    is_file = kind.source == "data" or source.endswith(TASK_SUFFIXES)
    usual_name = (_stem(source) if is_file else source) + kind.name_suffix
    name = fields.pop("name", None) or (key if source == kind.shipped else usual_name)
    options = fields.get("options")
    if isinstance(options, Mapping):
        fields |= {"options": tuple(options.values()), "labels": tuple(map(str, options))}
    if key == "task" and source in CODE_FAMILIES:
        kind = CodeEntry
    entry = kind(suite=suite, name=name, **fields)
    problems = problems_of(entry)
    return (None, problems) if problems else (entry, [])


def _source_and_fields(
    key: str, value: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any], list[Problem]]:
    """(what the key of an entry's kind names, the entry's fields with its files as paths, what is
    wrong with them)."""
    kind, known = KINDS[key], settings_of_kind(key)
    fields, problems = coerce_all(known, value)
    if not problems:
        for setting in known.values():
            if setting.required and setting.name not in fields:
                problems.append(missing(setting))
    source = fields.pop(key, None)
    if source is None:
        return None, fields, problems
    fields[kind.source] = _source(source, key, "split" in fields, problems)
    for name in kind.file_settings:
        if fields.get(name) is not None:
            fields[name] = _file(fields[name], name, problems)
    return source, fields, problems


def _not_one_kind(value: Mapping[Any, Any], keys: Sequence[str]) -> str:
    kinds = []
    for name in KEYS:
        kinds.append(f"`{name}: <{'task' if KINDS[name].source == 'task' else 'data file'}>`")
    text = (
        f"expected one of {', '.join(kinds)} and `<file.py>:<Class>`, got "
        f"{' and '.join(keys) or 'none of them'}."
    )
    for key in value if not keys else ():
        if near := did_you_mean_key(str(key), KEYS):
            return text + near
    return text


def _own(
    suite: str, reference: str, value: Mapping[str, Any]
) -> tuple[OwnEntry | None, list[Problem]]:
    """An entry of a user's own class."""
    settings = {
        setting.name: setting for setting in settings_of(OwnEntry) if setting.name == "name"
    }
    fields, mistakes = coerce_all(
        settings, {k: v for k, v in value.items() if k != reference}, also=[reference]
    )
    file, _, name = reference.rpartition(":")
    own_settings = value[reference] or {}
    try:
        cls = load_class(
            f"{locate(file) or file}:{name}", base=OwnMeasure, group="holdfast.entries"
        )
        if cls is None or not (
            dataclasses.is_dataclass(cls) and cls.metrics and cls.measure is not OwnMeasure.measure
        ):
            expected = (
                "a dataclass with a method `measure` and a dictionary `metrics`, as in `metrics = "
                "{'letters': True}`"
            )
            raise ConfigError(f"expected {expected}, got {reference}")
        if not isinstance(own_settings, Mapping):
            raise ConfigError(f"expected a mapping of its settings, got {show(own_settings)}")
    except ConfigError as error:
        for problem in error.problems:
            mistakes.append(Problem(reference, f"{problem.rstrip('.')}."))
        return None, mistakes
    measure, wrong = decode(cls, own_settings)
    for mistake in wrong:
        mistakes.append(mistake.below(reference))
    if mistakes or measure is None:
        return None, mistakes
    return OwnEntry(
        suite=suite, name=fields.get("name") or name, own=measure, file=inspect.getfile(cls)
    ), []


# -------------------------------------------------------------------------------------------- paths


def _source(source: str, key: str, has_split: bool, problems: list[Problem]) -> str:
    """What an entry's own key names: the place of a file, the hub id or the task that it is taken
    for."""
    if source == KINDS[key].shipped:
        return source
    path = locate(source)
    if KINDS[key].source == "task":
        if source.endswith(TASK_SUFFIXES):
            return _file(source, key, problems)
        if kind_of(Path(source)) is not None:
            text = (
                f"expected the name of a task or a task YAML, got the data file '{source}'. Write "
                f"`perplexity: {source}` to score its text."
            )
            problems.append(Problem(key, text))
        return source
    if path is not None:
        return path
    is_hub_id = _HUB_ID.match(source) and not looks_like_path(source)
    if not is_hub_id or "split" not in settings_of_kind(key):
        problems.append(Problem(key, no_such_file(source)))
    elif not has_split:
        text = (
            f"'{source}' is no local file, so it is read as a hub data set, which needs `split:` "
            "(for example `split: test`)."
        )
        problems.append(Problem((), text))
    return source


def _file(value: str, key: str, problems: list[Problem]) -> str:
    path = locate(value)
    if path is None:
        problems.append(Problem(key, no_such_file(value)))
    return path or value


def _kind_of_string(value: str) -> str:
    """A bare string is a data file where it is named like one or is one, and a task otherwise."""
    if value.endswith(TASK_SUFFIXES):
        return "task"
    return "perplexity" if kind_of(Path(value)) is not None or locate(value) is not None else "task"


def _stem(value: str) -> str:
    name = Path(value).name
    for suffix in FILE_SUFFIXES:  # the compression is the outer one
        name = name.removesuffix(suffix)
    return name or value


# ------------------------------------------------------------------------------------------- schema


def suite_schema() -> dict[str, Any]:
    """JSON Schema of a suite file: the section's keys, or a configuration with them below
    `evaluation`."""
    kinds = {}
    for key in KEYS:
        description = " ".join((KINDS[key].__doc__ or "").split())
        kinds[f"{key}_entry"] = {
            "title": f"{key} entry",
            "description": description,
            **object_schema(settings_of_kind(key).values()),
        }
    kinds["own_entry"] = {
        "type": "object",
        "description": "An entry of your own class, with its settings.",
        "properties": {"name": {"type": "string"}},
        "patternProperties": {r"^.+:[A-Za-z_]\w*$": {"type": ["object", "null"]}},
        "additionalProperties": False,
    }
    items: list[dict[str, str]] = [{"type": "string"}]
    items += [{"$ref": f"#/$defs/{name}"} for name in kinds]
    entries: dict[str, Any] = {"type": "array", "items": {"anyOf": items}}
    section, reference = object_schema(settings_of(SuiteSettings)), {"$ref": "#/$defs/section"}
    for name, what in (("keep", "What must be kept."), ("learn", "What is learnt.")):
        section["properties"][name] = {"anyOf": [entries, {"type": "null"}], "description": what}
    section["additionalProperties"] = entries
    return {
        "$schema": DRAFT,
        "title": "holdfast suite",
        "description": "What to measure: `holdfast evaluate --suite FILE.yaml`, and `evaluation:` of `holdfast train`.",
        "anyOf": [
            reference,
            {"type": "object", "properties": {"evaluation": reference}, "required": ["evaluation"]},
        ],
        "$defs": {"section": section, **kinds},
    }
