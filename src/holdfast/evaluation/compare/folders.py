"""Two folders of evaluations side by side: which entries can be compared, what changed, and what is
left out and why.

Entries are joined by suite and name, else by name only where each side has that name once. A pair
is compared (`compare`) only where it was measured in the same way: the same kind, the same settings
(examples shown, window, stride, batch size, ...), the same samples, the same prompts. Everything
else is named, sentence by sentence, and never compared.

Models with different tokenizers: the figures of a text whose denominators differ (nats per token,
perplexity) are left out, bits per byte stays and leads.

An average over entries (kind "average") is compared as the mean of its members' paired differences
(`joint_scores`).

Where a sample or a figure of either side is not finite, the entry's comparisons have failed
(`Comparison.failed`), and so have those of averages that it is a member of.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import DataError
from holdfast.evaluation.circumstances import remarks_on_circumstances
from holdfast.evaluation.compare.decision import Adjustment, Metric, with_decision
from holdfast.evaluation.compare.joint_scores import (
    SAMPLES_DECIDE,
    JointScores,
    Key,
    setting_differences,
)
from holdfast.evaluation.compare.samples import (
    ComparisonOptions,
    Sheet,
    compare_columns,
    compared,
    failed_comparisons,
)
from holdfast.records.comparison import LITTLE_LOST, LOST, Comparison, Decision
from holdfast.records.evaluation import CHANCE, Evaluation, EvaluationFolder
from holdfast.records.metrics import is_share, readings
from holdfast.statistics.paired import Flips, Influence, Moments, moments
from holdfast.support.files import read_as

Metrics = Literal["primary", "all"]

OF_FIGURES = frozenset(
    {"confidence", "seed", "metric", "notes", "name", "suite", "seconds", "workers"}
)
"""Settings that change no answer: how figures are formed and named, or how fast. (A seed that draws
other examples changes the prompts' hashes.)"""
OF_THE_MODEL = frozenset({"tokens", "bytes", "bos", "longest", "dtype", "device", "quantization"})
"""What follows from the model and how it was loaded. Other tokens are dealt with figure by
figure."""
ASIDE = SAMPLES_DECIDE | OF_FIGURES | OF_THE_MODEL


@dataclass(frozen=True, kw_only=True)
class EntryPair:
    """An entry that both sides have."""

    before: Evaluation
    after: Evaluation

    @property
    def key(self) -> Key:
        """Suite and name, those of the side before."""
        return self.before.suite, self.before.name


@dataclass(frozen=True, kw_only=True)
class Unmatched:
    """An entry, or the metrics of one, that is not compared."""

    suite: str
    name: str
    why: Literal["only before", "only after", "refused"]
    """On one side only; or on both, but not measured alike."""
    reason: str
    """What is wrong and what to do, without the entry's name."""
    metrics: tuple[str, ...] = ()
    """Those that were measured, of an entry on one side only."""

    def __str__(self) -> str:
        return f"{self.suite}/{self.name}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Matching:
    """What can be compared as far as the evaluations say; their samples are not read yet."""

    pairs: list[EntryPair]
    unmatched: list[Unmatched]
    notes: list[str]
    """What a reader should know of the pairs: joined by name only, other library versions, another
    tokenizer, the same model twice."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What came of it."""

    comparisons: list[Comparison]
    """Of all metrics, entries in the order of the side before, the primary metric first within
    each."""
    unmatched: list[Unmatched]
    notes: list[str]
    adjustment: Adjustment = dataclasses.field(default_factory=Adjustment)
    """How p-values of several tests are adjusted."""
    decision: Decision | None = None
    """What the metrics that lead say together; None where there is nothing to test."""


def compare_folders(
    before: EvaluationFolder,
    after: EvaluationFolder,
    options: ComparisonOptions = ComparisonOptions(),
    *,
    metrics: Metrics = "primary",
) -> tuple[list[Comparison], list[str]]:
    """Compares two models on every entry that both evaluation folders have.

    Args:
        before: the evaluations of the model to compare with.
        after: the evaluations of the other model.
        options: how to compare.
        metrics: the primary metric of each entry, or all metrics.

    Returns:
        The comparisons, and a sentence for everything that was not compared.

    Raises:
        DataError: a folder has no evaluations, or some cannot be read; the message names all of
            them.
    """
    matching = match_entries(read_evaluations(before), read_evaluations(after))
    compared = compare_entries(before, after, matching, options)
    comparisons = [c for c in compared.comparisons if c.primary or metrics == "all"]
    return comparisons, [str(entry) for entry in compared.unmatched]


def read_evaluations(folder: EvaluationFolder) -> list[Evaluation]:
    """Every evaluation of a folder, by file name.

    Raises:
        DataError: none there, or some that cannot be read; all of them are named.
    """
    evaluations, problems = [], []
    for path in folder.files():
        try:
            evaluations.append(read_as(path, Evaluation))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError(*problems)
    if not evaluations:
        raise DataError(
            f"Expected evaluations (<suite>.<name>.json) in {folder.path}, found none. 'holdfast "
            "evaluate' writes them."
        )
    return evaluations


def weights_of(evaluation: Evaluation) -> str | None:
    """What tells the weights behind an evaluation from others: `hash` of its model, or `weights`
    where that is said. None where they are not known, as behind a server."""
    weights = evaluation.model.get("weights", evaluation.model.get("hash"))
    return None if weights is None else str(weights)


def mixed_weights(evaluations: Sequence[Evaluation]) -> str | None:
    """Whose weights the evaluations of one folder are, where that is more than one model; else
    None."""
    by_weights: dict[str, list[str]] = {}
    for evaluation in evaluations:
        weights = weights_of(evaluation)
        if weights is not None:
            by_weights.setdefault(weights, []).append(f"{evaluation.suite}/{evaluation.name}")
    if len(by_weights) < 2:
        return None
    groups = []
    for weights, names in by_weights.items():
        groups.append(f"{', '.join(names)} of {weights[:12]}")
    return "; ".join(groups)


# ----------------------------------------------------------------------------------------- matching


def match_entries(before: Sequence[Evaluation], after: Sequence[Evaluation]) -> Matching:
    """Joins the entries of two models and holds their settings against each other (module
    docstring). Reads no samples."""
    names_before, names_after = (Counter(e.name for e in side) for side in (before, after))
    by_key = {(e.suite, e.name): e for e in after}
    by_name = {e.name: e for e in after}
    pairs, unmatched, notes, paired = [], [], [], set()
    for entry in before:
        name = entry.name
        other = by_key.get((entry.suite, name))
        if other is None and names_before[name] == names_after[name] == 1:
            other = by_name[name]
            notes.append(
                f"{entry.suite}/{name} is compared with {other.suite}/{name}, because both entries "
                "have the same name."
            )
        if other is None:
            unmatched.append(_one_sided(entry, after, "before"))
            continue
        paired.add((other.suite, name))
        if reason := _measured_differently(entry, other):
            unmatched.append(Unmatched(suite=entry.suite, name=name, why="refused", reason=reason))
        else:
            pairs.append(EntryPair(before=entry, after=other))
    for entry in after:
        if (entry.suite, entry.name) not in paired:
            unmatched.append(_one_sided(entry, before, "after"))
    return Matching(pairs=pairs, unmatched=unmatched, notes=[*notes, *_worth_knowing(pairs)])


def _one_sided(
    entry: Evaluation, others: Sequence[Evaluation], side: Literal["before", "after"]
) -> Unmatched:
    why: Literal["only before", "only after"] = "only before" if side == "before" else "only after"
    other_side = "after" if side == "before" else "before"
    reason = f"measured {why}"
    namesakes = [f"{e.suite}/{e.name}" for e in others if e.name == entry.name]
    if namesakes:
        reason += (
            f" (which of {', '.join(namesakes)} {other_side} is meant is not clear; use the same "
            "suites for both)"
        )
    metrics = tuple(entry.metrics)
    return Unmatched(
        suite=entry.suite, name=entry.name, why=why, reason=f"{reason}.", metrics=metrics
    )


def _measured_differently(before: Evaluation, after: Evaluation) -> str | None:
    """Why two evaluations of one entry must not be compared, or None."""
    advice = "so it is not compared. Evaluate both in the same way."
    if before.kind != after.kind:
        return f"measured as {before.kind} before and as {after.kind} after, {advice}"
    if before.kind == "average":
        return None  # the members are held against each other, one by one
    different = setting_differences(before, after, aside=ASIDE)
    return (
        f"measured with different settings before and after ({different}), {advice}"
        if different
        else None
    )


def _worth_knowing(pairs: Sequence[EntryPair]) -> list[str]:
    notes = []
    changes: dict[str, str] = {}
    for pair in pairs:
        of_both = [note for note in pair.before.notes if note in pair.after.notes]
        notes += of_both
        for side, evaluation in (("before", pair.before), ("after", pair.after)):
            notes += [f"{side}: {note}" for note in evaluation.notes if note not in of_both]
        versions_after = pair.after.versions
        for library, version in sorted(pair.before.versions.items()):
            if versions_after.get(library, version) != version:
                changes[library] = f"{library} {version} and {versions_after[library]}"
    if changes:
        listed = ", ".join(changes.values())
        notes.append(
            f"Measured with different library versions: {listed}. This may explain a small "
            "difference."
        )
    return notes + remarks_on_circumstances([(pair.before, pair.after) for pair in pairs])


# ---------------------------------------------------------------------------------------- comparing


def compare_entries(
    before: EvaluationFolder,
    after: EvaluationFolder,
    matching: Matching,
    options: ComparisonOptions = ComparisonOptions(),
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Compared:
    """Compares the pairs of a matching, all metrics of them.

    Args:
        before, after: the folders that the matching was made from.
        matching: see `match_entries`.
        options: how to compare them.
        progress: called with (entries done, entries in all).

    Returns:
        Comparisons, what they say together, and what is not compared: the matching's, and entries
        whose samples do not fit.
    """
    joint = JointScores(
        (before, after),
        {pair.key: (pair.before, pair.after) for pair in matching.pairs},
        allow_unpaired=options.allow_unpaired,
    )
    by_key: dict[Key, list[Comparison]] = {pair.key: [] for pair in matching.pairs}
    influences: dict[Metric, Influence] = {}
    unmatched = list(matching.unmatched)
    notes = list(matching.notes)
    # averages last: the entries that they are made of have been read by then
    for done, pair in enumerate(
        sorted(matching.pairs, key=lambda pair: pair.before.kind == "average"), 1
    ):
        suite, name = pair.key
        try:
            if (failed := joint.failed(pair.key)) is not None:
                sides = (pair.before, pair.after)
                by_key[pair.key] = failed_comparisons(sides, failed, confidence=options.confidence)
            elif pair.before.kind == "average":
                by_key[pair.key] = [_compare_average(joint, pair, options)]
            else:
                by_key[pair.key] = _compare_rows(joint, pair, notes, options)
            for c in by_key[pair.key] if options.family_wise == "max_t" else ():
                if c.failed is None:
                    influences[c.suite, c.name, c.metric] = joint.scores(
                        pair.key, c.metric
                    ).influence
        except DataError as error:
            reason = str(error).removeprefix(f"{suite}/{name}: ")
            unmatched.append(Unmatched(suite=suite, name=name, why="refused", reason=reason))
        if progress is not None:
            progress(done, len(matching.pairs))
    adjustment = Adjustment(
        family_wise=options.family_wise,
        influences=influences,
        resamples=options.resamples,
        seed=options.seed,
    )
    comparisons, decision = with_decision(list(itertools.chain(*by_key.values())), adjustment)
    return Compared(
        comparisons=comparisons,
        unmatched=unmatched,
        notes=[*notes, *joint.remarks.values()],
        adjustment=adjustment,
        decision=decision,
    )


def _compare_rows(
    joint: JointScores, pair: EntryPair, notes: list[str], options: ComparisonOptions
) -> list[Comparison]:
    sheet, what = joint.sheet(pair.key), "/".join(pair.key)
    if not sheet.n:
        raise DataError(f"{what}: no samples to compare. Evaluate it on at least one sample.")
    primary = pair.before.primary
    why = sheet.left_out.get(primary, "was not measured")
    if primary not in sheet.figures and "bits_per_byte" in sheet.figures:
        notes.append(f"{what}: {primary} {why}; bits_per_byte is compared instead.")
        primary = "bits_per_byte"
    if primary not in sheet.figures:
        raise DataError(
            f"{what}: {primary} {why}. Make it comparable, or put another metric first."
        )
    entry = dataclasses.replace(pair.before, primary=primary)
    comparisons = [_with_chance(c, pair) for c in compare_columns(sheet, entry, options)]
    lead = comparisons[0]
    for other in comparisons[1:]:
        if other.metric not in readings(primary, sheet.figures):
            continue
        form = _form_remark(sheet, lead, other) or _form_remark(sheet, other, lead)
        if form or other.verdict != lead.verdict:
            notes.append(
                f"{what}: two metrics of the same answers disagree. The first, {lead.metric}, went "
                f"from {lead.before:.3g} to {lead.after:.3g} ({lead.verdict}), and {other.metric} "
                f"went from {other.before:.3g} to {other.after:.3g} ({other.verdict}). "
                f"{form or 'Perhaps only the format of the answers changed.'}"
            )
    return comparisons


def _form_remark(sheet: Sheet, lost: Comparison, other: Comparison) -> str:
    """That a loss is one of form: most of the answers that one reading lost are right after as
    another reads them. Empty where it is none, or where answers are not right or wrong."""
    if lost.verdict not in (LOST, LITTLE_LOST) or None in (lost.flips_lost, other.flips_lost):
        return ""
    before, after = sheet.columns[lost.metric][:, 0], sheet.columns[lost.metric][:, 2]
    is_lost = (before == 1) & (after == 0)
    is_right = sheet.columns[other.metric][:, 2] == 1
    right, count = int((is_lost & is_right).sum()), int(is_lost.sum())
    if 2 * right < count:
        return ""
    return (
        f"Loss of format: {count:,} answers became wrong according to {lost.metric}, but {right:,} "
        f"of them are still right according to {other.metric}."
    )


def _with_chance(c: Comparison, pair: EntryPair) -> Comparison:
    """A comparison with the level of guessing, and which models are not shown to be above it."""
    chance = pair.before.references.get(c.metric, {}).get(CHANCE)
    if chance is None or c.failed is not None:
        return c
    guessing = []
    for side, evaluation in (("before", pair.before), ("after", pair.after)):
        interval = evaluation.metrics[c.metric].interval
        if interval is not None and interval[0] <= chance:
            guessing.append(side)
    return dataclasses.replace(c, chance=chance, at_chance=tuple(guessing))


def _compare_average(joint: JointScores, pair: EntryPair, options: ComparisonOptions) -> Comparison:
    metric = pair.before.primary
    scores = joint.scores(pair.key, metric)
    before, after = scores.values.tolist()
    influences = scores.influence.values()
    same = before == after and not any(influence.any() for influence in influences)
    test: Flips | Moments
    if same and is_share(scores.unit, metric, (before,)):
        test = Flips(lost=0, gained=0, n=min(map(len, influences)))
    else:
        change = 0.0 if same else after - before
        test = moments(change, scores.influence, scale=abs(before) + abs(after))
    return compared(
        test,
        pair.before,
        metric,
        values=(before, after),
        n=scores.n,
        unit=scores.unit,
        higher_is_better=scores.higher_is_better,
        options=options,
    )
