"""Several models on the same questions: scores with joint bootstrap draws, of entries and of
averages over entries.

Questions are drawn once for all models and all metrics of an entry, so that what is hard for all of
them cancels. Different entries are other questions and are drawn independently, from a seed made of
`seed` and the entry's suite and name. An average over M members is, draw by draw,

    A_k = 1/M sum_m s_mk        (model k, member m)

so members of one entry share its draws. The interval of A_k takes the expanded percentile levels
(see `estimates`) of the member with the fewest samples, the widest. A difference of two models is
the mean of its members' paired differences; its test adds up what each sample contributes to them.
Not included: the choice of the members, which the interval takes as given.

A metric that is no mean over samples (BLEU) has no draws, and neither has an average that it is a
member of: nothing is known of its spread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.errors import DataError
from holdfast.evaluation.compare.samples import Sheet, join_allowing, sheet_of, why_failed
from holdfast.records.evaluation import Evaluation, EvaluationFolder, Metric
from holdfast.statistics.estimates import entry_seed, joint_sums
from holdfast.statistics.paired import Influence

Key = tuple[str, str]
"""(suite, name) of an entry."""

SAMPLES_DECIDE = frozenset(
    {"data", "fewshot_data", "split", "config", "limit", "max_documents", "task_hash"}
)
"""Settings that say which samples there are. Whether they are the same is decided by the samples
themselves, which are hashed."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """One metric of one entry, or of an average, for K models."""

    values: np.ndarray
    """`[K]` float64."""
    influence: Influence
    """What each sample contributes to the difference of the last model to the first, by entry."""
    n: int
    """Samples in all, those of every member of an average."""
    smallest: int
    """Samples of the entry that has the fewest."""
    unit: str
    higher_is_better: bool


class JointScores:
    """Scores of K models with joint bootstrap draws (module docstring). Rows are read when they are
    first asked for; their figures are kept.

    Args:
        folders: of the K models.
        entries: the K evaluations of each entry, by the key of the first.
        resamples: bootstrap draws B.
        seed: with the entry's key it decides the draws.
        allow_unpaired: share of an entry's samples that two models need not have in common (of more
            models: 0).
    """

    def __init__(
        self,
        folders: Sequence[EvaluationFolder],
        entries: Mapping[Key, Sequence[Evaluation]],
        *,
        resamples: int = 4000,
        seed: int = 0,
        allow_unpaired: float = 0.0,
    ) -> None:
        assert not allow_unpaired or len(folders) == 2, "allow_unpaired needs exactly two models"
        self.folders = list(folders)
        self.entries = dict(entries)
        self.resamples = resamples
        self.seed = seed
        self.allow_unpaired = allow_unpaired
        self.remarks: dict[Key, str] = {}
        """By entry, what a reader should know of samples without a partner."""
        self._sheets: dict[Key, Sheet] = {}
        self._failed: dict[Key, str | None] = {}
        self._sums: dict[Key, dict[str, np.ndarray]] = {}

    def sheet(self, key: Key) -> Sheet:
        """The columns of one entry; kept once read.

        Raises:
            DataError: rows are missing, malformed, or of other samples or prompts.
        """
        if key not in self._sheets:
            rows, evaluations = self._rows(key), self.entries[key]
            self._failed[key] = why_failed(evaluations, rows)
            self._sheets[key] = sheet_of(rows, evaluations)
        return self._sheets[key]

    def failed(self, key: Key) -> str | None:
        """Why nothing follows from an entry, or from a member of an average: a figure or a sample
        of one of the models is not finite. None where all are.

        Raises:
            DataError: see `sheet`.
        """
        evaluations = self.entries[key]
        reason = why_failed(evaluations)
        if reason is not None:
            return reason
        if evaluations[0].kind != "average":
            self.sheet(key)
            return self._failed[key]
        reasons = []
        members = dict.fromkeys((suite, name) for suite, name, _ in _members(evaluations[0]))
        for member in members:
            with contextlib.suppress(DataError):  # `scores` says what cannot be compared
                if member in self.entries and (reason := self.failed(member)) is not None:
                    reasons.append(f"its member {'/'.join(member)}: {reason}")
        return " ".join(reasons) or None

    def scores(self, key: Key, metric: str) -> Scores:
        """One metric of an entry or an average.

        Raises:
            DataError: the rows do not fit together, the metric has no pairs, or an average's
                members differ between the models.
        """
        if self.entries[key][0].kind == "average":
            return self._mean(key, metric)
        sheet = self.sheet(key)
        if metric not in sheet.figures:
            raise DataError(
                f"{'/'.join(key)}: {metric} {sheet.left_out.get(metric, 'was not measured')}."
            )
        figure = sheet.figures[metric]
        return Scores(
            values=sheet.values(metric, sheet.columns[metric].sum(0)),
            influence={key: sheet.influence(metric)},
            n=sheet.n,
            smallest=sheet.n,
            unit=figure.unit,
            higher_is_better=figure.higher_is_better,
        )

    def draws(self, key: Key, metric: str) -> np.ndarray:
        """`[B, K]` float64: what `scores` gives, from B joint bootstrap samples; those of an entry
        are kept once drawn.

        Raises:
            DataError: as `scores`.
        """
        if self.entries[key][0].kind == "average":
            _, members = self._known_members(key, metric)
            return np.mean(
                [self.draws((suite, name), of_member) for suite, name, of_member in members], axis=0
            )
        if key not in self._sums:
            columns, seed = self.sheet(key).columns, entry_seed(self.seed, key)
            self._sums[key] = (
                joint_sums(columns, resamples=self.resamples, seed=seed) if columns else {}
            )
        return self.sheet(key).values(metric, self._sums[key][metric])

    def _rows(self, key: Key) -> list[list[Any]]:
        """The K models' rows of one entry, joined."""
        evaluations, what = self.entries[key], "/".join(key)
        models = []
        for folder, evaluation in zip(self.folders, evaluations, strict=True):
            try:
                models.append(folder.samples(evaluation.suite, evaluation.name))
            except DataError as error:
                raise DataError(f"{what}: {error}") from None
        rows_of_all: list[list[Any]] = [models[0]]
        for rows, evaluation in zip(models[1:], evaluations[1:], strict=True):
            try:
                joined = join_allowing(
                    rows_of_all[0], rows, what=what, allow_unpaired=self.allow_unpaired
                )
                rows_of_all[0] = joined.before
                rows_of_all.append(joined.after)
                if remark := joined.remark():
                    self.remarks[key] = f"{what}: {remark}"
            except KeyError as error:
                raise DataError(
                    f"{what}: samples are paired by {error}, but the sample rows lack it. Evaluate "
                    "both models again."
                ) from None
            except DataError as error:
                differences = setting_differences(evaluations[0], evaluation, only=SAMPLES_DECIDE)
                hint = f" They differ in {differences}." if differences else ""
                raise DataError(f"{error}{hint}") from None
        return rows_of_all

    def _known_members(self, key: Key, metric: str) -> tuple[Metric, list[tuple[str, str, str]]]:
        """The metric of an average and its members, which are the same for all models."""
        evaluations, what = self.entries[key], "/".join(key)
        members = _members(evaluations[0])
        for index, average in enumerate(evaluations[1:], 1):
            mapped = []
            for suite, name, member_metric in members:
                entry = self.entries.get((suite, name))
                key_there = (
                    (suite, name) if entry is None else (entry[index].suite, entry[index].name)
                )
                mapped.append((*key_there, member_metric))
            if sorted(mapped) != sorted(_members(average)):
                raise DataError(
                    f"{what}: the average has different members before and after. Evaluate both "
                    "models with the same suites."
                )
        if not members:
            raise DataError(f"{what}: no members of the average are recorded. Evaluate again.")
        known = evaluations[0].metrics.get(metric)
        if known is None:
            raise DataError(f"{what}: {metric} was not measured.")
        return known, members

    def _mean(self, key: Key, metric: str) -> Scores:
        """An average: the mean of its members' scores."""
        known, members = self._known_members(key, metric)
        what = "/".join(key)
        scores: list[Scores] = []
        samples: dict[Key, int] = {}
        influence: dict[Any, Any] = {}
        for suite, name, of_member in members:
            if (suite, name) not in self.entries:
                raise DataError(
                    f"{what}: its member {suite}/{name} cannot be compared, so the average cannot "
                    "be compared either."
                )
            try:
                member = self.scores((suite, name), of_member)
            except DataError as error:
                raise DataError(
                    f"{what}: one of its members cannot be compared, so the average cannot be "
                    f"compared either. {error}"
                ) from None
            if member.higher_is_better != known.higher_is_better:
                raise DataError(
                    f"{what}: the average mixes metrics where higher is better with metrics where "
                    "lower is better. Make one average for each kind."
                )
            scores.append(member)
            samples[suite, name] = member.n
            for entry, moves in member.influence.items():
                influence[entry] = influence.get(entry, 0.0) + moves / len(members)
        return Scores(
            values=np.stack([member.values for member in scores], axis=-1).mean(-1),
            influence=influence,
            n=sum(samples.values()),
            smallest=min(member.smallest for member in scores),
            unit=known.unit,
            higher_is_better=known.higher_is_better,
        )


def _members(average: Evaluation) -> list[tuple[str, str, str]]:
    members = []
    for member in average.settings.get("members", []):
        members.append((str(member["suite"]), str(member["name"]), str(member["metric"])))
    return members


def setting_differences(
    before: Evaluation,
    after: Evaluation,
    *,
    aside: frozenset[str] = frozenset(),
    only: frozenset[str] | None = None,
) -> str:
    """Settings that two evaluations do not share, as text; empty where there are none.

    Args:
        before, after: of one entry. A setting that is not there is one that is off: older
            evaluations lack newer keys.
        aside: settings not to look at.
        only: the settings to look at; None: all.
    """
    differences = []
    for name in sorted({*before.settings, *after.settings} - aside):
        values = before.settings.get(name), after.settings.get(name)
        if (only is None or name in only) and _normal(values[0]) != _normal(values[1]):
            differences.append(f"{name}: {_shown(values[0])} and {_shown(values[1])}")
    return ", ".join(differences)


def _normal(value: Any) -> Any:
    return None if value is False or (isinstance(value, (list, dict, str)) and not value) else value


def _shown(value: Any) -> str:
    text = "none" if _normal(value) is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
