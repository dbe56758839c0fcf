"""Classification by likelihood: which class's name would the model say after the text?

For a text x and class names c of |c| tokens:

    score(c) = log p(c | x) / |c|        p(c) = softmax_c score(c)        nats = -log p(gold)

The mean is over tokens, so that a long name is no handicap; the perplexity of the gold class is exp
of the mean nats over texts. Source: the in-domain measure of the overtraining study (Overtrained
Language Models, appendix C.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from holdfast.config.declare import Meta
from holdfast.data.layouts import Row
from holdfast.errors import DataError
from holdfast.evaluation.entries import DataEntry, Options, Template, Word, are_options
from holdfast.evaluation.measures import Outcome, Subject
from holdfast.evaluation.text.documents import border_ids
from holdfast.evaluation.text.question_files import (
    RowMistakes,
    fill_template,
    question_rows,
    refuse_images,
    shown,
)
from holdfast.support.files import fingerprint


@dataclass(frozen=True, kw_only=True)
class ClassificationEntry(DataEntry):
    """Texts to be classified by the likelihood of each class's name."""

    kind = "classification"
    former = "classes"
    without = ("chat_template_kwargs",)

    prompt: Template
    """`str.format` template of the prompt over the columns, such as "{text}\\nThis review is"."""
    options: Options
    """Texts of the classes, which continue the prompt: a list in the order of the labels 0, 1, ...,
    or a mapping from label to text. If the classes differ between rows (SIQA): the column that has
    each row's list."""
    labels: Annotated[tuple[str, ...], Meta(yaml=False)] = ()
    """Values of the label column in the order of `options`; empty: whole numbers from 0."""
    label: Word = "label"
    """Column with the right class."""

    def needs_scores(self, tokenizer: Any) -> bool:
        """Always."""
        return True

    def requests(self, tokenizer: Any, processor: Any = None) -> list[Labelled]:
        """See `Entry.requests`."""
        return read_classes(self)

    def scores(self, requests: list[Labelled], on: Subject) -> Outcome:
        """See `Entry.scores`."""
        from holdfast.evaluation.text.options import ACCURACY, score_options
        from holdfast.statistics.estimates import TEXT_FIGURES

        prompts = []
        for text in requests:
            prompts.append(
                [border_ids(text.prompt, option, on.tokenizer) for option in text.options]
            )
        rows = []
        for text, scored in zip(requests, score_options(on, prompts, name="class"), strict=True):
            doc = fingerprint([text.prompt, text.options], length=32)
            nats = scored.total - scored.scores[text.gold]
            row = {"doc": doc, "question": text.prompt, "choices": text.options, "nats": nats}
            row |= {"acc": float(scored.answer == text.gold), "probabilities": scored.probabilities}
            rows.append({**row, "gold": text.gold, "answer": scored.answer})
        options = self.options if isinstance(self.options, str) else list(self.options)
        figures = {"class_perplexity": TEXT_FIGURES["class_perplexity"], "acc": ACCURACY}
        return Outcome(rows=rows, figures=figures, settings={"options": options})


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """One text to be classified."""

    prompt: str
    options: list[str]
    """What its classes are called."""
    gold: int
    """Index of the right class."""


def read_classes(entry: ClassificationEntry) -> list[Labelled]:
    """The texts of an entry.

    Raises:
        DataError: no rows, columns that the template names are missing, a label that is no class,
            or a row without classes of its own where those are a column's.
    """
    column = entry.options if isinstance(entry.options, str) else None
    rows = question_rows(entry, (column,) if column is not None else ())
    columns = list(rows.column_names)
    if entry.label not in columns:
        raise DataError(
            f"{entry.data} has no column '{entry.label}' with the right class (it has "
            f"{', '.join(columns)}). Name it with `label`."
        )
    refuse_images(entry, rows, [entry.prompt])
    mistakes = RowMistakes(entry.data)
    texts = []
    for number, row in enumerate(rows):
        options = list(entry.options) if column is None else row[column]
        if not are_options(options):
            mistakes.add(
                f"at least two different texts in the column '{column}'",
                row=number,
                got=shown(options),
            )
            continue
        classes = entry.labels or tuple(map(str, range(len(options))))
        label = _label(row, entry.label, classes)
        if label in classes:
            prompt = fill_template(entry, entry.prompt, row, number)
            texts.append(Labelled(prompt=prompt, options=options, gold=classes.index(label)))
        else:
            expected = (
                f"one of the classes as label ({', '.join(classes)}; `options` may be a mapping "
                "from label to text)"
            )
            mistakes.add(expected, row=number, got=repr(label))
    mistakes.check()
    return texts


def _label(row: Row, column: str, classes: tuple[str, ...]) -> str:
    """A row's label as text; whole numbers and truth values as the number that they are."""
    label = row[column]
    if isinstance(label, (bool, float)) and str(label) not in classes and float(label).is_integer():
        label = int(label)
    return str(label)
