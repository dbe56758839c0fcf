"""The figures of a trade-off study as text, for its page and for the terminal, so that the two cannot disagree.

Gains, shares and choices are those of `holdfast.statistics.selection`; here they become words. A *curve* joins trials
of one method that differ in its strength only, such as label annealing at temperature 2 with growing weight.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.records.measure import MINUS, decimals_for, interval_text, number
from holdfast.records.study import StudyRecord, TrialRecord
from holdfast.reports.blocks import known
from holdfast.reports.format import percent, plural, setting
from holdfast.reports.methods import kind_title
from holdfast.statistics.gains import Gain, incomplete, mean_gain
from holdfast.statistics.selection import Selection
from holdfast.statistics.shares import Share, shares
from holdfast.statistics.stability import RuleGain

STATES = ("complete", "running", "waiting", "pruned", "failed", "lost")
"""In the order of reading."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialFigures:
    """One trial with its figures."""

    trial: TrialRecord
    target: Gain | None
    """Over the study's seeds, or over those that it has so far."""
    source: Gain | None
    kept: Share
    avoided: Share
    whole: bool
    """Complete, with all seeds and measures: only then is it on plots and chosen from."""
    seconds: float
    """Of its worker, in finished runs and bookkeeping."""
    trouble: str
    """Why it does not count, empty where it does."""


def read_trials(record: StudyRecord) -> list[TrialFigures]:
    """Figures of every trial, in the order of the record."""
    found = []
    for trial in record.trials:
        why = incomplete(trial, record)
        seeds = record.seeds if why is None else None
        kept, avoided = shares(trial, record) if why is None else (Share(value=None, interval=None, reason=why),) * 2
        found.append(
            TrialFigures(
                trial=trial,
                target=mean_gain(trial, record.target, seeds=seeds),
                source=mean_gain(trial, record.source, seeds=seeds),
                kept=kept,
                avoided=avoided,
                whole=why is None,
                seconds=worker_seconds(trial),
                trouble=why or "",
            )
        )
    return found


def worker_seconds(trial: TrialRecord) -> float:
    """Seconds of a worker that went into a trial: its finished runs and its bookkeeping."""
    return math.fsum(run.seconds for run in trial.runs) + trial.overhead


# --------------------------------------------------------------------------------------------------------------- words


def typographic(text: str) -> str:
    """Hyphens before figures as minus signs."""
    return re.sub(r"(?<![\w.\-\[])-(?=[\d.])", MINUS, text)


def gain_text(gain: Gain | RuleGain | None) -> str:
    """`+0.412`, in as many decimals as its interval deserves; "not measured" for None."""
    return "not measured" if gain is None else number(gain.value, decimals_for(gain.interval), sign=True)


def gain_interval(gain: Gain | RuleGain | None) -> str:
    """`[+0.39, +0.43]`, empty for None."""
    return "" if gain is None else interval_text(gain.interval, decimals_for(gain.interval), sign=True)


def gain_texts(gain: Gain | RuleGain | None) -> tuple[str, str]:
    """Both."""
    return gain_text(gain), gain_interval(gain)


def tone(gain: Gain | None) -> str:
    """ "good", "bad" or "flat": whether the whole interval is on one side of the start."""
    if gain is None or gain.interval is None or gain.interval[0] <= 0 <= gain.interval[1]:
        return "flat"
    return "good" if gain.value > 0 else "bad"


def share_text(share: Share | None) -> str:
    """`91.2 %`; "n/a" where there is nothing to take a share of, or that cannot be told from nothing."""
    return "n/a" if share is None or share.value is None or share.open else percent(100 * share.value, sign=False)


def share_interval_text(share: Share | None) -> str:
    """`[85.0, 97.3]` in percent, empty without one."""
    if share is None or share.interval is None:
        return ""
    return interval_text(
        (100 * share.interval[0], 100 * share.interval[1]), 1 if max(map(abs, share.interval)) < 10 else 0
    )


def covered(text: str, interval: str) -> str:
    """`text [low, high]`."""
    return f"{text} {interval}".rstrip()


def counts(record: StudyRecord) -> dict[str, int]:
    """State -> trials in it, in the order of reading; states without trials left out."""
    found = collections.Counter(t.state for t in record.trials)
    return {
        state: found[state]
        for state in sorted(found, key=lambda s: (STATES.index(s) if s in STATES else len(STATES), s))
    }


def counts_text(record: StudyRecord) -> str:
    """`19 complete, 1 running, 1 failed`."""
    return ", ".join(f"{n} {state}" for state, n in counts(record).items()) or "no trial yet"


def kept_text(selection: Selection, record: StudyRecord) -> str:
    """What the chosen trial keeps and loses, as words that follow "it": shares of what direct fine-tuning did, where
    that can be told from zero, else the gains themselves."""
    target, source, kept, avoided = selection.target, selection.source, selection.kept, selection.avoided
    if target is None or source is None:
        return ""
    if kept is not None and kept.value is not None and not kept.open:
        first = (
            f"keeps {covered(share_text(kept), share_interval_text(kept))} of direct fine-tuning's gain on "
            f"{record.target.label}"
        )
    else:
        first = f"changes {record.target.label} by {covered(gain_text(target), gain_interval(target))} {target.unit}"
    if avoided is not None and avoided.value is not None and not avoided.open:
        return (
            f"{first} and avoids {covered(share_text(avoided), share_interval_text(avoided))} of its loss on "
            f"{record.source.label}"
        )
    return (
        f"{first} and changes {record.source.label} by {covered(gain_text(source), gain_interval(source))} "
        f"{source.unit} (more is better)"
    )


def chosen_text(selection: Selection, record: StudyRecord) -> str:
    """What a rule chose and what that keeps, as a sentence without its end."""
    if selection.chosen is None:
        return f"The rule {rule_title(selection)} chooses none: {typographic(selection.reason)}"
    return (
        f"The rule {rule_title(selection)} chooses {selection.label} (trial {selection.chosen}): it "
        f"{kept_text(selection, record)}"
    )


def chosen_on(selection: Selection) -> str:
    """On what a rule chose, as words."""
    return "on the same data" if selection.validation is None else f"by {selection.validation} and the source"


def chosen_by(record: StudyRecord) -> str:
    """By what settings were chosen, where that is not what is reported, as a sentence; empty where it is."""
    if record.validation is None:
        return ""
    return (
        f"Direct fine-tuning's rate and the trial are chosen by {record.validation.label} (validation), which is in no "
        f"figure of the target, {record.target.label}."
    )


def optimism_text(selection: Selection) -> str:
    """What qualifies the figures of a rule's choice, with what the rule earns on seeds that it did not choose by, where
    that is known; begins with a space, empty where there was nothing to choose from."""
    count = len(selection.candidates)
    if count < 2 or selection.chosen is None or selection.target is None or selection.source is None:
        return ""
    text = f"It is the best of {count} trials {chosen_on(selection)}, so its figures are optimistic"
    if selection.rule_target is None or selection.rule_source is None:
        return f" {text}; by how much, one seed does not tell."
    sides = (("target", selection.rule_target, selection.target), ("source", selection.rule_source, selection.source))
    unseen = " and ".join(f"{gain_text(rule)} on the {side} ({gain_text(own)} here)" for side, rule, own in sides)
    return f" {text}: on seeds that it did not choose by, the rule gains {unseen}."


def lead(record: StudyRecord, selections: Sequence[Selection]) -> str:
    """The study in a sentence or two: how far it is, what its rule chose, what that keeps and loses."""
    whole = sum(incomplete(t, record) is None for t in record.trials)
    going = ""
    if record.status != "finished":
        words = {
            "running": "is still running",
            "interrupted": "was interrupted",
            "failed": "ended with trials that failed",
        }
        going = (
            f"The study {words.get(record.status, record.status)}: {whole} of "
            f"{plural(len(record.trials), 'trial')} count so far. "
        )
    if not whole:
        return f"{going}No trial is complete with all its seeds yet, so nothing can be chosen."
    if not selections:
        return f"{going}{plural(whole, 'trial')} can be compared below."
    by = f" {sentence}" if (sentence := chosen_by(record)) else ""
    return f"{going}{chosen_text(selections[0], record)}.{by}{optimism_text(selections[0])}"


def rule_title(selection: Selection) -> str:
    """`paper`, `target_within (strict)`."""
    return selection.rule + (" (strict)" if selection.strict else "")


# -------------------------------------------------------------------------------------------------------------- curves


def parameter_name(key: str) -> str:
    """`retention.label_annealing.weight` as "weight"."""
    return key.rsplit(".", 1)[-1].replace("_", " ")


def long_name(key: str, trials: Iterable[TrialRecord]) -> str:
    """`retention.label_annealing.weight` as "label annealing: weight".

    Args:
        key: of a varied setting.
        trials: whose it is.
    """
    from holdfast.retention.registry import title

    own = {name: text for trial in trials for name, text in trial.titles.items()}
    parts = [own.get(p) or title(p) for p in key.removeprefix("retention.").split(".")]
    return ": ".join((" ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]


def shown_params(trial: TrialRecord) -> dict[str, Any]:
    """What was varied, without the choice of the method itself: that is the trial's kind."""
    return {k: v for k, v in trial.params.items() if not (k == "method" and str(v).partition(" #")[0] == trial.kind)}


def parameters_text(params: Mapping[str, Any]) -> str:
    """`weight 1, temperature 2`."""
    return ", ".join(f"{parameter_name(k)} {setting(v)}" for k, v in params.items())


def strength_key(trials: Iterable[TrialRecord]) -> str | None:
    """The varied parameter that says how strongly these trials hold on to the start; None where none of them has
    one."""
    from holdfast.retention.registry import declared

    found = list(trials)
    params = [t.params for t in found]
    kinds = dict.fromkeys(k for t in found for k in t.kind.split("+"))
    methods = [cls for k in kinds if (cls := declared(k)) is not None]
    for name in (n for cls in sorted(methods, key=lambda c: c.place == "data") for n in cls.strength):
        for key in dict.fromkeys(k for p in params for k in p):
            if key.rsplit(".", 1)[-1] == name and len({v for p in params if (v := known(p.get(key))) is not None}) > 1:
                return key
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyCurve:
    """Trials of one method that are joined on the plots."""

    kind: str
    name: str
    """The method, and what its trials have in common."""
    strength: str | None
    """Key of the parameter that orders them."""
    members: list[TrialFigures]
    joined: bool
    """Whether a line goes through them."""

    def short(self, trial: TrialRecord) -> str:
        """What stands beside a point."""
        return (
            setting(value)
            if self.strength is not None and (value := known(trial.params.get(self.strength))) is not None
            else ""
        )


def study_curves(trials: Sequence[TrialFigures]) -> list[StudyCurve]:
    """Trials by method, then by all they have in common but the strength, each in the order of it; a trial alone in
    that is not joined."""
    found: list[StudyCurve] = []
    for kind in dict.fromkeys(t.trial.kind for t in trials):
        mine = [t for t in trials if t.trial.kind == kind]
        key = strength_key(t.trial for t in mine)
        groups: dict[tuple[tuple[str, str], ...], list[TrialFigures]] = collections.defaultdict(list)
        for t in mine:
            groups[tuple(sorted((k, repr(v)) for k, v in t.trial.params.items() if k != key))].append(
                t
            )  # to the last digit: random rates are no curve
        title = kind_title(mine[0].trial)
        lines = {
            rest: sorted(g, key=lambda t: known(t.trial.params.get(str(key))) or 0.0)
            for rest, g in groups.items()
            if len(g) > 1 and key
        }
        rest_keys = {k for rest in groups for k, _ in rest if len({dict(r).get(k) for r in groups}) > 1}
        for rest, members in lines.items():
            common = parameters_text({k: members[0].trial.params[k] for k, _ in rest if k in rest_keys})
            found.append(
                StudyCurve(
                    kind=kind,
                    name=f"{title}, {common}" if common else title,
                    strength=key,
                    members=members,
                    joined=True,
                )
            )
        single = [t for rest, g in groups.items() if rest not in lines for t in g]
        if single:
            found.append(StudyCurve(kind=kind, name=title, strength=key, members=single, joined=False))
    return found


def moment(text: str | None) -> datetime.datetime | None:
    """A time of the record, in UTC; None where there is none or it cannot be read."""
    if not text:
        return None
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)
