"""One page on how fragile a checkpoint is, or each checkpoint of a ladder: what noise, few bits,
pruning and steps towards other weights cost it, and how far the loss's curvature explains that.

Reads only the record (`records.probe`). Costs are signed so that a loss is positive, in the unit of
each figure.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

from holdfast.records.figure import Figure, Interval
from holdfast.records.measure import MINUS, Measure, between, number
from holdfast.records.probe import (
    AS_IT_IS,
    NOISE,
    PRUNE,
    QUANTIZE,
    TOWARD,
    Inflection,
    Line,
    ProbedModel,
    ProbeRecord,
    Sensitivity,
    Sharpness,
    Trend,
    TurningPoint,
)
from holdfast.reports.blocks import (
    Block,
    Page,
    Panel,
    Paragraph,
    Section,
    Table,
    Text,
    chip,
    columns,
    facts_or_nothing,
    figure,
    notes,
    paragraphs,
    present,
    side_by_side,
)
from holdfast.reports.charts import (
    Axis,
    Chart,
    Value,
    heads,
    log_ticks,
    rounded,
    tabulate,
    ticks_at,
)
from holdfast.reports.format import (
    count,
    hardware_rows,
    hardware_text,
    join_and,
    joined,
    plural,
    setting,
    significant,
)
from holdfast.reports.study_page import TONES, lines

MEANING = (
    "Cost: the difference between the changed and the unchanged model, on the same documents or "
    "questions. A positive cost means that the changed model is worse. Intervals are paired over "
    "the samples, and also cover the draws of the noise if there are several. No interval covers "
    "other training runs of the same model."
)
KINDS = {
    NOISE: (
        "Gaussian noise: its standard deviation is γ times the standard deviation that the tensor "
        "had when the model was initialised."
    ),
    QUANTIZE: (
        "Quantised: matrices are rounded to the nearest value, without calibration data and "
        "without special treatment of outliers. Embeddings and head are unchanged. Quantisation "
        "methods that use calibration data lose less."
    ),
    PRUNE: "Pruned: this share of each matrix's elements is set to zero, smallest magnitudes first.",
    TOWARD: "Toward a model: θ + share (θ' − θ). Share 1 is that model; more goes beyond it.",
}
TURNS = {
    "turns": "begins to harm the model",
    "does not turn": "still helps the model",
    "cannot tell": "cannot tell",
}
TURN_TONES = {"turns": "bad", "does not turn": "good", "cannot tell": "flat"}
TURNING = (
    "The inflection point (definition 4.2) is the budget at which the changed model is best. "
    "Paired tests compare every budget with this one. The interval runs from the smallest to the "
    "largest budget that may be as good as it. The tests cover documents or questions, and seeds "
    "of the noise. The interval does not cover the variation between pre-training runs. A few "
    "draws of noise are rarely enough: three draws have two degrees of freedom."
)
TREND_TONES = {"grows": "bad", "shrinks": "good", "cannot tell": "flat"}
LADDER = (
    'The paper "Overtrained Language Models" finds that the same change of the weights costs more '
    "after more pre-training. From some budget on (the inflection point), the changed model gets "
    "worse although its base gets better. In public ladders the trend is distorted, because the "
    "learning rate was not annealed at each budget."
)
READ = 0.1
"""Nats a token: the cost at which sizes of noise and pruning are named in the lead."""
PLAIN = Measure()
"""How costs read: in their unit, which stands beside them."""


def probe_page(record: ProbeRecord) -> Page:
    """The page as blocks."""
    labels = [model.label for model in record.models]
    title = (
        f"How fragile {'is' if len(labels) == 1 else 'are'} "
        f"{join_and(labels) if 0 < len(labels) < 4 else 'they'}?"
    )
    return Page(
        tab=f"{', '.join(labels[:3])}: holdfast probe",
        eyebrow="holdfast probe report",
        title=title,
        lead=summary(record),
        status=(record.status, TONES.get(record.status, "warn")),
        details=joined(
            plural(len(labels), "model"),
            _budgets(record),
            record.models[0].origin if labels else "",
        ),
        blocks=[
            _ladder(record),
            Section(
                "What each change costs", [noise_chart(record), *cost_tables(record)], intro=MEANING
            ),
            *curvature_sections(record),
            notes(_how_to_read(record), "How to read it"),
            Section("What it ran on", [Panel(facts_or_nothing(_facts(record)), "card")]),
        ],
        footer=joined("Measured by holdfast", hardware_text(record.hardware)),
    )


def _how_to_read(record: ProbeRecord) -> list[str]:
    measured = {s.kind for s in record.sensitivities}
    sentences = [text for kind, text in KINDS.items() if kind in measured]
    rescaled = [model.label for model in record.models if model.stds == "tensor"]
    if rescaled:
        sentences.append(
            f"The noise of {join_and(rescaled)} is scaled by the current standard deviations of "
            "the tensors."
        )
    return [*sentences, *record.notes]


def _ladder(record: ProbeRecord) -> Section | None:
    if not record.trends:
        return None
    blocks = [*side_by_side(ladder_charts(record)), trend_table(record), *turn_tables(record)]
    return Section("Along the ladder", blocks, intro=LADDER)


def probe_blocks(record: ProbeRecord) -> list[Block]:
    """Lead and tables, for a terminal."""
    blocks: list[Block] = [Paragraph(summary(record)), *cost_tables(record)]
    if record.trends:
        blocks += [trend_table(record), *turn_tables(record)]
    return blocks + paragraphs(record.notes, before="note: ")


def summary(record: ProbeRecord) -> str:
    """The answer in a sentence or two."""
    first = _of_first_entry(record)
    if not first:
        return "Nothing was measured yet."
    if record.ladder and len(record.models) > 1:
        return _along_ladder(record, first[0].entry)
    sentences = []
    for model in record.models:
        costs = _spoken([s for s in first if s.model == model.label])
        sentences.append(f"{model.label}: {', '.join(costs)}.")
        if model.origin:
            sentences.append(
                f"The model's weights are {model.origin}: the costs apply to these weights."
            )
    return (
        f"Cost of each change on {_name(first[0].entry)}, in {first[0].unit}. {' '.join(sentences)}"
    )


def _along_ladder(record: ProbeRecord, entry: str) -> str:
    """How costs move from the smallest to the largest budget."""
    changes: dict[str, list[str]] = {verdict: [] for verdict in TREND_TONES}
    for trend in record.trends:
        if trend.entry == entry:
            changes[trend.verdict].append(change_text(trend))
    parts = [f"{verdict}: {join_and(names)}" for verdict, names in changes.items() if names]
    turned = []
    for turn in record.inflections:
        if turn.entry == entry and turn.kind != AS_IT_IS and turn.verdict == "turns":
            turned.append(f"{change_text(turn)} beyond {count(turn.tokens)}")
    parts += [f"more pre-training harms the model under {join_and(turned)}"] if turned else []
    budgets = (
        f"from {count(record.models[0].tokens)} to {count(record.models[-1].tokens)} tokens of "
        "pre-training"
    )
    return f"Cost of the changes on {_name(entry)} {budgets}: {'; '.join(parts)}."


def _name(entry: str) -> str:
    """An entry without its suite."""
    return entry.rpartition("/")[2]


def _of_first_entry(record: ProbeRecord, *kinds: str) -> list[Sensitivity]:
    """What changes of some kinds, or all, cost on the entry that leads."""
    entry = record.sensitivities[0].entry if record.sensitivities else ""
    return [s for s in record.sensitivities if s.entry == entry and (not kinds or s.kind in kinds)]


def _spoken(costs: Sequence[Sensitivity]) -> list[str]:
    """What the lead says of one model, kind by kind: the size of noise and of pruning that costs
    `READ`, whichever sizes were asked for, every rounding, and a step nearest to the whole way."""
    texts = []
    for kind in KINDS:
        of_kind = sorted((s for s in costs if s.kind == kind), key=lambda s: s.size)
        if kind == QUANTIZE:
            texts += [_with_cost(s) for s in of_kind]
        elif kind == TOWARD and of_kind:
            texts.append(_with_cost(min(of_kind, key=lambda s: abs(s.size - 1))))
        elif of_kind:
            texts.append(_at_cost(of_kind))
    return texts


def _with_cost(s: Sensitivity) -> str:
    return f"{change_text(s)} {s.failed or ' '.join(_texts(s))}"


def _at_cost(costs: Sequence[Sensitivity]) -> str:
    """The size of a change that costs `READ`, between two that were measured; where none does, what
    the largest costs, or the smallest."""
    known = [s for s in costs if not s.failed]
    for a, b in itertools.pairwise(known if costs[0].unit == "nats/token" else []):
        if a.harm < READ <= b.harm:
            share = (READ - a.harm) / (b.harm - a.harm)
            size = a.size * (b.size / a.size) ** share
            between_them = dataclasses.replace(a, size=float(f"{size:.2g}"))
            return f"{change_text(between_them)} costs {READ:g}"
    if known and known[0].harm >= READ:
        return f"already {_with_cost(known[0])}"
    return f"up to {_with_cost(known[-1])}" if known else _with_cost(costs[0])


def _cost(s: Sensitivity) -> Figure:
    """What a change costs, with its interval."""
    if s.interval is None or not s.higher_is_better:
        return Figure(value=s.harm, over_samples=s.interval)
    return Figure(value=s.harm, over_samples=(-s.interval[1], -s.interval[0]))


def _texts(s: Sensitivity) -> tuple[str, str]:
    return PLAIN.texts(_cost(s), sign=True)


def change_text(s: Sensitivity | Trend | Inflection) -> str:
    """A change in words: "noise 0.01", "int4", "30 % pruned", "50 % of the way to tuned"."""
    if s.kind == NOISE:
        return f"noise {s.size:g}"
    if s.kind == PRUNE:
        return f"{100 * s.size:g} % pruned"
    if s.kind == QUANTIZE:
        return s.label
    return (
        f"all the way to {s.label}"
        if s.size == 1
        else f"{100 * s.size:g} % of the way to {s.label}"
    )


def _budgets(record: ProbeRecord) -> str:
    tokens = present(model.tokens for model in record.models)
    return (
        f"{count(min(tokens))} to {count(max(tokens))} tokens of pre-training"
        if len(tokens) > 1
        else ""
    )


# ------------------------------------------------------------------------------------------- tables


def cost_tables(record: ProbeRecord) -> list[Table]:
    """One table an entry: a change a line, a model a column."""
    entries: dict[str, list[Sensitivity]] = {}
    for s in record.sensitivities:
        entries.setdefault(s.entry, []).append(s)
    return [_cost_table(entry, costs, record.models) for entry, costs in entries.items()]


def _cost_table(entry: str, costs: Sequence[Sensitivity], models: Sequence[ProbedModel]) -> Table:
    as_it_is: dict[str, Text] = {}
    cells = {"as it is": as_it_is}
    for s in costs:
        as_it_is.setdefault(s.model, figure(number(s.before, 4), value=s.before))
        cells.setdefault(change_text(s), {})[s.model] = _cell(s)
    measured = [model for model in models if model.label in as_it_is]
    rows = []
    for change, by_model in cells.items():
        rows.append([change, *(by_model.get(model.label, "") for model in measured)])
    better = "higher" if costs[0].higher_is_better else "lower"
    title = (
        f"{entry}: cost in {costs[0].unit} (in the row 'as it is': the unchanged model's own "
        f"figure, {better} is better)"
    )
    return Table(
        columns=columns("Change", *map(_head, measured)), rows=rows, title=title, kind="dense"
    )


def _head(model: ProbedModel) -> str:
    return model.label if model.tokens is None else f"{model.label} ({count(model.tokens)} tokens)"


def _cell(s: Sensitivity) -> Text:
    if s.failed:
        return figure("∞", s.failed, tone="bad")
    low, high = _cost(s).interval or (0.0, 0.0)
    tone = "" if low <= 0 <= high else "bad" if s.harm > 0 else "good"
    return figure(*_texts(s), value=s.harm, tone=tone)


def trend_table(record: ProbeRecord) -> Table:
    """From the smallest to the largest budget, a change a line."""
    rows = []
    for t in record.trends:
        row = {
            "change": change_text(t),
            "verdict": chip(t.verdict, TREND_TONES[t.verdict]),
            "entry": _name(t.entry),
        }
        for key, value in (("first", t.first), ("last", t.last)):
            row[key] = PLAIN.texts(
                Figure(value=value, over_samples=t.difference.interval), sign=True
            )[0]
        difference = PLAIN.texts(t.difference, sign=True)
        rows.append(row | {"difference": figure(*difference, value=t.difference.value)})
    first, last = (count(model.tokens) for model in (record.models[0], record.models[-1]))
    words = {"Change": "change", "The cost": "verdict"} | _figure_column(record.trends)
    figures = {
        f"At {first} tokens": "first",
        f"At {last} tokens": "last",
        "Difference": "difference",
    }
    return tabulate(rows, [*heads(words, words=3), *heads(figures, words=0)], kind="dense")


def _figure_column(items: Sequence[Trend | Inflection]) -> dict[str, str]:
    """The column of the entry, where there are several."""
    return {"Figure": "entry"} if len({item.entry for item in items}) > 1 else {}


def turn_tables(record: ProbeRecord) -> list[Block]:
    """At which budget a changed model is at its best, a change a line."""
    if not record.inflections:
        return []
    rows = []
    for t in record.inflections:
        row: dict[str, Text] = {
            "change": "as it is" if t.kind == AS_IT_IS else change_text(t),
            "entry": _name(t.entry),
        }
        row |= {"verdict": chip(TURNS[t.verdict], TURN_TONES[t.verdict])}
        row |= {
            "best": figure(count(t.tokens), budget_interval(t), value=t.tokens),
            "lost": _lost(t),
        }
        rows.append(row)
    words = {"Model": "change", "More pre-training": "verdict"} | _figure_column(record.inflections)
    figures = {"Best budget, tokens": "best", "Lost beyond it": "lost"}
    table = tabulate(rows, [*heads(words, words=3), *heads(figures, words=0)], kind="dense")
    return [Paragraph(TURNING, "prose"), table]


def budget_interval(t: TurningPoint) -> str:
    """The budgets that may be the best one; "" of a single one."""
    low, high = t.interval
    return "" if low == high else between(count(low), count(high))


def _lost(t: Inflection) -> str:
    if not t.after:
        return ""
    return "∞" if math.isinf(t.after) else f"{_short(t.after)} {t.unit}"


# ------------------------------------------------------------------------------------------- charts


def noise_chart(record: ProbeRecord) -> Chart | None:
    """The cost of noise against gamma, a line a model."""
    costs = _of_first_entry(record, NOISE)
    sizes = sorted({s.size for s in costs})
    if len(sizes) < 2:
        return None
    ticks = ticks_at(sizes) if len(sizes) < 7 else log_ticks(sizes[0], sizes[-1])
    rows = [{"line": s.model, "x": s.size, "y": _value(s)} for s in costs if not s.failed]
    noise = Axis(title="noise, γ", log=True, ticks=ticks)
    return lines(
        "Noise: cost against size",
        rows,
        noise,
        _cost_axis(costs),
        columns={"line": "Model", "x": "γ", "y": f"Cost, {costs[0].unit}"},
        caption=_caption(costs),
    )


def _value(s: Sensitivity) -> Value:
    return Value.of(_cost(s), sign=True)


def _cost_axis(costs: Sequence[Sensitivity]) -> Axis:
    return Axis(title=f"cost, {costs[0].unit}", zero=True)


def _caption(costs: Sequence[Sensitivity]) -> str:
    """On what costs were measured, and which of them are infinite."""
    broken = [f"{change_text(s)} of {s.model}" for s in costs if s.failed]
    text = f"On {_name(costs[0].entry)}."
    return f"{text} Not drawn, because not finite: {', '.join(broken)}." if broken else text


def ladder_charts(record: ProbeRecord) -> list[Chart | None]:
    """The figure and the cost against the budget, a line a change: figures 2 and 3 of the paper on
    one's own ladder."""
    costs = _of_first_entry(record)
    if not costs:
        return []
    tokens = {model.label: model.tokens for model in record.models}
    as_it_is: dict[str, dict[str, Any]] = {}
    changed, of_costs = [], []
    for s in costs:
        about = {"x": tokens.get(s.model), "model": s.model}
        as_it_is.setdefault(s.model, about | {"line": "as it is", "y": rounded(s.before)})
        if not s.failed:
            about["line"] = change_text(s)
            changed.append(about | {"y": rounded(s.after)})
            of_costs.append(about | {"y": _value(s)})
    budgets = [budget for budget in tokens.values() if budget]
    ticks = [(budget, count(budget)) for budget in budgets] if len(record.models) < 7 else []
    x = Axis(title="tokens of pre-training", log=True, ticks=ticks)
    unit = costs[0].unit
    columns = {"model": "Model", "line": "Change"}
    figures = lines(
        "The changed model by budget",
        [*as_it_is.values(), *changed],
        x,
        Axis(title=f"{_name(costs[0].entry)}, {unit}"),
        columns=columns | {"y": unit},
        styles={"as it is": {"colour": "ink", "symbol": "star"}},
        caption=(
            "At the point where a line turns (the inflection point), more pre-training begins to "
            "make the changed model worse."
        ),
        height=380,
    )
    title = "Cost of the change by budget"
    columns |= {"y": f"Cost, {unit}"}
    cost_chart = lines(
        title, of_costs, x, _cost_axis(costs), columns=columns, caption=_caption(costs), height=380
    )
    return [figures, cost_chart]


# ---------------------------------------------------------------------------------------- curvature


def curvature_sections(record: ProbeRecord) -> list[Section]:
    """What is known of the curvature of the loss; nothing where it was not measured."""
    if not record.sharpness:
        return []
    charts: list[Chart | None] = []
    for sharpness in record.sharpness:
        charts += line_charts(sharpness, many=len(record.sharpness) > 1)
    first = record.sharpness[0]
    intro = (
        "This is the curvature of the loss (its Hessian H) in nats per token on "
        f"{plural(first.documents, 'document')} ({first.tokens:,} tokens). If the loss is "
        "quadratic, noise costs γ²/2 Tr(SH) on average. S is the diagonal matrix of the weights' "
        "variances at initialisation. The traces are estimated with Hutchinson's method and "
        f"{first.probes} random vectors, and are shown with intervals. For large steps, the paper "
        "finds that the loss is higher than the quadratic approximation says."
    )
    blocks = [_sharpness_table(record.sharpness), *side_by_side(charts)]
    return [Section("Curvature of the loss", blocks, intro=intro)]


def _short(value: float, digits: int = 3) -> str:
    return significant(rounded(value, digits))


def _trace(value: float | None, interval: Interval | None) -> Text:
    if value is None:
        return ""
    ends = "" if interval is None else between(*map(_short, interval))
    return figure(_short(value, 4).replace("-", MINUS), ends, value=value)


SHARPNESS = heads(
    {
        "Model": "model",
        "Loss": lambda s: number(s.loss, 4),
        "Gradient norm": lambda s: _short(s.gradient_norm),
        "Trace of H": lambda s: _trace(s.trace, s.trace_interval),
        "Tr(SH)": lambda s: _trace(s.noise_trace, s.noise_trace_interval),
        "Largest eigenvalues": lambda s: ", ".join(map(_short, s.eigenvalues)),
    }
)


def _sharpness_table(sharpness: Sequence[Sharpness]) -> Table:
    """A model a line."""
    with_eigenvalues = any(s.eigenvalues for s in sharpness)
    return tabulate(sharpness, SHARPNESS if with_eigenvalues else SHARPNESS[:-1], kind="dense")


def line_charts(sharpness: Sharpness, *, many: bool) -> list[Chart | None]:
    """The loss along each direction against its quadratic approximation."""
    charts = []
    for line in sharpness.lines:
        points = [(size, loss) for size, loss in line.losses if math.isfinite(loss)]
        if len(points) > 2 and points[0][0] == 0:
            charts.append(_line_chart(line, points, f", {sharpness.model}" if many else ""))
    return charts


def _line_chart(line: Line, points: Sequence[tuple[float, float]], model: str) -> Chart | None:
    measured, approximation = [], []
    for size, loss in points:
        measured.append({"line": "measured", "x": size, "y": rounded(loss)})
        quadratic = line.quadratic(size, points[0][1])
        approximation.append({"line": "quadratic", "x": size, "y": rounded(quadratic)})
    is_noise = line.label.startswith("noise")
    direction = line.label if is_noise else f"the step towards {line.label}"
    caption = f"Slope {_short(line.slope)}, curvature {_short(line.curvature)}.".replace("-", MINUS)
    overflows = [f"{size:g}" for size, loss in line.losses if not math.isfinite(loss)]
    return lines(
        f"The loss along {direction}{model}",
        [*measured, *approximation],
        Axis(title="γ" if is_noise else "share of the way"),
        Axis(title="nats/token"),
        columns={"line": "Loss", "x": "Size", "y": "nats/token"},
        caption=caption + (f" Not finite at {', '.join(overflows)}." if overflows else ""),
        height=340,
    )


def _facts(record: ProbeRecord) -> list[tuple[str, Text]]:
    facts: list[tuple[str, Text]] = []
    for m in record.models:
        facts.append(
            (m.label, f"{m.name}, {m.architecture}, {count(m.parameters)} parameters, {m.dtype}")
        )
    for key, value in record.settings.items():
        if value not in (None, [], {}, "", False):
            facts.append((key.replace("_", " "), setting(value)))
    return [*facts, *hardware_rows(record.hardware)]
