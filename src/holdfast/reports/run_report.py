"""`report.html` of one run: what was asked, what changed for better and for worse, how training went, what it ran on.

Reads the run folder only. Runs that were interrupted or failed get a report too; what is missing is said, not left out.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.records.run import RunFolder
from holdfast.reports.budget_figures import budget_charts, without_budget
from holdfast.reports.figures import (
    GROUPS,
    Row,
    RunFigures,
    count,
    duration,
    group_title,
    hardware_text,
    percent,
    plural,
    read_run,
    significant,
    training_figures,
)
from holdfast.reports.legacy_charts import SMALL, SMOOTHED_FROM, Chart, forest, layer_chart, training_charts
from holdfast.reports.markup import Column, Html, join, table, tag
from holdfast.reports.page import Page, banner, bullets, facts, fold, header, tiles

STATUS_TONE = {"finished": "good", "failed": "bad", "interrupted": "warn"}
PURPOSE = {"target": "what was to be learnt", "source": "what was to be kept"}


def write_run_report(folder: RunFolder) -> Path:
    """Writes `report.html` into the run folder and returns its path.

    Raises:
        DataError: the folder has no readable `run.json`.
        StorageError: the page could not be written; an earlier one is intact.
    """
    return _page(read_run(folder)).write(folder.report_file)


def _page(run: RunFigures) -> Page:
    record = run.record
    page = Page(f"{run.title}: holdfast run report")
    trained = training_figures(record, run.metrics)
    details = [
        record.model.get("name"),
        run.method,
        f"{significant(trained['steps'])} steps" if trained["steps"] is not None else None,
    ]
    page.add(
        header(
            eyebrow=f"holdfast run report ({record.command})",
            title=run.title,
            status=(record.status, STATUS_TONE.get(record.status, "flat")),
            lead=run.verdict,
            details=" · ".join(str(d) for d in details if d),
        )
    )
    _state(page, run)
    page.add(tiles(_tiles(run)))
    _changes(page, run)
    page.section("What was trained", tag("div", facts(run.facts), cls="card"))
    _training(page, run)
    _distance(page, run)
    _small_print(page, run)
    return page


def _state(page: Page, run: RunFigures) -> None:
    """What a reader must know before reading any figure."""
    record = run.record
    if record.status == "failed":
        page.add(
            banner(
                join(
                    tag("strong", f"The run failed in stage “{record.stage}”."),
                    f"\n{record.error or 'No reason was recorded.'}",
                ),
                "bad",
            )
        )
    elif record.status == "interrupted":
        reason = f"\n{record.error}" if record.error else ""
        page.add(
            banner(
                join(
                    tag("strong", f"The run was interrupted in stage “{record.stage}”."),
                    f" Start it again with the same folder to go on.{reason}",
                ),
                "warn",
            )
        )
    elif record.status == "running":
        page.add(banner(f"The run had not ended when this page was written; its last stage was “{record.stage}”."))
    if run.problems:
        page.add(banner(join(tag("strong", "Some files could not be read."), bullets(run.problems)), "warn"))


def _tiles(run: RunFigures) -> list[tuple[str, str, str, str]]:
    found: list[tuple[str, str, str, str]] = []
    for suite in GROUPS:
        rows = run.compared(suite)
        title = group_title(suite)
        if not rows:
            found.append((title, "not compared", PURPOSE[suite], ""))
        elif len(rows) == 1:
            r = rows[0]
            found.append(
                (
                    f"{title}: {r.name}",
                    r.difference,
                    f"{r.unit}, {r.direction}: {r.verdict} ({r.before} → {r.after})",
                    r.tone if r.tone != "flat" else "",
                )
            )
        else:
            verdicts = [r.verdict for r in rows]
            wanted = "gained" if suite == "target" else "lost"
            tone = "" if wanted not in verdicts else "good" if wanted == "gained" else "bad"
            rest = ", ".join(
                f"{verdicts.count(v)} {v}" for v in ("gained", "lost", "within noise") if v != wanted and v in verdicts
            )
            found.append((title, f"{verdicts.count(wanted)} of {len(rows)} {wanted}", rest or PURPOSE[suite], tone))
    move = run.largest_move
    if move is not None:
        where = f"layer {move.layer}" if move.layer.isdigit() else move.layer
        found.append(
            ("Largest move of a layer", percent(100 * move.relative, sign=False), f"of its norm, in {where}", "")
        )
    else:
        found.append(("Largest move of a layer", "not recorded", "relative L2 distance", ""))
    trained = training_figures(run.record, run.metrics)
    tokens = f"{count(trained['tokens'])} tokens" if trained["tokens"] is not None else "tokens not recorded"
    found.append(
        (
            "Training time",
            duration(trained["seconds"]) if trained["seconds"] is not None else "not recorded",
            tokens,
            "",
        )
    )
    return found


MEASURES = [
    Column(title="Measure"),
    Column(title="Before", numeric=True),
    Column(title="After", numeric=True),
    Column(title="Difference", numeric=True),
    Column(title="Relative gain", numeric=True),
    Column(title="p", numeric=True),
    Column(title="n", numeric=True),
    Column(title="Test"),
    Column(title="Verdict"),
]


def _measure(r: Row) -> list[Html | str]:
    name = join(r.name, tag("span", f"{r.metric}, {r.unit}; {r.direction}", cls="sub"))
    difference = tag("span", r.difference, tag("span", r.interval, cls="sub"))
    test = tag("span", r.test, tag("span", r.flips, cls="sub") if r.flips else None)
    return [
        name,
        r.before,
        r.after,
        difference,
        r.relative,
        r.p,
        r.n,
        test,
        tag("span", r.verdict, cls=f"chip {r.tone}"),
    ]


def _changes(page: Page, run: RunFigures) -> None:
    parts: list[Html | None] = []
    panels = []
    for suite in dict.fromkeys(r.raw.suite for r in run.rows):
        rows = [r for r in run.rows if r.raw.suite == suite]
        title = group_title(suite) + (f": {PURPOSE[suite]}" if suite in PURPOSE else "")
        measures = table(
            MEASURES, [_measure(r) for r in rows], cards=True, classes=["" if r.raw.primary else "minor" for r in rows]
        )
        panels.append(tag("div", tag("h3", title), measures, cls="panel measures"))
    chart = forest(run.rows)
    if chart is not None:
        panels.append(page.chart(chart))
    if panels:
        parts.append(tag("div", *panels, cls="panels"))
        confidence = f"{100 * run.rows[0].raw.confidence:g} %"
        parts.append(
            tag(
                "p",
                f"Difference: after \u2212 before, with its paired {confidence} interval over the evaluated samples. "
                f"Gained or lost: the interval"
                " excludes zero, otherwise the change is within noise. Relative gain: the change in percent of the "
                "value before, signed so that"
                " positive is better. One training run is behind these figures: how far another seed would move them "
                "is not in the intervals.",
                cls="note",
            )
        )
    if run.levels:
        columns = [
            Column(title="Measure"),
            Column(title="Model"),
            Column(title="Value", numeric=True),
            Column(title="Interval", numeric=True),
            Column(title="n", numeric=True),
        ]
        cells = [
            [
                join(f"{v.group}: {v.name}", tag("span", f"{v.metric}, {v.unit}", cls="sub")),
                v.which,
                v.value,
                v.interval,
                v.n,
            ]
            for v in run.levels
        ]
        parts.append(
            tag("div", tag("h3", "Measured, but not compared"), table(columns, cells, cards=True), cls="panel")
        )
    gaps = [m for m in run.missing if "evaluat" in m or "compared" in m]
    parts += [tag("p", m, cls="note") for m in gaps]
    page.section("Before and after", *parts)


def _training(page: Page, run: RunFigures) -> None:
    charts = training_charts(without_budget(run.metrics)) + budget_charts(run.metrics, run.record.retention)
    if not charts:
        page.section("Training", tag("p", "No training step was logged, so there are no curves to show.", cls="note"))
        return
    large = [c for c in charts if c.height > SMALL]
    small = [c for c in charts if c.height <= SMALL]
    panels = [page.chart(c, width="half" if len(large) == 2 else "full") for c in large]
    panels += [page.chart(c, width=w) for c, w in zip(small, _widths(len(small)), strict=True)]
    words = [tag("div", *panels, cls="panels")]
    if len(run.metrics) >= SMOOTHED_FROM:
        words.append(tag("p", "Thin lines: as logged. Bold lines: trailing mean.", cls="note"))
    if run.record.retention and not any(c.title.startswith("KL") for c in charts):
        words.append(
            tag(
                "p",
                "No divergence from a teacher was logged: the method works without one, or logging began later.",
                cls="note",
            )
        )
    page.section("Training", *words)


def _widths(n: int) -> list[str]:
    """Widths that fill every row: three a row, the last two or four two a row, one alone."""
    if n == 1:
        return ["full"]
    halves = {0: 0, 1: 4, 2: 2}[n % 3]
    return ["third"] * (n - halves) + ["half"] * halves


def _distance(page: Page, run: RunFigures) -> None:
    chart: Chart | None = layer_chart(run.record.distance)
    if chart is None:
        page.section(
            "How far the weights moved",
            tag("p", "The distance from the starting weights was not recorded.", cls="note"),
        )
    else:
        page.section("How far the weights moved", tag("div", page.chart(chart), cls="panels"))


def _small_print(page: Page, run: RunFigures) -> None:
    record = run.record
    if record.notes:
        page.section("Notes of the run", tag("div", bullets(record.notes), cls="card"))
    versions = [(k, v) for k, v in record.versions.items()]
    hardware = [
        (k.replace("_", " "), hardware_text({k: v}).partition(": ")[2] or "none") for k, v in record.hardware.items()
    ]
    identity = [
        ("config fingerprint", record.config_key or "not recorded"),
        ("model hash", str(record.model.get("hash") or "not recorded")),
        ("data hash", str(record.data.get("hash") or "not recorded")),
        ("seed", str(record.seed)),
    ]
    nothing = tag("p", "Not recorded.", cls="note")
    page.section(
        "To repeat it",
        fold(f"Settings ({plural(len(run.settings), 'key')})", facts(run.settings) if run.settings else nothing),
        fold("Versions", facts(versions) if versions else nothing),
        fold("Hardware", facts(hardware) if hardware else nothing),
        fold("Fingerprints", facts(identity)),
    )
    page.add(
        tag(
            "footer",
            f"Written by holdfast {record.versions.get('holdfast', '')} from the files of the run folder. This page "
            f"needs no network.",
        )
    )
