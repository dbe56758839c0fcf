"""The page of a sequence study (Soup to Go), and what the terminal prints: what each way of
training keeps of the earlier tasks and learns of the last one. Axes of losses run downwards, so
that better is up and to the right."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.records.figure import Figure
from holdfast.records.measure import Measure
from holdfast.records.sequence import (
    MERGE,
    SEQUENTIAL,
    SINGLE,
    ArmResult,
    SequenceModel,
    SequenceRecord,
)
from holdfast.reports import blocks as b
from holdfast.reports.charts import COLOURS, Axis, Chart, Rule, Value
from holdfast.reports.format import join_and, plural, significant
from holdfast.reports.study_page import (
    cell,
    grid,
    jobs_section,
    lines,
    measure_axis,
    print_study,
    section,
    steps_axis,
    study_page,
)

if TYPE_CHECKING:
    from rich.console import Console

MEASURES = {
    "average_accuracy": "Average",
    "backward_transfer": "Backward transfer",
    "forgetting": "Forgetting",
    "forward_transfer": "Forward transfer",
}
MOST_TASKS = 4
"""That a page draws one by one."""
MOST_LOST = 0.25
"""Of what sequential fine-tuning learns of the last task, that an arm of the headline may learn
less."""
READING = (
    "All arms train the first task in the same way, so its model is trained only once.",
    "At each task, the reference of a retention method is the model that the previous task "
    "produced. Replay uses the data of all earlier tasks.",
    "Better than sequential: the difference from sequential fine-tuning, paired by seed and "
    "sample. A value above 0 is better, whatever the task's metric.",
    "Forgetting: a task's best score before the last stage, minus its score after the last stage, "
    "averaged over earlier tasks. In the tables of tasks by stage, a cross-entropy loss has a minus "
    "sign, so that higher is better everywhere.",
    "Multitask training uses the data of all tasks at once, and its score is the upper bound. "
    "Merges combine the single-task models.",
    "With one seed, intervals cover evaluated samples only. Intervals are not corrected for the "
    "number of arms.",
)


def sequence_page(record: SequenceRecord) -> b.Page:
    """The page as blocks."""
    orders = " or ".join(" → ".join(order) for order in record.orders)
    arms = {arm.arm for arm in record.arms}
    details = [orders, plural(len(arms), "arm"), plural(len(record.seeds), "seed")]
    more: dict[b.Text, Any] = {"Seed": lambda model: str(model.seed)}
    more["Distance"] = lambda model: "" if model.distance is None else significant(model.distance)
    sections: list[b.Block | None] = [_order_section(record, order) for order in record.orders]
    sections.append(jobs_section("Models", record.models, more))
    return study_page(
        record,
        "sequence report",
        summary(record),
        sections,
        reading=READING,
        jobs=record.models,
        details=details,
    )


def print_sequence(
    record: SequenceRecord, folder: str | Path, console: Console | None = None
) -> None:
    """Prints the answer, the scores of every arm, and where the page is.

    Args:
        record: finished or not.
        folder: the study's.
        console: where to print; the terminal by default.
    """
    blocks: list[b.Block] = []
    for order in record.orders:
        if arms := _scored_arms(record, order):
            blocks += [b.Paragraph(" → ".join(order), "strong"), _score_table(record, arms, order)]
            blocks += _not_shown(order)
    print_study(record, summary(record), blocks, folder, console)


def _measure(record: SequenceRecord, name: str) -> Measure:
    """How the score of a task or of its entry reads, or of what should be kept beside the tasks."""
    is_learnt = name in record.tasks or name in record.entries
    about = record.score_of(name) if is_learnt else record.keep[name]
    return Measure.of(about, about.before)


def _scored_arms(record: SequenceRecord, order: list[str]) -> list[ArmResult]:
    return [arm for arm in record.of(order) if arm.scores]


def _first_of(arms: Sequence[ArmResult], kind: str) -> ArmResult | None:
    return next((arm for arm in arms if arm.kind == kind), None)


def _shown_tasks(order: Sequence[str]) -> list[str]:
    """All tasks of a short chain; of a long one the first, one in the middle and the last two, the
    others being in the matrix."""
    if len(order) <= MOST_TASKS:
        return list(order)
    return [order[0], order[len(order) // 2 - 1], order[-2], order[-1]]


def _not_shown(order: Sequence[str]) -> list[b.Block]:
    """Which tasks of a long chain are not among `_shown_tasks`."""
    others = [task for task in order if task not in _shown_tasks(order)]
    if not others:
        return []
    return [
        b.Paragraph(f"Not shown here: {join_and(others)}. See the page's tables of tasks by stage.")
    ]


# ------------------------------------------------------------------------------------------- answer


def summary(record: SequenceRecord) -> str:
    """Of the first order: what sequential fine-tuning forgets, and which arm without old data
    forgets least among those that learn the last task nearly as well."""
    order = record.orders[0]
    arms = _scored_arms(record, order)
    sequential = _first_of(arms, SEQUENTIAL)
    if sequential is None:
        left = sum(model.state != "complete" for model in record.models)
        return (
            f"Not measured yet: {plural(left, 'model')} of {len(record.models)} must still be made."
        )
    last = order[-1]
    learnt = abs(sequential.scores[last].value - record.tasks[last].before)
    rivals = []
    for arm in arms:
        if arm.old_data or arm.kind == SEQUENTIAL or last not in arm.against:
            continue
        if arm.against[last].value >= -MOST_LOST * learnt:
            rivals.append(arm)
    forgotten = _forgotten_sentence(record, sequential, _first_of(arms, SINGLE))
    best = _best_sentence(record, rivals, order)
    such = "such arms" if best else f"arms without old data that learn {last} nearly as well"
    return " ".join(
        filter(None, [forgotten, best, _keep_sentence(record, sequential, rivals, such)])
    )


def _forgotten_sentence(
    record: SequenceRecord, sequential: ArmResult, single: ArmResult | None
) -> str:
    """What sequential fine-tuning scores on the tasks, beside training each of them alone."""
    order = sequential.order
    tasks = _shown_tasks(order)
    scores = []
    for task in tasks:
        measure = _measure(record, task)
        text = f"{measure.text(sequential.scores[task])} on {task}"
        if single is not None and task != order[-1]:
            text += f" ({measure.text(single.scores[task])} trained alone)"
        scores.append(text)
    names = join_and(order) if tasks == order else f"{len(order)} tasks, {order[0]} to {order[-1]}"
    earlier = ", ".join(scores[:-1])
    return (
        f"After training on {names}, one after the other, sequential fine-tuning scores {earlier} "
        f"and {scores[-1]}."
    )


def _best_sentence(
    record: SequenceRecord, rivals: Sequence[ArmResult], order: Sequence[str]
) -> str:
    """The rival that keeps most of the earlier tasks, mean over them; "" where their units have
    none."""
    earlier = order[:-1]
    comparable = [arm for arm in rivals if set(earlier) <= set(arm.against)]
    if not comparable or len({record.tasks[task].unit for task in earlier}) > 1:
        return ""
    best = max(
        comparable, key=lambda arm: statistics.fmean(arm.against[task].value for task in earlier)
    )
    scores = []
    for task in _shown_tasks(order):
        scores.append(f"{_measure(record, task).text(best.scores[task])} on {task}")
    count = len(comparable)
    flattered = (
        " This result is optimistic, because this arm is the best of several." if count > 1 else ""
    )
    return (
        f"Some arms train one task after the other without old data. Of these, {count} learn "
        f"{order[-1]} nearly as well as sequential fine-tuning does. The one that keeps the "
        f"earlier tasks best is {best.arm}: {', '.join(scores)}.{flattered}"
    )


def _keep_sentence(
    record: SequenceRecord, sequential: ArmResult, rivals: Sequence[ArmResult], such: str
) -> str:
    """What the first entry of `keep` comes to, and what the best of `such` arms keeps; "" without
    one."""
    name = next(iter(record.keep), "")
    ends: dict[str, Figure] = {}
    for arm in (sequential, *rivals):
        stages = arm.keep.get(name)
        if stages and stages[-1] is not None:
            ends[arm.arm] = stages[-1]
    if sequential.arm not in ends:
        return ""
    measure = _measure(record, name)
    before = measure.texts(Figure(value=record.keep[name].before))[0]
    text = (
        f"Sequential fine-tuning takes {name} from {before} to "
        f"{measure.text(ends.pop(sequential.arm))}"
    )
    if not ends:
        return f"{text}."
    choose = max if measure.higher_is_better else min
    best = choose(ends, key=lambda arm: ends[arm].value)
    of = f"the best of {len(ends)} {such}, {best}," if len(ends) > 1 else best
    return f"{text}; {of} to {measure.text(ends[best])}."


# ----------------------------------------------------------------------------------------- an order


def _order_section(record: SequenceRecord, order: list[str]) -> b.Section | None:
    arms = _scored_arms(record, order)
    if not arms:
        return None
    earlier = _shown_tasks(order)[:-1]
    blocks: list[b.Block | None] = []
    for task in earlier:
        blocks.append(_plane(record, arms, task, order[-1]))
    blocks.append(_distance_chart(record, arms, order[0]))
    blocks += [_score_table(record, arms, order), *_not_shown(order)]
    for task in _shown_tasks(order):
        blocks.append(_entry_table(record, arms, task))
    for name in record.keep:
        blocks.append(_keep_chart(record, arms, name))
    for task in earlier:
        blocks.append(_loss_chart(record, arms, order, task))
    blocks.append(_measure_table(arms))
    blocks += [_matrix(arm) for arm in arms if arm.matrix]
    return section(" → ".join(order), *blocks, anchor="order-" + "-".join(order))


def _curve_name(arm: ArmResult) -> str:
    """What the arms of a curve have in common: the label without its strength."""
    if arm.kind == MERGE:
        return "merges"
    words = arm.arm.split(", ")
    for word in words:
        if arm.strength is not None and word.endswith(f" {arm.strength:g}"):
            words.remove(word)
            break
    return ", ".join(words)


def _curve_styles(arms: Sequence[ArmResult]) -> dict[str, dict[str, Any]]:
    """How curves are drawn, alike on all plots of an order."""
    colours = itertools.cycle(COLOURS)
    styles: dict[str, dict[str, Any]] = {"merges": {"kind": "points", "colour": "muted"}}
    for arm in arms:
        if (name := _curve_name(arm)) not in styles:
            styles[name] = {"colour": next(colours)}
    return styles


def _plane(record: SequenceRecord, arms: Sequence[ArmResult], old: str, new: str) -> Chart | None:
    """An earlier task against the last one: the paper's figures 2 to 4."""
    x, y = _measure(record, new), _measure(record, old)
    base_x, base_y = (Figure(value=record.tasks[task].before) for task in (new, old))
    rows = [{"line": "base", "arm": "base", "x": Value.of(base_x, x), "y": Value.of(base_y, y)}]
    styles = _curve_styles(arms) | {"base": {"colour": "muted", "symbol": "x"}}
    for arm in sorted(arms, key=lambda arm: arm.strength or 0.0):
        if arm.kind != SINGLE and old in arm.scores and new in arm.scores:
            value_x, value_y = Value.of(arm.scores[new], x), Value.of(arm.scores[old], y)
            rows.append({"line": _curve_name(arm), "arm": arm.arm, "x": value_x, "y": value_y})
    caption = "Up and to the right is better. Bars: 95 % intervals over seeds and samples."
    rules = []
    if (single := _first_of(arms, SINGLE)) is not None:
        caption += " Dotted lines: each task trained alone."
        rules += [Rule(x=Value.of(single.scores[new], x).value)] if new in single.scores else []
        rules += [Rule(y=Value.of(single.scores[old], y).value)] if old in single.scores else []
    learnt = measure_axis(x, f"learnt: {new}, {x.axis}")
    remembered = measure_axis(y, f"kept: {old}, {y.axis}")
    columns = {"arm": "Arm", "x": new, "y": old}
    return lines(
        f"{old} (kept) against {new} (learnt)",
        rows,
        learnt,
        remembered,
        columns=columns,
        styles=styles,
        rules=rules,
        caption=caption,
        height=420,
    )


def _distance_chart(record: SequenceRecord, arms: Sequence[ArmResult], old: str) -> Chart | None:
    """How far an arm's weights are from the model before, against what is kept: the paper's figure
    5, with all methods on it."""
    y, rows = _measure(record, old), []
    for arm in sorted(arms, key=lambda arm: arm.strength or 0.0):
        if arm.distance is not None and old in arm.scores:
            x, value = Value.of(arm.distance), Value.of(arm.scores[old], y)
            rows.append({"line": _curve_name(arm), "arm": arm.arm, "x": x, "y": value})
    moved = Axis(title="L2 distance to the model before the last task")
    remembered = measure_axis(y, f"kept: {old}, {y.axis}")
    columns = {"arm": "Arm", "x": "Distance", "y": old}
    return lines(
        f"distance of the weights against {old} (kept)",
        rows,
        moved,
        remembered,
        columns=columns,
        styles=_curve_styles(arms),
        caption="Figure 5 of the paper shows only SFA's arms and sequential fine-tuning.",
    )


def _figures(
    attribute: str, key: str, measure: Measure, *, sign: bool = False
) -> Callable[[ArmResult], b.Text]:
    """The cells of a column: one of the figures of each arm."""
    return lambda arm: cell(measure, getattr(arm, attribute).get(key), sign=sign)


def _score_table(record: SequenceRecord, arms: Sequence[ArmResult], order: list[str]) -> b.Table:
    """Scores of the tasks that are shown, and how much better than sequential fine-tuning."""
    before = {task: Figure(value=record.tasks[task].before) for task in order}
    base = ArmResult(arm="base", kind="", strength=None, order=order, scores=before)
    cells: dict[b.Text, Any] = {"Arm": "arm"}
    for task in _shown_tasks(order):
        measure = _measure(record, task)
        lower = None if measure.higher_is_better else b.sub("(lower is better)")
        cells[f"{task}: {measure.name}", lower] = _figures("scores", task, measure)
    for task in _shown_tasks(order):
        title = (f"{task}, better", b.sub("than sequential by"))
        cells[title] = _figures("against", task, _measure(record, task), sign=True)
    return grid([base, *arms], cells)


def _entry_table(record: SequenceRecord, arms: Sequence[ArmResult], task: str) -> b.Fold | None:
    """What else was measured of a task beside its score; None where nothing was."""
    entries = record.entries_of(task)
    if not entries:
        return None
    before = {key: Figure(value=record.entries[key].before) for key in entries}
    base = ArmResult(arm="base", kind="", strength=None, order=[], scores=before)
    cells: dict[b.Text, Any] = {"Arm": "arm"}
    for key in entries:
        measure, name = _measure(record, key), record.entries[key].name
        lower = None if measure.higher_is_better else b.sub("(lower is better)")
        cells[f"{name}: {measure.name}", lower] = _figures("scores", key, measure)
        title = (f"{name}, better", b.sub("than sequential by"))
        cells[title] = _figures("against", key, measure, sign=True)
    return b.Fold(f"{task}: its other entries", [grid([base, *arms], cells)])


def _keep_chart(record: SequenceRecord, arms: Sequence[ArmResult], name: str) -> Chart | None:
    """What the base knows, after each task."""
    measure = _measure(record, name)
    rows = []
    for arm in arms:
        after = [figure.value for figure in arm.keep.get(name, []) if figure is not None]
        if len(after) == len(arm.order) and arm.kind != SINGLE:
            values = [record.keep[name].before, *after]
            stages = list(range(len(values)))
            rows.append(
                {"line": arm.arm, "x": stages, "y": [measure.factor * value for value in values]}
            )
    return lines(
        f"{name} along the tasks",
        rows,
        steps_axis("after the task", ["base", *arms[0].order]),
        measure_axis(measure),
        columns={"line": "Arm", "end": "At the end"},
        caption="Mean over the seeds.",
    )


def _loss_chart(
    record: SequenceRecord, arms: Sequence[ArmResult], order: list[str], task: str
) -> Chart | None:
    """An earlier task's held-out loss along later training: the paper's figures 8 and 9."""
    later = len(order) - 1 - order.index(task)
    rows = []
    for arm in arms:
        name, models, first = arm.arm, arm.models[-later:], 0
        if task in arm.left_out:  # the paper's figure 9
            loss = _last_loss(record.models, arm.models[-1], task)
            if loss is not None:
                rows.append({"line": arm.arm, "x": [0, later], "y": [loss, loss]})
            continue
        if arm.kind == SINGLE:  # trained from the base
            name, models, first = f"{order[-1]} alone", arm.models[-1:], later - 1
        elif len(arm.models) != len(order):
            continue
        steps, losses = [], []
        for stage, model in enumerate(models, first):
            for points in zip(*_loss_curves(record.models, model, task), strict=False):
                steps.append(stage + points[0][0])
                losses.append(statistics.fmean(loss for _, loss in points))
        if len(steps) > 1:
            rows.append({"line": name, "x": steps, "y": losses})
    return lines(
        f"loss on {task} while later tasks are trained",
        rows,
        Axis(title=f"tasks after {task}"),
        Axis(title="held-out loss, nats per token"),
        columns={"line": "Arm", "end": "Loss at the end"},
        caption=_loss_caption(arms, task),
    )


def _loss_caption(arms: Sequence[ArmResult], task: str) -> str:
    """What the lines of models that never saw the task are."""
    caption = "Mean over the seeds."
    if any(task in arm.left_out for arm in arms):
        return f"{caption} Horizontal line: the loss after multitask training without {task}."
    if _first_of(arms, SINGLE) is not None:
        caption += (
            f" The model trained on the last task alone never saw {task}. Figure 9 of the paper "
            "shows another model that never saw it: multitask training without this task (the arm "
            "`multitask: {left_out: ...}`)."
        )
    return caption


def _loss_curves(
    models: Sequence[SequenceModel], name: str, task: str
) -> list[list[tuple[float, float]]]:
    """A task's held-out loss while a model was trained, a curve a seed."""
    return [model.curves[task] for model in models if model.name == name and model.curves.get(task)]


def _last_loss(models: Sequence[SequenceModel], name: str, task: str) -> float | None:
    """A task's held-out loss at the end of a model's training, mean over the seeds."""
    ends = [curve[-1][1] for curve in _loss_curves(models, name, task)]
    return statistics.fmean(ends) if ends else None


def _measure_table(arms: Sequence[ArmResult]) -> b.Table | None:
    """Average accuracy, transfer and forgetting."""
    cells: dict[b.Text, Any] = {"Arm": "arm"}
    for name, title in MEASURES.items():
        cells[title] = _figures("measures", name, Measure())
    for name in ("average_accuracy", "forgetting"):
        cells[f"{MEASURES[name]} - sequential"] = _figures(
            "measures_against", name, Measure(), sign=True
        )
    measured = [arm for arm in arms if arm.measures]
    return grid(measured, cells) if measured else None


def _matrix(arm: ArmResult) -> b.Fold:
    rows = []
    for stage, scores in zip(["base", *arm.order], arm.matrix, strict=True):
        rows.append([stage, *map(significant, scores)])
    return b.Fold(
        f"Tasks by stage: {arm.arm}", [b.Table(columns=b.columns("After", *arm.order), rows=rows)]
    )
