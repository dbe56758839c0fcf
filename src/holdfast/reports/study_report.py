"""One page on a trade-off study: what its rule chose, the frontier, every trial, the rules side by side, and the
command that trains the choice.

Reads a `StudyRecord` and the `Selection`s made of it (`holdfast.statistics.selection`), so it can be written at any
moment of a study: what is still under way is said to be. Which trial to take is not decided here.
"""

from __future__ import annotations

import importlib.resources
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast.records.study import Objective, StudyRecord
from holdfast.reports.figures import duration, flatten, hardware_text, percent, plural, setting
from holdfast.reports.legacy_charts import shorten
from holdfast.reports.markup import Column, Html, join, table, tag
from holdfast.reports.page import Page, bullets, facts, fold, header, tiles
from holdfast.reports.study_charts import frontier_chart, parameter_charts, time_chart, varied_numbers
from holdfast.reports.study_figures import (
    TrialFigures,
    counts_text,
    direction,
    gain_interval,
    gain_text,
    lead,
    method_title,
    parameters_text,
    read_trials,
    rule_title,
    share_interval_text,
    share_text,
    shown_params,
    tone,
    typographic,
)
from holdfast.statistics.gains import SAMPLES, Gain
from holdfast.statistics.selection import Selection
from holdfast.statistics.shares import Share
from holdfast.statistics.stability import RuleGain

STATUS_TONES = {"finished": "good", "running": "warn", "interrupted": "warn", "failed": "bad"}
STATE_TONES = {"complete": "", "running": "good", "waiting": "", "pruned": "warn", "failed": "bad", "lost": "warn"}
MOST_PLOTS = 12
"""Frontier plots of single pairs; a study of many entries has more pairs than anybody looks at."""
MOST_BARS = 4


def write_study_report(
    path: str | os.PathLike[str],
    record: StudyRecord,
    *,
    selections: Sequence[Selection],
    command: str = "",
    config_yaml: str = "",
) -> Path:
    """Writes the page and returns its path.

    Args:
        path: the HTML file; it belongs into the study's folder, since links to the runs' reports are relative to it.
        record: finished or not.
        selections: what the rules chose, the study's own rule first, as `holdfast.statistics.selection.select_all`
            gives it.
        command: what trains the chosen trial; shown as it is.
        config_yaml: the configuration that `command` names; shown as it is.

    Raises:
        StorageError: the page could not be written; an earlier one is intact.
    """
    path = Path(path)
    trials = read_trials(record)
    first = selections[0] if selections else None
    page = Page(f"{record.name}: holdfast study report")
    page.add(tag("style", Html(_asset("study_report.css"))))
    status = (record.status, STATUS_TONES.get(record.status, ""))
    page.add(
        header(
            eyebrow="holdfast study report",
            title=record.name,
            lead=lead(record, selections),
            status=status,
            details=_details(record),
        )
    )
    page.add(tag("div", tiles(_tiles(trials, first)), cls="five"))
    _frontier(page, record, trials, first)
    if any(s.candidates for s in selections):
        page.section(
            "The rules side by side",
            tag("div", *(_rule(s, record, own=s is first) for s in selections), cls="rules"),
            anchor="rules",
        )
    if first is not None and first.chosen is not None and (command or config_yaml):
        page.section("Train the chosen trial", *_training(first, command, config_yaml), anchor="train")
    page.section(
        "All trials",
        _table(record, trials, selections, path.parent),
        tag("p", _legend(record), cls="note"),
        anchor="trials",
    )
    if record.trials:
        page.add(tag("script", Html(_asset("study_report.js"))))
    _parameters(page, record, trials)
    chart = time_chart(record)
    if chart is not None:
        page.section("Who worked on what", tag("div", page.chart(chart, heading=False), cls="panels"), anchor="time")
    if record.notes:
        page.section("Notes", tag("div", bullets(record.notes), cls="card"), anchor="notes")
    page.section("How to read this page", tag("div", bullets(_reading(record)), cls="card"), anchor="reading")
    page.section(
        "The study",
        tag("div", facts(_facts(record)), cls="card"),
        fold("Configuration", facts(flatten(record.config))) if record.config else None,
    )
    page.add(tag("footer", "Written by holdfast from the study's records. This page needs no network."))
    return page.write(path)


def _asset(name: str) -> str:
    return importlib.resources.files("holdfast.reports").joinpath(name).read_text(encoding="utf-8")


def _details(record: StudyRecord) -> str:
    seeds = f"{plural(len(record.seeds), 'seed')} a trial"
    return (
        f"{plural(len(record.trials), 'trial')}: {counts_text(record)} · {seeds} · target: {record.target.label} "
        f"· source: {record.source.label}"
    )


def _tiles(trials: Sequence[TrialFigures], first: Selection | None) -> list[tuple[str, str, str, str]]:
    whole = sum(t.whole for t in trials)
    direct = next((t for t in trials if t.trial.kind == "direct" and t.whole), None)
    found = [
        (
            "Trials that count",
            f"{whole} of {len(trials)}",
            f"{duration(math.fsum(t.seconds for t in trials))} of the workers' time",
            "",
        )
    ]
    if direct is not None:
        for name, gain in (("target", direct.target), ("source", direct.source)):
            if gain is not None:
                found.append(
                    (
                        f"Direct fine-tuning, {name} gain",
                        gain_text(gain),
                        f"{gain.unit} {gain_interval(gain)}",
                        _toned(gain),
                    )
                )
    if first is not None and first.chosen is not None:
        for name, share in (("Gain kept", first.kept), ("Loss avoided", first.avoided)):
            if share is not None and share.value is not None:
                interval = f"95 % interval {share_interval_text(share)}" if share.interval else "no interval"
                found.append((f"{name}, trial {first.chosen}", share_text(share), f"of direct's, {interval}", ""))
    return found


def _toned(gain: Gain) -> str:
    return "" if tone(gain) == "flat" else tone(gain)


# ------------------------------------------------------------------------------------------------------------ frontier


def _frontier(page: Page, record: StudyRecord, trials: Sequence[TrialFigures], first: Selection | None) -> None:
    sides = (record.target, record.source)
    pairs = [p for p in record.pairs if _entries(p) != _entries(sides)]
    main = frontier_chart(record, trials, sides, first)
    if main is None:
        page.section(
            "Target against source",
            tag("p", "No trial is complete with all its seeds yet, so there is nothing to draw.", cls="note"),
        )
        return
    others = [c for p in pairs[:MOST_PLOTS] if (c := frontier_chart(record, trials, p, first, wide=False)) is not None]
    panels = [page.chart(main, width="full"), *(page.chart(c, width="half") for c in others)]
    left = (
        f"Of {plural(len(pairs), 'pair')} of single measures the first {MOST_PLOTS} are drawn."
        if len(pairs) > MOST_PLOTS
        else None
    )
    page.section(
        "Target against source",
        tag("div", *panels, cls="panels"),
        tag("p", left, cls="note") if left else None,
        anchor="frontier",
    )


def _entries(pair: tuple[Objective, Objective]) -> tuple[Any, Any]:
    return pair[0].entries, pair[1].entries


# --------------------------------------------------------------------------------------------------------------- rules


def _rule(s: Selection, record: StudyRecord, *, own: bool) -> Html:
    parts: list[Any] = [tag("h3", rule_title(s), tag("span", "the study's rule", cls="chip good") if own else None)]
    parts.append(tag("p", f"{typographic(s.text[:1].upper() + s.text[1:])}.", cls="says"))
    if s.chosen is None:
        parts.append(tag("p", "No trial", cls="taken"))
    else:
        parts.append(tag("p", f"{s.label} ", tag("span", f"trial {s.chosen}", cls="chip"), cls="taken"))
    parts.append(tag("p", f"{typographic(s.reason[:1].upper() + s.reason[1:])}.", cls="why"))
    if s.target is not None and s.source is not None:
        rows: list[tuple[str, Any]] = [("Target", _two(s.target)), ("Source", _two(s.source))]
        rows += [("Gain kept", _share(s.kept)), ("Loss avoided", _share(s.avoided))]
        parts.append(tag("dl", *(tag("div", tag("dt", a), tag("dd", b)) for a, b in rows), cls="facts"))
    if s.stability is not None:
        parts += _stability(s, record)
    if s.rule_target is not None and s.rule_source is not None:
        parts.append(tag("h4", "On seeds it did not choose by"))
        rows = [("Target", _two(s.rule_target)), ("Source", _two(s.rule_source))]
        parts.append(tag("dl", *(tag("div", tag("dt", a), tag("dd", b)) for a, b in rows), cls="facts"))
    if s.seeds_reason is not None:
        parts.append(tag("p", f"No stability: {s.seeds_reason}.", cls="note"))
    if s.dropped:
        lines = [join(tag("span", f"trial {d.number}, {d.label}: "), typographic(d.reason)) for d in s.dropped]
        parts.append(
            tag("details", tag("summary", f"{plural(len(s.dropped), 'trial')} dropped, and why"), bullets(lines))
        )
    return tag("div", *parts, cls="rule own" if own else "rule")


def _two(gain: Gain | RuleGain) -> Html:
    return join(gain_text(gain), tag("span", gain_interval(gain), cls="sub"))


def _share(share: Share | None) -> Html:
    return join(
        share_text(share), tag("span", share_interval_text(share) or (share.reason if share else None) or "", cls="sub")
    )


def _stability(s: Selection, record: StudyRecord) -> list[Html]:
    assert s.stability is not None
    labels = {t.number: t.label for t in record.trials}
    shown = [(number, share) for number, share in s.stability.items()][:MOST_BARS]
    bars = [_bar(f"{n} · {shorten(labels.get(n, ''), 42)}", share, taken=n == s.chosen) for n, share in shown]
    rest = math.fsum(list(s.stability.values())[MOST_BARS:])
    if rest > 0:
        bars.append(_bar(f"{len(s.stability) - MOST_BARS} more", rest, taken=False))
    if s.stability_none:
        bars.append(_bar("no trial", s.stability_none, taken=s.chosen is None))
    return [tag("h4", f"Chosen in {s.draws:,} draws of the seeds"), *bars]


def _bar(name: str, share: float, *, taken: bool) -> Html:
    track = tag("div", tag("div", cls="bar", style=f"width:{100 * share:.1f}%"), cls="track")
    text = percent(100 * share, sign=False) if share < 0.01 else f"{100 * share:.0f} %"
    return tag(
        "div",
        tag("span", name, cls="name"),
        track,
        tag("span", text, cls="part"),
        cls="share taken-bar" if taken else "share",
    )


def _training(first: Selection, command: str, config_yaml: str) -> list[Html]:
    parts = [tag("p", f"The command that trains {first.label} once more, with the study's settings:", cls="intro")]
    if command:
        parts.append(tag("pre", tag("code", command), cls="block", tabindex="0"))
    if config_yaml:
        parts.append(
            tag(
                "details",
                tag("summary", "The configuration"),
                tag("pre", tag("code", config_yaml), cls="block", tabindex="0"),
                cls="fold",
                open=True,
            )
        )
    return parts


# --------------------------------------------------------------------------------------------------------------- table


def _table(record: StudyRecord, trials: Sequence[TrialFigures], selections: Sequence[Selection], here: Path) -> Html:
    if not trials:
        return tag("p", "No trial was begun yet.", cls="note")
    columns = [Column(title="Trial"), Column(title="State")]
    columns += [
        Column(title=t, numeric=True) for t in ("Target gain", "Source gain", "Gain kept", "Loss avoided", "Time")
    ] + [Column(title="Seeds")]
    rows, classes = [], []
    for t in trials:
        by = [s.rule for s in selections if s.chosen == t.trial.number]
        rows.append(
            [
                _name(t, by),
                _state(t, record),
                _gain_cell(t.target, whole=t.whole),
                _gain_cell(t.source, whole=t.whole),
                _share_cell(t.kept, t),
                _share_cell(t.avoided, t),
                _sortable(t.seconds, duration(t.seconds), "") if t.trial.runs else "",
                _seeds(t, here),
            ]
        )
        classes.append("taken" if by else "" if t.whole else "minor")
    return tag("div", table(columns, rows, cards=True, classes=classes), cls="panel dense trials")


def _state(t: TrialFigures, record: StudyRecord) -> Html:
    chip = tag("span", t.trial.state, cls=f"chip {STATE_TONES.get(t.trial.state, '')}".rstrip())
    done = len({r.seed for r in t.trial.runs} & set(record.seeds))
    return join(
        chip,
        tag("span", f"{done} of {plural(len(record.seeds), 'seed')}", cls="sub")
        if t.trial.state == "running"
        else None,
    )


def _name(t: TrialFigures, by: Sequence[str]) -> Html:
    params = parameters_text(
        {k: v for k, v in shown_params(t.trial).items() if parameters_text({k: v}) not in t.trial.label}
    )
    details = [
        f"trial {t.trial.number}",
        method_title(t.trial.kind) if method_title(t.trial.kind) not in t.trial.label else "",
        params,
    ]
    lines = [tag("span", " · ".join(d for d in details if d), cls="sub")]
    if t.trouble and t.trial.state not in ("running", "waiting"):
        lines.append(tag("span", typographic(t.trouble), cls="sub bad-text" if t.trial.state == "failed" else "sub"))
    chips = [join(" ", tag("span", rule, cls="chip good")) for rule in by]
    return join(t.trial.label, *chips, *lines)


def _sortable(value: float, text: str, below: str, cls: str | None = None) -> Html:
    number = tag("data", text, value=repr(value), cls=cls)
    return join(number, tag("span", below, cls="sub") if below else None)


def _gain_cell(gain: Gain | None, *, whole: bool) -> Html | str:
    if gain is None:
        return ""
    below = gain_interval(gain) if whole else f"{plural(len(gain.by_seed), 'seed')} so far"
    return _sortable(gain.value, gain_text(gain), below, f"tone {tone(gain)}" if whole else None)


def _share_cell(share: Share, t: TrialFigures) -> Html | str:
    if share.value is None:
        return "" if not t.whole else _sortable(math.nan, "reference" if t.trial.kind == "direct" else "n/a", "")
    return _sortable(share.value, share_text(share), share_interval_text(share))


def _seeds(t: TrialFigures, here: Path) -> Html | str:
    if not t.trial.runs:
        return ""
    found: list[Any] = []
    for run in sorted(t.trial.runs, key=lambda r: r.seed):
        report = here / run.folder / "report.html"
        link = (
            tag("a", str(run.seed), href=quote(f"{run.folder}/report.html"))
            if _inside(run.folder) and report.is_file()
            else str(run.seed)
        )
        found += [" ", link] if found else [link]
    return join(*found)


def _inside(folder: str) -> bool:
    return not Path(folder).is_absolute() and ".." not in Path(folder).parts


def _legend(record: StudyRecord) -> str:
    target, source = record.target, record.source
    return (
        f"Gains are against the start, more is better: target {target.label} ({target.unit}, {direction(target)} in "
        f"itself), source {source.label}"
        f" ({source.unit}, {direction(source)}), means over the seeds with 95 % intervals. Gain kept: the trial's "
        f"target gain over direct"
        " fine-tuning's. Loss avoided: 1 minus the trial's source loss over direct's. Time: of the worker, all seeds "
        "together."
    )


# -------------------------------------------------------------------------------------------------------------- others


def _parameters(page: Page, record: StudyRecord, trials: Sequence[TrialFigures]) -> None:
    charts = parameter_charts(record, trials)
    if not charts:
        return
    panels = [page.chart(c, width="half") for pair in charts for c in pair]
    left = len(varied_numbers(trials)) - len(charts)
    note = (
        tag(
            "p",
            f"{plural(left, 'more parameter')} varied and {'is' if left == 1 else 'are'} in the table alone.",
            cls="note",
        )
        if left > 0
        else None
    )
    page.section(
        "What each number does", tag("div", *panels, cls="panels"), note, intro=PARAMETERS, anchor="parameters"
    )


PARAMETERS = (
    "Target and source gain of every trial against the numbers that were varied; whatever else differs "
    "between the trials differs here too."
)


def _reading(record: StudyRecord) -> list[str]:
    one = len(record.seeds) < 2
    parts = [
        "A gain is the change from the start, its sign turned so that more is better, mean over the side's measures "
        "and over the seeds.",
        f"Intervals are at 95 % and cover {SAMPLES.removesuffix(' only')} alone, because there is one seed: another "
        f"seed may land outside."
        if one
        else "Intervals are at 95 % and cover training seeds (t distribution) and evaluated samples together.",
        "A trial is on the Pareto frontier when no other is at least as good on both sides and better on one. The "
        "start is a point of it too.",
        "Gain kept and loss avoided are shares of what direct fine-tuning did, with Fieller's intervals; none where "
        "direct's own change cannot be"
        " told from zero.",
        "The chosen trial looks a little better than it is, because noise helped to choose it. “On seeds it did not "
        "choose by” scores the"
        " rule instead: it chooses on all seeds but one and is scored on that one, in turn. Take that figure for what "
        "to expect.",
        "Stability: the rule chooses again on seeds drawn with replacement. A choice that changes from draw to draw "
        "is one among equals.",
        "Only complete trials with every seed and measure count; pruned, failed and lost ones are in the table with "
        "their reason.",
    ]
    if one:
        parts = [p for p in parts if not p.startswith(("The chosen trial", "Stability"))]
    return parts


def _facts(record: StudyRecord) -> list[tuple[str, str]]:
    found = [
        ("Began", record.created),
        ("Finished", record.finished or f"no ({record.status})"),
        ("Trials", counts_text(record)),
        ("Seeds", ", ".join(map(str, record.seeds))),
        ("Sampler", record.sampler),
        (
            "Rule",
            ", ".join(
                setting(v) if k == "rule" else f"{k} {setting(v)}" for k, v in record.selection.items() if v is not None
            )
            or "paper",
        ),
        ("Storage", record.storage or "not recorded"),
        ("Hardware", hardware_text(record.hardware) or "not recorded"),
        ("Versions", ", ".join(f"{k} {v}" for k, v in record.versions.items()) or "not recorded"),
    ]
    hosts = sorted({run.host for t in record.trials for run in t.runs if run.host})
    return [*found, ("Machines", ", ".join(hosts))] if hosts else found
