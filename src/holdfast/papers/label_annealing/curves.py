"""A sweep as its claims look at it: trials by method, each method's grid as curves, gains and
shares of direct fine-tuning.

A method is the set of its names ({"replay", "label_annealing"} for both together); direct
fine-tuning is the empty one. A *line* is a method's complete trials that differ in nothing but its
strength, weakest first. The trial that has the line's other settings and not the method whose
strength varies is its start, at strength 0, where the study has it: direct fine-tuning for label
annealing, replay alone for replay with label annealing.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.records.comparison import Comparison
from holdfast.records.figure import CONFIDENCE, Figure
from holdfast.records.study import Entry, Objective, StudyRecord, TrialRecord
from holdfast.retention.registry import declared
from holdfast.statistics.equal_target import Point, source_at
from holdfast.statistics.gains import Gain, incomplete, mean_gain
from holdfast.statistics.rules import ROUNDING
from holdfast.statistics.shares import Share, avoided_share, kept_share, share_over_seeds

Method = frozenset[str]
DIRECT: Method = frozenset()
ANNEALING: Method = frozenset({"label_annealing"})
L2: Method = frozenset({"l2"})
REPLAY: Method = frozenset({"replay"})
BOTH: Method = REPLAY | ANNEALING
NAMES = {
    DIRECT: "direct fine-tuning",
    ANNEALING: "label annealing",
    L2: "L2",
    REPLAY: "replay",
    BOTH: "replay with label annealing",
}
LEAST = {True: 0.02, False: 0.05}
"""The least change that counts, by whether the metric is a share: 2 points, or 0.05 nats a token (5
% of the perplexity)."""
_ASIDE = ("teacher", "teacher_dtype", "teacher_sharded")
"""Settings of a method that say how it is computed, not what it is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A method's trials that differ in its strength alone."""

    name: str
    """Of the strength, such as "weight"."""
    members: list[tuple[float, TrialRecord]]
    """Strength and trial, in the order of the strength."""
    settings: Mapping[str, Any]
    """What else the method is told whose strength varies, as far as it is not that method's
    default."""
    start: TrialRecord | None
    """The trial without that method; None where the study has it not."""

    def has(self, wanted: Mapping[str, Any]) -> bool:
        """Whether the method whose strength varies has these settings, defaults included."""
        return all(self.settings.get(k, default_of(k)) == v for k, v in wanted.items())


def default_of(parameter: str) -> Any:
    """Label annealing's, None for a parameter that it has not."""
    return getattr(declared("label_annealing"), parameter, None)


def method_of(trial: TrialRecord) -> Method:
    """The names of a trial's methods."""
    return frozenset() if trial.kind == "direct" else frozenset(trial.kind.split("+"))


def complete_trials(study: StudyRecord, method: Method) -> list[TrialRecord]:
    """The trials of exactly this method that have all seeds and measures, by number."""
    trials = []
    for trial in sorted(study.trials, key=lambda trial: trial.number):
        if method_of(trial) == method and incomplete(trial, study) is None:
            trials.append(trial)
    return trials


def why_no_trial(study: StudyRecord, method: Method) -> str | None:
    """Why there is no trial of a method that could be judged; None where there is one."""
    if complete_trials(study, method):
        return None
    if method not in map(method_of, study.trials):
        return f"the study has no trial of {NAMES[method]}"
    return f"no trial of {NAMES[method]} is complete"


def paper_choice(study: StudyRecord, method: Method) -> TrialRecord | None:
    """The trial that the paper's rule takes among those of a method: of those that learn more than
    the start, the one that keeps most, ties by what learns more; by the validation, where the study
    has one. None without one."""
    choice, best = None, (-math.inf, -math.inf)
    for trial in complete_trials(study, method):
        learnt = gain(trial, study, study.chooses_by).value
        figures = (gain(trial, study, study.keep).value, learnt)
        if learnt > ROUNDING and figures > best:
            choice, best = trial, figures
    return choice


def lines(study: StudyRecord, method: Method) -> list[Line]:
    """A method's grid, the longest line first; trials whose strength is not known or 0 are in
    none."""
    groups: dict[str, Line] = {}
    trials = complete_trials(study, method)
    starts: dict[str, TrialRecord] = {}
    for trial_method in dict.fromkeys(map(method_of, study.trials)):
        for trial in complete_trials(study, trial_method):
            starts.setdefault(_key(method_settings(trial), trial), trial)
    leading, name = _strength(trials, method)
    for trial in trials if leading else ():
        settings = method_settings(trial)
        strengths = settings.pop(leading, {})
        strength = strengths.pop(name, getattr(declared(leading), name, None))
        if isinstance(strength, bool) or not isinstance(strength, (int, float)) or strength <= 0:
            continue
        others = _without_defaults(leading, strengths)
        key = repr((sorted(others.items()), _key(settings, trial)))
        start = starts.get(_key(settings, trial))
        line = Line(name=name, members=[], settings=others, start=start)
        groups.setdefault(key, line).members.append((float(strength), trial))
    for line in groups.values():
        line.members.sort(key=lambda member: member[0])
    return sorted(groups.values(), key=lambda line: -len(line.members))


def _key(settings: Mapping[str, Mapping[str, Any]], trial: TrialRecord) -> str:
    """What a trial is, given the settings of its methods."""
    methods = []
    for name, parameters in sorted(settings.items()):
        methods.append((name, sorted(_without_defaults(name, parameters).items())))
    return repr((methods, _settings_without("retention", trial)))


def _without_defaults(method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that say what a method is and are not its defaults."""
    choices = {}
    for name, value in parameters.items():
        if name not in _ASIDE and value != getattr(declared(method), name, None):
            choices[name] = value
    return choices


def from_direct(line: Line, study: StudyRecord) -> list[tuple[float, TrialRecord]]:
    """A line's members from the end at which more is learnt: some methods hold on less at a higher
    value, such as a weight on the new model."""
    first, last = (
        gain(line.members[0][1], study, "learn"),
        gain(line.members[-1][1], study, "learn"),
    )
    return line.members if first.value >= last.value else line.members[::-1]


def _strength(trials: Sequence[TrialRecord], method: Method) -> tuple[str, str]:
    """The method and the parameter that say how strongly a grid holds on: of what their classes
    declare the first that differs between the trials, those of data last; else the first. Empty
    where none declares any."""
    pairs, of_data = list[tuple[str, str]](), list[tuple[str, str]]()
    for method_name in sorted(method):
        cls = declared(method_name)
        if cls is not None:
            strengths = of_data if cls.place == "data" else pairs
            strengths += [(method_name, parameter) for parameter in cls.strength]
    pairs += of_data
    for method_name, parameter in pairs:
        values = set()
        for settings in map(method_settings, trials):
            values.add(repr(settings.get(method_name, {}).get(parameter)))
        if len(values) > 1:
            return method_name, parameter
    return pairs[0] if pairs else ("", "")


def method_settings(trial: TrialRecord) -> dict[str, dict[str, Any]]:
    """What a trial says of each of its methods, by the method's own name; written either way that a
    configuration takes."""
    retention = trial.settings.get("retention") or []
    by_method: dict[str, dict[str, Any]] = {}
    for method in retention if isinstance(retention, list) else [retention]:
        if isinstance(method, Mapping) and "method" in method:
            parameters = {str(key): value for key, value in method.items()}
            by_method[str(parameters.pop("method"))] = parameters
        elif isinstance(method, Mapping):
            for name, about in method.items():
                by_method[str(name)] = dict(about or {})
    by_name = {}
    for name, about in by_method.items():
        cls = declared(name)  # a method of the user's own is named by its file
        by_name[name if cls is None else cls.name] = about
    return by_name


def _settings_without(key: str, trial: TrialRecord) -> str:
    """A trial's other settings, as a key of a dictionary."""
    settings = dict(trial.settings)
    settings.pop(key, None)
    return repr(sorted(settings.items()))


# ------------------------------------------------------------------------------------------ figures


def gain(trial: TrialRecord | None, study: StudyRecord, side: str | Objective) -> Gain:
    """Of a complete trial, on the side "learn" or "keep", or on other entries that it has."""
    assert trial is not None, "the gain cannot be computed without a trial"
    objective = {"learn": study.learn, "keep": study.keep}[side] if isinstance(side, str) else side
    figure = mean_gain(trial, objective, seeds=study.seeds, correlations=study.correlations)
    assert figure is not None, "the gain cannot be computed without a complete trial"
    return figure


def share_of_direct(
    trial: TrialRecord, study: StudyRecord, side: str, confidence: float = CONFIDENCE
) -> Share:
    """What a trial kept of direct fine-tuning's gain ("learn"), or avoided of its loss ("keep"),
    with Fieller's interval.

    At `CONFIDENCE` this is what `holdfast.statistics.shares.shares` gives; other levels are for
    several looks at once.
    """
    ours, direct = gain(trial, study, side), gain(study.direct, study, side)
    return (kept_share if side == "learn" else avoided_share)(ours, direct, confidence=confidence)


def at_equal_target(
    study: StudyRecord,
    method: Method,
    share: float,
    *,
    of: Callable[[TrialRecord], Figure] | None = None,
    having: Mapping[str, Any] | None = None,
) -> Figure | None:
    """What a method keeps where it has learnt a share of what direct fine-tuning gains on what is
    learnt (`holdfast.statistics.equal_target`).

    Args:
        study: with `direct` finished, tuned over its own rates.
        method: its grid is interpolated; of direct fine-tuning its own rates.
        share: of direct's gain, 1 is all of it.
        of: what is looked at where what is kept is best; None: what is kept.
        having: only lines of label annealing with these settings; None: all.

    Returns:
        None where no curve of the method learns that much in every seed.
    """

    least = gain(study.direct, study, "learn") * share
    curves = []
    for trials in curves_of(study, method, having=having):
        curves.append([point_of(trial, study, of) for trial in trials])
    return source_at(curves, least)


def curves_of(
    study: StudyRecord, method: Method, *, having: Mapping[str, Any] | None = None
) -> list[list[TrialRecord]]:
    """A method's complete trials as curves that are interpolated along: each line from its start
    on, what is on no line by itself. Direct fine-tuning is one curve along its rates, from the
    largest down, at each of its other settings; so is a method without a strength.

    Args:
        study: as of `at_equal_target`.
        method: whose.
        having: as of `at_equal_target`.
    """

    def along_rates(trials: Sequence[TrialRecord]) -> list[list[TrialRecord]]:
        groups: dict[str, list[TrialRecord]] = {}
        for trial in trials:
            groups.setdefault(_settings_without("learning_rate", trial), []).append(trial)
        for group in groups.values():
            group.sort(
                key=lambda t: (
                    -float(t.settings.get("learning_rate") or 0.0),
                    -gain(t, study, "learn").value,
                )
            )
        return list(groups.values())

    if method == DIRECT:
        return along_rates(complete_trials(study, DIRECT))
    on_lines = lines(study, method)
    if not on_lines and having is None:
        return along_rates(complete_trials(study, method))
    curves, numbers = [], set[int]()
    for line in on_lines:
        numbers.update(trial.number for _, trial in line.members)
        if line.has(having or {}):
            start = [] if line.start is None else [line.start]
            curves.append(start + [trial for _, trial in from_direct(line, study)])
    for trial in complete_trials(study, method) if having is None else ():
        if trial.number not in numbers:
            curves.append([trial])
    return curves


def point_of(
    trial: TrialRecord, study: StudyRecord, of: Callable[[TrialRecord], Figure] | None = None
) -> Point:
    """A complete trial as a point of a curve; `of` as of `at_equal_target`."""
    beside = None if of is None else of(trial)
    return Point(
        target=gain(trial, study, "learn"), source=gain(trial, study, "keep"), beside=beside
    )


def avoided_at(study: StudyRecord, method: Method, share: float, confidence: float) -> Share:
    """Of direct fine-tuning's loss, what a method avoids at a target."""
    figure = at_equal_target(study, method, share)
    if figure is None:
        why = (
            f"{NAMES[method]} learns less than {100 * share:.0f} % as much as direct fine-tuning: at "
            "least one seed learns less"
        )
        return Share(value=None, interval=None, reason=why)
    return avoided_share(figure, gain(study.direct, study, "keep"), confidence=confidence)


def difference_share(a: Figure, b: Figure, study: StudyRecord, confidence: float) -> Share:
    """(a - b) on what is kept as a share of what direct fine-tuning loses there, positive where a
    is better."""
    direct = gain(study.direct, study, "keep")
    if direct.value >= 0:
        return Share(value=None, interval=None, reason="direct fine-tuning forgot nothing")
    return share_over_seeds(a - b, direct, confidence=confidence, what="loss").taken_from(0.0)


# ---------------------------------------------------------------------------- beside learn and keep

RELATED = "related"
"""The suite of what was neither trained for nor is to be kept; without it HumanEval, as in the
paper."""
STRICT, FLEXIBLE = "strict-match", "flexible-extract"
"""Filters of the evaluation harness: the answer in the form of the few-shot examples, and anywhere
in the text."""


def _reported(study: StudyRecord) -> list[Comparison]:
    """What direct fine-tuning was measured by with every seed, but for the entries that it was
    chosen by."""
    if study.direct is None or not study.direct.runs:
        return []
    measured = [set(map(_entry, run.comparisons)) for run in study.direct.runs]
    entries = set.intersection(*measured)
    aside = (
        []
        if study.validation is None
        else [(suite, name) for suite, name, _ in study.validation.entries]
    )
    reported = []
    for comparison in study.direct.runs[0].comparisons:
        if _entry(comparison) in entries and (comparison.suite, comparison.name) not in aside:
            reported.append(comparison)
    return reported


def _entry(comparison: Comparison) -> Entry:
    return comparison.suite, comparison.name, comparison.metric


def related_skill(study: StudyRecord) -> Objective | None:
    """The related skill that direct fine-tuning was measured by; None where there is none."""
    leading = [comparison for comparison in _reported(study) if comparison.primary]
    comparisons = [comparison for comparison in leading if comparison.suite == RELATED]
    if not comparisons:
        comparisons = [
            comparison for comparison in leading if comparison.name.startswith("humaneval")
        ]
    if not comparisons:
        return None
    return Objective(
        side=RELATED,
        entries=list(map(_entry, comparisons)),
        label=", ".join(comparison.name for comparison in comparisons),
        unit=comparisons[0].unit,
        higher_is_better=comparisons[0].higher_is_better,
    )


def by_win_rate(study: StudyRecord, side: str) -> StudyRecord | None:
    """The study with nothing but the win rates among a side's measures as that side; None where
    there are none."""
    rates = []
    for comparison in _reported(study):
        if comparison.primary and comparison.suite == side and comparison.metric == "win_rate":
            rates.append(comparison)
    return _with_side(study, side, rates)


def with_entries(study: StudyRecord, side: str, names: tuple[str, ...]) -> StudyRecord:
    """The study with the entries of these names as that side, of those that it is judged by; as it
    is where none has one, or all have."""
    entries = [tuple(entry) for entry in getattr(study, side).entries]
    comparisons = []
    for comparison in _reported(study):
        if _entry(comparison) in entries and comparison.name in names:
            comparisons.append(comparison)
    if len(comparisons) == len(entries):
        return study
    return _with_side(study, side, comparisons) or study


def _with_side(
    study: StudyRecord, side: str, comparisons: Sequence[Comparison]
) -> StudyRecord | None:
    """The study with these measures as a side; None without any."""
    if not comparisons:
        return None
    label = ", ".join(comparison.name for comparison in comparisons)
    first = comparisons[0]
    alone = Objective(
        side=side,
        entries=list(map(_entry, comparisons)),
        label=label,
        unit=first.unit,
        higher_is_better=first.higher_is_better,
    )
    if side == "learn":
        return dataclasses.replace(study, learn=alone)
    return dataclasses.replace(study, keep=alone)


def formats(study: StudyRecord) -> list[tuple[Objective, Objective]]:
    """The entries that were scored both strictly and flexibly, as the one and the other."""
    comparisons = _reported(study)
    known = set(map(_entry, comparisons))
    pairs = []
    for c in comparisons:
        base, _, kind = c.metric.partition(",")
        flexible = f"{base},{FLEXIBLE}"
        if kind == STRICT and (c.suite, c.name, flexible) in known:
            pairs.append((_format(c, c.metric, STRICT), _format(c, flexible, FLEXIBLE)))
    return pairs


def _format(comparison: Comparison, metric: str, filtered: str) -> Objective:
    return Objective(
        side="format",
        entries=[(comparison.suite, comparison.name, metric)],
        label=f"{comparison.name}, {filtered}",
        unit=comparison.unit,
        higher_is_better=comparison.higher_is_better,
    )


def follows_format(trial: TrialRecord | None, study: StudyRecord) -> Figure:
    """What a trial gains of the strict match beyond what it gains of the flexible one, mean over
    entries: negative where it knows the answer and no longer gives it in the form of the
    examples."""
    figures = []
    for strict, flexible in formats(study):
        figures.append(gain(trial, study, strict) - gain(trial, study, flexible))
    return functools.reduce(operator.add, figures) * (1 / len(figures))
