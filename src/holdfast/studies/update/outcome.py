"""What came of it: models held against each other, pair by pair, and the scale that was chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.evaluation.averages import SUITE as AVERAGES
from holdfast.evaluation.compare.folders import compare_folders
from holdfast.evaluation.entries import Average, EvaluationPlan
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, ModelPair, ScaleChoice, StudiedModel
from holdfast.studies.update.plan import UpdateConfig
from holdfast.studies.update.settings import NEW_TEXT

CHOICE = "scale_choice"
"""The average that scales are chosen by."""
Kind = tuple[str, bool, str]
"""Start, whether it is continued, and what brought instruction following back (`StudiedModel.restored`)."""
Question = tuple[Kind, str]
"""What a model is compared with, and what the comparison answers."""
GIVEN_BASE, GIVEN_INSTRUCT = (BASE, False, ""), (INSTRUCT, False, "")
CONTINUED_BASE, CONTINUED_INSTRUCT = (BASE, True, ""), (INSTRUCT, True, "")
KEPT: Question = (GIVEN_INSTRUCT, "Is what the instruct model could kept, and what is gained?")
NEW_INSTRUCT: list[Question] = [
    KEPT,
    (CONTINUED_INSTRUCT, "Is it better than continuing the instruct model?"),
    (CONTINUED_BASE, "What does {restored} bring?"),
    (GIVEN_BASE, "What is gained over the base?"),
]
RESTORED_INSTRUCT: list[Question] = [
    KEPT,
    (CONTINUED_INSTRUCT, "What does {restored} bring?"),
    ((BASE, True, "residual"), "Does it restore more than the residual?"),
]
BY_ITSELF: Question = (
    (INSTRUCT, True, "distillation"),
    "Does it restore more than distillation from the instruct model?",
)
TUNED_AGAIN: Question = ((BASE, True, "tuning"), "Is it as good as tuning once more?")
OF_SIBLING: list[Question] = [
    (GIVEN_BASE, "What does a sibling's residual bring to the base?"),
    (GIVEN_INSTRUCT, "Is it as good as the base's own instruct model?"),
]
QUESTIONS: dict[Kind, list[Question]] = {
    GIVEN_INSTRUCT: [(GIVEN_BASE, "What did instruction tuning bring?")],
    CONTINUED_BASE: [(GIVEN_BASE, "What does continuing the base gain and lose?")],
    CONTINUED_INSTRUCT: [(GIVEN_INSTRUCT, "What does continuing the instruct model gain and lose?")],
    (BASE, True, "tuning"): NEW_INSTRUCT,
    (INSTRUCT, True, "distillation"): RESTORED_INSTRUCT,
    (INSTRUCT, True, "self-distillation"): [*RESTORED_INSTRUCT, BY_ITSELF],
    (BASE, True, "residual"): [*NEW_INSTRUCT, TUNED_AGAIN],
    (BASE, False, "residual"): OF_SIBLING,
    (DERIVED, False, "residual"): [((DERIVED, False, ""), "What does the residual bring to the derived model?")],
}
"""What a model is -> what it is compared with, of its own family, and the question (sections 4.1 to 4.4 of the
paper)."""
SIBLINGS = "Which sibling's instruct model is the better one?"
"""The question between instruct models of two families."""


def pairs_of(models: Sequence[StudiedModel], out: Path, *, confidence: float) -> tuple[list[ModelPair], list[str]]:
    """Every pair that answers one of the paper's questions (`QUESTIONS`), of the models that were measured.

    Returns:
        The pairs, and a sentence for each entry of a pair that was not compared.
    """
    measured = [model for model in models if model.evaluations and model.state == "complete"]
    pairs: list[ModelPair] = []
    left_out: list[str] = []
    for model in measured:
        for before, question in _questions(model, [other for other in measured if other.place == model.place]):
            comparisons, reasons = compare_folders(
                before.measured(out), model.measured(out), confidence=confidence, metrics="all"
            )
            for reason in reasons:
                left_out.append(f"{model.name} against {before.name}: {reason}")
            comparisons = [c for c in comparisons if (c.suite, c.name) != (AVERAGES, CHOICE)]
            if comparisons:
                pairs.append(
                    ModelPair(before=before.name, after=model.name, question=question, comparisons=comparisons)
                )
    return pairs, left_out


def _questions(model: StudiedModel, near: Sequence[StudiedModel]) -> list[tuple[StudiedModel, str]]:
    """What a model is compared with among those of its world and width, and why."""
    questions = []
    for kind, question in QUESTIONS.get(_kind(model), ()):
        _, is_continued, _ = kind
        rivals = []
        for other in near:
            as_it_was = other.budget == model.budget and other.seed == model.seed
            if other.family == model.family and _kind(other) == kind and (as_it_was or not is_continued):
                rivals.append(other)
        rivals.sort(key=lambda other: other.scale != 1)  # of several scales of the residual the paper's
        if rivals:
            questions.append((rivals[0], question.format(restored=f"the {model.restored}")))
    if model.start == INSTRUCT and model.given:
        first = next(other for other in near if _kind(other) == _kind(model))
        if first.family != model.family:
            questions.append((first, SIBLINGS))
    return questions


def _kind(model: StudiedModel) -> Kind:
    return model.start, model.continued, model.restored


def with_choice(plan: EvaluationPlan, config: UpdateConfig) -> tuple[EvaluationPlan, list[str]]:
    """The plan with the average that scales are chosen by, and a sentence for each entry that is not there.

    Members are the entries that `choose_by` names, as "suite/name" or by their name, else all but the new text.
    """
    if not config.chooses:
        return plan, []
    entries = {f"{entry.suite}/{entry.name}": entry for entry in plan.entries}
    names = config.request.choose_by or [name for name, entry in entries.items() if entry.suite != NEW_TEXT]
    problems: list[str] = []
    members: list[tuple[str, str, str | None]] = []
    for chosen in names:
        fitting: list[tuple[str, str, str | None]] = []
        for name, entry in entries.items():
            if chosen in (name, entry.name, entry.suite):
                fitting.append((entry.suite, entry.name, None))
        members += fitting
        if not fitting:
            problems.append(f"choose_by: expected entries of the evaluation ({', '.join(entries)}), got {chosen!r}.")
    if not members:
        problems.append(
            "scales: are chosen by what is measured beside the new text, and nothing is; give `evaluation:`, or one "
            "`scale`."
        )
    average = Average(name=CHOICE, members=tuple(dict.fromkeys(members)))
    return dataclasses.replace(plan, averages=(*plan.averages, average)), problems


def choose_scale(models: Sequence[StudiedModel], base: StudiedModel, out: Path, *, confidence: float) -> ScaleChoice:
    """Which of several scales is taken: the one with the best mean over the choosing entries, unless scale 1 is not
    told apart from it.

    A scale other than 1 is taken only where its paired difference to scale 1 lies above 0 with its whole interval: the
    best of several noisy figures is better than it should be.

    Args:
        models: one a scale, measured with the plan of `with_choice`.
        base: the model without the residual.
        out: folder of the update.
        confidence: of the intervals.
    """
    by_scale = {float(model.scale or 0.0): model for model in models}
    neutral = by_scale[1.0]
    candidates: list[dict[str, Any]] = []
    chosen, best, reason = 1.0, 0.0, "no other scale is better than 1 with its whole interval"
    for scale, model in sorted(by_scale.items()):
        score = _choice(base, model, out, confidence) or {}
        against = _choice(neutral, model, out, confidence) if scale != 1.0 else None
        candidates.append(
            {"scale": scale, "score": score.get("gain"), "interval": score.get("interval"), "against_one": against}
        )
        if against is not None and against["interval"][0] > 0 and against["gain"] > best:
            chosen, best, interval = scale, against["gain"], list(against["interval"])
            reason = f"its gain over scale 1 is {best:+.4g} {interval}, all above 0"
    entries: set[str] = set()
    for evaluation in neutral.measured(out).all():
        if evaluation.name == CHOICE:
            for member in evaluation.settings["members"]:
                entries.add(f"{member['suite']}/{member['name']}")
    return ScaleChoice(candidates=candidates, chosen=chosen, entries=sorted(entries), reason=reason)


def _choice(before: StudiedModel, after: StudiedModel, out: Path, confidence: float) -> dict[str, Any] | None:
    """The gain on the choosing average with its interval; None where it was not measured."""
    comparisons, _ = compare_folders(before.measured(out), after.measured(out), confidence=confidence)
    for comparison in comparisons:
        if (comparison.suite, comparison.name) == (AVERAGES, CHOICE):
            low, high = comparison.interval
            interval = (low, high) if comparison.higher_is_better else (-high, -low)
            return {"gain": comparison.gain, "interval": interval}
    return None
