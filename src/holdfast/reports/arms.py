"""Several runs over one source and one target: the figures behind the trade-off page and its terminal table.

An arm is a run with a label. Against the arm of direct fine-tuning, every other arm is read by two shares, from the
gains g (signed so that more is better) on target t and source s:

    kept = g_t(arm) / g_t(direct)          lost = g_s(arm) / g_s(direct)

"kept 94 % of the target gain of direct fine-tuning while losing 21 % of what direct lost". A share of nothing does not
exist: where direct fine-tuning gained nothing on the target, or lost nothing on the source, the sentence says that
instead.

Intervals of the shares are Fieller's over documents (`holdfast.statistics.shares`): start, arm and direct answered the
same ones, so that what is hard for all of them cancels. Without the per-sample rows, or where direct's own change
cannot be told from zero, there is no interval. It does not cover the variation between training seeds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from holdfast.errors import DataError, UserError
from holdfast.records.comparison import Comparison
from holdfast.records.run import RunFolder, RunRecord
from holdfast.reports.figures import (
    Row,
    decimals_for,
    duration,
    group_title,
    interval_text,
    method_text,
    number,
    percent,
    row,
    training_figures,
)
from holdfast.retention.registry import declared
from holdfast.statistics.shares import share_over_samples


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
class Share:
    """Percent of what direct fine-tuning changed."""

    value: float
    interval: tuple[float, float] | None

    @property
    def text(self) -> str:
        if self.interval is None:
            return percent(self.value, sign=False)
        return f"{percent(self.value, sign=False)} {interval_text(self.interval, 1)}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArmFigures:
    """One arm, formatted."""

    arm: Arm
    record: RunRecord
    method: str
    source: Row | None
    target: Row | None
    seconds: str
    distance: str
    """L2 norm of all weight changes together, and the largest relative move of a layer."""
    strength: float | None
    kept: Share | None
    lost: Share | None
    reading: str
    """The arm in one sentence."""

    @property
    def margin(self) -> float:
        """Share kept minus share lost, in percent points; minus infinity where either does not exist. What "best
        balance" goes by."""
        return -math.inf if self.kept is None or self.lost is None else self.kept.value - max(self.lost.value, 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartPoint:
    """The model that every arm starts from."""

    source: float
    target: float
    source_text: str
    target_text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TradeoffFigures:
    """Everything the trade-off page and table say."""

    source: tuple[str, str]
    target: tuple[str, str]
    metric: str
    arms: list[ArmFigures]
    start: StartPoint | None
    direct: ArmFigures | None
    verdict: str
    notes: list[str]

    @property
    def measured(self) -> list[ArmFigures]:
        """Arms with both figures."""
        return [a for a in self.arms if a.source is not None and a.target is not None]


def strength(record: RunRecord) -> float | None:
    """The parameter that says how strongly an arm holds on to the start; None where there is none."""
    for method in record.retention:
        cls = declared(str(method.get("method", "")))
        for key in method.get("strength") or (cls.strength if cls is not None else ()):
            value = method.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
    return None


def read_tradeoff(
    arms: Sequence[Arm], *, source: tuple[str, str], target: tuple[str, str], metric: str = "nats_per_token"
) -> TradeoffFigures:
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
    notes: list[str] = []
    read: list[tuple[Arm, RunRecord, Row | None, Row | None]] = []
    for arm in arms:
        if not arm.folder.exists():
            raise DataError(
                f"Expected the run folder of arm {arm.label!r} at {arm.folder.path}, but it has no run.json. Run that "
                f"arm first, or leave it out."
            )
        record = arm.folder.read()
        rows = [None if arm.kind == "start" else _row(arm, which, metric, notes) for which in (source, target)]
        if record.status != "finished":
            notes.append(f"{arm.label}: the run is {record.status} (stage: {record.stage}).")
        read.append((arm, record, rows[0], rows[1]))

    start = _start([(s, t) for _, _, s, t in read], notes)
    reference = next(
        ((arm, s, t) for arm, _, s, t in read if arm.kind == "direct" and s is not None and t is not None), None
    )
    if reference is None:
        notes.append(
            "No measured arm of direct fine-tuning is among them, so shares of its gain and loss cannot be given."
        )
    elif sum(arm.kind == "direct" for arm, *_ in read) > 1:
        notes.append(f"Shares are given against {reference[0].label}.")

    figures: list[ArmFigures] = []
    for arm, record, s, t in read:
        kept, lost = _shares(arm, s, t, reference, source, target, metric)
        figures.append(
            ArmFigures(
                arm=arm,
                record=record,
                method="starting model" if arm.kind == "start" else method_text(record.retention),
                source=s,
                target=t,
                seconds=duration(training_figures(record, _metrics(arm))["seconds"]),
                distance=_distance(record),
                strength=strength(record),
                kept=kept,
                lost=lost,
                reading=_reading(arm, record, s, t, kept, lost, reference),
            )
        )
    direct = next((f for f in figures if reference is not None and f.arm is reference[0]), None)
    return TradeoffFigures(
        source=source,
        target=target,
        metric=metric,
        arms=figures,
        start=start,
        direct=direct,
        verdict=_verdict(figures, direct),
        notes=list(dict.fromkeys(notes)),
    )


def _metrics(arm: Arm) -> list[dict[str, Any]]:
    try:
        return arm.folder.metrics()
    except DataError:
        return []


def _row(arm: Arm, which: tuple[str, str], metric: str, notes: list[str]) -> Row | None:
    try:
        found = [c for c in arm.folder.comparisons() if (c.suite, c.name) == which]
    except (DataError, KeyError, TypeError) as error:
        notes.append(f"{arm.label}: its comparisons could not be read ({error}).")
        return None
    exact = [c for c in found if c.metric == metric] or [c for c in found if c.primary]
    if not exact:
        notes.append(f"{arm.label}: {which[0]}: {which[1]} was not compared with the start.")
        return None
    if exact[0].metric != metric:
        notes.append(
            f"{arm.label}: {which[0]}: {which[1]} has no {metric}; its primary metric {exact[0].metric} is shown."
        )
    return row(exact[0])


def _start(pairs: Sequence[tuple[Row | None, Row | None]], notes: list[str]) -> StartPoint | None:
    measured = [(s, t) for s, t in pairs if s is not None and t is not None]
    if not measured:
        return None
    s, t = measured[0]
    for other_s, other_t in measured[1:]:
        for one, other in ((s, other_s), (t, other_t)):
            if not math.isclose(one.raw.before, other.raw.before, rel_tol=1e-6, abs_tol=1e-9):
                notes.append(
                    f"The arms do not start from the same figure on {one.label}: {one.before} and {other.before}. "
                    f"They can hardly be compared."
                )
    return StartPoint(source=s.raw.before, target=t.raw.before, source_text=s.before, target_text=t.before)


def _distance(record: RunRecord) -> str:
    if not record.distance:
        return "not recorded"
    total = math.sqrt(math.fsum(d.l2**2 for d in record.distance))
    largest = max((d.relative for d in record.distance if math.isfinite(d.relative)), default=None)
    return f"{total:.3g}" + (f" (layers up to {percent(100 * largest, sign=False)})" if largest is not None else "")


# ----------------------------------------------------------------------------------------------------------- shares


_Reference = tuple[Arm, Row | None, Row | None]


def _shares(
    arm: Arm,
    s: Row | None,
    t: Row | None,
    reference: _Reference | None,
    source: tuple[str, str],
    target: tuple[str, str],
    metric: str,
) -> tuple[Share | None, Share | None]:
    if reference is None or arm is reference[0] or s is None or t is None:
        return None, None
    direct, direct_s, direct_t = reference
    assert direct_s is not None
    assert direct_t is not None
    kept = lost = None
    if direct_t.raw.gain > 0:
        kept = Share(
            value=100 * t.raw.gain / direct_t.raw.gain,
            interval=share_interval(arm, direct, target, t.raw, direct_t.raw),
        )
    if direct_s.raw.gain < 0:
        lost = Share(
            value=100 * s.raw.gain / direct_s.raw.gain,
            interval=share_interval(arm, direct, source, s.raw, direct_s.raw),
        )
    return kept, lost


def per_sample(
    folder: RunFolder, which: str, name: tuple[str, str], metric: str
) -> dict[tuple[str, int], tuple[float, float]] | None:
    """(numerator, denominator) of a metric for every document, or None where the rows are not there or not understood.

    The metric is the ratio of the sums: nats over tokens, bits over bytes, score over one. Documents that occur twice
    are told apart by their place.
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
    """95 % interval, in percent, of the arm's change over direct's; None where it cannot be had (see the module
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
    found = share_over_samples(*columns)
    return None if found is None else (100 * found[0], 100 * found[1])


# ------------------------------------------------------------------------------------------------------------ prose


def _amount(r: Row, word: str) -> str:
    return f"{word} by {number(abs(r.raw.gain), decimals_for(r.raw.interval))} {r.unit}"


def _changed(r: Row) -> str:
    """`improved by 0.123 nats/token`, with "within noise" where the interval includes zero."""
    if r.raw.gain == 0:
        return "did not change"
    text = _amount(r, "improved" if r.raw.gain > 0 else "got worse")
    return text + (" (within noise)" if r.verdict == "within noise" else "")


def _reading(
    arm: Arm,
    record: RunRecord,
    s: Row | None,
    t: Row | None,
    kept: Share | None,
    lost: Share | None,
    reference: _Reference | None,
) -> str:
    if arm.kind == "start":
        return f"{arm.label}: the starting model, before any training."
    if s is None or t is None:
        side = "neither side" if s is None and t is None else "only one side"
        return (
            f"{arm.label}: {side} was compared with the start (the run is {record.status}), so there is nothing "
            f"to read yet."
        )
    if reference is None or arm is reference[0]:
        return f"{arm.label}: the target {_changed(t)}; the source {_changed(s)}."
    if kept is None:
        first = (
            f"{arm.label}: direct fine-tuning gained nothing on the target, so there is no gain to keep a share "
            f"of; here the target {_changed(t)}"
        )
    elif t.raw.gain <= 0:
        first = f"{arm.label} kept none of the target gain of direct fine-tuning: the target {_changed(t)}"
    else:
        first = f"{arm.label} kept {kept.text} of the target gain of direct fine-tuning"
    if s.raw.gain >= 0:
        second = f"lost nothing on the source, which {_changed(s)}" if s.raw.gain > 0 else "lost nothing on the source"
        return f"{first} and {second}."
    noise = ", a loss within noise" if s.verdict == "within noise" else ""
    if lost is None:
        return f"{first}; the source {_changed(s)}, where direct fine-tuning lost nothing."
    return f"{first} while losing {lost.text} of what direct lost{noise}."


def _verdict(figures: Sequence[ArmFigures], direct: ArmFigures | None) -> str:
    """The page's lead: what direct fine-tuning did, and the arm with the largest difference of kept and lost share."""
    if direct is None or direct.source is None or direct.target is None:
        measured = sum(f.source is not None and f.target is not None for f in figures)
        return (
            f"{measured} of {len(figures)} arms are measured; without direct fine-tuning among them there is "
            f"nothing to hold them against."
        )
    lead = f"Direct fine-tuning: the target {_changed(direct.target)}, the source {_changed(direct.source)}."
    both = [f for f in figures if f.kept is not None and f.lost is not None and f.kept.value > 0]
    if not both:
        return lead
    best = max(both, key=lambda f: f.margin)
    if best.margin <= 0:
        return f"{lead} No other arm kept a larger share of that gain than it lost of what direct lost."
    return f"{lead} The best balance: {best.reading}"


def side_title(which: tuple[str, str]) -> str:
    return f"{group_title(which[0])}: {which[1]}"


def table_cells(f: ArmFigures) -> dict[str, str]:
    """The cells of an arm's row, by column title, for page and terminal alike."""
    s, t = f.source, f.target
    return {
        "Arm": f.arm.label,
        "Source after": s.after if s else "not measured",
        "Source change": s.difference if s else "",
        "Source interval": s.interval if s else "",
        "Target after": t.after if t else "not measured",
        "Target change": t.difference if t else "",
        "Target interval": t.interval if t else "",
        "Gain kept": f.kept.text if f.kept else "",
        "Loss share": f.lost.text if f.lost else "",
        "Time": f.seconds,
        "Distance (L2)": f.distance,
    }
