"""An update or a study of the instruction residual in words: the answer that the page and the terminal lead with, and
what the terminal prints.

Every verdict is that of a paired comparison in the record (`ResidualRecord.pairs`); nothing is compared here. "No
change beyond noise" means that the interval of the difference holds 0, not that there is no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.records.comparison import Comparison
from holdfast.records.evaluation import Metric
from holdfast.records.residual import BASE, INSTRUCT, Pair, ResidualRecord, StudiedModel
from holdfast.reports.blocks import Block, Facts, Paragraph, Span, Table, columns, figure, sub
from holdfast.reports.compared import TONES, Row
from holdfast.reports.format import count, duration, listed, plural
from holdfast.reports.residual_figures import (
    Studied,
    families_of,
    flops_text,
    label_of,
    read_models,
    spent_in_all,
    tables,
    tokens_text,
    trained,
)
from holdfast.reports.residual_scores import Score, by_role, figure_text, pair_of, scores_of
from holdfast.reports.terminal import Printer

if TYPE_CHECKING:
    from rich.console import Console

REPORT_FILE = "report.html"
ROLES = (("new", "new text"), ("instruction", "instruction following"))
"""(role, words) of what an update is first asked about; see `residual_scores.role_of`."""


# -------------------------------------------------------------------------------------------------------------- words


def difference_text(c: Comparison) -> str:
    """After minus before with its unit and interval, shares in points: "−2.1 pt [−3.0, −1.2]"."""
    return " ".join(Row(c).change())


def clause(comparisons: Sequence[Comparison], what: str) -> str:
    """What became of one role ("" for the rest), such as "on new text it gained (2.31 → 2.05 nats/token; −0.26
    nats/token [−0.29, −0.24])"."""
    where = f"on {what}" if what else "elsewhere"
    if len(comparisons) == 1:
        [c] = comparisons
        words = {"gained": "it gained", "lost": "it lost"}.get(c.verdict, "it shows no change beyond noise")
        return f"{where} {words} ({Row(c).levels()}; {difference_text(c)})"
    return f"{where} it {tally(comparisons)}"


def tally(comparisons: Sequence[Comparison]) -> str:
    """ "gained on 2, lost on 1 and did not change beyond noise on 3 of 6 measures"."""
    verdicts = [c.verdict for c in comparisons]
    parts = [
        f"{words} {verdicts.count(verdict)}"
        for verdict, words in (
            ("gained", "gained on"),
            ("lost", "lost on"),
            ("within noise", "did not change beyond noise on"),
        )
        if verdict in verdicts
    ]
    return f"{listed(parts)} of {plural(len(verdicts), 'measure')}"


def lead(models: Sequence[Studied], record: ResidualRecord) -> str:
    """The answer in a few sentences: of an update what was gained and kept, of a study how far it is and what its
    scores say."""
    found = _update_answer(record) if record.kind == "update" else _study_answer(models, record)
    if found:
        return " ".join(found)
    unfinished = {"running": "is not finished", "interrupted": "was interrupted", "failed": "failed"}.get(record.status)
    what = "update" if record.kind == "update" else "study"
    if unfinished:
        return f"The {what} {unfinished}, so there is nothing to compare yet."
    if any(m.measured.evaluations for m in models):
        return (
            "Models were measured and not compared with each other, so what was gained and what was kept stands "
            "in the tables alone."
        )
    return f"The {what} is finished and nothing was measured, so what was gained and what was lost is not known."


def _update_answer(record: ResidualRecord) -> list[str]:
    """Against the instruct model (the base where there is none), then against the instruct model that was continued."""
    sentences = []
    first = pair_of(record, INSTRUCT, continued=False)
    who = "the instruct model"
    if first is None:
        first, who = pair_of(record, BASE, continued=False), "the base"
    if first is not None:
        pair = first[0]
        known = [(role, words, held) for role, words in ROLES if (held := by_role(pair, role))]
        parts = [clause(held, words) for _, words, held in known]
        rest = by_role(pair, "kept")
        if rest:
            parts.append(clause(rest, "" if known else "what was measured"))
        if parts:
            sentences.append(f"Against {who}: {'; '.join(parts)}.")
    other = pair_of(record, INSTRUCT, continued=True)
    if other is not None:
        parts = [clause(held, words) for role, words in reversed(ROLES) if (held := by_role(other[0], role))]
        parts = parts or [clause(by_role(other[0], "kept"), "what was measured")]
        sentences.append(f"Against the instruct model continued on the same text: {'; '.join(parts)}.")
    return sentences


def _study_answer(models: Sequence[Studied], record: ResidualRecord) -> list[str]:
    scores = scores_of(models)
    score = next((s for s in scores if s.role == "instruction"), scores[0] if scores else None)
    if score is None:
        return []
    done = sum(m.model.state == "complete" for m in models)
    sentences = [
        f"{done} of {plural(len(models), 'model')} are complete."
        if done < len(models)
        else f"{plural(len(models), 'model')}."
    ]
    several = len(families_of(record)) > 1
    for table in tables(models, record):
        if table.kind != "continued":
            continue
        said = [
            text
            for b in table.blocks
            if (text := _block_text(b.kind, [(c.header, c.metric(score.pick)) for c in b.columns], score))
        ]
        if said:
            family = next((b.family for b in table.blocks), "")
            sentences.append(f"{score.title}{f', {family}' if several and family else ''}: {'; '.join(said)}.")
    return sentences if len(sentences) > 1 else []


def _block_text(kind: str, columns: Sequence[tuple[str, Metric | None]], score: Score) -> str:
    held = [(header, metric) for header, metric in columns if metric is not None]
    if not held:
        return ""
    name = {"base": "base", "instruct": "instruct", "residual": "base with residual"}.get(kind, kind)
    ends = held if len(held) < 3 else [held[0], held[-1]]
    return f"{name} {' and '.join(f'{figure_text(metric, score)[0]} ({header})' for header, metric in ends)}"


def made_text(model: StudiedModel, record: ResidualRecord) -> str:
    """How a model came about, such as "base, continued on 100 M new tokens, + 1 × (instruct − base)"."""
    several = len(families_of(record)) > 1
    start = (
        f"{model.start} of {model.family}"
        if several and model.family in families_of(record) and model.family
        else model.start
    )
    parts = [start if trained(model) or model.residual is not None else f"{start}, as given"]
    if trained(model):
        tokens = model.tokens if model.tokens > 0 else model.budget or 0
        parts.append(f"continued on {tokens_text(tokens)} new tokens" if tokens else "continued on the new text")
    if model.residual is not None:
        scale = f"{1 if model.scale is None else model.scale:g}"
        whose = f" of {model.residual}" if several and model.residual else ""
        parts.append(f"+ {scale} × (instruct \u2212 base){whose}")
    return ", ".join(parts)


def corpus_text(record: ResidualRecord) -> str:
    """The new text in a line: documents, tokens, dates; "" where nothing is recorded."""
    c = record.corpus
    parts = [
        plural(int(c["documents"]), "document") if isinstance(c.get("documents"), (int, float)) else "",
        f"{tokens_text(c['tokens'])} tokens" if isinstance(c.get("tokens"), (int, float)) else "",
        f"{c['first_date']} to {c['last_date']}" if c.get("first_date") and c.get("last_date") else "",
    ]
    return " · ".join(p for p in parts if p)


def pair_title(pair: Pair, record: ResidualRecord) -> str:
    """ "instruct → result", by label."""
    return f"{label_of(record, pair.before)} → {label_of(record, pair.after)}"


# ----------------------------------------------------------------------------------------------------------- terminal

STATE_TONES = {"failed": "bad", "waiting": "flat", "running": "flat"}
MOST_PAIRS = 2
"""With the result, in a terminal: against the instruct model and, if it was made, against the continued one. All are on
the page."""
MOST_COLUMNS = 3
"""Scores that fit beside a label into eighty columns."""


def print_update(record: ResidualRecord, folder: str | Path, console: Console | None = None) -> None:
    """Prints the answer, what every model measured, the pairs and where the page is.

    Args:
        record: an update or a study, finished or not.
        folder: its folder.
        console: where to print; the terminal by default.
    """
    folder = Path(folder)
    models = read_models(folder, record)
    found: list[Block] = [Paragraph(f"{record.name} ({record.status})", "strong"), Paragraph(lead(models, record))]
    found.append(Paragraph(""))
    if models:
        found.append(_scores_table(models, record))
    told = [p for p in record.pairs if p.after == record.result][:MOST_PAIRS]
    for pair in told:
        title = pair_title(pair, record)
        found += [Paragraph(pair.question or title, "strong"), Paragraph(f"  {title}", "note")]
        primary = [c for c in pair.comparisons if c.primary] or pair.comparisons
        found += [] if primary else [Paragraph("  nothing was compared", "note")]
        for c in primary:
            text = f"  {c.name}: {Row(c).levels()}, {difference_text(c)}: {c.verdict}"
            found.append(Paragraph(text, TONES.get(c.verdict, "flat")))
    rest = len(record.pairs) - len(told)
    if rest:
        text = f"{rest} {'more ' if told else ''}pair{'s' if rest != 1 else ''} of models {'are' if rest != 1 else 'is'} on"
        found.append(Paragraph(f"{text} the page.", "note"))
    facts = [("Scale", f"{record.scale.chosen:g}: {record.scale.reason}")] if record.scale is not None else []
    facts += [("New text", corpus_text(record))] if corpus_text(record) else []
    flops, seconds = spent_in_all(models)
    facts += [("Cost", f"{flops_text(flops)}, {duration(seconds)}")] if flops or seconds else []
    result = next((m.model for m in models if m.model.name == record.result), None)
    if result is not None and result.path and result.state == "complete":
        shown = folder / result.path if not Path(result.path).is_absolute() else Path(result.path)
        size = f" ({count(result.parameters)} parameters)" if result.parameters else ""
        facts.append(("Result", f"{shown}{size}"))
    found += [Facts(facts), *(Paragraph(f"Note: {note}", "note") for note in record.notes)]
    if (folder / REPORT_FILE).is_file():
        found.append(Facts([("Report", str(folder / REPORT_FILE))]))
    Printer(console).show(found)


def _scores_table(models: Sequence[Studied], record: ResidualRecord) -> Table:
    order = sorted(scores_of(models), key=lambda s: (s.role != "instruction", s.role != "new", s.title != "Average"))
    scores = order[:MOST_COLUMNS]
    titles = [f"{s.title}\n{s.unit}{'' if s.higher_is_better else ', lower is better'}" for s in scores]
    rows = []
    for m in models:
        s = m.model
        state = "" if s.state == "complete" else f"{s.state}{f': {s.reason}' if s.reason else ''}"
        tone = "taken" if record.result and s.name == record.result else STATE_TONES.get(s.state, "")
        label = Span((s.label or s.name, sub(state) if state else None), tone=tone)
        rows.append([label, *(_cell(m, score) for score in scores)])
    return Table(columns=columns("Model", *titles), rows=rows, title="Models")


def _cell(m: Studied, score: Score) -> Any:
    metric = score.pick(m)
    if metric is None:
        return Span("not measured", tone="flat")
    value, interval = figure_text(metric, score)
    return figure(value.removesuffix(score.unit).strip(), interval)
