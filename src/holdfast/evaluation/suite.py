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
    - answers: mmlu             # the distribution at the answer position: mass on the options, entropy, calibration
      data: mmlu.jsonl
  target:                       # what is learnt
    - perplexity: answers.jsonl
      prompt: "Question: {question}\\nAnswer:"
      completion: " {answer}"
    - memorisation: answers.jsonl   # how many of its tokens the model would have said itself
    - classes: reviews.jsonl    # the class whose name is the likeliest
      prompt: "{text}\\nThis review is"
      options: [" negative", " positive"]
    - choices: questions.jsonl  # rows with a prompt, options and the right one's index
    - instructions: ifeval.jsonl  # prompts whose replies a program checks, as IFEval's
      apply_chat_template: true
  averages:
    knowledge: [arc_easy, arc_local/acc_norm]
  suites: [instruction_residual]  # what comes with holdfast, or a YAML file: its entries are added
  data: {mmlu: mmlu.jsonl}        # local files for tasks, wherever they come from
  batch_size: 8
  before: true
```

`source` and `target` are the suites that reports know; a list under any other name is a suite too. Nothing is loaded
here: no torch, no lm_eval, so a typing mistake costs a moment and not a model. Whether a task name exists and whether a
data file has the right columns is found out by `holdfast.evaluation.runner.check_plan`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.data.readers import COMPRESSIONS, KINDS, kind_of
from holdfast.errors import did_you_mean
from holdfast.evaluation.entries import (
    CODE_FAMILIES,
    TASK_SUFFIXES,
    Average,
    ChoicesEntry,
    ClassesEntry,
    Entry,
    EvaluationPlan,
    InstructionsEntry,
    PerplexityEntry,
    TaskEntry,
)

_HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
_KNOWN_SUITES = ("source", "target")
_KINDS = ("perplexity", "task", "answers", "memorisation", "classes", "choices", "instructions")
"""The key that says what an entry is."""


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


def _positive(value: Any) -> str | None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 100
    return None if good else "a number above 0"


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


def _texts(value: Any) -> str | None:
    if isinstance(value, Mapping):
        good = len(value) > 1 and all(isinstance(text, str) and text for text in value.values())
    else:
        good = isinstance(value, list) and len(value) > 1 and all(isinstance(text, str) and text for text in value)
    return None if good else 'at least two texts such as [" negative", " positive"], or label: text'


_TEXT_KEYS: dict[str, Callable[[Any], str | None]] = {
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
_CLASSES_KEYS: dict[str, Callable[[Any], str | None]] = {
    "name": _word,
    "split": _word,
    "config": _word,
    "max_documents": _whole(1),
    "prompt": _template,
    "options": _texts,
    "label": _word,
}
_CHOICES_KEYS: dict[str, Callable[[Any], str | None]] = {
    "name": _word,
    "split": _word,
    "config": _word,
    "max_documents": _whole(1),
    "length_normalised": _flag,
    "apply_chat_template": _flag,
    "group": _word,
}
_INSTRUCTIONS_KEYS: dict[str, Callable[[Any], str | None]] = {
    "name": _word,
    "split": _word,
    "config": _word,
    "max_documents": _whole(1),
    "max_new_tokens": _whole(1),
    "apply_chat_template": _flag,
}
_TASK_KEYS: dict[str, Callable[[Any], str | None]] = {
    "name": _word,
    "data": _word,
    "fewshot_data": _word,
    "num_fewshot": _whole(0),
    "limit": _whole(1),
    "apply_chat_template": _flag,
    "metric": _word,
    "samples": _whole(1),
    "temperature": _positive,
}
_KEYS = {
    "perplexity": {"perplexity": _word, **_TEXT_KEYS},
    "memorisation": {"memorisation": _word, **_TEXT_KEYS},
    "classes": {"classes": _word, **_CLASSES_KEYS},
    "choices": {"choices": _word, **_CHOICES_KEYS},
    "instructions": {"instructions": _word, **_INSTRUCTIONS_KEYS},
    "task": {"task": _word, **_TASK_KEYS},
    "answers": {
        "answers": _word,
        **{k: v for k, v in _TASK_KEYS.items() if k not in ("metric", "samples", "temperature")},
    },
}
_PLAN_KEYS: dict[str, Callable[[Any], str | None]] = {
    "batch_size": _whole(1),
    "before": _flag,
    "confidence": _fraction,
    "seed": _whole(0),
    "allow_code_execution": _flag,
    "description": _word,
}


# ------------------------------------------------------------------------------------------------------------ parsing


def parse_evaluation(config: Any, *, base_dir: str | Path | None = None) -> tuple[EvaluationPlan, list[str]]:
    """Reads the value under `evaluation:`.

    Args:
        config: the mapping as YAML gives it; None is an empty plan.
        base_dir: folder that relative paths start from (the config file's); the working directory is tried second.

    Returns:
        The plan of all entries that are sound, and one sentence a problem. Nothing is raised: the caller collects the
        problems of its other sections first.
    """
    problems: list[str] = []
    if config is None:
        return EvaluationPlan(), problems
    if not isinstance(config, Mapping):
        return EvaluationPlan(), [
            f"evaluation: expected suites such as `source:` with a list of entries, got {_show(config)}."
        ]
    base = Path(base_dir) if base_dir is not None else None
    config, overrides = _with_suites(config, base, problems)
    settings: dict[str, Any] = {}
    suites: dict[str, list[Entry]] = {}
    for key, value in config.items():
        if key in _PLAN_KEYS:
            if wanted := _PLAN_KEYS[key](value):
                problems.append(f"evaluation.{key}: expected {wanted}, got {_show(value)}.")
            elif key != "description":
                settings[key] = value
        elif key == "averages":
            continue
        elif isinstance(value, list):
            near = did_you_mean(str(key), _KNOWN_SUITES)
            if key not in _KNOWN_SUITES and near:
                problems.append(
                    f"evaluation.{key}: unknown suite.{near} A suite of your own needs a name less like it."
                )
            suites[str(key)] = _parse_suite(str(key), value, base, problems)
        elif key in _KNOWN_SUITES:
            if value is not None:  # all entries commented out is no mistake
                problems.append(
                    f"evaluation.{key}: expected a list of entries (lines that start with '- '), got {_show(value)}."
                )
        else:
            known = [*_KNOWN_SUITES, *_PLAN_KEYS, "averages", "suites", *_OVERRIDES]
            problems.append(
                f"evaluation.{key}: unknown key.{did_you_mean(str(key), known)} Known: {', '.join(known)}, or a suite "
                f"(a list of entries)."
            )
    order = [*(s for s in _KNOWN_SUITES if s in suites), *(s for s in suites if s not in _KNOWN_SUITES)]
    entries = tuple(e for s in order for e in suites[s])
    averages = _parse_averages(config.get("averages"), entries, problems)
    plan = EvaluationPlan(entries=entries, averages=averages, **settings)
    if overrides:
        from holdfast.evaluation.shipped import changed

        plan, found = changed(plan, **overrides)
        problems += [f"evaluation.{p.removeprefix('--')}" for p in found]
    problems += [
        f"evaluation.{e.suite}: '{e.name}' runs programs that the model writes. Say `allow_code_execution: true` to "
        f"run them in the sandbox, "
        "or take it out (`skip`)."
        for e in plan.entries
        if e.kind == "code" and not plan.allow_code_execution
    ]
    return plan, problems


_OVERRIDES = ("data", "fewshot_data", "limit", "skip")
"""Keys that change entries wherever they come from."""


def _with_suites(
    config: Mapping[Any, Any], base: Path | None, problems: list[str]
) -> tuple[dict[Any, Any], dict[str, Any]]:
    """The mapping with the entries of its `suites` added, and what `_OVERRIDES` say."""
    merged = {key: value for key, value in config.items() if key not in ("suites", *_OVERRIDES)}
    names = config.get("suites")
    names = [names] if isinstance(names, str) else names
    if names is not None and not (isinstance(names, list) and all(isinstance(n, str) and n for n in names)):
        problems.append(f"evaluation.suites: expected names such as [knowledge], got {_show(names)}.")
    elif names:
        from holdfast.evaluation.shipped import read_suites

        added, found = read_suites([_locate(n, base) or n if n.endswith(TASK_SUFFIXES) else n for n in names])
        problems += [f"evaluation.suites: {p.removeprefix('--suite: ')}" for p in found]
        for key, value in added.items():
            present = merged.get(key)
            if isinstance(value, list) and isinstance(present, list):
                merged[key] = [*present, *(entry for entry in value if entry not in present)]
            elif isinstance(value, Mapping) and isinstance(present, Mapping):
                merged[key] = {**value, **present}
            else:
                merged.setdefault(key, value)
    overrides: dict[str, Any] = {}
    for key in ("data", "fewshot_data"):
        value = config.get(key)
        if value is None:
            continue
        if not isinstance(value, Mapping) or not all(isinstance(file, str) and file for file in value.values()):
            problems.append(
                f"evaluation.{key}: expected a file for each task, as in {{arc_easy: ARC-Easy.jsonl}}, got "
                f"{_show(value)}."
            )
            continue
        for task, file in value.items():
            place = _locate(file, base)
            if place is None:
                problems.append(f"evaluation.{key}.{task}: {_missing(file, base)}")
            else:
                overrides.setdefault(key, {})[str(task)] = place
    if (limit := config.get("limit")) is not None:
        if wanted := _whole(1)(limit):
            problems.append(f"evaluation.limit: expected {wanted}, got {_show(limit)}.")
        else:
            overrides["limit"] = limit
    if (skip := config.get("skip")) is not None:
        skip = [skip] if isinstance(skip, str) else skip
        if not isinstance(skip, list) or not all(isinstance(name, str) for name in skip):
            problems.append(f"evaluation.skip: expected names of entries, got {_show(skip)}.")
        else:
            overrides["skip"] = skip
    return merged, overrides


def _parse_averages(value: Any, entries: Sequence[Entry], problems: list[str]) -> tuple[Average, ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping) or not all(isinstance(members, list) and members for members in value.values()):
        problems.append(
            f"evaluation.averages: expected a name and a list of entries for each, as in `knowledge: [mmlu, "
            f"arc_easy]`, got {_show(value)}."
        )
        return ()
    averages = []
    for name, members in value.items():
        found = [_member(str(member), entries) for member in members]
        for member, hit in zip(members, found, strict=True):
            if hit is None:
                near = did_you_mean(str(member).split("/")[0], [e.name for e in entries])
                problems.append(
                    f"evaluation.averages.{name}: expected an entry, entry/metric or suite/entry/metric of this plan, "
                    f"got {_show(member)}.{near}"
                )
        averages.append(Average(name=str(name), members=tuple(hit for hit in found if hit is not None)))
    return tuple(averages)


def _member(text: str, entries: Sequence[Entry]) -> tuple[str, str, str | None] | None:
    """(suite, entry, metric) of "entry", "entry/metric", "suite/entry" or "suite/entry/metric"; of several entries of
    one name the first."""
    for entry in entries:
        for known in (entry.name, f"{entry.suite}/{entry.name}"):
            if text == known:
                return entry.suite, entry.name, None
            if text.startswith(f"{known}/"):
                return entry.suite, entry.name, text[len(known) + 1 :]
    return None


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
                f"{where}: the name '{entry.name}' is taken by evaluation.{suite}[{seen[entry.name]}]. Give one of "
                f"the two another `name:`."
            )
        seen.setdefault(entry.name, index)
        entries.append(entry)
    return entries


def _parse_entry(suite: str, where: str, value: Any, base: Path | None, problems: list[str]) -> Entry | None:
    if isinstance(value, str) and value.strip():
        value = {_kind_of_string(value, base): value}
    if not isinstance(value, Mapping):
        problems.append(
            f"{where}: expected a task name, a data file, or a mapping with `perplexity:`, `task:` or another of the "
            f"kinds, got {_show(value)}."
        )
        return None
    given = [kind for kind in _KINDS if kind in value]
    if len(given) != 1:
        near = "" if given else next((n for n in (did_you_mean(str(k), _KINDS) for k in value) if n), "")
        problems.append(
            f"{where}: expected one of `perplexity: <data file>`, `task: <task>`, `answers: <task>`, `memorisation: "
            f"<data file>`, "
            f"`classes: <data file>`, `choices: <data file>` and `instructions: <data file>`, got "
            f"{' and '.join(given) or 'none of them'}.{near}"
        )
        return None
    kind = given[0]
    known = _KEYS[kind]
    before = len(problems)
    for key, item in value.items():
        if key not in known:
            problems.append(
                f"{where}.{key}: unknown key.{did_you_mean(str(key), known)} Known for {kind} entries: "
                f"{', '.join(known)}."
            )
        elif wanted := known[key](item):
            problems.append(f"{where}.{key}: expected {wanted}, got {_show(item)}.")
    sound = {k: v for k, v in value.items() if k in known and not known[k](v)}
    entry: Entry | None
    if kind in ("perplexity", "memorisation"):
        entry = _perplexity(suite, where, sound, base, problems, kind)
    elif kind == "classes":
        entry = _classes(suite, where, sound, base, problems)
    elif kind in ("choices", "instructions"):
        entry = _asked(suite, where, sound, base, problems, kind)
    else:
        entry = _task(suite, where, sound, base, problems, kind)
    return entry if len(problems) == before else None


def _perplexity(
    suite: str, where: str, value: dict[str, Any], base: Path | None, problems: list[str], kind: str
) -> PerplexityEntry | None:
    if ("prompt" in value) != ("completion" in value):
        problems.append(
            f"{where}: `prompt` and `completion` go together: what is given, and what is scored. Add the other one, "
            f"or use `text`."
        )
    if "text" in value and "prompt" in value:
        problems.append(
            f"{where}: `text` and `prompt` exclude each other: either the whole text is scored or only the completion."
        )
    if "window" in value and "stride" in value and value["stride"] >= value["window"]:
        problems.append(
            f"{where}.stride: expected less than the window ({value['window']}), got {value['stride']}; "
            "a token needs at least one before it in its window."
        )
    source = value.pop(kind, None)
    data = _data(source, where, kind, value, base, problems)
    if source is None or data is None:
        return None
    stem = _stem(source) if kind == "perplexity" else f"{_stem(source)}-{kind}"
    return PerplexityEntry(
        suite=suite, data=data, name=value.pop("name", None) or stem, memorisation=kind == "memorisation", **value
    )


def _classes(
    suite: str, where: str, value: dict[str, Any], base: Path | None, problems: list[str]
) -> ClassesEntry | None:
    missing = [key for key in ("prompt", "options") if key not in value]
    if missing:
        problems.append(
            f"{where}: `classes` needs {' and '.join(f'`{key}`' for key in missing)}, for example `prompt: "
            f'"{{text}}\\nThis review is"` and '
            '`options: [" negative", " positive"]`.'
        )
    source = value.pop("classes", None)
    data = _data(source, where, "classes", value, base, problems)
    if source is None or data is None or missing:
        return None
    options = value.pop("options")
    labels = tuple(str(label) for label in options) if isinstance(options, Mapping) else ()
    texts = tuple(options.values()) if isinstance(options, Mapping) else tuple(options)
    if len(set(texts)) < len(texts):
        problems.append(f"{where}.options: expected different texts, got {_show(options)}.")
    return ClassesEntry(
        suite=suite, data=data, name=value.pop("name", None) or _stem(source), options=texts, labels=labels, **value
    )


def _asked(
    suite: str, where: str, value: dict[str, Any], base: Path | None, problems: list[str], kind: str
) -> ChoicesEntry | InstructionsEntry | None:
    source = value.pop(kind, None)
    data = _data(source, where, kind, value, base, problems)
    if source is None or data is None:
        return None
    name = value.pop("name", None) or _stem(source)
    return (ChoicesEntry if kind == "choices" else InstructionsEntry)(suite=suite, data=data, name=name, **value)


def _data(
    source: str | None, where: str, key: str, value: Mapping[str, Any], base: Path | None, problems: list[str]
) -> str | None:
    """The place of a data file, or the hub id that it is taken for."""
    if source is None:
        return None
    data = _locate(source, base)
    if data is not None:
        return data
    if not _HUB_ID.match(source) or _looks_like_path(source):
        problems.append(f"{where}.{key}: {_missing(source, base)}")
        return None
    if "split" not in value:
        problems.append(
            f"{where}: '{source}' is no local file, so it is read as a hub data set, which needs `split:` (for "
            f"example `split: test`)."
        )
    return source


def _task(
    suite: str, where: str, value: dict[str, Any], base: Path | None, problems: list[str], kind: str
) -> TaskEntry | None:
    for key in ("data", "fewshot_data"):
        if key in value:
            path = _locate(value[key], base)
            if path is None:
                problems.append(f"{where}.{key}: {_missing(value[key], base)}")
            else:
                value[key] = path
    if "fewshot_data" in value and "data" not in value:
        problems.append(
            f"{where}.fewshot_data: only used together with `data`; without it the task brings its own examples."
        )
    task = value.pop(kind, None)
    if task is None:
        return None
    stem = _stem(task) if task.endswith(TASK_SUFFIXES) else task
    name = value.pop("name", None) or (stem if kind == "task" else f"{stem}-{kind}")
    for key in ("samples", "temperature"):
        if key in value and task not in CODE_FAMILIES:
            problems.append(f"{where}.{key}: only for tasks whose answers are programs ({', '.join(CODE_FAMILIES)}).")
    if task.endswith(TASK_SUFFIXES):
        path = _locate(task, base)
        if path is None:
            problems.append(f"{where}.{kind}: {_missing(task, base)}")
            return None
        task = path
    elif _is_data_name(task):
        problems.append(
            f"{where}.{kind}: expected the name of a task or a task YAML, got the data file '{task}'. Write "
            f"`perplexity: {task}` to score its text."
        )
    return TaskEntry(suite=suite, name=name, task=task, answers=kind == "answers", **value)


# -------------------------------------------------------------------------------------------------------------- paths


def _kind_of_string(value: str, base: Path | None) -> str:
    """A bare string is a data file where it is named like one or is one, and a task otherwise."""
    if value.endswith(TASK_SUFFIXES):
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
    hub = "" if _looks_like_path(value) or value.endswith(TASK_SUFFIXES) else " A hub data set is written owner/name."
    return f"no such file or folder '{value}' (looked for {looked}).{near}{hub}"


def _stem(value: str) -> str:
    name = Path(value).name
    for suffix in (*COMPRESSIONS, *KINDS, *TASK_SUFFIXES):  # the compression is the outer one
        name = name.removesuffix(suffix)
    return name or value


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
