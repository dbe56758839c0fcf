"""One page on how fragile a checkpoint is, or each checkpoint of a ladder: what noise, few bits, pruning and steps
towards other weights cost it, and how far the loss's curvature explains that.

Reads only the record (`records.probe`). Costs are signed so that a loss is positive, in the unit of each figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from holdfast.records.measure import MINUS, Measure, between, decimals_for, interval_text, number
from holdfast.records.probe import (
    AS_IT_IS,
    NOISE,
    PRUNE,
    QUANTIZE,
    TOWARD,
    Inflection,
    ProbeRecord,
    Sensitivity,
    Sharpness,
    Trend,
    TurningPoint,
)
from holdfast.reports.blocks import (
    Block,
    Column,
    Page,
    Panel,
    Paragraph,
    Section,
    Table,
    Text,
    Tile,
    Tiles,
    chip,
    facts_or_nothing,
    figure,
    notes,
    side_by_side,
)
from holdfast.reports.charts import (
    COLOURS,
    DASHES,
    SYMBOLS,
    Axis,
    Chart,
    Col,
    Mark,
    Row,
    Value,
    log_ticks,
    rounded,
    tabulate,
    ticks_at,
)
from holdfast.reports.format import count, hardware_rows, hardware_text, joined, listed, plural, setting, significant

MEANING = (
    "Cost: what a figure loses when the weights are changed, against the model as it is, on the same documents or "
    "questions; positive is worse. Intervals cover the samples, which are paired, and where noise was drawn several "
    "times the draws too; they say nothing of other training runs of the same model."
)
KINDS = {
    NOISE: "Gaussian noise: γ times the standard deviation that each tensor had when the model was initialised.",
    QUANTIZE: (
        "Quantised: matrices rounded to nearest, without calibration data and without outliers kept apart; embeddings "
        "and head stay. Methods that use data lose less."
    ),
    PRUNE: "Pruned: that share of each matrix's elements, those of the smallest magnitudes, set to zero.",
    TOWARD: "Toward a model: θ + share (θ' − θ); 1 is that model, more goes past it.",
}
TURNS = {"turns": "harms it from there on", "does not turn": "still helps it", "cannot tell": "cannot tell"}
TURN_TONES = {"turns": "bad", "does not turn": "good", "cannot tell": "flat"}
TURNING = (
    "The inflection point (definition 4.2): the budget at which the changed model is at its best. Its interval are the "
    "budgets that are not shown to be worse, over documents or questions and seeds of the noise, paired; it says "
    "nothing of other pre-trainings. Few draws of noise seldom tell: three have two degrees of freedom."
)
TREND_TONES = {"grows": "bad", "shrinks": "good", "cannot tell": "flat"}
LADDER = (
    'The paper "Overtrained Language Models" finds on such ladders that the cost of a fixed change grows with the '
    "pre-training budget, and that the changed model gets worse from some budget on although its base gets better: "
    "the inflection point. Public ladders are confounded by learning rates that were not annealed."
)


def probe_page(record: ProbeRecord) -> Page:
    """The page as blocks."""
    labels = [m.label for m in record.models]
    kinds = [k for k in KINDS if any(s.kind == k for s in record.sensitivities)]
    own = [m.label for m in record.models if m.stds == "tensor"]
    scaled = [f"Noise of {listed(own)} is scaled by the present standard deviations instead."] if own else []
    return Page(
        tab=f"{', '.join(labels[:3])}: holdfast probe",
        eyebrow="holdfast probe report",
        title=f"How fragile {'is' if len(labels) == 1 else 'are'} {listed(labels) if 0 < len(labels) < 4 else 'they'}?",
        lead=lead(record),
        status=("finished", "good") if record.status == "finished" else (record.status, "warn"),
        details=" · ".join(
            [plural(len(record.models), "model"), *_budgets(record), *(m.origin for m in record.models[:1] if m.origin)]
        ),
        blocks=[
            Tiles(_tiles(record)),
            _ladder(record),
            Section(
                "What each change costs",
                [*side_by_side([noise_chart(record), other_chart(record)]), *cost_tables(record)],
                intro=MEANING,
            ),
            *curvature_sections(record),
            notes([*(KINDS[k] for k in kinds), *scaled, *record.notes], "How to read it"),
            Section("What it ran on", [Panel(facts_or_nothing(_facts(record)), "card")]),
        ],
        footer=joined("Measured by holdfast", hardware_text(record.hardware)),
    )


def _ladder(record: ProbeRecord) -> Section | None:
    if not record.trends:
        return None
    blocks = [*side_by_side(ladder_charts(record)), trend_table(record), *turn_tables(record)]
    return Section("Along the ladder", blocks, intro=LADDER)


def probe_blocks(record: ProbeRecord) -> list[Block]:
    """Lead and tables, for a terminal."""
    trend = [trend_table(record), *turn_tables(record)] if record.trends else []
    return [
        Paragraph(lead(record)),
        *cost_tables(record),
        *trend,
        *(Paragraph(f"note: {n}", "note") for n in record.notes),
    ]


def lead(record: ProbeRecord) -> str:
    """The answer in a sentence or two."""
    if not record.sensitivities:
        return "Nothing was measured yet."
    entry = record.sensitivities[0].entry
    own = [s for s in record.sensitivities if s.entry == entry]
    if record.ladder and len(record.models) > 1:
        return _along_ladder(record, entry)
    parts = []
    for model in record.models:
        mine = [s for s in own if s.model == model.label]
        middle = [_middle([s for s in mine if s.kind == kind]) for kind in KINDS]
        told = [f"{change_text(s)} {_cost(s)}" for s in middle if s is not None]
        parts.append(f"{model.label}: {', '.join(told)}.")
    name, unit = entry.rpartition("/")[2], own[0].unit
    return f"What it costs on {name}, in {unit}. {' '.join(parts)}"


def _along_ladder(record: ProbeRecord, entry: str) -> str:
    """How costs move from the smallest to the largest budget."""
    own = [t for t in record.trends if t.entry == entry]
    named = {v: [change_text(t) for t in own if t.verdict == v] for v in TREND_TONES}
    told = [f"{verdict}: {listed(names)}" for verdict, names in named.items() if names]
    turned = [
        f"{change_text(t)} beyond {count(t.tokens)}"
        for t in record.inflections
        if t.entry == entry and t.kind != AS_IT_IS and t.verdict == "turns"
    ]
    told += [f"more pre-training harms the model under {listed(turned)}"] if turned else []
    budgets = f"from {count(record.models[0].tokens)} to {count(record.models[-1].tokens)} tokens of pre-training"
    return f"What changes cost on {entry.rpartition('/')[2]} {budgets}: {'; '.join(told)}."


def _middle(held: Sequence[Sensitivity]) -> Sensitivity | None:
    """One change of a kind to speak of: the one in the middle of its sizes, as asked for."""
    return held[len(held) // 2] if held else None


def _cost(s: Sensitivity) -> str:
    return f"{number(s.harm, decimals_for(s.interval), sign=True)} {_interval(s)}" if not s.failed else s.failed


def _interval(s: Sensitivity) -> str:
    return interval_text(_ends(s), decimals_for(s.interval), sign=True)


def _ends(s: Sensitivity) -> tuple[float, float] | None:
    """The interval of the cost."""
    if s.interval is None:
        return None
    return (-s.interval[1], -s.interval[0]) if s.higher_is_better else s.interval


def change_text(s: Sensitivity | Trend | Inflection) -> str:
    """A change in words: "noise 0.01", "int4", "30 % pruned", "50 % of the way to tuned"."""
    return {
        NOISE: f"noise {s.size:g}",
        QUANTIZE: s.label,
        PRUNE: f"{100 * s.size:g} % pruned",
        TOWARD: f"{100 * s.size:g} % of the way to {s.label}" if s.size != 1 else f"all the way to {s.label}",
    }[s.kind]


def _budgets(record: ProbeRecord) -> list[str]:
    known = [m.tokens for m in record.models if m.tokens is not None]
    return [f"{count(min(known))} to {count(max(known))} tokens of pre-training"] if len(known) > 1 else []


def _tiles(record: ProbeRecord) -> list[Tile]:
    """The costs of the largest budget, or of the first model."""
    if not record.models:
        return []
    model = (record.models[-1] if record.ladder else record.models[0]).label
    entry = record.sensitivities[0].entry if record.sensitivities else ""
    found = []
    for kind in KINDS:
        s = _middle([s for s in record.sensitivities if (s.model, s.entry, s.kind) == (model, entry, kind)])
        if s is not None:
            value = "∞" if s.failed else number(s.harm, decimals_for(s.interval), sign=True)
            found.append(Tile(f"{model}: {change_text(s)}", value, s.failed or f"{s.unit} {_interval(s)}"))
    return found


# --------------------------------------------------------------------------------------------------------------- tables


def cost_tables(record: ProbeRecord) -> list[Table]:
    """One table an entry: a change a line, a model a column."""
    found = []
    for entry in dict.fromkeys(s.entry for s in record.sensitivities):
        own = [s for s in record.sensitivities if s.entry == entry]
        cells = {(s.kind, s.label, s.size, s.model): s for s in own}
        changes = dict.fromkeys((s.kind, s.label, s.size) for s in own)
        models = [m for m in record.models if any(s.model == m.label for s in own)]
        as_it_is: list[Text] = ["as it is"]
        for m in models:
            before = next(s.before for s in own if s.model == m.label)
            as_it_is.append(figure(number(before, 4), value=before))
        rows = [as_it_is]
        for change in changes:
            row: list[Text] = []
            for m in models:
                s = cells.get((*change, m.label))
                row.append("" if s is None else _cell(s))
            rows.append([change_text(next(s for s in own if (s.kind, s.label, s.size) == change)), *row])
        heads = [Column(title="Change"), *(Column(title=_head(m), numeric=True) for m in models)]
        better = "higher" if own[0].higher_is_better else "lower"
        title = f"{entry}: cost in {own[0].unit} ({better} figures are better)"
        found.append(Table(columns=heads, rows=rows, title=title, kind="dense"))
    return found


def trend_table(record: ProbeRecord) -> Table:
    """From the smallest to the largest budget, a change a line."""
    several = len({t.entry for t in record.trends}) > 1
    entry = [Col("Figure", lambda t: t.entry.rpartition("/")[2], numeric=False)] if several else []
    first, last = (count(m.tokens) for m in (record.models[0], record.models[-1]))
    return tabulate(
        record.trends,
        [
            Col("Change", change_text, numeric=False),
            Col("The cost", lambda t: chip(t.verdict, TREND_TONES[t.verdict]), numeric=False),
            *entry,
            Col(f"At {first} tokens", lambda t: number(t.first, _digits(t), sign=True)),
            Col(f"At {last} tokens", lambda t: number(t.last, _digits(t), sign=True)),
            Col("Difference", lambda t: figure(*Measure().texts(t.difference, sign=True), value=t.difference.value)),
        ],
        kind="dense",
    )


def turn_tables(record: ProbeRecord) -> list[Block]:
    """At which budget a changed model is at its best, a change a line."""
    if not record.inflections:
        return []
    several = len({t.entry for t in record.inflections}) > 1
    entry = [Col("Figure", lambda t: t.entry.rpartition("/")[2], numeric=False)] if several else []
    table = tabulate(
        record.inflections,
        [
            Col("Model", lambda t: "as it is" if t.kind == AS_IT_IS else change_text(t), numeric=False),
            Col("More pre-training", lambda t: chip(TURNS[t.verdict], TURN_TONES[t.verdict]), numeric=False),
            *entry,
            Col("Best at, tokens", lambda t: figure(count(t.tokens), budget_interval(t), value=t.tokens)),
            Col("Lost from there on", _lost),
        ],
        kind="dense",
    )
    return [Paragraph(TURNING, "prose"), table]


def budget_interval(t: TurningPoint) -> str:
    """The budgets that may be the best one; "" of a single one."""
    low, high = t.interval
    return "" if low == high else between(count(low), count(high))


def _lost(t: Inflection) -> str:
    return "" if not t.after else "∞" if math.isinf(t.after) else f"{significant(rounded(t.after, 3))} {t.unit}"


def _digits(t: Trend) -> int:
    return decimals_for(t.difference.interval)


def _head(model: Any) -> Text:
    return model.label if model.tokens is None else f"{model.label} ({count(model.tokens)} tokens)"


def _cell(s: Sensitivity) -> Text:
    if s.failed:
        return figure("∞", s.failed, tone="bad")
    ends = _ends(s)
    tone = "" if ends is None or ends[0] <= 0 <= ends[1] else "bad" if s.harm > 0 else "good"
    return figure(number(s.harm, decimals_for(s.interval), sign=True), _interval(s), value=s.harm, tone=tone)


# --------------------------------------------------------------------------------------------------------------- charts


def noise_chart(record: ProbeRecord) -> Chart | None:
    """The cost of noise against gamma, a line a model."""
    return _sizes_chart(record, NOISE, "Noise", "γ", "gamma", "noise, γ")


def _sizes_chart(record: ProbeRecord, kind: str, title: str, head: str, key: str, axis: str) -> Chart | None:
    own = _of_first_entry(record, kind)
    if len({s.size for s in own}) < 2:
        return None
    rows = [_row(s) | {key: f"{s.size:g}"} for s in own if not s.failed]
    marks = [
        Mark(kind="line", where={"model": m.label}, name=m.label, **_look(place))
        for place, m in enumerate(record.models)
    ]
    sizes = sorted({s.size for s in own})
    return Chart(
        title=f"{title}: cost against size",
        rows=rows,
        columns=[Col("Model", "model", numeric=False), Col(head, key), Col(f"Cost, {own[0].unit}", "y")],
        marks=marks,
        x=Axis(title=axis, log=True, ticks=ticks_at(sizes) if len(sizes) < 7 else log_ticks(sizes[0], sizes[-1])),
        y=Axis(title=f"cost, {own[0].unit}", zero=True),
        caption=f"On {own[0].entry.rpartition('/')[2]}.{_left_out(own)}",
        height=360,
    )


def other_chart(record: ProbeRecord) -> Chart | None:
    """The cost of bits and pruning, a bar each."""
    own = [s for s in _of_first_entry(record, QUANTIZE, PRUNE) if not s.failed]
    if not own:
        return None
    names = list(dict.fromkeys(change_text(s) for s in own))
    many = len(record.models) > 1
    rows = [
        _row(s)
        | {
            "change": change_text(s),
            "place": names.index(change_text(s)) + (_shift(record, s.model) if many else 0.0),
            "colour": COLOURS[_place(record, s.model) % len(COLOURS)],
        }
        for s in own
    ]
    marks = [
        Mark(kind="points", x="y", y="place", where={"model": m.label}, name=m.label, **_look(n, line=False))
        for n, m in enumerate(record.models)
    ]
    return Chart(
        title="Few bits and pruning",
        rows=rows,
        columns=[
            Col("Change", "change", numeric=False),
            Col("Model", "model", numeric=False),
            Col(f"Cost, {own[0].unit}", "y"),
        ],
        marks=marks,
        x=Axis(title=f"cost, {own[0].unit}", zero=True),
        y=Axis(names=names),
        caption=f"On {own[0].entry.rpartition('/')[2]}.{_left_out(_of_first_entry(record, QUANTIZE, PRUNE))}",
        height=max(220, 60 + 34 * len(names) * (1 if not many else 1 + len(record.models) // 4)),
    )


def ladder_charts(record: ProbeRecord) -> list[Chart]:
    """The figure and the cost against the budget, a line a change: figures 2 and 3 of the paper on one's own ladder."""
    own = _of_first_entry(record)
    if not own:
        return []
    tokens = {m.label: m.tokens for m in record.models}
    entry, unit = own[0].entry.rpartition("/")[2], own[0].unit
    changes = list(dict.fromkeys((s.kind, s.label, s.size) for s in own if s.kind in (NOISE, QUANTIZE, PRUNE)))
    ticks = ticks_at([m.tokens for m in record.models if m.tokens]) if len(record.models) < 7 else ()
    shown = [(t, count(t)) for t, _ in ticks]
    x = Axis(title="tokens of pre-training", log=True, ticks=shown)
    cost_rows = [_row(s) | {"x": tokens[s.model], "change": change_text(s)} for s in own if not s.failed]
    base_rows = [
        {"x": m.tokens, "change": "as it is", "model": m.label, "y": rounded(s.before)}
        for m in record.models
        if (s := next((s for s in own if s.model == m.label), None)) is not None
    ]
    after_rows = [
        {"x": tokens[s.model], "change": change_text(s), "model": s.model, "y": rounded(s.after)}
        for s in own
        if not s.failed
    ]
    names = [change_text(next(s for s in own if (s.kind, s.label, s.size) == c)) for c in changes]
    heads = [Col("Model", "model", numeric=False), Col("Change", "change", numeric=False)]
    lines = [Mark(kind="line", where={"change": n}, name=n, **_look(place)) for place, n in enumerate(names)]
    base = Mark(kind="line", where={"change": "as it is"}, name="as it is", colour="ink", symbol="star", bars=0)
    return [
        Chart(
            title="The changed model by budget",
            rows=[*base_rows, *after_rows],
            columns=[*heads, Col(unit, "y")],
            marks=[base, *lines],
            x=x,
            y=Axis(title=f"{entry}, {unit}"),
            caption="Where a line turns, more pre-training makes the changed model worse (the inflection point).",
            height=380,
        ),
        Chart(
            title="What the change costs by budget",
            rows=cost_rows,
            columns=[*heads, Col(f"Cost, {unit}", "y")],
            marks=lines,
            x=x,
            y=Axis(title=f"cost, {unit}", zero=True),
            caption=f"On {entry}.{_left_out(own)}",
            height=380,
        ),
    ]


def _of_first_entry(record: ProbeRecord, *kinds: str) -> list[Sensitivity]:
    entry = record.sensitivities[0].entry if record.sensitivities else ""
    return [s for s in record.sensitivities if s.entry == entry and (not kinds or s.kind in kinds)]


def _row(s: Sensitivity) -> dict[str, Any]:
    ends = _ends(s)
    digits = decimals_for(s.interval)
    value = Value(
        value=s.harm,
        low=None if ends is None else ends[0],
        high=None if ends is None else ends[1],
        text=number(s.harm, digits, sign=True),
        interval=_interval(s),
    )
    return {"model": s.model, "x": s.size, "y": value}


def _look(place: int, *, line: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {"colour": COLOURS[place % len(COLOURS)], "symbol": SYMBOLS[place % len(SYMBOLS)]}
    return found | ({"dash": DASHES[place // len(COLOURS) % len(DASHES)]} if line else {})


def _place(record: ProbeRecord, label: str) -> int:
    return next(n for n, m in enumerate(record.models) if m.label == label)


def _shift(record: ProbeRecord, label: str) -> float:
    """Models of one change lie beside each other."""
    many = len(record.models)
    return 0.6 * (_place(record, label) / (many - 1) - 0.5) if many > 1 else 0.0


def _left_out(own: Sequence[Sensitivity]) -> str:
    broken = [f"{change_text(s)} of {s.model}" for s in own if s.failed]
    return f" Not finite, so not drawn: {', '.join(broken)}." if broken else ""


# ------------------------------------------------------------------------------------------------------------ curvature


def curvature_sections(record: ProbeRecord) -> list[Section]:
    """What is known of the curvature of the loss; nothing where it was not measured."""
    if not record.sharpness:
        return []
    charts = [
        chart for sharpness in record.sharpness for chart in line_charts(sharpness, many=len(record.sharpness) > 1)
    ]
    first = record.sharpness[0]
    return [
        Section(
            "Curvature of the loss",
            [sharpness_table(record.sharpness), *side_by_side(charts)],
            intro=(
                f"Of the loss on {plural(first.documents, 'document')} ({first.tokens:,} tokens), nats a token. Noise "
                "costs γ²/2 Tr(SH) on average where the loss is quadratic, S the variances at initialisation; traces "
                f"are Hutchinson's estimates over {first.probes} random vectors, with their interval. The paper finds "
                "the loss above its quadratic approximation once steps are large."
            ),
        )
    ]


def sharpness_table(held: Sequence[Sharpness]) -> Table:
    """A model a line."""

    def estimate(value: float | None, interval: tuple[float, float] | None) -> Text:
        if value is None:
            return ""
        ends = (
            ""
            if interval is None
            else f"[{significant(rounded(interval[0], 3))}, {significant(rounded(interval[1], 3))}]"
        )
        return figure(significant(rounded(value, 4)).replace("-", MINUS), ends, value=value)

    columns = [
        Col("Model", "model", numeric=False),
        Col("Loss", lambda s: number(s.loss, 4)),
        Col("Gradient norm", lambda s: significant(rounded(s.gradient_norm, 3))),
        Col("Trace of H", lambda s: estimate(s.trace, s.trace_interval)),
        Col("Tr(SH)", lambda s: estimate(s.noise_trace, s.noise_trace_interval)),
        *(
            [Col("Largest eigenvalues", lambda s: ", ".join(significant(rounded(v, 3)) for v in s.eigenvalues))]
            if any(s.eigenvalues for s in held)
            else []
        ),
    ]
    return tabulate(held, columns, kind="dense")


def line_charts(sharpness: Sharpness, *, many: bool) -> list[Chart]:
    """The loss along each direction against its quadratic approximation."""
    found = []
    for line in sharpness.lines:
        losses = [(size, loss) for size, loss in line.losses if math.isfinite(loss)]
        lost = [f"{size:g}" for size, loss in line.losses if not math.isfinite(loss)]
        if len(losses) < 3 or losses[0][0] != 0:
            continue
        start = losses[0][1]
        rows: list[Row] = [
            {"x": size, "y": rounded(loss), "quadratic": rounded(line.quadratic(size, start))} for size, loss in losses
        ]
        last = max(size for size, _ in losses)
        curve = [
            {"x": rounded(last * n / 40), "quadratic": rounded(line.quadratic(last * n / 40, start))} for n in range(41)
        ]
        highest = max(loss for _, loss in losses)
        lowest = min(min(loss for _, loss in losses), min(r["quadratic"] for r in curve))
        room = 0.08 * max(highest - lowest, 1e-9)
        towards = "noise" if line.label.startswith("noise") else f"towards {line.label}"
        found.append(
            Chart(
                title=f"The loss along {line.label if towards == 'noise' else 'the step ' + towards}"
                + (f", {sharpness.model}" if many else ""),
                rows=rows,
                columns=[Col("Size", "x"), Col("Loss", "y"), Col("Quadratic", "quadratic")],
                marks=[
                    Mark(kind="line", name="measured", bars=0),
                    Mark(
                        kind="line",
                        y="quadratic",
                        rows=curve,
                        name="quadratic",
                        colour="second",
                        dash="dash",
                        markers=False,
                        bars=0,
                    ),
                ],
                x=Axis(title="γ" if towards == "noise" else "share of the way"),
                y=Axis(title="nats/token", range=(lowest - room, highest + room)),
                caption=f"Slope {significant(rounded(line.slope, 3))}, curvature "
                f"{significant(rounded(line.curvature, 3))}.".replace("-", MINUS)
                + (f" Not finite at {', '.join(lost)}." if lost else ""),
                height=340,
            )
        )
    return found


def _facts(record: ProbeRecord) -> list[tuple[str, Text]]:
    models = [
        (m.label, f"{m.name}, {m.architecture}, {count(m.parameters)} parameters, {m.dtype}") for m in record.models
    ]
    asked = [
        (k.replace("_", " "), setting(v)) for k, v in record.settings.items() if v not in (None, [], {}, "", False)
    ]
    return [*models, *asked, *hardware_rows(record.hardware)]
