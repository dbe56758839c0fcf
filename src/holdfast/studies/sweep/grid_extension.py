"""Grids that grow: values of a method's strength beyond an end of its grid, where what was found so far does not show
what lies there.

The rule that the study selects by is applied to each line of a grid (`curves.lines`: trials that differ in the strength
alone). The grid does not reach far enough

- at the end where the rule's choice lies;
- at the strong end, where the rule drops trials that learn nothing (`paper`) and none of the line is one; at the
  weak end, where all are;
- at the weak end, where the rule drops trials that lose too much (`keep_within`) and none is one; at the strong end,
  where all are.

The next value follows in the ratio of the last two there, up to `search.extend` values an end. What is added is a
function of the trials that ended and of nothing else, so that an interrupted study adds the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from holdfast.records.study import StudyRecord, TrialRecord
from holdfast.retention.registry import parse_retention
from holdfast.statistics.gains import incomplete
from holdfast.statistics.rules import ROUNDING, Rule, allowed_loss, rule_from_config, table_of
from holdfast.studies.sweep.curves import Line, from_direct, lines, method_of, with_only
from holdfast.studies.sweep.study import StudyConfig
from holdfast.support.files import fingerprint

End = Literal["weak", "strong"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extension:
    """One value more."""

    params: dict[str, Any]
    """The whole combination."""
    why: str
    """A sentence without its end."""


def extended_grid(record: StudyRecord, config: StudyConfig) -> list[Extension]:
    """What the trials that ended ask for; empty where the grid reaches far enough, or has grown as often as it may.

    Args:
        record: with no trial under way.
        config: of the study.
    """
    known = {fingerprint(config.settings(t.params)) for t in record.trials}
    values: dict[str, Extension] = {}
    for line in _lines_by_way(record) if config.search.extend else ():
        for value in _along(line, record, config):
            key = fingerprint(config.settings(value.params))
            if key not in known:  # else it ended otherwise than complete, or stands on another line too
                values.setdefault(key, value)
    return list(values.values())


def _lines_by_way(record: StudyRecord) -> Iterator[Line]:
    """The lines of every arm by itself: two arms of the same methods have strengths and ends of their own."""
    by_arm: dict[str, list[TrialRecord]] = {}
    for trial in record.trials:
        by_arm.setdefault(trial.arm or trial.kind, []).append(trial)
    for trials in by_arm.values():
        alone = with_only(trials, record)
        for method in dict.fromkeys(map(method_of, trials)):
            yield from lines(alone, method)


def _along(line: Line, record: StudyRecord, config: StudyConfig) -> Iterator[Extension]:
    planned_of = config.space.strengths(config.space.arm(line.members[0][1].params))
    name = next((n for n in planned_of if n.rpartition(".")[2] == line.name), None)
    if name is None or len(line.members) < 2:
        return
    planned = planned_of[name]
    members = from_direct(line, record)
    for end, why in _unbounded_ends([t for _, t in members], record).items():
        (edge, trial), (inner, _) = members[:2] if end == "weak" else members[:-3:-1]
        below = edge < inner
        added = 0
        for strength, _ in members:
            added += strength < min(planned) if below else strength > max(planned)
        if added >= config.search.extend:
            continue
        value = float(f"{edge * edge / inner:.6g}")
        params = {**trial.params, name: value}
        if parse_retention(config.settings(params)["retention"])[1]:  # the method knows no such value
            continue
        yield Extension(params=params, why=f"{config.space.label(params)} was added beyond {edge:g}: {why}")


def _unbounded_ends(trials: list[TrialRecord], record: StudyRecord) -> dict[End, str]:
    """The ends of a line that the rule does not see beyond, and why."""
    rule = rule_from_config({k: v for k, v in record.selection.items() if v is not None})
    table, weights = table_of(record, trials), np.ones(len(record.seeds))
    allowed = _allowed(record, rule)
    index = table.choose(weights, rule, allowed)
    ends: dict[End, str] = {}
    if rule.name != "knee":
        side, bound = (table.learn, ROUNDING) if rule.name == "paper" else (table.keep, -allowed - ROUNDING)
        value, half = side.of(weights, strict=rule.strict)
        dropped = value - half <= bound if rule.name == "paper" else value - half < bound
        away: tuple[End, End] = ("strong", "weak") if rule.name == "paper" else ("weak", "strong")
        if not dropped.any():
            ends[away[0]] = f"the rule {rule.name} drops none of its values"
        elif dropped.all():
            ends[away[1]] = f"the rule {rule.name} drops all of its values"
    if index is not None and index in (0, len(trials) - 1):
        ends["weak" if index == 0 else "strong"] = f"the rule {rule.name} takes the last value of the grid there"
    return ends


def _allowed(record: StudyRecord, rule: Rule) -> float:
    """What `keep_within` allows; without `points` a share of what direct fine-tuning loses, which is on no line."""
    table = table_of(record, [t for t in record.trials if incomplete(t, record) is None])
    return table.allowed(table.keep.of(np.ones(len(record.seeds)), strict=False)[0], allowed_loss(record, rule))
