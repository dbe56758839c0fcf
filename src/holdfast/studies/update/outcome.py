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
from holdfast.studies.update.plan import NEW_TEXT, ResidualConfig

CHOICE = "scale_choice"
"""The average that scales are chosen by."""
Kind = tuple[str, bool, str]
"""Start, whether it is continued, and what brought instruction following back (`StudiedModel.restored`)."""
NEW_INSTRUCT = [
    ((INSTRUCT, False, ""), "Is what the instruct model could kept, and what is gained?"),
    ((INSTRUCT, True, ""), "Is it better than continuing the instruct model?"),
    ((BASE, True, ""), "What does {restored} bring?"),
    ((BASE, False, ""), "What is gained over the base?"),
]
RESTORED_INSTRUCT = [
    ((INSTRUCT, False, ""), "Is what the instruct model could kept, and what is gained?"),
    ((INSTRUCT, True, ""), "What does {restored} bring?"),
    ((BASE, True, "residual"), "Does it restore more than the residual?"),
]
QUESTIONS: dict[Kind, list[tuple[Kind, str]]] = {
    (INSTRUCT, False, ""): [((BASE, False, ""), "What did instruction tuning bring?")],
    (BASE, True, ""): [((BASE, False, ""), "What does continuing the base gain and lose?")],
    (INSTRUCT, True, ""): [((INSTRUCT, False, ""), "What does continuing the instruct model gain and lose?")],
    (BASE, True, "tuning"): NEW_INSTRUCT,
    (INSTRUCT, True, "distillation"): RESTORED_INSTRUCT,
    (INSTRUCT, True, "self-distillation"): [
        *RESTORED_INSTRUCT,
        ((INSTRUCT, True, "distillation"), "Does it restore more than distillation from the instruct model?"),
    ],
    (BASE, True, "residual"): [*NEW_INSTRUCT, ((BASE, True, "tuning"), "Is it as good as tuning once more?")],
    (BASE, False, "residual"): [
        ((BASE, False, ""), "What does a sibling's residual bring to the base?"),
        ((INSTRUCT, False, ""), "Is it as good as the base's own instruct model?"),
    ],
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
    measured = [m for m in models if m.evaluations and m.state == "complete"]
    found: list[ModelPair] = []
    left_out: list[str] = []
    for model in measured:
        near = [m for m in measured if m.place == model.place]
        own = [m for m in near if m.family == model.family]
        asked = []
        for kind, question in QUESTIONS.get(_kind(model), ()):
            same = [m for m in own if _kind(m) == kind]
            if kind[1]:
                same = [m for m in same if (m.budget, m.seed) == (model.budget, model.seed)]
            same.sort(key=lambda m: m.scale != 1)  # of several scales of the residual the paper's
            asked += [(before, question.format(restored=f"the {model.restored}")) for before in same[:1]]
        if (model.start, model.given) == (INSTRUCT, True):
            first = next(m for m in near if _kind(m) == _kind(model))
            asked += [(first, SIBLINGS)] if first.family != model.family else []
        for before, question in asked:
            comparisons, reasons = compare_folders(
                before.measured(out), model.measured(out), confidence=confidence, metrics="all"
            )
            left_out += [f"{model.name} against {before.name}: {reason}" for reason in reasons]
            comparisons = [c for c in comparisons if (c.suite, c.name) != (AVERAGES, CHOICE)]
            if comparisons:
                found.append(
                    ModelPair(before=before.name, after=model.name, question=question, comparisons=comparisons)
                )
    return found, left_out


def _kind(model: StudiedModel) -> Kind:
    return model.start, model.continued, model.restored


def with_choice(plan: EvaluationPlan, config: ResidualConfig) -> tuple[EvaluationPlan, list[str]]:
    """The plan with the average that scales are chosen by, and a sentence for each entry that is not there.

    Members are the entries that `choose_by` names, as "suite/name" or by their name, else all but the new text.
    """
    if not config.chooses:
        return plan, []
    entries = {f"{e.suite}/{e.name}": e for e in plan.entries}
    problems, members = [], []
    for wanted in config.choose_by or [name for name, e in entries.items() if e.suite != NEW_TEXT]:
        fitting = [e for name, e in entries.items() if wanted in (name, e.name, e.suite)]
        members += [(e.suite, e.name, None) for e in fitting]
        if not fitting:
            problems.append(f"choose_by: expected entries of the evaluation ({', '.join(entries)}), got {wanted!r}.")
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
    by_scale = {float(m.scale or 0.0): m for m in models}
    neutral = by_scale[1.0]
    candidates: list[dict[str, Any]] = []
    for scale, model in sorted(by_scale.items()):
        score = _choice(base, model, out, confidence)
        against = _choice(neutral, model, out, confidence) if scale != 1.0 else None
        found = {"scale": scale, "score": score and score["gain"], "interval": score and score["interval"]}
        candidates.append({**found, "against_one": against})
    sure = [c for c in candidates if c["against_one"] and c["against_one"]["interval"][0] > 0]
    best = max(sure, key=lambda c: c["against_one"]["gain"]) if sure else None
    reason = "no other scale is better than 1 with its whole interval"
    if best is not None:
        gain, interval = best["against_one"]["gain"], list(best["against_one"]["interval"])
        reason = f"its gain over scale 1 is {gain:+.4g} {interval}, all above 0"
    members = [m for e in neutral.measured(out).all() if e.name == CHOICE for m in e.settings["members"]]
    entries = sorted({f"{m['suite']}/{m['name']}" for m in members})
    chosen = float(best["scale"]) if best is not None else 1.0
    return ScaleChoice(candidates=candidates, chosen=chosen, entries=entries, reason=reason)


def _choice(before: StudiedModel, after: StudiedModel, out: Path, confidence: float) -> dict[str, Any] | None:
    """The gain on the choosing average with its interval; None where it was not measured."""
    found, _ = compare_folders(before.measured(out), after.measured(out), confidence=confidence)
    for c in found:
        if (c.suite, c.name) == (AVERAGES, CHOICE):
            low, high = c.interval
            return {"gain": c.gain, "interval": (low, high) if c.higher_is_better else (-high, -low)}
    return None
