"""Evaluated models compared as they were asked to be: what can be wrong is found before samples are
read, all at once; then come the paired differences, and what the rules say of them."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import ConfigError, DataError, did_you_mean
from holdfast.evaluation.compare.breakdown import breakdowns
from holdfast.evaluation.compare.folders import (
    Key,
    Matching,
    compare_entries,
    match_entries,
    mixed_weights,
    read_evaluations,
)
from holdfast.evaluation.compare.gate import (
    Aim,
    Rule,
    bind_rules,
    judge,
    to_record,
    verdict_of,
)
from holdfast.evaluation.compare.next_step import NextStep, next_step
from holdfast.evaluation.compare.noise import remarks_on_repeats
from holdfast.evaluation.compare.policy import (
    Policy,
    accept,
    accepted_losses,
    bind_policy,
    model_of,
)
from holdfast.evaluation.compare.request import CompareSettings, Side
from holdfast.evaluation.compare.samples import ComparisonOptions
from holdfast.records.comparison import (
    HOLD,
    Answers,
    Breakdown,
    Comparison,
    Decision,
    GateOutcome,
    Verdict,
)
from holdfast.records.evaluation import Evaluation
from holdfast.records.margins import Margins, parse_margins
from holdfast.support.progress import progress


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a comparison found."""

    sides: list[Side]
    """The two models, the one before first."""
    comparisons: Sequence[Comparison]
    """In the order to show."""
    gates: Sequence[GateOutcome] = ()
    """The rules, and what they say of each entry."""
    decision: Decision | None = None
    """What all tests say together: of the rules, else of losses in the metrics that lead."""
    unmatched: Sequence[str] = ()
    """What was not compared, a sentence each."""
    notes: Sequence[str] = ()
    """What to know, a sentence each."""
    next_step: NextStep | None = None
    """What to do about a loss, or about what cannot be told."""
    settings: CompareSettings = field(default_factory=CompareSettings)
    policy: Policy | None = None
    answers: Answers | None = None
    """Of both models to the user's own prompts, where there are some."""

    @property
    def asks_only(self) -> bool:
        """Whether there are answers to prompts, and nothing that was measured."""
        is_compared = self.comparisons or self.gates or self.unmatched
        return self.answers is not None and not is_compared

    @functools.cached_property
    def breakdowns(self) -> list[Breakdown]:
        """The metrics that lead, on each group of the samples; reads the samples again."""
        first, last = self.sides[0], self.sides[-1]
        return breakdowns(
            first.folder,
            last.folder,
            self.comparisons,
            allow_unpaired=self.settings.allow_unpaired,
        )

    @property
    def verdict(self) -> Verdict | None:
        """What the gate says; None where nothing is asked."""
        if not self.gates:
            return None
        supporting = 1 if self.policy is None else self.policy.supporting_losses
        return verdict_of(self.gates, strict=self.settings.strict, supporting_losses=supporting)

    @property
    def labels(self) -> tuple[str, str]:
        """Names of the two models that were compared."""
        return self.sides[0].label, self.sides[-1].label

    @property
    def failed(self) -> bool:
        """Whether the gate holds, or something is not finite that no policy speaks of."""
        return bool(self.broken) or (self.verdict is not None and self.verdict.word == HOLD)

    @property
    def broken(self) -> list[str]:
        """Of `not_finite` what no policy speaks of: the comparison has failed, whatever its rules
        say."""
        in_policy = {(gate.suite, gate.name) for gate in self.gates if gate.of_policy}
        return self._not_finite(in_policy)

    @property
    def not_finite(self) -> list[str]:
        """Entries of which a figure or a sample is NaN or infinite, a sentence each; the comparison
        has failed then, whatever the rules say."""
        return self._not_finite(set())

    def _not_finite(self, asked: Container[tuple[str, str]]) -> list[str]:
        """As `not_finite`, without these entries."""
        sentences = {}
        for c in self.comparisons:
            if c.failed is not None and (c.suite, c.name) not in asked:
                sentences[c.suite, c.name] = f"{c.suite}/{c.name}: {c.failed}"
        of_answers = [] if self.answers is None else self.answers.not_finite
        return [*sentences.values(), *of_answers]

    def accept(self, entries: Sequence[str], *, by: str, why: str) -> None:
        """Records losses in the policy's file of accepted losses.

        Args:
            entries: by name or suite/name.
            by: who accepts them.
            why: in their words.

        Raises:
            ConfigError: no such entry, or nothing was lost there; all at once.
        """
        assert self.policy is not None
        evaluations = read_evaluations(self.sides[0].folder)
        in_policy = {(gate.suite, gate.name, gate.metric) for gate in self.gates if gate.of_policy}
        judged = [c for c in self.comparisons if (c.suite, c.name, c.metric) in in_policy]
        accept(
            self.policy,
            entries,
            judged,
            before=model_of(evaluations[0]),
            labels=self.labels,
            by=by,
            why=why,
        )

    def record(self, seconds: float) -> dict[str, Any]:
        """Everything, for programs; `comparisons` and `gates` have the fields of their records.

        Args:
            seconds: what the comparison took.
        """
        import importlib.metadata
        import platform

        from holdfast import __version__

        settings = (
            *("metrics", "confidence", "margin", "family_wise", "resamples", "seed", "strict"),
            "allow_unpaired",
        )
        libraries = {name: importlib.metadata.version(name) for name in ("numpy", "scipy")}
        return {
            "labels": [s.label for s in self.sides],
            "folders": [s.path for s in self.sides],
            "failed": self.failed,
            "verdict": self.verdict,
            "not_finite": self.not_finite,
            "rules": to_record(self.gates, self.verdict),
            "decision": self.decision,
            "gates": self.gates,
            "comparisons": self.comparisons,
            "breakdowns": self.breakdowns,
            "answers": self.answers,
            "unmatched": self.unmatched,
            "next_step": self.next_step,
            "notes": self.notes,
            "settings": {name: getattr(self.settings, name) for name in settings},
            "versions": {"holdfast": __version__, "python": platform.python_version(), **libraries},
            "seconds": math.ceil(seconds * 1000) / 1000,
        }


def compare_sides(
    sides: Sequence[Side],
    rules: Sequence[Rule],
    settings: CompareSettings,
    policy: Policy | None = None,
) -> Result:
    """Compares two models, and holds the rules against the differences.

    Args:
        sides: the two models.
        rules: those of `settings.fail_if`.
        settings: how to compare.
        policy: that of `settings.policy`.

    Raises:
        ConfigError: evaluations that cannot be read or are of several models' weights in one
            folder, rules and margins that do not fit them; all at once.
        DataError: nothing can be compared; says why, entry by entry.
    """
    first, last = sides
    options = ComparisonOptions(
        confidence=settings.confidence,
        margins=parse_margins(settings.margin),
        family_wise=settings.family_wise,
        resamples=settings.resamples,
        seed=settings.seed,
        allow_unpaired=settings.allow_unpaired,
    )
    matching, aims, notes = _prepared(sides, rules, policy, options.margins)
    with progress("Comparing", total=len(matching.pairs)) as advance:
        compared = compare_entries(
            first.folder,
            last.folder,
            matching,
            options,
            progress=lambda done, total: advance(1),
        )
    gates, decision = judge(aims, compared)
    if not compared.comparisons and not gates:
        raise DataError(
            "Nothing can be compared:", *(f"  - {entry}" for entry in compared.unmatched)
        )
    judged = {(gate.suite, gate.name, gate.metric) for gate in gates}
    comparisons = []
    for c in compared.comparisons:
        if c.primary or settings.metrics == "all" or (c.suite, c.name, c.metric) in judged:
            comparisons.append(c)
    for side in sides:
        notes += side.notes
    kinds = {pair.key: pair.before.kind for pair in matching.pairs}
    repeated = remarks_on_repeats(comparisons, [first.folder, last.folder])
    return Result(
        sides=list(sides),
        settings=settings,
        policy=policy,
        comparisons=comparisons,
        gates=gates,
        decision=decision if aims else compared.decision,
        unmatched=[str(entry) for entry in compared.unmatched],
        next_step=next_step(sides, settings, compared.comparisons, kinds, gates),
        notes=[*notes, *compared.notes, *repeated],
    )


def _prepared(
    sides: Sequence[Side], rules: Sequence[Rule], policy: Policy | None, margins: Margins
) -> tuple[Matching, list[Aim], list[str]]:
    """What can be compared, what is asked of it, and notes. Everything that can be wrong and is
    known before samples are read is said at once."""
    evaluations: list[list[Evaluation]] = []
    aims: list[Aim] = []
    problems: list[str] = []
    for side in sides:
        with _collected(problems):
            evaluations.append(read_evaluations(side.folder))
            if mixed := mixed_weights(evaluations[-1]):
                problems.append(
                    f"expected evaluations of one model in {side.path}, got evaluations of "
                    f"different weights: {mixed}. Measure the model again under another label, or "
                    "into another --output_dir."
                )
    if problems:
        raise ConfigError(problems)
    matching = match_entries(evaluations[0], evaluations[-1])
    notes: list[str] = []
    with _collected(problems, "--fail_if: "):
        aims = bind_rules(rules, matching)
    if policy is not None:
        with _collected(problems, "--policy: "):
            losses, notes = accepted_losses(policy, matching)
            aims += bind_policy(policy, matching, margins, losses)
            aims += bind_rules(policy.rules, matching)
            notes += _outside(aims, matching)
    problems += [f"--margin: {problem}" for problem in _unknown_units(margins, matching)]
    if problems:
        raise ConfigError(problems)
    return matching, aims, notes


def _outside(aims: Sequence[Aim], matching: Matching) -> list[str]:
    """A sentence on the entries that neither the policy nor a rule speaks of."""
    judged: set[Key] = set()
    for aim in aims:
        judged |= {*aim.metrics, *aim.missing}
    left = ["/".join(pair.key) for pair in matching.pairs if pair.key not in judged]
    return [f"Not in the policy, and not judged: {', '.join(left)}."] if left else []


def _unknown_units(margins: Margins, matching: Matching) -> list[str]:
    """A sentence for each unit that neither a compared metric nor a default margin has."""
    units: dict[str, None] = {}
    for pair in matching.pairs:
        for evaluation in (pair.before, pair.after):
            units |= dict.fromkeys(metric.unit for metric in evaluation.metrics.values())
    known = [*units, *Margins().units]
    problems = []
    for unit in margins.units:
        if units and unit not in known:
            near = did_you_mean(unit, known)
            problems.append(
                f"no compared metric has the unit '{unit}'.{near} Known: {', '.join(units)}."
            )
    return problems


@contextlib.contextmanager
def _collected(problems: list[str], option: str = "") -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        problems += [f"{option}{problem}" for problem in error.problems]
    except DataError as error:
        problems.append(str(error))
