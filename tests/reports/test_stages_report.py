"""The page of a stages study: what to do follows from the verdicts, and what is missing is said."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from holdfast.records.stages import ACTUAL, GAINED, INCONCLUSIVE, NONE, PSEUDO, StagesRecord, read_stages
from holdfast.reports.stages_report import advice, summary


def five_epochs() -> StagesRecord:
    return read_stages(Path(__file__).parents[2] / "docs" / "examples" / "real_stages")


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ((PSEUDO, PSEUDO, PSEUDO), "The knowledge is there: an epoch of plain text on top shows it again."),
        ((NONE, NONE, PSEUDO), "on top shows it again, and epoch 2 still shows it as it is."),
        ((GAINED, NONE, NONE), "Nothing has to be done."),
        ((ACTUAL, ACTUAL, ACTUAL), "No checkpoint is free of it: fine-tune more gently, or hold on to the base"),
        ((PSEUDO, ACTUAL, ACTUAL), "Stop at epoch 1"),
        ((PSEUDO, PSEUDO, INCONCLUSIVE), ""),
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
    assert summary(nothing).startswith("Not judged yet: ") and "models still to be restored" in summary(nothing)
