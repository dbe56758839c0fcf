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
        DataError: no rows, columns that the template names are missing, or a label that is no class.
    """
    rows = question_rows(entry)
    columns = list(rows.column_names)
    if entry.label not in columns:
        raise DataError(
            f"{entry.data} has no column '{entry.label}' with the right class (it has {', '.join(columns)}). Name it "
            f"with `label`."
        )
    refuse_images(entry, rows, [entry.prompt])
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


def measure(entry: ClassesEntry, on: Subject) -> Outcome:
    """See `holdfast.evaluation.measures.measure`."""
    prompts, golds = read_classes(entry)
    options = list(entry.options)
    requests = [[border_ids(prompt, option, on.tokenizer) for option in options] for prompt in prompts]
    rows = [
        {
            "doc": fingerprint([prompt, options], length=32),
            "question": prompt,
            "choices": options,
            "nats": scored.total - scored.scores[gold],
            "acc": float(scored.answer == gold),
            "probabilities": scored.probabilities,
            "gold": gold,
            "answer": scored.answer,
        }
        for prompt, gold, scored in zip(prompts, golds, score_options(on, requests, name="class"), strict=True)
    ]
    return Outcome(rows=rows, figures=_FIGURES, settings={"options": options})


def check(entry: ClassesEntry, tokenizer: Any) -> None:
    """See `holdfast.evaluation.measures.check`."""
    read_classes(entry)
