"""`report.html` of an overtraining study (Overtrained Language Models), and what the terminal
prints: what fine-tuning and other changes cost checkpoints of rising budgets, at fixed rates and at
tuned ones, and what retention does to it.

Reads the record, nothing else; it can be written at any moment and names what is missing. Costs are
signed so that a loss is positive.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.papers.overtraining.preconditions import OVERTRAINED
from holdfast.papers.overtraining.readings import rates_read
from holdfast.papers.overtraining.record import (
    CANNOT_TELL,
    EARLIER,
    LATER,
    Arm,
    OvertrainingRecord,
    Scored,
    Shift,
    TunedModel,
    TunedRate,
    TunedTurn,
    alike,
)
from holdfast.records.figure import Figure, NotMeasured
from holdfast.records.measure import Measure, between, decimals_for, number
from holdfast.records.probe import ProbeRecord
from holdfast.reports import blocks as b
from holdfast.reports.blocks import Block, Fold, Page, Section, Table, Text, chip
from holdfast.reports.charts import (
    Axis,
    Chart,
    Col,
    Row,
    Rule,
    Value,
    line_style,
    log_ticks,
    rounded,
    tabulate,
    ticks_at,
)
from holdfast.reports.format import count, direction, duration, join_and, plural, significant
from holdfast.reports.probe_report import (
    KINDS,
    MEANING,
    TREND_TONES,
    TURN_TONES,
    TURNS,
    budget_interval,
    cost_tables,
    curvature_sections,
    ladder_charts,
    noise_chart,
    trend_table,
    turn_tables,
)
from holdfast.reports.study_page import lines, print_study, section, state_chip, study_page

if TYPE_CHECKING:
    from rich.console import Console

SHIFT_TONES = {LATER: "good", EARLIER: "bad", CANNOT_TELL: "flat"}
SUITES = {"validation": "Validation", "learn": "Test", "keep": "Keep"}
SCORE = Measure()
"""Figures of an entry, whose unit stands at the axis or at the head of the column."""
LITTLE = 0.5
"""Share of what direct fine-tuning gains of a task, below which it is said beside what a way
keeps."""
AS_IT_IS = "unmodified checkpoint"
BASE_STYLE = {"kind": "line", "colour": "ink", "symbol": "star", "dash": "solid", "bars": 0}
AT_RATES = {
    "turns": "has an inflection point at {}",
    "does not turn": "gets better up to the largest budget at {}",
    "cannot tell": "is undecided at {}",
}
"""What is said of rates, by verdict."""
PRIVATE = ("ladder", "output_dir")
"""Keys of the configuration that hold paths: whose folder it was says nothing."""
READING = (
    "A budget's tuned learning rate is the one with the best validation score (mean over "
    "seeds). Test scores come from other data. If the tuned learning rate is at an end of the "
    "grid, a better one may lie beyond it.",
    "Best at: the budget at which the fine-tuned model is best (the inflection point of "
    "definition 4.2). The interval below it covers the budgets that are not significantly worse. "
    "Seeds and samples are paired, with a Bonferroni correction over the budgets. The intervals do "
    "not cover other pre-training runs.",
    "Comparisons of arms at a fixed learning rate leave out every learning rate at which "
    "direct fine-tuning diverged or exceeded `max_perplexity`.",
    "Growth of forgetting is how much more fine-tuning forgets at the largest budget than at the "
    "smallest. Each arm has a set of budgets that may be its inflection point. The point comes "
    "later if all of them are larger than all those of direct fine-tuning, and earlier if all are "
    "smaller.",
    "Comparisons between public checkpoints are distorted, because their learning rates were "
    "not annealed at each checkpoint. In the paper, OLMo-1B degrades beyond 2.5T tokens, and "
    "OLMo-2-7B does not degrade up to 3T tokens.",
)


def overtraining_page(record: OvertrainingRecord) -> Page:
    """The page on what is there."""
    probed = _as_probed(record)
    sections: list[Block | None] = []
    for task in record.tasks:
        if task in record.scored:
            sections += _task_sections(record, task)
    sections += [_without_training(probed), *curvature_sections(probed), _models_section(record)]
    first, last = count(record.checkpoints[0].tokens), count(record.checkpoints[-1].tokens)
    details = [
        plural(len(record.checkpoints), "checkpoint"),
        f"{first} to {last} tokens of pre-training",
    ]
    details += [*record.tasks, plural(len(record.config.get("seeds", [])), "seed")]
    settings = {key: value for key, value in record.config.items() if key not in PRIVATE}
    facts = []
    for checkpoint in record.checkpoints:
        facts.append((checkpoint.label, f"{checkpoint.name}, {count(checkpoint.tokens)} tokens"))
    about: dict[str, Any] = {
        "reading": READING,
        "jobs": record.models,
        "details": details,
        "facts": facts,
    }
    record_shown = dataclasses.replace(record, config=settings)
    return study_page(record_shown, "overtraining", summary(record), sections, **about)


def print_overtraining(
    record: OvertrainingRecord, folder: str | Path, console: Console | None = None
) -> None:
    """Prints the answer, the tuned rates, and where the page is.

    Args:
        record: finished or not.
        folder: the study's.
        console: where to print; the terminal by default.
    """
    tasks = dict.fromkeys(rate.task for rate in record.rates)
    tables = [_tuned_table(record, task) for task in tasks]
    if record.shifts:
        shifts: list[Shift] = []
        for task in record.tasks:
            shifts += _leading_shifts(record, task, "keep", "learn")
        tables.append(_shift_table(record, [shift for shift in shifts if shift.rate is None]))
    print_study(record, summary(record), tables, folder, console)


def _as_probed(record: OvertrainingRecord) -> ProbeRecord:
    """What the checkpoints went through without training, as a probe's record."""
    return ProbeRecord(
        models=[c.probed for c in record.checkpoints if c.probed is not None],
        sensitivities=record.sensitivities,
        trends=record.trends,
        inflections=record.inflections,
        sharpness=record.sharpness,
        ladder=True,
        status=record.status,
    )


# ------------------------------------------------------------------------------------------- answer


def summary(record: OvertrainingRecord) -> str:
    """The answer in a few sentences: of direct fine-tuning at fixed and at tuned rates, and of what
    retention does at either."""
    sentences = []
    for task in record.tasks:
        sentences += _direct_sentences(record, task)
        sentences += _retention_sentences(record, task)
    if not sentences and record.inflections:
        grow = sum(trend.verdict == "grows" for trend in record.trends)
        sentences.append(
            f"Of {len(record.trends)} ways to change the weights without training, {grow} harm the "
            "model more after longer pre-training."
        )
    sentences += _regime_sentence(record) if sentences else []
    if left := sum(model.state != "complete" for model in record.models):
        sentences.append(
            f"{len(record.models) - left} of {len(record.models)} fine-tunings are complete."
        )
    return " ".join(sentences) or "Nothing was measured yet."


def _regime_sentence(record: OvertrainingRecord) -> list[str]:
    """How far the ladder is overtrained."""
    first, last = record.checkpoints[0], record.checkpoints[-1]
    if not first.parameters or not last.parameters:
        return []
    ratios = [first.tokens / first.parameters, last.tokens / last.parameters]
    begin, end = (significant(rounded(ratio, 2)) for ratio in ratios)
    text = f"The checkpoints were pre-trained on {begin} to {end} tokens per parameter"
    if ratios[0] < OVERTRAINED:
        text += f"; below {OVERTRAINED:g}, a model is undertrained, which the paper does not study"
    return [f"{text}."]


def _direct_sentences(record: OvertrainingRecord, task: str) -> list[str]:
    """Where direct fine-tuning turns: at each rate that is read, and at tuned rates."""
    sentences = []
    of_keep = record.leading(task, "keep")
    by_verdict: dict[str, list[str]] = {}
    for rate in _rates_read(record, task):
        for turn in _turns_at(record, task, rate, "keep"):
            best = f"best at {count(turn.tokens)} tokens {budget_interval(turn)}".rstrip()
            at = f"{rate:g}" if turn.verdict == "does not turn" else f"{rate:g} ({best})"
            by_verdict.setdefault(turn.verdict, []).append(at)
    verdicts = []
    for verdict, text in AT_RATES.items():
        if verdict in by_verdict:
            verdicts.append(text.format(join_and(by_verdict[verdict])))
    if verdicts and of_keep is not None:
        what = f"the score on keep data ({of_keep.name})"
        sentences.append(
            f"{task}, {record.direct} at a fixed learning rate: {what} {'; '.join(verdicts)}."
        )
    for suite, what in (("keep", "the score on keep data"), ("learn", "the task score")):
        for turn in _turns_at(record, task, None, suite):
            entry = turn.entry.rpartition("/")[2]
            sentences.append(
                f"{task}, {record.direct} at each budget's tuned learning rate: {what} "
                f"({entry}) {_turn_text(turn)}."
            )
    return sentences


def _turns_at(
    record: OvertrainingRecord, task: str, rate: float | None, suite: str
) -> list[TunedTurn]:
    """Of direct fine-tuning, the entry that leads a suite; at most one."""
    scored = record.leading(task, suite)
    key = "" if scored is None else scored.key
    return alike(record.turns, task=task, arm=record.direct, rate=rate, entry=key)


def _rates_read(record: OvertrainingRecord, task: str) -> list[float]:
    try:
        return rates_read(record, task)
    except NotMeasured:
        return []


def _retention_sentences(record: OvertrainingRecord, task: str) -> list[str]:
    """What each way does at tuned rates, and at the largest equal rate of which it can be told."""
    sentences = []
    shifts = _leading_shifts(record, task, "keep")
    for arm in record.arms:
        texts = []
        for shift in alike(shifts, arm=arm.label, rate=None):
            if text := _shift_text(record, shift):
                texts.append(f"at each budget's tuned learning rate, {text}")
        at_rates = []
        for rate in reversed(_rates_read(record, task)):
            for shift in alike(shifts, arm=arm.label, rate=rate):
                if text := _shift_text(record, shift):
                    at_rates.append(f"at learning rate {rate:g}, {text}")
        texts += at_rates[:1]
        if texts:
            sentences.append(f"{task}, {arm.label}: {'; '.join(texts)}.")
    return sentences


def _turn_text(turn: TunedTurn) -> str:
    """Whether a fine-tuned model gets worse with longer pre-training."""
    best = f"is best at {count(turn.tokens)} tokens {budget_interval(turn)}".rstrip()
    if turn.verdict == "turns":
        return (
            f"{best}; pre-training up to the largest budget makes it worse by "
            f"{significant(rounded(turn.after, 3))} {turn.unit}"
        )
    if turn.verdict == "does not turn":
        return "gets better up to the largest budget"
    return f"{best}, and it is undecided whether it has an inflection point"


def _shift_text(record: OvertrainingRecord, shift: Shift) -> str:
    """What a way does to turning point and cost; empty where nothing can be told."""
    effects = []
    if shift.verdict != CANNOT_TELL:
        effects.append(f"its inflection point comes {shift.verdict}")
    growths = alike(record.growth, task=shift.task, rate=shift.rate, entry=shift.entry)
    last = {g.arm: g.last for g in growths}
    if _is_clear(shift.growth) and shift.arm in last and shift.against in last:
        # how much a cost grows says nothing where that of direct fine-tuning falls
        digits = decimals_for(shift.growth.interval)
        mine, other = number(last[shift.arm], digits), number(last[shift.against], digits)
        unit = f" {shift.unit}" if shift.unit else ""
        budget = count(record.checkpoints[-1].tokens)
        effects.append(
            f"after {budget} tokens of pre-training it forgets {mine}{unit} ({shift.against}: "
            f"{other})"
        )
    text = " and ".join(effects)
    gain = _gain_of_task(record, shift.task, shift.arm, shift.rate)
    usual = _gain_of_task(record, shift.task, shift.against, shift.rate)
    if (
        text and gain is not None and usual is not None and gain < LITTLE * usual
    ):  # who learns nothing keeps all
        share = 100 * max(0.0, gain / usual)
        text += f"; but it learns only {share:.0f} % of what {shift.against} learns on {shift.task}"
    return text


def _gain_of_task(
    record: OvertrainingRecord, task: str, arm: str, rate: float | None
) -> float | None:
    """What a way gains of the task at a rate (None: its tuned rates), mean over the checkpoints;
    None where one of them is missing."""
    scored = record.leading(task, "learn")
    tuned = {item.checkpoint: item.rate for item in alike(record.rates, task=task, arm=arm)}
    gains = []
    for checkpoint in record.checkpoints:
        at = tuned.get(checkpoint.label) if rate is None else rate
        model = None if at is None else record.model(task, arm, at, checkpoint.label)
        cost = None if model is None or scored is None else model.costs.get(scored.key)
        if cost is None or not math.isfinite(cost.value):
            return None
        gains.append(-cost.value)
    return statistics.fmean(gains) if gains else None


def _is_clear(figure: Figure) -> bool:
    """Whether a difference is shown not to be 0."""
    return figure.interval is not None and not figure.interval[0] <= 0 <= figure.interval[1]


# ------------------------------------------------------------------------------------------- a task


def _task_sections(record: OvertrainingRecord, task: str) -> Iterator[Section | None]:
    """At tuned rates, what retention does, and at fixed rates."""
    target, source = record.leading(task, "learn"), record.leading(task, "keep")
    target_chart = _tuned_chart(record, task, target, "Task score")
    source_chart = _tuned_chart(record, task, source, "Score on keep data")
    yield section(
        f"{task}: each budget at its tuned learning rate",
        target_chart,
        source_chart,
        _rate_chart(record, task),
        _tuned_table(record, task),
        intro="Validation data chooses the learning rate of each budget (figures 6 and 7 of the "
        "paper).",
    )
    if alike(record.shifts, task=task):
        yield section(
            f"{task}: effect of the retention methods",
            _shift_table(record, _leading_shifts(record, task, "keep", "learn")),
            intro="The paper expects that regularised fine-tuning delays the inflection point "
            "(section 3.4.2), but does not test it.",
        )
    others = []
    for arm in record.arms:
        charts = []
        for scored in (source, target):
            charts.append(_rates_chart(record, task, arm, scored, cost=False))
            charts.append(_rates_chart(record, task, arm, scored, cost=True))
        turns = _turn_table(record, task, arm)
        if arm.label == record.direct:
            yield section(
                f"{task}: {arm.label} at fixed learning rates",
                *charts,
                turns,
                intro="Each line uses one learning rate at all budgets (figures 4 and 5). Beyond "
                "the best point of a line, longer pre-training makes the fine-tuned model worse.",
            )
            yield _distance_section(record, task, arm)
        elif any(charts):
            others.append(
                Fold(arm.label, [*b.side_by_side(charts), *([] if turns is None else [turns])])
            )
    yield section(f"{task}: the other arms at fixed learning rates", *others)


def _leading_shifts(record: OvertrainingRecord, task: str, *suites: str) -> list[Shift]:
    """Those of a task's shifts that are of the entries that lead the suites."""
    leading = [record.leading(task, suite) for suite in suites]
    entries = [scored.key for scored in leading if scored is not None]
    return [shift for shift in alike(record.shifts, task=task) if shift.entry in entries]


# ------------------------------------------------------------------------------------------- charts


def _tuned_figure(
    record: OvertrainingRecord, rate: TunedRate, scored: Scored | None, *, cost: bool = False
) -> Figure | None:
    """The score, or the cost, of a way at a budget's tuned rate."""
    model = record.model(rate.task, rate.arm, rate.rate, rate.checkpoint)
    return None if model is None or scored is None else _figures(model, cost).get(scored.key)


def _figures(model: TunedModel, cost: bool) -> Mapping[str, Figure]:
    """Costs or scores by entry."""
    return model.costs if cost else model.scores


def _budget_row(line: str, tokens: float, y: float | Value) -> Row:
    """A point of a chart against the budget."""
    return {"line": line, "x": tokens, "tokens": _tokens_cell(tokens), "y": y}


def _tokens_cell(tokens: float) -> Text:
    return b.figure(count(tokens), value=tokens)


def _budget_chart(
    record: OvertrainingRecord,
    title: str,
    rows: Sequence[Row],
    y: Axis,
    unit: str,
    head: str = "Model",
    **options: Any,
) -> Chart | None:
    """Lines against the budget, with the table's heads of line and figure; `options` are those of
    `lines`."""
    budgets = [c.tokens for c in record.checkpoints]
    ticks = (
        [(t, count(t)) for t in budgets] if len(budgets) < 7 else log_ticks(budgets[0], budgets[-1])
    )
    x = Axis(title="tokens of pre-training", log=True, ticks=ticks or ticks_at(budgets))
    styles: dict[str, Mapping[str, Any]] = {AS_IT_IS: BASE_STYLE}
    for number_, arm in enumerate(record.arms):
        styles[arm.label] = {"kind": "line", **line_style(number_)}
    defaults: dict[str, Any] = {"styles": styles, "height": 380}
    columns = {"line": head, "tokens": "Tokens", "y": unit}
    return lines(title, rows, x, y, columns=columns, **defaults | options)


def _base_rows(record: OvertrainingRecord, task: str, scored: Scored) -> list[Row]:
    """What the checkpoints score as they are: a fine-tuned model's score without its cost."""
    if scored.suite != "keep":
        return []
    sign = -1.0 if scored.higher_is_better else 1.0
    rows = []
    for checkpoint in record.checkpoints:
        for model in record.models:
            score = model.scores.get(scored.key)
            tuned = (model.task, model.checkpoint) == (task, checkpoint.label)
            if tuned and score is not None and math.isfinite(score.value):
                before = score.value - sign * model.costs[scored.key].value
                rows.append(_budget_row(AS_IT_IS, checkpoint.tokens, before))
                break
    return rows


def _guessing(scored: Scored) -> tuple[list[Rule], str]:
    """The line of what guessing gives, and a sentence on it."""
    if scored.chance is None:
        return [], ""
    return [Rule(y=scored.chance)], f" Dotted: guessing, {significant(rounded(scored.chance, 3))}."


def _tuned_chart(
    record: OvertrainingRecord, task: str, scored: Scored | None, what: str
) -> Chart | None:
    """A score at tuned rates against the budget, a line a way."""
    if scored is None:
        return None
    rows = []
    order = [arm.label for arm in record.arms]
    for rate in sorted(record.rates, key=lambda rate: order.index(rate.arm)):
        score = _tuned_figure(record, rate, scored) if rate.task == task else None
        if score is not None and math.isfinite(score.value):
            rows.append(_budget_row(rate.arm, rate.tokens, Value.of(score, SCORE)))
    rules, dotted = _guessing(scored)
    caption = f"At each budget's tuned learning rate; {direction(scored.higher_is_better)}.{dotted}"
    rows = [*_base_rows(record, task, scored), *rows] if rows else []
    title, y = f"{what}: {scored.name}", Axis(title=scored.unit)
    return _budget_chart(record, title, rows, y, scored.unit, rules=rules, caption=caption)


def _rate_chart(record: OvertrainingRecord, task: str) -> Chart | None:
    """The tuned rate against the budget, a line a way."""
    rows = []
    for rate in record.rates:
        if rate.task == task:
            low, high = rate.interval
            y = Value(
                value=rate.rate,
                low=low,
                high=high,
                text=f"{rate.rate:g}",
                interval=_rates_text(rate),
            )
            rows.append(_budget_row(rate.arm, rate.tokens, y))
    rates: set[float] = set()
    for arm in record.arms:
        rates.update(arm.rates)
    axis = _rate_axis(sorted(rates) if len(rates) < 9 else ())
    caption = (
        "Bars span the learning rates whose validation score is not significantly worse than the "
        "best one."
    )
    return _budget_chart(record, "Tuned learning rate", rows, axis, "Rate", caption=caption)


def _rate_axis(rates: Sequence[float]) -> Axis:
    """Learning rates, those with ticks."""
    return Axis(title="learning rate", log=True, ticks=[(rate, f"{rate:g}") for rate in rates])


def _rates_text(rate: TunedRate) -> str:
    """The rates that may be the best one; "" of a single one."""
    low, high = rate.interval
    return "" if low == high else between(f"{low:g}", f"{high:g}")


def _rates_chart(
    record: OvertrainingRecord, task: str, arm: Arm, scored: Scored | None, *, cost: bool
) -> Chart | None:
    """A score, or what fine-tuning has taken from it, against the budget: a line a rate."""
    if scored is None:
        return None
    rows, diverged, styles = [], [], {AS_IT_IS: BASE_STYLE}
    left_out = record.rates_left_out(task, arm.label)
    for rate in arm.rates:
        if rate in left_out:
            continue
        styles[f"{rate:g}"] = {"kind": "line", **line_style(len(styles) - 1)}
        for checkpoint in record.checkpoints:
            model = record.model(task, arm.label, rate, checkpoint.label)
            figure = None if model is None else _figures(model, cost).get(scored.key)
            if figure is None:
                continue
            if math.isfinite(figure.value):
                rows.append(
                    _budget_row(f"{rate:g}", checkpoint.tokens, Value.of(figure, SCORE, sign=cost))
                )
            else:
                diverged.append(f"{rate:g} at {count(checkpoint.tokens)}")
    caption = f"Not drawn because fine-tuning diverged: {join_and(diverged)}." if diverged else ""
    if left_out:
        rates = join_and([f"{rate:g}" for rate in left_out])
        caption += f" Learning rates left out because they exceed max_perplexity: {rates}."
    title, y, rules = f"{scored.name}: what fine-tuning costs", f"cost, {scored.unit}", list[Rule]()
    if not cost:
        title, y = f"{scored.name}: the fine-tuned model", scored.unit
        rules, dotted = _guessing(scored)
        caption += dotted
        rows = [*_base_rows(record, task, scored), *rows] if rows else []
    options: dict[str, Any] = {
        "styles": styles,
        "rules": rules,
        "caption": caption.strip(),
        "height": 360,
    }
    axis = Axis(title=y, zero=cost)
    return _budget_chart(record, title, rows, axis, scored.unit, "Learning rate", **options)


def _distance_section(record: OvertrainingRecord, task: str, arm: Arm) -> Section | None:
    """How far the weights went, against the rate: figure 8."""
    rows: list[Row] = []
    styles: dict[str, dict[str, Any]] = {}
    for checkpoint in record.checkpoints:
        styles[checkpoint.label] = {"kind": "line", "bars": 0, **line_style(len(styles))}
        styles[checkpoint.label] |= {"name": f"{count(checkpoint.tokens)} tokens"}
        for rate in arm.rates:
            model = record.model(task, arm.label, rate, checkpoint.label)
            if model is not None and model.distance:
                rows.append(
                    {
                        "line": checkpoint.label,
                        "rate": b.figure(f"{rate:g}"),
                        "x": rate,
                        "y": model.distance,
                    }
                )
    if len({row["x"] for row in rows}) < 2:
        return None
    chart = lines(
        "Distance to the checkpoint",
        rows,
        _rate_axis(arm.rates[:9]),
        Axis(title="L2 distance of the weights", log=True),
        columns={"line": "Checkpoint", "rate": "Learning rate", "y": "L2"},
        styles=styles,
        height=340,
    )
    intro = (
        "In the paper, the distance is approximately proportional to the learning rate "
        "(exponent 1) and does not depend on the budget."
    )
    return section(f"{task}: distance of the weights", chart, intro=intro)


# ------------------------------------------------------------------------------------------- tables


def _figure_cell(figure: Figure | None, *, sign: bool = False, tone: str = "") -> Text:
    """A figure with its interval below; empty where there is none."""
    return (
        ""
        if figure is None
        else b.figure(*SCORE.texts(figure, sign=sign), value=figure.value, tone=tone)
    )


def _words(title: str, of: str | Callable[[Any], Any]) -> Col:
    """A column of words."""
    return Col(title, of, numeric=False)


def _verdicts(title: str, tones: Mapping[str, str]) -> Col:
    """A column of verdicts."""
    return _words(title, lambda item: chip(item.verdict, tones[item.verdict]))


def _rate_text(rate: float | None) -> str:
    return "tuned" if rate is None else f"{rate:g}"


def _tuned_table(record: OvertrainingRecord, task: str) -> Table:
    """A line a way and budget: the tuned rate, and the leading figures there."""
    columns = [_words("Arm", "arm"), Col("Tokens", lambda rate: _tokens_cell(rate.tokens))]
    columns.append(
        Col(
            "Tuned learning rate",
            lambda rate: b.figure(f"{rate.rate:g}", _rates_text(rate), value=rate.rate),
        )
    )

    def column(title: Text, scored: Scored, *, cost: bool = False) -> Col:
        return Col(
            title,
            lambda rate: _figure_cell(_tuned_figure(record, rate, scored, cost=cost), sign=cost),
        )

    for suite, name in SUITES.items():
        scored = record.leading(task, suite)
        if scored is not None:
            columns.append(column((f"{name}: {scored.name},", b.sub(scored.unit)), scored))
        if scored is not None and suite == "keep":
            columns.append(column(f"Forgetting on {scored.name}", scored, cost=True))
    return tabulate(
        alike(record.rates, task=task),
        columns,
        kind="dense",
        title=f"{task} at tuned learning rates",
    )


def _shift_table(record: OvertrainingRecord, shifts: Sequence[Shift]) -> Table:
    """What ways do to turning point and growth, against direct fine-tuning."""

    def growth(shift: Shift) -> Text:
        tone = "good" if shift.growth.value < 0 else "bad"
        return _figure_cell(shift.growth, sign=True, tone=tone if _is_clear(shift.growth) else "")

    columns = [
        _words("Arm", "arm"),
        _verdicts("Inflection point", SHIFT_TONES),
        Col("Rate", lambda shift: _rate_text(shift.rate)),
        _words("Figure", lambda shift: shift.entry.rpartition("/")[2]),
        Col("Extra growth of forgetting", growth),
    ]
    return tabulate(shifts, columns, kind="dense", title=f"Against {record.direct}")


def _turn_table(record: OvertrainingRecord, task: str, arm: Arm) -> Table | None:
    """At which budget the fine-tuned model is at its best, and how the cost grows: a rate and
    figure a line."""
    turns = alike(record.turns, task=task, arm=arm.label)

    def growth(turn: TunedTurn) -> Text:
        for trend in alike(
            record.growth, task=task, arm=arm.label, rate=turn.rate, entry=turn.entry
        ):
            tone = TREND_TONES[trend.verdict]
            return _figure_cell(trend.difference, sign=True, tone="" if tone == "flat" else tone)
        return ""

    def best(turn: TunedTurn) -> Text:
        return b.figure(count(turn.tokens), budget_interval(turn), value=turn.tokens)

    def lost(turn: TunedTurn) -> str:
        return f"{significant(rounded(turn.after, 3))} {turn.unit}" if turn.after else ""

    columns = [
        _words("Rate", lambda turn: _rate_text(turn.rate)),
        _words(
            "Longer pre-training", lambda turn: chip(TURNS[turn.verdict], TURN_TONES[turn.verdict])
        ),
        _words("Figure", "entry"),
    ]
    columns += [
        Col("Best at (tokens)", best),
        Col("Loss up to the largest budget", lost),
        Col("Growth of forgetting", growth),
    ]
    return tabulate(turns, columns, kind="dense") if turns else None


def _without_training(probed: ProbeRecord) -> Section | None:
    """Figures 2 and 3: what the checkpoints went through without training."""
    if not probed.sensitivities:
        return None
    along: list[Block | None] = []
    if probed.trends:
        along = [*ladder_charts(probed), trend_table(probed), *turn_tables(probed)]
    kinds = {s.kind for s in probed.sensitivities}
    meanings = b.Bullets([text for kind, text in KINDS.items() if kind in kinds])
    tables = [noise_chart(probed), *cost_tables(probed)]
    costs = Fold("Cost of each change, by checkpoint", [*tables, meanings])
    return section("Without training: noise, quantisation, pruning", *along, costs, intro=MEANING)


def _models_section(record: OvertrainingRecord) -> Section | None:
    """Every fine-tuning."""

    def epochs(model: TunedModel) -> str:
        return ", ".join(f"{number_:g}" for number_ in model.stopped.values())

    def distance(model: TunedModel) -> str:
        return "" if model.distance is None else significant(rounded(model.distance, 4))

    def reason(model: TunedModel) -> str:
        return model.reason or "; ".join(dict.fromkeys(model.diverged.values()))

    columns = [
        _words("Fine-tuning", "label"),
        _words("State", lambda model: state_chip(model.state)),
    ]
    columns += [Col("Epochs", epochs), Col("Distance", distance)]
    columns += [
        Col("Time", lambda model: duration(model.seconds) if model.seconds else ""),
        _words("", reason),
    ]
    table = tabulate(record.models, columns, kind="trials", find="fine-tuning")
    fold = Fold("State, epochs, distance and time of each fine-tuning", [table])
    return Section("All fine-tunings", [fold]) if record.models else None
