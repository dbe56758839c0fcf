"""Runs of one's own over one source and one target, read as a trade-off study of one seed: the same record, the same
sections of a page, and each run in a sentence.

An arm is a run with a label. Against the arm of direct fine-tuning, every other arm is read by two shares, from the
gains g (signed so that more is better) on target t and source s:

    kept = g_t(arm) / g_t(direct)          lost = g_s(arm) / g_s(direct)

"kept 94 % of the target gain of direct fine-tuning while losing 21 % of what direct lost". A share of nothing does not
exist: where direct fine-tuning gained nothing on the target, or lost nothing on the source, the sentence says that
instead. What is avoided is 1 - lost.

Intervals of the shares are Fieller's over documents (`holdfast.statistics.shares`): start, arm and direct answered the
same ones, so that what is hard for all of them cancels. Without the per-sample rows, or where direct's own change
may be zero, there is no interval. It does not cover the variation between training seeds.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from holdfast.errors import DataError, UserError
from holdfast.records.comparison import GAINED, KEPT, LOST, NOT_SHOWN, Comparison
from holdfast.records.run import RunFolder, RunRecord
from holdfast.records.study import FINISHED, Objective, SeedRun, StudyRecord, TrialRecord
from holdfast.reports.blocks import (
    Block,
    Bullets,
    Code,
    Page,
    Panel,
    Paragraph,
    Section,
    Table,
    Tile,
    Tiles,
    columns,
    notes,
)
from holdfast.reports.compared import ComparisonRow, group_title
from holdfast.reports.format import decimals_for, direction, number, percent
from holdfast.reports.html import write_page
from holdfast.reports.methods import method_text
from holdfast.reports.run_report import training_figures
from holdfast.reports.study_figures import (
    TrialFigures,
    best_of,
    covered,
    read_trials,
    share_interval_text,
    share_text,
)
from holdfast.reports.study_report import frontier_section, share_tiles, study_tiles, trials_section
from holdfast.reports.terminal import Printer
from holdfast.retention.registry import declared
from holdfast.statistics.shares import Share, share_over_samples

if TYPE_CHECKING:
    from rich.console import Console

NOTHING = Share(value=None, interval=None, reason=None)


@dataclasses.dataclass(frozen=True)
class Arm:
    """One run of a comparison."""

    label: str
    """What tables and plots call it."""
    folder: RunFolder
    kind: str
    """"start", "direct", "label_annealing" or another name; arms of one kind are joined as a curve, ordered by their
    strength."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmFigures:
    """One arm with its figures."""

    arm: Arm
    record: RunRecord
    source: ComparisonRow | None
    target: ComparisonRow | None
    kept: Share = NOTHING
    lost: Share = NOTHING
    reading: str = ""
    """The arm in one sentence."""

    @property
    def sides(self) -> tuple[ComparisonRow, ComparisonRow] | None:
        """(source, target); None where one of them was not compared with the start."""
        return None if self.source is None or self.target is None else (self.source, self.target)

    @property
    def margin(self) -> float:
        """Share kept minus share lost; minus infinity where either does not exist. What "best balance" goes by."""
        if self.kept.value is None or self.lost.value is None:
            return -math.inf
        return self.kept.value - max(self.lost.value, 0.0)

    @property
    def below(self) -> str:
        """The method, and how far the weights moved."""
        method = "starting model" if self.arm.kind == "start" else method_text(self.record.retention)
        if not self.record.distance:
            return method
        total = math.sqrt(math.fsum(d.l2**2 for d in self.record.distance))
        largest = max((d.relative for d in self.record.distance if math.isfinite(d.relative)), default=None)
        layers = f" (layers up to {percent(100 * largest, sign=False)})" if largest is not None else ""
        return f"{method} · distance (L2) {total:.3g}{layers}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tradeoff:
    """Arms as the record of a study, with what a study has not: each in words."""

    record: StudyRecord
    trials: list[TrialFigures]
    """By arm; the start is not among them."""
    arms: list[ArmFigures]
    direct: ArmFigures | None
    notes: list[str]

    @property
    def measured(self) -> list[ArmFigures]:
        """Arms with both figures."""
        return [a for a in self.arms if a.sides is not None]

    @property
    def best(self) -> ArmFigures | None:
        """The arm with the largest difference of kept and lost share."""
        both = [f for f in self.arms if math.isfinite(f.margin)]
        return max(both, key=lambda f: f.margin, default=None)

    @property
    def verdict(self) -> str:
        """What direct fine-tuning did, and the arm with the best balance."""
        if self.direct is None or self.direct.sides is None:
            return (
                f"{len(self.measured)} of {len(self.arms)} arms are measured; without direct fine-tuning among them "
                f"there is nothing to hold them against."
            )
        source, target = self.direct.sides
        lead = f"Direct fine-tuning: the target {_changed(target)}, the source {_changed(source)}."
        best = self.best
        if best is None or not best.kept.value or best.kept.value <= 0:
            return lead
        if best.margin <= 0:
            return f"{lead} No other arm kept a larger share of that gain than it lost of what direct lost."
        count = sum(math.isfinite(f.margin) for f in self.arms)
        optimistic = f" {best_of(count, 'arms')}." if count > 1 else ""
        return f"{lead} The best balance: {best.reading}{optimistic}"


def read_tradeoff(
    arms: Sequence[Arm], *, source: tuple[str, str], target: tuple[str, str], metric: str = "nats_per_token"
) -> Tradeoff:
    """Reads the arms' folders.

    Args:
        arms: at least one; the first of kind "direct" is what the others are read against.
        source: (suite, name) of the evaluation of what must be kept.
        target: (suite, name) of the evaluation of what is learnt.
        metric: key of the metric, the same for both; where an arm does not have it, its primary metric is taken and a
            note says so.

    Raises:
        UserError: no arms.
        DataError: a folder has no readable run.json.
    """
    if not arms:
        raise UserError("Expected at least one arm to report on, got none. Give the run folders to compare.")
    remarks: list[str] = []
    read = [_read(arm, (source, target), metric, remarks) for arm in arms]
    for side in (0, 1):
        rows = [f.sides[side] for f in read if f.sides is not None]
        remarks += [remark for other in rows[1:] for remark in _same_start(rows[0], other)]
    direct = next((f for f in read if f.arm.kind == "direct" and f.sides is not None), None)
    if direct is None:
        remarks.append(
            "No measured arm of direct fine-tuning is among them, so shares of its gain and loss cannot be given."
        )
    elif sum(arm.kind == "direct" for arm in arms) > 1:
        remarks.append(f"Shares are given against {direct.arm.label}.")
    figures = [_against(f, direct, source, target) for f in read]
    held = [f for f in figures if f.arm.kind != "start"]
    study = _study(held, source, target, metric)
    return Tradeoff(
        record=study,
        trials=[
            dataclasses.replace(t, kept=f.kept, avoided=f.lost.taken_from(1.0))
            for t, f in zip(read_trials(study), held, strict=True)
        ],
        arms=figures,
        direct=None if direct is None else figures[read.index(direct)],
        notes=list(dict.fromkeys(remarks)),
    )


def _read(arm: Arm, sides: tuple[tuple[str, str], tuple[str, str]], metric: str, remarks: list[str]) -> ArmFigures:
    """An arm's record and comparisons; what is missing becomes a remark."""
    if not arm.folder.exists():
        raise DataError(
            f"Expected the run folder of arm {arm.label!r} at {arm.folder.path}, but it has no run.json. Run that "
            f"arm first, or leave it out."
        )
    record = arm.folder.read()
    source, target = (None if arm.kind == "start" else _row(arm, which, metric, remarks) for which in sides)
    if record.status != "finished":
        remarks.append(f"{arm.label}: the run is {record.status} (stage: {record.stage}).")
    return ArmFigures(arm=arm, record=record, source=source, target=target)


def _row(arm: Arm, which: tuple[str, str], metric: str, remarks: list[str]) -> ComparisonRow | None:
    try:
        found = [c for c in arm.folder.comparisons() if (c.suite, c.name) == which]
    except (DataError, KeyError, TypeError) as error:
        remarks.append(f"{arm.label}: its comparisons could not be read ({error}).")
        return None
    exact = [c for c in found if c.metric == metric] or [c for c in found if c.primary]
    if not exact:
        remarks.append(f"{arm.label}: {which[0]}: {which[1]} was not compared with the start.")
        return None
    if exact[0].failed is not None:
        remarks.append(f"{arm.label}: {which[0]}: {which[1]} is not finite ({exact[0].failed.rstrip('.')}).")
        return None
    if exact[0].metric != metric:
        remarks.append(
            f"{arm.label}: {which[0]}: {which[1]} has no {metric}; its primary metric {exact[0].metric} is shown."
        )
    return ComparisonRow(exact[0])


def _same_start(first: ComparisonRow, other: ComparisonRow) -> list[str]:
    if math.isclose(first.raw.before, other.raw.before, rel_tol=1e-6, abs_tol=1e-9):
        return []
    return [
        f"The arms do not start from the same figure on {other.label}: {first.before} and {other.before}. They can "
        "hardly be compared."
    ]


def _study(figures: Sequence[ArmFigures], source: tuple[str, str], target: tuple[str, str], metric: str) -> StudyRecord:
    """The arms as a study's record: a trial an arm, one seed, one entry a side."""

    def objective(side: str, which: tuple[str, str], rows: Sequence[ComparisonRow | None]) -> Objective:
        known = next((r.raw for r in rows if r is not None), None)
        return Objective(
            side=side,
            entries=[(*which, metric)],
            label=f"{group_title(which[0])}: {which[1]}",
            unit=known.unit if known is not None else metric,
            higher_is_better=known.higher_is_better if known is not None else False,
        )

    trials = []
    for number_, f in enumerate(figures):
        compared = [dataclasses.replace(r.raw, metric=metric) for r in (f.source, f.target) if r is not None]
        seconds = training_figures(f.record, _metrics(f.arm))["seconds"]
        run = SeedRun(
            seed=0, folder="", host="", seconds=seconds or 0.0, training_seconds=seconds or 0.0, comparisons=compared
        )
        trials.append(
            TrialRecord(
                number=number_,
                state=FINISHED if f.record.status == "finished" else f.record.status,
                kind=f.arm.kind,
                label=f.arm.label,
                params=_strength(f.record),
                settings={},
                runs=[run],
                reason=f.record.error,
            )
        )
    return StudyRecord(
        name="",
        status="finished",
        created="",
        config={},
        seeds=[0],
        target=objective("target", target, [f.target for f in figures]),
        source=objective("source", source, [f.source for f in figures]),
        pairs=[],
        trials=trials,
        selection={},
    )


def _metrics(arm: Arm) -> list[dict[str, Any]]:
    try:
        return arm.folder.metrics()
    except DataError:
        return []


def _strength(record: RunRecord) -> dict[str, Any]:
    """The parameter that says how strongly an arm holds on to the start; empty where there is none."""
    for method in record.retention:
        cls = declared(str(method.get("method", "")))
        for key in method.get("strength") or (cls.strength if cls is not None else ()):
            value = method.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return {key: float(value)}
    return {}


# ----------------------------------------------------------------------------------------------------------- shares


def _against(f: ArmFigures, direct: ArmFigures | None, source: tuple[str, str], target: tuple[str, str]) -> ArmFigures:
    """The arm with its shares of direct's gain and loss, and its sentence."""
    if direct is not None and direct.sides is not None and f is not direct and f.sides is not None:
        (s, t), (their_s, their_t) = f.sides, direct.sides
        kept = _share(f.arm, direct.arm, target, t, their_t, wanted=1)
        f = dataclasses.replace(f, kept=kept, lost=_share(f.arm, direct.arm, source, s, their_s, wanted=-1))
        return dataclasses.replace(f, reading=_reading(f, s, t))
    if f.arm.kind == "start":
        reading = "the starting model, before any training."
    elif f.sides is None:
        side = "only one side" if f.source is not None or f.target is not None else "neither side"
        reading = f"{side} was compared with the start (the run is {f.record.status}), so there is nothing to read yet."
    else:
        reading = f"the target {_changed(f.sides[1])}; the source {_changed(f.sides[0])}."
    return dataclasses.replace(f, reading=f"{f.arm.label}: {reading}")


def _share(
    arm: Arm, direct: Arm, which: tuple[str, str], ours: ComparisonRow, theirs: ComparisonRow, *, wanted: int
) -> Share:
    """The arm's gain over direct's; none where direct's has not the wanted sign."""
    if theirs.raw.gain * wanted <= 0:
        return NOTHING
    interval = share_interval(arm, direct, which, ours.raw, theirs.raw)
    return Share(value=ours.raw.gain / theirs.raw.gain, interval=interval, reason=None)


def per_sample(
    folder: RunFolder, which: str, name: tuple[str, str], metric: str
) -> dict[tuple[str, int], tuple[float, float]] | None:
    """(numerator, denominator) of a metric for every document, or None where the rows are not there or not understood.

    The metric is the ratio of the sums: nats over tokens, bits over bytes, score over one. Documents that occur twice
    are distinguished by their place.
    """
    try:
        rows = folder.evaluated(which).samples(*name)
    except (OSError, DataError):
        return None
    found: dict[tuple[str, int], tuple[float, float]] = {}
    seen: dict[str, int] = {}
    for sample in rows:
        try:
            if metric == "nats_per_token":
                pair = (float(sample["nats"]), float(sample["tokens"]))
            elif metric == "bits_per_byte":
                pair = (float(sample["nats"]) / math.log(2), float(sample["bytes"]))
            else:
                pair = (float(sample[metric]), 1.0)
            doc = str(sample["doc"])
        except (KeyError, TypeError, ValueError):
            return None
        seen[doc] = seen.get(doc, 0) + 1
        found[doc, seen[doc]] = pair
    return found or None


def share_interval(
    arm: Arm, direct: Arm, name: tuple[str, str], ours: Comparison, theirs: Comparison
) -> tuple[float, float] | None:
    """95 % interval of the arm's change over direct's; None where it cannot be had (see the module
    docstring).

    The rows must reproduce the recorded figures (to 1e-4, relative): a metric that is no ratio of sums gets no
    interval.
    """
    import numpy as np

    if ours.metric != theirs.metric:
        return None
    tables = [
        per_sample(folder, which, name, ours.metric)
        for folder, which in ((arm.folder, "start"), (arm.folder, "result"), (direct.folder, "result"))
    ]
    if any(t is None for t in tables):
        return None
    start, result, other = (t for t in tables if t is not None)
    docs = sorted(set(start) & set(result) & set(other))
    if len(docs) < 10 or not len(docs) == len(start) == len(result) == len(other):
        return None
    columns = [np.array([table[d] for d in docs], dtype=np.float64) for table in (start, result, other)]
    whole = [column[:, 0].sum() / column[:, 1].sum() for column in columns]
    if not np.allclose(whole, [ours.before, ours.after, theirs.after], rtol=1e-4, atol=1e-9):
        return None
    return share_over_samples(*columns)


# ------------------------------------------------------------------------------------------------------------ prose


def _changed(r: ComparisonRow) -> str:
    """`improved by 0.123 nats/token`, with "not shown" where the interval includes zero."""
    if r.raw.gain == 0:
        return "did not change"
    word = "improved" if r.raw.gain > 0 else "got worse"
    text = f"{word} by {number(abs(r.raw.gain), decimals_for(r.raw.interval))} {r.unit}"
    return text + (f" ({r.verdict})" if r.verdict not in (GAINED, LOST) else "")


def _with_bounds(share: Share) -> str:
    return covered(share_text(share), share_interval_text(share))


def _reading(f: ArmFigures, s: ComparisonRow, t: ComparisonRow) -> str:
    label = f.arm.label
    if f.kept.value is None or f.kept.open:
        why = f.kept.reason if f.kept.open else "direct fine-tuning gained nothing on the target"
        first = f"{label}: {why}, so there is no gain to keep a share of; here the target {_changed(t)}"
    elif t.raw.gain <= 0:
        first = f"{label} kept none of the target gain of direct fine-tuning: the target {_changed(t)}"
    else:
        first = f"{label} kept {_with_bounds(f.kept)} of the target gain of direct fine-tuning"
    if s.raw.gain >= 0:
        second = f"lost nothing on the source, which {_changed(s)}" if s.raw.gain > 0 else "lost nothing on the source"
        return f"{first} and {second}."
    if f.lost.value is None:
        return f"{first}; the source {_changed(s)}, where direct fine-tuning lost nothing."
    if f.lost.open:
        return f"{first}; the source {_changed(s)}; {f.lost.reason}."
    noise = {KEPT: ", a loss that is not shown and does not matter", NOT_SHOWN: ", a loss that is not shown"}.get(
        s.verdict, ""
    )
    return f"{first} while losing {_with_bounds(f.lost)} of what direct lost{noise}."


# ------------------------------------------------------------------------------------------------- page and terminal


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
    found = read_tradeoff(arms, source=source, target=target, metric=metric)
    return write_page(tradeoff_page(found, path.parent, title=title, intro=intro, next_steps=next_steps), path)


def tradeoff_page(found: Tradeoff, here: Path, *, title: str, intro: str, next_steps: str | None = None) -> Page:
    """The page as blocks; links start from the folder `here`."""
    held = [f for f in found.arms if f.arm.kind != "start"]
    links = {n: link for n, f in enumerate(held) if (link := _link(f.arm, here))}
    more = {n: f.below for n, f in enumerate(held)}
    best = found.best
    tiles: list[Tile] = study_tiles(found.record, found.trials, None)[1:]
    if best is not None:
        tiles += share_tiles(best.arm.label, best.kept, best.lost.taken_from(1.0))
    return Page(
        tab=f"{title} (holdfast)",
        eyebrow="holdfast trade-off report",
        title=title,
        lead=found.verdict,
        blocks=[
            *_paragraphs(intro),
            Tiles(tiles),
            frontier_section(found.record, found.trials, None),
            trials_section(found.record, found.trials, [], here, title="All arms", links=links, more=more),
            Section("In words", [Panel([Bullets([f.reading for f in found.arms])], "card")]),
            notes(found.notes),
            Section("What next", _paragraphs(next_steps)) if next_steps else None,
        ],
        footer="Written by holdfast from the files of the run folders.",
    )


def _link(arm: Arm, here: Path) -> str:
    """The address of the arm's own report from here, empty where there is none."""
    report = arm.folder.report_file
    if not report.is_file():
        return ""
    try:
        return quote(Path(os.path.relpath(report.resolve(), here.resolve())).as_posix())
    except ValueError:  # another drive on Windows: no relative path exists
        return ""


def _paragraphs(text: str) -> list[Block]:
    """Blank lines separate paragraphs; lines that begin with "$ " are commands, continued where a line ends with a
    backslash."""
    out: list[Block] = []
    for block in text.strip().split("\n\n"):
        words: list[str] = []
        commands: list[str] = []
        for line in block.splitlines():
            if line.lstrip().startswith("$ "):
                commands.append(line.strip().removeprefix("$ "))
            elif commands and commands[-1].endswith("\\"):
                commands.append(line.rstrip())
            else:
                words.append(line.strip())
        out += [Paragraph(" ".join(words), "prose")] if words else []
        out += [Code("\n".join(commands))] if commands else []
    return out


def print_tradeoff(
    arms: Sequence[Arm],
    console: Console | None = None,
    *,
    source: tuple[str, str],
    target: tuple[str, str],
    metric: str = "nats_per_token",
) -> None:
    """Prints the table and the sentences of the trade-off page.

    Args:
        arms: as for `write_tradeoff_report`.
        console: where to print; the terminal by default.
        source: (suite, name) of what must be kept.
        target: (suite, name) of what is learnt.
        metric: key of the metric of both.

    Raises:
        UserError: no arms.
        DataError: a folder has no readable run.json.
    """
    found = read_tradeoff(arms, source=source, target=target, metric=metric)
    levels = Table(
        columns=columns("Arm", "Target after", "Source after", right=(1, 2)),
        rows=[[f.arm.label, f.sides[1].after, f.sides[0].after] for f in found.arms if f.sides is not None],
    )
    for source_row, target_row in [f.sides for f in found.arms if f.sides is not None][:1]:
        better = direction(found.record.target.higher_is_better)
        title = f"Start: target {target_row.before}, source {source_row.before}, {better}"
        levels = dataclasses.replace(levels, title=title)
    shown = trials_section(found.record, found.trials, [], Path(), title="All arms", narrow=True)
    words: list[Block] = [Paragraph(found.verdict), Paragraph(""), Bullets([f.reading for f in found.arms])]
    remarks = [Paragraph(f"Note: {n}", "note") for n in found.notes]
    Printer(console).show([*shown.blocks, levels, *words, *remarks])
