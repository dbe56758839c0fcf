"""Runs a plan for a run folder: what is there is kept, what is missing is computed, one entry at a
time.

Every entry has a key: the fingerprint of the model's hash, the tokenizer, the data's content, the
settings, and the versions of the libraries that compute the figures. An evaluation in the folder
with the same key is not computed again; neither is one in the `cache` folder, which several runs
share (the bare starting model of a sweep is evaluated once). Evaluations are written as soon as
they are done, and what an entry has found so far is kept beside them (`partial`), so an interrupted
run continues in the middle of an entry.

An entry with a sample or a figure that is NaN or infinite has failed. It is written, with its rows
and the reason, so that people can look at it; the entries after it are measured; it is measured
again by the next call; and this one ends in `NotFinite`.

Several processes (`processes`) call it alike, each with the whole model: batches are dealt out, the
main process alone reads and writes the folder, and all return the same.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import DataError, NotFinite, Problem, RunFolderError, UserError
from holdfast.evaluation.averages import SUITE, averages_of
from holdfast.evaluation.circumstances import KEYS as CIRCUMSTANCES
from holdfast.evaluation.circumstances import circumstances
from holdfast.evaluation.entries import DataEntry, Entry, EvaluationPlan, Processor
from holdfast.evaluation.images import processor_fingerprint
from holdfast.evaluation.measures import Subject, check, measure
from holdfast.evaluation.processes import SINGLE, ProcessGroup
from holdfast.evaluation.resume import Partial
from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Evaluation, EvaluationFolder, read_samples, write_evaluation
from holdfast.records.run import RunFolder
from holdfast.support.environment import package_version
from holdfast.support.files import fingerprint, read_as
from holdfast.support.progress import counted

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.models import Loaded

_RULES = 3
"""Raised when what is scored, or what an interval counts as a sample, changes (BOS, borders,
windows; copies since 3), so that older evaluations are made again instead of compared with."""
_OF_THE_MODEL = ("configuration", "loaded", "added_tokens")
"""What of a model's identity decides its figures beside its hash."""
_LIBRARIES = ("torch", "transformers", "tokenizers", "datasets")


def evaluate(
    loaded: Loaded,
    plan: EvaluationPlan,
    *,
    folder: EvaluationFolder,
    cache: str | Path | None = None,
    console: Console | None = None,
    start: EvaluationFolder | None = None,
    processes: ProcessGroup = SINGLE,
) -> list[Evaluation]:
    """Evaluates one model on all entries of a plan.

    Args:
        loaded: a Hugging Face causal LM with its tokenizer, with or without PEFT. The call leaves
            the model in the state in which it came. Entries with images call its processor; None:
            the model takes text only. Its identity must have "name" and "hash", and the hash must
            change whenever the weights do. The identity entries in `_OF_THE_MODEL` affect the
            figures, too.
        plan: what to measure.
        folder: where evaluations and per-sample rows are written; for a run,
            `RunFolder.evaluated("start")` or `("result")`.
        cache: a folder of evaluations that runs share; None: none.
        console: where progress bars are shown; None: standard error. Bars show on terminals only.
        start: the evaluations of the initial model, for entries that compare a model with it;
            `folder` itself if this is the initial model.
        processes: the processes that share the work; each of them makes this call.

    Returns:
        The evaluations: one an entry, in the plan's order, and then one an average.

    Raises:
        UserError: the task, data or tokenizer of an entry does not fit. (`check_plan` finds this
            before a training run.)
        NotFinite: figures of some entries are NaN or infinite; the message names all of them, and
            every evaluation is in the folder.
        StorageError: the disk is full; finished entries are intact.
    """
    store = _Kept(
        plan=plan,
        folder=folder,
        tokenizer_hash=tokenizer_fingerprint(loaded.tokenizer),
        model_identity=loaded.identity,
        cache=cache,
        start=start,
        processor=loaded.processor,
    )
    rules = tokenizer_rules(loaded.tokenizer)
    about_model = {**circumstances(loaded.model, loaded.tokenizer, rules), **loaded.identity}
    evaluations: list[Evaluation] = []
    for number, entry in enumerate(plan.entries, 1):
        key, evaluation = processes.broadcast(functools.partial(store.find, entry, evaluations))
        if evaluation is not None:
            evaluations.append(evaluation)
            continue
        started = time.perf_counter()
        partial = Partial(folder.path / f".{key}.partial.jsonl", processes=processes)
        title = f"Evaluating {entry.path} ({number} of {len(plan.entries)})"
        try:
            with counted(title, console=console) as report:
                report(0)
                on = Subject(
                    model=loaded.model, tokenizer=loaded.tokenizer, processor=loaded.processor, plan=plan,
                    report=report, partial=partial, folder=folder, start=start, processes=processes,
                    verdicts=folder.path if cache is None else Path(cache) / "verdicts",
                )  # fmt: skip
                outcome = measure(entry, on)
                metrics = outcome.metrics(plan)
        except UserError as error:
            raise type(error)(f"{entry.path}: {error}") from error
        finally:
            partial.flush()
        evaluation = Evaluation(
            suite=entry.suite,
            name=entry.name,
            kind=entry.kind,
            primary=outcome.primary,
            metrics=metrics,
            settings={**_settings(entry, plan), **outcome.settings},
            model=about_model,
            key=key,
            seconds=time.perf_counter() - started,
            versions=_versions(entry),
            references=outcome.levels,
            failed=outcome.failed,
        )
        write = functools.partial(store.write, evaluation, outcome.rows)
        evaluations.append(processes.broadcast(write))
        partial.remove()
    averages = processes.broadcast(lambda: _with_averages(folder, plan, loaded.identity))
    failures = []
    for evaluation in evaluations:
        if evaluation.failed is not None:
            failures.append(f"{evaluation.suite}/{evaluation.name}: {evaluation.failed}")
    if failures:
        raise NotFinite(
            f"{loaded.identity.get('name')}: expected finite figures, got NaN or infinity in "
            f"{len(failures)} of {len(evaluations)} entries: {' '.join(failures)} The rows are in "
            f"{folder.path}. {_why_not_finite(loaded.model)}"
        )
    return [*evaluations, *averages]


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """What is measured already of one model: in its folder, and in the cache. Fields as of
    `kept_evaluations`."""

    plan: EvaluationPlan
    folder: EvaluationFolder
    tokenizer_hash: str
    model_identity: Mapping[str, Any]
    cache: str | Path | None
    start: EvaluationFolder | None
    processor: Processor | None

    def find(
        self, entry: Entry, measured: Sequence[Evaluation] = ()
    ) -> tuple[str, Evaluation | None]:
        """An entry's key, and its evaluation, which is in the folder then; None where it has to be
        computed.

        Args:
            entry: of the plan.
            measured: those before it, as the same task may stand in two suites.
        """
        key = self.key(entry)
        evaluation = self.folder.find(entry.suite, entry.name)
        if evaluation is not None and evaluation.key == key and evaluation.failed is None:
            return key, evaluation
        evaluation = self._from_cache(entry, key)
        if evaluation is not None:
            return key, evaluation
        for other in measured:
            if other.key == key:
                evaluation = dataclasses.replace(other, suite=entry.suite, name=entry.name)
                self.folder.write(evaluation, self.folder.samples(other.suite, other.name))
                return key, evaluation
        return key, None

    def key(self, entry: Entry) -> str:
        """The fingerprint of all that decides an entry's figures."""
        content = {
            "model": self.model_identity["hash"],
            "tokenizer": self.tokenizer_hash,
            "data": _data_hashes(entry),
            "kind": entry.kind,
            "rules": _RULES,
            "settings": _settings(entry, self.plan),
            "versions": _versions(entry),
        }
        if entry.against_start:
            content["start"] = self._start_key(entry)
        if self.processor and entry.takes_images:
            content["processor"] = processor_fingerprint(self.processor)
        for name in _OF_THE_MODEL:
            if name in self.model_identity:
                content[name] = self.model_identity[name]
        return fingerprint(content)

    def _start_key(self, entry: Entry) -> str | None:
        """What tells the start that the model is held against from others; "itself" for the start,
        None where it is not measured."""
        if self.start is None or self.start.path == self.folder.path:
            return None if self.start is None else "itself"
        evaluation = self.start.find(entry.suite, entry.name)
        return None if evaluation is None else evaluation.key

    def _from_cache(self, entry: Entry, key: str) -> Evaluation | None:
        """Copies a cached evaluation into the folder under this entry's suite and name. The
        evaluation file is written last, so it implies its rows."""
        if self.cache is None:
            return None
        file, rows = _cached(self.cache, key)
        if not file.is_file():
            return None
        stored = read_as(file, Evaluation)
        if stored.failed is not None:
            return None
        model = {name: stored.model[name] for name in CIRCUMSTANCES if name in stored.model}
        model |= self.model_identity
        evaluation = dataclasses.replace(stored, suite=entry.suite, name=entry.name, model=model)
        self.folder.write(evaluation, read_samples(file, rows))
        return evaluation

    def write(self, evaluation: Evaluation, rows: list[dict[str, Any]]) -> Evaluation:
        """Puts an evaluation into the folder and the cache, and gives it back."""
        self.folder.write(evaluation, rows)
        if self.cache is not None and evaluation.failed is None:
            write_evaluation(evaluation, rows, *_cached(self.cache, evaluation.key))
        return evaluation


def _why_not_finite(model: Any) -> str:
    """What to look at where a model's figures are not finite: the first of its tensors that is
    not."""
    parameters = getattr(model, "named_parameters", None)
    for name, tensor in parameters() if parameters is not None else ():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            return (
                f"{name} holds NaN or infinity: copy the weights again, or go back to an earlier "
                "checkpoint."
            )
    return (
        "Check the model's weights ('holdfast inspect --verify') and its dtype (float16 "
        "overflows where bfloat16 and float32 do not)."
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
    processor: Processor | None = None,
) -> list[Evaluation] | None:
    """What `evaluate` would give without the model, None where something is left to compute.
    Arguments as there, those of the model one by one; what is in the cache is in the folder when
    this returns."""
    store = _Kept(
        plan=plan,
        folder=folder,
        tokenizer_hash=tokenizer_fingerprint(tokenizer),
        model_identity=model_identity,
        cache=cache,
        start=start,
        processor=processor,
    )
    evaluations = []
    for entry in plan.entries:
        _, evaluation = store.find(entry)
        if evaluation is None:
            return None
        evaluations.append(evaluation)
    return [*evaluations, *_with_averages(folder, plan, model_identity)]


def _keys(plan: EvaluationPlan) -> list[tuple[str, str]]:
    """Suite and name of every entry and average of a plan, in its order."""
    entries = [(entry.suite, entry.name) for entry in plan.entries]
    return entries + [(SUITE, average.name) for average in plan.averages]


def check_whole(folder: EvaluationFolder, plan: EvaluationPlan) -> None:
    """Looks whether every entry and average of a plan is there, once all were measured.

    Raises:
        RunFolderError: what is gone.
    """
    gone = ["/".join(key) for key in _keys(plan) if folder.find(*key) is None]
    if gone:
        raise RunFolderError(
            f"Expected the results of {', '.join(gone)} in {folder.path}, found none. They were "
            "deleted or moved. Restore them, or measure again in another output_dir."
        )


def compare_runs(
    folder: RunFolder, plan: EvaluationPlan, *, resamples: int = 4000
) -> list[Comparison]:
    """Compares the initial model with the result on every entry and average. It writes
    `comparisons.json` and returns the comparisons.

    They come in the plan's order: keep, learn, then other suites, then averages. In each entry the
    primary metric comes first.

    Raises:
        DataError: the two models did not answer the same samples, or were not measured in the same
            way; the message lists all differences.
        RunFolderError: the evaluation of an entry is missing.
    """
    from holdfast.evaluation.compare.folders import compare_entries, match_entries
    from holdfast.evaluation.compare.samples import ComparisonOptions

    keys = _keys(plan)
    folders, sides = (folder.evaluated("start"), folder.evaluated("result")), []
    for evaluated in folders:
        check_whole(evaluated, plan)
        evaluations = (evaluated.find(*key) for key in keys)
        sides.append([evaluation for evaluation in evaluations if evaluation is not None])
    options = ComparisonOptions(confidence=plan.confidence, resamples=resamples, seed=plan.seed)
    compared = compare_entries(*folders, match_entries(*sides), options)
    refused = [str(entry) for entry in compared.unmatched if entry.why == "refused"]
    if refused:
        raise DataError(*refused)
    comparisons = sorted(compared.comparisons, key=lambda c: keys.index((c.suite, c.name)))
    folder.write_comparisons(comparisons)
    return comparisons


def check_plan(
    plan: EvaluationPlan, tokenizer: Any, processor: Processor | None = None
) -> list[Problem]:
    """Loads every entry's data and tasks without a model, so that a mistake shows before training
    and not after it; arguments as of `evaluate`.

    Returns:
        One sentence a problem, beginning with the entry; empty when all is well.
    """
    problems = []
    for entry in plan.entries:
        try:
            check(entry, tokenizer, processor)
        except UserError as error:
            problems.append(Problem(entry.path, f"{error}"))
    return problems


# --------------------------------------------------------------------------------------------- keys


def _settings(entry: Entry, plan: EvaluationPlan) -> dict[str, Any]:
    """What the user asked for, without names and places."""
    settings = {**entry.deciding(), "confidence": plan.confidence, "seed": plan.seed}
    if entry.batched:
        settings["batch_size"] = plan.batch_size
    return settings


def _data_hashes(entry: Entry) -> list[str]:
    from holdfast.data.sources import content_hash

    hashes = [content_hash(file) for file in entry.local_files()]
    return hashes or ([f"hub:{entry.data}"] if isinstance(entry, DataEntry) else [])


def plan_fingerprint(plan: EvaluationPlan) -> str:
    """Fingerprint of an `EvaluationPlan` and of the local files it reads: equal, nothing to
    evaluate again."""
    from holdfast.data.sources import content_hash

    hashes = []
    for entry in plan.entries:
        hashes += [content_hash(file) for file in entry.local_files() if file.exists()]
    return fingerprint({"plan": plan.record(), "files": hashes})


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """Hash of all that decides a tokenizer's ids and chat text: vocabulary, rules, special tokens
    and template."""
    return _hashes(tokenizer)[0]


def tokenizer_rules(tokenizer: Any) -> str:
    """Hash of what decides a tokenizer's ids: its class, vocabulary, rules and special tokens."""
    return _hashes(tokenizer)[1]


def _hashes(tokenizer: Any) -> tuple[str, str]:
    """The two hashes of a tokenizer."""
    from holdfast.support.dates import dates_in

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        rules = json.dumps(sorted(tokenizer.get_vocab().items()))
    else:
        rules = backend.to_str()
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
    special.pop("pad_token", None)  # scored text is never padded, and trainers set it in passing
    template = getattr(tokenizer, "chat_template", None)
    chat = {"chat_template": template}
    if dates := dates_in(template):
        chat["dates"] = dates
    words = json.dumps([{"class": type(tokenizer).__name__, "special": special}, chat])
    return _hashed(rules, words)


@functools.lru_cache(maxsize=4)  # a large vocabulary takes seconds
def _hashed(rules: str, words: str) -> tuple[str, str]:
    """The two hashes of JSON: the rules, and a class and special tokens beside a chat template."""
    parsed = json.loads(rules)
    if isinstance(parsed, dict):
        for name in ("padding", "truncation"):  # how it was last called, not what it is
            parsed.pop(name, None)
    content, chat = json.loads(words)
    content["rules"] = parsed
    of_rules = fingerprint(content, length=16, plain=True)
    return fingerprint({**content, **chat}, plain=True), of_rules


def _versions(entry: Entry) -> dict[str, str]:
    versions = {
        name: package_version(name) or "unknown" for name in (*_LIBRARIES, *entry.libraries)
    }
    return {**versions, **entry.versions()}


def _cached(cache: str | Path, key: str) -> tuple[Path, Path]:
    """Where an evaluation of that key and its rows lie in a cache."""
    return Path(cache) / key / "evaluation.json", Path(cache) / key / "samples.jsonl"
