"""What changed sample by sample: questions that were right before and wrong after, the reverse, and
the documents that moved most.

A figure says how much was lost; these say what. A question is *lost* where the metric was 1 before
and is 0 after, and *gained* the other way round. Rows of the two models are joined as
`holdfast.evaluation.compare.samples` joins them, on the document's hash.

A page holds `MOST_FLIPS` questions at most, spread evenly over the entries and over each entry's
questions (the first ones of MMLU would all be algebra); the page names the file with the rest. The
middle of long texts is left out, because answers end texts.

What it does not do: say why an answer changed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import DataError
from holdfast.records.evaluation import Evaluation
from holdfast.records.measure import number
from holdfast.reports.blocks import (
    Block,
    Paragraph,
    Span,
    Table,
    Text,
    chip,
    columns,
    finite_or_none,
    present,
    sub,
)
from holdfast.reports.charts import heads, tabulate
from holdfast.reports.format import plural, shorten

MOST_FLIPS = 300
"""Questions that one page shows, as many of each entry."""

MOST_CHARACTERS = 800
"""Longest text in the page; of longer ones the middle is left out."""

MOST_DOCUMENTS = 8
"""Documents shown in each direction."""

Row = Mapping[str, Any]
"""Of one model's samples; `holdfast.records.evaluation.Evaluation` lists their forms."""
Rows = Sequence[Row]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flips:
    """The questions of one entry whose answers went from right to wrong or back."""

    entry: str
    """The evaluation's name, for readers."""
    file: str
    """Name of the file with every row, the same in both models' folders or "a / b"."""
    metric: str
    questions: list[tuple[Row, Row]]
    """The row of the first model, and that of the second."""

    @property
    def lost(self) -> int:
        """Questions right before and wrong after."""
        return sum(before[self.metric] == 1 for before, _ in self.questions)


def paired(
    before: Rows, after: Rows, *, what: str, allow_unpaired: float = 0.0
) -> tuple[list[Row], list[Row]]:
    """Rows of the same samples side by side.

    Args:
        before, after: rows of two models.
        what: the entry's name.
        allow_unpaired: share of the samples that may have no partner.

    Raises:
        DataError: more of the two are not the same samples with the same prompts, or rows have no
            `doc`.
    """
    from holdfast.evaluation.compare.samples import join_allowing

    try:
        joined = join_allowing(before, after, what=what, allow_unpaired=allow_unpaired)
        return joined.before, joined.after
    except KeyError as error:
        raise DataError(
            f"{what}: expected rows with {error}, because samples are paired by it. Delete the "
            "evaluation, and run the command again."
        ) from None


def flips_of(entry: str, file: str, metric: str, before: Rows, after: Rows) -> Flips:
    """The questions whose answers changed between right and wrong.

    Args:
        entry: name for readers.
        file: where the rows lie.
        metric: the right / wrong metric, a key of every row.
        before: rows of the first model.
        after: those of the second, joined with the first.
    """
    questions = []
    for pair in zip(before, after, strict=True):
        if {row.get(metric) for row in pair} == {0, 1}:
            questions.append(pair)
    return Flips(entry=entry, file=file, metric=metric, questions=questions)


# ---------------------------------------------------------------------------------------- questions


QUESTIONS = ("Entry", "Question", "Right answer", "Answer before", "Answer after")


def flips_table(groups: Sequence[Flips]) -> list[Block]:
    """The questions with both answers. Empty where nothing flipped."""
    groups = [group for group in groups if group.questions]
    if not groups:
        return []
    picked, left_out, total = [], [], 0
    for group in groups:
        size = len(group.questions)
        total += size
        count = min(MOST_FLIPS // len(groups), size)
        # evenly
        picked.append([_question(group, *group.questions[n * size // count]) for n in range(count)])
        if count < size:
            left_out.append(f"{group.entry}: {size - count:,} more in {group.file}")
    # Entries in turn: the first questions that a reader sees are not all of one kind.
    rows = present(itertools.chain.from_iterable(itertools.zip_longest(*picked)))
    blocks: list[Block] = [
        Table(columns=columns(*QUESTIONS, right=()), rows=rows, kind="dense flips", find="question")
    ]
    if left_out:
        text = (
            f"{len(rows):,} of {plural(total, 'question')} are on this page, picked at even "
            f"intervals. {'; '.join(left_out)}. These files have the rows of both models, to be "
            "joined on “doc”."
        )
        blocks.append(Paragraph(text, "note"))
    return blocks


def _question(group: Flips, before: Row, after: Row) -> list[Text]:
    lost = before[group.metric] == 1
    names = dict.fromkeys([group.entry, str(before.get("task") or group.entry)])
    change = chip("lost", "bad") if lost else chip("gained", "good")
    question = str(before.get("question") or "The question was not recorded.")
    answers = [_gold(before), *(_answer(row, group.metric) for row in (before, after))]
    document = sub(f"doc {str(before.get('doc', ''))[:12]}")
    return [(change, f" {' · '.join(names)}", document), *map(in_lines, (question, *answers))]


def _has_options(row: Row) -> bool:
    return bool(row.get("choices") or row.get("probabilities"))


def _gold(row: Row) -> str:
    """The right answer, or the right ones."""
    gold = row.get("gold")
    answers = gold if isinstance(gold, (list, tuple)) else [] if gold is None else [gold]
    texts = [_option(row, answer) if _has_options(row) else str(answer) for answer in answers]
    return ", ".join(texts)


def _answer(row: Row, metric: str) -> str:
    """What a model answered: an option, a text, or a program with why it failed."""
    if _has_options(row):
        option = answer_of(row, metric)
        return "" if option is None else _option(row, option)
    output, reason = (next(iter(row.get(key) or ()), "") for key in ("outputs", "reasons"))
    text = str(row.get("output", output))
    return f"{text}\n({reason})" if reason else text


def _option(row: Row, place: int) -> str:
    """An option by its letter, with its text where the row has it."""
    choices = row.get("choices") or ()
    letter = chr(ord("A") + place) if place < 26 else str(place + 1)
    return f"{letter}. {choices[place]}" if place < len(choices) else letter


def answer_of(row: Row, metric: str) -> int | None:
    """Which option a row's answer is under `metric`: `acc_norm` and `acc_bytes` divide
    log-likelihoods by the options' lengths first."""
    kind = metric.split(",")[0]
    choices, scores = row.get("choices"), row.get("loglikelihoods")
    if kind in ("acc_norm", "acc_bytes") and choices and scores and len(choices) == len(scores):
        values = []
        for choice, score in zip(choices, scores, strict=True):
            length = len(str(choice).encode()) if kind == "acc_bytes" else len(str(choice))
            values.append(float(score) / max(1, length))
        return values.index(max(values))
    answer = finite_or_none(row.get("answer"))
    return None if answer is None else int(answer)


def in_lines(text: str, most: int = MOST_CHARACTERS) -> Text:
    """A text with its line breaks, its middle left out where it has more characters."""
    text = text.strip()
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[-half:]}"
    first, *rest = text.split("\n")
    return (first, *map(sub, rest))


# ---------------------------------------------------------------------------------------- documents

DOCUMENTS = heads(
    {
        "Document": "name",
        "Tokens": "tokens",
        "Nats/token before": "before",
        "After": "after",
        "Change": "change",
        "Change in nats, whole document": "total",
    }
)


def documents_panel(before: Rows, after: Rows, *, most: int = MOST_DOCUMENTS) -> Block:
    """The documents whose nats changed most, in both directions, with their index in the file of
    rows."""
    worse: list[tuple[float, int]] = []
    better: list[tuple[float, int]] = []
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        move = float(new["nats"]) - float(old["nats"])
        if move and math.isfinite(move):
            (worse if move > 0 else better).append((move, index))
    worse, better = sorted(worse, reverse=True)[:most], sorted(better)[:most]
    if not worse and not better:
        return Paragraph("No document changed.", "note")
    rows = []
    for move, index in (*worse, *better):
        rows.append(_document(move, index, before[index], after[index]))
    note = (
        f"The {len(worse)} documents that lost most and the {len(better)} that gained most, of "
        f"{plural(len(before), 'document')}."
    )
    return tabulate(rows, DOCUMENTS, kind="dense documents", note=note)


def _document(move: float, index: int, before: Row, after: Row) -> dict[str, Text]:
    tokens = float(before.get("tokens") or 0)
    old = new = math.nan
    if tokens:
        old, new = float(before["nats"]) / tokens, float(after["nats"]) / tokens
    label = str(before["question"]) if before.get("question") else f"row {index + 1:,}"
    return {
        "name": (shorten(label, 80), sub(f"doc {str(before.get('doc', ''))[:12]}")),
        "tokens": f"{tokens:,.0f}",
        "before": number(old, 3),
        "after": number(new, 3),
        "change": Span(number(new - old, 3, sign=True), tone="bad" if move > 0 else "good"),
        "total": number(move, 1, sign=True),
    }


def has_documents(evaluation: Evaluation, rows: Rows) -> bool:
    """True for kinds whose rows are texts scored in nats."""
    return evaluation.kind in ("perplexity", "memorisation") and all(
        {"nats", "tokens"} <= row.keys() for row in rows
    )
