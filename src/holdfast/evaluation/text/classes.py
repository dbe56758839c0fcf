"""Classification by likelihood: which class's name would the model say after the text?

For a text x and class names c of |c| tokens:

    score(c) = log p(c | x) / |c|        p(c) = softmax_c score(c)        nats = -log p(gold)

The mean is over tokens, so that a long name is no handicap; the perplexity of the gold class is exp of the mean nats
over texts. Source: the in-domain measure of the overtraining study (paper 003, appendix C.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import DataError
from holdfast.evaluation.entries import ClassesEntry, EvaluationPlan
from holdfast.evaluation.measures import Outcome, Report, figures
from holdfast.evaluation.partial import Partial
from holdfast.evaluation.text.documents import border_ids
from holdfast.evaluation.text.question_files import question_rows
from holdfast.evaluation.text.shared_prefix import normalised, score_options
from holdfast.statistics.estimates import TEXT_FIGURES, Ratio
from holdfast.support.files import fingerprint

_FIGURES = {
    "class_perplexity": TEXT_FIGURES["class_perplexity"],
    "acc": Ratio(numerator="acc", unit="accuracy", higher_is_better=True),
}


def read_classes(entry: ClassesEntry) -> tuple[list[str], list[int]]:
    """(prompts, index of the right class) of every row.

    Raises:
        DataError: no rows, columns that the template names are missing, or a label that is no class.
    """
    rows = question_rows(entry.data, split=entry.split, config=entry.config, limit=entry.max_documents, needed=())
    columns = list(rows.column_names)
    if entry.label not in columns:
        raise DataError(
            f"{entry.data} has no column '{entry.label}' with the right class (it has {', '.join(columns)}). Name it "
            f"with `label`."
        )
    prompts, golds, bad = [], [], []
    known = {name: index for index, name in enumerate(entry.labels)} or {
        str(index): index for index in range(len(entry.options))
    }
    for number, row in enumerate(rows):
        try:
            prompts.append(entry.prompt.format(**row))
        except (KeyError, IndexError) as error:
            raise DataError(
                f"The prompt of '{entry.name}' names the column {error}, but {entry.data} has {', '.join(columns)}."
            ) from None
        except (ValueError, AttributeError, TypeError) as error:
            raise DataError(
                f"The prompt of '{entry.name}' cannot be filled from row {number} of {entry.data}: {error}."
            ) from None
        label = row[entry.label]
        if isinstance(label, (bool, float)) and str(label) not in known and float(label).is_integer():
            label = int(label)
        label = str(label)
        if label not in known:
            bad.append((number, label))
        golds.append(known.get(label, -1))
    if bad:
        number, label = bad[0]
        raise DataError(
            f"{len(bad)} of {len(golds)} rows of {entry.data} have a label that is no class (row {number}: {label!r}; "
            f"expected {', '.join(known)}). "
            "Write `options` as a mapping from label to text."
        )
    return prompts, golds


def score_classes(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    golds: Sequence[int],
    options: Sequence[str],
    *,
    progress: Callable[[int, int], None] | None = None,
    partial: Partial | None = None,
) -> list[dict[str, Any]]:
    """Rows of the kind "classes" (see `holdfast.records.evaluation.Evaluation`).

    Args:
        model: a Hugging Face causal LM.
        tokenizer: its tokenizer.
        prompts: what is given, one a text.
        golds: index of the right class, one a text.
        options: the classes' names.
        progress: called with (options done, options in all).
        partial: where finished rows are kept.

    Raises:
        DataError: a name that adds no token, or more tokens than the model takes.
    """
    requests = [border_ids(prompt, option, tokenizer) for prompt in prompts for option in options]
    found = iter(score_options(model, requests, name="class", partial=partial, progress=progress))
    scored = []
    for prompt, gold in zip(prompts, golds, strict=True):
        scores = [log / count for log, count in (next(found) for _ in options)]
        probabilities, total = normalised(scores)
        best = scores.index(max(scores))
        scored.append(
            {
                "doc": fingerprint([prompt, list(options)], length=32),
                "question": prompt,
                "choices": list(options),
                "nats": total - scores[gold],
                "acc": float(best == gold),
                "probabilities": probabilities,
                "gold": gold,
                "answer": best,
            }
        )
    return scored


def measure(
    model: Any, tokenizer: Any, entry: ClassesEntry, plan: EvaluationPlan, *, report: Report, partial: Partial
) -> Outcome:
    """See `holdfast.evaluation.measures.measure`."""
    prompts, golds = read_classes(entry)
    rows = score_classes(model, tokenizer, prompts, golds, entry.options, progress=report, partial=partial)
    return rows, figures(rows, _FIGURES, plan), "class_perplexity", {"options": list(entry.options)}


def check(entry: ClassesEntry, tokenizer: Any) -> None:
    """See `holdfast.evaluation.measures.check`."""
    read_classes(entry)
