"""One function a kind of entry: a model and an entry in, per-sample rows and figures with intervals out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError
from holdfast.evaluation.entries import (
    CODE_FAMILIES,
    ChoicesEntry,
    ClassesEntry,
    Entry,
    EvaluationPlan,
    InstructionsEntry,
    PerplexityEntry,
    TaskEntry,
)
from holdfast.evaluation.partial import Partial
from holdfast.records.evaluation import Metric
from holdfast.statistics.estimates import TEXT_FIGURES, Ratio, estimate

Report = Callable[[int, int], None]
Outcome = tuple[list[dict[str, Any]], dict[str, Metric], str, dict[str, Any]]
"""(rows, metrics, the leading metric, what was settled on while measuring)."""

_TEXT = ("nats_per_token", "bits_per_byte", "perplexity")
_MEMORISATION = ("exact_memorisation", "entropy_per_token", *_TEXT)
_ANSWERS = {
    "mass": Ratio(numerator="mass", unit="probability", higher_is_better=True),
    "aligned": Ratio(numerator="aligned", unit="share of questions", higher_is_better=True),
    "entropy": Ratio(numerator="entropy", unit="nats"),
    "option_entropy": Ratio(numerator="option_entropy", unit="nats"),
    "acc": Ratio(numerator="acc", unit="accuracy", higher_is_better=True),
}
_CLASSES = {
    "class_perplexity": TEXT_FIGURES["class_perplexity"],
    "acc": Ratio(numerator="acc", unit="accuracy", higher_is_better=True),
}

_CHOICES = {
    "acc": Ratio(numerator="acc", unit="accuracy", higher_is_better=True),
    "nats_per_token": TEXT_FIGURES["nats_per_token"],
}
_INSTRUCTIONS = {
    f"{level}_level_{how}_acc": Ratio(
        numerator=f"{level}_level_{how}_acc",
        denominator=f"inst_level_{how}_acc#" if level == "inst" else None,
        unit=f"{level}_level_{how}_acc",
        higher_is_better=True,
    )
    for level, how in (("prompt", "strict"), ("inst", "strict"), ("prompt", "loose"), ("inst", "loose"))
}
"""As lm-evaluation-harness calls them: over prompts, or over all instructions of all prompts."""


def measure(
    model: Any, tokenizer: Any, entry: Entry, plan: EvaluationPlan, *, report: Report, partial: Partial
) -> Outcome:
    """Measures one entry.

    Args:
        model: a Hugging Face causal LM, PEFT-wrapped or not; left in the state it came in.
        tokenizer: its tokenizer.
        entry: of the plan.
        plan: settings that all entries share.
        report: called with (done, in all).
        partial: where what is found is kept until the entry is whole.

    Raises:
        UserError: the entry's task, data or tokenizer does not fit.
    """
    if isinstance(entry, PerplexityEntry):
        return _text(model, tokenizer, entry, plan, report, partial)
    if isinstance(entry, ClassesEntry):
        return _classes(model, tokenizer, entry, plan, report, partial)
    if isinstance(entry, ChoicesEntry):
        return _choices(model, tokenizer, entry, plan, report, partial)
    if isinstance(entry, InstructionsEntry):
        return _instructions(model, tokenizer, entry, plan, report, partial)
    return {"task": _task, "answers": _answers, "code": _code}[entry.kind](
        model, tokenizer, entry, plan, report, partial
    )


def check(entry: Entry, tokenizer: Any) -> None:
    """Loads an entry's data and task without a model.

    Raises:
        UserError: as `measure` would.
    """
    from holdfast.evaluation.tasks import harness
    from holdfast.evaluation.text.documents import encode_document

    if isinstance(entry, PerplexityEntry):
        for document in documents_of(entry, tokenizer)[:8]:
            encode_document(document, tokenizer)
    elif isinstance(entry, ClassesEntry):
        from holdfast.evaluation.text.classes import read_classes

        read_classes(entry)
    elif isinstance(entry, ChoicesEntry):
        from holdfast.evaluation.text.choices import read_choices

        read_choices(entry, tokenizer)
    elif isinstance(entry, InstructionsEntry):
        from holdfast.evaluation.text.instructions import read_instructions

        read_instructions(entry, tokenizer)
    elif entry.kind == "answers":
        from holdfast.evaluation.text.answers import check_answers

        check_answers(tokenizer, entry)
    elif entry.kind == "code":
        from holdfast.evaluation.code.programs import check_programs

        check_programs(tokenizer, entry)
    else:
        harness.check_task(tokenizer, entry)


def documents_of(entry: PerplexityEntry, tokenizer: Any) -> list[Any]:
    """The documents of a text entry, for `holdfast.evaluation.text.documents`."""
    from holdfast.data.formats import Templates, standardise
    from holdfast.data.sources import data_files, load_rows
    from holdfast.evaluation.text.documents import documents_from

    rows = load_rows(entry.data, split=entry.split, config=entry.config)
    whole = entry.max_documents is None and Path(entry.data).is_file()
    if entry.max_documents is not None:
        rows = rows.select(range(min(entry.max_documents, len(rows))))
    given = (entry.text, entry.prompt, entry.completion)
    templates = Templates(text=entry.text, prompt=entry.prompt, completion=entry.completion) if any(given) else None
    dataset, _ = standardise(rows, tokenizer, templates=templates, files=data_files(entry.data) if whole else None)
    return documents_from(dataset)


def figures(rows: Sequence[dict[str, Any]], wanted: dict[str, Ratio], plan: EvaluationPlan) -> dict[str, Metric]:
    """Figures with intervals, all of them over the same draws."""
    found = {}
    for name, figure in wanted.items():
        value, interval = estimate(figure, rows, confidence=plan.confidence, seed=plan.seed)
        better = figure.higher_is_better
        found[name] = Metric(
            value=value,
            n=len(rows),
            unit=figure.unit,
            higher_is_better=better,
            interval=interval,
            confidence=plan.confidence,
        )
    return found


def _text(
    model: Any, tokenizer: Any, entry: PerplexityEntry, plan: EvaluationPlan, report: Report, partial: Partial
) -> Outcome:
    from holdfast.evaluation.text.documents import starts_with_bos
    from holdfast.evaluation.text.perplexity import resolve_window, score_documents

    window, stride = resolve_window(model, entry.window, entry.stride)
    notes: list[str] = []
    documents = documents_of(entry, tokenizer)
    rows = score_documents(
        model,
        tokenizer,
        documents,
        window=window,
        stride=stride,
        progress=report,
        notes=notes,
        memorisation=entry.memorisation,
        partial=partial,
    )
    names = _MEMORISATION if entry.memorisation else _TEXT
    found = {
        "window": window,
        "stride": stride,
        "bos": starts_with_bos(tokenizer),
        "tokens": sum(row["tokens"] for row in rows),
        "bytes": sum(row["bytes"] for row in rows),
        "notes": notes,
    }
    return rows, figures(rows, {name: TEXT_FIGURES[name] for name in names}, plan), names[0], found


def _classes(
    model: Any, tokenizer: Any, entry: ClassesEntry, plan: EvaluationPlan, report: Report, partial: Partial
) -> Outcome:
    from holdfast.evaluation.text.classes import read_classes, score_classes

    prompts, golds = read_classes(entry)
    rows = score_classes(model, tokenizer, prompts, golds, entry.options, progress=report, partial=partial)
    return rows, figures(rows, _CLASSES, plan), "class_perplexity", {"options": list(entry.options)}


def _choices(
    model: Any, tokenizer: Any, entry: ChoicesEntry, plan: EvaluationPlan, report: Report, partial: Partial
) -> Outcome:
    from holdfast.evaluation.text.choices import read_choices, score_choices

    questions = read_choices(entry, tokenizer)
    rows = score_choices(
        model, tokenizer, questions, length_normalised=entry.length_normalised, progress=report, partial=partial
    )
    groups = sorted({row["task"] for row in rows if "task" in row})
    return rows, figures(rows, _CHOICES, plan), "acc", {"subtasks": groups}


def _instructions(
    model: Any, tokenizer: Any, entry: InstructionsEntry, plan: EvaluationPlan, report: Report, partial: Partial
) -> Outcome:
    from holdfast.evaluation.text.instructions import answer_instructions, read_instructions

    asked = read_instructions(entry, tokenizer)
    rows, found = answer_instructions(
        model,
        tokenizer,
        asked,
        max_new_tokens=entry.max_new_tokens,
        batch_size=plan.batch_size,
        progress=report,
        partial=partial,
    )
    return rows, figures(rows, _INSTRUCTIONS, plan), "prompt_level_strict_acc", found


def _answers(
    model: Any, tokenizer: Any, entry: TaskEntry, plan: EvaluationPlan, report: Report, partial: Partial
) -> Outcome:
    from holdfast.evaluation.text.answers import score_answers

    rows, found = score_answers(
        model, tokenizer, entry, batch_size=plan.batch_size, seed=plan.seed, progress=report, partial=partial
    )
    return rows, figures(rows, _ANSWERS, plan), "mass", found


def _task(
    model: Any, tokenizer: Any, entry: TaskEntry, plan: EvaluationPlan, report: Report, partial: Partial
) -> Outcome:
    from holdfast.evaluation.tasks.harness import run_task

    scores = run_task(
        model,
        tokenizer,
        entry,
        batch_size=plan.batch_size,
        confidence=plan.confidence,
        seed=plan.seed,
        progress=report,
        partial=partial,
    )
    return scores.rows, scores.metrics, scores.primary, {**scores.settings, "notes": scores.notes}


def _code(
    model: Any, tokenizer: Any, entry: TaskEntry, plan: EvaluationPlan, report: Report, partial: Partial
) -> Outcome:
    from holdfast.evaluation.code.programs import passes_of, run_programs

    if not plan.allow_code_execution:
        raise ConfigError(
            f"{entry.suite}/{entry.name} runs programs that the model writes. Say `allow_code_execution: true` "
            f"(--allow_code_execution) to run them "
            f"in the sandbox, or take it out. ({CODE_FAMILIES[entry.task]})"
        )
    rows, found = run_programs(
        model, tokenizer, entry, batch_size=plan.batch_size, seed=plan.seed, progress=report, partial=partial
    )
    wanted = {name: Ratio(numerator=name, unit=name, higher_is_better=True) for name in passes_of(entry)}
    return rows, figures(rows, wanted, plan), next(iter(wanted)), found
