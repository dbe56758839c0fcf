"""One page on a trade-off study: what its rule chose, the frontier, every trial, the rules side by side, and the
command that trains the choice.

Reads a `StudyRecord` and the `Selection`s made of it (`holdfast.statistics.selection`), so it can be written at any
moment of a study: what is still under way is marked as such. Which trial to take is not decided here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast.records.study import StudyRecord
from holdfast.reports.blocks import (
    Bars,
    Block,
    Bullets,
    Code,
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
    figure,
    notes,
    sub,
)
from holdfast.reports.format import direction, duration, flatten, hardware_text, plural, setting, shorten
from holdfast.reports.html import write_page
from holdfast.reports.methods import kind_title
from holdfast.reports.study_charts import frontier_chart, parameter_charts, time_chart, varied_numbers
from holdfast.reports.study_figures import (
    TrialFigures,
    counts_text,
    gain_texts,
    lead,
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

STATUS_TONES = {"finished": "good", "running": "warn", "interrupted": "warn", "failed": "bad"}
STATE_TONES = {"running": "good", "pruned": "warn", "failed": "bad", "lost": "warn"}
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
    page = study_page(record, path.parent, selections=selections, command=command, config_yaml=config_yaml)
    return write_page(page, path)


def study_page(
    record: StudyRecord,
    here: Path,
    *,
    selections: Sequence[Selection],
    command: str = "",
    config_yaml: str = "",
) -> Page:
    """The page as blocks; links start from the folder `here`."""
    trials = read_trials(record)
    first = selections[0] if selections else None
    chart = time_chart(record)
    rules = rule_panels(record, selections)
    train = first is not None and first.chosen is not None and (command or config_yaml)
    configuration = Fold("Configuration", [Facts(flatten(record.config))]) if record.config else None
    return Page(
        tab=f"{record.name}: holdfast study report",
        eyebrow="holdfast study report",
        title=record.name,
        lead=lead(record, selections),
        status=(record.status, STATUS_TONES.get(record.status, "")),
        details=(
            f"{plural(len(record.trials), 'trial')}: {counts_text(record)} · {plural(len(record.seeds), 'seed')} a "
            f"trial · target: {record.target.label} · source: {record.source.label}"
        ),
        blocks=[
            Tiles(study_tiles(record, trials, first)),
            frontier_section(record, trials, first),
            Section("The rules side by side", rules, anchor="rules") if any(s.candidates for s in selections) else None,
            _training(first, command, config_yaml) if train and first is not None else None,
            trials_section(record, trials, selections, here),
            _parameters(record, trials),
            Section("Who worked on what", [chart], anchor="time") if chart is not None else None,
            notes(record.notes, anchor="notes"),
            Section("How to read this page", [Panel([Bullets(_reading(record))], "card")], anchor="reading"),
            Section("The study", [Panel([Facts(_facts(record))], "card"), configuration]),
        ],
        footer="Written by holdfast from the study's records.",
    )


def study_tiles(record: StudyRecord, trials: Sequence[TrialFigures], first: Selection | None) -> list[Tile]:
    """How many trials count, what direct fine-tuning did, and what the chosen trial keeps of it."""
    direct = next((t for t in trials if t.trial is record.direct and t.whole), None)
    time = duration(math.fsum(t.seconds for t in trials))
    found = [
        Tile("Trials that count", f"{sum(t.whole for t in trials)} of {len(trials)}", f"{time} of the workers' time")
    ]
    for name, gain in (("target", direct.target), ("source", direct.source)) if direct is not None else ():
        if gain is not None:
            text, interval = gain_texts(gain)
            found.append(Tile(f"Direct fine-tuning, {name} gain", text, f"{gain.unit} {interval}", tone(gain)))
    if first is not None and first.chosen is not None:
        found += share_tiles(f"trial {first.chosen}", first.kept, first.avoided)
    return found


def share_tiles(who: str, kept: Share | None, avoided: Share | None) -> list[Tile]:
    """Shares of what direct fine-tuning did, as far as they exist."""
    found = []
    for name, share in (("Gain kept", kept), ("Loss avoided", avoided)):
        if share is not None and share.value is not None:
            interval = f"95 % interval {share_interval_text(share)}" if share.interval else "no interval"
            below = str(share.reason) if share.open else f"of direct's, {interval}"
            found.append(Tile(f"{name}, {who}", share_text(share), below))
    return found


def frontier_section(record: StudyRecord, trials: Sequence[TrialFigures], first: Selection | None) -> Section:
    """Target against source: the objectives, then every pair of single measures."""
    sides = (record.target, record.source)
    pairs = [p for p in record.pairs if [o.entries for o in p] != [o.entries for o in sides]]
    main = frontier_chart(record, trials, sides, first)
    if main is None:
        text = "No trial is complete with all its seeds yet, so there is nothing to draw."
        return Section("Target against source", [Paragraph(text, "note")])
    charts = [main, *(frontier_chart(record, trials, p, first, wide=False) for p in pairs[:MOST_PLOTS])]
    text = f"Of {plural(len(pairs), 'pair')} of single measures the first {MOST_PLOTS} are drawn."
    left = Paragraph(text, "note") if len(pairs) > MOST_PLOTS else None
    return Section("Target against source", [*charts, left], anchor="frontier")


# --------------------------------------------------------------------------------------------------------------- rules


def rule_panels(record: StudyRecord, selections: Sequence[Selection]) -> list[Panel]:
    """What each rule chose, why, and how firmly; the study's own rule comes first."""
    return [_rule(s, record, own=place == 0) for place, s in enumerate(selections)]


def _rule(s: Selection, record: StudyRecord, *, own: bool) -> Panel:
    def sentence(text: str) -> str:
        return f"{typographic(text[:1].upper() + text[1:])}."

    parts: list[Block] = [Heading(rule_title(s))]
    if own:
        parts.append(Paragraph(chip("the study's rule", "good")))
    parts.append(Paragraph(sentence(s.text), "note"))
    parts.append(Paragraph("No trial" if s.chosen is None else (f"{s.label} ", chip(f"trial {s.chosen}")), "taken"))
    parts.append(Paragraph(sentence(s.reason), "note"))
    if s.target is not None and s.source is not None:
        shares = [(name, _share(share)) for name, share in (("Gain kept", s.kept), ("Loss avoided", s.avoided))]
        sides = [("Target", figure(*gain_texts(s.target))), ("Source", figure(*gain_texts(s.source)))]
        parts.append(Facts([*sides, *shares]))
    if s.stability is not None:
        parts += [Heading(f"Chosen in {s.draws:,} draws of the seeds"), Bars(_stability(s, s.stability, record))]
    if s.rule_target is not None and s.rule_source is not None:
        unseen = [("Target", figure(*gain_texts(s.rule_target))), ("Source", figure(*gain_texts(s.rule_source)))]
        parts += [Heading("On seeds it did not choose by"), Facts(unseen)]
    if s.seeds_reason is not None:
        parts.append(Paragraph(f"No stability: {s.seeds_reason}.", "note"))
    if s.dropped:
        lines = [f"trial {d.number}, {d.label}: {typographic(d.reason)}" for d in s.dropped]
        parts.append(Fold(f"{plural(len(s.dropped), 'trial')} dropped, and why", [Bullets(lines)]))
    return Panel(parts, "rule own" if own else "rule")


def _share(share: Share | None) -> Text:
    reason = share.reason if share is not None else None
    return figure(share_text(share), share_interval_text(share) or reason or "")


def _stability(s: Selection, found: Mapping[int, float], record: StudyRecord) -> list[tuple[str, float, bool]]:
    labels = {t.number: t.label for t in record.trials}
    shown = list(found.items())
    bars = [(f"{n} · {shorten(labels.get(n, ''), 42)}", share, n == s.chosen) for n, share in shown[:MOST_BARS]]
    rest = math.fsum(share for _, share in shown[MOST_BARS:])
    bars += [(f"{len(shown) - MOST_BARS} more", rest, False)] if rest > 0 else []
    return bars + ([("no trial", s.stability_none, s.chosen is None)] if s.stability_none else [])


def _training(first: Selection, command: str, config_yaml: str) -> Section:
    parts: list[Block] = [Code(command)] if command else []
    if config_yaml:
        parts.append(Fold("The configuration", [Code(config_yaml)], open=True))
    intro = f"The command that trains {first.label} once more, with the study's settings:"
    return Section("Train the chosen trial", parts, intro=intro, anchor="train")


# --------------------------------------------------------------------------------------------------------------- table


def trials_section(
    record: StudyRecord,
    trials: Sequence[TrialFigures],
    selections: Sequence[Selection],
    here: Path,
    *,
    narrow: bool = False,
) -> Section:
    """Every trial as a row.

    Args:
        record: of the study.
        trials: its figures.
        selections: whose choices are marked.
        here: the page's folder, which links to runs start from.
        narrow: fits into eighty characters: shares without intervals, state and time below the label.
    """
    if not trials:
        return Section("All trials", [Paragraph("No trial was begun yet.", "note")], anchor="trials")
    rows: list[list[Text]] = []
    tones = []
    for t in trials:
        n = t.trial.number
        by = ", ".join(s.rule for s in selections if s.chosen == n)
        label = (t.trial.label, (" ", chip(f"chosen: {by}", "good")) if by else None, *_below(t))
        gains = [_gain_cell(g, whole=t.whole) for g in (t.target, t.source)]
        time = Span(duration(t.seconds), value=t.seconds) if t.trial.runs else ""
        if narrow:
            unnamed = t.trial.state in ("running", "waiting", "lost")  # what `_below` says has no word of these
            state = sub(t.trial.state) if unnamed else None
            shares = [share_text(x) if x.value is not None else "" for x in (t.kept, t.avoided)]
            rows.append([(*label, state, sub(time) if time else None), *gains, *shares])
        else:
            shares_of = [_share_cell(x, t) for x in (t.kept, t.avoided)]
            rows.append([label, _state(t, record), *gains, *shares_of, time, _seeds(t, here)])
        tones.append("taken" if by else "" if t.whole else "minor")
    if narrow:
        heads = columns("Trial", "Target gain", "Source gain", "Kept", "Avoided")
    else:
        titles = ("Trial", "State", "Target gain", "Source gain", "Gain kept", "Loss avoided", "Time", "Seeds")
        heads = columns(*titles, right=range(2, 7))
    table = Table(columns=heads, rows=rows, kind="dense trials", tones=tones, find="trial")
    target, source = record.target, record.source
    whole = next((t for t in trials if t.whole and t.target is not None and t.source is not None), None)
    samples = [f"n {g.samples:,}" for g in (whole.target, whole.source) if g is not None] if whole is not None else []
    legend = (
        f"Gains are against the start, more is better: target {target.label} ({target.unit}, "
        f"{direction(target.higher_is_better)} in itself), source {source.label} ({source.unit}, "
        f"{direction(source.higher_is_better)}), means over the seeds with 95 % intervals. Gain kept: the trial's "
        "target gain over direct fine-tuning's. Loss avoided: 1 minus the trial's source loss over direct's. Time: of "
        "the worker, all seeds together."
    )
    legend += f" Samples of target and source: {', '.join(samples)}." if samples else ""
    return Section("All trials", [table, Paragraph(legend, "note")], anchor="trials")


def _below(t: TrialFigures) -> list[Text]:
    """What stands under a trial's label: its number and settings, and why it does not count."""
    label, kind = t.trial.label, kind_title(t.trial)
    unsaid = {k: v for k, v in shown_params(t.trial).items() if parameters_text({k: v}) not in label}
    details = [f"trial {t.trial.number}", kind if kind not in label else "", parameters_text(unsaid)]
    found: list[Text] = [sub(" · ".join(d for d in details if d))]
    if t.trouble and t.trial.state not in ("running", "waiting"):
        found.append(sub(typographic(t.trouble), tone="bad" if t.trial.state == "failed" else ""))
    return found


def _state(t: TrialFigures, record: StudyRecord) -> Text:
    done = len({r.seed for r in t.trial.runs} & set(record.seeds))
    of = sub(f"{done} of {plural(len(record.seeds), 'seed')}") if t.trial.state == "running" else None
    return chip(t.trial.state, STATE_TONES.get(t.trial.state, "")), of


def _gain_cell(gain: Gain | None, *, whole: bool) -> Text:
    if gain is None:
        return ""
    text, interval = gain_texts(gain)
    if not whole:
        return figure(text, f"{plural(len(gain.by_seed), 'seed')} so far", value=gain.value)
    return figure(text, interval, value=gain.value, tone=tone(gain))


def _share_cell(share: Share, t: TrialFigures) -> Text:
    if share.value is not None:
        return figure(share_text(share), share_interval_text(share), value=math.nan if share.open else share.value)
    if not t.whole:
        return ""
    return Span("reference" if t.trial.kind == "direct" else "n/a", value=math.nan)


def _seeds(t: TrialFigures, here: Path) -> Text:
    found: list[Text] = []
    for run in sorted(t.trial.runs, key=lambda r: r.seed):
        inside = not Path(run.folder).is_absolute() and ".." not in Path(run.folder).parts
        there = inside and (here / run.folder / "report.html").is_file()
        found += [" " if found else "", Span(str(run.seed), link=quote(f"{run.folder}/report.html") if there else "")]
    return found


# -------------------------------------------------------------------------------------------------------------- others


def _parameters(record: StudyRecord, trials: Sequence[TrialFigures]) -> Section | None:
    charts = parameter_charts(record, trials)
    if not charts:
        return None
    left = len(varied_numbers(trials)) - len(charts)
    text = f"{plural(left, 'more parameter')} varied and {'is' if left == 1 else 'are'} only in the table."
    intro = (
        "Target and source gain of every trial against the numbers that were varied; whatever else differs between "
        "the trials differs here too."
    )
    parts: list[Block] = [c for pair in charts for c in pair]
    parts += [Paragraph(text, "note")] if left > 0 else []
    return Section("What each number does", parts, intro=intro, anchor="parameters")


def _reading(record: StudyRecord) -> list[str]:
    one = len(record.seeds) < 2
    covered = (
        f"cover {SAMPLES}, because there is one seed: another seed may land outside."
        if one
        else "cover training seeds (t distribution) and evaluated samples together."
    )
    several = [
        "The chosen trial looks a little better than it is, because noise helped to choose it. “On seeds it did not "
        "choose by” scores the rule instead: it chooses on all seeds but one and is scored on that one, in turn. Take "
        "that figure for what to expect.",
        "Stability: the rule chooses again on seeds drawn with replacement. A choice that changes from draw to draw "
        "is one among equals.",
    ]
    return [
        "A gain is the change from the start, its sign turned so that more is better, mean over the side's measures "
        "and over the seeds.",
        f"Intervals are at 95 % and {covered}",
        "A trial is on the Pareto frontier when no other is at least as good on both sides and better on one. The "
        "start is a point of it too.",
        "Gain kept and loss avoided are shares of what direct fine-tuning did, with Fieller's intervals; none where "
        "direct's own change may be zero.",
        *([] if one else several),
        "Only complete trials with every seed and measure count; pruned, failed and lost ones are in the table with "
        "their reason.",
    ]


def _facts(record: StudyRecord) -> list[tuple[str, Any]]:
    rule = [setting(v) if k == "rule" else f"{k} {setting(v)}" for k, v in record.selection.items() if v is not None]
    hosts = sorted({run.host for t in record.trials for run in t.runs if run.host})
    return [
        ("Began", record.created),
        ("Finished", record.finished or f"no ({record.status})"),
        ("Trials", counts_text(record)),
        ("Seeds", ", ".join(map(str, record.seeds))),
        ("Sampler", record.sampler),
        ("Rule", ", ".join(rule) or "paper"),
        ("Storage", record.storage or "not recorded"),
        ("Hardware", hardware_text(record.hardware) or "not recorded"),
        ("Versions", ", ".join(f"{k} {v}" for k, v in record.versions.items()) or "not recorded"),
        *([("Machines", ", ".join(hosts))] if hosts else []),
    ]
