"""What came of it: models held against each other, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.evaluation.compare.folders import compare_folders
from holdfast.evaluation.compare.samples import ComparisonOptions
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, ModelPair, StudiedModel

Kind = tuple[str, bool, str]
"""Start, whether it is continued, and what brought instruction following back
(`StudiedModel.restored`)."""
Question = tuple[Kind, str]
"""What a model is compared with, and what the comparison answers."""
GIVEN_BASE, GIVEN_INSTRUCT = (BASE, False, ""), (INSTRUCT, False, "")
CONTINUED_BASE, CONTINUED_INSTRUCT = (BASE, True, ""), (INSTRUCT, True, "")
KEPT: Question = (GIVEN_INSTRUCT, "Did the instruct model keep its skills, and what did it gain?")
NEW_INSTRUCT: list[Question] = [
    KEPT,
    (
        CONTINUED_INSTRUCT,
        "Is the new instruct model better than continued pre-training of the old one?",
    ),
    (CONTINUED_BASE, "What does {restored} change?"),
    (GIVEN_BASE, "What does the new instruct model gain over the base?"),
]
RESTORED_INSTRUCT: list[Question] = [
    KEPT,
    (CONTINUED_INSTRUCT, "What does {restored} change?"),
    ((BASE, True, "residual"), "Does distillation restore more than the residual?"),
]
TUNED_AGAIN: Question = (
    (BASE, True, "tuning"),
    "Is the residual as good as repeating the instruction tuning?",
)
OF_SIBLING: list[Question] = [
    (GIVEN_BASE, "What does another family's residual change in the base?"),
    (GIVEN_INSTRUCT, "Is the new instruct model as good as the base's own instruct model?"),
]
QUESTIONS: dict[Kind, list[Question]] = {
    GIVEN_INSTRUCT: [(GIVEN_BASE, "What did instruction tuning change?")],
    CONTINUED_BASE: [(GIVEN_BASE, "What does continued pre-training of the base gain and lose?")],
    CONTINUED_INSTRUCT: [
        (GIVEN_INSTRUCT, "What does continued pre-training of the instruct model gain and lose?")
    ],
    (BASE, True, "tuning"): NEW_INSTRUCT,
    (INSTRUCT, True, "distillation"): RESTORED_INSTRUCT,
    (BASE, True, "residual"): [*NEW_INSTRUCT, TUNED_AGAIN],
    (BASE, False, "residual"): OF_SIBLING,
    (DERIVED, False, "residual"): [
        ((DERIVED, False, ""), "What does the residual change in the derived model?")
    ],
}
"""What a model is -> what it is compared with, of its own family, and the question (sections 4.1 to
4.4 of the paper)."""
SIBLINGS = "Which family's instruct model is better?"
"""The question between instruct models of two families."""


def pairs_of(
    models: Sequence[StudiedModel], out: Path, *, confidence: float
) -> tuple[list[ModelPair], list[str]]:
    """Every pair that answers one of the paper's questions (`QUESTIONS`), of the models that were
    measured.

    Returns:
        The pairs, and a sentence for each entry of a pair that was not compared.
    """
    measured = [model for model in models if model.evaluations and model.state == "complete"]
    options = ComparisonOptions(confidence=confidence)
    pairs: list[ModelPair] = []
    left_out: list[str] = []
    for model in measured:
        for before, question in questions_of(
            model, [other for other in measured if other.place == model.place]
        ):
            comparisons, reasons = compare_folders(
                before.measured(out), model.measured(out), options, metrics="all"
            )
            for reason in reasons:
                left_out.append(f"{model.name} against {before.name}: {reason}")
            if comparisons:
                pairs.append(
                    ModelPair(
                        before=before.name,
                        after=model.name,
                        question=question,
                        comparisons=comparisons,
                    )
                )
    return pairs, left_out


def questions_of(
    model: StudiedModel, near: Sequence[StudiedModel]
) -> list[tuple[StudiedModel, str]]:
    """What a model is compared with, and why.

    Args:
        model: one of those.
        near: the models of its world and width.
    """
    questions = []
    for kind, question in QUESTIONS.get(_kind(model), ()):
        _, is_continued, _ = kind
        rivals = []
        for other in near:
            as_it_was = other.budget == model.budget and other.seed == model.seed
            if (
                other.family == model.family
                and _kind(other) == kind
                and (as_it_was or not is_continued)
            ):
                rivals.append(other)
        # of several scales of the residual the paper's
        rivals.sort(key=lambda other: other.scale != 1)
        if rivals:
            questions.append((rivals[0], question.format(restored=f"the {model.restored}")))
    if model.start == INSTRUCT and model.given:
        first = next(other for other in near if _kind(other) == _kind(model))
        if first.family != model.family:
            questions.append((first, SIBLINGS))
    return questions


def _kind(model: StudiedModel) -> Kind:
    return model.start, model.continued, model.restored
