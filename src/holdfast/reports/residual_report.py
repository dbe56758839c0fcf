"""`report.html` of an update, or of a study of the instruction residual (Balancing Continuous Pre-Training), and what
the terminal prints: the answer first, then the figures, then how they came about.

Reads the record and the evaluation folders of its models, nothing else; it can be written at any moment, and names what
is missing. Verdicts are those of the paired comparisons in the record: "no change beyond noise" means that the interval
of the difference holds 0, not that there is no difference. The paper's own figures stand beside ours where a model was
made as one of the paper's was.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast.records.comparison import (
    GAINED,
    KEPT,
    LITTLE_GAINED,
    LITTLE_LOST,
    LOST,
    NOT_FINITE,
    NOT_SHOWN,
    Comparison,
)
from holdfast.records.evaluation import Metric
from holdfast.records.metrics import is_share
from holdfast.records.residual import BASE, INSTRUCT, ModelPair, StudiedModel, without_seed
from holdfast.records.run import LayerDistance
from holdfast.reports import blocks as b
from holdfast.reports import paper_004
from holdfast.reports.blocks import Bullets, Facts, Fold, Panel, Paragraph, Section, Span, Table, Text, Tile, chip, sub
from holdfast.reports.charts import Col, layer_chart, moved, tabulate
from holdfast.reports.compared import (
    TONES,
    ComparisonRow,
    difference_note,
    gains,
    group_rank,
    measures,
    ordered,
    pair_sentence,
    primary_of,
)
from holdfast.reports.format import (
    count,
    direction,
    duration,
    flatten,
    flops_text,
    hardware_rows,
    in_percent,
    interval_text,
    last_part,
    listed,
    metric_texts,
    number,
    percent,
    plural,
    setting,
    significant,
    tally,
    with_interval,
)
from holdfast.reports.html import write_page
from holdfast.reports.residual_charts import (
    added_charts,
    carried_charts,
    compute_charts,
    kept_charts,
    scale_chart,
    token_charts,
    width_charts,
)
from holdfast.reports.residual_table import FigureTable, Group, Measure, Results, by_role, lower, shown_name
from holdfast.statistics.gains import Gain, gain_over_seeds

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.records.residual import ResidualRecord

REPORT_FILE = "report.html"
STATUS_TONES = {"finished": "good", "running": "warn", "interrupted": "warn", "failed": "bad"}
STATE_TONES = {"complete": "good", "running": "warn", "waiting": "", "failed": "bad"}
STATUS = {
    "interrupted": b.Banner(
        Span("It was interrupted. The same command continues with what is missing.", "strong"), "warn"
    ),
    "running": b.Banner("It had not ended when this page was written."),
    "failed": b.Banner(
        Span("It failed. What was finished before is shown; the same command continues.", "strong"), "bad"
    ),
}
UNFINISHED = {"running": "is not finished", "interrupted": "was interrupted", "failed": "failed"}
ROLES = {"new": "new text", "instruction": "instruction following"}
"""What an update is first asked about; see `residual_table.role_of`."""
VERDICTS = (GAINED, LOST, LITTLE_GAINED, LITTLE_LOST, KEPT, NOT_SHOWN, NOT_FINITE)
_BROKEN = "gave NaN or infinity"
FEW = 3
"""Measures that a tile names one by one."""
MOST_PANELS = 4
"""Plots of one kind beyond the paper's; the tables have the rest."""
MOST_PAIRS = 2
"""With the result, in a terminal: against the instruct model and, if it was made, against the continued one. All are on
the page."""
MOST_COLUMNS = 3
"""Scores that fit beside a label into eighty columns."""
CORPUS = {
    "documents": "Documents",
    "tokens": "Tokens",
    "held_out": "Held out of training",
    "first_date": "First date",
    "last_date": "Last date",
    "windows": "Windows",
    "wasted": "Wasted",
    "undated": "Without a date",
    "mean_tokens": "Tokens a document",
    "longest": "Longest, in tokens",
}
"""Keys of the record's corpus -> words; others are shown under their own names."""
CORPUS_FORMS: dict[str, Callable[[Any], str]] = {
    "held_out": "{:,} documents".format,
    "wasted": lambda share: f"{percent(100 * share, sign=False)} of the windows' tokens",
}
Entry = tuple[str, str, str]
"""(suite, name, metric)."""
Groups = dict[tuple[str, str], dict[int, ModelPair]]
"""Pairs by the labels of their models without seed or world, then by the seed of the later one."""


def write_residual_report(folder: str | os.PathLike[str], record: ResidualRecord) -> Path:
    """Writes `report.html` into the folder and returns its path.

    Args:
        folder: the update's or study's; the models' evaluations are read from it.
        record: what lies in it, finished or not.

    Raises:
        StorageError: the page could not be written; an earlier one is intact.
    """
    return write_page(residual_page(record, Path(folder)), Path(folder) / REPORT_FILE)


def residual_page(record: ResidualRecord, folder: Path) -> b.Page:
    """The page; see `write_residual_report`."""
    r = Results(folder, record)
    update = record.kind == "update"
    what, new, tiles, kept = "update" if update else "residual study", corpus_text(r), _tiles(r), kept_charts(r)
    details = [plural(len(r.models), "model"), f"new text: {new}" if new else "", record.created]
    return b.Page(
        tab=f"{record.name}: holdfast {what} report",
        eyebrow=f"holdfast {what}",
        title=record.name or what.capitalize(),
        lead=lead(r),
        status=(record.status, STATUS_TONES.get(record.status, "flat")),
        details=" · ".join(d for d in details if d),
        blocks=[
            *_banners(r),
            b.Tiles(tiles) if tiles else None,
            Section("Before and after", kept, anchor="kept") if kept else None,
            _pairs(r) if update else None,
            _figures(r),
            *_plots(r),
            _scale(r),
            None if update else _pairs(r),  # there may be hundreds: figures first
            _models(r),
            _corpus(r),
            _ancestry(r),
            b.notes(record.notes, anchor="notes"),
            Section("How to read this page", [Panel([Bullets(_reading(r))], "card")], anchor="reading"),
            _small_print(r),
        ],
        footer=f"Written by holdfast {record.versions.get('holdfast', '')} from the files of the folder.",
    )


def print_update(record: ResidualRecord, folder: str | Path, console: Console | None = None) -> None:
    """Prints the answer, what every model measured, the pairs of the result and where the page is.

    Args:
        record: an update or a study, finished or not.
        folder: its folder.
        console: where to print; the terminal by default.
    """
    from holdfast.reports.terminal import Printer

    r = Results(Path(folder), record)
    shown: list[b.Block] = [Paragraph(f"{record.name} ({record.status})", "strong"), Paragraph(lead(r)), Paragraph("")]
    shown += [_scores(r)] if r.models else []
    pairs = [p for p in record.pairs if p.after == record.result][:MOST_PAIRS]
    for pair in pairs:
        title = _title(pair, r)
        shown += [Paragraph(pair.question or title, "strong"), Paragraph(f"  {title}", "note")]
        for row in primary_of([ComparisonRow(c) for c in pair.comparisons]):
            text = f"  {row.name}: {row.levels()}, {' '.join(row.change())}: {row.verdict}"
            shown.append(Paragraph(text, TONES.get(row.verdict, "flat")))
    rest = len(record.pairs) - len(pairs)
    if rest:
        are = "pairs of models are" if rest > 1 else "pair of models is"
        shown.append(Paragraph(f"{rest} {'more ' if pairs else ''}{are} on the page.", "note"))
    flops, seconds = r.spent()
    result = next((m for m in r.models if m.name == record.result and m.path and m.state == "complete"), None)
    size = f" ({count(result.parameters)} parameters)" if result is not None and result.parameters else ""
    facts = {
        "Scale": f"{record.scale.chosen:g}: {record.scale.reason}" if record.scale is not None else "",
        "New text": corpus_text(r),
        "Cost": f"{flops_text(flops)}, {duration(seconds)}" if flops or seconds else "",
        "Result": f"{r.folder / result.path}{size}" if result is not None else "",
    }
    shown += [Facts([f for f in facts.items() if f[1]]), *(Paragraph(f"Note: {note}", "note") for note in record.notes)]
    page = r.folder / REPORT_FILE
    shown += [Facts([("Report", str(page))])] if page.is_file() else []
    Printer(console).show(shown)


def _scores(r: Results) -> Table:
    """What every model measured: the scores that matter most, as far as they fit beside each other."""
    order = sorted(r.scores, key=lambda s: (s.role != "instruction", s.role != "new", s.score != "Average"))
    scores = order[:MOST_COLUMNS]

    def label(m: StudiedModel) -> Text:
        state = "" if m.state == "complete" else f"{m.state}{f': {m.reason}' if m.reason else ''}"
        tone = {"complete": "", "failed": "bad"}.get(m.state, "flat")
        return Span(
            (m.label or m.name, sub(state) if state else None), tone="taken" if m.name == r.record.result else tone
        )

    def cell(m: StudiedModel, score: Measure) -> Text:
        if m.name not in score.values:
            return Span("not measured", tone="flat")
        value, interval = score_texts(score.values[m.name], score)
        return b.figure(value.removesuffix(score.unit).strip(), interval)

    rows = [[label(m), *(cell(m, score) for score in scores)] for m in r.models]
    heads = b.columns("Model", *(f"{s.score}\n{s.unit}{lower(s)}" for s in scores))
    return Table(columns=heads, rows=rows, title="Models")


# -------------------------------------------------------------------------------------------------------------- answer


def lead(r: Results) -> str:
    """The answer in a few sentences: of an update what was gained and kept, of a study how far it is and what its
    scores say, or its pairs where it continued no model."""
    update = r.record.kind == "update"
    found = (_update_answer(r) if update else _study_answer(r)) or _pairs_answer(r)
    if found:
        return " ".join(found)
    what = "update" if update else "study"
    if r.record.status in UNFINISHED:
        return f"The {what} {UNFINISHED[r.record.status]}, so there is nothing to compare yet."
    if r.entries:
        return (
            "Models were measured and not compared with each other, so what was gained and what was kept stands "
            "in the tables alone."
        )
    return f"The {what} is finished and nothing was measured, so what was gained and what was lost is not known."


def _against(r: Results) -> dict[str, ModelPair]:
    """What an update's result is held against: the instruct model, and the one that was continued."""
    found = {"the instruct model": False, "the continued instruct model": True}
    return {
        who: pair for who, continued in found.items() if (pair := r.against_instruct(continued=continued)) is not None
    }


def _update_answer(r: Results) -> list[str]:
    sentences = []
    for who, pair in _against(r).items():
        continued = "continued" in who
        held = {words: found for role, words in ROLES.items() if (found := by_role(pair, role))}
        parts = [clause(found, words) for words, found in (reversed(held.items()) if continued else held.items())]
        rest = by_role(pair, "kept")
        if rest and not (continued and parts):
            parts.append(clause(rest, "" if parts else "what was measured"))
        shown = "the instruct model continued on the same text" if continued else who
        sentences.append(f"Against {shown}: {'; '.join(parts)}.")
    return sentences


def clause(comparisons: Sequence[Comparison], what: str) -> str:
    """What became of one role ("" for the rest), such as "on new text it gained (2.31 → 2.05 nats/token; −0.26
    nats/token [−0.29, −0.24])", or "it gained on 2 and lost on 1 of 3 measures"."""
    where = f"on {what}" if what else "elsewhere"
    verdicts = [c.verdict for c in comparisons]
    if len(comparisons) == 1:
        row = ComparisonRow(comparisons[0])
        one = {KEPT: "kept what there was", NOT_SHOWN: "shows no change"} | {
            v: v for v in (GAINED, LOST, LITTLE_GAINED, LITTLE_LOST)
        }
        return f"{where} it {one.get(row.verdict, _BROKEN)} ({row.levels()}; {' '.join(row.change())})"
    kinds = {v: f"{v} on" for v in (GAINED, LOST, LITTLE_GAINED, LITTLE_LOST, KEPT)}
    kinds[NOT_SHOWN] = "shows no change on"
    kinds[NOT_FINITE] = f"{_BROKEN} on"
    parts = [f"{words} {verdicts.count(verdict)}" for verdict, words in kinds.items() if verdict in verdicts]
    return f"{where} it {listed(parts)} of {plural(len(verdicts), 'measure')}"


def _study_answer(r: Results) -> list[str]:
    score = next((s for s in r.scores if s.role == "instruction"), r.scores[0] if r.scores else None)
    if score is None:
        return []
    found = []
    for table in (t for t in r.tables if t.kind == "continued"):
        texts = []
        for block in table.at_scale_1:
            held = [(g, m) for g in block.groups if (m := g.metric(score)) is not None]
            ends = held[:1] + held[-1:] if len(held) > 2 else held
            name = {
                "residual": "base with residual",
                "tuning": "base with tuning",
                "distillation": "instruct with distillation",
                "self-distillation": "instruct with self-distillation",
            }.get(block.kind, block.kind)
            texts += (
                [f"{name} {' and '.join(f'{score_texts(m, score)[0]} ({g.header})' for g, m in ends)}"] if held else []
            )
        family = f", {table.blocks[0].family}" if len(r.families) > 1 and table.blocks[0].family else ""
        found += [f"{score.score}{family}: {'; '.join(texts)}."] if texts else []
    return [_complete(r), *found] if found else []


def _complete(r: Results) -> str:
    done, models = sum(m.state == "complete" for m in r.models), plural(len(r.models), "model")
    return f"{done} of {models} are complete." if done < len(r.models) else f"{models}."


def _pairs_answer(r: Results) -> list[str]:
    """What the pairs show, by the question that they answer; nothing where no models were compared."""
    verdicts: dict[str, list[str]] = {}
    for pair in r.record.pairs:
        rows = primary_of([ComparisonRow(c) for c in pair.comparisons])
        verdicts.setdefault(pair.question, []).extend(row.verdict for row in rows)
    found = [
        f"{question} {plural(len(held), 'paired comparison')}: {tally(held, VERDICTS)}.".lstrip()
        for question, held in verdicts.items()
        if held
    ]
    return [_complete(r), *found] if found else []


def score_texts(metric: Metric, score: Measure) -> tuple[str, str]:
    """A score's value with its unit, and its interval."""
    return with_interval(metric.value, metric.interval, share=score.share, unit=score.unit)


def made_text(model: StudiedModel, r: Results) -> str:
    """How a model came about, such as "base, continued on 100 M new tokens, + 1 × (instruct − base)"."""
    several = len(r.families) > 1
    start = (
        f"{model.start} of {model.family}" if several and model.family in r.families and model.family else model.start
    )
    parts = [f"{start}, as given" if model.given else start]
    if model.continued:
        tokens = model.tokens if model.tokens > 0 else model.budget or 0
        parts.append(f"continued on {count(tokens)} new tokens" if tokens else "continued on the new text")
    if model.residual is not None:
        whose = f" of {model.residual}" if several and model.residual else ""
        parts.append(f"+ {1 if model.scale is None else model.scale:g} × (instruct \u2212 base){whose}")
    if model.tuned:
        parts.append("tuned on the instruct model's conversations")
    if model.distilled:
        parts.append("held to the instruct model on its own answers")
    if model.self_distilled:
        parts.append("held to itself with the conversations' answers in the prompt")
    if model.width:
        parts.append(f"width {model.width}, world {model.seed}")
    return ", ".join(parts)


def corpus_text(r: Results) -> str:
    """The new text in a line: documents, tokens, dates; "" where nothing is recorded."""
    c = r.record.corpus
    parts = [
        plural(int(c["documents"]), "document") if c.get("documents") is not None else "",
        f"{count(c['tokens'])} tokens" if c.get("tokens") is not None else "",
        f"{c['first_date']} to {c['last_date']}" if c.get("first_date") and c.get("last_date") else "",
    ]
    return " · ".join(p for p in parts if p)


# ---------------------------------------------------------------------------------------------------------------- head


def _banners(r: Results) -> list[b.Block]:
    failed = [m for m in r.models if m.state == "failed"]
    lines = [f"{m.label or m.name}: {m.reason or 'no reason was recorded'}" for m in failed]
    found = b.problems(f"{plural(len(failed), 'model')} could not be made.", lines, "bad")
    if r.record.status in STATUS and not (r.record.status == "failed" and failed):
        found.append(STATUS[r.record.status])
    found += b.problems("Some files could not be used.", r.problems)
    return found + b.problems("A pair does not look like a base and its child.", _warnings(r))


def _warnings(r: Results) -> list[str]:
    """Sentences on pairs that do not look like a base and its child: with the evidence, or among the notes
    (`holdfast.checkpoints.ancestry`)."""
    found = [w for evidence in r.record.ancestry for w in evidence["warnings"]]
    return list(dict.fromkeys([*found, *(n for n in r.record.notes if n.startswith("WARNING:"))]))


def _tiles(r: Results) -> list[Tile]:
    found: list[Tile] = []
    if r.record.kind != "update" and r.models:
        done = sum(m.state == "complete" for m in r.models)
        verdicts = [c.verdict for p in r.record.pairs for c in p.comparisons if c.primary]
        counted = tally(verdicts, VERDICTS)
        found.append(Tile("Models", f"{done} of {len(r.models)}", "complete"))
        found += [Tile("Paired comparisons", f"{len(verdicts):,}", counted)] if verdicts else []
    for who, pair in _against(r).items():
        for role, words in ROLES.items():
            held = by_role(pair, role)
            if held and not (role == "new" and "continued" in who):
                found.append(_tile(words.capitalize(), held, f"against {who}"))
    tokens = max((m.tokens for m in r.models), default=0)
    if tokens > 0:
        flops, seconds = r.spent()
        found.append(Tile("New tokens", count(tokens), corpus_text(r).partition(" · ")[0] or "trained on"))
        if flops or seconds:
            time = duration(seconds) if seconds else "not recorded"
            found.append(Tile("Cost of all models", time, flops_text(flops) if flops else ""))
    return found


def _tile(title: str, held: Sequence[Comparison], against: str) -> Tile:
    rows = [ComparisonRow(c) for c in held]
    if len(rows) == 1:
        row = rows[0]
        text, interval = row.change()
        return Tile(title, text, f"{interval} {against}: {row.verdict} ({row.levels()})", TONES.get(row.verdict, ""))
    verdicts = [row.verdict for row in rows]
    rest = tally(verdicts, [v for v in VERDICTS if v != GAINED])
    if len(rows) <= FEW:
        rest = "; ".join(f"{row.name.replace('_', ' ')} {row.change()[0]}, {row.verdict}" for row in rows)
    return Tile(title, f"{verdicts.count(GAINED)} of {len(rows)} gained", f"{against}: {rest}" if rest else against)


# --------------------------------------------------------------------------------------------------------------- pairs


def pair_groups(pairs: Sequence[ModelPair], r: Results) -> dict[str, Groups]:
    """The pairs by question, those that differ in the training seed together, in the order of the record."""
    seeds = {m.name: m.seed for m in r.models}
    found: dict[str, Groups] = {}
    for pair in pairs:
        before, after = (without_seed(r.label(name)) for name in (pair.before, pair.after))
        found.setdefault(pair.question, {}).setdefault((before, after), {})[seeds.get(pair.after, 0)] = pair
    return found


def _pairs(r: Results) -> Section | None:
    """An update's: every pair with its forests and figures. A study's by what they answer: a row a pair of models, a
    column a measure, the mean over training seeds in each cell; what each seed showed is folded below, for a study has
    a pair for every budget, seed and question."""
    pairs, update = [p for p in r.record.pairs if p.comparisons], r.record.kind == "update"
    parts: list[Any] = []
    for pair in pairs if update else ():
        rows = ordered(pair.comparisons)
        primary = primary_of(rows)
        sentence = pair_sentence((r.label(pair.before), r.label(pair.after)), primary)
        parts += [b.Heading(pair.question or _title(pair, r)), Paragraph(sentence)]
        parts += [*b.side_by_side(gains(primary)), Fold(f"Figures ({len(rows):,})", [measures(rows)])]
    for question, groups in ({} if update else pair_groups(pairs, r)).items():
        each = [p for found in groups.values() for p in found.values()]
        folded = [measures(ordered(p.comparisons), _title(p, r)) for p in each]
        parts += [b.Heading(question), _gains(groups, [c for p in each for c in p.comparisons if c.primary])]
        parts.append(Fold(f"{plural(len(each), 'pair')} one by one, with all metrics", folded))
    text = (
        "In the tables: after \u2212 before of the metric that leads an entry, the mean over training seeds, with its "
        "95 % interval over seeds and evaluated samples (over samples alone where there is one seed). Green: better, "
        "red: worse, with the whole interval."
    )
    parts += [] if update else [Paragraph(text, "note")]
    parts.append(difference_note([ComparisonRow(c) for p in pairs for c in p.comparisons]) if pairs else None)
    return Section("Compared pairs", parts, anchor="pairs") if pairs else None


def _title(pair: ModelPair, r: Results) -> str:
    return f"{r.label(pair.before)} → {r.label(pair.after)}"


def _gains(groups: Groups, leading: Sequence[Comparison]) -> Table:
    first: dict[Entry, Comparison] = {}
    for c in leading:
        first.setdefault((c.suite, c.name, c.metric), c)
    entries = sorted(first, key=lambda e: group_rank(e[0]))

    def column(entry: Entry) -> Col:
        share, unit, higher = ComparisonRow(first[entry]).share, first[entry].unit, first[entry].higher_is_better
        below = sub(f"{'points' if share else unit}; {direction(higher)}")
        return Col(
            (_breakable(entry[1]), below), lambda g: _gain_cell(gain_over_seeds(g["by_seed"], [entry]), share=share)
        )

    rows = []
    for (before, after), pairs in groups.items():
        seeds = f"{plural(len(pairs), 'seed')}; " if len(pairs) > 1 else ""
        by_seed = {seed: p.comparisons for seed, p in pairs.items()}
        rows.append({"name": (after, sub(f"{seeds}against {before}")), "by_seed": by_seed})
    columns = [Col("Model", "name", numeric=False), *map(column, entries)]
    return tabulate(rows, columns, kind="figures", cards=False)


def _gain_cell(gain: Gain | None, *, share: bool) -> Text:
    if gain is None:
        return ""
    sign = 1.0 if gain.higher_is_better else -1.0
    low, high = gain.interval or (float("nan"), float("nan"))
    ends = sorted((sign * low, sign * high))
    texts = with_interval(sign * gain.value, (ends[0], ends[1]), share=share, sign=True)
    return b.figure(*texts, tone="good" if low > 0 else "bad" if high < 0 else "flat")


# --------------------------------------------------------------------------------------------------------------- tables


def _figures(r: Results) -> Section:
    parts: list[b.Block] = []
    held = [t for t in r.tables if any(g.metric(row) is not None for g in t.groups for row in r.rows)]
    for t in held:
        shown = [row for row in r.rows if row.place is not None or any(g.metric(row) for g in t.groups)]
        others = [row for row in shown if not row.leads]
        parts.append(figures_table(t, [row for row in shown if row.leads], t.title, paper=r.in_paper))
        parts += (
            [Fold(f"Other metrics ({len(others):,})", [figures_table(t, others, paper=r.in_paper)])] if others else []
        )
    parts += _table_notes(held, r) if held else [Paragraph("No evaluation of any model is there yet.", "note")]
    return Section("What was measured", parts, anchor="measured")


def _table_notes(held: Sequence[FigureTable], r: Results) -> list[b.Block]:
    groups = [g for t in held for g in t.groups]
    seeds = " and over seeds" if any(len(g.members) > 1 for g in groups) else ""
    text = (
        "Bold: the best of a block of columns. Underlined: the second best. Figures that read alike share the mark, "
        f"and a mark says nothing about noise. In brackets: the interval over samples of the model alone{seeds}."
    )
    if r.in_paper:
        text += (
            " Shares are in percent; sub-average 1 is over the eight figures above it, 2 over the next seven, the "
            "average over all sixteen. An empty cell was not measured."
        )
    found: list[b.Block] = [Paragraph(text, "note")]
    if r.in_paper and any(g.paper is not None for g in groups):
        text = (
            "“Paper”: what is printed in tables 2 to 4 of “Balancing Continuous Pre-Training and Instruction "
            "Fine-Tuning”, without intervals, for a model that began with one of the same name, saw as many new tokens "
            "(within 5 %), and got the same residual at scale 1. Its new text was 2 million news articles of December "
            "2023 to September 2024; the harness has changed since."
        )
        for column, name in paper_004.disagreements():
            what = name.replace("_", "-", 1).replace("_", " ")
            text += f" Table {column.table} prints {column.averages[name]:g} as {what} of {column.name}, "
            text += f"where its own figures give {number(column.mean(name), 2)}."
        against = Bullets(paper_004.printed()["against_its_text"])
        found += [Paragraph(text, "note"), Fold("Where the paper's text and its tables differ", [against])]
    if r.in_paper and 0 < max(m.parameters for m in r.models) < paper_004.SMALL:
        found.append(Paragraph(paper_004.printed()["small_models"], "note"))
    return found


def figures_table(made: FigureTable, rows: Sequence[Measure], title: str = "", *, paper: bool) -> Table:
    """A table of blocks: block titles over columns, a figure with its interval a cell, the paper's below where there is
    one.

    Args:
        made: the table.
        rows: what it shows.
        title: above it.
        paper: shares in percent with two decimals (intervals: one), as in the paper; else as every page shows them.
    """
    cells = []
    for row in rows:
        parts: list[Text] = [(_breakable(row.title), sub(_breakable(row.words)))]
        for block in made.blocks:
            metrics = [g.metric(row) for g in block.groups]
            for group, metric, mark in zip(block.groups, metrics, marks_of(metrics), strict=True):
                printed = row.printed(group.paper)
                beside = sub(f"paper {number(printed, 2)}", tone="paper") if printed is not None else None
                value, interval = cell_text(metric, paper=paper) if metric is not None else ("", "")
                parts.append(beside if metric is None else (Span(value, "mark", mark), sub(interval), beside))
        cells.append(parts)
    heads = [b.Column(title="Measure"), *(b.Column(title=_column_head(g), numeric=True) for g in made.groups)]
    groups = [(block.title, len(block.groups)) for block in made.blocks]
    tones = ["average" if row.average else "" for row in rows]
    return Table(columns=heads, rows=cells, title=title, kind="figures", groups=groups, tones=tones)


def _breakable(text: str) -> str:
    """Names of entries with places where a narrow column may break them."""
    return text.replace("_", "_\u200b")


def _column_head(g: Group) -> Text:
    seeds = sub(plural(len(g.members), "seed")) if len(g.members) > 1 else None
    return g.header, seeds, chip(g.state, STATE_TONES.get(g.state, "")) if g.state != "complete" else None


def cell_text(metric: Metric, *, paper: bool) -> tuple[str, str]:
    """A figure and its interval as text; see `figures_table`."""
    if paper and is_share(metric.unit, values=[metric.value]):
        return number(100 * metric.value, 2), interval_text(in_percent(metric.interval), 1)
    return metric_texts(metric)


def marks_of(metrics: Sequence[Metric | None]) -> list[str]:
    """ "best" and "second" of a block's figures; figures that read alike share a mark, and a single figure has none."""
    texts = [
        None if m is None else cell_text(m, paper=True)[0].removesuffix(" %").replace("\u2212", "-") for m in metrics
    ]
    shown = [None if t in (None, "n/a") or "∞" in t else float(t) for t in texts]
    up = next((m.higher_is_better for m in metrics if m is not None), True)
    best = [*sorted({v for v in shown if v is not None}, reverse=up), None, None][:2]
    return ["" if None in (v, best[1]) else "best" if v == best[0] else "second" if v == best[1] else "" for v in shown]


# ---------------------------------------------------------------------------------------------------------------- plots


def _plots(r: Results) -> Iterable[Section]:
    # The scores that sum the others up come last in the list of the paper's groups, and matter most here.
    first = sorted(r.scores, key=lambda s: (s.score != "Average", s.role != "instruction"))
    mmlu = [m for m in r.entries if m.name == "mmlu" and m.leads][:1]  # what the paper's figure 2 has
    against_cost = list({s.score: s for s in (*first[:1], *mmlu, *first[1:])}.values())
    tokens = token_charts(r)
    wide = [dataclasses.replace(c, width=w) for c, w in zip(tokens, b.widths(len(tokens)), strict=True)]
    carried, cost = carried_charts(r, first, most=MOST_PANELS), compute_charts(r, against_cost, most=2)
    text = "What more new text does to the base, to the instruct model, and to the base with the residual put back."
    yield from [Section("Scores against new tokens", wide, intro=text, anchor="tokens")] if wide else []
    text = "Bases with a sibling's residual, and derived models with residuals, beside what they were made from."
    shown = b.side_by_side(carried)
    yield from [Section("Do residuals carry over?", shown, intro=text, anchor="carried")] if carried else []
    text = (
        "How large what was added is, beside what comes back: the norm of scale × (instruct \u2212 base) over that of "
        "the base that it was taken from. At 0 the same model without it."
    )
    added = b.side_by_side(added_charts(r, first, most=MOST_PANELS))
    yield from [Section("Scale and norm of the residual", added, intro=text, anchor="added")] if added else []
    text = "The largest budget at every width: what a model of another size loses, and what the residual brings it."
    wide = b.side_by_side(width_charts(r, first, most=MOST_PANELS))
    yield from [Section("Scores against width", wide, intro=text, anchor="widths")] if wide else []
    yield from [Section("Scores against compute", b.side_by_side(cost), anchor="compute")] if cost else []


def _scale(r: Results) -> Section | None:
    scale = r.record.scale
    if scale is None:
        return None
    intro = f"Scale {significant(float(scale.chosen))} was chosen: {scale.reason.removesuffix('.')}."
    return Section("Scale of the residual", [scale_chart(scale)], intro=intro, anchor="scale")


# --------------------------------------------------------------------------------------------------------------- models


def _models(r: Results) -> Section:
    if not r.models:
        return Section("Models", [Paragraph("The record names no model.", "note")])
    several = len({m.seed for m in r.models}) > 1
    columns = [
        Col(
            "Model",
            lambda m: (m.label or m.name, sub(m.name) if m.label and m.label != m.name else None),
            numeric=False,
        ),
        Col(
            "How it was made",
            lambda m: made_text(m, r) + (f", seed {m.seed}" if several and m.continued and not m.width else ""),
            numeric=False,
            wide=True,
        ),
        Col("Parameters", lambda m: count(m.parameters) if m.parameters else ""),
        Col("Compute", lambda m: flops_text(m.flops) if m.flops else ""),
        Col("Time", lambda m: duration(m.seconds) if m.seconds else ""),
        Col("State", lambda m: chip(m.state, STATE_TONES.get(m.state, "")), numeric=False),
        Col("Where", lambda m: _where(r.folder, m), numeric=False, wide=True),
    ]
    tones = ["taken" if m.name == r.record.result else "" for m in r.models]
    parts: list[b.Block] = [tabulate(r.models, columns, kind="dense", tones=tones)]
    commands = [_command(m, r) for m in r.models if m.residual is not None]
    if commands:
        text = "With models that are there already, these commands write what the additions above wrote."
        shown: list[b.Block] = [Paragraph(text, "note"), b.Code("\n\n".join(commands))]
        parts.append(Fold(f"The additions by hand ({len(commands)})", shown))
    return Section("Models and how they were made", parts)


def _where(folder: Path, model: StudiedModel) -> Text:
    path, link, inside = shown_name(model) if model.path else "not recorded", None, Path(model.path)
    if model.path and not inside.is_absolute() and ".." not in inside.parts and (folder / inside).exists():
        path = model.path
        runs = [p for p in (inside, *inside.parents[:-1]) if (folder / p / REPORT_FILE).is_file()]
        link = sub(Span("report of the run", link=quote(f"{runs[0].as_posix()}/{REPORT_FILE}"))) if runs else None
    return path, link, sub(Span(model.hash[:16], "code")) if model.hash else None


def _command(model: StudiedModel, r: Results) -> str:
    """`holdfast residual apply` for an addition; paths of other folders by their last part."""
    given = {m.start: m for m in r.models if m.given and m.family == model.residual}
    parts = {"instruct": given[INSTRUCT], "old_base": given[BASE], "base": r.target_of(model)}
    words = [word for option, m in parts.items() for word in (f"--{option}", _path(m))]
    words += ["--scale", f"{model.scale:g}"] if model.scale not in (None, 1) else []
    return shlex.join(["holdfast", "residual", "apply", *words, "--output_dir", _path(model)])


def _path(model: StudiedModel) -> str:
    path = model.path or model.name
    return shown_name(model) if Path(path).is_absolute() or path.startswith((".", "~")) else path


# --------------------------------------------------------------------------------------------- corpus and ancestry


def _corpus(r: Results) -> Section:
    corpus = r.record.corpus
    if not corpus:
        nothing = Paragraph("Nothing about the corpus is recorded.", "note")
        return Section("New text", [nothing], anchor="corpus")
    texts = {key: CORPUS_FORMS.get(key, _count)(value) for key, value in corpus.items() if value is not None}
    found = [(words, texts[key]) for key, words in CORPUS.items() if key in texts]
    if "first_date" not in texts:
        found.append(("Dates", "none recorded: whether the text is new to the models is not known from it"))
    skipped = [(str(k).replace("_", " "), n) for k, n in corpus.get("skipped", {}).items()]
    columns = [Col("Reason", lambda s: s[0], numeric=False), Col("Documents", lambda s: _count(s[1]))]
    left_out = Fold(f"Documents left out ({sum(n for _, n in skipped):,})", [tabulate(skipped, columns)])
    others = flatten({k: v for k, v in corpus.items() if k not in CORPUS and k != "skipped"})
    parts = [
        Panel([Facts(found)], "card"),
        left_out if skipped else Paragraph("No document was left out.", "note"),
        b.fold_facts("More about the corpus", others),
    ]
    return Section("New text", parts, anchor="corpus")


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else setting(value)


def _ancestry(r: Results) -> Section | None:
    parts: list[b.Block] = []
    charts = []
    caption = (
        "L2 norm of (instruct \u2212 base) over the base's, per layer, on a sample; other colour: outside the blocks."
    )
    for found in r.record.ancestry:
        title = " from ".join(last_part(found[k]) for k in ("instruct", "base"))
        layers = {d["layer"]: LayerDistance(**d) for d in found["layers"]}
        total = layers.pop("total", None)
        if total is not None:
            words = (
                f"{title}: over all weights the difference has {moved(total.relative)} of the base's norm, and the "
                f"cosine is {number(total.cosine, 4)}, on a sample of {count(total.parameters)} weights."
            )
            child = " That is what a fine-tune of a base looks like." if not _warnings(r) else ""
            parts.append(Paragraph(words + child))
        parts += [Paragraph(w, "note") for w in found["warnings"]]
        charts.append(layer_chart(list(layers.values()), title=title, caption=caption))
    title = "Is the instruct model a child of the base?"
    return Section(title, [*parts, *b.side_by_side(charts)], anchor="ancestry") if r.record.ancestry else None


# ---------------------------------------------------------------------------------------------------------- small print


def _reading(r: Results) -> list[str]:
    seeds = (
        " and, for columns of several seeds, over seeds"
        if any(len(g.members) > 1 for t in r.tables for g in t.groups)
        else ""
    )
    parts = [
        "The residual is what instruction tuning changed: instruct \u2212 base, weight by weight. Added to the base "
        "after it was continued on new text, it is meant to bring instruction following back without instruction data "
        "(Balancing Continuous Pre-Training, equations 1 and 2).",
        "Verdicts are of paired comparisons: both models answered the same samples. Gained or lost: the interval of "
        "the difference excludes 0. No change beyond noise is not proof of no change; the interval says how large one "
        "may be.",
        f"Intervals are over samples{seeds}. Where one training run stands behind a model, how far another seed would "
        "move it is not in them.",
        "Tokens are those trained on, as counted. FLOPs are those of the training behind a model.",
    ]
    if r.record.kind == "update":
        parts.append(
            "“Instruct, continued” is the instruct model trained on the same new text: the way that the residual is "
            "there to spare. Where it was not made, nothing here says what it would have lost."
        )
    return parts


def _small_print(r: Results) -> Section:
    record = r.record
    settings = flatten(record.config)
    hashes = [(m.label or m.name, m.hash or "not recorded") for m in r.models]
    found = [("Began", record.created or "not recorded"), ("Finished", record.finished or f"no ({record.status})")]
    found += [("Pairs", ", ".join(f for f in record.families if f))] if any(record.families) else []
    folds = {
        f"Settings ({plural(len(settings), 'key')})": settings,
        "Versions": list(record.versions.items()),
        "Hardware": hardware_rows(record.hardware),
        "Hashes of the weights": hashes,
    }
    folded = [Fold(title, b.facts_or_nothing(facts)) for title, facts in folds.items()]
    return Section("To repeat it", [Panel([Facts(found)], "card"), *folded])
