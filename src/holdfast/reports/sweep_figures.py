"""The figures of a sweep in words, for its page and for the terminal, so that the two cannot
disagree. Gains, shares and choices are those of `holdfast.statistics.selection`."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records.figure import Figure
from holdfast.records.measure import MINUS, HasInterval, Measure
from holdfast.records.study import Objective, StudyRecord, TrialRecord
from holdfast.reports.format import plural, setting
from holdfast.statistics.gains import Gain, incomplete, mean_gain
from holdfast.statistics.selection import Selection
from holdfast.statistics.shares import Share, shares

STATES = ("complete", "running", "waiting", "pruned", "failed", "lost")
"""In the order of reading."""
UNDER_WAY = {
    "running": "is still running",
    "interrupted": "was interrupted",
    "failed": "ended with failed trials",
}
GAIN = Measure()
"""Of gains, whose unit stands beside them."""
SHARE = Measure(share=True, bounded=False)
"""Of what direct fine-tuning did; it may be more than all of it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialFigures:
    """One trial with its figures."""

    trial: TrialRecord
    learn: Gain | None
    """Over the study's seeds, or over those that it has so far."""
    keep: Gain | None
    kept: Share
    avoided: Share
    trouble: str
    """Why it does not count, empty where it does."""

    @property
    def counts(self) -> bool:
        """Complete, with all seeds and measures: only then is it on plots and chosen from."""
        return not self.trouble


def read_trials(record: StudyRecord) -> list[TrialFigures]:
    """Figures of every trial, in the order of the record."""
    figures = []
    for trial in record.trials:
        trouble = incomplete(trial, record) or ""
        seeds = None if trouble else record.seeds
        unknown = Share(value=None, interval=None, reason=trouble)
        kept, avoided = (unknown, unknown) if trouble else shares(trial, record)
        figures.append(
            TrialFigures(
                trial=trial,
                learn=mean_gain(trial, record.learn, seeds=seeds),
                keep=mean_gain(trial, record.keep, seeds=seeds),
                kept=kept,
                avoided=avoided,
                trouble=trouble,
            )
        )
    return figures


def worker_seconds(trial: TrialRecord) -> float:
    """Seconds of a worker that went into a trial: its finished runs and its bookkeeping."""
    return math.fsum(run.seconds for run in trial.runs) + trial.overhead


def parse_time(text: str | None) -> datetime.datetime | None:
    """A time of the record, in UTC; None where there is none or it cannot be read."""
    try:
        time = datetime.datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)


# -------------------------------------------------------------------------------------------- words


def with_minus_signs(text: str) -> str:
    """Hyphens before figures as minus signs."""
    return re.sub(r"(?<![\w.\-\[])-(?=[\d.])", MINUS, text)


def gain_texts(gain: HasInterval) -> tuple[str, str]:
    """(gain, interval), both signed."""
    return GAIN.texts(gain, sign=True)


def share_texts(share: Share | None) -> tuple[str, str]:
    """(share, interval), or why there is none: "n/a" where there is nothing to take a share of, or
    it cannot be told from nothing."""
    if share is None:
        return "n/a", ""
    if share.value is None or share.open:
        return "n/a", share.reason or ""
    text, interval = SHARE.texts(Figure(value=share.value, over_samples=share.interval))
    return text, interval if share.interval else share.reason or ""


def counts_text(record: StudyRecord) -> str:
    """`19 complete, 1 running, 1 failed`: trials by state, in the order of reading."""
    counts = collections.Counter(trial.state for trial in record.trials)
    states = [*STATES, *sorted(set(counts) - set(STATES))]
    return (
        ", ".join(f"{counts[state]} {state}" for state in states if counts[state]) or "no trial yet"
    )


def rule_title(selection: Selection) -> str:
    """`paper`, `keep_within (strict)`."""
    return selection.rule + (" (strict)" if selection.strict else "")


def kept_text(selection: Selection, record: StudyRecord) -> str:
    """What the chosen trial keeps and loses, as words that follow "it": shares of what direct
    fine-tuning did, where that can be told from zero, else the gains themselves."""
    if selection.learn is None or selection.keep is None:
        return ""
    learn = _change_text(record.learn, selection.learn)
    if _known(selection.kept):
        learn = (
            f"keeps {_share_text(selection.kept)} of direct fine-tuning's gain on "
            f"{record.learn.label}"
        )
    keep = f"{_change_text(record.keep, selection.keep)} (more is better)"
    if _known(selection.avoided):
        keep = (
            f"avoids {_share_text(selection.avoided)} of direct fine-tuning's loss on "
            f"{record.keep.label}"
        )
    return f"{learn} and {keep}"


def _known(share: Share | None) -> bool:
    return share is not None and share.value is not None and not share.open


def _share_text(share: Share | None) -> str:
    text, interval = share_texts(share)
    return f"{text} {interval}" if share is not None and share.interval else text


def _change_text(side: Objective, gain: Gain) -> str:
    return f"changes {side.label} by {GAIN.text(gain, sign=True)} {side.unit}"


def chosen_on(selection: Selection) -> str:
    """On what a rule chose, as words."""
    return (
        "on the same data"
        if selection.validation is None
        else f"by {selection.validation} and the keep side"
    )


def summary(record: StudyRecord, selections: Sequence[Selection]) -> str:
    """How far the study is, what its rule chose, what that keeps and loses, and how far it can be
    believed."""
    counting = sum(incomplete(trial, record) is None for trial in record.trials)
    sentences = []
    if record.status != "finished":
        status = UNDER_WAY.get(record.status, record.status)
        sentences.append(
            f"The study {status}: {counting} of {plural(len(record.trials), 'trial')} count so far."
        )
    if not counting:
        sentences.append("No trial has finished all its seeds yet, so none can be chosen.")
    elif not selections:
        sentences.append(f"{plural(counting, 'trial')} can be compared below.")
    else:
        sentences += [_choice(selections[0], record), _chosen_by(record), _optimism(selections[0])]
    return " ".join(filter(None, sentences))


def _choice(selection: Selection, record: StudyRecord) -> str:
    """What a rule chose and what that keeps."""
    if selection.chosen is None:
        return (
            f"The rule {rule_title(selection)} chooses no trial: "
            f"{with_minus_signs(selection.reason)}."
        )
    trial = f"{selection.label} (trial {selection.chosen})"
    return f"The rule {rule_title(selection)} chooses {trial}: it {kept_text(selection, record)}."


def _chosen_by(record: StudyRecord) -> str:
    """By what settings were chosen, where that is not what is reported."""
    if record.validation is None:
        return ""
    return (
        f"{record.validation.label} (validation) serves to choose the trial, and to choose the "
        "learning rate of direct fine-tuning. It is not part of the reported "
        f"{record.learn.label}."
    )


def _optimism(selection: Selection) -> str:
    """What qualifies the figures of a rule's choice, with what the rule earns on seeds that it did
    not choose by, where that is known; "" where there was nothing to choose from."""
    count = len(selection.candidates)
    learn, keep = selection.learn, selection.keep
    if count < 2 or selection.chosen is None or learn is None or keep is None:
        return ""
    text = (
        f"The chosen trial is the best of {count} trials {chosen_on(selection)}, so its results "
        "are optimistic"
    )
    if selection.rule_learn is None or selection.rule_keep is None:
        return f"{text}; one seed cannot show by how much."
    unseen = []
    for side, rule, chosen in (
        ("learn", selection.rule_learn, learn),
        ("keep", selection.rule_keep, keep),
    ):
        unseen.append(f"{gain_texts(rule)[0]} on {side} ({gain_texts(chosen)[0]} here)")
    return f"{text}: on held-out seeds, the rule gains {' and '.join(unseen)}."


# --------------------------------------------------------------------------------------- parameters


def parameter_name(key: str) -> str:
    """`retention.label_annealing.weight` as "weight"."""
    return key.rsplit(".", 1)[-1].replace("_", " ")


def varied_params(trial: TrialRecord) -> dict[str, Any]:
    """What was varied, without the choice of the method itself: that is the trial's kind."""
    params = dict(trial.params)
    method = params.get("method")
    if method is not None and str(method).partition(" #")[0] == trial.kind:
        del params["method"]
    return params


def parameters_text(params: Mapping[str, Any]) -> str:
    """`weight 1, temperature 2`."""
    return ", ".join(f"{parameter_name(key)} {setting(value)}" for key, value in params.items())
