"""Logs of lm-evaluation-harness: `results_*.json` with the figures of one run, and a file of samples
for every task of it (`lm_eval --output_path OUT --log_samples`).

Layouts:

    since 0.4.3      OUT/MODEL/results_DATE.json, OUT/MODEL/samples_TASK_DATE.jsonl
                     STEM_DATE.json beside samples_TASK_DATE.jsonl, for --output_path STEM.json
    before           results.json, and MODEL_ARGS_TASK.jsonl, which is one JSON array
    from Python      what `simple_evaluate` returned, written as JSON: samples lie in it

A group that the harness has a figure for is one entry, the mean over all questions of its subtasks;
a note says so where the harness averages them in another way. Where its subtasks have no metric in
common, the groups in it are entries. Any other task is an entry.

https://github.com/EleutherAI/lm-evaluation-harness (lm_eval/loggers/evaluation_tracker.py,
lm_eval/result_schema.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.evaluation.foreign.files import read_log_json, read_log_rows
from holdfast.evaluation.foreign.lm_eval_samples import LoggedTask, TaskRows, read_task
from holdfast.evaluation.foreign.log import ForeignEntry, ForeignLog
from holdfast.evaluation.tasks.harness_metrics import leading
from holdfast.statistics.estimates import Ratio, figure_for

SUITE = "lm_eval"

_DATE = re.compile(r"_(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d[\d.]*)$")
_SAMPLES = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d[\d.]*\.jsonl?$")


@dataclass(frozen=True)
class _Results:
    """One results file."""

    path: Path
    content: Mapping[str, Any]

    @property
    def date(self) -> str:
        """When it was written, as its name has it; empty where that has none."""
        date = _DATE.search(self.path.stem)
        return date[1] if date else ""

    @property
    def model(self) -> str:
        """The model's name, of a folder the last part."""
        config = self.content.get("config") or {}
        name = self.content.get("model_name")
        if not name:
            arguments = config.get("model_args") or ""
            if isinstance(arguments, str):
                pairs = [pair.partition("=") for pair in arguments.split(",")]
                arguments = {key.strip(): value for key, _, value in pairs}
            names = [arguments[key] for key in ("peft", "pretrained", "model") if key in arguments]
            name = names[0] if names else self.path.parent.name
        name = str(name).rstrip("/")
        return name if name.count("/") < 2 else name.rpartition("/")[2]

    @property
    def tasks(self) -> list[str]:
        """Every task, subtasks of groups each."""
        return list(self.content.get("configs") or self.content["results"])

    @property
    def _inside(self) -> Mapping[str, Sequence[str]]:
        """What is directly in each group."""
        return self.content.get("group_subtasks") or {}

    def tasks_in(self, group: str) -> list[str]:
        """All tasks of a group and of the groups in it."""
        names = [name for name in _below(group, self._inside) if not self._inside.get(name)]
        return list(dict.fromkeys(names))

    def members(self, group: str) -> list[str]:
        """The tasks directly in a group and the groups in it that have figures; of a group without
        figures what is in it."""
        with_figures = self.content.get("groups") or {}
        names: list[str] = []
        for name in self._inside.get(group) or ():
            is_named = not self._inside.get(name) or name in with_figures
            names += [name] if is_named else self.members(name)
        return list(dict.fromkeys(names))

    def groups(self) -> dict[str, list[str]]:
        """The outermost groups that have figures, with all their tasks."""
        inside, with_figures = self._inside, self.content.get("groups") or {}
        members = {group: self.tasks_in(group) for group in inside if group in with_figures}
        groups = {}
        for name, tasks in members.items():
            is_part = any(name in _below(other, inside) for other in members if other != name)
            if not is_part and tasks and set(tasks) <= set(self.tasks):
                groups[name] = tasks
        return groups

    def samples(self, task: str) -> tuple[Path, list[dict[str, Any]]]:
        """The samples of a task, and the file that they lie in.

        Raises:
            DataError: there are none, or they cannot be read.
        """
        inside = (self.content.get("samples") or {}).get(task)
        if inside:
            return self.path, inside
        arguments = re.sub("/|=", "__", str((self.content.get("config") or {}).get("model_args")))
        dated = f"samples_{task}_{self.date or 'DATE'}.jsonl"
        names = [
            dated,
            dated.removesuffix("l"),
            f"samples_{re.sub(r'[^A-Za-z0-9_]', '_', task)}_{self.date}.jsonl",
            f"{arguments}_{task}.jsonl",
        ]
        for name in names:
            file = self.path.with_name(name)
            if file.is_file():
                return file, read_log_rows(file)
        raise DataError(
            f"{self.path}: expected the samples of {task} beside it ({dated}), found none. Two "
            "models are paired sample by sample. Evaluate with --log_samples (lm-eval 0.4 or "
            "later), and keep the files of a run together."
        )


def _below(group: str, inside: Mapping[str, Sequence[str]]) -> list[str]:
    """Everything in a group, groups in it too."""
    names = []
    for name in inside.get(group) or ():
        names += [name, *_below(name, inside)]
    return names


# ------------------------------------------------------------------------------------------ finding


def recognises(path: Path) -> bool:
    """Whether it is a results file, a file of samples, or a folder with results or with folders
    that have them."""
    if path.is_dir():
        return bool(_result_files(path))
    return bool(_SAMPLES.match(path.name)) or _holds_results(path)


def _result_files(folder: Path) -> list[Path]:
    """Results in a folder and in the folders in it."""
    files = []
    for path in (*sorted(folder.glob("*.json")), *sorted(folder.glob("*/*.json"))):
        if (path.name.startswith("results") or _DATE.search(path.stem)) and _holds_results(path):
            files.append(path)
    return files


def _holds_results(path: Path) -> bool:
    if path.suffix != ".json" or not path.is_file():
        return False
    try:
        content = read_log_json(path)
    except DataError:
        return path.name.startswith("results_")  # whoever reads it says what is wrong
    if not isinstance(content, dict) or "config_general" in content:  # lighteval's
        return False
    return "results" in content and ("configs" in content or "versions" in content)


def read(path: Path) -> list[ForeignLog]:
    """The logs of a results file, a file of samples (of its task alone), or a folder; one a model.

    Raises:
        DataError: results without samples, or samples that do not fit; see `read_task`.
    """
    only = None
    files = [path]
    if path.is_dir():
        files = _result_files(path)
    elif samples := _SAMPLES.match(path.name):
        files, only = [_results_of_samples(path)], samples[1]
    by_model: dict[tuple[Path, str], list[_Results]] = {}
    for file in files:
        results = _Results(file, _content(file))
        by_model.setdefault((file.parent, results.model), []).append(results)
    folders = [folder for folder, _ in by_model]
    logs = []
    for (folder, _), runs in by_model.items():
        is_alone = path.is_dir() and folders.count(folder) == 1
        logs.append(_log(runs, only, folder if is_alone else runs[-1].path))
    return logs


def _results_of_samples(path: Path) -> Path:
    """The results file that a file of samples was written with."""
    date = _DATE.search(path.stem)
    files = []
    for file in sorted(path.parent.glob("*.json")):
        if date and file.stem.endswith(date.group(0)) and _holds_results(file):
            files.append(file)
    if not files:
        raise DataError(
            f"{path}: expected the results file of its run beside it "
            f"(results{date.group(0)}.json), found none. It records the tasks and settings. Keep "
            "both files together."
            if date
            else f"{path}: expected a date in its name."
        )
    return files[0]


def _content(path: Path) -> Mapping[str, Any]:
    content: Mapping[str, Any] = read_log_json(path)
    return content


# ------------------------------------------------------------------------------------------ reading


def _log(runs: Sequence[_Results], only: str | None, path: Path) -> ForeignLog:
    """All runs of one model; of a task that several have, the latest."""
    entries: dict[str, tuple[_Results, ForeignEntry]] = {}
    notes = []
    for run in sorted(runs, key=lambda run: run.date):
        run_entries, left_out = _entries(run, only)
        notes += left_out
        for entry in run_entries:
            if entry.name in entries:
                older = entries[entry.name][0].path
                notes.append(
                    f"{entry.name} was measured several times in {run.path.parent}: "
                    f"{run.path.name} is read, and {older.name} is not."
                )
            entries[entry.name] = (run, entry)
    latest = max(runs, key=lambda run: run.date)
    return ForeignLog(
        model=latest.model,
        path=path,
        entries=[entry for _, entry in entries.values()],
        circumstances=_circumstances(latest.content),
        notes=notes,
    )


def _circumstances(content: Mapping[str, Any]) -> dict[str, Any]:
    config = content.get("config") or {}
    known = {
        "dtype": str(config.get("model_dtype") or "").removeprefix("torch.") or None,
        "context": content.get("max_length"),
    }
    return {key: value for key, value in known.items() if value is not None}


def _entries(run: _Results, only: str | None) -> tuple[list[ForeignEntry], list[str]]:
    """The entries of a run, and a note for each task that is left out."""
    groups = run.groups() if only is None else {}
    grouped: list[str] = []
    for tasks in groups.values():
        grouped += tasks
    alone = [task for task in run.tasks if task not in grouped and only in (None, task)]
    parts = {task: _read(run, task) for task in (*grouped, *alone)}
    entries = []
    for name in groups:
        entries += _group(run, name, parts)
    entries += _each(run, alone, parts)
    left_out = []
    for task, read in parts.items():
        if not read.figures:
            left_out.append(
                f"{task} has no metric that is a mean over samples. {' '.join(read.notes)}"
            )
    if left_out and not entries:
        raise DataError(
            f"{run.path}: {' '.join(left_out)} Compare other tasks, or log another metric of this task."
        )
    return entries, [f"{text} It is left out." for text in left_out]


def _each(run: _Results, tasks: Iterable[str], parts: Mapping[str, TaskRows]) -> list[ForeignEntry]:
    """An entry for each task that has a figure."""
    entries = []
    for task in tasks:
        read = parts[task]
        if read.figures:
            entries.append(_entry(run, task, [task], read.rows, read.figures, read.notes))
    return entries


def _read(run: _Results, name: str) -> TaskRows:
    file, samples = run.samples(name)
    content = run.content
    counts = (content.get("n-samples") or {}).get(name) or {}
    task = LoggedTask(
        name=name,
        file=file,
        values=content["results"].get(name) or {},
        config=(content.get("configs") or {}).get(name) or {},
        higher_is_better=(content.get("higher_is_better") or {}).get(name) or {},
        n=counts.get("effective"),
    )
    return read_task(task, samples)


def _group(run: _Results, name: str, all_parts: Mapping[str, TaskRows]) -> list[ForeignEntry]:
    """A group as one entry; where its tasks have no figure in common, the groups in it and its
    other tasks."""
    tasks = run.tasks_in(name)
    parts = {task: all_parts[task] for task in tasks}
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    of_parts: dict[str, Ratio] = {}
    for task, read in parts.items():
        for row in read.rows:
            rows.append({**row, "task": _short(task)})
        notes += [f"{task}: {note}" for note in read.notes]
        of_parts |= read.figures
    figures = {}
    for label, figure in of_parts.items():
        shared = all(label in read.figures for read in parts.values())
        ratio = figure_for(label, rows, higher_is_better=figure.higher_is_better, unit=figure.unit)
        if shared and ratio is not None:
            figures[label] = ratio
    if not figures:
        entries = []
        for member in run.members(name):
            if member in parts:
                entries += _each(run, [member], parts)
            else:
                entries += _group(run, member, all_parts)
        return entries
    notes += _other_averages(run, name, rows, figures)
    return [_entry(run, name, tasks, rows, figures, notes)]


def _other_averages(
    run: _Results, name: str, rows: Sequence[Mapping[str, Any]], figures: Mapping[str, Ratio]
) -> list[str]:
    """Figures of a group that the harness does not form over all questions."""
    notes = []
    for label, figure in figures.items():
        metric, comma, filtered_by = label.partition(",")
        value = float(figure.of_sums(figure.columns(rows).sum(0)))
        logged = run.content["groups"][name].get(f"{metric},{filtered_by if comma else 'none'}")
        if isinstance(logged, (int, float)) and not math.isclose(value, logged, rel_tol=1e-6):
            notes.append(
                f"{label}: the comparison uses the mean over all questions, {value:.4g}. The "
                f"harness reports the mean over subtasks, {logged:.4g}."
            )
    return notes


def _entry(
    run: _Results,
    name: str,
    tasks: Sequence[str],
    rows: list[dict[str, Any]],
    figures: Mapping[str, Ratio],
    notes: Sequence[str],
) -> ForeignEntry:
    lead = leading(figures)
    assert lead is not None, "an entry without figures"
    content = run.content
    versions = {}
    for library in ("lm_eval", "transformers"):
        if version := content.get(f"{library}_version"):
            versions[library] = str(version)
    return ForeignEntry(
        suite=SUITE,
        name=name,
        rows=rows,
        figures=figures,
        primary=lead,
        settings=_settings(content, tasks),
        notes=notes,
        versions=versions,
    )


def _settings(content: Mapping[str, Any], tasks: Sequence[str]) -> dict[str, Any]:
    """What must be the same where two logs are compared."""
    configs = content.get("configs") or {}

    def of_tasks(values: Mapping[str, Any]) -> Any:
        return _same_or_all({_short(task): values.get(task) for task in tasks})

    def of_configs(key: str) -> Any:
        return _same_or_all({_short(task): (configs.get(task) or {}).get(key) for task in tasks})

    shots = content.get("n-shot")
    settings = {
        "tool": "lm-evaluation-harness",
        "num_fewshot": of_configs("num_fewshot") if shots is None else of_tasks(shots),
        "limit": (content.get("config") or {}).get("limit"),
        "subtasks": sorted(map(_short, tasks)) if len(tasks) > 1 else [],
    }
    for name, key in (("task_version", "versions"), ("task_hash", "task_hashes")):
        settings[name] = of_tasks(content.get(key) or {})
    for key in ("output_type", "generation_kwargs", "repeats"):
        settings[key] = of_configs(key)
    filters = {_short(task): _filters(configs.get(task) or {}) for task in tasks}
    settings["filters"] = _same_or_all(filters)
    for name in ("chat_template", "system_instruction"):
        settings[name] = content.get(f"{name}_sha")
    return settings


def _filters(config: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """By name what answers go through, in one form for all versions; without what does nothing."""
    filters: dict[str, list[dict[str, Any]]] = {}
    for pipeline in config.get("filter_list") or ():
        for step in pipeline.get("filter") or ():
            arguments = {**step, **(step.get("kwargs") or {})}
            arguments.pop("kwargs", None)
            filters.setdefault(pipeline["name"], []).append(arguments)
    return filters


def _short(task: str) -> str:
    """A task's name without that of its group, which 0.5 puts before it ("group::task")."""
    return task.rpartition("::")[2]


def _same_or_all(values: Mapping[str, Any]) -> Any:
    """The value that all tasks have, else the values by task."""
    distinct: Iterable[Any] = values.values()
    first, *others = distinct
    return first if all(other == first for other in others) else dict(values)
