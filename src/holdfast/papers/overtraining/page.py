"""`report.html` of an overtraining study (Overtrained Language Models), and what the terminal prints: what fine-tuning
and other changes cost checkpoints of rising budgets, at fixed rates and at tuned ones, and what retention does to it.

Reads the record, nothing else; it can be written at any moment and names what is missing. Costs are signed so that a
loss is positive.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.papers.overtraining.record import (
    CANNOT_TELL,
    CONSTANT,
    EARLIER,
    FALLS,
    LATER,
    QUICK,
    RISES,
    SLOW,
    Arm,
    Growth,
    OvertrainingRecord,
    Scored,
    SeenExample,
    SeenGroup,
    Shift,
    TunedModel,
    TunedTurn,
)
from holdfast.records.figure import Figure
from holdfast.records.measure import Measure, decimals_for, interval_text, number
from holdfast.records.probe import ProbeRecord
from holdfast.reports import blocks as b
from holdfast.reports.blocks import (
    Block,
    Fold,
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
    figure,
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
    Rule,
    Value,
    log_ticks,
    rounded,
    tabulate,
    ticks_at,
)
from holdfast.reports.format import (
    count,
    duration,
    flatten,
    hardware_rows,
    hardware_text,
    joined,
    listed,
    plural,
    significant,
)
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
    other_chart,
    trend_table,
    turn_tables,
)

if TYPE_CHECKING:
    from rich.console import Console

STATUS_TONES = {"finished": "good", "running": "warn", "interrupted": "warn", "failed": "bad"}
STATE_TONES = {"complete": "good", "running": "warn", "waiting": "flat", "failed": "bad"}
SHIFT_TONES = {LATER: "good", EARLIER: "bad", CANNOT_TELL: "flat"}
CLASS_TONES = {QUICK: "good", SLOW: "bad", CONSTANT: "flat", FALLS: "flat", RISES: "flat", CANNOT_TELL: "flat"}
LITTLE = 0.5
"""Share of what direct fine-tuning gains of a task, below which it is said beside what a way keeps."""
AT_TUNED = "tuned"
AS_IT_IS = "checkpoint as it is"
HOW = (
    "Tuned: at each budget the learning rate whose validation figure is the best, means over the seeds; the test is "
    "another part of the data. A rate at an end of what was tried may not be the best one there is.",
    "Best at: the budget at which the fine-tuned model is at its best (the inflection point of definition 4.2), with "
    "the budgets that are not shown to be worse: seeds and samples paired, Bonferroni over the budgets. It says "
    "nothing of other pre-trainings.",
    "Growth: what fine-tuning costs at the largest budget over what it costs at the smallest. Later, earlier: all "
    "budgets that may be best lie beyond, or before, all those of direct fine-tuning.",
    "Constant, slow and quick (figure 7): a tuned rate that falls with the budget is slow where what should be kept "
    "turns nevertheless, and quick where it does not.",
    "Public ladders are confounded by learning rates that were not annealed. In the paper OLMo-1B degrades beyond 2.5T "
    "tokens, and OLMo-2-7B does not up to 3T.",
)


def print_overtraining(record: OvertrainingRecord, folder: str | Path, console: Console | None = None) -> None:
    """Prints the answer, the tuned rates, and where the page is.

    Args:
        record: finished or not.
        folder: the study's.
        console: where to print; the terminal by default.
    """
    from holdfast.reports.terminal import Printer

    told: list[Block] = [Paragraph(f"{record.name} ({record.status})", "strong"), Paragraph(lead(record))]
    told += [tuned_table(record, task) for task in record.tasks if any(r.task == task for r in record.rates)]
    told += [shift_table(record, brief=True)] if record.shifts else []
    told += [Paragraph(f"note: {n}", "note") for n in record.notes]
    Printer(console).show([*told, Paragraph(f"Page: {Path(folder) / 'report.html'}")])


def overtraining_page(record: OvertrainingRecord) -> Page:
    """The page as blocks."""
    probed = as_probed(record)
    first, last = (count(record.checkpoints[place].tokens) for place in (0, -1))
    failed = [f"{_named(m)}: {m.reason}" for m in record.models if m.state == "failed"]
    return Page(
        tab=f"{record.name}: holdfast overtraining",
        eyebrow="holdfast overtraining report",
        title=record.name,
        lead=lead(record),
        status=(record.status, STATUS_TONES.get(record.status, "")),
        details=" · ".join(
            [
                plural(len(record.checkpoints), "checkpoint"),
                f"{first} to {last} tokens of pre-training",
                *record.tasks,
                plural(len(record.config.get("seeds", [])), "seed"),
                record.created,
            ]
        ),
        blocks=[
            *b.problems("Some models failed.", failed),
            Tiles(_tiles(record)),
            *(section for task in record.tasks for section in _task_sections(record, task)),
            *_without_training(probed),
            *curvature_sections(probed),
            _models(record),
            b.notes([*HOW, *record.notes], "How to read it"),
            Section("The study", [Panel(b.facts_or_nothing(_facts(record)), "card"), _configuration(record)]),
        ],
        footer=joined("Measured by holdfast", hardware_text(record.hardware)),
    )


def as_probed(record: OvertrainingRecord) -> ProbeRecord:
    """What the checkpoints went through without training, as a probe's record."""
    models = [c.probed for c in record.checkpoints if c.probed is not None]
    return ProbeRecord(
        models=models,
        sensitivities=record.sensitivities,
        trends=record.trends,
        inflections=record.inflections,
        sharpness=record.sharpness,
        ladder=True,
        status=record.status,
    )


# --------------------------------------------------------------------------------------------------------------- answer


def lead(record: OvertrainingRecord) -> str:
    """The answer in a few sentences: of direct fine-tuning at tuned rates, and of what retention does."""
    told = []
    for task in record.tasks:
        for suite, what in (("source", "what should be kept"), ("target", "the task")):
            scored = record.leading(task, suite)
            turn = _turn(record, task, record.direct, None, scored)
            if turn is None or scored is None:
                continue
            told.append(f"{task}, {record.direct} at tuned rates: {what} ({scored.name}) {_turn_words(turn)}.")
        lead_of = record.leading(task, "source")
        moved = [s for s in record.shifts if lead_of and (s.task, s.rate, s.entry) == (task, None, lead_of.key)]
        told += [f"{s.arm}: {words}." for s in moved if (words := _shift_words(record, s))]
    if not told and record.inflections:
        turned = [t for t in record.trends if t.verdict == "grows"]
        told.append(
            f"{len(turned)} of {len(record.trends)} changes without training cost more after longer pre-training."
        )
    left = sum(m.state != "complete" for m in record.models)
    if left:
        told.append(f"{len(record.models) - left} of {len(record.models)} fine-tunings are there.")
    return " ".join(told) or "Nothing was measured yet."


def _turn_words(turn: TunedTurn) -> str:
    at = f"{count(turn.tokens)} tokens {budget_interval(turn)}".rstrip()
    if turn.verdict == "turns":
        return f"is best at {at}; longer pre-training costs {significant(rounded(turn.after, 3))} {turn.unit}"
    if turn.verdict == "does not turn":
        return "gets better up to the largest budget"
    return f"is best at {at}, and whether it turns cannot be told"


def _shift_words(record: OvertrainingRecord, s: Shift) -> str:
    """What a way does to turning point and cost; empty where nothing can be told."""
    digits = decimals_for(s.growth.interval)
    clear = _is_clear(s.growth)
    own = {g.arm: g for g in record.growth if (g.task, g.rate, g.entry) == (s.task, s.rate, s.entry)}
    grows = ""
    if clear and s.arm in own and s.against in own:  # "grows less" would be said of costs that fall, too
        mine, theirs = own[s.arm].difference.value, own[s.against].difference.value
        unit = f" {s.unit}" if s.unit else ""
        grows = f"along the ladder its cost {_moves(mine, digits)}{unit}, that of {s.against} {_moves(theirs, digits)}"
    turns = "" if s.verdict == CANNOT_TELL else f"its turning point comes {s.verdict}"
    words = " and ".join(part for part in (turns, grows) if part)
    learnt, beside = _learnt(record, s.task, s.arm), _learnt(record, s.task, s.against)
    if words and learnt is not None and beside is not None and learnt < LITTLE * beside:  # who learns nothing keeps all
        share = 100 * max(0.0, learnt / beside)
        words += f"; but it learns {share:.0f} % of what {s.against} does of {s.task}"
    return words


def _learnt(record: OvertrainingRecord, task: str, arm: str) -> float | None:
    """What a way gains of the task at its tuned rates, mean over the checkpoints; None where one of them is missing."""
    lead, own = record.leading(task, "target"), [r for r in record.rates if (r.task, r.arm) == (task, arm)]
    models = [record.model(r.task, r.arm, r.rate, r.checkpoint) for r in own]
    gains = [-m.costs[lead.key].value for m in models if m is not None and lead and lead.key in m.costs]
    whole = len(gains) == len(record.checkpoints) and all(map(math.isfinite, gains))
    return statistics.fmean(gains) if gains and whole else None


def _moves(value: float, digits: int) -> str:
    return f"{'grows' if value > 0 else 'falls'} by {number(abs(value), digits)}"


def _tiles(record: OvertrainingRecord) -> list[Tile]:
    done = [m for m in record.models if m.state == "complete"]
    diverged = sum(len(m.diverged) for m in record.models)
    tiles = [
        Tile(
            "Fine-tunings", f"{sum(len(m.seeds) for m in record.models)}", f"{len(done)} of {len(record.models)} cells"
        ),
        Tile(
            "Ways to fine-tune",
            str(len(record.arms)),
            listed([a.label for a in record.arms]) if record.arms else "",
        ),
        Tile("Time", duration(sum(m.seconds for m in record.models)), "of training and measuring, added up"),
    ]
    return tiles + (
        [Tile("Diverged", str(diverged), "fine-tunings, counted as a loss without end")] if diverged else []
    )


# --------------------------------------------------------------------------------------------------------------- a task


def _task_sections(record: OvertrainingRecord, task: str) -> list[Section]:
    if task not in record.scored:
        return []
    target, source = (record.leading(task, suite) for suite in ("target", "source"))
    tuned = [
        _tuned_chart(record, task, scored, title)
        for scored, title in ((target, "the task"), (source, "what should be kept"))
        if scored is not None
    ]
    sections = [
        Section(
            f"{task}: every budget at its tuned rate",
            [*b.side_by_side([*tuned, _rate_chart(record, task)]), tuned_table(record, task), rate_table(record, task)],
            intro="The learning rate is chosen by the validation data, anew at each budget (figures 6 and 7 of the "
            "paper).",
        )
    ]
    sections += _seen(record, task)
    if any(s.task == task for s in record.shifts):
        sections.append(
            Section(
                f"{task}: what retention does to it",
                [*b.side_by_side([_growth_chart(record, task, source)]), shift_table(record, task)],
                intro="The paper expects that regularised fine-tuning delays the inflection point (section 3.4.2), and "
                "did not try it.",
            )
        )
    others = []
    for arm in record.arms:
        charts = [
            chart
            for scored in (source, target)
            if scored is not None
            for chart in (
                _at_rates(record, task, arm, scored, cost=False),
                _at_rates(record, task, arm, scored, cost=True),
            )
        ]
        turns = turn_table(record, task, arm)
        shown: list[Any] = [*b.side_by_side(charts), *([turns] if turns is not None else [])]
        if arm.label == record.direct:
            sections.append(
                Section(
                    f"{task}: {arm.label} at fixed rates",
                    shown,
                    intro="One learning rate at all budgets (figures 4 and 5): where a line turns, longer pre-training "
                    "makes the fine-tuned model worse.",
                )
            )
            sections += _distance(record, task, arm)
        elif any(charts):
            others.append(Fold(arm.label, shown))
    return [*sections, *([Section(f"{task}: the other ways at fixed rates", others)] if others else [])]


def _seen(record: OvertrainingRecord, task: str) -> list[Section]:
    """What models that see answer: families of questions, and examples with their pictures."""
    groups = [g for g in record.groups if g.task == task]
    examples = [e for e in record.examples if e.task == task]
    if not groups and not examples:
        return []
    intro = (
        "The score is the mean over all questions. The paper's VLM score (MME, GQA, AI2D, POPE, TextVQA) is another: "
        "figures are not comparable with its."
    )
    blocks: list[Block | None] = [seen_table(record, groups) if groups else None]
    blocks += [example_table(record, examples)] if examples else []
    return [Section(f"{task}: what the models see", blocks, intro=intro)]


def seen_table(record: OvertrainingRecord, groups: list[SeenGroup]) -> Table:
    """Right answers by family of questions, a line a way and budget, with what guessing gives.

    Args:
        record: of the study.
        groups: of one task.
    """
    by_model: dict[tuple[str, str], dict[str, SeenGroup]] = {}
    for g in groups:
        by_model.setdefault((g.arm, g.checkpoint), {})[g.group] = g
    tokens = {c.label: c.tokens for c in record.checkpoints}
    first = next(iter(by_model.values()))

    def right(name: str) -> Any:
        return lambda item: number(item[1][name].value, 3) if name in item[1] else ""

    return tabulate(
        list(by_model.items()),
        [
            Col("Way", lambda item: item[0][0], numeric=False),
            Col("Tokens", lambda item: figure(count(tokens[item[0][1]]), value=tokens[item[0][1]])),
            *(
                Col((name, b.sub(f"{g.n} questions; guessing {number(g.chance, 2)}")), right(name))
                for name, g in first.items()
            ),
        ],
        kind="dense",
        title="Right answers by family, at tuned rates",
    )


def example_table(record: OvertrainingRecord, examples: list[SeenExample]) -> Table:
    """Questions with their pictures, and what each checkpoint answers.

    Args:
        record: of the study.
        examples: of one task.
    """

    def answer(label: str) -> Any:
        def of(e: SeenExample) -> Text:
            place = e.answers.get(label)
            return "" if place is None else chip(e.options[place].strip(), "good" if place == e.right else "bad")

        return of

    answered = [c for c in record.checkpoints if any(c.label in e.answers for e in examples)]
    return tabulate(
        examples,
        [
            Col("Picture", lambda e: Span("a picture", picture=e.picture) if e.picture else "", numeric=False),
            Col("Question", lambda e: (asked_words(e.question), b.sub(e.group) if e.group else None), numeric=False),
            Col("Right", lambda e: e.options[e.right].strip(), numeric=False),
            *(Col(f"{count(c.tokens)} tokens", answer(c.label), numeric=False) for c in answered),
        ],
        kind="dense",
        title=f"The first question of each family: answers after {record.direct} at the tuned rate, first seed",
    )


def asked_words(question: str) -> str:
    """A question without the place of its picture."""
    return " ".join(question.replace("<image>", " ").split())


def _of(record: OvertrainingRecord, task: str, arm: str, checkpoint: str, rate: float | None) -> TunedModel | None:
    """A fine-tuned model at a rate, or at the tuned one."""
    if rate is None:
        chosen = [r.rate for r in record.rates if (r.task, r.arm, r.checkpoint) == (task, arm, checkpoint)]
        if not chosen:
            return None
        rate = chosen[0]
    return record.model(task, arm, rate, checkpoint)


def _turn(
    record: OvertrainingRecord, task: str, arm: str, rate: float | None, scored: Scored | None
) -> TunedTurn | None:
    wanted = (task, arm, rate, scored.key if scored is not None else "")
    return next((t for t in record.turns if (t.task, t.arm, t.rate, t.entry) == wanted), None)


def _value(f: Figure, *, cost: bool) -> Value:
    low, high = f.interval or (None, None)
    text, interval = Measure().texts(f, sign=cost)
    return Value(value=f.value, low=low, high=high, text=text, interval=interval)


def _is_clear(f: Figure) -> bool:
    return f.interval is not None and not f.interval[0] <= 0 <= f.interval[1]


def _tokens_axis(record: OvertrainingRecord) -> Axis:
    budgets = [c.tokens for c in record.checkpoints]
    ticks = [(t, count(t)) for t in budgets] if len(budgets) < 7 else log_ticks(budgets[0], budgets[-1])
    return Axis(title="tokens of pre-training", log=True, ticks=ticks or ticks_at(budgets))


def _line_look(place: int) -> dict[str, Any]:
    """Colour, symbol and dash of the line at a place."""
    return {
        "colour": COLOURS[place % len(COLOURS)],
        "symbol": SYMBOLS[place % len(SYMBOLS)],
        "dash": DASHES[place // len(COLOURS) % len(DASHES)],
    }


def _base_rows(record: OvertrainingRecord, task: str, scored: Scored) -> list[Row]:
    """The checkpoints as they are: what a fine-tuned model's figure was before, without its cost."""
    found: list[Row] = []
    for c in record.checkpoints:
        tuned = (m for m in record.models if (m.task, m.checkpoint) == (task, c.label) and scored.key in m.scores)
        model = next((m for m in tuned if math.isfinite(m.scores[scored.key].value)), None)
        if model is not None:
            sign = -1.0 if scored.higher_is_better else 1.0
            before = model.scores[scored.key].value - sign * model.costs[scored.key].value
            found.append({"line": AS_IT_IS, "x": c.tokens, "tokens": count(c.tokens), "y": before})
    return found


_BASE = Mark(kind="line", where={"line": AS_IT_IS}, name=AS_IT_IS, colour="ink", symbol="star", bars=0)


def _tuned_chart(record: OvertrainingRecord, task: str, scored: Scored, what: str) -> Chart | None:
    """A figure at tuned rates against the budget, a line a way."""
    rows = _base_rows(record, task, scored) if scored.suite == "source" else []
    base = bool(rows)
    for arm in record.arms:
        for c in record.checkpoints:
            m = _of(record, task, arm.label, c.label, None)
            if m is not None and (f := m.scores.get(scored.key)) is not None and math.isfinite(f.value):
                rows.append({"line": arm.label, "x": c.tokens, "tokens": count(c.tokens), "y": _value(f, cost=False)})
    if len(rows) <= len(record.checkpoints) * base:
        return None
    marks = [
        Mark(kind="line", where={"line": a.label}, name=a.label, **_line_look(n)) for n, a in enumerate(record.arms)
    ]
    better = "higher" if scored.higher_is_better else "lower"
    return Chart(
        title=f"{what.capitalize()}: {scored.name}",
        rows=rows,
        columns=[Col("Model", "line", numeric=False), Col("Tokens", "tokens"), Col(scored.unit, "y")],
        marks=[*([_BASE] if base else []), *marks],
        x=_tokens_axis(record),
        y=Axis(title=scored.unit),
        rules=_guessing(scored),
        caption=f"At tuned rates; {better} is better.{_guessing_words(scored)}",
        height=380,
    )


def _guessing(scored: Scored) -> list[Rule]:
    """The line of what guessing gives."""
    return [] if scored.chance is None else [Rule(y=scored.chance)]


def _guessing_words(scored: Scored) -> str:
    return "" if scored.chance is None else f" Dotted: guessing, {significant(rounded(scored.chance, 3))}."


def _rate_chart(record: OvertrainingRecord, task: str) -> Chart | None:
    """The tuned rate against the budget, a line a way."""
    own = [r for r in record.rates if r.task == task]
    if not own:
        return None
    rows: list[Row] = [
        {
            "line": r.arm,
            "x": r.tokens,
            "tokens": count(r.tokens),
            "y": Value(
                value=r.rate, low=r.interval[0], high=r.interval[1], text=f"{r.rate:g}", interval=_rates(r.interval)
            ),
        }
        for r in own
    ]
    tried = sorted({rate for a in record.arms for rate in a.rates})
    return Chart(
        title="Tuned learning rate",
        rows=rows,
        columns=[Col("Model", "line", numeric=False), Col("Tokens", "tokens"), Col("Rate", "y")],
        marks=[
            Mark(kind="line", where={"line": a.label}, name=a.label, **_line_look(n)) for n, a in enumerate(record.arms)
        ],
        x=_tokens_axis(record),
        y=Axis(title="learning rate", log=True, ticks=[(t, f"{t:g}") for t in tried] if len(tried) < 9 else ()),
        caption="Bars: rates that are not shown to be worse on the validation data.",
        height=380,
    )


def _rates(interval: tuple[float, float]) -> str:
    return "" if interval[0] == interval[1] else f"[{interval[0]:g}, {interval[1]:g}]"


def _at_rates(record: OvertrainingRecord, task: str, arm: Arm, scored: Scored, *, cost: bool) -> Chart | None:
    """A figure, or what fine-tuning has taken from it, against the budget: a line a rate."""
    base = [] if cost or scored.suite != "source" else _base_rows(record, task, scored)
    rows, lost = list(base), list[str]()
    rates = [rate for rate in arm.rates if rate not in record.left_out]
    for rate in rates:
        for c in record.checkpoints:
            m = record.model(task, arm.label, rate, c.label)
            f = (m.costs if cost else m.scores).get(scored.key) if m is not None else None
            if f is None:
                continue
            if not math.isfinite(f.value):
                lost.append(f"{rate:g} at {count(c.tokens)}")
                continue
            rows.append({"line": f"{rate:g}", "x": c.tokens, "tokens": count(c.tokens), "y": _value(f, cost=cost)})
    if len(rows) == len(base):
        return None
    marks = [Mark(kind="line", where={"line": f"{r:g}"}, name=f"{r:g}", **_line_look(n)) for n, r in enumerate(rates)]
    left = (
        f" Left out, beyond the perplexity that was allowed: {listed([f'{r:g}' for r in record.left_out])}."
        if (record.left_out)
        else ""
    )
    return Chart(
        title=f"{scored.name}: {'what fine-tuning costs' if cost else 'the fine-tuned model'}",
        rows=rows,
        columns=[Col("Learning rate", "line", numeric=False), Col("Tokens", "tokens"), Col(scored.unit, "y")],
        marks=[*([_BASE] if base else []), *marks],
        x=_tokens_axis(record),
        y=Axis(title=f"cost, {scored.unit}" if cost else scored.unit, zero=cost),
        rules=[] if cost else _guessing(scored),
        caption=(
            (f"Diverged, so not drawn: {listed(lost)}." if lost else "")
            + left
            + ("" if cost else _guessing_words(scored))
        ).strip(),
        height=360,
    )


def _growth_chart(record: OvertrainingRecord, task: str, scored: Scored | None) -> Chart | None:
    """How the cost grows along the ladder, a way a line, at tuned rates."""
    own = [
        g
        for g in record.growth
        if scored is not None
        and (g.task, g.rate, g.entry) == (task, None, scored.key)
        and math.isfinite(g.difference.value)
    ]
    if not own or scored is None:
        return None
    names = [g.arm for g in own]
    rows: list[Row] = [{"arm": g.arm, "y": names.index(g.arm), "x": _growth_value(g)} for g in own]
    return Chart(
        title=f"How much more it costs after the longest pre-training: {scored.name}",
        rows=rows,
        columns=[Col("Way", "arm", numeric=False), Col(scored.unit, "x")],
        marks=[Mark()],
        x=Axis(title=f"growth of the cost, {scored.unit}", zero=True),
        y=Axis(names=names, length=34),
        caption="Each at its tuned rates.",
        height=max(200, 70 + 34 * len(names)),
    )


def _growth_value(g: Growth | Shift) -> Value:
    return _value(g.difference if isinstance(g, Growth) else g.growth, cost=True)


def _distance(record: OvertrainingRecord, task: str, arm: Arm) -> list[Section]:
    """How far the weights went, against the rate: figure 8."""
    rows: list[Row] = [
        {"line": c.label, "rate": f"{rate:g}", "x": rate, "y": m.distance}
        for c in record.checkpoints
        for rate in arm.rates
        if (m := record.model(task, arm.label, rate, c.label)) is not None and m.distance
    ]
    if len({r["x"] for r in rows}) < 2:
        return []
    marks = [
        Mark(kind="line", where={"line": c.label}, name=f"{count(c.tokens)} tokens", bars=0, **_line_look(n))
        for n, c in enumerate(record.checkpoints)
    ]
    chart = Chart(
        title="Distance to the checkpoint",
        rows=rows,
        columns=[Col("Checkpoint", "line", numeric=False), Col("Learning rate", "rate"), Col("L2", "y")],
        marks=marks,
        x=Axis(title="learning rate", log=True, ticks=[(rate, f"{rate:g}") for rate in arm.rates[:9]]),
        y=Axis(title="L2 distance of the weights", log=True),
        height=340,
    )
    own = [d for d in record.distances if (d.task, d.arm) == (task, arm.label)]
    table = tabulate(
        own,
        [
            Col("Checkpoint", "checkpoint", numeric=False),
            Col("Exponent", lambda d: number(d.exponent, 2)),
            Col("Rates", lambda d: f"{d.rates[0]:g} to {d.rates[1]:g}"),
        ],
        kind="dense",
    )
    intro = "In the paper the distance is in proportion to the rate (an exponent of 1) and the same at all budgets."
    return [Section(f"{task}: how far the weights go", [*b.side_by_side([chart]), table], intro=intro)]


# --------------------------------------------------------------------------------------------------------------- tables


def tuned_table(record: OvertrainingRecord, task: str) -> Table:
    """A line a way and budget: the tuned rate, and the leading figures there."""
    suites = {"validation": "Validation", "target": "Test", "source": "Kept"}
    leads = {suite: scored for suite in suites if (scored := record.leading(task, suite)) is not None}

    def figures(scored: Scored, *, cost: bool = False) -> Any:
        def of(r: Any) -> Text:
            m = record.model(task, r.arm, r.rate, r.checkpoint)
            f = (m.costs if cost else m.scores).get(scored.key) if m is not None else None
            if f is None:
                return ""
            value = _value(f, cost=cost)
            return figure(value.text, value.interval, value=value.value)

        return of

    kept = leads.get("source")
    return tabulate(
        [r for r in record.rates if r.task == task],
        [
            Col("Way", "arm", numeric=False),
            Col("Tokens", lambda r: figure(count(r.tokens), value=r.tokens)),
            Col("Tuned rate", lambda r: figure(f"{r.rate:g}", _rates(r.interval), value=r.rate)),
            *(Col((f"{suites[s]}: {one.name},", b.sub(one.unit)), figures(one)) for s, one in leads.items()),
            *([Col(f"Cost in {kept.name}", figures(kept, cost=True))] if kept is not None else []),
        ],
        kind="dense",
        title=f"{task} at tuned rates",
    )


def rate_table(record: OvertrainingRecord, task: str) -> Table | None:
    """How the tuned rate moves, a way a line."""
    own = [t for t in record.rate_trends if t.task == task]
    if not own:
        return None
    return tabulate(
        own,
        [
            Col("Way", "arm", numeric=False),
            Col("The tuned rate", lambda t: chip(t.verdict, CLASS_TONES[t.verdict]), numeric=False),
            Col(
                "Exponent",
                lambda t: figure(number(t.exponent.value, 2), _exponents(t.exponent.interval), value=t.exponent.value),
            ),
            Col("", "why", numeric=False),
        ],
        kind="dense",
        title="The tuned rate against the budget: rate ~ tokens to the exponent",
    )


def _exponents(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else interval_text(interval, 2)


def shift_table(record: OvertrainingRecord, task: str = "", *, brief: bool = False) -> Table:
    """What each way does to turning point and growth, against direct fine-tuning. `brief`: at tuned rates alone."""
    leads = {(t, s.key) for t in record.tasks for suite in ("source", "target") if (s := record.leading(t, suite))}
    own = [
        s
        for s in record.shifts
        if (s.task == task or not task) and (s.task, s.entry) in leads and (s.rate is None or not brief)
    ]

    def grown(s: Shift) -> Text:
        value = _growth_value(s)
        tone = "" if not _is_clear(s.growth) else "good" if value.value < 0 else "bad"
        return figure(value.text, value.interval, value=value.value, tone=tone)

    return tabulate(
        own,
        [
            Col("Way", "arm", numeric=False),
            Col("Turning point", lambda s: chip(s.verdict, SHIFT_TONES[s.verdict]), numeric=False),
            Col("Rate", lambda s: AT_TUNED if s.rate is None else f"{s.rate:g}"),
            Col("Figure", lambda s: s.entry.rpartition("/")[2], numeric=False),
            Col("Cost grows more by", grown),
        ],
        kind="dense",
        title=f"Against {record.direct}",
    )


def turn_table(record: OvertrainingRecord, task: str, arm: Arm) -> Table | None:
    """At which budget the fine-tuned model is at its best, and how the cost grows: a rate and figure a line."""
    grown = {(g.rate, g.entry): g for g in record.growth if (g.task, g.arm) == (task, arm.label)}
    own = [t for t in record.turns if (t.task, t.arm) == (task, arm.label)]
    if not own:
        return None

    def growth(t: TunedTurn) -> Text:
        g = grown.get((t.rate, t.entry))
        if g is None:
            return ""
        value = _growth_value(g)
        return figure(value.text, value.interval, value=value.value, tone=_tone(g.verdict))

    return tabulate(
        own,
        [
            Col("Rate", lambda t: AT_TUNED if t.rate is None else f"{t.rate:g}", numeric=False),
            Col("Longer pre-training", lambda t: chip(TURNS[t.verdict], TURN_TONES[t.verdict]), numeric=False),
            Col("Figure", lambda t: t.entry, numeric=False),
            Col("Best at, tokens", lambda t: figure(count(t.tokens), budget_interval(t), value=t.tokens)),
            Col("Lost from there on", lambda t: f"{significant(rounded(t.after, 3))} {t.unit}" if t.after else ""),
            Col("The cost grows by", growth),
        ],
        kind="dense",
    )


def _tone(verdict: str) -> str:
    return {"bad": "bad", "good": "good"}.get(TREND_TONES[verdict], "")


def _without_training(probed: ProbeRecord) -> list[Section]:
    """Figures 2 and 3: what the checkpoints went through without training."""
    if not probed.sensitivities:
        return []
    trend = [*b.side_by_side(ladder_charts(probed)), trend_table(probed), *turn_tables(probed)] if probed.trends else []
    costs = [*b.side_by_side([noise_chart(probed), other_chart(probed)]), *cost_tables(probed)]
    kinds = [KINDS[k] for k in KINDS if any(s.kind == k for s in probed.sensitivities)]
    folded = Fold("What each change costs each checkpoint", [*costs, b.Bullets(kinds)])
    return [Section("Without training: noise, few bits, pruning", [*trend, folded], intro=MEANING)]


def _models(record: OvertrainingRecord) -> Section | None:
    """Every fine-tuning."""
    if not record.models:
        return None

    def epochs(m: TunedModel) -> str:
        return ", ".join(f"{e:g}" for e in m.stopped.values())

    table = tabulate(
        record.models,
        [
            Col("Fine-tuning", _named, numeric=False),
            Col("State", lambda m: chip(m.state, STATE_TONES.get(m.state, "flat")), numeric=False),
            Col("Epochs", epochs),
            Col("Distance", lambda m: "" if m.distance is None else significant(rounded(m.distance, 4))),
            Col("Time", lambda m: duration(m.seconds) if m.seconds else ""),
            Col("", lambda m: m.reason or "; ".join(dict.fromkeys(m.diverged.values())), numeric=False),
        ],
        kind="trials",
        find="fine-tuning",
    )
    return Section("All fine-tunings", [Fold("State, epochs, distance and time of each", [table])])


def _named(m: TunedModel) -> str:
    return f"{m.checkpoint}: {m.task}, {m.arm}, {m.rate:g}"


def _facts(record: OvertrainingRecord) -> list[tuple[str, Text]]:
    return [
        *((c.label, f"{c.name}, {count(c.tokens)} tokens") for c in record.checkpoints),
        *hardware_rows(record.hardware),
        *((f"{name} version", version) for name, version in record.versions.items()),
    ]


def _configuration(record: OvertrainingRecord) -> Fold | None:
    asked = {k: v for k, v in record.config.items() if k not in ("ladder", "output_dir")}
    return b.fold_facts("Configuration", flatten(asked))
