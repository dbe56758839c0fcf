"""From a `TaskEntry` to lm-evaluation-harness task objects: finding a task, and giving it local
data.

Built-in tasks, groups and tags are found in the harness's own index, which is kept on disk; a local
task YAML needs none.

A task is redirected to a local file by changing where its rows come from and nothing else: prompts,
choices, targets, filters and metrics stay the task's own, so a figure on the same rows is the
figure of the hub data set. Without the hub this is how a built-in task runs:

- the file's rows are the questions; few-shot examples come from `fewshot_data`, or else from the
  same file, where the harness leaves out the question asked;
- the columns must be the ones that the task reads; missing ones are named;
- a group (MMLU) is redirected by one file with a column (`subject`) that names the data set of each
  row's task, as hub exports have;
- files in other published forms are converted (`data_forms`).

Benchmarks that the harness lacks (QuALITY, CaseHOLD, ...) are task YAMLs of our own in
`benchmarks/`, found like built-in ones.

Tasks that run generated code are refused, here and by the harness; HumanEval and MBPP are in
`programs`.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, DataError, StorageError, UserError, first_line
from holdfast.evaluation.tasks.data_forms import convert, require_columns
from holdfast.evaluation.text.sentences import fix_language_detection, provide_sentence_model
from holdfast.support.cache import cache_folder
from holdfast.support.files import fingerprint, read_object, write_json

if TYPE_CHECKING:
    from holdfast.evaluation.kinds.task import TaskEntry

Config = dict[str, Any]
"""Of a task, as the harness reads it."""
Tasks = dict[str, Any]
"""The harness's task objects by name."""

_TEMPLATES = ("doc_to_text", "doc_to_target", "doc_to_choice")


# ------------------------------------------------------------------------------------------ finding


@functools.cache
def index() -> dict[str, str | list[str]]:
    """The harness's file of every task and group by name, and the names of each tag's tasks. The
    harness looks through all of its files for it, which takes several seconds, so it is kept in the
    cache folder for the next process."""
    # found without importing it, which takes a second
    harness = importlib.util.find_spec("lm_eval")
    if harness is None or harness.origin is None:
        raise ConfigError("tasks need the lm-evaluation-harness: pip install lm_eval.")
    root = Path(harness.origin).parent / "tasks"
    identity = [importlib.metadata.version("lm_eval"), str(root), root.stat().st_mtime_ns]
    file = cache_folder() / "harness" / f"tasks-{fingerprint(identity, length=16)}.json"
    with contextlib.suppress(DataError):
        stored: dict[str, str | list[str]] = read_object(file)
        if all(Path(str(stored.get(name))).is_file() for name in ("arc_easy", "gsm8k")):
            return stored
    from lm_eval.tasks import TaskManager

    places: dict[str, str | list[str]] = {}
    for name, task in TaskManager().task_index.items():
        places[name] = sorted(task.tags) if task.yaml_path is None else str(task.yaml_path)
    with contextlib.suppress(StorageError):  # a cache that cannot be written costs the time again
        write_json(file, places)
    return places


def check_name(entry: TaskEntry) -> None:
    """Looks whether there is a task of that name; its data are not looked at.

    Raises:
        ConfigError: there is none, with the nearest names.
    """
    # whose absence others speak of
    known = entry.is_file or importlib.util.find_spec("lm_eval") is None
    if not known and entry.task not in own_benchmarks():
        _in_the_harness(entry.task)


def _find_configs(entry: TaskEntry) -> list[Config]:
    """The harness configurations behind an entry: one for a task, one a subtask for a group or
    tag."""
    from lm_eval.tasks._yaml_loader import load_yaml

    if entry.is_file:
        path = Path(entry.task)
        try:
            config = load_yaml(path, resolve_func=True)
        except FileNotFoundError as error:
            raise ConfigError(
                f"No such task YAML: {path} (another YAML may include it). Check the path."
            ) from error
        except Exception as error:
            raise ConfigError(
                f"{path}: expected a task of the lm-evaluation-harness, but it cannot be read: "
                f"{error}"
            ) from error
        if "group" in config and not isinstance(config.get("task"), str):
            return list(_members(config, {}, name=entry.task))
        if not isinstance(config.get("task"), str):
            raise ConfigError(
                f"{path}: expected a task of the lm-evaluation-harness with a `task:` name, got "
                f"the keys {', '.join(config)}."
            )
        return [_with_local_paths(config, path.parent)]
    if "ifeval" in entry.task:
        provide_sentence_model()  # the task's module asks for it when it is imported
        fix_language_detection()
    file = own_benchmarks().get(entry.task)
    return [_loaded(entry.task, file)] if file is not None else list(_registered(entry.task, {}))


def own_benchmarks() -> dict[str, str]:
    """Task name -> YAML file, of the benchmarks that come with holdfast."""
    return {
        path.stem: str(path)
        for path in sorted((Path(__file__).parent / "benchmarks").glob("*.yaml"))
    }


def _loaded(name: str, file: str) -> Config:
    from lm_eval.tasks._yaml_loader import load_yaml

    try:
        return load_yaml(file, resolve_func=True)
    except ImportError as error:
        extra = "math" if "math" in name else "ifeval" if "ifeval" in name else None
        how = f"`pip install 'lm_eval[{extra}]'`" if extra else f"Install {error.name or 'it'}"
        raise ConfigError(
            f"The task '{name}' needs a package that is not installed ({first_line(error)}). "
            f"{how} provides it."
        ) from error


def _registered(name: str, overrides: Config) -> Iterator[Config]:
    file = _in_the_harness(name)
    if isinstance(file, list):
        for child in file:
            yield from _registered(child, overrides)
        return
    config = _loaded(name, file)
    if "group" in config and not isinstance(config.get("task"), str):
        yield from _members(config, overrides, name=name)
    else:
        yield {**config, **overrides}


def _in_the_harness(name: str) -> str | list[str]:
    """What `index` has of a name."""
    known = index()
    if name not in known:
        near = difflib.get_close_matches(name, [*known, *own_benchmarks()], n=4, cutoff=0.6)
        hint = f" Nearest: {', '.join(near)}." if near else ""
        raise ConfigError(
            f"'{name}' is neither a task of the lm-evaluation-harness nor a file.{hint} `lm_eval "
            "ls tasks` lists all tasks. Give your own task as a path."
        )
    return known[name]


def _members(config: Config, overrides: Config, *, name: str) -> Iterator[Config]:
    """Subtasks of a group, with the group's defaults and then the caller's on top, as the harness
    merges them."""
    from lm_eval.tasks._factory import GROUP_FIELD_NAMES

    merged = {key: value for key, value in config.items() if key not in GROUP_FIELD_NAMES}
    merged |= overrides
    for member in config.get("task") or []:
        if isinstance(member, str):
            yield from _registered(member, merged)
        elif "group" in member and isinstance(member.get("task"), list):
            yield from _members(member, merged, name=member["group"])
        else:
            child = member.get("task") or member.get("group")
            extra = {k: v for k, v in member.items() if k not in ("task", "group")}
            if child in index():
                yield from _registered(child, {**merged, **extra})
            else:
                yield {**merged, **member, "task": f"{name}::{child}"}


def _with_local_paths(config: Config, folder: Path) -> Config:
    """A local YAML's data paths are meant from the YAML's own folder; the harness would take them
    from the working directory."""

    def resolve(value: Any) -> Any:
        if isinstance(value, list):
            return list(map(resolve, value))
        if isinstance(value, Mapping):
            return {name: resolve(item) for name, item in value.items()}
        if not isinstance(value, str) or "://" in value or Path(value).is_absolute():
            return value
        file = folder / value
        return str(file) if file.exists() else value

    config = dict(config)
    kwargs = dict(config.get("dataset_kwargs") or {})
    for key in ("data_files", "data_dir"):
        if key in kwargs:
            kwargs[key] = resolve(kwargs[key])
    if kwargs:
        config["dataset_kwargs"] = kwargs
    path = config.get("dataset_path")
    if isinstance(path, str) and path.startswith("."):
        config["dataset_path"] = resolve(path)
    return config


def local_files(entry: TaskEntry) -> list[Path]:
    """Local files that decide what an entry measures: its data, and for a task YAML the YAML, the
    Python beside it and the data it names."""
    files = [Path(p) for p in (entry.data, entry.fewshot_data) if p is not None]
    if entry.task in own_benchmarks():
        files.append(Path(own_benchmarks()[entry.task]))
    if entry.is_file:
        path = Path(entry.task)
        files += [path, *sorted(path.parent.glob("*.py"))]
        for config in _find_configs(entry):
            values: list[Any] = [
                (config.get("dataset_kwargs") or {}).get("data_files"),
                config.get("dataset_path"),
            ]
            while values:
                value = values.pop()
                if isinstance(value, Mapping):
                    values.extend(value.values())
                elif isinstance(value, list):
                    values.extend(value)
                elif isinstance(value, str) and Path(value).exists():
                    files.append(Path(value))
    return files


_LOCAL_READERS = ("json", "csv", "parquet", "text", "arrow", "pandas", None)
"""Of `datasets`, which `dataset_path` may name in place of a data set."""


def names_hub_data(entry: TaskEntry) -> bool:
    """Whether a task YAML names a data set of the hub."""
    for config in _find_configs(entry):
        path = config.get("dataset_path")
        if path not in _LOCAL_READERS and not Path(str(path)).exists():
            return True
    return False


# ----------------------------------------------------------------------------------------- building


def load_tasks(entry: TaskEntry) -> Tasks:
    """Task objects of an entry by name: one, or the subtasks of a group.

    Raises:
        ConfigError: no such task, or one that cannot be redirected or runs code.
        DataError: the data cannot be loaded or lacks columns.
    """
    configs = _find_configs(entry)
    tasks: Tasks = {}
    rows_of_tasks = _divided(entry, configs, entry.data)
    examples_of_tasks = _divided(entry, configs, entry.fewshot_data)
    for config, rows, examples in zip(configs, rows_of_tasks, examples_of_tasks, strict=True):
        name = str(config["task"])
        if config.get("unsafe_code"):
            raise ConfigError(
                f"The task '{name}' runs the model's code without a sandbox. Take it out. "
                "humaneval and mbpp run in holdfast's sandbox."
            )
        if entry.num_fewshot is not None:
            config["num_fewshot"] = entry.num_fewshot
        if rows is not None:
            config = _redirect(config, rows, examples, entry)
        tasks[name] = _build(config, entry)
    return tasks


def _divided(entry: TaskEntry, configs: list[Config], file: str | None) -> list[Any]:
    """The rows of one file for each task; None for each where there is no file."""
    from holdfast.data.sources import load_rows

    if file is None:
        return [None] * len(configs)
    rows, _ = convert(load_rows(file), str(configs[0]["task"]), file)
    return [_rows_of_task(configs[0], rows)] if len(configs) == 1 else _divide(entry, configs, rows)


_SUBSET_COLUMNS = ("subject", "subset", "config", "task", "category", "dataset_name")
"""Columns by which one file holds several of a benchmark's data sets."""


def _rows_of_task(config: Config, rows: Any) -> Any:
    """The rows of one task's data set, where the file holds others beside it (one subject out of
    MMLU's file)."""
    name = config.get("dataset_name")
    for column in _SUBSET_COLUMNS if isinstance(name, str) else ():
        if column in rows.column_names:
            numbers = [number for number, value in enumerate(rows[column]) if value == name]
            if numbers:
                return rows if len(numbers) == len(rows) else rows.select(numbers)
    return rows


def _divide(entry: TaskEntry, configs: list[Config], rows: Any) -> list[Any]:
    """One file's rows by subtask, along the column that names the data set of each row's task."""
    names = [str(config.get("dataset_name")) for config in configs]
    if len(set(names)) == 1 and all(config.get("process_docs") is not None for config in configs):
        return [rows] * len(configs)  # every subtask picks its own rows (MMLU-Pro)
    for column in rows.column_names:
        values = rows[column]
        if not set(names) <= {value for value in values if isinstance(value, str)}:
            continue
        numbers: dict[str, list[int]] = {}
        for number, value in enumerate(values):
            numbers.setdefault(value, []).append(number)
        return [rows.select(numbers[name]) for name in names]
    raise DataError(
        f"'{entry.task}' is a group of {len(configs)} tasks. One file for all of them needs a "
        f"column that names the data set of each row's task ({', '.join(names[:3])}, ...), and "
        f"{entry.data} has none. Add the column, or give each task of the group its own file."
    )


def _redirect(config: Config, rows: Any, examples: Any, entry: TaskEntry) -> Config:
    """The configuration with `rows` as its data set and the rest of it untouched."""
    _require_columns(config, list(rows.column_names), entry)
    splits = {"test": rows}
    if examples is not None:
        splits["examples"] = examples
    shots = config.get("num_fewshot") or 0
    fewshot = dict(config.get("fewshot_config") or {})
    split = None
    if "samples" not in fewshot or examples is not None:
        if shots and examples is None and len(rows) <= shots:
            raise DataError(
                f"{entry.data} has {len(rows)} rows, too few for {shots} examples before each "
                "question. Lower `num_fewshot` or add `fewshot_data`."
            )
        for key in (
            "split",
            "samples",
            "fewshot_indices",
        ):  # they name rows of the original data set
            fewshot.pop(key, None)
        split = "test" if examples is None else "examples"
    return {
        **config,
        "custom_dataset": lambda **_: splits,
        "dataset_kwargs": None,
        "training_split": None,
        "validation_split": None,
        "test_split": "test",
        "fewshot_split": split,
        "fewshot_config": fewshot or None,
    }


def _build(config: Config, entry: TaskEntry) -> Any:
    from lm_eval.api.task import ConfigurableTask

    config = {
        key: value for key, value in config.items() if key not in ("tag", "group", "task_list")
    }
    metadata = config.get("metadata")
    if isinstance(metadata, Mapping):
        config["metadata"] = dict(metadata)
    else:
        config["metadata"] = {} if metadata is None else {"metadata": metadata}
    name = config["task"]
    cls = config.get("class", ConfigurableTask)
    takes_config = "config" in inspect.signature(cls.__init__).parameters
    if entry.data is not None and not (takes_config and issubclass(cls, ConfigurableTask)):
        raise ConfigError(
            f"The task '{name}' is written in Python and loads its own data, so `data` cannot "
            "replace the data. Take `data` out."
        )
    try:
        task = cls(config=config) if takes_config else cls()
    except UserError:
        raise
    except Exception as error:
        problem = _reading_problem(error, config, entry)
        if problem is None:
            raise
        raise DataError(problem) from error
    if hasattr(task, "config") and getattr(task.config, "task", None) is None:
        task.config.task = name
    if entry.data is not None or entry.is_file:
        _check_targets(task, entry)
    return task


def _reading_problem(error: Exception, config: Config, entry: TaskEntry) -> str | None:
    """What an error of the harness says of a task's data; None where it says nothing of it."""
    name, data = config["task"], _data_of(config)
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    if entry.data is not None:
        return (
            f"The task '{name}' cannot read {entry.data}: {type(error).__name__}: {reason}. Use a "
            f"file with the columns and values of the task's own data set ({data})."
        )
    if isinstance(
        error, IndexError
    ):  # the harness asks whether the first option begins with a space
        return (
            f"The first question of the task '{name}' has no options, or its first option is "
            "empty. Check the choices."
        )
    if isinstance(error, (OSError, ValueError, KeyError, RuntimeError)):
        return (
            f"The data of the task '{name}' ({data}) could not be loaded: {type(error).__name__}: "
            f"{reason}. Without a network, give a local copy with `data: FILE` (`--data "
            f"{entry.name}=FILE`)."
        )
    return None


def _data_of(config: Config) -> str:
    """What a task's data set is called."""
    names = [str(config[key]) for key in ("dataset_path", "dataset_name") if config.get(key)]
    return " ".join(names) or "its own"


# ----------------------------------------------------------------------------------------- checking


def _require_columns(config: Config, columns: list[str], entry: TaskEntry) -> None:
    """Names the columns that the templates read and the file lacks. Python functions cannot be
    looked into; they fail when the task is built."""
    if config.get("process_docs") is not None:  # it may make the columns
        return
    needed: dict[str, None] = {}
    for field in _TEMPLATES:
        needed.update(dict.fromkeys(_columns_of(config.get(field))))
    what = f"The task '{config['task']}'"
    require_columns(what, needed, columns, place=entry.data, form=_data_of(config))


def _columns_of(template: Any) -> list[str]:
    """Columns that a harness template reads: a bare column name, or the free variables of a Jinja
    text."""
    import jinja2
    import jinja2.meta

    if not isinstance(template, str):
        return []
    if template.isidentifier():
        return [template]
    try:
        return sorted(jinja2.meta.find_undeclared_variables(jinja2.Environment().parse(template)))
    except jinja2.TemplateSyntaxError:
        return []


def _check_targets(task: Any, entry: TaskEntry) -> None:
    """Every question of a multiple-choice task must have a right answer among its choices; the
    harness would score such a question 0 in silence."""
    if (
        getattr(task, "OUTPUT_TYPE", None) != "multiple_choice"
        or getattr(task, "multiple_input", 0)
        or task.config.process_results is not None
    ):
        return
    bad, example, total = 0, "", 0
    for doc in task.eval_docs:
        total += 1
        target, choices = task.doc_to_target(doc), task.doc_to_choice(doc)
        if any(
            not str(choice).strip() for choice in choices
        ):  # the harness would score the space in front of it
            raise DataError(
                f"The task '{task.config.task}' has an empty option in question {total} of "
                f"{entry.data or entry.task} ({choices!r})."
            )
        for answer in target if isinstance(target, list) else [target]:
            is_index = isinstance(answer, int) and 0 <= answer < len(choices)
            if not is_index and not (isinstance(answer, str) and answer in choices):
                bad += 1
                example = example or f"{answer!r} for the choices {choices!r}"[:200]
                break
    if bad:
        raise DataError(
            f"The task '{task.config.task}' has no right answer among the choices in {bad} of "
            f"{total} questions of {entry.data or entry.task} (for example {example}). Check the "
            "column with the answers."
        )
