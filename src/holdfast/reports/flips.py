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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.errors import DataError
from holdfast.records.evaluation import Evaluation
from holdfast.records.measure import number
from holdfast.reports.blocks import Block, Markup, Paragraph, Span, Table, columns, sub
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

Rows = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flip:
    """One question whose answer went from right to wrong or back."""

    entry: str
    """The evaluation's name, for readers."""
    lost: bool
    """Right before and wrong after; False is the reverse."""
    before: Mapping[str, Any]
    """The row of the first model (`holdfast.records.evaluation.Evaluation` lists its forms)."""
    after: Mapping[str, Any]
    metric: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flips:
    """The flips of one entry."""

    entry: str
    file: str
    """Name of the file with every row, the same in both models' folders or "a / b"."""
    found: list[Flip]

    @property
    def lost(self) -> int:
        """Questions right before and wrong after."""
        return sum(f.lost for f in self.found)


def paired(before: Rows, after: Rows, *, what: str) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
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
    found = []
    for a, b in zip(before, after, strict=True):
        pair = a.get(metric), b.get(metric)
        if pair in ((1, 0), (0, 1)):
            found.append(Flip(entry=entry, lost=pair[0] == 1, before=a, after=b, metric=metric))
    return Flips(entry=entry, file=file, found=found)


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many items, evenly from the first to the last."""
    count = min(most, len(items))
    return [items[i * len(items) // count] for i in range(count)]


# --------------------------------------------------------------------------------------------------------------- cards


def flips_panel(groups: Sequence[Flips]) -> list[Block]:
    """The questions as cards; page.js adds the box that filters them and the lost / gained switch. Empty where nothing
    flipped."""
    groups = [g for g in groups if g.found]
    room = max(1, MOST_FLIPS // max(1, len(groups)))
    shown = [spread(group.found, room) for group in groups]
    # Entries in turn: the first questions that a reader sees are not all of one kind.
    cards = [_card(flip) for turn in itertools.zip_longest(*shown) for flip in turn if flip is not None]
    if not cards:
        return []
    found: list[Block] = [Markup(tag("div", tag("ol", *cards, cls="questions"), cls="panel flips"))]
    left_out = [
        f"{g.entry}: {len(g.found) - len(picked):,} more in {g.file}"
        for g, picked in zip(groups, shown, strict=True)
        if len(picked) < len(g.found)
    ]
    if left_out:
        total = plural(sum(len(g.found) for g in groups), "question")
        text = (
            f"{len(cards):,} of {total} are in this page, evenly picked. {'; '.join(left_out)}; of both models, joined"
        )
        found.append(Paragraph(f"{text} on “doc”.", "note"))
    return found


def _card(flip: Flip) -> Html:
    row = flip.before
    where = [flip.entry]
    if row.get("task") and str(row["task"]) != flip.entry:
        where.append(str(row["task"]))
    head = tag(
        "p",
        tag("span", "lost" if flip.lost else "gained", cls=f"chip {'bad' if flip.lost else 'good'}"),
        tag("strong", " · ".join(where)),
        tag("span", f"doc {str(row.get('doc', ''))[:12]}", cls="doc"),
        cls="head",
    )
    question = row.get("question")
    asked = (
        _long(str(question), cls="question")
        if question not in (None, "")
        else tag("p", "The question was not recorded.", cls="note")
    )
    return tag("li", head, asked, _answers(flip), cls="flip", data_change="lost" if flip.lost else "gained")


def _answers(flip: Flip) -> Html | None:
    """Options with marks, or outputs side by side, as the rows have them."""
    before, after = flip.before, flip.after
    if before.get("choices") or before.get("probabilities"):
        return _options(flip)
    if "output" in before or "output" in after:
        return join(_gold(before.get("gold")), _sides([str(before.get("output", ""))], [str(after.get("output", ""))]))
    if before.get("outputs") or after.get("outputs"):
        sides = []
        for row in (before, after):
            texts, reasons = [str(t) for t in row.get("outputs") or ()], [str(r) for r in row.get("reasons") or ()]
            sides.append([*texts[:1], *([f"({reasons[0]})"] if reasons and reasons[0] else [])])
        return _sides(sides[0], sides[1], "code")
    return _gold(before.get("gold"))


def _options(flip: Flip) -> Html:
    before, after = flip.before, flip.after
    size = len(before.get("choices") or before.get("probabilities") or ())
    choices = [str(c) for c in before.get("choices") or [""] * size]
    gold = before.get("gold")
    right = set(gold) if isinstance(gold, (list, tuple)) else {gold}
    answers = [answer_of(row, flip.metric) for row in (before, after)]
    items = []
    for place, text in enumerate(choices):
        if size > MOST_OPTIONS and place not in right and place not in answers:
            continue
        letter = chr(ord("A") + place) if place < 26 else str(place + 1)
        marks = [
            tag("span", name, cls=f"mark {name}")
            for name, on in (
                ("gold", place in right),
                *zip(("before", "after"), (a == place for a in answers), strict=True),
            )
            if on
        ]
        chances = [_chance(row, place) for row in (before, after)]
        numbers = tag("span", f"{chances[0]} → {chances[1]}", cls="chances") if all(chances) else None
        items.append(
            tag(
                "li",
                tag("span", tag("span", f"{letter}.", cls="letter"), _cut(text), cls="option"),
                numbers,
                tag("span", *marks, cls="marks"),
                cls="right" if place in right else None,
            )
        )
    left_out = tag("li", f"{size - len(items)} other options", cls="others") if len(items) < size else None
    return tag("ul", *items, left_out, cls="options")


def answer_of(row: Mapping[str, Any], metric: str) -> int | None:
    """Which option a row's answer is under `metric`: `acc_norm` and `acc_bytes` divide log-likelihoods by the options'
    lengths first."""
    kind = metric.split(",")[0]
    choices, scores = row.get("choices"), row.get("loglikelihoods")
    if kind in ("acc_norm", "acc_bytes") and choices and scores and len(choices) == len(scores):
        lengths = [len(str(c).encode()) if kind == "acc_bytes" else len(str(c)) for c in choices]
        values = [float(s) / max(1, n) for s, n in zip(scores, lengths, strict=True)]
        return max(range(len(values)), key=values.__getitem__)
    answer = row.get("answer")
    return (
        int(answer)
        if isinstance(answer, (int, float)) and not isinstance(answer, bool) and math.isfinite(answer)
        else None
    )


def _chance(row: Mapping[str, Any], place: int) -> str:
    """The probability of an option among the options, in percent; empty where the row has none."""
    values = row.get("probabilities")
    if not values and row.get("loglikelihoods"):
        scores = [float(s) for s in row["loglikelihoods"]]
        top = max(scores)
        if not math.isfinite(top):
            return ""
        weights = [math.exp(s - top) for s in scores]
        values = [w / sum(weights) for w in weights]
    return f"{100 * float(values[place]):.0f} %" if values and place < len(values) else ""


def _gold(gold: Any) -> Html | None:
    if gold in (None, ""):
        return None
    text = ", ".join(str(g) for g in gold) if isinstance(gold, (list, tuple)) else str(gold)
    return tag("div", tag("span", "gold", cls="mark gold"), _long(text), cls="gold-text")


def _sides(before: Sequence[str], after: Sequence[str], cls: str | None = None) -> Html:
    columns = [
        tag(
            "div",
            tag("span", name, cls=f"mark {name}"),
            *(_long(t, cls) for t in texts) if any(texts) else [tag("p", "No output.", cls="note")],
        )
        for name, texts in (("before", before), ("after", after))
    ]
    return tag("div", *columns, cls="sides")


def _long(text: str, cls: str | None = None) -> Html:
    """A text with its line breaks; from `FOLDED_FROM` characters on the rest opens on a click."""
    text = _cut(text.strip("\n").rstrip())
    classes = f"text {cls}" if cls else "text"
    if len(text) <= FOLDED_FROM:
        return tag("div", text, cls=classes)
    head = shorten(text, FOLDED_FROM - 60)
    return tag(
        "details", tag("summary", head), tag("div", "…" + text[len(head) - 1 :].lstrip("…")), cls=f"{classes} long"
    )


def _cut(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    head, tail = 2 * MOST_CHARACTERS // 3, MOST_CHARACTERS // 3
    return f"{text[:head]}\n[… {len(text) - head - tail:,} characters left out …]\n{text[-tail:]}"


# ----------------------------------------------------------------------------------------------------------- documents


def documents_panel(before: Rows, after: Rows, *, most: int = MOST_DOCUMENTS) -> Block:
    """The documents whose nats changed most, in both directions, with their place in the file of rows."""
    moves = [(float(y["nats"]) - float(x["nats"]), i) for i, (x, y) in enumerate(zip(before, after, strict=True))]
    moves = [m for m in moves if math.isfinite(m[0]) and m[0]]
    worse = sorted((m for m in moves if m[0] > 0), reverse=True)[:most]
    better = sorted(m for m in moves if m[0] < 0)[:most]
    rows: list[list[Any]] = []
    for move, place in [*worse, *better]:
        row = before[place]
        tokens = float(row.get("tokens") or 0)
        each = [float(r["nats"]) / tokens if tokens else math.nan for r in (row, after[place])]
        label = str(row["question"]) if row.get("question") else f"row {place + 1:,}"
        change = Span(number(each[1] - each[0], 3, sign=True), tone="bad" if move > 0 else "good")
        name = (shorten(label, 80), sub(f"doc {str(row.get('doc', ''))[:12]}"))
        rows.append([name, f"{tokens:,.0f}", *(number(v, 3) for v in each), change, number(move, 1, sign=True)])
    if not rows:
        return Paragraph("No document changed.", "note")
    words = (
        f"{f'The {len(worse)} that lost most' if worse else 'No document lost'} and "
        f"{f'the {len(better)} that gained most' if better else 'none gained'}, of {plural(len(before), 'document')}. "
        "Row: the line in the first model's file."
    )
    titles = ("Document", "Tokens", "Nats/token before", "After", "Change", "Change, nats in all")
    return Table(columns=columns(*titles), rows=rows, kind="dense documents", note=words)


def has_documents(evaluation: Evaluation, rows: Iterable[Mapping[str, Any]]) -> bool:
    """True for kinds whose rows are texts scored in nats."""
    return evaluation.kind in ("perplexity", "memorisation") and all("nats" in r and "tokens" in r for r in rows)
