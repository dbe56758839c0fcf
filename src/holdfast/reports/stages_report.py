"""The page of a stages study (Pattern Shifting or Knowledge Losing), and what the terminal prints:
what each checkpoint has forgotten, in words first, and what to do about it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.records.comparison import Comparison
from holdfast.records.figure import Figure
from holdfast.records.measure import Measure, between
from holdfast.records.metrics import is_share
from holdfast.records.stages import (
    ACTUAL,
    BASE,
    CONTROL,
    GAINED,
    INCONCLUSIVE,
    NONE,
    NOT_YET,
    PROBING,
    PSEUDO,
    RESTORED,
    TUNED,
    MeasuredModel,
    StagesRecord,
    StageVerdict,
    TaskAbout,
    Transition,
)
from holdfast.reports import blocks as b
from holdfast.reports.along import along_charts
from holdfast.reports.charts import Axis, Chart, Rule, Shade, Value
from holdfast.reports.corpus_text import overlap_sentence
from holdfast.reports.format import join_and, plural
from holdfast.reports.stages_characteristics import characteristics_in_words
from holdfast.reports.study_page import (
    cell,
    grid,
    jobs_section,
    lines,
    print_study,
    section,
    steps_axis,
    study_page,
)
from holdfast.statistics.decision import level_of
from holdfast.statistics.paired import paired_test

if TYPE_CHECKING:
    from rich.console import Console

TONES: dict[str, b.Tone] = {
    GAINED: "good",
    NONE: "good",
    PSEUDO: "warn",
    ACTUAL: "bad",
    NOT_YET: "warn",
    INCONCLUSIVE: "flat",
}
GROUNDS = {
    GAINED: ("good", "gained"),
    NONE: ("good", "none"),
    PSEUDO: ("third", "pseudo"),
    ACTUAL: ("bad", "actual"),
    NOT_YET: ("second", "not yet"),
    INCONCLUSIVE: ("muted", ""),
}
"""Colours behind the scores, and short names that fit over one checkpoint."""
STYLES = {
    "fine-tuned": {"colour": "second", "symbol": "circle"},
    "restored": {"colour": "accent", "symbol": "diamond"},
}
TEXT = Measure(name="plain text", unit="nats per token", higher_is_better=False)
PART = Measure(share=True, bounded=False)
CHANGES = (
    "Fine-tuned and restored: changes against the base. Against control: the restored model "
    "minus the restored base. The cost of restoring cancels out, because both models were "
    "restored. Restoring alone: the effect of restoring on the base. Came back: the share of the "
    "lost score that restoring brought back."
)
CHARACTERISTICS = {
    "mass": Measure(name="Probability on the options", share=True),
    "entropy": Measure(name="Entropy of the next token", unit="nats"),
    "option_entropy": Measure(name="Entropy over the options", unit="nats"),
    "exact_memorisation": Measure(name="Tokens that the model predicts as most likely", share=True),
}
"""Metrics that are drawn by checkpoint beside what is judged."""
PATTERN = (
    "These charts show the loss on held-out plain text that is like the base's pre-training data, "
    "after fine-tuning and after restoring."
)
READING = (
    "The control is the base after the same restoring. The control shows what restoring alone "
    "costs or teaches.",
    "A loss within the margin counts as no loss. Verdicts come from one-sided paired tests over "
    "the questions (exact for right and wrong answers), adjusted over all checkpoints and tasks. "
    "The checkpoints are tested in a fixed order. The tests that show a loss begin with the last "
    "checkpoint. The tests that show that a score was kept, or came back, begin with the first.",
    "Pseudo forgetting: the score fell. After restoring, the text pattern is back, and the score "
    "is as good as that of the base and the control. Actual forgetting: after restoring, the text "
    "pattern is back, but the score is below that of the base and the control, and the last of "
    "several doses of restoring did not raise it further. Not yet restored: the last dose still "
    "brought back some of the score. With one dose, as in the paper, the loss that remains after "
    "that dose counts as actual forgetting. Even then, restoring may have brought back part of the "
    "lost score, and the page gives this share.",
    "Inconclusive: the reason says what data would decide.",
    "If you choose a checkpoint from this page, measure it again on other questions.",
)


def stages_page(record: StagesRecord) -> b.Page:
    """The page as blocks."""
    sections, scores, texts = [], [], []
    for arm in record.arms:
        sections.append(_verdicts(record, arm))
        scores += [_scores(record, arm, task) for task in record.tasks]
        texts.append(_plain_text(record, arm))
        texts += [_score_by_pattern(record, arm, task) for task in record.tasks]
    jobs = _restored_models(record)
    sections.append(section("Scores by checkpoint", *scores, anchor="scores"))
    sections.append(section("The text pattern", *texts, intro=PATTERN, anchor="pattern"))
    words = characteristics_in_words(record)
    sections.append(
        section(
            "Characteristics",
            b.Bullets(words) if words else None,
            *_characteristics(record),
            anchor="characteristics",
        )
    )
    sections += [_along(record, arm) for arm in record.along]
    sections.append(jobs_section("Restored models", jobs, {}) if jobs else None)
    base = record.config.get("toy") or record.config.get("base", "")
    checkpoints = plural(sum(map(len, record.checkpoints.values())), "checkpoint")
    details = [str(base), checkpoints]
    facts = _facts(record)
    return study_page(
        record,
        "diagnosis",
        summary(record),
        sections,
        reading=READING,
        jobs=jobs,
        details=details,
        facts=facts,
    )


def print_stages(record: StagesRecord, folder: str | Path, console: Console | None = None) -> None:
    """Prints the answer, every verdict, and where the page is.

    Args:
        record: finished or not.
        folder: the study's.
        console: where to print; the terminal by default.
    """
    judged = [arm for arm in record.arms if any(verdict.arm == arm for verdict in record.verdicts)]
    tables = [_verdict_table(record, arm) for arm in judged]
    print_study(record, summary(record), tables, folder, console)


# ------------------------------------------------------------------------------------------- answer


def summary(record: StagesRecord) -> str:
    """The answer: what the last checkpoint has forgotten of each task, where that begins, and what
    to do."""
    if not record.verdicts:
        left = sum(model.state != "complete" for model in _restored_models(record))
        return f"Not judged yet: {plural(left, 'model')} must still be restored."
    sentences = []
    remedied = []
    for task in record.tasks:
        key = f"{task.suite}/{task.name}"
        verdicts = record.of(record.arms[0], key)
        if not verdicts:
            continue
        last = verdicts[-1]
        labels = record.checkpoints[last.arm]
        begins = _transition(record, last.arm, key)
        sentences.append(
            f"{task.name}: after {labels[last.place - 1]}, {last.verdict}. {reason_in_words(last)}"
        )
        sentences.append(advice(verdicts, labels, begins))
        remedy = record.of(record.arms[1], key) if len(record.arms) > 1 else []
        if remedy:
            verb = "stays" if remedy[-1].verdict == last.verdict else "becomes"
            remedied.append(
                f"{task.name} {verb} {remedy[-1].verdict}: {reason_in_words(remedy[-1])}"
            )
    if remedied:
        sentences.append(f"With the retention method: {' '.join(remedied)}")
    return " ".join(filter(None, sentences))


def advice(
    verdicts: Sequence[StageVerdict], labels: Sequence[str], begins: Transition | None
) -> str:
    """What to do about the verdicts on a task.

    Args:
        verdicts: of an arm's checkpoints, in order.
        labels: of the checkpoints.
        begins: where actual forgetting begins.
    """
    last = verdicts[-1]
    if last.verdict in (GAINED, NONE):
        return "Nothing has to be done."
    if last.verdict == PSEUDO:
        earlier = ""
        for verdict in verdicts:
            if verdict.verdict in (GAINED, NONE):
                earlier = (
                    f", and {labels[verdict.place - 1]} still shows the knowledge without restoring"
                )
        return f"The knowledge is still there: an epoch of plain text restores it{earlier}."
    if last.verdict == NOT_YET:
        return "Restoring is not complete: try a larger dose (setting `doses`)."
    if last.verdict != ACTUAL:
        return ""
    stop = (
        "Every checkpoint shows actual forgetting: fine-tune with a lower learning rate or for "
        "fewer steps"
    )
    for verdict in itertools.takewhile(lambda v: v.verdict != ACTUAL, verdicts):
        if verdict.verdict != INCONCLUSIVE:
            stop = f"Stop at {labels[verdict.place - 1]}"
    back = ""
    if last.came_back is not None:
        back = f". Restoring brings back {100 * last.came_back.value:.0f} % of the lost score"
    since = (
        f" Actual forgetting begins at {_span(begins, labels)}." if begins and begins.place else ""
    )
    return f"{stop}, or use a retention method (label annealing, replay){back}.{since}"


def _span(transition: Transition, labels: Sequence[str]) -> str:
    """The checkpoint at which actual forgetting begins, and between which ones it may."""

    def name_of(checkpoint: int | None) -> str:
        return (
            "after the last one"
            if checkpoint is None or checkpoint > len(labels)
            else labels[checkpoint - 1]
        )

    name, low, high = map(name_of, (transition.place, *transition.interval))
    return name if low == high else f"{name} {between(low, high)}"


# -------------------------------------------------------------------------------------------- table


def _verdicts(record: StagesRecord, arm: str) -> b.Section | None:
    """An arm's verdicts, where forgetting begins, and why."""
    labels = record.checkpoints[arm]
    reasons = []
    for verdict in sorted(record.verdicts, key=lambda v: v.place):
        if verdict.arm == arm:
            reasons.append(
                f"{labels[verdict.place - 1]}, {verdict.task}: {reason_in_words(verdict)}"
            )
    if not reasons:
        return None
    begins = []
    for transition in record.transitions:
        if transition.arm == arm and transition.place:
            dose = f" (restored at {transition.dose}x)" if len(record.doses) > 1 else ""
            begins.append(
                f"{transition.task}: actual forgetting begins at {_span(transition, labels)}{dose}."
            )
    why = b.Fold("Why", [b.Bullets(reasons)])
    where = b.Bullets(begins) if begins else None
    return section(
        f"Verdicts: {arm}", _verdict_table(record, arm), where, why, anchor=f"verdicts-{arm}"
    )


def _verdict_table(record: StagesRecord, arm: str) -> b.Table:
    """A row a checkpoint and task: the verdict, and what it follows from."""
    labels = record.checkpoints[arm]
    tasks = {f"{task.suite}/{task.name}": task.name for task in record.tasks}
    verdicts = [v for v in record.verdicts if v.arm == arm]
    verdicts.sort(key=lambda v: (v.place, list(tasks).index(v.task)))

    def name(verdict: StageVerdict) -> str:
        label = labels[verdict.place - 1]
        return f"{label}, {tasks[verdict.task]}" if len(tasks) > 1 else label

    cells: dict[b.Text, Any] = {f"Checkpoint ({arm})": name}
    cells["Verdict"] = lambda v: b.chip(v.verdict, TONES[v.verdict])
    if len(record.doses) > 1:
        cells["At dose"] = lambda v: "–" if v.restored is None else f"{v.dose}x"
    cells["Fine-tuned"] = lambda v: _change(v.tuned)
    cells["Restored"] = lambda v: _change(v.restored)
    cells["Against control"] = lambda v: _change(v.against_control)
    cells["Restoring alone"] = lambda v: _change(v.control)
    cells["Came back"] = lambda v: cell(PART, v.came_back, missing="–")
    return grid(verdicts, cells, words=2, note=CHANGES)


def _transition(record: StagesRecord, arm: str, task: str) -> Transition | None:
    """Where actual forgetting begins, at the greatest dose that is known."""
    known = [t for t in record.transitions if (t.arm, t.task) == (arm, task)]
    return max(known, key=lambda t: t.dose, default=None)


def _change(comparison: Comparison | None) -> b.Text:
    """How much better the second model is."""
    if comparison is None or comparison.failed is not None:
        return "–"
    low, high = comparison.interval
    if not comparison.higher_is_better:
        low, high = -high, -low
    gain = Figure(value=comparison.gain, over_samples=(low, high))
    return cell(Measure.of(comparison, comparison.before, comparison.after), gain, sign=True)


# ------------------------------------------------------------------------------------------- charts


def _by_checkpoint(
    record: StagesRecord,
    arm: str,
    entry: tuple[str, str],
    measure: Measure,
    title: str,
    **options: Any,
) -> Chart | None:
    """A metric of an entry by checkpoint, fine-tuned and restored; of base and control as lines
    across."""
    key, metric = entry
    labels = record.checkpoints[arm]
    rows = []
    levels = {}
    for model in sorted(record.models, key=lambda m: (m.role != TUNED, m.dose, m.place)):
        figure = model.figures.get(key, {}).get(metric)
        if figure is None:
            continue
        value = Value.of(figure, measure)
        if model.arm == arm:
            line = "fine-tuned" if model.role == TUNED else _restored_at(model)
            rows.append(
                {"line": line, "x": model.place, "checkpoint": labels[model.place - 1], "y": value}
            )
        elif not model.arm:
            levels["base" if model.role == BASE else f"base, {_restored_at(model)}"] = value
    names = [label.removeprefix("epoch ") for label in labels]
    columns = {"line": "Model", "checkpoint": "Checkpoint", "y": measure.name}
    settings: dict[str, Any] = {
        "caption": "95 % over questions.",
        "levels": levels,
        "styles": STYLES,
    } | options
    x, y = steps_axis("checkpoint", names, first=1), Axis(title=measure.axis)
    return lines(f"{title} ({arm})", rows, x, y, columns=columns, **settings)


def _restored_at(model: MeasuredModel) -> str:
    return f"restored at {model.dose}x" if model.dose > 1 else "restored"


def _score_by_pattern(record: StagesRecord, arm: str, task: TaskAbout) -> Chart | None:
    """How score and text pattern come back together with the dose: a line a checkpoint, from the
    fine-tuned model through every dose, and one of the base. None with one dose."""
    if len(record.doses) < 2:
        return None
    key, names = f"{task.suite}/{task.name}", record.checkpoints[arm]
    measure, rows = Measure.of(task), list[dict[str, Any]]()
    for model in sorted(
        record.models, key=lambda m: (m.place, m.role in (CONTROL, RESTORED), m.dose)
    ):
        score = model.figures.get(key, {}).get(task.metric)
        text = model.figures.get(f"{PROBING}/{PROBING}", {}).get("nats_per_token")
        if score is None or text is None or model.arm not in ("", arm):
            continue
        line = names[model.place - 1] if model.arm else "base"
        is_restored = model.role in (CONTROL, RESTORED)
        value = Value.of(score, measure)
        restored = f"{model.dose}x" if is_restored else "not restored"
        rows.append({"line": line, "dose": restored, "x": text.value, "y": value})
    columns = {"line": "Checkpoint", "dose": "Restored", "x": TEXT.name, "y": task.name}
    caption = (
        "Each line runs from the fine-tuned model through every dose of restoring. Knowledge is "
        "lost if the score stops rising while the loss on plain text still falls."
    )
    x, y = Axis(title=TEXT.axis), Axis(title=measure.axis)
    return lines(
        f"{task.name} against the text pattern ({arm})",
        rows,
        x,
        y,
        columns=columns,
        caption=caption,
    )


def _scores(record: StagesRecord, arm: str, task: TaskAbout) -> Chart | None:
    """A task's scores, with the stages as coloured grounds and the level of guessing."""
    key = f"{task.suite}/{task.name}"
    base = record.model(BASE)
    figure = None if base is None else base.figures.get(key, {}).get(task.metric)
    measure = Measure.of(task, *([] if figure is None else [figure.value]))
    caption = "95 % over questions."
    verdicts = record.of(arm, key)
    if verdicts:
        stages = []
        for verdict in verdicts:
            stages.append(f"{record.checkpoints[arm][verdict.place - 1]}: {verdict.verdict}")
        caption = f"{caption} {join_and(stages)}."
    shades = []
    for name, run in itertools.groupby(verdicts, key=lambda v: v.verdict):
        neighbours = list(run)
        colour, text = GROUNDS[name]
        start, end = neighbours[0].place - 0.5, neighbours[-1].place + 0.5
        shades.append(Shade(start=start, end=end, colour=colour, text=text))
    rules = [] if task.chance is None else [Rule(y=measure.factor * task.chance)]
    options = {"shades": shades, "rules": rules, "caption": caption}
    return _by_checkpoint(record, arm, (key, task.metric), measure, task.name, **options)


def _plain_text(record: StagesRecord, arm: str) -> Chart | None:
    """What held-out plain text costs."""
    caption = (
        "The loss on held-out probing passages. The text pattern is back if the restored model's "
        f"loss is within {record.config.get('tolerance')} nats per token of that of the base or "
        "the control."
    )
    entry = (f"{PROBING}/{PROBING}", "nats_per_token")
    return _by_checkpoint(record, arm, entry, TEXT, "Plain text", caption=caption)


def _characteristics(record: StagesRecord) -> list[Chart | None]:
    """What the models say at the answer position, and how much of the outputs they know by
    heart."""
    base = record.model(BASE)
    if base is None:
        return []
    charts = []
    for arm, (key, metrics) in itertools.product(record.arms, base.figures.items()):
        entry = key.partition("/")[2]
        for metric, measure in CHARACTERISTICS.items():
            if metric in metrics:
                charts.append(
                    _by_checkpoint(record, arm, (key, metric), measure, f"{measure.name}: {entry}")
                )
    return charts


def _along(record: StagesRecord, arm: str) -> b.Section | None:
    """Every figure that was measured on the way of a fine-tuning, not at its ends alone."""
    counts = Counter((e.suite, e.name) for p in record.along[arm] for e in p.evaluations)
    trajectory = []
    for measured in record.along[arm]:
        evaluations = {}
        for evaluation in measured.evaluations:
            key = (evaluation.suite, evaluation.name)
            if counts[key] > 2:
                evaluations[key] = evaluation
        trajectory.append((measured.step, evaluations))
    intro = (
        "These figures were measured during fine-tuning, at the requested steps. The model learns "
        "the format of the answers within a few steps."
    )
    return section(
        f"Along fine-tuning: {arm}", *along_charts(trajectory), intro=intro, anchor=f"along-{arm}"
    )


# -------------------------------------------------------------------------------------------- facts


def _restored_models(record: StagesRecord) -> list[MeasuredModel]:
    """What the study trains, labelled by arm and checkpoint."""
    models = []
    for model in record.models:
        if model.role == CONTROL:
            dose = f", {model.dose}x" if model.dose > 1 else ""
            models.append(dataclasses.replace(model, label=f"base (control){dose}"))
        elif model.role == RESTORED:
            label = f"{model.arm}, {record.checkpoints[model.arm][model.place - 1]}"
            if model.dose > 1:
                label += f", {model.dose}x"
            models.append(dataclasses.replace(model, label=label))
    return models


def _facts(record: StagesRecord) -> list[tuple[str, b.Text]]:
    """The margin, and the text that was chosen to restore on."""
    margins = record.config.get("margin") or ["none"]
    facts: list[tuple[str, b.Text]] = [("Margin", join_and(list(map(str, margins))))]
    counts = record.texts.get("counts", {})
    for key, title in {
        "restoring": "To restore on",
        "probing": "To probe with",
        "all": "Corpus",
    }.items():
        if key in counts:
            passages = plural(counts[key]["passages"], "passage")
            facts.append((title, f"{passages}, {counts[key]['nats_per_token']:.3f} nats per token"))
    written = record.texts.get("generated")
    if written is not None:
        how = (
            f"the base itself: {written['texts']:,} texts after {written['begins_after']}, "
            f"temperature {written['temperature']:g}, seed {written['seed']}"
        )
        facts.append(("Written by", how))
    if counts and record.texts.get("questions"):
        facts.append(("Questions in it", overlap_sentence(record.texts)))
    return facts


# ---------------------------------------------------------------------------------------------- why


def reason_in_words(v: StageVerdict) -> str:
    """Why a verdict is what it is, out of its figures."""
    if not v.why:
        return v.reason
    sentences: dict[str, Callable[[StageVerdict], str]] = {
        "gained": lambda v: f"Fine-tuning brought {_signed(v.tuned)}.",
        "within margin": lambda v: (
            f"Fine-tuning changed the score by {_signed(v.tuned)}, a loss of no more than the margin."
        ),
        "came back": lambda v: f"The score fell by {_lost(v.tuned)} and came back: {_beside(v)}.",
        "loss left": _loss_left,
        "loss left, one dose": lambda v: (
            f"{_loss_left(v)} The model was restored at one dose only. Use doses: [1, 4] to see "
            "whether more restoring brings back more of the score."
        ),
        "still coming back": lambda v: (
            f"The score fell by {_lost(v.tuned)}. After restoring on {v.dose} times as much text, "
            f"part of the score is still lost: {_beside(v)}. This dose still brought back more "
            f"than the dose before it: {_step(v)}."
        ),
        "tuned not scored": lambda v: f"The fine-tuned model cannot be scored: {v.tuned.failed}",
        "base at chance": lambda v: (
            "The base is not shown to be better than chance, so there is nothing to forget."
        ),
        "within noise": lambda v: (
            f"A change of {_signed(v.tuned)} is within noise{_would_decide(v.tuned)}."
        ),
        "not restored": lambda v: (
            f"The score fell by {_lost(v.tuned)}, and the model was not restored."
        ),
        "restored not scored": _not_scored,
        "restoring costs": _restoring_costs,
        "pattern not back": _pattern_not_back,
        "neither": _neither,
        "level with the control": lambda v: (
            f"The score fell by {_lost(v.tuned)}. After restoring, the score is as good as that of "
            "the restored base (the control), but not shown to be as good as that of the base "
            f"itself: {_beside(v)}. Restoring alone lowers the score, so restore more gently."
        ),
        "may still come back": lambda v: (
            f"The score fell by {_lost(v.tuned)}. After restoring on {v.dose} times as much text, "
            f"part of the score is still lost: {_beside(v)}. There are too few questions to show "
            f"whether this dose brought back more than the dose before it: {_step(v)}."
        ),
    }
    return sentences[v.why](v)


def _loss_left(v: StageVerdict) -> str:
    text = (
        f"The score fell by {_lost(v.tuned)}. The text pattern is back, but part of the score is "
        f"still lost: {_beside(v)}."
    )
    if v.more is None:
        return text
    return f"{text} Restoring on {v.dose} times as much text brought back no more: {_step(v)}."


def _step(v: StageVerdict) -> str:
    return "nothing" if v.more is None else _signed(v.more)


def _not_scored(v: StageVerdict) -> str:
    comparisons = (v.restored, v.against_control, v.control, v.pattern)
    failures = [c.failed for c in comparisons if c is not None and c.failed is not None]
    return (
        f"The restored model cannot be scored: {failures[0]}"
        if failures
        else "The restored model cannot be scored."
    )


def _restoring_costs(v: StageVerdict) -> str:
    assert v.control is not None
    return (
        f"Restoring alone costs the base {_lost(v.control)} {_interval(v.control)}. For a "
        "verdict, this cost must be shown to be at most "
        f"{_number(v.control_tolerance, v.control)}. Restore more gently (a lower learning rate, "
        "or text closer to the base's pre-training data), or ask more questions."
    )


def _pattern_not_back(v: StageVerdict) -> str:
    assert v.pattern is not None
    return (
        "The text pattern is not shown to be back: the loss on plain text differs from the base's "
        "by "
        f"{v.pattern.difference:+.3f} {v.pattern.unit}, and {v.pattern_tolerance:g} is allowed. "
        "Restore for longer, or at a higher learning rate."
    )


def _neither(v: StageVerdict) -> str:
    assert v.against_control is not None
    text = (
        f"The score fell by {_lost(v.tuned)}. After restoring, the score is neither shown to be "
        f"back nor shown to be below the base: {_beside(v)}"
    )
    return f"{text}{_would_decide(v.against_control)}."


def _beside(v: StageVerdict) -> str:
    assert v.restored is not None and v.against_control is not None
    return (
        f"{_signed(v.restored)} against the base, {_signed(v.against_control)} against the "
        "restored base"
    )


def _number(value: float, c: Comparison) -> str:
    return f"{100 * value:.1f} points" if is_share(c.unit, c.metric) else f"{value:.3g} {c.unit}"


def _signed(c: Comparison) -> str:
    low, high = sorted(v if c.higher_is_better else -v for v in c.interval)
    if is_share(c.unit, c.metric):
        return f"{100 * c.gain:+.1f} points {between(f'{100 * low:+.1f}', f'{100 * high:+.1f}')}"
    return f"{c.gain:+.3g} {c.unit} {between(f'{low:+.3g}', f'{high:+.3g}')}"


def _interval(c: Comparison) -> str:
    """Of what was lost."""
    low, high = sorted(-v if c.higher_is_better else v for v in c.interval)
    if is_share(c.unit, c.metric):
        return between(f"{100 * low:.1f}", f"{100 * high:.1f}")
    return between(f"{low:.3g}", f"{high:.3g}")


def _lost(c: Comparison) -> str:
    return _number(-c.gain, c)


def _would_decide(c: Comparison) -> str:
    """How many questions would show a loss of the margin, as the end of a sentence."""
    test = paired_test(c)
    if test is None or c.tolerated <= 0.0:
        return ""
    times = test.needed(c.tolerated, level_of(c.confidence))
    return (
        f"; about {math.ceil(times * c.n):,} questions would decide (now {c.n:,})"
        if 1.0 < times < 1e6
        else ""
    )
