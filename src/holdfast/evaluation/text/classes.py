"""Classification by likelihood: which class's name would the model say after the text?

For a text x and class names c of |c| tokens:

    score(c) = log p(c | x) / |c|        p(c) = softmax_c score(c)        nats = -log p(gold)

The mean is over tokens, so that a long name is no handicap; the perplexity of the gold class is exp of the mean nats
over texts. Source: the in-domain measure of the overtraining study (Overtrained Language Models, appendix C.1).
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import DataError
from holdfast.evaluation.entries import ClassesEntry
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.text.documents import border_ids
from holdfast.evaluation.text.options import score_options
from holdfast.evaluation.text.question_files import question_rows, refuse_images
from holdfast.statistics.estimates import TEXT_FIGURES, Ratio
from holdfast.support.files import fingerprint

_FIGURES = {
    "class_perplexity": TEXT_FIGURES["class_perplexity"],
    "acc": Ratio(numerator="acc", unit="accuracy", higher_is_better=True),
}


def read_classes(entry: ClassesEntry) -> tuple[list[str], list[int]]:
    """(prompts, index of the right class) of every row.

    Raises:
        DataError: no rows, columns that the template names are missing, a label that is no class, or a row without
            classes of its own where those are a column's.
    """
    prompts, golds, _ = _read(entry)
    return prompts, golds


def _read(entry: ClassesEntry) -> tuple[list[str], list[int], list[list[str]]]:
    """`read_classes`, and the classes of every row."""
    own = entry.options if isinstance(entry.options, str) else None
    rows = question_rows(entry, (own,) if own is not None else ())
    columns, options = list(rows.column_names), list[list[str]]()
    if entry.label not in columns:
        raise DataError(
            f"{entry.data} has no column '{entry.label}' with the right class (it has {', '.join(columns)}). Name it "
            f"with `label`."
        )
    refuse_images(entry, rows, [entry.prompt])
    prompts, golds, bad = [], [], []
    for number, row in enumerate(rows):
        options.append(list(entry.options) if own is None else _own(row[own], entry, number))
        known = {name: index for index, name in enumerate(entry.labels)} or {
            str(index): index for index in range(len(options[-1]))
        }
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
            bad.append((number, label, known))
        golds.append(known.get(label, -1))
    if bad:
        number, label, known = bad[0]
        raise DataError(
            f"{len(bad)} of {len(golds)} rows of {entry.data} have a label that is no class (row {number}: {label!r}; "
            f"expected {', '.join(known)}). "
            "Write `options` as a mapping from label to text."
        )
    return prompts, golds, options


def _own(value: Any, entry: ClassesEntry, number: int) -> list[str]:
    texts = value if isinstance(value, list) else []
    if len(texts) < 2 or not all(isinstance(t, str) and t for t in texts) or len(set(texts)) < len(texts):
        raise DataError(
            f"{entry.data}, row {number}: expected at least two different texts in the column '{entry.options}', got "
            f"{value!r}."
        )
    return list(texts)


def measure(entry: ClassesEntry, on: Subject) -> Outcome:
    """See `holdfast.evaluation.measures.measure`."""
    prompts, golds, options = _read(entry)
    asked = list(zip(prompts, options, strict=True))
    requests = [[border_ids(prompt, option, on.tokenizer) for option in own] for prompt, own in asked]
    rows = [
        {
            "doc": fingerprint([prompt, own], length=32),
            "question": prompt,
            "choices": own,
            "nats": scored.total - scored.scores[gold],
            "acc": float(scored.answer == gold),
            "probabilities": scored.probabilities,
            "gold": gold,
            "answer": scored.answer,
        }
        for (prompt, own), gold, scored in zip(asked, golds, score_options(on, requests, name="class"), strict=True)
    ]
    settled = entry.options if isinstance(entry.options, str) else list(entry.options)
    return Outcome(rows=rows, figures=_FIGURES, settings={"options": settled})


def check(entry: ClassesEntry, tokenizer: Any) -> None:
    """See `holdfast.evaluation.measures.check`."""
    read_classes(entry)
