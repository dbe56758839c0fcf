"""What the page of a stages study says of figures 4, 5 and 7 of "Pattern Shifting or Knowledge Losing"
in words: whether the answers' format was learnt and when, whether the answers went on changing,
whether entropy and accuracy fell together, and what of the fine-tuning's data is memorised."""

from __future__ import annotations

from holdfast.records.figure import Figure
from holdfast.records.stages import BASE, RESTORED, TUNED, StagesRecord

LEARNT = 0.95
"""Mean probability on the options from which on the format counts as learnt (section 5.2)."""


def characteristics_in_words(record: StagesRecord) -> list[str]:
    """A sentence each, arm by arm, as far as it was measured."""
    sentences = []
    base = record.model(BASE)
    for arm in record.arms if base is not None else ():
        assert base is not None
        for entry, figures in base.figures.items():
            name = f"{entry.partition('/')[2]} ({arm})"
            texts = []
            if "mass" in figures:
                texts += [_format(record, arm, entry), _changing(record, arm, entry)]
            if "entropy" in figures:
                texts.append(_confidence(record, arm, entry))
            if "exact_memorisation" in figures:
                texts.append(_memorised(record, arm, entry))
            sentences += [f"{name}: {text}" for text in texts if text]
    return sentences


def _masses(record: StagesRecord, arm: str, entry: str) -> list[tuple[str, float]]:
    """Along the fine-tuning where that was measured, else by checkpoint."""
    points = []
    for point in record.along.get(arm, []):
        for evaluation in point.evaluations:
            if f"{evaluation.suite}/{evaluation.name}" == entry and "mass" in evaluation.metrics:
                points.append((f"step {point.step}", evaluation.metrics["mass"].value))
    if len(points) > 2:
        return points
    labels = record.checkpoints[arm]
    by_checkpoint = []
    for checkpoint, label in enumerate(labels, 1):
        figure = _figure(record, TUNED, arm, checkpoint, entry, "mass")
        if figure is not None:
            by_checkpoint.append((label, figure.value))
    return by_checkpoint


def _format(record: StagesRecord, arm: str, entry: str) -> str:
    masses = _masses(record, arm, entry)
    if not masses:
        return ""
    learnt = None
    for where, mass in reversed(masses):
        if not mass >= LEARNT:
            break
        learnt = where
    last, end = masses[-1]
    if learnt is None:
        return (
            f"the format of the answers is not learnt: {end:.1%} of the probability is on the "
            f"options at {last}."
        )
    return (
        f"from {learnt} on, the format of the answers is learnt: at least 95 % of the probability "
        "is on the options."
    )


def _changing(record: StagesRecord, arm: str, entry: str) -> str:
    shares = []
    for point in record.along.get(arm, []):
        if entry in point.changed:
            shares.append(point.changed[entry].value)
    if len(shares) < 2:
        return ""
    return (
        f"between consecutive points of fine-tuning, the answer changes on {min(shares):.1%} to "
        f"{max(shares):.1%} of the questions."
    )


def _confidence(record: StagesRecord, arm: str, entry: str) -> str:
    """From the middle checkpoint to the last; point values."""
    labels = record.checkpoints[arm]
    middle, last = max(1, len(labels) // 2), len(labels)
    if middle == last:
        return ""
    changes = []
    for metric in ("entropy", "acc"):
        before = _figure(record, TUNED, arm, middle, entry, metric)
        after = _figure(record, TUNED, arm, last, entry, metric)
        if before is None or after is None:
            return ""
        changes.append(after.value - before.value)
    entropy, accuracy = changes
    says = "this is not over-confidence as the paper defines it"
    if entropy < 0 and accuracy < 0:
        says = "both fall, which the paper calls over-confidence"
    where = f"from {labels[middle - 1]} to {labels[last - 1]}"
    return (
        f"{where}, the entropy of the answers changes by {entropy:+.3f} nats and their accuracy by "
        f"{100 * accuracy:+.1f} points (point estimates): {says}."
    )


def _memorised(record: StagesRecord, arm: str, entry: str) -> str:
    last, metric = len(record.checkpoints[arm]), "exact_memorisation"
    models = {
        "of the base": _figure(record, BASE, "", 0, entry, metric),
        f"after {record.checkpoints[arm][0]}": _figure(record, TUNED, arm, 1, entry, metric),
        f"after {record.checkpoints[arm][-1]}": _figure(record, TUNED, arm, last, entry, metric),
        "after restoring that": _figure(record, RESTORED, arm, last, entry, metric),
    }
    known = [f"{figure.value:.1%} {when}" for when, figure in models.items() if figure is not None]
    return f"memorised: {', '.join(known)}." if known else ""


def _figure(
    record: StagesRecord, role: str, arm: str, place: int, entry: str, metric: str
) -> Figure | None:
    model = record.model(role, arm, place)
    return None if model is None else model.figures.get(entry, {}).get(metric)
