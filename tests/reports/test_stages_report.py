"""The page of a stages study: what to do follows from the verdicts, and what is missing is said."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from holdfast.records.stages import (
    ACTUAL,
    GAINED,
    INCONCLUSIVE,
    NONE,
    NOT_YET,
    PSEUDO,
    REASONS,
    StagesRecord,
    StageVerdict,
    read_stages,
)
from holdfast.reports.stages_report import advice, reason_in_words, summary


def five_epochs() -> StagesRecord:
    return read_stages(Path(__file__).parents[2] / "docs" / "examples" / "real_stages")


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ((PSEUDO, PSEUDO, PSEUDO), "The knowledge is still there: an epoch of plain text restores it."),
        ((NONE, NONE, PSEUDO), "restores it, and epoch 2 still shows the knowledge without restoring."),
        ((GAINED, NONE, NONE), "Nothing has to be done."),
        (
            (ACTUAL, ACTUAL, ACTUAL),
            "Every checkpoint shows actual forgetting: fine-tune with a lower learning rate or for fewer steps, or use "
            "a retention method",
        ),
        ((PSEUDO, ACTUAL, ACTUAL), "Stop at epoch 1"),
        ((PSEUDO, PSEUDO, INCONCLUSIVE), ""),
        ((PSEUDO, PSEUDO, NOT_YET), "Restoring is not complete: try a larger dose"),
    ],
)
def test_what_to_do_follows_from_the_verdicts(verdicts: tuple[str, ...], said: str) -> None:
    one = five_epochs().verdicts[0]
    judged = [dataclasses.replace(one, place=k, verdict=verdict) for k, verdict in enumerate(verdicts, 1)]
    text = advice(judged, ["epoch 1", "epoch 2", "epoch 3"], None)
    assert said in text and bool(text) == bool(said)


def test_what_is_not_judged_yet_is_said() -> None:
    record = five_epochs()
    waiting = [dataclasses.replace(m, state="waiting") for m in record.models]
    nothing = dataclasses.replace(record, verdicts=[], status="running", models=waiting)
    assert summary(nothing).startswith("Not judged yet: ") and "models must still be restored" in summary(nothing)


@pytest.mark.parametrize("study", ["real_stages", "real_piqa"])
def test_reasons_say_the_figures_of_the_sentences_that_were_once_stored(study: str) -> None:
    """Records of earlier versions hold the sentence; made of the same verdict it says the same figures."""

    def figures(sentence: str) -> list[str]:
        return re.findall(r"[−+]?\d[\d,.]*\d|\d", sentence)

    record = read_stages(Path(__file__).parents[2] / "docs" / "examples" / study)
    assert record.verdicts
    for verdict in record.verdicts:
        assert reason_in_words(verdict) == verdict.reason
        made = [reason_in_words(dataclasses.replace(verdict, why=why)) for why in possible(verdict)]
        about_text = verdict.reason.startswith("The pattern")  # whose comparison those records do not hold
        assert figures(verdict.reason) in map(figures, made) or about_text, (verdict.reason, made)


def possible(verdict: StageVerdict) -> list[str]:
    """The reasons that a verdict of an earlier version can have been given for, with what its record holds."""
    ofs = {GAINED: ["gained"], NONE: ["within margin"], PSEUDO: ["came back"], ACTUAL: ["loss left"]}
    return ofs.get(verdict.verdict, ["base at chance", "within noise", "not restored", "neither"])


def test_reasons_why_restoring_told_nothing_name_what_it_cost() -> None:
    one = next(verdict for verdict in five_epochs().verdicts if verdict.against_control is not None)
    text = dataclasses.replace(one.tuned, unit="nats/token", metric="nats_per_token", difference=0.2)
    told = dataclasses.replace(one, control=one.tuned, control_tolerance=0.02, pattern=text, pattern_tolerance=0.05)
    costs = reason_in_words(dataclasses.replace(told, why="restoring costs"))
    assert costs.startswith("Restoring alone costs the base") and "shown to be at most 2.0 points." in costs
    back = reason_in_words(dataclasses.replace(told, why="pattern not back"))
    assert "the loss on plain text differs from the base's by +0.200 nats/token, and 0.05 is allowed" in back
    failed = dataclasses.replace(one, restored=dataclasses.replace(one.tuned, failed="NaN in row 3."))
    assert reason_in_words(dataclasses.replace(failed, why="restored not scored")).endswith("scored: NaN in row 3.")
    assert all(reason_in_words(dataclasses.replace(told, why=why)) for why in REASONS)


def test_one_dose_is_said_and_of_several_what_the_last_step_brought() -> None:
    one = next(verdict for verdict in five_epochs().verdicts if verdict.against_control is not None)
    assert "to see whether more restoring brings back more" in reason_in_words(
        dataclasses.replace(one, why="loss left, one dose")
    )
    more = dataclasses.replace(one, dose=4, more=one.tuned)
    assert "Restoring on 4 times as much text brought back no more" in reason_in_words(
        dataclasses.replace(more, why="loss left")
    )
    assert "still brought back" in reason_in_words(dataclasses.replace(more, why="still coming back"))


def test_what_the_paper_reads_off_the_answers_is_said_in_words() -> None:
    """Format, changing answers, over-confidence, memorisation: figures 4 and 5."""
    from holdfast.records.figure import Figure
    from holdfast.records.stages import BASE, RESTORED, TUNED, Along, MeasuredModel
    from holdfast.reports.stages_characteristics import characteristics_in_words

    def figures(entropy: float, acc: float, memory: float, mass: float) -> dict[str, dict[str, Figure]]:
        values = {"entropy": entropy, "acc": acc, "mass": mass}
        letters = {name: Figure(value=value) for name, value in values.items()}
        return {"knowledge/letters": letters, "knowledge/learnt": {"exact_memorisation": Figure(value=memory)}}

    models = [
        MeasuredModel(role=BASE, figures=figures(3.0, 0.25, 0.2, 0.1)),
        MeasuredModel(role=TUNED, arm="direct", place=1, figures=figures(0.9, 0.6, 0.5, 0.9)),
        MeasuredModel(role=TUNED, arm="direct", place=2, figures=figures(0.4, 0.5, 0.8, 0.97)),
        MeasuredModel(role=RESTORED, arm="direct", place=2, figures=figures(2.0, 0.5, 0.7, 0.2)),
    ]
    points = [
        Along(step=step, evaluations=[], changed={"knowledge/letters": Figure(value=share)})
        for step, share in ((1, 0.3), (2, 0.1))
    ]
    record = dataclasses.replace(
        five_epochs(),
        arms=["direct"],
        checkpoints={"direct": ["epoch 1", "epoch 2"]},
        models=models,
        along={"direct": points},
    )
    assert characteristics_in_words(record) == [
        "letters (direct): from epoch 2 on, the format of the answers is learnt: at least 95 % of the probability is "
        "on the options.",
        "letters (direct): between consecutive points of fine-tuning, the answer changes on 10.0% to 30.0% of the "
        "questions.",
        "letters (direct): from epoch 1 to epoch 2, the entropy of the answers changes by -0.500 nats and their "
        "accuracy by -10.0 points (point estimates): both fall, which the paper calls over-confidence.",
        "learnt (direct): memorised: 20.0% of the base, 50.0% after epoch 1, 80.0% after epoch 2, 70.0% after "
        "restoring that.",
    ]
