"""Runs a plan for a run folder: what is there is kept, what is missing is computed, one entry at a time.

Every entry has a key: the fingerprint of the model's hash, the tokenizer, the data's content, the settings, and the
versions of the libraries that compute the figures. An evaluation in the folder with the same key is not computed again;
neither is one in the `cache` folder, which several runs share (the bare starting model of a sweep is evaluated once).
Evaluations are written as soon as they are done, and what an entry has found so far is kept beside them (`partial`), so
an interrupted run continues in the middle of an entry.

An entry with a sample or a figure that is NaN or infinite has failed. It is written, with its rows and the reason, so
that people can look at it; the entries after it are measured; it is measured again by the next call; and this one ends
in `NotFinite`.

Several processes (`processes`) call it alike, each with the whole model: batches are dealt out, the main process alone
reads and writes the folder, and all return the same.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import DataError, NotFinite, RunFolderError, UserError
from holdfast.evaluation.averages import SUITE, averages_of
from holdfast.evaluation.circumstances import KEYS as CIRCUMSTANCES
from holdfast.evaluation.circumstances import circumstances
from holdfast.evaluation.entries import DataEntry, Entry, EvaluationPlan
from holdfast.evaluation.images import processor_fingerprint
from holdfast.evaluation.measures import Subject, check, measure
from holdfast.evaluation.partial import Partial
from holdfast.evaluation.processes import SINGLE, ProcessGroup
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, EvaluationFolder, read_samples, write_evaluation
from holdfast.records.run import RunFolder
from holdfast.support.environment import package_version
from holdfast.support.files import fingerprint, read_as
from holdfast.support.progress import counted

if TYPE_CHECKING:
    from rich.console import Console

_RULES = 3
"""Raised when what is scored, or what an interval counts as a sample, changes (BOS, borders, windows; copies since 3),
so that older evaluations are made again instead of compared with."""
_OF_THE_MODEL = ("configuration", "loaded", "added_tokens")
"""What of a model's identity decides its figures beside its hash."""
_LIBRARIES = ("torch", "transformers", "tokenizers", "datasets")


def evaluate(
    model: Any,
    tokenizer: Any,
    plan: EvaluationPlan,
    *,
    folder: EvaluationFolder,
    model_identity: Mapping[str, Any],
    cache: str | Path | None = None,
    console: Console | None = None,
    start: EvaluationFolder | None = None,
    processes: ProcessGroup = SINGLE,
    processor: Callable[[], Any] | None = None,
) -> list[Evaluation]:
    """Evaluates one model on all entries of a plan.

    Args:
        model: a Hugging Face causal LM, PEFT-wrapped or not; left in the state it came in.
        tokenizer: its tokenizer.
        plan: what to measure.
        folder: where evaluations and per-sample rows go; for a run, `RunFolder.evaluated("start")` or `("result")`.
        model_identity: `{"name": ..., "hash": ...}`; the hash must change whenever the weights do. Further entries of
            `_OF_THE_MODEL` decide the figures, too.
        cache: folder shared between runs; None: none.
        console: where progress bars go; None: standard error. Bars show on terminals only.
        start: what was measured of the model that this one is held against, where an entry does that; `folder` itself
            where it is that model.
        processes: those that share the work; every one of them calls this.
        processor: gives the processor of a vision-language model, called where an entry has images; None: the model
            takes text only.

    Returns:
        One evaluation an entry, in the plan's order, and then one an average.

    Raises:
        UserError: an entry's task, data or tokenizer does not fit (`check_plan` finds these out before a training run).
        NotFinite: entries failed, all of them are named; every evaluation is in the folder.
        StorageError: the disk is full; entries finished before are kept.
    """
    tokenizer_hash = tokenizer_fingerprint(tokenizer)
    around = circumstances(model, tokenizer, tokenizer_rules(tokenizer))
    measured: dict[str, Evaluation] = {}

    def one(number: int, entry: Entry) -> Evaluation:
        def kept() -> tuple[str, Evaluation | None]:
            key = _key(entry, plan, tokenizer_hash, model_identity, _start_key(entry, folder, start), processor)
            found = _kept(folder, entry, key) or _from_cache(cache, folder, entry, key, model_identity)
            if found is None and key in measured:  # the same task in two suites
                first = measured[key]
                found = dataclasses.replace(first, suite=entry.suite, name=entry.name)
                folder.write(found, folder.samples(first.suite, first.name))
            return key, found

        key, known = processes.broadcast(kept)
        if known is not None:
            measured.setdefault(key, known)
            return known
        started = time.perf_counter()
        partial = Partial(folder.path / f".{key}.partial.jsonl", processes=processes)
        shown = f"Evaluating {entry.suite}/{entry.name} ({number} of {len(plan.entries)})"
        try:
            with counted(shown, console=console) as report:
                report(0)
                on = Subject(
                    model=model, tokenizer=tokenizer, processor=processor, plan=plan, report=report, partial=partial,
                    folder=folder, start=start, processes=processes,
                    verdicts=folder.path if cache is None else Path(cache) / "verdicts",
                )  # fmt: skip
                outcome = measure(entry, on)
                metrics = outcome.metrics(plan)
        except UserError as error:
            raise type(error)(f"{entry.suite}/{entry.name}: {error}") from error
        finally:
            partial.flush()

        def written() -> Evaluation:
            evaluation = Evaluation(
                suite=entry.suite,
                name=entry.name,
                kind=entry.kind,
                primary=outcome.primary,
                metrics=metrics,
                settings={**_settings(entry, plan), **outcome.settings},
                model={**around, **model_identity},
                key=key,
                seconds=time.perf_counter() - started,
                versions=_versions(entry),
                references=outcome.levels,
                failed=outcome.failed,
            )
            folder.write(evaluation, outcome.rows)
            if cache is not None and evaluation.failed is None:
                write_evaluation(evaluation, outcome.rows, *_cached(cache, key))
            return evaluation

        measured[key] = processes.broadcast(written)
        partial.remove()
        return measured[key]

    done = [one(number, entry) for number, entry in enumerate(plan.entries, 1)]
    averages = processes.broadcast(lambda: _with_averages(folder, plan, model_identity))
    if broken := [f"{e.suite}/{e.name}: {e.failed}" for e in done if e.failed is not None]:
        raise NotFinite(
            f"{model_identity.get('name')}: expected finite figures, got NaN or infinity in {len(broken)} of "
            f"{len(done)} entries: {' '.join(broken)} The rows are in {folder.path}. {_why_not_finite(model)}"
        )
    return [*done, *averages]


def _why_not_finite(model: Any) -> str:
    """What to look at where a model's figures are not finite: the first of its tensors that is not."""
    parameters = getattr(model, "named_parameters", None)
    for name, tensor in parameters() if parameters is not None else ():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            return f"{name} holds NaN or infinity: copy the weights again, or go back to an earlier checkpoint."
    return (
        "Look at the model: its weights ('holdfast inspect --verify'), and its dtype (float16 overflows where bfloat16 "
        "and float32 do not)."
    )


def _with_averages(
    folder: EvaluationFolder, plan: EvaluationPlan, model_identity: Mapping[str, Any]
) -> list[Evaluation]:
    """The plan's averages, which are in the folder when this returns."""
    averages = averages_of(folder, plan, model_identity)
    for evaluation in averages:
        if folder.find(evaluation.suite, evaluation.name) != evaluation:
            folder.write(evaluation, [])
    return averages


def kept_evaluations(
    plan: EvaluationPlan,
    tokenizer: Any,
    folder: EvaluationFolder,
    model_identity: Mapping[str, Any],
    *,
    cache: str | Path | None = None,
    start: EvaluationFolder | None = None,
    processor: Callable[[], Any] | None = None,
) -> list[Evaluation] | None:
    """What `evaluate` would give without the model, None where something is left to compute. Arguments as there; what
    is in the cache is in the folder when this returns."""
    tokenizer_hash = tokenizer_fingerprint(tokenizer)
    found = []
    for entry in plan.entries:
        key = _key(entry, plan, tokenizer_hash, model_identity, _start_key(entry, folder, start), processor)
        kept = _kept(folder, entry, key) or _from_cache(cache, folder, entry, key, model_identity)
        if kept is None:
            return None
        found.append(kept)
    return [*found, *_with_averages(folder, plan, model_identity)]


def check_whole(folder: EvaluationFolder, plan: EvaluationPlan) -> None:
    """Looks whether every entry and average of a plan is there, once all were measured.

    Raises:
        RunFolderError: what is gone.
    """
    keys = [(e.suite, e.name) for e in plan.entries] + [(SUITE, a.name) for a in plan.averages]
    gone = [f"{suite}/{name}" for suite, name in keys if folder.find(suite, name) is None]
    if gone:
        raise RunFolderError(
            f"Expected what was measured of {', '.join(gone)} in {folder.path}, found no file of it. It was deleted or "
            f"moved since: put it back, or measure anew in another output_dir."
        )


def compare_runs(folder: RunFolder, plan: EvaluationPlan, *, resamples: int = 4000) -> list[Comparison]:
    """Compares start and result of every entry and average, writes `comparisons.json` and returns it.

    The order is the plan's: source, target, then other suites, then averages; within an entry the primary metric comes
    first.

    Raises:
        DataError: start and result did not answer the same samples, or were not measured alike; all of it.
        RunFolderError: what was measured of an entry is gone.
    """
    from holdfast.evaluation.compare.folders import compare_entries, match_entries

    before, after = folder.evaluated("start"), folder.evaluated("result")
    for side in (before, after):
        check_whole(side, plan)
    keys = [(e.suite, e.name) for e in plan.entries] + [(SUITE, a.name) for a in plan.averages]
    sides = [[found for key in keys if (found := side.find(*key)) is not None] for side in (before, after)]
    matching = match_entries(*sides)
    compared = compare_entries(before, after, matching, confidence=plan.confidence, resamples=resamples, seed=plan.seed)
    refused = [str(u) for u in compared.unmatched if u.why == "refused"]
    if refused:
        raise DataError(*refused)
    places = {key: place for place, key in enumerate(keys)}
    comparisons = sorted(compared.comparisons, key=lambda c: places[c.suite, c.name])
    folder.write_comparisons(comparisons)
    return comparisons


def check_plan(plan: EvaluationPlan, tokenizer: Any, processor: Callable[[], Any] | None = None) -> list[str]:
    """Loads every entry's data and tasks without a model, so that a mistake shows before training and not after it;
    arguments as of `evaluate`.

    Returns:
        One sentence a problem, beginning with the entry; empty when all is well.
    """
    problems = []
    for entry in plan.entries:
        try:
            check(entry, tokenizer, processor)
        except UserError as error:
            problems.append(f"{entry.suite}/{entry.name}: {error}")
    return problems


# --------------------------------------------------------------------------------------------------------------- keys


def _key(
    entry: Entry,
    plan: EvaluationPlan,
    tokenizer_hash: str,
    model_identity: Mapping[str, Any],
    start: str | None = None,
    processor: Callable[[], Any] | None = None,
) -> str:
    return fingerprint(
        {
            **({"start": start} if entry.against_start else {}),
            **({"processor": processor_fingerprint(processor)} if processor and entry.takes_images else {}),
            "model": model_identity["hash"],
            **{name: model_identity[name] for name in _OF_THE_MODEL if name in model_identity},
            "tokenizer": tokenizer_hash,
            "data": _data_hashes(entry),
            "kind": entry.kind,
            "rules": _RULES,
            "settings": _settings(entry, plan),
            "versions": _versions(entry),
        }
    )


def _start_key(entry: Entry, folder: EvaluationFolder, start: EvaluationFolder | None) -> str | None:
    """What tells the start that a model is held against from others; "itself" for the start, None where it is not
    measured or not asked for."""
    if not entry.against_start:
        return None
    if start is None or start.path == folder.path:
        return None if start is None else "itself"
    found = start.find(entry.suite, entry.name)
    return None if found is None else found.key


def _settings(entry: Entry, plan: EvaluationPlan) -> dict[str, Any]:
    """What the user asked for, without names and places."""
    shared = ("confidence", "seed", *(("batch_size",) if entry.batched else ()))
    return {**entry.deciding(), **{name: getattr(plan, name) for name in shared}}


def _data_hashes(entry: Entry) -> list[str]:
    from holdfast.data.sources import content_hash

    hashes = [content_hash(file) for file in entry.local_files()]
    return hashes or ([f"hub:{entry.data}"] if isinstance(entry, DataEntry) else [])


def plan_fingerprint(plan: EvaluationPlan) -> str:
    """Fingerprint of an `EvaluationPlan` and of the local files it reads: equal, nothing to evaluate again."""
    from holdfast.data.sources import content_hash

    files = [file for entry in plan.entries for file in entry.local_files() if file.exists()]
    return fingerprint({"plan": plan.record(), "files": [content_hash(file) for file in files]})


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Hash of all that decides a tokenizer's ids and chat text: vocabulary, rules, special tokens and template."""
    from holdfast.support.dates import dates_in

    template = getattr(tokenizer, "chat_template", None)
    dates = dates_in(template)
    return fingerprint({**({"dates": dates} if dates else {}), **tokenizer_rules(tokenizer), "chat_template": template})


def tokenizer_rules(tokenizer: Any) -> dict[str, Any]:
    """What decides a tokenizer's ids: its class, vocabulary, rules and special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules: Any = sorted(tokenizer.get_vocab().items())
    if backend is not None:  # padding and truncation are how it was last called, not what it is
        rules = {
            name: rule for name, rule in json.loads(backend.to_str()).items() if name not in ("padding", "truncation")
        }
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
    special.pop("pad_token", None)  # scored text is never padded, and trainers set it in passing
    return {"class": type(tokenizer).__name__, "rules": rules, "special": special}


def _versions(entry: Entry) -> dict[str, str]:
    found = {name: package_version(name) or "unknown" for name in (*_LIBRARIES, *entry.libraries)}
    return {**found, **entry.versions()}


def _kept(folder: EvaluationFolder, entry: Entry, key: str) -> Evaluation | None:
    found = folder.find(entry.suite, entry.name)
    return found if found is not None and found.key == key and found.failed is None else None


def _from_cache(
    cache: str | Path | None, folder: EvaluationFolder, entry: Entry, key: str, identity: Mapping[str, Any]
) -> Evaluation | None:
    """Copies a cached evaluation into the folder under this entry's suite and name. The evaluation file is written
    last, so it implies its rows."""
    if cache is None:
        return None
    file, rows = _cached(cache, key)
    if not file.is_file():
        return None
    stored = read_as(file, Evaluation)
    if stored.failed is not None:
        return None
    around = {key: stored.model[key] for key in CIRCUMSTANCES if key in stored.model}
    model = {**around, **identity}
    evaluation = dataclasses.replace(stored, suite=entry.suite, name=entry.name, model=model)
    folder.write(evaluation, read_samples(file, rows))
    return evaluation


def _cached(cache: str | Path, key: str) -> tuple[Path, Path]:
    """Where an evaluation of that key and its rows lie in a cache."""
    return Path(cache) / key / "evaluation.json", Path(cache) / key / "samples.jsonl"
