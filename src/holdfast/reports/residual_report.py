"""`report.html` of an update, or of a study of the instruction residual (paper 004): the answer first, then the
figures, then how they came about.

Reads the record and the evaluation folders of its models, nothing else; it can be written at any moment, and what is
missing is said. Verdicts are those of the paired comparisons in the record. The paper's own figures stand beside ours
where a model was made as one of the paper's was.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast.records.comparison import Comparison
from holdfast.records.residual import BASE, INSTRUCT, Pair, ResidualRecord, StudiedModel
from holdfast.records.run import LayerDistance
from holdfast.records.study import Objective
from holdfast.reports import paper_004
from holdfast.reports.blocks import (
    Banner,
    Block,
    Bullets,
    Code,
    Column,
    Facts,
    Fold,
    Heading,
    Page,
    Panel,
    Paragraph,
    Section,
    Span,
    Table,
    Text,
    Tile,
    Tiles,
    chip,
    columns,
    facts_or_nothing,
    figure,
    known,
    notes,
    problems,
    side_by_side,
    sub,
    widths,
)
from holdfast.reports.charts import Chart, layer_chart, moved
from holdfast.reports.compared import (
    TONES,
    Row,
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
    hardware_rows,
    last_part,
    number,
    percent,
    plural,
    setting,
    significant,
    tally,
    with_interval,
)
from holdfast.reports.html import write_page
from holdfast.reports.residual_charts import carried_charts, compute_charts, kept_charts, scale_chart, token_charts
from holdfast.reports.residual_figures import (
    FigureTable,
    Group,
    Studied,
    TableRow,
    cell_text,
    flops_text,
    label_of,
    problems_of,
    read_models,
    shown_name,
    spent_in_all,
    tables,
    target_of,
    tokens_text,
)
from holdfast.reports.residual_scores import Score, by_role, pair_of, score_named, scores_of
from holdfast.reports.residual_text import REPORT_FILE, corpus_text, difference_text, lead, made_text, pair_title
from holdfast.statistics.gains import Gain, gain_over_seeds

STATUS_TONES = {"finished": "good", "running": "warn", "interrupted": "warn", "failed": "bad"}
STATE_TONES = {"complete": "good", "running": "warn", "waiting": "", "failed": "bad"}
FEW = 3
"""Measures that a tile names one by one."""
MOST_PANELS = 4
"""Plots of one kind beyond the paper's; the tables have the rest."""


def write_residual_report(folder: str | os.PathLike[str], record: ResidualRecord) -> Path:
    """Writes `report.html` into the folder and returns its path.

    Args:
        folder: the update's or study's; the models' evaluations are read from it.
        record: what lies in it, finished or not.

    Raises:
        StorageError: the page could not be written; an earlier one is intact.
    """
    folder = Path(folder)
    models = read_models(folder, record)
    made, scores = tables(models, record), scores_of(models)
    what = "update" if record.kind == "update" else "residual study"
    new = corpus_text(record)
    details = [plural(len(models), "model"), f"new text: {new}" if new else "", record.created]
    shown = _tiles(models, record)
    kept = kept_charts(models, scores, record)
    pairs = _pairs(record) if record.kind == "update" else None
    page = Page(
        tab=f"{record.name}: holdfast {what} report",
        eyebrow=f"holdfast {what}",
        title=record.name or what.capitalize(),
        lead=lead(models, record),
        status=(record.status, STATUS_TONES.get(record.status, "flat")),
        details=" · ".join(d for d in details if d),
        blocks=[
            *_banners(models, record),
            Tiles(shown) if shown else None,
            Section("Before and after", kept, anchor="kept") if kept else None,
            pairs,
            _figure_tables(made, models),
            *_plots(made, scores, models),
            _scale(record),
            _study_pairs(record) if record.kind != "update" else None,  # there may be hundreds: figures first
            _models(folder, models, record),
            _corpus(record),
            _ancestry(record),
            _cost(models, record),
            notes(record.notes, anchor="notes"),
            Section("How to read this page", [Panel([Bullets(_reading(record, made))], "card")], anchor="reading"),
            _small_print(models, record),
        ],
        footer=f"Written by holdfast {record.versions.get('holdfast', '')} from the files of the folder.",
    )
    return write_page(page, folder / REPORT_FILE)


# ---------------------------------------------------------------------------------------------------------------- head


def _banners(models: Sequence[Studied], record: ResidualRecord) -> list[Block]:
    failed = [m.model for m in models if m.model.state == "failed"]
    lines = [f"{m.label or m.name}: {m.reason or 'no reason was recorded'}" for m in failed]
    found = problems(f"{plural(len(failed), 'model')} could not be made.", lines, "bad")
    if record.status == "interrupted":
        text = "It was interrupted. The same command continues with what is missing."
        found.append(Banner(Span(text, "strong"), "warn"))
    elif record.status == "running":
        found.append(Banner("It had not ended when this page was written."))
    elif record.status == "failed" and not failed:
        text = "It failed. What was finished before is shown; the same command continues."
        found.append(Banner(Span(text, "strong"), "bad"))
    found += problems("Some files could not be used.", problems_of(models))
    return found + problems("A pair does not look like a base and its child.", _warnings(record))


def _warnings(record: ResidualRecord) -> list[str]:
    """Sentences on pairs that do not look like a base and its child: with the evidence, or among the notes
    (`holdfast.checkpoints.ancestry`)."""
    found = [str(w) for evidence in record.ancestry for w in _list(evidence.get("warnings"))]
    return list(dict.fromkeys([*found, *(n for n in record.notes if n.startswith("WARNING:"))]))


def _tiles(models: Sequence[Studied], record: ResidualRecord) -> list[Tile]:
    found: list[Tile] = []
    if record.kind != "update" and models:
        done = sum(m.model.state == "complete" for m in models)
        verdicts = [c.verdict for p in record.pairs for c in p.comparisons if c.primary]
        found.append(Tile("Models", f"{done} of {len(models)}", "complete"))
        if verdicts:
            said = tally(verdicts, ("gained", "lost", "within noise"))
            found.append(Tile("Paired comparisons", f"{len(verdicts):,}", said))
    against = pair_of(record, INSTRUCT, continued=False) or pair_of(record, BASE, continued=False)
    continued = pair_of(record, INSTRUCT, continued=True)
    for pair, role, title in (
        (against, "new", "New text"),
        (against, "instruction", "Instruction following"),
        (continued, "instruction", "Instruction following"),
    ):
        held = by_role(pair[0], role) if pair is not None else []
        if pair is not None and held:
            start = pair[1].start
            who = "the continued instruct model" if pair is continued else f"the {start}"
            who += " model" if start == INSTRUCT and pair is not continued else ""
            found.append(_tile(title, held, f"against {who}"))
    tokens = max((m.model.tokens for m in models), default=0)
    if tokens:
        flops, seconds = spent_in_all(models)
        documents = corpus_text(record).partition(" · ")[0]
        found.append(Tile("New tokens", tokens_text(tokens), documents or "trained on"))
        if flops or seconds:
            time = duration(seconds) if seconds else "not recorded"
            found.append(Tile("Cost of all models", time, flops_text(flops) if flops else ""))
    return found


def _tile(title: str, held: Sequence[Comparison], against: str) -> Tile:
    if len(held) == 1:
        row = Row(held[0])
        text, interval = row.change()
        return Tile(title, text, f"{interval} {against}: {row.verdict} ({row.levels()})", TONES.get(row.verdict, ""))
    verdicts = [c.verdict for c in held]
    rest = tally(verdicts, ("lost", "within noise"))
    if len(held) <= FEW:
        each = [f"{c.name.replace('_', ' ')} {difference_text(c).partition(' [')[0]}, {c.verdict}" for c in held]
        rest = "; ".join(each)
    gained = f"{verdicts.count('gained')} of {len(held)} gained"
    return Tile(title, gained, f"{against}: {rest}" if rest else against)


# --------------------------------------------------------------------------------------------------------------- pairs


def _pairs(record: ResidualRecord) -> Section | None:
    """An update's: every pair with its forests and figures."""
    parts: list[Any] = []
    shown: list[Row] = []
    empty = []
    for pair in record.pairs:
        rows, title = ordered(pair.comparisons), pair_title(pair, record)
        if not rows:
            empty.append(f"{pair.question or title} ({title}): nothing was compared.")
            continue
        shown += rows
        labels = (label_of(record, pair.before), label_of(record, pair.after))
        primary = primary_of(rows)
        parts += [Heading(pair.question or title), Paragraph(pair_sentence(labels, primary))]
        parts += [*side_by_side(gains(primary)), Fold(f"Figures ({len(rows):,})", [measures(rows)])]
    parts += [Panel([Bullets(empty)], "card")] if empty else []
    parts += [difference_note(shown)] if shown else []
    return Section("Compared pairs", parts, anchor="pairs") if parts else None


_SEED = re.compile(r", seed \d+")
Entry = tuple[str, str, str]
"""(suite, name, metric)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairGroup:
    """The same two models over training seeds."""

    question: str
    before: str
    """Label without the seed."""
    after: str
    pairs: dict[int, Pair]
    """By the seed of the later model."""

    def gain(self, entry: Entry) -> Gain | None:
        """The mean over seeds with its interval; None where a seed has no such figure."""
        first = next((c for p in self.pairs.values() for c in p.comparisons if _entry(c) == entry), None)
        if first is None:
            return None
        objective = Objective(
            side="target", entries=[entry], label=entry[1], unit=first.unit, higher_is_better=first.higher_is_better
        )
        return gain_over_seeds({seed: pair.comparisons for seed, pair in self.pairs.items()}, objective)


def pair_groups(record: ResidualRecord) -> list[PairGroup]:
    """The pairs of a study, those that differ in the training seed alone together, in the order of the record."""
    seeds = {m.name: m.seed for m in record.models}
    found: dict[tuple[str, str, str], dict[int, Pair]] = {}
    for pair in record.pairs:
        before, after = (_SEED.sub("", label_of(record, name)) for name in (pair.before, pair.after))
        found.setdefault((pair.question, before, after), {})[seeds.get(pair.after, 0)] = pair
    return [
        PairGroup(question=q, before=before, after=after, pairs=pairs) for (q, before, after), pairs in found.items()
    ]


def _study_pairs(record: ResidualRecord) -> Section | None:
    """A study's, by what they answer: a row a pair of models, a column a measure, the mean over training seeds in each
    cell. A study has a pair for every budget, seed and question; what each seed showed is folded below."""
    groups = pair_groups(record)
    with_any = [g for g in groups if any(p.comparisons for p in g.pairs.values())]
    empty = [f"{g.question} ({g.before} \u2192 {g.after}): nothing was compared." for g in groups if g not in with_any]
    parts: list[Any] = []
    for question in dict.fromkeys(g.question for g in with_any):
        asked = [g for g in with_any if g.question == question]
        pairs = [p for g in asked for p in g.pairs.values() if p.comparisons]
        each = [measures(ordered(p.comparisons), pair_title(p, record)) for p in pairs]
        parts += [Heading(question), _gains_table(asked, pairs)]
        parts.append(Fold(f"{plural(len(each), 'pair')} one by one, with all metrics", each))
    parts += [Panel([Bullets(empty)], "card")] if empty else []
    rows = [Row(c) for g in with_any for p in g.pairs.values() for c in p.comparisons]
    text = (
        "In the tables: after \u2212 before of the metric that leads an entry, the mean over training seeds, with its "
        "95 % interval over seeds and evaluated samples (over samples alone where there is one seed). Green: better, "
        "red: worse, with the whole interval."
    )
    parts += [Paragraph(text, "note"), difference_note(rows)] if rows else []
    return Section("Compared pairs", parts, anchor="pairs") if parts else None


def _gains_table(groups: Sequence[PairGroup], pairs: Sequence[Pair]) -> Table:
    leading: dict[Entry, Comparison] = {}
    for c in (c for p in pairs for c in p.comparisons if c.primary):
        leading.setdefault(_entry(c), c)
    entries = sorted(leading, key=lambda e: group_rank(e[0]))
    heads = [Column(title="Model")]
    for e in entries:
        unit = "points" if Row(leading[e]).share else leading[e].unit
        below = sub(f"{unit}; {direction(leading[e].higher_is_better)}")
        heads.append(Column(title=(_breakable(e[1]), below), numeric=True))
    rows = []
    for g in groups:
        seeds = f"{plural(len(g.pairs), 'seed')}; " if len(g.pairs) > 1 else ""
        name = (g.after, sub(f"{seeds}against {g.before}"))
        rows.append([name, *(_gain_cell(g.gain(e), leading[e]) for e in entries)])
    return Table(columns=heads, rows=rows, kind="figures", cards=False)


def _gain_cell(gain: Gain | None, like: Comparison) -> Text:
    if gain is None:
        return ""
    sign = 1.0 if gain.higher_is_better else -1.0
    low, high = sorted(sign * v for v in gain.interval) if gain.interval is not None else (float("nan"), float("nan"))
    better, worse = (
        gain.interval is not None and gain.interval[0] > 0,
        gain.interval is not None and gain.interval[1] < 0,
    )
    texts = with_interval(sign * gain.value, (low, high), share=Row(like).share, sign=True)
    return figure(*texts, tone="good" if better else "bad" if worse else "flat")


def _entry(c: Comparison) -> Entry:
    return c.suite, c.name, c.metric


# --------------------------------------------------------------------------------------------------------------- tables


def _figure_tables(made: Sequence[FigureTable], models: Sequence[Studied]) -> Section:
    held = [t for t in made if any(m is not None for r in t.rows for m in r.metrics)]
    if not held:
        nothing = Paragraph("No evaluation of any model is there yet.", "note")
        return Section("What was measured", [nothing], anchor="measured")
    parts: list[Block] = []
    for t in held:
        parts.append(figures_table(t, [r for r in t.rows if r.leads], t.title))
        others = [r for r in t.rows if not r.leads]
        if others:
            parts.append(Fold(f"Other metrics ({len(others):,})", [figures_table(t, others)]))
    return Section("What was measured", [*parts, *_table_notes(held, models)], anchor="measured")


def _table_notes(made: Sequence[FigureTable], models: Sequence[Studied]) -> list[Block]:
    in_paper, seeds = any(t.in_paper for t in made), any(len(c.members) > 1 for t in made for c in t.columns)
    text = (
        "Bold: the best of a block of columns. Underlined: the second best. Figures that read alike share the mark, "
        "and a mark says nothing about noise. In brackets: the interval over samples of the model alone"
        f"{' and over seeds' if seeds else ''}."
    )
    if in_paper:
        text += (
            " Shares are in percent; sub-average 1 is over the eight figures above it, 2 over the next seven, the "
            "average over all sixteen. An empty cell was not measured."
        )
    found: list[Block] = [Paragraph(text, "note")]
    if any(t.has_paper for t in made):
        text = (
            "“Paper”: what is printed in tables 2 to 4 of “Balancing Continuous Pre-Training and Instruction "
            "Fine-Tuning”, without intervals, for a model that began with one of the same name, saw as many new tokens "
            "(within 5 %), and got the same residual at scale 1. Its new text was 2 million news articles of December "
            "2023 to September 2024; the harness has changed since."
        )
        for d in paper_004.disagreements():
            text += f" Table {d.table} prints {d.printed:g} as {d.what} of {d.column}, where its own figures give "
            text += f"{number(d.recomputed, 2)}."
        against = Fold("Where the paper's text and its tables differ", [Bullets(paper_004.AGAINST_ITS_TEXT)])
        found += [Paragraph(text, "note"), against]
    sizes = [m.model.parameters for m in models if m.model.parameters]
    if in_paper and sizes and max(sizes) < paper_004.SMALL:
        found.append(Paragraph(paper_004.SMALL_MODELS, "note"))
    return found


def figures_table(made: FigureTable, rows: Sequence[TableRow], title: str = "") -> Table:
    """A table of blocks: block titles over columns, a figure with its interval a cell, the paper's below where there is
    one.

    Args:
        made: the table.
        rows: those of its rows that are shown.
        title: above it.
    """
    cells = [
        [
            (_breakable(r.title), sub(_breakable(r.words))),
            *(_cell(r, place, paper=made.in_paper) for place in range(len(r.metrics))),
        ]
        for r in rows
    ]
    heads = [Column(title="Measure"), *(Column(title=_column_head(c), numeric=True) for c in made.columns)]
    groups = [(b.title, len(b.columns)) for b in made.blocks]
    tones = ["average" if r.average else "" for r in rows]
    return Table(columns=heads, rows=cells, title=title, kind="figures", groups=groups, tones=tones)


def _breakable(text: str) -> str:
    """Names of entries with places where a narrow column may break them."""
    return text.replace("_", "_\u200b")


def _column_head(c: Group) -> Text:
    seeds = sub(plural(len(c.members), "seed")) if len(c.members) > 1 else None
    return c.header, seeds, chip(c.state, STATE_TONES.get(c.state, "")) if c.state != "complete" else None


def _cell(r: TableRow, place: int, *, paper: bool) -> Text:
    metric, printed = r.metrics[place], r.paper[place]
    beside = sub(f"paper {number(printed, 2)}", tone="paper") if printed is not None else None
    if metric is None:
        return beside
    value, interval = cell_text(metric, paper=paper)
    return Span(value, "mark", r.marks[place]), sub(interval), beside


# ---------------------------------------------------------------------------------------------------------------- plots


def _plots(made: Sequence[FigureTable], scores: Sequence[Score], models: Sequence[Studied]) -> list[Section]:
    # The scores that sum the others up come last in the list of the paper's groups, and matter most here.
    first = sorted(scores, key=lambda s: (s.title != "Average", s.role != "instruction"))
    mmlu = score_named(models, "mmlu")  # what the paper's figure 2 has
    against_cost = list({s.title: s for s in (*first[:1], *([mmlu] if mmlu is not None else []), *first[1:])}.values())
    tokens = token_charts(made, scores)
    wide = [dataclasses.replace(c, width=w) for c, w in zip(tokens, widths(len(tokens)), strict=True)]
    found: list[tuple[str, list[Any], str, str]] = [
        (
            "Scores against new tokens",
            wide,
            "What more new text does to the base, to the instruct model, and to the base with the residual put back.",
            "tokens",
        ),
        (
            "Do residuals carry over?",
            side_by_side(carried_charts(made, first, most=MOST_PANELS)),
            "Bases with a sibling's residual, and derived models with residuals, beside what they were made from.",
            "carried",
        ),
        ("Scores against compute", side_by_side(compute_charts(made, against_cost, most=2)), "", "compute"),
    ]
    return [Section(title, charts, intro=intro, anchor=anchor) for title, charts, intro, anchor in found if charts]


def _scale(record: ResidualRecord) -> Section | None:
    if record.scale is None:
        return None
    words = f"Scale {significant(float(record.scale.chosen))} was chosen: {record.scale.reason}"
    intro = words if words.endswith(".") else f"{words}."
    return Section("Scale of the residual", [scale_chart(record.scale)], intro=intro, anchor="scale")


# --------------------------------------------------------------------------------------------------------------- models


def _models(folder: Path, models: Sequence[Studied], record: ResidualRecord) -> Section:
    if not models:
        return Section("Models", [Paragraph("The record names no model.", "note")])
    cells, tones = [], []
    for m in models:
        s = m.model
        seed = f", seed {s.seed}" if any(o.model.seed != s.seed for o in models) and m.continued else ""
        cells.append(
            [
                (s.label or s.name, sub(s.name) if s.label and s.label != s.name else None),
                made_text(s, record) + seed,
                count(s.parameters) if s.parameters else "",
                flops_text(s.flops) if s.flops else "",
                duration(s.seconds) if s.seconds else "",
                chip(s.state, STATE_TONES.get(s.state, "")),
                _where(folder, s),
            ]
        )
        tones.append("taken" if record.result and s.name == record.result else "")
    titles = ("Model", "How it was made", "Parameters", "Compute", "Time", "State", "Where")
    heads = columns(*titles, right=(2, 3, 4), wide=(1, 6))
    parts: list[Block] = [Table(columns=heads, rows=cells, kind="dense", tones=tones)]
    commands = _commands(models, record)
    if commands:
        text = "With models that are there already, these commands write what the additions above wrote."
        shown: list[Block] = [Paragraph(text, "note"), Code("\n\n".join(commands))]
        parts.append(Fold(f"The additions by hand ({len(commands)})", shown))
    return Section("Models and how they were made", parts)


def _where(folder: Path, model: StudiedModel) -> Text:
    path: str = shown_name(model) if model.path else "not recorded"
    link = None
    inside = Path(model.path)
    if model.path and not inside.is_absolute() and ".." not in inside.parts and (folder / inside).exists():
        path = model.path
        runs = [p for p in (inside, *inside.parents) if str(p) != "." and (folder / p / REPORT_FILE).is_file()]
        if runs:
            link = sub(Span("report of the run", link=quote(f"{runs[0].as_posix()}/{REPORT_FILE}")))
    return path, link, sub(Span(model.hash[:16], "code")) if model.hash else None


def _commands(models: Sequence[Studied], record: ResidualRecord) -> list[str]:
    """`holdfast residual apply` for every addition whose parts are in the record; paths of other folders by their last
    part."""
    given = {(m.model.start, m.model.family): m.model for m in models if m.given}
    found = []
    for m in models:
        s = m.model
        if s.residual is None:
            continue
        base, instruct = given.get((BASE, s.residual)), given.get((INSTRUCT, s.residual))
        target = target_of(m, models)
        if base is None or instruct is None or target is None:
            continue
        words = [
            "holdfast",
            "residual",
            "apply",
            "--instruct",
            _path(instruct),
            "--old_base",
            _path(base),
            "--base",
            _path(target.model),
        ]
        words += ["--scale", f"{s.scale:g}"] if s.scale not in (None, 1) else []
        found.append(shlex.join([*words, "--output_dir", _path(s)]))
    return found


def _path(model: StudiedModel) -> str:
    path = model.path or model.name
    return shown_name(model) if Path(path).is_absolute() or path.startswith((".", "~")) else path


# ------------------------------------------------------------------------------------------------- corpus and ancestry


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


def _corpus(record: ResidualRecord) -> Section:
    corpus = record.corpus
    if not corpus:
        nothing = Paragraph("Nothing about the corpus is recorded.", "note")
        return Section("New text", [nothing], anchor="corpus")
    found = [(words, _corpus_value(key, corpus[key])) for key, words in CORPUS.items() if corpus.get(key) is not None]
    if corpus.get("first_date") is None and corpus.get("last_date") is None:
        found.append(("Dates", "none recorded: whether the text is new to the models is not known from it"))
    skipped = corpus.get("skipped")
    others = {k: v for k, v in corpus.items() if k not in CORPUS and k != "skipped"}
    parts: list[Block] = [Panel([Facts(found)], "card")]
    if isinstance(skipped, Mapping) and skipped:
        total = sum(v for v in skipped.values() if isinstance(v, int))
        rows = [[str(k).replace("_", " "), _number(v)] for k, v in skipped.items()]
        parts.append(
            Fold(f"Documents left out ({total:,})", [Table(columns=columns("Reason", "Documents"), rows=rows)])
        )
    elif isinstance(skipped, Mapping):
        parts.append(Paragraph("No document was left out.", "note"))
    if others:
        parts.append(Fold("More about the corpus", [Facts(flatten(others))]))
    return Section("New text", parts, anchor="corpus")


def _corpus_value(key: str, value: Any) -> str:
    if key == "wasted" and isinstance(value, (int, float)):
        return f"{percent(100 * value, sign=False)} of the windows' tokens"
    if isinstance(value, Mapping):
        return ", ".join(f"{_number(v)} {str(k).replace('_', ' ')}" for k, v in value.items()) or "none"
    return f"{_number(value)} documents" if key == "held_out" and isinstance(value, int) else _number(value)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else setting(value)


def _ancestry(record: ResidualRecord) -> Section | None:
    if not record.ancestry:
        return None
    parts: list[Block] = []
    charts: list[Chart | None] = []
    caption = (
        "L2 norm of (instruct \u2212 base) over the base's, per layer, on a sample; other colour: outside the blocks."
    )
    for found in record.ancestry:
        names = [last_part(found[k]) for k in ("instruct", "base") if found.get(k)]
        title = " from ".join(names) or str(found.get("family") or "the instruct model and its base")
        layers = _layers(found)
        total = next((d for d in layers if d.layer == "total"), None)
        if total is not None:
            words = (
                f"{title}: over all weights the difference has {moved(total.relative)} of the base's norm, and the "
                f"cosine is {number(total.cosine, 4)}, on a sample of {count(total.parameters)} weights."
            )
            child = " That is what a fine-tune of a base looks like." if not _warnings(record) else ""
            parts.append(Paragraph(words + child))
        parts += [Paragraph(str(w), "note") for w in _list(found.get("warnings"))]
        charts.append(layer_chart([d for d in layers if d.layer != "total"], title=title, caption=caption))
        shown = ("layers", "warnings", "instruct", "base", "family", "total")
        rest = {k: v for k, v in found.items() if k not in shown}
        parts += [Fold(f"{title}: more", [Facts(flatten(rest))])] if rest else []
    title = "Is the instruct model a child of the base?"
    return Section(title, [*parts, *side_by_side(charts)], anchor="ancestry")


def _layers(found: Mapping[str, Any]) -> list[LayerDistance]:
    known = {f.name for f in dataclasses.fields(LayerDistance)}
    layers = []
    for d in _list(found.get("layers")):
        if isinstance(d, LayerDistance):
            layers.append(d)
        elif isinstance(d, Mapping) and {"layer", "parameters", "l2", "relative"} <= set(d):
            layers.append(LayerDistance(**{k: v for k, v in d.items() if k in known}))
    return layers


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


# ----------------------------------------------------------------------------------------------------------------- cost


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostLine:
    """One planned quantity beside what was measured."""

    what: str
    planned: float
    measured: float | None
    unit: str
    """"FLOPs" or "s"."""


def cost_lines(models: Sequence[Studied], record: ResidualRecord) -> list[CostLine]:
    """Estimates beside measurements: in all, and by model where the estimate has `models` (a mapping of names, or a
    list with "name").

    Measured is what the complete models spent; a sum stands beside the estimate only where every model is complete.
    """
    lines = []
    made = [m.model for m in models if m.model.state == "complete"]
    whole = len(made) == len(models)
    totals = dict(zip(("flops", "seconds"), spent_in_all(models), strict=True))
    parts: Any = record.cost.get("models") or {}
    if isinstance(parts, (list, tuple)):
        parts = {str(p.get("name")): p for p in parts if isinstance(p, Mapping)}
    for unit, key in (("FLOPs", "flops"), ("s", "seconds")):
        for name, part in parts.items() if isinstance(parts, Mapping) else ():
            planned = known(part.get(key)) if isinstance(part, Mapping) else None
            if planned is not None:
                measured = next((getattr(m, key) for m in made if m.name == name), None)
                lines.append(
                    CostLine(what=label_of(record, str(name)), planned=planned, measured=measured or None, unit=unit)
                )
        planned = known(record.cost.get(key))
        if planned is not None:
            lines.append(
                CostLine(
                    what="all models together",
                    planned=planned,
                    measured=(totals[key] if whole else None) or None,
                    unit=unit,
                )
            )
    return lines


def _cost(models: Sequence[Studied], record: ResidualRecord) -> Section | None:
    if not record.cost:
        return None
    parts: list[Block] = []
    rows = []
    for line in cost_lines(models, record):
        text = flops_text if line.unit == "FLOPs" else duration
        measured = text(line.measured) if line.measured else "not known"
        ratio = f"{line.measured / line.planned:.2f}" if line.measured and line.planned else ""
        what = f"{line.what}: {'operations' if line.unit == 'FLOPs' else 'time'}"
        rows.append([what, text(line.planned), measured, ratio])
    if rows:
        heads = columns("What", "Estimated before", "Measured", "Measured / estimated")
        parts.append(Table(columns=heads, rows=rows, kind="dense"))
        if any(row[0].endswith("operations") for row in rows):
            text_ = "Operations are counted, not timed: “measured” is of the tokens that were trained on."
            parts.append(Paragraph(text_, "note"))
    rest = flatten({k: v for k, v in record.cost.items() if k not in ("flops", "seconds")})
    if rest:
        parts.append(Fold("The estimate in full", [Facts([(k, _quantity(k, v, record.cost)) for k, v in rest])]))
    return Section("Cost, before and after", parts, anchor="cost")


def _quantity(key: str, text: str, cost: Mapping[str, Any]) -> str:
    """A figure of the estimate with its unit, by the end of its key."""
    value: Any = cost
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    number_ = known(value)
    if number_ is None:
        return text
    last = key.rsplit(".", 1)[-1]
    if last == "flops" or last.endswith("_flops"):
        return flops_text(number_)
    if last == "seconds" or last.endswith("_seconds"):
        return duration(number_)
    if last == "bytes" or last.endswith("_bytes"):
        return f"{number_ / 2**30:.3g} GiB"
    return text


# ---------------------------------------------------------------------------------------------------------- small print


def _reading(record: ResidualRecord, made: Sequence[FigureTable]) -> list[str]:
    parts = [
        "The residual is what instruction tuning changed: instruct \u2212 base, weight by weight. Added to the base "
        "after it was continued on new"
        " text, it is meant to bring instruction following back without instruction data (paper 004, equations 1 and "
        "2).",
        "Verdicts are of paired comparisons: both models answered the same samples. Gained or lost: the interval of "
        "the difference excludes 0. No"
        " change beyond noise is not proof of no change; the interval says how large one may be.",
        "Intervals are over samples"
        + (
            " and, for columns of several seeds, over seeds."
            if any(len(c.members) > 1 for t in made for c in t.columns)
            else "."
        )
        + " Where one training run stands behind a model, how far another seed would move it is not in them.",
        "Tokens are those trained on, as counted. FLOPs are those of the training behind a model.",
    ]
    if record.kind == "update":
        parts.append(
            "“Instruct, continued” is the instruct model trained on the same new text: the way that the residual is "
            "there to spare. Where it was not"
            " made, nothing here says what it would have lost."
        )
    return parts


def _small_print(models: Sequence[Studied], record: ResidualRecord) -> Section:
    settings = flatten(record.config)
    hashes = [(m.model.label or m.model.name, m.model.hash or "not recorded") for m in models]
    found = [("Began", record.created or "not recorded"), ("Finished", record.finished or f"no ({record.status})")]
    found += [("Pairs", ", ".join(f for f in record.families if f))] if any(record.families) else []
    folds: list[Block] = [
        Panel([Facts(found)], "card"),
        Fold(f"Settings ({plural(len(settings), 'key')})", facts_or_nothing(settings)),
        Fold("Versions", facts_or_nothing([(k, str(v)) for k, v in record.versions.items()])),
        Fold("Hardware", facts_or_nothing(hardware_rows(record.hardware))),
        Fold("Hashes of the weights", facts_or_nothing(hashes)),
    ]
    return Section("To repeat it", folds)
