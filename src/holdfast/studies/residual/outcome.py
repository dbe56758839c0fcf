"""What came of it: models held against each other, pair by pair, and the scale that was chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from holdfast.evaluation.averages import SUITE as AVERAGES
from holdfast.evaluation.compare.folders import compare_folders
from holdfast.evaluation.entries import Average, EvaluationPlan
from holdfast.records.comparison import Comparison
from holdfast.records.residual import BASE, DERIVED, INSTRUCT, Pair, ScaleChoice, StudiedModel
from holdfast.studies.residual.plan import NEW_TEXT, ResidualConfig, is_continued

CHOICE = "scale_choice"
"""The average that scales are chosen by."""


def pairs_of(models: Sequence[StudiedModel], out: Path, *, confidence: float) -> list[Pair]:
    """Every pair that answers one of the paper's questions, of the models that were measured.

    - continued instruct against instruct: what continuing the instruct model costs (section 4.1);
    - continued base against base: what the base gains and loses (section 4.1);
    - result against instruct, and against the continued instruct: whether the residual keeps what it should (section
      4.2);
    - result against continued base: what the residual brings (section 4.2);
    - with a sibling's residual against the base, and against its own instruct model (section 4.3);
    - with a residual against the derived model (section 4.4).
    """
    measured = {m.name: m for m in models if m.evaluations and m.state == "complete"}
    found: list[Pair] = []
    for model in measured.values():
        for before, question in _questions(model, list(measured.values())):
            comparisons, _ = compare_folders(
                before.measured(out), model.measured(out), confidence=confidence, metrics="all"
            )
            comparisons = [c for c in comparisons if not (c.suite == AVERAGES and c.name == CHOICE)]
            if comparisons:
                found.append(Pair(before=before.name, after=model.name, question=question, comparisons=comparisons))
    return found


def _questions(model: StudiedModel, models: Iterable[StudiedModel]) -> list[tuple[StudiedModel, str]]:
    def given(start: str) -> StudiedModel | None:
        return next(
            (
                m
                for m in models
                if m.start == start and m.family == model.family and not is_continued(m) and m.residual is None
            ),
            None,
        )

    def continued(start: str) -> StudiedModel | None:
        same = [
            m
            for m in models
            if m.start == start and m.family == model.family and m.residual is None and is_continued(m)
        ]
        return next((m for m in same if (m.budget, m.seed) == (model.budget, model.seed)), None)

    asked: list[tuple[StudiedModel | None, str]] = []
    if model.start == DERIVED and model.residual is not None:
        asked = [(given(DERIVED), "What does the residual bring to the derived model?")]
    elif model.residual is None and is_continued(model):
        what = "the base" if model.start == BASE else "the instruct model"
        asked = [(given(model.start), f"What does continuing {what} gain and lose?")]
    elif model.residual is not None and is_continued(model):
        asked = [
            (given(INSTRUCT), "Is what the instruct model could kept, and what is gained?"),
            (continued(INSTRUCT), "Is it better than continuing the instruct model?"),
            (continued(BASE), "What does the residual bring?"),
            (given(BASE), "What is gained over the base?"),
        ]
    elif model.residual is not None:
        asked = [
            (given(BASE), "What does a sibling's residual bring to the base?"),
            (given(INSTRUCT), "Is it as good as the base's own instruct model?"),
        ]
    return [(before, question) for before, question in asked if before is not None]


def with_choice(plan: EvaluationPlan, config: ResidualConfig) -> tuple[EvaluationPlan, list[str]]:
    """The plan with the average that scales are chosen by, and a sentence for each entry that is not there.

    Members are the entries that `choose_by` names, as "suite/name" or by their name, else all but the new text.
    """
    if not config.chooses:
        return plan, []
    problems = []
    members: list[tuple[str, str, str | None]] = []
    for wanted in config.choose_by or [f"{e.suite}/{e.name}" for e in plan.entries if e.suite != NEW_TEXT]:
        fitting = [e for e in plan.entries if wanted in (f"{e.suite}/{e.name}", e.name, e.suite)]
        if not fitting:
            known = ", ".join(f"{e.suite}/{e.name}" for e in plan.entries)
            problems.append(f"choose_by: expected entries of the evaluation ({known}), got {wanted!r}.")
        members += [(e.suite, e.name, None) for e in fitting]
    if not members:
        problems.append(
            "scales: are chosen by what is measured beside the new text, and nothing is; give `evaluation:`, or one "
            "`scale`."
        )
    average = Average(name=CHOICE, members=tuple(dict.fromkeys(members)))
    return dataclasses.replace(plan, averages=(*plan.averages, average)), problems


def choose_scale(
    models: Sequence[StudiedModel], base: StudiedModel, out: Path, config: ResidualConfig, *, confidence: float
) -> ScaleChoice:
    """Which of several scales is taken: the one with the best mean over the choosing entries, unless scale 1 is not
    told apart from it.

    A scale other than 1 is taken only where its paired difference to scale 1 lies above 0 with its whole interval: the
    best of several noisy figures is better than it should be.

    Args:
        models: one a scale, measured with the plan of `with_choice`.
        base: the model without the residual.
        out: folder of the update.
        config: says what was chosen by.
        confidence: of the intervals.
    """
    by_scale = {float(m.scale or 0.0): m for m in models}
    neutral = by_scale[1.0]
    candidates: list[dict[str, Any]] = []
    for scale, model in sorted(by_scale.items()):
        score = _choice(base, model, out, confidence)
        against = _choice(neutral, model, out, confidence) if scale != 1.0 else None
        candidates.append(
            {
                "scale": scale,
                "score": score.gain if score else None,
                "interval": _signed(score),
                "against_one": {"gain": against.gain, "interval": _signed(against)} if against else None,
            }
        )
    sure = [c for c in candidates if c["against_one"] and c["against_one"]["interval"][0] > 0]
    best = max(sure, key=lambda c: c["against_one"]["gain"]) if sure else None
    chosen = float(best["scale"]) if best else 1.0
    if best:
        reason = (
            f"its gain over scale 1 is {best['against_one']['gain']:+.4g} "
            f"{list(best['against_one']['interval'])}, all above 0"
        )
    else:
        reason = "no other scale is better than 1 with its whole interval"
    entries = sorted(
        {
            f"{m['suite']}/{m['name']}"
            for e in neutral.measured(out).all()
            if e.name == CHOICE
            for m in e.settings["members"]
        }
    )
    return ScaleChoice(candidates=candidates, chosen=chosen, entries=entries, reason=reason)


def _choice(before: StudiedModel, after: StudiedModel, out: Path, confidence: float) -> Comparison | None:
    found, _ = compare_folders(before.measured(out), after.measured(out), confidence=confidence)
    return next((c for c in found if c.suite == AVERAGES and c.name == CHOICE), None)


def _signed(found: Comparison | None) -> tuple[float, float] | None:
    """The interval of the gain."""
    if found is None:
        return None
    low, high = found.interval
    return (low, high) if found.higher_is_better else (-high, -low)
