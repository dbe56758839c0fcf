"""`report.html` of a sequence study (Soup to Go), and what the terminal prints: what each way of training keeps of the
earlier tasks and learns of the last one.

Reads the record, nothing else; it can be written at any moment and names what is missing. Axes of losses run downwards,
so that better is up and to the right on every plot.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.records.figure import Figure
from holdfast.records.measure import Measure, with_interval
from holdfast.records.metrics import is_share
from holdfast.records.sequence import (
    MERGE,
    MULTITASK,
    SEQUENTIAL,
    SINGLE,
    ArmResult,
    SequenceRecord,
    TaskScore,
)
from holdfast.reports import blocks as b
from holdfast.reports.blocks import Bullets, Facts, Fold, Panel, Paragraph, Section, Table, Text, Tile, chip, sub
from holdfast.reports.charts import COLOURS, DASHES, Axis, Chart, Col, Mark, Rule, Value, tabulate
from holdfast.reports.format import count, duration, flatten, hardware_rows, listed, plural, significant

if TYPE_CHECKING:
    from rich.console import Console

STATUS_TONES = {"finished": "good", "running": "warn", "interrupted": "warn", "failed": "bad"}
STATE_TONES = {"complete": "good", "running": "warn", "waiting": "", "failed": "bad"}
SYMBOLS = {SEQUENTIAL: "square", MULTITASK: "star", "replay": "diamond", MERGE: "triangle-up"}
"""As in the paper's figures."""
MEASURES = {
    "average_accuracy": "Average",
    "backward_transfer": "Backward transfer",
    "forgetting": "Forgetting",
    "forward_transfer": "Forward transfer",
}
LOST = {"average_accuracy": False, "backward_transfer": False, "forgetting": True, "forward_transfer": False}
"""Of `MEASURES`, those of which less is better."""
FAR = 1000.0
"""Times the smallest distance, beyond which distances are drawn on a logarithmic axis: an arm has diverged."""
MOST_TASKS = 4
"""That a page draws one by one."""
MOST_CURVES = 12
"""That a plot of losses along training shows; of more arms the best of each kind."""


def sequence_page(record: SequenceRecord) -> b.Page:
    """The page as blocks."""
    return b.Page(
        tab=f"{record.name}: holdfast sequence report",
        eyebrow="holdfast sequence report",
        title=record.name,
        lead=lead(record),
        status=(record.status, STATUS_TONES.get(record.status, "")),
        details=" · ".join(
            [
                " or ".join(" → ".join(o) for o in record.orders),
                plural(len({a.arm for a in record.arms}), "arm"),
                plural(len(record.seeds), "seed"),
                record.created,
            ]
        ),
        blocks=[
            *b.problems(
                "Some models failed.", [f"{m.label}: {m.reason}" for m in record.models if m.state == "failed"]
            ),
            b.Tiles(_tiles(record)) if _tiles(record) else None,
            *(_order(record, order) for order in record.orders),
            _models(record),
            b.notes(record.notes, anchor="notes"),
            Section("How to read this page", [Panel([Bullets(_reading(record))], "card")], anchor="reading"),
            Section("The study", [Panel([Facts(_facts(record))], "card"), _configuration(record)]),
        ],
        footer="Written by holdfast from the study's records.",
    )


def print_sequence(record: SequenceRecord, folder: str | Path, console: Console | None = None) -> None:
    """Prints the answer, the scores of every arm, and where the page is.

    Args:
        record: finished or not.
        folder: the study's.
        console: where to print; the terminal by default.
    """
    from holdfast.reports.terminal import Printer

    shown: list[Any] = [Paragraph(f"{record.name} ({record.status})", "strong"), Paragraph(lead(record)), Paragraph("")]
    for order in record.orders:
        held = [a for a in record.of(order) if a.scores]
        if held:
            shown += [Paragraph(" → ".join(order), "strong"), _scores(record, held, _some(order)), Paragraph("")]
            shown += [Paragraph(text) for text in _left_out(order)]
    Printer(console).show([*shown, Paragraph(f"Page: {Path(folder) / 'report.html'}")])


# --------------------------------------------------------------------------------------------------------------- answer


def lead(record: SequenceRecord) -> str:
    """The answer in a sentence or two: of the first order, what sequential fine-tuning forgets, and which arm forgets
    least among those that learn the last task nearly as well."""
    order = record.orders[0]
    arms = {a.arm: a for a in record.of(order)}
    sequential = next((a for a in arms.values() if a.kind == SEQUENTIAL), None)
    if sequential is None or not sequential.scores:
        left = sum(m.state != "complete" for m in record.models)
        return f"Not measured yet: {plural(left, 'model')} of {len(record.models)} still to be made."
    some = _some(order)
    last, earlier = order[-1], some[:-1]
    single = next((a for a in arms.values() if a.kind == SINGLE and a.scores), None)
    lost = []
    for task in (t for t in earlier if t in sequential.scores):
        before = f" ({_figure(record, task, single.scores[task])} trained alone)" if single else ""
        lost.append(f"{_figure(record, task, sequential.scores[task])} on {task}{before}")
    tasks = listed(list(order)) if some == list(order) else f"{len(order)} tasks, {order[0]} to {last},"
    text = (
        f"After {tasks} one after the other, sequential fine-tuning scores {', '.join(lost)} and "
        f"{_figure(record, last, sequential.scores[last])} on {last}."
    )
    best, of = _best(record, arms.values(), order)
    if best is not None:
        kept = ", ".join(f"{_figure(record, t, best.scores[t])} on {t}" for t in some)
        text += (
            f" Of the arms that train one task after the other without old data, {of} learn {last} nearly as well; of "
            f"these {best.arm} keeps most: {kept}." + (" As the best of several it is flattered." if of > 1 else "")
        )
    such = "such arms" if best is not None else f"arms without old data that learn {last} nearly as well"
    return text + _source_kept(record, sequential, order, such)


def _source_kept(record: SequenceRecord, sequential: ArmResult, order: Sequence[str], such: str) -> str:
    """What the first entry of the source comes to, and what the best of `such` arms keeps; empty without one."""
    for name, about in record.source.items():
        after = _at_the_end(sequential, name)
        if after is None:
            return ""
        start = _texts(about, Figure(value=about.before))[0]
        text = f" Of {name}, {start} at the start, sequential fine-tuning leaves {' '.join(_texts(about, after))}"
        rivals = {
            a.arm: e for a in _rivals(record, record.of(list(order)), order) if (e := _at_the_end(a, name)) is not None
        }
        if not rivals:
            return f"{text}."
        best = (max if about.higher_is_better else min)(rivals, key=lambda arm: rivals[arm].value)
        of = f"the best of {len(rivals)} {such}, {best}," if len(rivals) > 1 else best
        return f"{text}; {of} {' '.join(_texts(about, rivals[best]))}."
    return ""


def _at_the_end(arm: ArmResult, name: str) -> Figure | None:
    held = arm.source.get(name) or [None]
    return held[-1]


MOST_LOST = 0.25
"""Of what sequential fine-tuning learns of the last task, that an arm of the headline may learn less."""


def _best(record: SequenceRecord, arms: Any, order: Sequence[str]) -> tuple[ArmResult | None, int]:
    """The arm that keeps most of the earlier tasks, mean over them, among the rivals; and of how many."""
    held = [a for a in _rivals(record, arms, order) if all(t in a.against for t in order[:-1])]
    if not held or len({record.tasks[t].unit for t in order[:-1]}) > 1:
        return None, 0
    return max(held, key=lambda a: statistics.fmean(a.against[t].value for t in order[:-1])), len(held)


def _rivals(record: SequenceRecord, arms: Any, order: Sequence[str]) -> list[ArmResult]:
    """Arms without old data that learn the last task nearly as well as sequential fine-tuning."""
    about, sequential = record.tasks[order[-1]], next(a for a in arms if a.kind == SEQUENTIAL)
    learnt = abs(sequential.scores[order[-1]].value - about.before)
    return [
        a
        for a in arms
        if order[-1] in a.against
        and a.against[order[-1]].value >= -MOST_LOST * learnt
        and a.kind != SEQUENTIAL
        and not a.old_data
    ]


def _figure(record: SequenceRecord, task: str, estimate: Figure) -> str:
    text, interval = _texts(record.tasks[task], estimate)
    return f"{text} {interval}".rstrip()


def _texts(about: TaskScore, estimate: Figure, *, sign: bool = False) -> tuple[str, str]:
    return _measure(about).texts(estimate, sign=sign)


def _measure(about: TaskScore) -> Measure:
    share = is_share(about.unit, values=[about.before])
    return Measure(name=about.name, unit=about.unit, share=share, higher_is_better=about.higher_is_better)


def _tiles(record: SequenceRecord) -> list[Tile]:
    order = record.orders[0]
    sequential = next((a for a in record.of(order) if a.kind == SEQUENTIAL and a.scores), None)
    if sequential is None:
        return []
    tiles = []
    for task in _some(order):
        text, interval = _texts(record.tasks[task], sequential.scores[task])
        tiles.append(Tile(f"{task} after all tasks, sequential", text, interval or "no interval: one seed"))
    return tiles


# ------------------------------------------------------------------------------------------------------------- an order


def _order(record: SequenceRecord, order: list[str]) -> Section | None:
    arms = [a for a in record.of(order) if a.scores]
    if not arms:
        return None
    some = _some(order)
    charts = [_plane(record, arms, task, order[-1]) for task in some[:-1]]
    along = [_along(record, arms, order, name, about) for name, about in record.source.items()]
    shown: list[Any] = [
        *b.side_by_side(charts),
        Panel([_scores(record, arms, some), *map(Paragraph, _left_out(order))], "card"),
        *b.side_by_side([c for c in (*along, *_chains(record, arms, order)) if c is not None]),
        *_forgetting_curves(record, arms, order, some),
        _distances(record, arms, order),
        _measures(arms),
        *(_matrices(arms, order)),
    ]
    return Section(" → ".join(order), [s for s in shown if s is not None], anchor="order-" + "-".join(order))


def _some(order: Sequence[str]) -> list[str]:
    """All tasks of a short chain; of a long one the first, one in the middle and the last two, the others being in the
    matrix."""
    if len(order) <= MOST_TASKS:
        return list(order)
    return [order[0], order[len(order) // 2 - 1], order[-2], order[-1]]


def _left_out(order: Sequence[str]) -> list[str]:
    """Which tasks of a long chain are not among `_some`, in a sentence."""
    others = [task for task in order if task not in _some(order)]
    return [f"Not shown here: {listed(others)}; see the page's tables of tasks by stage."] if others else []


def _along(
    record: SequenceRecord, arms: Sequence[ArmResult], order: Sequence[str], name: str, about: TaskScore
) -> Chart | None:
    """What the base knows, after each task."""
    factor = 100.0 if is_share(about.unit, values=[about.before]) else 1.0
    lines = []
    for arm in _best_of_each(record, arms, order):
        after = arm.source.get(name, [])
        if len(after) == len(order) and arm.kind != SINGLE and all(e is not None for e in after):
            lines.append((arm.arm, [about.before, *(e.value for e in after if e is not None)]))
    unit = "%" if factor == 100 else about.unit
    direction = "" if about.higher_is_better else ", lower is better"
    return _stages(f"{name} along the tasks", lines, order, factor, f"{name} ({unit}{direction})")


def _chains(record: SequenceRecord, arms: Sequence[ArmResult], order: Sequence[str]) -> list[Chart | None]:
    """What is learnt of each task when it comes, and what is left of all before it."""
    first = record.tasks[order[0]]
    if len(order) <= 2:
        return []
    sign = 1.0 if first.higher_is_better else -1.0
    factor = 100.0 if is_share(first.unit, values=[first.before]) else 1.0
    learnt, left = [], []
    for arm in _best_of_each(record, arms, order):
        if len(arm.matrix) == len(order) + 1:
            learnt.append((arm.arm, [sign * arm.matrix[k][k - 1] for k in range(1, len(order) + 1)]))
            means = [statistics.fmean(arm.matrix[k][: k - 1]) for k in range(2, len(order) + 1)]
            left.append((arm.arm, [sign * m for m in means]))
    unit = ("%" if factor == 100 else first.unit) + ("" if first.higher_is_better else ", lower is better")
    return [
        _stages("Each task when it was trained", learnt, order, factor, f"score of the task ({unit})", first=1),
        _stages("All tasks before", left, order, factor, f"mean of earlier tasks ({unit})", first=2),
    ]


def _stages(
    title: str,
    lines: Sequence[tuple[str, list[float]]],
    order: Sequence[str],
    factor: float,
    axis: str,
    *,
    first: int = 0,
) -> Chart | None:
    """Arms along the stages of a chain; stage 0 is the base."""
    if not lines:
        return None
    rows: list[dict[str, Any]] = [
        {
            "arm": arm,
            "x": list(range(first, first + len(values))),
            "y": [factor * v for v in values],
            "end": factor * values[-1],
        }
        for arm, values in lines
    ]
    names = ["base", *order]
    return Chart(
        title=title,
        rows=rows,
        columns=[Col("Arm", "arm", numeric=False), Col("At the end", "end")],
        marks=_curve_marks(rows),
        x=Axis(
            title="after the task",
            ticks=[(t, names[t]) for t in range(first, len(names))],
            range=(first - 0.5, len(names) - 0.5),  # names at the very ends leave a phone no room
        ),
        y=Axis(title=axis),
        caption="Mean over the seeds.",
        legend=True,
        height=max(360, 260 + 21 * len(lines)),
    )


def _curve_marks(rows: Sequence[dict[str, Any]]) -> list[Mark]:
    """A line for each arm."""
    return [
        Mark(
            kind="curves",
            rows=[row],
            name=row["arm"],
            colour=COLOURS[i % len(COLOURS)],
            dash=DASHES[i // len(COLOURS) % len(DASHES)],
        )
        for i, row in enumerate(rows)
    ]


def _value(record: SequenceRecord, task: str, estimate: Figure) -> Value:
    measure = _measure(record.tasks[task])
    ends = measure.ends(estimate)
    low, high = (measure.factor * end for end in ends) if ends else (None, None)
    text, interval = measure.texts(estimate)
    return Value(value=measure.factor * estimate.value, low=low, high=high, text=text, interval=interval)


def _axis(record: SequenceRecord, task: str, what: str) -> Axis:
    about = record.tasks[task]
    unit = "%" if is_share(about.unit, values=[about.before]) else about.unit
    more = {} if about.higher_is_better else {"autorange": "reversed"}
    return Axis(title=f"{what}: {task} ({about.name}, {unit})", more=more)


def _plane(record: SequenceRecord, arms: Sequence[ArmResult], old: str, new: str) -> Chart:
    """An earlier task against the last one: the paper's figures 2 to 4."""
    single = next((a for a in arms if a.kind == SINGLE), None)
    held = [a for a in arms if a.kind != SINGLE and old in a.scores and new in a.scores]
    rows: list[dict[str, Any]] = [
        {
            "arm": a.arm,
            "x": _value(record, new, a.scores[new]),
            "y": _value(record, old, a.scores[old]),
            "kind": a.kind,
        }
        for a in held
    ]
    base = {t: Figure(value=record.tasks[t].before) for t in (new, old)}
    rows.append({"arm": "base", "x": _value(record, new, base[new]), "y": _value(record, old, base[old]), "kind": ""})
    marks = [Mark(where={"kind": ""}, name="base", colour="muted", symbol="x")]
    by_arm = {r["arm"]: r for r in rows}
    for kind in dict.fromkeys(a.kind for a in held):
        for place, (name, mine) in enumerate(_curves_of([a for a in held if a.kind == kind])):
            marks.append(
                Mark(
                    kind="line" if len(mine) > 1 and kind in {a.kind for a in held if a.retention} else "points",
                    rows=[by_arm[a.arm] for a in mine],
                    name=", ".join([_kind_name(kind, arms), *name]),
                    colour=_colour(kind, arms),
                    symbol=_symbol(kind),
                    dash=DASHES[place % len(DASHES)],
                )
            )
    rules = []
    if single is not None:
        rules += [Rule(x=_value(record, new, single.scores[new]).value)] if new in single.scores else []
        rules += [Rule(y=_value(record, old, single.scores[old]).value)] if old in single.scores else []
    lines = " Dotted: each task trained alone." if rules else ""
    return Chart(
        title=f"{old} kept against {new} learnt",
        rows=rows,
        columns=[Col("Arm", "arm", numeric=False), Col(new, "x"), Col(old, "y")],
        marks=marks,
        rules=rules,
        x=_axis(record, new, "learnt"),
        y=_axis(record, old, "kept"),
        caption=f"Up and to the right is better. Bars: 95 % intervals over seeds and samples.{lines}",
        height=420,
        legend=True,
    )


def _curves_of(arms: Sequence[ArmResult]) -> list[tuple[list[str], list[ArmResult]]]:
    """Arms of one kind as curves, each along the parameter that has most values; a curve for each combination of what
    else their labels say, of which the curve's name has what differs."""
    given = [{k: v for m in a.retention for p in m.values() for k, v in (p or {}).items()} for a in arms]
    values = {k: {str(g.get(k)) for g in given} for k in dict.fromkeys(k for g in given for k in g)}
    along = max(values, key=lambda k: len(values[k]), default="")
    if not along or not all(isinstance(g.get(along), (int, float)) for g in given):
        return [([], [a]) for a in arms] if len(values) > 1 else [([], list(arms))]
    curves: dict[tuple[str, ...], list[tuple[float, ArmResult]]] = {}
    for arm, one in zip(arms, given, strict=True):
        rest = [p for p in arm.arm.split(", ")[1:] if not p.startswith(f"{along.replace('_', ' ')} ")]
        curves.setdefault(tuple(rest), []).append((float(one[along]), arm))
    common = set.intersection(*map(set, curves))
    return [
        ([part for part in rest if part not in common], [a for _, a in sorted(curve, key=lambda pair: pair[0])])
        for rest, curve in curves.items()
    ]


def _kind_name(kind: str, arms: Sequence[ArmResult]) -> str:
    first = next(a.arm for a in arms if a.kind == kind)
    return {SEQUENTIAL: "sequential", MERGE: "merges"}.get(kind, first.split(",")[0])


def _colour(kind: str, arms: Sequence[ArmResult]) -> str:
    """One a kind, the same on every plot of an order."""
    kinds = list(dict.fromkeys(a.kind for a in arms if a.kind not in (SINGLE, MERGE)))
    return "muted" if kind == MERGE else COLOURS[kinds.index(kind) % len(COLOURS)]


def _symbol(kind: str) -> str:
    return SYMBOLS.get(kind, "circle")


def _scores(record: SequenceRecord, arms: Sequence[ArmResult], order: Sequence[str]) -> Table:
    def score(task: str) -> Any:
        return lambda arm: _cell(record, task, arm.scores.get(task))

    def better(task: str) -> Any:
        return lambda arm: _cell(record, task, arm.against.get(task), sign=True)

    base = ArmResult(
        arm="base",
        kind="",
        strength=None,
        order=list(order),
        models=[],
        scores={t: Figure(value=record.tasks[t].before) for t in order},
    )
    columns = [Col("Arm", "arm", numeric=False, wide=True)]
    columns += [Col(_title(record, t), score(t)) for t in order]
    columns += [Col((f"{t}, better", sub("than sequential by")), better(t)) for t in order]
    return tabulate([base, *arms], columns)


def _title(record: SequenceRecord, task: str) -> Text:
    about = record.tasks[task]
    return f"{task}: {about.name}", None if about.higher_is_better else sub("(lower is better)")


def _cell(record: SequenceRecord, task: str, estimate: Figure | None, *, sign: bool = False) -> Any:
    if estimate is None:
        return ""
    text, interval = _texts(record.tasks[task], estimate, sign=sign)
    return b.figure(text, interval)


def _distances(record: SequenceRecord, arms: Sequence[ArmResult], order: Sequence[str]) -> Chart | None:
    """The distance to the model before the last task against what is kept of the first: the paper's figure 5."""
    old = order[-2]
    held = [a for a in arms if a.distance is not None and old in a.scores]
    if len(held) < 2:
        return None
    rows = [
        {
            "arm": a.arm,
            "x": Value(
                value=d.value,
                low=d.interval[0] if d.interval else None,
                high=d.interval[1] if d.interval else None,
                text=significant(d.value),
            ),
            "y": _value(record, old, a.scores[old]),
            "kind": a.kind,
        }
        for a in held
        for d in ([a.distance] if a.distance is not None else [])
    ]
    moved = [a.distance.value for a in held if a.distance is not None]
    return Chart(
        title="Distance and memory",
        rows=rows,
        columns=[Col("Arm", "arm", numeric=False), Col("Distance", "x"), Col(old, "y")],
        marks=[
            Mark(where={"kind": kind}, name=_kind_name(kind, arms), colour=_colour(kind, arms), symbol=_symbol(kind))
            for kind in dict.fromkeys(a.kind for a in held)
        ],
        legend=True,
        x=Axis(
            title=f"L2 distance to the model after {order[-2]}",
            log=min(moved) > 0 and max(moved) > FAR * min(moved),
        ),
        y=_axis(record, old, "kept"),
        caption="The less the weights move, the more is kept? Bars: 95 % intervals.",
    )


def _best_of_each(record: SequenceRecord, arms: Sequence[ArmResult], order: Sequence[str]) -> list[ArmResult]:
    """All arms, or where they are too many for a plot of each kind the one with the largest part of what training each
    task alone gains, all tasks together."""
    single = next((a for a in arms if a.kind == SINGLE), None)
    if len(arms) <= MOST_CURVES or single is None:
        return list(arms)

    def gained(arm: ArmResult) -> float:
        parts = []
        for task in (t for t in order if t in arm.scores and t in single.scores):
            before, learnt = record.tasks[task].before, single.scores[task].value
            parts.append((arm.scores[task].value - before) / (learnt - before) if learnt != before else 0.0)
        return sum(parts) if len(parts) == len(order) else -math.inf

    kinds = dict.fromkeys((a.kind, a.merge.get("method")) for a in arms)
    return [max((a for a in arms if (a.kind, a.merge.get("method")) == k), key=gained) for k in kinds]


def _forgetting_curves(
    record: SequenceRecord, arms: Sequence[ArmResult], order: Sequence[str], some: Sequence[str]
) -> list[Chart]:
    """An earlier task's held-out loss along later training: the paper's figures 8 and 9."""
    models = {(m.name, m.seed): m for m in record.models}
    arms, chosen_arms = _best_of_each(record, arms, order), len(arms) > MOST_CURVES
    charts = []
    for place, task in ((p, t) for p, t in enumerate(order[:-1]) if t in some):
        rows: list[dict[str, Any]] = []
        for arm in arms:
            chosen = arm.models[place + 1 :] if len(arm.models) == len(order) else []
            if arm.kind == SINGLE:
                chosen = arm.models[-1:]  # trained from the base, it never saw the task
            xs: list[float] = []
            ys: list[float] = []
            for stage, name in enumerate(chosen):
                curves = [models[name, s].curves.get(task, []) for s in record.seeds if (name, s) in models]
                curves = [c for c in curves if c]
                if not curves:
                    continue
                offset = stage if arm.kind != SINGLE else len(order) - 2 - place
                xs += [offset + x for x, _ in curves[0]]
                ys += [statistics.fmean(ys_) for ys_ in zip(*([y for _, y in c] for c in curves), strict=False)]
            if len(xs) > 1 and len(xs) == len(ys):
                label = f"never saw {task}" if arm.kind == SINGLE else arm.arm
                rows.append({"arm": label, "x": xs, "y": ys, "end": ys[-1]})
        if not rows:
            continue
        charts.append(
            Chart(
                title=f"{task} while later tasks are trained",
                rows=rows,
                columns=[Col("Arm", "arm", numeric=False), Col("Loss at the end", "end")],
                marks=_curve_marks(rows),
                x=Axis(title=f"tasks after {task}"),
                y=Axis(title="held-out loss, nats per token"),
                caption="Mean over the seeds."
                + (" Of each method the arm that ends with most of all tasks." if chosen_arms else ""),
                legend=True,
                height=360,
            )
        )
    return charts


def _measures(arms: Sequence[ArmResult]) -> Panel | None:
    held = [a for a in arms if a.measures]
    if not held:
        return None

    def cell(measure: str) -> Any:
        return lambda arm: _plain(arm.measures.get(measure))

    def against(measure: str) -> Any:
        return lambda arm: _plain(arm.measures_against.get(measure), sign=True)

    columns = [Col("Arm", "arm", numeric=False, wide=True), *(Col(t, cell(m)) for m, t in MEASURES.items())]
    columns += [Col(f"{MEASURES[m]} - sequential", against(m)) for m in ("average_accuracy", "forgetting")]
    return Panel([tabulate(held, columns)], "card")


def _plain(estimate: Figure | None, *, sign: bool = False) -> Any:
    if estimate is None:
        return ""
    text, interval = with_interval(estimate.value, estimate.interval, sign=sign)
    return b.figure(text, interval)


def _matrices(arms: Sequence[ArmResult], order: Sequence[str]) -> list[Fold]:
    columns = [Col("After", "stage", numeric=False), *(Col(task, task) for task in order)]
    return [
        Fold(
            f"Tasks by stage: {arm.arm}",
            [
                tabulate(
                    [
                        {"stage": s, **dict(zip(order, line, strict=True))}
                        for s, line in zip(stages, arm.matrix, strict=True)
                    ],
                    columns,
                )
            ],
        )
        for arm in arms
        for stages in [["base", *order]]
        if arm.matrix
    ]


# ---------------------------------------------------------------------------------------------------------- small print


def _models(record: SequenceRecord) -> Section:
    columns = [
        Col("Model", "label", numeric=False, wide=True),
        Col("Seed", lambda m: str(m.seed)),
        Col("State", lambda m: chip(m.state, STATE_TONES.get(m.state, "")), numeric=False),
        Col("Tokens", lambda m: count(m.tokens) if m.tokens else ""),
        Col("Time", lambda m: duration(m.seconds) if m.seconds else ""),
        Col("Distance", lambda m: "" if m.distance is None else significant(m.distance)),
    ]
    return Section("Models", [Panel([tabulate(record.models, columns)], "card")], anchor="models")


def _reading(record: SequenceRecord) -> list[str]:
    found = [
        "The first task is trained in the same way in every arm, so its model is made once.",
        "An arm's methods hold on to the model after the task before; replay draws on all earlier tasks' data.",
        "Better than sequential: paired by seed and sample, above 0 is better, whatever the task's metric.",
        "Forgetting is the best score of a task before the last stage minus its last one, mean over earlier tasks.",
        "Multitask training has all data at once and is the upper line; merges are of the single-task models.",
        "With one seed intervals cover evaluated samples alone. No figure is corrected for the number of arms.",
    ]
    if any(not t.higher_is_better for t in record.tasks.values()):
        found.append("In the table of tasks by stage losses are negative, so that higher is better everywhere.")
    return found


def _facts(record: SequenceRecord) -> list[tuple[str, Any]]:
    seconds = sum(m.seconds for m in record.models)
    return [
        ("Status", record.status),
        ("Begun", record.created),
        *([("Finished", record.finished)] if record.finished else []),
        ("Seeds", listed([str(s) for s in record.seeds])),
        ("Computing", duration(seconds) if seconds else "none yet"),
        *hardware_rows(record.hardware),
        *((name, version) for name, version in record.versions.items()),
    ]


def _configuration(record: SequenceRecord) -> Fold | None:
    return Fold("Configuration", [Facts(flatten(record.config))]) if record.config else None
