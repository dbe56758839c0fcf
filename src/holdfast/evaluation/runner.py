"""Runs a plan for a run folder: what is there is kept, what is missing is computed, one entry at a time.

Every entry has a key: the fingerprint of the model's hash, the tokenizer, the data's content, the settings, and the versions of the libraries that
compute the figures. An evaluation in the folder with the same key is not computed again; neither is one in the `cache` folder, which several runs
share (the bare starting model of a sweep is evaluated once). Evaluations are written as soon as they are done, so an interrupted run continues with
the next entry.

Single process: under DDP call it on one rank with the unwrapped model.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, UserError
from holdfast.evaluation.compare import compare_samples
from holdfast.evaluation.estimates import TEXT_FIGURES, estimate
from holdfast.evaluation.suite import Entry, EvaluationPlan, PerplexityEntry, TaskEntry
from holdfast.results import Comparison, Evaluation, EvaluationFolder, Metric, RunFolder, fingerprint, read_json, read_jsonl, write_json, write_jsonl

if TYPE_CHECKING:
    from rich.console import Console

_RULES = 1
"""Raised when what is scored changes (BOS, borders, windows), so that older evaluations are made again instead of compared with."""
_TEXT_METRICS = ("nats_per_token", "bits_per_byte", "perplexity")
_VERSIONS = {
    "perplexity": ("torch", "transformers", "tokenizers", "datasets"),
    "task": ("torch", "transformers", "tokenizers", "datasets", "lm_eval"),
}


def evaluate(
    model: Any,
    tokenizer: Any,
    plan: EvaluationPlan,
    *,
    folder: EvaluationFolder,
    model_identity: Mapping[str, Any],
    cache: str | Path | None = None,
    console: Console | None = None,
) -> list[Evaluation]:
    """Evaluates one model on all entries of a plan.

    Args:
        model: a Hugging Face causal LM, PEFT-wrapped or not; left in the state it came in.
        tokenizer: its tokenizer.
        plan: what to measure.
        folder: where evaluations and per-sample rows go; for a run, `RunFolder.evaluated("start")` or `("result")`.
        model_identity: `{"name": ..., "hash": ...}`; the hash must change whenever the weights do.
        cache: folder shared between runs; None: none.
        console: where progress bars go; None: standard error. Bars show on terminals only.

    Returns:
        One evaluation an entry, in the plan's order.

    Raises:
        UserError: an entry's task, data or tokenizer does not fit (`check_plan` finds these out before a training run).
        StorageError: the disk is full; entries finished before are kept.
    """
    tokenizer_hash = tokenizer_fingerprint(tokenizer)
    done = []
    for number, entry in enumerate(plan.entries, 1):
        settings = _settings(entry, plan)
        versions = _versions(entry.kind)
        identity = {
            "model": model_identity["hash"],
            "tokenizer": tokenizer_hash,
            "data": _data_hashes(entry),
            "kind": entry.kind,
            "rules": _RULES,
            "settings": settings,
            "versions": versions,
        }
        key = fingerprint(identity)
        kept = _kept(folder, entry, key) or _from_cache(cache, folder, entry, key, model_identity)
        if kept is not None:
            done.append(kept)
            continue
        started = time.perf_counter()
        with _progress(f"Evaluating {entry.suite}/{entry.name} ({number} of {len(plan.entries)})", console) as report:
            if isinstance(entry, PerplexityEntry):
                rows, metrics, primary, found = _run_perplexity(model, tokenizer, entry, plan, report)
            else:
                rows, metrics, primary, found = _run_task(model, tokenizer, entry, plan, report)
        evaluation = Evaluation(
            suite=entry.suite,
            name=entry.name,
            kind=entry.kind,
            primary=primary,
            metrics=metrics,
            settings={**settings, **found},
            model=dict(model_identity),
            key=key,
            seconds=time.perf_counter() - started,
            versions=versions,
        )
        folder.write(evaluation, rows)
        if cache is not None:
            write_jsonl(Path(cache) / key / "samples.jsonl", rows)
            write_json(Path(cache) / key / "evaluation.json", evaluation)
        done.append(evaluation)
    return done


def compare_runs(folder: RunFolder, plan: EvaluationPlan, *, resamples: int = 4000) -> list[Comparison]:
    """Compares start and result of every entry that has both, writes `comparisons.json` and returns it.

    The order is the plan's: source, target, then other suites; within an entry the primary metric comes first.

    Raises:
        DataError: start and result did not answer the same samples.
    """
    comparisons: list[Comparison] = []
    for entry in plan.entries:
        before = folder.evaluated("start").find(entry.suite, entry.name)
        after = folder.evaluated("result").find(entry.suite, entry.name)
        if before is None or after is None:
            continue
        rows = [folder.evaluated(which).samples(entry.suite, entry.name) for which in ("start", "result")]
        comparisons += compare_samples(rows[0], rows[1], before, after, confidence=plan.confidence, resamples=resamples, seed=plan.seed)
    folder.write_comparisons(comparisons)
    return comparisons


def scorer(entry: TaskEntry, plan: EvaluationPlan, tokenizer: Any) -> Callable[[Any], list[float]]:
    """A function of the model that gives the entry's primary metric of each question, with the sign that makes higher better: what `evaluate`
    measures, for those who measure again and again while the model changes.

    The function raises ConfigError where the metric is no mean over questions, and what `harness.run_task` raises.
    """

    def scores(model: Any) -> list[float]:
        rows, metrics, primary, _ = _run_task(model, tokenizer, entry, plan, lambda done, total: None)
        if any(primary not in row for row in rows):
            raise ConfigError(
                f"{entry.suite}/{entry.name}: expected a metric that is a mean over questions, got {primary}. Choose another by `metric:`."
            )
        sign = 1.0 if metrics[primary].higher_is_better else -1.0
        return [sign * float(row[primary]) for row in rows]

    return scores


def check_plan(plan: EvaluationPlan, tokenizer: Any) -> list[str]:
    """Loads every entry's data and tasks without a model, so that a mistake shows before training and not after it.

    Returns:
        One sentence a problem, beginning with the entry; empty when all is well.
    """
    from holdfast.evaluation import harness
    from holdfast.evaluation.documents import encode_document

    problems = []
    for entry in plan.entries:
        try:
            if isinstance(entry, PerplexityEntry):
                for document in _documents(entry, tokenizer)[:8]:
                    encode_document(document, tokenizer)
            else:
                harness.check_task(tokenizer, entry)
        except UserError as error:
            problems.append(f"{entry.suite}/{entry.name}: {error}")
    return problems


# ------------------------------------------------------------------------------------------------------------ entries

Report = Callable[[int, int], None]
Outcome = tuple[list[dict[str, Any]], dict[str, Metric], str, dict[str, Any]]


def _documents(entry: PerplexityEntry, tokenizer: Any) -> list[Any]:
    from holdfast.data.formats import Templates, standardise
    from holdfast.data.sources import data_files, load_rows
    from holdfast.evaluation.documents import documents_from

    rows = load_rows(entry.data, split=entry.split, config=entry.config)
    whole = entry.max_documents is None and Path(entry.data).is_file()
    if entry.max_documents is not None:
        rows = rows.select(range(min(entry.max_documents, len(rows))))
    given = (entry.text, entry.prompt, entry.completion)
    templates = Templates(text=entry.text, prompt=entry.prompt, completion=entry.completion) if any(given) else None
    dataset, _ = standardise(rows, tokenizer, templates=templates, files=data_files(entry.data) if whole else None)
    return documents_from(dataset)


def _run_perplexity(model: Any, tokenizer: Any, entry: PerplexityEntry, plan: EvaluationPlan, report: Report) -> Outcome:
    from holdfast.evaluation.documents import starts_with_bos
    from holdfast.evaluation.perplexity import resolve_window, score_documents

    window, stride = resolve_window(model, entry.window, entry.stride)
    notes: list[str] = []
    documents = _documents(entry, tokenizer)
    rows = score_documents(model, tokenizer, documents, window=window, stride=stride, progress=report, notes=notes)
    metrics = {}
    for name in _TEXT_METRICS:
        figure = TEXT_FIGURES[name]
        value, interval = estimate(figure, rows, confidence=plan.confidence, seed=plan.seed)
        metrics[name] = Metric(
            value=value, n=len(rows), unit=figure.unit, higher_is_better=figure.higher_is_better, interval=interval, confidence=plan.confidence
        )
    found = {
        "window": window,
        "stride": stride,
        "bos": starts_with_bos(tokenizer),
        "tokens": sum(row["tokens"] for row in rows),
        "bytes": sum(row["bytes"] for row in rows),
        "notes": notes,
    }
    return rows, metrics, _TEXT_METRICS[0], found


def _run_task(model: Any, tokenizer: Any, entry: TaskEntry, plan: EvaluationPlan, report: Report) -> Outcome:
    from holdfast.evaluation.harness import run_task

    scores = run_task(model, tokenizer, entry, batch_size=plan.batch_size, confidence=plan.confidence, seed=plan.seed, progress=report)
    return scores.rows, scores.metrics, scores.primary, {**scores.settings, "notes": scores.notes}


# --------------------------------------------------------------------------------------------------------------- keys


def _settings(entry: Entry, plan: EvaluationPlan) -> dict[str, Any]:
    """What the user asked for, without names and places: a moved or renamed file with the same content is the same evaluation."""
    settings = {f.name: getattr(entry, f.name) for f in dataclasses.fields(entry) if f.name not in ("suite", "name")}
    for field in ("data", "fewshot_data"):
        if settings.get(field) is not None and Path(settings[field]).exists():
            settings[field] = Path(settings[field]).name
    settings.update(confidence=plan.confidence, seed=plan.seed)
    if isinstance(entry, TaskEntry):
        settings.update(task=Path(entry.task).name if entry.is_file else entry.task, batch_size=plan.batch_size)
    return settings


def _data_hashes(entry: Entry) -> list[str]:
    from holdfast.data.sources import content_hash

    if isinstance(entry, PerplexityEntry):
        return [content_hash(entry.data) if Path(entry.data).exists() else f"hub:{entry.data}"]
    from holdfast.evaluation.tasks import local_files

    return [content_hash(path) for path in local_files(entry)]


def plan_fingerprint(plan: EvaluationPlan) -> str:
    """Fingerprint of an `EvaluationPlan` and of the local files it reads: equal, nothing to evaluate again."""
    from holdfast.data.sources import content_hash

    files: list[Path] = []
    for entry in plan.entries:
        if isinstance(entry, PerplexityEntry):
            files.append(Path(entry.data))
        else:
            from holdfast.evaluation.tasks import local_files

            files += local_files(entry)
    return fingerprint({"plan": dataclasses.asdict(plan), "files": [content_hash(f) for f in files if f.exists()]})


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Hash of all that decides a tokenizer's ids and chat text: vocabulary, rules, special tokens and template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules: Any = sorted(tokenizer.get_vocab().items())
    if backend is not None:  # padding and truncation are how it was last called, not what it is
        rules = {name: rule for name, rule in json.loads(backend.to_str()).items() if name not in ("padding", "truncation")}
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
    special.pop("pad_token", None)  # scored text is never padded, and trainers set it in passing
    return fingerprint(
        {"class": type(tokenizer).__name__, "rules": rules, "special": special, "chat_template": getattr(tokenizer, "chat_template", None)}
    )


def _versions(kind: str) -> dict[str, str]:
    versions = {}
    for package in _VERSIONS[kind]:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "unknown"
    return versions


def _kept(folder: EvaluationFolder, entry: Entry, key: str) -> Evaluation | None:
    found = folder.find(entry.suite, entry.name)
    return found if found is not None and found.key == key else None


def _from_cache(cache: str | Path | None, folder: EvaluationFolder, entry: Entry, key: str, identity: Mapping[str, Any]) -> Evaluation | None:
    """Copies a cached evaluation into the folder under this entry's suite and name. The evaluation file is written last, so it implies its rows."""
    if cache is None or not (Path(cache) / key / "evaluation.json").is_file():
        return None
    stored = Evaluation.from_json(read_json(Path(cache) / key / "evaluation.json"))
    evaluation = dataclasses.replace(stored, suite=entry.suite, name=entry.name, model=dict(identity))
    folder.write(evaluation, read_jsonl(Path(cache) / key / "samples.jsonl"))
    return evaluation


@contextmanager
def _progress(description: str, console: Console | None) -> Iterator[Report]:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = console or RichConsole(stderr=True)
    columns: Sequence[Any] = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task(description, total=None)
        yield lambda finished, total: bar.update(row, completed=finished, total=total)
