"""`report.html` of an update, or of a study of the instruction residual (paper 004): the answer first, then the
figures, then how they came about.

Reads the record and the evaluation folders of its models, nothing else; it can be written at any moment, and what is
missing is said. Verdicts are those of the paired comparisons in the record. The paper's own figures stand beside ours
where a model was made as one of the paper's was.
"""

from __future__ import annotations

import dataclasses
import importlib.resources
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast.records.comparison import Comparison
from holdfast.records.residual import BASE, INSTRUCT, ResidualRecord, StudiedModel
from holdfast.records.run import LayerDistance
from holdfast.reports import paper_004
from holdfast.reports.evaluation_charts import gain_forest, share_compared
from holdfast.reports.figures import (
    Row,
    count,
    duration,
    flatten,
    hardware_text,
    number,
    percent,
    plural,
    setting,
    significant,
)
from holdfast.reports.legacy_charts import Chart, layer_chart, moved
from holdfast.reports.legacy_comparison import comparison_verdict, difference_note, measures_table
from holdfast.reports.markup import Column, Html, join, table, tag
from holdfast.reports.page import Page, banner, bullets, facts, fold, header, tiles
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
from holdfast.reports.residual_pairs import pair_rows, study_pairs
from holdfast.reports.residual_scores import Score, by_role, pair_of, score_named, scores_of
from holdfast.reports.residual_text import (
    REPORT_FILE,
    corpus_text,
    difference_text,
    lead,
    levels_text,
    made_text,
    pair_title,
    print_update,
)

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
    page = Page(f"{record.name}: holdfast {_what(record)} report")
    page.add(tag("style", Html(_asset("residual_report.css"))))
    _head(page, models, record)
    _before_and_after(page, models, scores, record)
    if record.kind == "update":
        _pairs(page, record)
    _figure_tables(page, made, models)
    _plots(page, made, scores, models)
    _scale(page, record)
    if record.kind != "update":
        study_pairs(page, record)  # there may be hundreds of pairs: figures first
    _models(page, folder, models, record)
    _corpus(page, record)
    _ancestry(page, record)
    _cost(page, models, record)
    if record.notes:
        page.section("Notes", tag("div", bullets(record.notes), cls="card"), anchor="notes")
    page.section("How to read this page", tag("div", bullets(_reading(record, made)), cls="card"), anchor="reading")
    _small_print(page, models, record)
    return page.write(folder / REPORT_FILE)


def _asset(name: str) -> str:
    return importlib.resources.files("holdfast.reports").joinpath(name).read_text(encoding="utf-8")


def _what(record: ResidualRecord) -> str:
    return "update" if record.kind == "update" else "residual study"


# ---------------------------------------------------------------------------------------------------------------- head


def _head(page: Page, models: Sequence[Studied], record: ResidualRecord) -> None:
    details = [
        plural(len(models), "model"),
        f"new text: {corpus_text(record)}" if corpus_text(record) else "",
        record.created,
    ]
    page.add(
        header(
            eyebrow=f"holdfast {_what(record)}",
            title=record.name or _what(record).capitalize(),
            lead=lead(models, record),
            status=(record.status, STATUS_TONES.get(record.status, "flat")),
            details=" · ".join(d for d in details if d),
        )
    )
    failed = [m.model for m in models if m.model.state == "failed"]
    if failed:
        lines = [f"{m.label or m.name}: {m.reason or 'no reason was recorded'}" for m in failed]
        page.add(
            banner(join(tag("strong", f"{plural(len(failed), 'model')} could not be made."), bullets(lines)), "bad")
        )
    if record.status == "interrupted":
        page.add(banner(tag("strong", "It was interrupted. The same command continues with what is missing."), "warn"))
    elif record.status == "running":
        page.add(banner("It had not ended when this page was written."))
    elif record.status == "failed" and not failed:
        page.add(
            banner(tag("strong", "It failed. What was finished before is shown; the same command continues."), "bad")
        )
    problems = problems_of(models)
    if problems:
        page.add(banner(join(tag("strong", "Some files could not be used."), bullets(problems)), "warn"))
    warnings = _warnings(record)
    if warnings:
        page.add(
            banner(join(tag("strong", "A pair does not look like a base and its child."), bullets(warnings)), "warn")
        )
    shown = _tiles(models, record)
    if shown:
        page.add(tag("div", tiles(shown), cls="five") if len(shown) == 5 else tiles(shown))


def _warnings(record: ResidualRecord) -> list[str]:
    """Sentences on pairs that do not look like a base and its child: with the evidence, or among the notes
    (`holdfast.checkpoints.ancestry`)."""
    found = [str(w) for evidence in record.ancestry for w in _list(evidence.get("warnings"))]
    return list(dict.fromkeys([*found, *(n for n in record.notes if n.startswith("WARNING:"))]))


def _tiles(models: Sequence[Studied], record: ResidualRecord) -> list[tuple[str, str, str, str]]:
    found: list[tuple[str, str, str, str]] = []
    against = pair_of(record, INSTRUCT, continued=False) or pair_of(record, BASE, continued=False)
    continued = pair_of(record, INSTRUCT, continued=True)
    for pair, role, title in (
        (against, "new", "New text"),
        (against, "instruction", "Instruction following"),
        (continued, "instruction", "Instruction following"),
    ):
        held = by_role(pair[0], role) if pair is not None else []
        if pair is not None and held:
            who = (
                "the continued instruct model"
                if pair is continued
                else f"the {pair[1].start}{' model' if pair[1].start == INSTRUCT else ''}"
            )
            found.append(_tile(title, held, f"against {who}"))
    tokens = max((m.model.tokens for m in models), default=0)
    if tokens:
        spent, seconds = spent_in_all(models)
        found.append(("New tokens", tokens_text(tokens), corpus_text(record).partition(" · ")[0] or "trained on", ""))
        if spent or seconds:
            found.append(
                (
                    "Cost of all models",
                    duration(seconds) if seconds else "not recorded",
                    flops_text(spent) if spent else "",
                    "",
                )
            )
    if record.kind != "update" and models:
        done = sum(m.model.state == "complete" for m in models)
        verdicts = [c.verdict for p in record.pairs for c in p.comparisons if c.primary]
        found.insert(0, ("Models", f"{done} of {len(models)}", "complete", ""))
        if verdicts:
            words = ", ".join(f"{verdicts.count(v)} {v}" for v in ("gained", "lost", "within noise") if v in verdicts)
            found.insert(1, ("Paired comparisons", f"{len(verdicts):,}", words, ""))
    return found


def _tile(title: str, held: Sequence[Comparison], against: str) -> tuple[str, str, str, str]:
    if len(held) == 1:
        [c] = held
        figure, interval = difference_text(c).split(" [")[0], "[" + difference_text(c).split(" [")[1]
        tone = {"gained": "good", "lost": "bad"}.get(c.verdict, "")
        return title, figure, f"{interval} {against}: {c.verdict} ({levels_text(c)})", tone
    verdicts = [c.verdict for c in held]
    rest = ", ".join(f"{verdicts.count(v)} {v}" for v in ("lost", "within noise") if v in verdicts)
    if len(held) <= FEW:
        rest = "; ".join(
            f"{c.name.replace('_', ' ')} {difference_text(c).partition(' [')[0]}, {c.verdict}" for c in held
        )
    return title, f"{verdicts.count('gained')} of {len(held)} gained", f"{against}: {rest}" if rest else against, ""


# --------------------------------------------------------------------------------------------------------------- pairs


def _pairs(page: Page, record: ResidualRecord) -> None:
    held = [(pair, pair_rows(pair)) for pair in record.pairs]
    known = [(pair, rows) for pair, rows in held if rows]
    empty = [
        f"{pair.question or pair_title(pair, record)} ({pair_title(pair, record)}): nothing was compared."
        for pair, rows in held
        if not rows
    ]
    if not known:
        if empty:
            page.section("Compared pairs", tag("div", bullets(empty), cls="card"), anchor="pairs")
        return
    parts: list[Html] = []
    for pair, rows in known:
        primary = [r for r in rows if r.raw.primary] or rows
        labels = (label_of(record, pair.before), label_of(record, pair.after))
        panels = _gains(page, primary)
        figures = tag(
            "div", fold(f"Figures ({len(rows):,})", tag("div", measures_table(rows), cls="dense compared")), cls="whole"
        )
        parts += [
            tag("h3", pair.question or pair_title(pair, record)),
            tag("p", comparison_verdict(labels, primary)),
            tag("div", *panels, figures, cls="panels"),
        ]
    note = difference_note([r for _, rows in known for r in rows])
    rest = tag("div", bullets(empty), cls="card") if empty else None
    page.section("Compared pairs", tag("div", *parts, rest, note, cls="stacked pairs"), anchor="pairs")


def _gains(page: Page, rows: Sequence[Row]) -> list[Html]:
    """Forests of the comparisons that lead: shares in points and everything else, side by side where there are both."""
    shares, others = [r for r in rows if share_compared(r.raw)], [r for r in rows if not share_compared(r.raw)]
    drawn = [
        gain_forest(held, title=title) if held else None
        for held, title in ((shares, "Gains in points"), (others, "Other gains" if shares else "Gains"))
    ]
    charts = [c for c in drawn if c is not None]
    return [page.chart(c, width="half" if len(charts) > 1 else "full") for c in charts]


def _before_and_after(page: Page, models: Sequence[Studied], scores: Sequence[Score], record: ResidualRecord) -> None:
    charts = kept_charts(models, scores, record)
    if charts:
        page.section("Before and after", tag("div", *(page.chart(c) for c in charts), cls="panels"), anchor="kept")


# --------------------------------------------------------------------------------------------------------------- tables


def _figure_tables(page: Page, made: Sequence[FigureTable], models: Sequence[Studied]) -> None:
    known = [t for t in made if any(m is not None for r in t.rows for m in r.metrics)]
    if not known:
        page.section(
            "What was measured", tag("p", "No evaluation of any model is there yet.", cls="note"), anchor="measured"
        )
        return
    panels: list[Html] = []
    for t in known:
        panels.append(
            tag("div", tag("h3", t.title), figures_table(t, [r for r in t.rows if r.leads]), cls="panel figures")
        )
        others = [r for r in t.rows if not r.leads]
        if others:
            panels.append(
                tag(
                    "div",
                    fold(f"Other metrics ({len(others):,})", tag("div", figures_table(t, others), cls="figures")),
                    cls="whole",
                )
            )
    page.section(
        "What was measured", tag("div", *panels, cls="panels"), *_table_notes(known, models), anchor="measured"
    )


def _table_notes(made: Sequence[FigureTable], models: Sequence[Studied]) -> list[Html]:
    words = [
        "Bold: the best of a block of columns. Underlined: the second best. Figures that read alike share the mark, "
        "and a mark says nothing about"
        " noise. In brackets: the interval over samples of the model alone"
        + (" and over seeds" if any(len(c.members) > 1 for t in made for c in t.columns) else "")
        + "."
    ]
    if any(t.in_paper for t in made):
        words[0] += (
            " Shares are in percent; sub-average 1 is over the eight figures above it, 2 over the next seven, the "
            "average over all sixteen."
        )
        words[0] += " An empty cell was not measured."
    notes = [tag("p", words[0], cls="note")]
    if any(t.has_paper for t in made):
        text = (
            "“Paper”: what is printed in tables 2 to 4 of “Balancing Continuous Pre-Training and Instruction "
            "Fine-Tuning”, without intervals, for a"
            " model that began with one of the same name, saw as many new tokens (within 5 %), and got the same "
            "residual at scale 1. Its new text was"
            " 2 million news articles of December 2023 to September 2024; the harness has changed since."
        )
        found = paper_004.disagreements()
        text += "".join(
            f" Table {d.table} prints {d.printed:g} as {d.what} of {d.column}, where its own figures give "
            f"{number(d.recomputed, 2)}."
            for d in found
        )
        notes.append(tag("p", text, cls="note"))
        notes.append(fold("Where the paper's text and its tables differ", bullets(paper_004.AGAINST_ITS_TEXT)))
    sizes = [m.model.parameters for m in models if m.model.parameters]
    if any(t.in_paper for t in made) and sizes and max(sizes) < paper_004.SMALL:
        notes.append(tag("p", paper_004.SMALL_MODELS, cls="note"))
    return notes


def figures_table(made: FigureTable, rows: Sequence[TableRow]) -> Html:
    """A table of blocks: block titles over columns, a figure with its interval a cell, the paper's below where there is
    one.

    Args:
        made: the table.
        rows: those of its rows that are shown.
    """
    edges = {sum(len(b.columns) for b in made.blocks[:place]) for place in range(len(made.blocks))}

    def edge(place: int, *more: str) -> str | None:
        return " ".join([*(["edge"] if place in edges else []), *more]) or None

    first = tag("th", "Measure", scope="col", rowspan=2)
    titles, place = [], 0
    for b in made.blocks:
        titles.append(tag("th", b.title, scope="colgroup", colspan=len(b.columns), cls="block edge"))
        place += len(b.columns)
    heads = [tag("th", _column_head(c), scope="col", cls=edge(i, "num")) for i, c in enumerate(made.columns)]
    body = []
    for r in rows:
        cells = [tag("td", _cell(r, i, paper=made.in_paper), cls=edge(i, "num")) for i in range(len(r.metrics))]
        name = tag("th", _breakable(r.title), tag("span", _breakable(r.words), cls="sub"), scope="row")
        body.append(tag("tr", name, *cells, cls="average" if r.average else None))
    inner = join(tag("thead", tag("tr", first, *titles), tag("tr", *heads)), tag("tbody", *body))
    return tag("div", tag("table", inner), cls="scroll", tabindex="0")


def _breakable(text: str) -> str:
    """Names of entries with places where a narrow column may break them."""
    return text.replace("_", "_\u200b")


def _column_head(c: Group) -> Html:
    seeds = tag("span", plural(len(c.members), "seed"), cls="sub") if len(c.members) > 1 else None
    state = tag("span", c.state, cls=f"chip {STATE_TONES.get(c.state, '')}".rstrip()) if c.state != "complete" else None
    return join(c.header, seeds, state)


def _cell(r: TableRow, place: int, *, paper: bool) -> Html:
    metric, printed = r.metrics[place], r.paper[place]
    beside = tag("span", f"paper {number(printed, 2)}", cls="sub paper") if printed is not None else None
    if metric is None:
        return join(beside)
    value, interval = cell_text(metric, paper=paper)
    return join(tag("span", value, cls=r.marks[place] or None), tag("span", interval, cls="sub"), beside)


# ---------------------------------------------------------------------------------------------------------------- plots


def _plots(page: Page, made: Sequence[FigureTable], scores: Sequence[Score], models: Sequence[Studied]) -> None:
    tokens = token_charts(made, scores)
    if tokens:
        panels = [page.chart(c, width=w) for c, w in zip(tokens, _widths(len(tokens)), strict=True)]
        page.section("Scores against new tokens", tag("div", *panels, cls="panels"), intro=TOKENS, anchor="tokens")
    # The scores that sum the others up come last in the list of the paper's groups, and matter most here.
    first = sorted(scores, key=lambda s: (s.title != "Average", s.role != "instruction"))
    mmlu = score_named(models, "mmlu")  # what the paper's figure 2 has
    against_cost = list({s.title: s for s in (*first[:1], *([mmlu] if mmlu is not None else []), *first[1:])}.values())
    for charts, title, intro, anchor in (
        (carried_charts(made, first, most=MOST_PANELS), "Do residuals carry over?", CARRIED, "carried"),
        (compute_charts(made, against_cost, most=2), "Scores against compute", None, "compute"),
    ):
        if charts:
            panels = [page.chart(c, width="half" if len(charts) > 1 else "full") for c in charts]
            page.section(title, tag("div", *panels, cls="panels"), intro=intro, anchor=anchor)


TOKENS = "What more new text does to the base, to the instruct model, and to the base with the residual put back."
CARRIED = "Bases with a sibling's residual, and derived models with residuals, beside what they were made from."


def _widths(n: int) -> list[str]:
    """Widths that fill every row: one alone, two or four two a row, else three a row as far as they go."""
    if n == 1:
        return ["full"]
    halves = {0: 0, 1: 4, 2: 2}[n % 3]
    return ["third"] * (n - halves) + ["half"] * halves


def _scale(page: Page, record: ResidualRecord) -> None:
    if record.scale is None:
        return
    chart = scale_chart(record.scale)
    words = f"Scale {significant(float(record.scale.chosen))} was chosen: {record.scale.reason}"
    body = tag("div", page.chart(chart, heading=False), cls="panels") if chart is not None else None
    page.section(
        "Scale of the residual",
        tag("p", words if words.endswith(".") else f"{words}.", cls="intro"),
        body,
        anchor="scale",
    )


# --------------------------------------------------------------------------------------------------------------- models


def _models(page: Page, folder: Path, models: Sequence[Studied], record: ResidualRecord) -> None:
    if not models:
        page.section("Models", tag("p", "The record names no model.", cls="note"))
        return
    columns = [
        Column(title="Model"),
        Column(title="How it was made", wide=True),
        *(Column(title=t, numeric=True) for t in ("Parameters", "Compute", "Time")),
        Column(title="State"),
        Column(title="Where", wide=True),
    ]
    cells, classes = [], []
    for m in models:
        s = m.model
        seed = f", seed {s.seed}" if any(o.model.seed != s.seed for o in models) and m.continued else ""
        cells.append(
            [
                join(s.label or s.name, tag("span", s.name, cls="sub") if s.label and s.label != s.name else None),
                tag("span", made_text(s, record) + seed),
                count(s.parameters) if s.parameters else "",
                flops_text(s.flops) if s.flops else "",
                duration(s.seconds) if s.seconds else "",
                tag("span", s.state, cls=f"chip {STATE_TONES.get(s.state, '')}".rstrip()),
                _where(folder, s),
            ]
        )
        classes.append("taken" if record.result and s.name == record.result else "")
    commands = _commands(models, record)
    shown = (
        fold(
            f"The additions by hand ({len(commands)})",
            tag(
                "p",
                "With models that are there already, these commands write what the additions above wrote.",
                cls="note above",
            ),
            tag("pre", tag("code", "\n\n".join(commands)), cls="block-command", tabindex="0"),
        )
        if commands
        else None
    )
    page.section(
        "Models and how they were made",
        tag("div", table(columns, cells, cards=True, classes=classes), cls="panel dense"),
        shown,
    )


def _where(folder: Path, model: StudiedModel) -> Html:
    path = shown_name(model) if model.path else "not recorded"
    if (
        model.path
        and not Path(model.path).is_absolute()
        and ".." not in Path(model.path).parts
        and (folder / model.path).exists()
    ):
        path = model.path
        for parent in (Path(model.path), *Path(model.path).parents):
            if str(parent) != "." and (folder / parent / REPORT_FILE).is_file():
                link = tag("a", "report of the run", href=quote(f"{parent.as_posix()}/{REPORT_FILE}"))
                return join(path, tag("span", link, cls="sub"), _hash(model))
    return join(path, _hash(model))


def _hash(model: StudiedModel) -> Html | None:
    return tag("span", tag("code", model.hash[:16]), cls="sub") if model.hash else None


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


def _corpus(page: Page, record: ResidualRecord) -> None:
    corpus = record.corpus
    if not corpus:
        page.section("New text", tag("p", "Nothing about the corpus is recorded.", cls="note"), anchor="corpus")
        return
    found = [(words, _corpus_value(key, corpus[key])) for key, words in CORPUS.items() if corpus.get(key) is not None]
    if corpus.get("first_date") is None and corpus.get("last_date") is None:
        found.append(("Dates", "none recorded: whether the text is new to the models is not known from it"))
    skipped = corpus.get("skipped")
    others = {k: v for k, v in corpus.items() if k not in CORPUS and k != "skipped"}
    parts: list[Html | None] = [tag("div", facts(found), cls="card")]
    if isinstance(skipped, Mapping) and skipped:
        total = sum(v for v in skipped.values() if isinstance(v, int))
        rows = [[str(k).replace("_", " "), f"{v:,}" if isinstance(v, int) else setting(v)] for k, v in skipped.items()]
        body = table([Column(title="Reason"), Column(title="Documents", numeric=True)], rows)
        parts.append(fold(f"Documents left out ({total:,})", body))
    elif isinstance(skipped, Mapping):
        parts.append(tag("p", "No document was left out.", cls="note"))
    if others:
        parts.append(fold("More about the corpus", facts(flatten(others))))
    page.section("New text", *parts, anchor="corpus")


def _corpus_value(key: str, value: Any) -> str:
    if key == "wasted" and isinstance(value, (int, float)):
        return f"{percent(100 * value, sign=False)} of the windows' tokens"
    if isinstance(value, Mapping):
        return ", ".join(f"{_number(v)} {str(k).replace('_', ' ')}" for k, v in value.items()) or "none"
    return f"{_number(value)} documents" if key == "held_out" and isinstance(value, int) else _number(value)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else setting(value)


def _ancestry(page: Page, record: ResidualRecord) -> None:
    if not record.ancestry:
        return
    parts: list[Html] = []
    charts: list[Chart] = []
    for found in record.ancestry:
        names = [str(found.get(k)) for k in ("instruct", "base") if found.get(k)]
        title = " from ".join(_short(n) for n in names) or str(found.get("family") or "the instruct model and its base")
        layers = _layers(found)
        total = next((d for d in layers if d.layer == "total"), None)
        warnings = [str(w) for w in _list(found.get("warnings"))]
        if total is not None:
            words = (
                f"{title}: over all weights the difference has {moved(total.relative)} of the base's norm, and "
                f"the cosine is"
            )
            words += f" {number(total.cosine, 4)}, on a sample of {count(total.parameters)} weights."
            words += " That is what a fine-tune of a base looks like." if not _warnings(record) else ""
            parts.append(tag("p", words))
        parts += [tag("p", w, cls="note") for w in warnings]
        chart = layer_chart([d for d in layers if d.layer != "total"])
        if chart is not None:
            caption = (
                "L2 norm of (instruct \u2212 base) over the base's, per layer, on a sample; other colour: "
                "outside the blocks."
            )
            charts.append(dataclasses.replace(chart, title=title, caption=caption))
        rest = {
            k: v for k, v in found.items() if k not in ("layers", "warnings", "instruct", "base", "family", "total")
        }
        if rest:
            parts.append(fold(f"{title}: more", facts(flatten(rest))))
    panels = [page.chart(c, width="half" if len(charts) > 1 else "full") for c in charts]
    body = tag("div", *parts, tag("div", *panels, cls="panels") if panels else None, cls="stacked")
    page.section("Is the instruct model a child of the base?", body, anchor="ancestry")


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


def _short(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1] if name.startswith(("/", "~", ".")) else name


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
            planned = _finite(part.get(key)) if isinstance(part, Mapping) else None
            if planned is not None:
                measured = next((getattr(m, key) for m in made if m.name == name), None)
                lines.append(
                    CostLine(what=label_of(record, str(name)), planned=planned, measured=measured or None, unit=unit)
                )
        planned = _finite(record.cost.get(key))
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


def _finite(value: Any) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def _cost(page: Page, models: Sequence[Studied], record: ResidualRecord) -> None:
    lines = cost_lines(models, record)
    if not record.cost:
        return
    parts: list[Html] = []
    if lines:
        columns = [
            Column(title="What"),
            *(Column(title=t, numeric=True) for t in ("Estimated before", "Measured", "Measured / estimated")),
        ]
        rows = []
        for line in lines:
            ratio = f"{line.measured / line.planned:.2f}" if line.measured and line.planned else ""
            shown = [
                flops_text(v) if line.unit == "FLOPs" else duration(v)
                for v in (line.planned, *([line.measured] if line.measured else []))
            ]
            what = f"{line.what}: {'operations' if line.unit == 'FLOPs' else 'time'}"
            rows.append([what, shown[0], shown[1] if len(shown) > 1 else "not known", ratio])
        parts.append(tag("div", table(columns, rows, cards=True), cls="panel dense"))
        if any(line.unit == "FLOPs" for line in lines):
            parts.append(
                tag(
                    "p",
                    "Operations are counted, not timed: “measured” is of the tokens that were trained on.",
                    cls="note",
                )
            )
    rest = flatten({k: v for k, v in record.cost.items() if k not in ("flops", "seconds")})
    if rest:
        parts.append(fold("The estimate in full", facts([(k, _quantity(k, v, record.cost)) for k, v in rest])))
    page.section("Cost, before and after", tag("div", *parts, cls="stacked"), anchor="cost")


def _quantity(key: str, text: str, cost: Mapping[str, Any]) -> str:
    """A figure of the estimate with its unit, by the end of its key."""
    value: Any = cost
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    number_ = _finite(value)
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


def _small_print(page: Page, models: Sequence[Studied], record: ResidualRecord) -> None:
    settings = flatten(record.config)
    versions = [(k, str(v)) for k, v in record.versions.items()]
    hardware = [
        (k.replace("_", " "), hardware_text({k: v}).partition(": ")[2] or "none") for k, v in record.hardware.items()
    ]
    hashes = [(m.model.label or m.model.name, m.model.hash or "not recorded") for m in models]
    nothing = tag("p", "Not recorded.", cls="note")
    found = [("Began", record.created or "not recorded"), ("Finished", record.finished or f"no ({record.status})")]
    found += [("Pairs", ", ".join(f for f in record.families if f))] if any(record.families) else []
    page.section(
        "To repeat it",
        tag("div", facts(found), cls="card"),
        fold(f"Settings ({plural(len(settings), 'key')})", facts(settings) if settings else nothing),
        fold("Versions", facts(versions) if versions else nothing),
        fold("Hardware", facts(hardware) if hardware else nothing),
        fold("Hashes of the weights", facts(hashes) if hashes else nothing),
    )
    page.add(
        tag(
            "footer",
            f"Written by holdfast {record.versions.get('holdfast', '')} from the files of the folder. This page needs "
            f"no network.",
        )
    )


__all__ = ["figures_table", "print_update", "write_residual_report"]
