"""One page over several runs: what each kept of the target's gain, and what it cost on the source.

The figures come from `holdfast.reports.arms`; this module draws them. Both axes of the scatter are the metric itself,
in its unit; an arrow says where better lies. Interval bars are those of the paired difference to the start, drawn
around the arm's value.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast.reports.arms import Arm, ArmFigures, TradeoffFigures, read_tradeoff, side_title, table_cells
from holdfast.reports.figures import METHOD_NAMES, Row
from holdfast.reports.legacy_charts import LEGEND, Chart, axis, layout, plain
from holdfast.reports.markup import Column, Html, join, table, tag
from holdfast.reports.page import Page, bullets, header, tiles

COLOURS = ("accent", "second", "good", "third", "fourth")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "pentagon")


def write_tradeoff_report(
    path: str | os.PathLike[str],
    arms: Sequence[Arm],
    *,
    title: str,
    intro: str,
    source: tuple[str, str],
    target: tuple[str, str],
    metric: str = "nats_per_token",
    next_steps: str | None = None,
) -> Path:
    """Writes the page and returns its path.

    Args:
        path: the HTML file. Links to the arms' own reports are relative to its folder.
        arms: the runs in the order of the table; the first of kind "direct" is the reference.
        title: the heading.
        intro: a paragraph on what was compared; blank lines separate paragraphs.
        source: (suite, name) of what must be kept.
        target: (suite, name) of what is learnt.
        metric: key of the metric on both axes.
        next_steps: closing paragraph or paragraphs; lines that begin with "$ " are shown as commands.

    Raises:
        UserError: no arms.
        DataError: a folder has no readable run.json.
        StorageError: the page could not be written.
    """
    path = Path(path)
    figures = read_tradeoff(arms, source=source, target=target, metric=metric)
    page = Page(f"{title} (holdfast)")
    page.add(header(eyebrow="holdfast trade-off report", title=title, lead=figures.verdict))
    page.add(tag("div", *_paragraphs(intro), cls="prose"))
    page.add(tiles(_tiles(figures)))
    chart = tradeoff_chart(figures)
    if chart is None:
        page.section(
            "Source against target",
            tag("p", "No arm was compared with the start on both sides, so there is nothing to draw.", cls="note"),
        )
    else:
        page.section("Source against target", tag("div", page.chart(chart, heading=False), cls="panels"))
    page.section("All arms", _table(figures, path.parent), tag("p", _legend(figures), cls="note"))
    page.section(
        "In words", tag("div", tag("ul", *(tag("li", f.reading) for f in figures.arms), cls="readings"), cls="card")
    )
    if figures.notes:
        page.section("Notes", tag("div", bullets(figures.notes), cls="card"))
    if next_steps:
        page.section("What next", tag("div", *_paragraphs(next_steps), cls="prose"))
    page.add(tag("footer", "Written by holdfast from the files of the run folders. This page needs no network."))
    return page.write(path)


def _paragraphs(text: str) -> list[Html]:
    """Blank lines separate paragraphs; lines that begin with "$ " are commands, continued where a line ends with a
    backslash."""
    out: list[Html] = []
    for block in text.strip().split("\n\n"):
        words: list[str] = []
        commands: list[str] = []
        for line in block.splitlines():
            if line.lstrip().startswith("$ ") or (commands and commands[-1].endswith("\\")):
                commands.append(line.rstrip())
            else:
                words.append(line.strip())
        if words:
            out.append(tag("p", " ".join(words)))
        if commands:
            out.append(
                tag(
                    "pre",
                    tag(
                        "code",
                        "\n".join(
                            c.lstrip().removeprefix("$ ") if c.lstrip().startswith("$ ") else c for c in commands
                        ),
                    ),
                )
            )
    return out


def _tiles(figures: TradeoffFigures) -> list[tuple[str, str, str, str]]:
    """The start and what direct fine-tuning did, and the best kept share at a glance."""
    found: list[tuple[str, str, str, str]] = []
    direct = figures.direct
    if direct is not None and direct.source is not None and direct.target is not None:
        for name, r in (("target", direct.target), ("source", direct.source)):
            found.append(
                (
                    f"Direct fine-tuning, {name}",
                    r.difference,
                    f"{r.unit} {r.interval}, {r.direction}",
                    r.tone if r.tone != "flat" else "",
                )
            )
    shares = [f for f in figures.arms if f.kept is not None and f.lost is not None]
    for f in sorted(shares, key=lambda f: f.margin, reverse=True)[:1]:
        assert f.kept is not None
        assert f.lost is not None
        found.append((f"Gain kept, {f.arm.label}", f.kept.text.split(" [")[0], _between(f.kept.text), ""))
        found.append((f"Loss share, {f.arm.label}", f.lost.text.split(" [")[0], _between(f.lost.text), ""))
    return found


def _between(text: str) -> str:
    _, bracket, rest = text.partition(" [")
    return f"of direct's, 95 % interval [{rest}" if bracket else "of direct's; no interval"


# ------------------------------------------------------------------------------------------------------------ table


COLUMNS = (
    "Source after",
    "Source change",
    "Target after",
    "Target change",
    "Gain kept",
    "Loss share",
    "Time",
    "Distance (L2)",
)


def _table(figures: TradeoffFigures, here: Path) -> Html:
    columns = [Column(title="Arm")]
    columns += [Column(title=t, numeric=True) for t in COLUMNS]
    rows: list[list[Any]] = []
    start = figures.start
    if start is not None and not any(f.arm.kind == "start" for f in figures.arms):
        rows.append(
            [
                join("Start", tag("span", "before any training", cls="sub")),
                start.source_text,
                "",
                start.target_text,
                "",
                "",
                "",
                "",
                "",
            ]
        )
    for f in figures.arms:
        cells = table_cells(f)
        if f.arm.kind == "start" and start is not None:
            cells |= {
                "Source after": start.source_text,
                "Target after": start.target_text,
                "Time": "",
                "Distance (L2)": "",
            }
        name = join(_link(f.arm, here), tag("span", f.method, cls="sub") if f.method != f.arm.label else None)
        rows.append(
            [
                name,
                cells["Source after"],
                _with_interval(cells["Source change"], cells["Source interval"], f.source),
                cells["Target after"],
                _with_interval(cells["Target change"], cells["Target interval"], f.target),
                _share(cells["Gain kept"]),
                _share(cells["Loss share"]),
                cells["Time"],
                _share(cells["Distance (L2)"].replace(" (", " [(", 1)),
            ]
        )
    return tag("div", table(columns, rows, cards=True), cls="panel dense")


def _with_interval(text: str, interval: str, r: Row | None) -> Html | str:
    if r is None:
        return text
    return tag("span", tag("span", text, cls=f"tone {r.tone}"), tag("span", interval, cls="sub"))


def _share(text: str) -> Html | str:
    value, bracket, rest = text.partition(" [")
    if not bracket:
        return text
    return tag("span", value, tag("span", rest if rest.startswith("(") else f"[{rest}", cls="sub"))


def _link(arm: Arm, here: Path) -> Html | str:
    """The arm's label, linked to its report where there is one."""
    report = arm.folder.report_file
    if not report.is_file():
        return arm.label
    try:
        relative = os.path.relpath(report.resolve(), here.resolve())
    except ValueError:  # another drive on Windows: no relative path exists
        return arm.label
    return tag("a", arm.label, href=quote(Path(relative).as_posix()))


def _legend(figures: TradeoffFigures) -> str:
    direction = next((r.direction for f in figures.arms for r in (f.source, f.target) if r is not None), "")
    unit = next((r.unit for f in figures.arms for r in (f.source, f.target) if r is not None), figures.metric)
    sides = [
        (w, r)
        for f in figures.arms
        for w, r in ((figures.source, f.source), (figures.target, f.target))
        if r is not None
    ]
    documents = "; ".join(sorted({f"{side_title(w)}: n {r.n}" for w, r in sides})) or "none"
    confidence = 100 * next((r.raw.confidence for _, r in sides), 0.95)
    return (
        f"{unit}, {direction}. Changes are after \u2212 before with their paired {confidence:g} % intervals over "
        f"documents ({documents}). Gain"
        " kept and loss share: the arm's change in percent of direct fine-tuning's, on target and source, with "
        "Fieller's intervals where the"
        " documents' rows allow one. One training run an arm: how far another seed would move it is not in the "
        "intervals."
    )


# ---------------------------------------------------------------------------------------------------------- scatter


def tradeoff_chart(figures: TradeoffFigures) -> Chart | None:
    """Source metric across, target metric up; arms of one kind joined in the order of their strength. None where no arm
    has both."""
    start, measured = figures.start, figures.measured
    if start is None or not measured:
        return None
    sample_s, sample_t = measured[0].source, measured[0].target
    assert sample_s is not None
    assert sample_t is not None
    kinds = list(dict.fromkeys(f.arm.kind for f in measured))
    others = [k for k in kinds if k != "direct"]
    across = [start.source, *(f.source.raw.after for f in measured if f.source is not None)]
    turn = min(across) + 0.75 * (max(across) - min(across))
    data: list[dict[str, Any]] = []
    for kind in kinds:
        members = [f for f in measured if f.arm.kind == kind]
        if all(f.strength is not None for f in members):
            members.sort(key=lambda f: f.strength or 0.0)
        colour = "bad" if kind == "direct" else COLOURS[others.index(kind) % len(COLOURS)]
        symbol = "x" if kind == "direct" else SYMBOLS[others.index(kind) % len(SYMBOLS)]
        data.append(_trace(kind, members, f"var(--{colour})", symbol, turn))
    data.append(
        {
            "type": "scatter",
            "mode": "markers+text",
            "name": "start",
            "x": [start.source],
            "y": [start.target],
            "text": ["start"],
            "textposition": "top center",
            "textfont": {"size": 12, "color": "var(--ink)"},
            "marker": {"size": 15, "symbol": "star", "color": "var(--ink)"},
            "hovertemplate": f"start<br>source {start.source_text}<br>target {start.target_text}<extra></extra>",
        }
    )
    height = 460
    right, up = sample_s.raw.higher_is_better, sample_t.raw.higher_is_better
    # In the corner of the worst, pointing away from it: that is where the fewest arms lie.
    arrow = {
        "xref": "paper",
        "yref": "paper",
        "x": 0.18 if right else 0.82,
        "y": 0.17 if up else 0.83,
        "ax": -34 if right else 34,
        "ay": 30 if up else -30,
        "text": "better",
        "showarrow": True,
        "arrowhead": 2,
        "arrowwidth": 2,
        "arrowcolor": "var(--good)",
        "font": {"size": 13, "color": "var(--good)"},
    }
    titles = [
        f"{side_title(w)} ({r.unit}, {r.direction})"
        for w, r in ((figures.source, sample_s), (figures.target, sample_t))
    ]
    figure = {
        "data": data,
        "layout": layout(
            height,
            xaxis=axis(plain(titles[0]), zeroline=False),
            yaxis=axis(plain(titles[1]), zeroline=False),
            annotations=[arrow],
            showlegend=True,
            legend=LEGEND,
            margin={"l": 12, "r": 20, "t": 40, "b": 12},
        ),
    }
    confidence = 100 * sample_s.raw.confidence
    caption = (
        f"Bars: paired {confidence:g} % intervals of the change from the start. Curves join runs of one method "
        f"in the order of its strength."
    )
    columns = [
        Column(title="Arm"),
        Column(title=f"Source ({sample_s.unit})", numeric=True),
        Column(title=f"Target ({sample_t.unit})", numeric=True),
    ]
    rows = [["start", start.source_text, start.target_text]]
    rows += [
        [f.arm.label, f.source.after, f.target.after] for f in measured if f.source is not None and f.target is not None
    ]
    return Chart(
        title="Source against target", figure=figure, caption=caption, columns=columns, rows=rows, height=height
    )


def _trace(kind: str, members: Sequence[ArmFigures], colour: str, symbol: str, turn: float) -> dict[str, Any]:
    name = "direct fine-tuning" if kind == "direct" else METHOD_NAMES.get(kind, kind.replace("_", " "))
    pairs = [(f, f.source, f.target) for f in members if f.source is not None and f.target is not None]
    short = [_short(f, alone=len(pairs) == 1) for f, _, _ in pairs]
    sides = ["left" if s.raw.after > turn else "right" for _, s, _ in pairs]  # names stay inside the plot
    return {
        "type": "scatter",
        "mode": "lines+markers+text" if len(pairs) > 1 else "markers+text",
        "name": plain(name),
        "x": [s.raw.after for _, s, _ in pairs],
        "y": [t.raw.after for _, _, t in pairs],
        "text": [plain(t) for t in short],
        "textposition": [f"top {side}" for side in sides],
        "meta": "named in legend" if len(pairs) == 1 else None,
        "cliponaxis": False,
        "textfont": {"size": 11, "color": "var(--muted)"},
        "error_x": _bars([s for _, s, _ in pairs], colour),
        "error_y": _bars([t for _, _, t in pairs], colour),
        "line": {"color": colour, "width": 2},
        "marker": {"size": 11, "color": colour, "symbol": symbol},
        "hovertemplate": [
            f"{plain(f.arm.label)}<br>source {s.after} ({s.difference} {s.interval})<br>target {t.after} "
            f"({t.difference} {t.interval})<extra></extra>"
            for f, s, t in pairs
        ],
    }


def _short(f: ArmFigures, *, alone: bool) -> str:
    """What stands beside a point: the strength on a curve, the label elsewhere."""
    if alone or f.strength is None:
        return f.arm.label if len(f.arm.label) <= 18 else f.arm.label[:17] + "…"
    return f"{f.strength:g}"


def _bars(rows: Sequence[Row], colour: str) -> dict[str, Any]:
    """Interval bars around the value after: those of the paired difference."""
    above = [max(0.0, r.raw.interval[1] - r.raw.difference) if math.isfinite(r.raw.interval[1]) else 0.0 for r in rows]
    below = [max(0.0, r.raw.difference - r.raw.interval[0]) if math.isfinite(r.raw.interval[0]) else 0.0 for r in rows]
    return {
        "type": "data",
        "symmetric": False,
        "array": above,
        "arrayminus": below,
        "color": colour,
        "thickness": 1.2,
        "width": 3,
    }


__all__ = ["Arm", "tradeoff_chart", "write_tradeoff_report"]
