"""What changed sample by sample: questions that were right before and wrong after, the reverse, and the documents that
moved most.

A figure says how much was lost; these say what. A question is *lost* where the metric was 1 before and is 0 after, and
*gained* the other way round. Rows of the two models are joined as `holdfast.evaluation.compare.samples` joins them, on
the document's hash.

A page holds `MOST_FLIPS` questions at most, spread evenly over the entries and over each entry's questions (the first
ones of MMLU would all be algebra); the page names the file with the rest. Long texts are folded, and the middle of very
long ones is left out, because answers end texts.

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
from holdfast.reports.blocks import Block, Markup, Paragraph, Span, Text, finite_or_none, present, sub
from holdfast.reports.charts import heads, tabulate
from holdfast.reports.format import plural, shorten
from holdfast.reports.html import Html, join, tag

MOST_FLIPS = 300
"""Questions that one page shows, as many of each entry."""

FOLDED_FROM = 320
"""Characters from which on a text is folded."""

MOST_CHARACTERS = 1600
"""Longest text in the page; of longer ones the middle is left out."""

MOST_OPTIONS = 10
"""With more options than this only the gold one and the two answers are shown."""

MOST_DOCUMENTS = 8
"""Documents shown in each direction."""

Row = Mapping[str, Any]
Rows = Sequence[Row]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flip:
    """One question whose answer went from right to wrong or back."""

    entry: str
    """The evaluation's name, for readers."""
    lost: bool
    """Right before and wrong after; False is the reverse."""
    before: Row
    """The row of the first model (`holdfast.records.evaluation.Evaluation` lists its forms)."""
    after: Row
    metric: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flips:
    """The flips of one entry."""

    entry: str
    file: str
    """Name of the file with every row, the same in both models' folders or "a / b"."""
    questions: list[Flip]

    @property
    def lost(self) -> int:
        """Questions right before and wrong after."""
        return sum(question.lost for question in self.questions)


def paired(before: Rows, after: Rows, *, what: str) -> tuple[list[Row], list[Row]]:
    """Rows of the same samples side by side.

    Raises:
        DataError: the two did not answer the same samples with the same prompts, or rows have no `doc`.
    """
    from holdfast.evaluation.compare.samples import join as join_rows

    try:
        return join_rows(before, after, what=what)
    except KeyError as error:
        raise DataError(
            f"{what}: expected rows with {error}, which samples are joined on. Delete the evaluation to have it made "
            f"again."
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
    for a, b in zip(before, after, strict=True):
        pair = a.get(metric), b.get(metric)
        if pair in ((1, 0), (0, 1)):
            questions.append(Flip(entry=entry, lost=pair[0] == 1, before=a, after=b, metric=metric))
    return Flips(entry=entry, file=file, questions=questions)


# --------------------------------------------------------------------------------------------------------------- cards


def flips_panel(groups: Sequence[Flips]) -> list[Block]:
    """The questions as cards; page.js adds the box that filters them and the lost / gained switch. Empty where nothing
    flipped."""
    groups = [group for group in groups if group.questions]
    most = max(1, MOST_FLIPS // max(1, len(groups)))
    picked, left_out, total = [], [], 0
    for group in groups:
        size = len(group.questions)
        total += size
        count = min(most, size)
        picked.append([group.questions[n * size // count] for n in range(count)])  # evenly from first to last
        if count < size:
            left_out.append(f"{group.entry}: {size - count:,} more in {group.file}")
    # Entries in turn: the first questions that a reader sees are not all of one kind.
    turns = itertools.chain.from_iterable(itertools.zip_longest(*picked))
    cards = list(map(_card, present(turns)))
    if not cards:
        return []
    blocks: list[Block] = [Markup(tag("div", tag("ol", *cards, cls="questions"), cls="panel flips"))]
    if left_out:
        text = (
            f"{len(cards):,} of {plural(total, 'question')} are in this page, evenly picked. {'; '.join(left_out)}; "
            "of both models, joined on “doc”."
        )
        blocks.append(Paragraph(text, "note"))
    return blocks


def _card(flip: Flip) -> Html:
    row = flip.before
    change, tone = ("lost", "bad") if flip.lost else ("gained", "good")
    where = dict.fromkeys([flip.entry, str(row.get("task") or flip.entry)])
    chip = tag("span", change, cls=f"chip {tone}")
    doc = tag("span", f"doc {str(row.get('doc', ''))[:12]}", cls="doc")
    head = tag("p", chip, tag("strong", " · ".join(where)), doc, cls="head")
    question = row.get("question")
    if question in (None, ""):
        text = tag("p", "The question was not recorded.", cls="note")
    else:
        text = _long(str(question), cls="question")
    return tag("li", head, text, _answers(flip), cls="flip", data_change=change)


def _answers(flip: Flip) -> Html | None:
    """Options with marks, or outputs side by side, as the rows have them."""
    before, after = flip.before, flip.after
    if before.get("choices") or before.get("probabilities"):
        return _options(flip)
    if "output" in before or "output" in after:
        outputs = [[str(row.get("output", ""))] for row in (before, after)]
        return join(_gold(before.get("gold")), _sides(outputs))
    if before.get("outputs") or after.get("outputs"):
        return _sides([_first_output(row) for row in (before, after)], "code")
    return _gold(before.get("gold"))


def _first_output(row: Row) -> list[str]:
    """What a program of several printed, and why it failed."""
    output, reason = (next(iter(row.get(key) or ()), "") for key in ("outputs", "reasons"))
    return [*([str(output)] if row.get("outputs") else []), *([f"({reason})"] if reason else [])]


def _options(flip: Flip) -> Html:
    before = flip.before
    size = len(before.get("choices") or before.get("probabilities") or ())
    choices = before.get("choices") or [""] * size
    gold = before.get("gold")
    right = set(gold) if isinstance(gold, (list, tuple)) else {gold}
    first, last = (answer_of(row, flip.metric) for row in (before, flip.after))
    items = []
    for index, text in enumerate(choices):
        marks = {"gold": index in right, "before": index == first, "after": index == last}
        if size <= MOST_OPTIONS or any(marks.values()):
            items.append(_option(flip, index, str(text), [name for name, holds in marks.items() if holds]))
    left_out = tag("li", f"{size - len(items)} other options", cls="others") if len(items) < size else None
    return tag("ul", *items, left_out, cls="options")


def _option(flip: Flip, index: int, text: str, marks: Sequence[str]) -> Html:
    letter = chr(ord("A") + index) if index < 26 else str(index + 1)
    option = tag("span", tag("span", f"{letter}.", cls="letter"), _cut(text), cls="option")
    before, after = _chance(flip.before, index), _chance(flip.after, index)
    chances = tag("span", f"{before} → {after}", cls="chances") if before and after else None
    signs = tag("span", *map(_mark, marks), cls="marks")
    return tag("li", option, chances, signs, cls="right" if "gold" in marks else None)


def _mark(name: str) -> Html:
    return tag("span", name, cls=f"mark {name}")


def answer_of(row: Row, metric: str) -> int | None:
    """Which option a row's answer is under `metric`: `acc_norm` and `acc_bytes` divide log-likelihoods by the options'
    lengths first."""
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


def _chance(row: Row, index: int) -> str:
    """The probability of an option among the options, in percent; empty where the row has none."""
    values = row.get("probabilities")
    if not values and row.get("loglikelihoods"):
        scores = list(map(float, row["loglikelihoods"]))
        top = max(scores)
        if not math.isfinite(top):
            return ""
        weights = [math.exp(score - top) for score in scores]
        values = [weight / sum(weights) for weight in weights]
    return f"{100 * float(values[index]):.0f} %" if values and index < len(values) else ""


def _gold(gold: Any) -> Html | None:
    if gold in (None, ""):
        return None
    text = ", ".join(map(str, gold)) if isinstance(gold, (list, tuple)) else str(gold)
    return tag("div", _mark("gold"), _long(text), cls="gold-text")


def _sides(outputs: Sequence[Sequence[str]], cls: str | None = None) -> Html:
    columns = []
    for name, texts in zip(("before", "after"), outputs, strict=True):
        blocks = [_long(text, cls) for text in texts] if any(texts) else [tag("p", "No output.", cls="note")]
        columns.append(tag("div", _mark(name), *blocks))
    return tag("div", *columns, cls="sides")


def _long(text: str, cls: str | None = None) -> Html:
    """A text with its line breaks; from `FOLDED_FROM` characters on the rest opens on a click."""
    text = _cut(text.strip("\n").rstrip())
    classes = f"text {cls}" if cls else "text"
    if len(text) <= FOLDED_FROM:
        return tag("div", text, cls=classes)
    head = shorten(text, FOLDED_FROM - 60)
    rest = f"…{text[len(head) - 1 :].lstrip('…')}"
    return tag("details", tag("summary", head), tag("div", rest), cls=f"{classes} long")


def _cut(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    head, tail = 2 * MOST_CHARACTERS // 3, MOST_CHARACTERS // 3
    return f"{text[:head]}\n[… {len(text) - head - tail:,} characters left out …]\n{text[-tail:]}"


# ----------------------------------------------------------------------------------------------------------- documents

DOCUMENTS = heads(
    {
        "Document": "name",
        "Tokens": "tokens",
        "Nats/token before": "before",
        "After": "after",
        "Change": "change",
        "Change, nats in all": "total",
    }
)


def documents_panel(before: Rows, after: Rows, *, most: int = MOST_DOCUMENTS) -> Block:
    """The documents whose nats changed most, in both directions, with their index in the file of rows."""
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
    lost = f"The {len(worse)} that lost most" if worse else "No document lost"
    gained = f"the {len(better)} that gained most" if better else "none gained"
    note = f"{lost} and {gained}, of {plural(len(before), 'document')}. Row: the line in the first model's file."
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
    return evaluation.kind in ("perplexity", "memorisation") and all({"nats", "tokens"} <= row.keys() for row in rows)
