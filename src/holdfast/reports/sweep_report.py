"""The page of a sweep: what its rule chose, the frontier, every trial, the rules side by side, and
the command that trains the choice.

Reads a `StudyRecord` and the `Selection`s made of it (`holdfast.statistics.selection`), so it can
be written at any moment of a study: what is still under way is marked as such. Which trial to take
is not decided here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast.records.study import StudyRecord
from holdfast.reports import blocks as b
from holdfast.reports.blocks import (
    Block,
    Fold,
    Heading,
    Panel,
    Paragraph,
    Section,
    Span,
    Text,
    Tile,
    chip,
    figure,
    sub,
)
from holdfast.reports.format import direction, duration, plural
from holdfast.reports.methods import kind_title
from holdfast.reports.study_page import grid, section, state_chip, study_page
from holdfast.reports.sweep_charts import frontier_chart
from holdfast.reports.sweep_figures import (
    TrialFigures,
    counts_text,
    gain_texts,
    parameters_text,
    read_trials,
    rule_title,
    share_texts,
    summary,
    varied_params,
    with_minus_signs,
    worker_seconds,
)
from holdfast.statistics.gains import SAMPLES, Gain
from holdfast.statistics.selection import Selection
from holdfast.statistics.shares import Share

MOST_PLOTS = 12
"""Frontier plots of single pairs; a study of many entries has more pairs than anybody looks at."""
MOST_STABLE = 4
"""Trials that are named among those that a rule chooses from draw to draw."""
READING = (
    "A gain is the change from the initial model, and a positive gain means better. It is the mean "
    "over the seeds and over the metrics of its side (learn or keep).",
    "A trial is on the Pareto frontier if no other trial is at least as good on both sides and "
    "better on one. The initial model counts as a point.",
    "Gain kept and loss avoided are shares of direct fine-tuning's gain and loss, with Fieller "
    "intervals. No share is shown if direct fine-tuning's own change may be zero.",
    "A trial counts only if all its seeds and measurements are complete. The table gives the "
    "reason why a trial was pruned, failed or lost.",
)
ONE_SEED = (
    f"Intervals are at 95 % and cover {SAMPLES}, because there is one seed. The results of other "
    "seeds may lie outside.",
)  # fmt: skip
SEVERAL_SEEDS = (
    "Intervals are at 95 % and cover training seeds (t distribution) and evaluated samples "
    "together.",
    "The chosen trial's result is optimistic, because noise influenced the choice. “On held-out "
    "seeds” avoids this. Each seed in turn is left out: the rule chooses on the other seeds, and "
    "its choice is scored on the seed left out. This is the result to expect.",
    "Stability: the rule chooses again on seeds drawn with replacement. If the choice changes "
    "from draw to draw, several trials are equally good.",
)
SHARES_OF_DIRECT = (
    "Gain kept: the trial's gain on the learn side divided by direct fine-tuning's gain. Loss "
    "avoided: the share of direct fine-tuning's loss on the keep side that the trial avoids. "
    "Time: the time of the workers, for all seeds together."
)


def sweep_page(
    record: StudyRecord,
    here: Path,
    *,
    selections: Sequence[Selection],
    command: str = "",
    config_yaml: str = "",
) -> b.Page:
    """The page as blocks.

    Args:
        record: finished or not.
        here: the page's folder, which links to the runs' reports start from.
        selections: what the rules chose, the study's own rule first, as
            `holdfast.statistics.selection.select_all` gives it.
        command: what trains the chosen trial; shown as it is.
        config_yaml: the configuration that `command` names; shown as it is.
    """
    trials = read_trials(record)
    first = selections[0] if selections else None
    rules = (
        rule_panels(record, selections)
        if any(selection.candidates for selection in selections)
        else []
    )
    sections: list[Block | None] = [b.Tiles(sweep_tiles(first)), _frontier(record, trials, first)]
    sections.append(section("The rules side by side", *rules, anchor="rules"))
    sections.append(_training(first, command, config_yaml))
    sections.append(trials_section(record, trials, selections, here))
    details = [f"{plural(len(record.trials), 'trial')}: {counts_text(record)}"]
    details.append(f"{plural(len(record.seeds), 'seed')} a trial")
    details += [f"{side.side}: {side.label}" for side in (record.learn, record.keep)]
    reading = [*READING, *(SEVERAL_SEEDS if len(record.seeds) > 1 else ONE_SEED)]
    text = summary(record, selections)
    return study_page(
        record, "sweep", text, sections, reading=reading, details=details, facts=_facts(record)
    )


def sweep_tiles(first: Selection | None) -> list[Tile]:
    """What the chosen trial keeps of what direct fine-tuning did."""
    if first is None or first.chosen is None:
        return []
    tiles = []
    for title, share in (("Gain kept", first.kept), ("Loss avoided", first.avoided)):
        if share is not None and share.value is not None:
            text, below = share_texts(share)
            tiles.append(
                Tile(f"{title}, trial {first.chosen}", text, f"of direct fine-tuning's {below}")
            )
    return tiles


def _tone(gain: Gain) -> b.Tone:
    """Whether the whole interval is on one side of the start."""
    if gain.interval is None or gain.interval[0] <= 0 <= gain.interval[1]:
        return "flat"
    return "good" if gain.value > 0 else "bad"


def _frontier(
    record: StudyRecord, trials: Sequence[TrialFigures], first: Selection | None
) -> Section:
    """Learn against keep: the objectives, then every pair of single measures."""
    sides = (record.learn, record.keep)
    main = frontier_chart(record, trials, sides, first)
    if main is None:
        text = "No trial has finished all its seeds yet, so there is nothing to draw."
        return Section("Learn against keep", [Paragraph(text, "note")])
    entries = [side.entries for side in sides]
    pairs = [pair for pair in record.pairs if [side.entries for side in pair] != entries]
    blocks: list[Block] = [main]
    blocks += [
        frontier_chart(record, trials, pair, first, wide=False) for pair in pairs[:MOST_PLOTS]
    ]
    if len(pairs) > MOST_PLOTS:
        text = f"The plots show the first {MOST_PLOTS} of {plural(len(pairs), 'pair')} of measures."
        blocks.append(Paragraph(text, "note"))
    return Section("Learn against keep", blocks, anchor="frontier")


# -------------------------------------------------------------------------------------------- rules


def rule_panels(record: StudyRecord, selections: Sequence[Selection]) -> list[Panel]:
    """What each rule chose, why, and how firmly; the study's own rule comes first."""
    return [_rule(selection, record, own=index == 0) for index, selection in enumerate(selections)]


def _rule(s: Selection, record: StudyRecord, *, own: bool) -> Panel:
    blocks: list[Block] = [Heading(rule_title(s))]
    if own:
        blocks.append(Paragraph(chip("the study's rule", "good")))
    choice = "No trial" if s.chosen is None else (f"{s.label} ", chip(f"trial {s.chosen}"))
    blocks += [_sentence(s.text), Paragraph(choice, "taken"), _sentence(s.reason)]
    if s.learn is not None and s.keep is not None:
        gains = [("Learn", figure(*gain_texts(s.learn))), ("Keep", figure(*gain_texts(s.keep)))]
        shares = [
            ("Gain kept", figure(*share_texts(s.kept))),
            ("Loss avoided", figure(*share_texts(s.avoided))),
        ]
        blocks.append(b.Facts([*gains, *shares]))
    if s.stability is not None:
        draws = _stability(s, s.stability, record)
        blocks += [
            Heading(f"Trials that are chosen in {s.draws:,} draws of the seeds"),
            b.Bullets(draws),
        ]
    if s.rule_learn is not None and s.rule_keep is not None:
        unseen = [
            ("Learn", figure(*gain_texts(s.rule_learn))),
            ("Keep", figure(*gain_texts(s.rule_keep))),
        ]
        blocks += [Heading("On held-out seeds"), b.Facts(unseen)]
    if s.seeds_reason is not None:
        blocks.append(Paragraph(f"No stability: {s.seeds_reason}.", "note"))
    if s.dropped:
        lines = []
        for trial in s.dropped:
            lines.append(f"trial {trial.number}, {trial.label}: {with_minus_signs(trial.reason)}")
        blocks.append(
            Fold(f"{plural(len(s.dropped), 'trial')} dropped, and why", [b.Bullets(lines)])
        )
    return Panel(blocks, "rule own" if own else "rule")


def _sentence(text: str) -> Paragraph:
    return Paragraph(f"{with_minus_signs(text[:1].upper() + text[1:])}.", "note")


def _stability(s: Selection, draws: Mapping[int, float], record: StudyRecord) -> list[str]:
    """Shares of the draws in which trials are chosen, the largest one by one."""
    labels = {trial.number: trial.label for trial in record.trials}
    ranked = list(draws.items())
    texts = []
    for trial, share in ranked[:MOST_STABLE]:
        texts.append(f"{100 * share:.0f} %: trial {trial}, {labels.get(trial, '')}")
    rest = math.fsum(share for _, share in ranked[MOST_STABLE:])
    if rest > 0:
        texts.append(f"{100 * rest:.0f} %: {len(ranked) - MOST_STABLE} more")
    if s.stability_none:
        texts.append(f"{100 * s.stability_none:.0f} %: no trial")
    return texts


def _training(first: Selection | None, command: str, config_yaml: str) -> Section | None:
    if first is None or first.chosen is None:
        return None
    code = b.Code(command) if command else None
    configuration = (
        Fold("The configuration", [b.Code(config_yaml)], open=True) if config_yaml else None
    )
    intro = f"This command trains {first.label} again, with the study's settings:"
    return section("Train the chosen trial", code, configuration, intro=intro, anchor="train")


# -------------------------------------------------------------------------------------------- table


def trials_section(
    record: StudyRecord,
    trials: Sequence[TrialFigures],
    selections: Sequence[Selection],
    here: Path,
) -> Section:
    """Every trial as a row.

    Args:
        record: of the study.
        trials: its figures.
        selections: whose choices are marked.
        here: the page's folder, which links to runs start from.
    """
    if not trials:
        return Section(
            "All trials", [Paragraph("No trial has begun yet.", "note")], anchor="trials"
        )
    rules: dict[int | None, str] = {}
    for s in selections:
        rules[s.chosen] = f"{rules[s.chosen]}, {s.rule}" if s.chosen in rules else s.rule

    def label(t: TrialFigures) -> Text:
        by = rules.get(t.trial.number)
        return (t.trial.label, (" ", chip(f"chosen: {by}", "good")) if by else None, *_details(t))

    cells: dict[Text, Any] = {"Trial": label, "State": lambda t: _state(t, record)}
    cells["Learn gain"] = lambda t: _gain_cell(t.learn, t)
    cells["Keep gain"] = lambda t: _gain_cell(t.keep, t)
    cells["Gain kept"] = lambda t: _share_cell(t.kept, t)
    cells["Loss avoided"] = lambda t: _share_cell(t.avoided, t)
    cells["Time"] = _time
    cells["Seeds"] = lambda t: _seeds(t, here)
    tones = []
    for t in trials:
        tones.append("taken" if t.trial.number in rules else "" if t.counts else "minor")
    table = grid(trials, cells, words=2, kind="dense trials", tones=tones, find="trial")
    return Section(
        "All trials", [table, Paragraph(_legend(record, trials), "note")], anchor="trials"
    )


def _legend(record: StudyRecord, trials: Sequence[TrialFigures]) -> str:
    """What the columns of the table of trials are."""
    sides = []
    for side in (record.learn, record.keep):
        better = direction(side.higher_is_better)
        sides.append(f"{side.side} {side.label} ({side.unit}, where {better})")
    text = (
        "Gains are changes from the initial model, and a larger gain is better. They are means "
        f"over the seeds with 95 % intervals: {', '.join(sides)}."
    )
    samples = ""
    for t in trials:
        if t.counts and t.learn is not None and t.keep is not None:
            samples = (
                f" Evaluated samples: {t.learn.samples:,} for learn, {t.keep.samples:,} for keep."
            )
            break
    return f"{text} {SHARES_OF_DIRECT}{samples}"


def _details(t: TrialFigures) -> list[Text]:
    """What stands under a trial's label: its number and settings, and why it does not count."""
    trial, kind = t.trial, kind_title(t.trial)
    settings = [parameters_text({key: value}) for key, value in varied_params(trial).items()]
    texts = [f"trial {trial.number}", "" if kind in trial.label else kind]
    texts.append(", ".join(text for text in settings if text not in trial.label))
    details: list[Text] = [sub(" · ".join(filter(None, texts)))]
    if t.trouble and trial.state not in ("running", "waiting"):
        details.append(
            sub(with_minus_signs(t.trouble), tone="bad" if trial.state == "failed" else "")
        )
    return details


def _time(t: TrialFigures) -> Text:
    seconds = worker_seconds(t.trial)
    return Span(duration(seconds), value=seconds) if t.trial.runs else ""


def _state(t: TrialFigures, record: StudyRecord) -> Text:
    done = len({run.seed for run in t.trial.runs} & set(record.seeds))
    of = (
        sub(f"{done} of {plural(len(record.seeds), 'seed')}")
        if t.trial.state == "running"
        else None
    )
    return state_chip(t.trial.state), of


def _gain_cell(gain: Gain | None, t: TrialFigures) -> Text:
    if gain is None:
        return ""
    text, interval = gain_texts(gain)
    if not t.counts:
        return figure(text, f"{plural(len(gain.by_seed), 'seed')} so far", value=gain.value)
    return figure(text, interval, value=gain.value, tone=_tone(gain))


def _share_cell(share: Share, t: TrialFigures) -> Text:
    if share.value is not None:
        text, interval = share_texts(share)
        return figure(
            text, interval if share.interval else "", value=math.nan if share.open else share.value
        )
    if not t.counts:
        return ""
    return Span("reference" if t.trial.kind == "direct" else "n/a", value=math.nan)


def _seeds(t: TrialFigures, here: Path) -> Text:
    """The seeds of a trial, with links to the runs' reports that are there."""
    texts: list[Text] = []
    for run in sorted(t.trial.runs, key=lambda run: run.seed):
        inside = not Path(run.folder).is_absolute() and ".." not in Path(run.folder).parts
        exists = inside and (here / run.folder / "report.html").is_file()
        link = quote(f"{run.folder}/report.html") if exists else ""
        texts += [" " if texts else "", Span(str(run.seed), link=link)]
    return texts


# ------------------------------------------------------------------------------------------- others


def _facts(record: StudyRecord) -> list[tuple[str, Text]]:
    hosts = sorted({run.host for trial in record.trials for run in trial.runs if run.host})
    return [("Storage", record.storage or "not recorded"), ("Machines", ", ".join(hosts))]
