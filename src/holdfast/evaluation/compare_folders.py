"""Two folders of evaluations side by side: which entries can be compared, what changed, and what is left out and why.

Entries are joined by suite and name, else by name alone where each side has that name once. A pair is compared (`compare`) only where it was measured
in the same way: the same kind, the same settings (examples shown, window, stride, batch size, ...), the same samples, the same prompts. Everything
else is said, sentence by sentence, and never compared.

Models with different tokenizers: the figures of a text whose denominators differ (nats per token, perplexity) are left out, bits per byte stays and
leads.

An average over entries (kind "average") is compared as the mean of its M members' paired differences,

    d = 1/M sum_m (after_m - before_m),

with a joint bootstrap: metrics of one entry share its draws, different entries are other questions and are drawn independently, from a seed made of
`seed` and the entry's name. The expanded percentile levels (see `estimates`) are those of the member with the fewest samples, the widest. Not
included: the choice of the members, which the interval takes as given.

Where few distinct rows make up an entry (right / wrong answers of two models are four), B bootstrap samples are B multinomial draws of how often each
distinct row occurs: the same distribution as drawing n rows with replacement, at a cost that does not grow with n.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from holdfast.errors import DataError
from holdfast.evaluation.compare import BOOTSTRAP, bootstrap_p_value, compare_samples, join
from holdfast.evaluation.estimates import Ratio, Rows, expanded_interval, figure_for, resampled_sums
from holdfast.results import Comparison, Evaluation, EvaluationFolder, fingerprint, read_json

Key = tuple[str, str]
"""(suite, name) of an entry."""
Metrics = Literal["primary", "all"]

SAMPLES_DECIDE = frozenset({"data", "fewshot_data", "split", "config", "limit", "max_documents"})
"""Settings that say which samples there are. Whether they are the same is decided by the samples themselves, which are hashed."""
OF_FIGURES = frozenset({"confidence", "seed", "metric", "notes", "name", "suite", "seconds", "workers"})
"""Settings that change no answer: how figures are formed and named, or how fast. (A seed that draws other examples changes the prompts' hashes.)"""
OF_THE_MODEL = frozenset({"tokens", "bytes", "bos", "longest", "dtype", "device", "quantization"})
"""What follows from the model and how it was loaded. Other tokens are dealt with figure by figure."""
ASIDE = SAMPLES_DECIDE | OF_FIGURES | OF_THE_MODEL


@dataclass(frozen=True, kw_only=True)
class Pair:
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

    def __str__(self) -> str:
        return f"{self.suite}/{self.name}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Matching:
    """What can be compared as far as the evaluations say; their samples are not read yet."""

    pairs: list[Pair]
    unmatched: list[Unmatched]
    notes: list[str]
    """What a reader should know of the pairs: joined by name alone, other library versions, the same model twice."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What came of it."""

    comparisons: list[Comparison]
    """Of all metrics, entries in the order of the side before, the primary metric first within each."""
    unmatched: list[Unmatched]
    notes: list[str]


def compare_folders(
    before: EvaluationFolder,
    after: EvaluationFolder,
    *,
    confidence: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
    metrics: Metrics = "primary",
) -> tuple[list[Comparison], list[str]]:
    """Compares everything that two folders have in common.

    Args:
        before: the evaluations of the model that the other is compared with.
        after: those of the other one.
        confidence: level of the intervals, in (0, 1).
        resamples: bootstrap draws B.
        seed: of the draws.
        metrics: the one that leads each entry, or all.

    Returns:
        The comparisons, and a sentence for everything that is not compared.

    Raises:
        DataError: evaluations that cannot be read (all of them are named), or a folder without any.
    """
    sides = read_evaluations(before), read_evaluations(after)
    found = compare_entries(before, after, match_entries(*sides), confidence=confidence, resamples=resamples, seed=seed)
    return [c for c in found.comparisons if c.primary or metrics == "all"], [str(u) for u in found.unmatched]


def read_evaluations(folder: EvaluationFolder) -> list[Evaluation]:
    """Every evaluation of a folder, by file name.

    Raises:
        DataError: none there, or some that cannot be read; all of them are named.
    """
    found, problems = [], []
    for path in folder.files():
        try:
            found.append(Evaluation.from_json(read_json(path)))
        except DataError as error:
            problems.append(str(error))
        except (KeyError, TypeError, AttributeError, ValueError):
            problems.append(f"Expected an evaluation in {path}, but it has other keys. Delete the file, or move it elsewhere.")
    if problems:
        raise DataError("\n".join(problems))
    if not found:
        raise DataError(f"Expected evaluations (<suite>.<name>.json) in {folder.path}, found none. 'holdfast evaluate' writes them.")
    return found


# ------------------------------------------------------------------------------------------------------------ matching


def match_entries(before: Sequence[Evaluation], after: Sequence[Evaluation]) -> Matching:
    """Joins the entries of two models and holds their settings against each other (module docstring). Reads no samples."""
    counts = [Counter(e.name for e in side) for side in (before, after)]
    by_key = {(e.suite, e.name): e for e in after}
    by_name = {e.name: e for e in after}
    pairs, unmatched, notes, used = [], [], [], set()
    for one in before:
        other = by_key.get((one.suite, one.name))
        if other is None and counts[0][one.name] == counts[1][one.name] == 1:
            other = by_name[one.name]
            notes.append(f"{one.suite}/{one.name} is compared with {other.suite}/{other.name}: joined by name.")
        if other is None:
            unmatched.append(Unmatched(suite=one.suite, name=one.name, why="only before", reason=_one_sided(one, after, "before", "after")))
            continue
        used.add((other.suite, other.name))
        if reason := _measured_differently(one, other):
            unmatched.append(Unmatched(suite=one.suite, name=one.name, why="refused", reason=reason))
        else:
            pairs.append(Pair(before=one, after=other))
    for other in after:
        if (other.suite, other.name) not in used:
            unmatched.append(Unmatched(suite=other.suite, name=other.name, why="only after", reason=_one_sided(other, before, "after", "before")))
    return Matching(pairs=pairs, unmatched=unmatched, notes=[*notes, *_worth_knowing(pairs)])


def _one_sided(entry: Evaluation, others: Sequence[Evaluation], here: str, there: str) -> str:
    namesakes = [f"{e.suite}/{e.name}" for e in others if e.name == entry.name]
    unclear = f" (which of {', '.join(namesakes)} {there} is meant is not clear; use the same suites for both)" if namesakes else ""
    return f"measured only {here}{unclear}."


def _measured_differently(before: Evaluation, after: Evaluation) -> str | None:
    """Why two evaluations of one entry must not be compared, or None."""
    advice = "Evaluate both in the same way."
    if before.kind != after.kind:
        return f"measured as {before.kind} before and as {after.kind} after, so it is not compared. {advice}"
    if before.kind == "average":
        return None  # the members are held against each other, one by one
    different = _setting_differences(before, after, aside=ASIDE)
    return f"measured with other settings before than after ({different}), so it is not compared. {advice}" if different else None


def _setting_differences(before: Evaluation, after: Evaluation, *, aside: frozenset[str] = frozenset(), only: frozenset[str] | None = None) -> str:
    names = [n for n in sorted({*before.settings, *after.settings} - aside) if only is None or n in only]
    pairs = [(n, before.settings.get(n), after.settings.get(n)) for n in names]
    return ", ".join(f"{n}: {_shown(a)} and {_shown(b)}" for n, a, b in pairs if _normal(a) != _normal(b))


def _normal(value: Any) -> Any:
    """A setting that is not there is one that is off: older evaluations lack newer keys."""
    return None if value is False or (isinstance(value, (list, dict, str)) and not value) else value


def _shown(value: Any) -> str:
    text = "none" if _normal(value) is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _worth_knowing(pairs: Sequence[Pair]) -> list[str]:
    notes = []
    versions: dict[str, tuple[str, str]] = {}
    for pair in pairs:
        for library in sorted({*pair.before.versions} & {*pair.after.versions}):
            if pair.before.versions[library] != pair.after.versions[library]:
                versions[library] = (pair.before.versions[library], pair.after.versions[library])
    if versions:
        listed = ", ".join(f"{library} {a} and {b}" for library, (a, b) in versions.items())
        notes.append(f"Measured with different library versions: {listed}. A small difference may come from there.")
    hashes = [(p.before.model.get("hash"), p.after.model.get("hash")) for p in pairs]
    if hashes and all(a is not None and a == b for a, b in hashes):
        notes.append("Both are the same model (equal hashes): every difference is the measurement's own.")
    return notes


# ----------------------------------------------------------------------------------------- several models, row by row


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One entry as K models answered it, sample by sample in one order."""

    n: int
    figures: dict[str, Ratio]
    columns: dict[str, np.ndarray]
    """`[n, 2K]` float64 a metric: numerator and denominator of model 0, of model 1, ..."""
    left_out: dict[str, str]
    """Metrics that cannot be paired: why."""

    def values(self, metric: str, sums: np.ndarray) -> np.ndarray:
        """Figures `[..., K]` of sums `[..., 2K]`."""
        return self.figures[metric].of_sums(sums.reshape(*sums.shape[:-1], -1, 2))


def sheet_of(rows: Sequence[Rows], evaluations: Sequence[Evaluation]) -> Sheet:
    """Lines up what K models have in common.

    Args:
        rows: of every model, already joined: row i is the same sample in each.
        evaluations: what the rows belong to.
    """
    figures: dict[str, Ratio] = {}
    columns: dict[str, np.ndarray] = {}
    left_out: dict[str, str] = {}
    first, *others = evaluations
    for name, metric in first.metrics.items():
        if not all(name in e.metrics for e in others):
            left_out[name] = "was not measured for both"
            continue
        mine = [figure_for(name, part, higher_is_better=metric.higher_is_better, unit=metric.unit) for part in rows]
        known = [figure for figure in mine if figure is not None]
        if len(known) < len(mine):
            left_out[name] = "is no mean over samples, so there is nothing to pair"
            continue
        made = [figure.columns(part) for figure, part in zip(known, rows, strict=True)]
        if any(not np.array_equal(part[:, 1], made[0][:, 1]) for part in made):
            left_out[name] = f"counts other {known[0].denominator} in the same text (another tokenizer)"
            continue
        figures[name], columns[name] = known[0], np.hstack(made)
    return Sheet(n=len(rows[0]), figures=figures, columns=columns, left_out=left_out)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """One metric of one entry, or of an average, for K models."""

    values: np.ndarray
    """`[K]` float64."""
    draws: np.ndarray
    """`[B, K]` float64: the same from B joint bootstrap samples."""
    n: int
    """Samples in all, those of every member of an average."""
    smallest: int
    """Samples of the entry that has the fewest."""
    unit: str
    higher_is_better: bool


class JointScores:
    """Scores of K models with joint bootstrap draws: questions are drawn once for all models, entries independently of each other.

    Args:
        folders: of the K models.
        entries: the K evaluations of each entry, by the key of the first.
        resamples: bootstrap draws B.
        seed: with the entry's key it decides the draws.
    """

    def __init__(
        self, folders: Sequence[EvaluationFolder], entries: Mapping[Key, Sequence[Evaluation]], *, resamples: int = 4000, seed: int = 0
    ) -> None:
        self.folders = list(folders)
        self.entries = dict(entries)
        self.resamples = resamples
        self.seed = seed
        self._sheets: dict[Key, Sheet] = {}
        self._drawn: dict[Key, dict[str, np.ndarray]] = {}

    def rows(self, key: Key) -> list[list[Any]]:
        """The K models' rows of one entry, joined.

        Raises:
            DataError: rows are missing, malformed, or of other samples or prompts.
        """
        evaluations, what = self.entries[key], "/".join(key)
        parts = []
        for folder, evaluation in zip(self.folders, evaluations, strict=True):
            try:
                parts.append(folder.samples(evaluation.suite, evaluation.name))
            except FileNotFoundError:
                raise DataError(
                    f"{what}: the per-sample rows are missing in {folder.path}. Delete the evaluation there to have it made again."
                ) from None
        first = parts[0]
        joined: list[list[Any]] = [first]
        for part, evaluation in zip(parts[1:], evaluations[1:], strict=True):
            try:
                joined.append(join(first, part, what=what)[1])
            except KeyError as error:
                raise DataError(f"{what}: sample rows without {error}, which rows are joined on. Evaluate both again.") from None
            except DataError as error:
                hint = _setting_differences(evaluations[0], evaluation, only=SAMPLES_DECIDE)
                raise DataError(f"{error}{f' They differ in {hint}.' if hint else ''}") from None
        self._sheets.setdefault(key, sheet_of(joined, evaluations))
        return joined

    def sheet(self, key: Key) -> Sheet:
        """The columns of one entry; kept once read.

        Raises:
            DataError: see `rows`.
        """
        if key not in self._sheets:
            self.rows(key)
        return self._sheets[key]

    def scores(self, key: Key, metric: str) -> Scores:
        """One metric of an entry or an average, with its draws.

        Raises:
            DataError: the rows do not fit together, the metric has no pairs, or an average's members differ between the models.
        """
        evaluations = self.entries[key]
        if evaluations[0].kind == "average":
            return self._average(key, metric)
        sheet = self.sheet(key)
        if metric not in sheet.figures:
            raise DataError(f"{'/'.join(key)}: {metric} {sheet.left_out.get(metric, 'was not measured')}.")
        if key not in self._drawn:
            drawn = bootstrap_sums(np.hstack(list(sheet.columns.values())), resamples=self.resamples, seed=entry_seed(self.seed, key))
            parts = np.split(drawn, len(sheet.figures), axis=1)
            self._drawn[key] = {name: sheet.values(name, part) for name, part in zip(sheet.figures, parts, strict=True)}
        figure = sheet.figures[metric]
        return Scores(
            values=sheet.values(metric, sheet.columns[metric].sum(0)),
            draws=self._drawn[key][metric],
            n=sheet.n,
            smallest=sheet.n,
            unit=figure.unit,
            higher_is_better=figure.higher_is_better,
        )

    def _average(self, key: Key, metric: str) -> Scores:
        evaluations, what = self.entries[key], "/".join(key)
        members = _members(evaluations[0])
        for index, other in enumerate(evaluations[1:], 1):
            here = {(s, n): (e[index].suite, e[index].name) for (s, n), e in self.entries.items()}
            mapped = sorted((*here.get((s, n), (s, n)), m) for s, n, m in members)
            if mapped != sorted(_members(other)):
                raise DataError(f"{what}: an average of other entries before than after. Evaluate both with the same suites.")
        known = evaluations[0].metrics.get(metric)
        if known is None or not members:
            raise DataError(f"{what}: {metric} was not measured." if members else f"{what}: an average that names no members. Evaluate again.")
        parts: list[tuple[Key, Scores]] = []
        samples: dict[Key, int] = {}
        for suite, name, one in members:
            if (suite, name) not in self.entries:
                raise DataError(f"{what}: its member {suite}/{name} cannot be compared, so neither can the average.")
            try:
                found = self.scores((suite, name), one)
            except DataError as error:
                raise DataError(f"{what}: its member cannot be compared, so neither can the average. {error}") from None
            if found.higher_is_better != known.higher_is_better:
                raise DataError(f"{what}: an average of metrics of which some are better when higher and some when lower. Average them apart.")
            parts.append(((suite, name), found))
            samples[suite, name] = found.n
        return Scores(
            values=np.mean([found.values for _, found in parts], axis=0),
            draws=np.mean([found.draws for _, found in parts], axis=0),
            n=sum(samples.values()),
            smallest=min(found.smallest for _, found in parts),
            unit=known.unit,
            higher_is_better=known.higher_is_better,
        )


def _members(average: Evaluation) -> list[tuple[str, str, str]]:
    return [(str(m["suite"]), str(m["name"]), str(m["metric"])) for m in average.settings.get("members", [])]


def entry_seed(seed: int, key: Key) -> int:
    """The seed of one entry's draws: entries with equally many rows must not be drawn alike, since their questions have nothing in common."""
    return int(fingerprint({"seed": seed, "suite": key[0], "name": key[1]}, length=15), 16)


def bootstrap_sums(columns: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
    """Sums over bootstrap samples of the rows, by counting distinct rows where there are few (module docstring).

    Args:
        columns: `[n, C]` float64, n >= 1.
        resamples: B.
        seed: of the draws.

    Returns:
        `[B, C]` float64.
    """
    n = columns.shape[0]
    distinct, counts = np.unique(columns, axis=0, return_counts=True)
    if len(distinct) > max(1, n // 16):
        return resampled_sums(columns, resamples=resamples, seed=seed)
    drawn = np.random.default_rng(seed).multinomial(n, counts / n, size=resamples)
    return drawn.astype(np.float64) @ distinct


# ----------------------------------------------------------------------------------------------------------- comparing


def compare_entries(
    before: EvaluationFolder,
    after: EvaluationFolder,
    matching: Matching,
    *,
    confidence: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Compared:
    """Compares the pairs of a matching, all metrics of them.

    Args:
        before, after: the folders that the matching was made from.
        matching: see `match_entries`.
        confidence, resamples, seed: as of `compare_folders`.
        progress: called with (entries done, entries in all).

    Returns:
        Comparisons, and what is not compared: the matching's, and what its samples said.
    """
    joint = JointScores((before, after), {p.key: (p.before, p.after) for p in matching.pairs}, resamples=resamples, seed=seed)
    comparisons: dict[Key, list[Comparison]] = {p.key: [] for p in matching.pairs}
    unmatched = list(matching.unmatched)
    notes = list(matching.notes)
    # averages last: the entries that they are made of have been read by then
    for done, pair in enumerate(sorted(matching.pairs, key=lambda p: p.before.kind == "average"), 1):
        try:
            if pair.before.kind == "average":
                comparisons[pair.key] = [_compare_average(joint, pair, confidence=confidence)]
            else:
                comparisons[pair.key] = _compare_rows(joint, pair, notes, confidence=confidence, resamples=resamples, seed=seed)
        except DataError as error:
            suite, name = pair.key
            unmatched.append(Unmatched(suite=suite, name=name, why="refused", reason=str(error).removeprefix(f"{suite}/{name}: ")))
        if progress is not None:
            progress(done, len(matching.pairs))
    return Compared(comparisons=[c for found in comparisons.values() for c in found], unmatched=unmatched, notes=notes)


def _compare_rows(joint: JointScores, pair: Pair, notes: list[str], *, confidence: float, resamples: int, seed: int) -> list[Comparison]:
    rows, what = joint.rows(pair.key), "/".join(pair.key)
    if not rows[0]:
        raise DataError(f"{what}: no samples, so there is nothing to compare. Evaluate it on some.")
    sheet = joint.sheet(pair.key)
    primary = pair.before.primary
    why = sheet.left_out.get(primary, "was not measured")
    if primary not in sheet.figures and "bits_per_byte" in sheet.figures:
        notes.append(f"{what}: {primary} {why}; bits_per_byte is compared in its place.")
        primary = "bits_per_byte"
    if primary not in sheet.figures:
        raise DataError(f"{what}: {primary} {why}; choose another metric to lead.")
    metrics = {name: metric for name, metric in pair.before.metrics.items() if name in sheet.figures}
    reduced = dataclasses.replace(pair.before, metrics=metrics, primary=primary)
    return compare_samples(rows[0], rows[1], reduced, pair.after, confidence=confidence, resamples=resamples, seed=seed)


def _compare_average(joint: JointScores, pair: Pair, *, confidence: float) -> Comparison:
    suite, name = pair.key
    metric = pair.before.primary
    found = joint.scores(pair.key, metric)
    draws = found.draws[:, 1] - found.draws[:, 0]
    same = found.values[0] == found.values[1] and not draws.any()
    return Comparison(
        suite=suite,
        name=name,
        metric=metric,
        unit=found.unit,
        higher_is_better=found.higher_is_better,
        n=found.n,
        before=float(found.values[0]),
        after=float(found.values[1]),
        difference=float(found.values[1] - found.values[0]),
        interval=(0.0, 0.0) if same else expanded_interval(draws, n=found.smallest, confidence=confidence),
        p_value=1.0 if same else bootstrap_p_value(draws, n=found.smallest),
        test=BOOTSTRAP,
        confidence=confidence,
    )
