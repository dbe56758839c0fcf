"""Small networks on digits: the study's figures, what it keeps, and what the claims read."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from holdfast.errors import TrainingDiverged
from holdfast.papers.digits import study
from holdfast.papers.digits.study import DigitsSettings, Samples, gain_over, run_digits, train, with_replay
from holdfast.papers.sfa.claims import DIGITS, check_claims
from holdfast.records.sequence import read_sequence


def quiet() -> Console:
    return Console(file=io.StringIO())


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> DigitsSettings:
    arms = ["single", {"replay": {"fraction": 0.5}}, {"sfa": {"p": [1, 0.25]}}, {"l2": {"coefficient": 0.1}}]
    arms += [{"ewc": {"coefficient": 100, "decoupled": True}}]
    folder = tmp_path_factory.mktemp("digits") / "out"
    return DigitsSettings(name="digits", output_dir=folder, epochs=8, seeds=(0, 1), arms=arms)


@pytest.fixture(scope="module")
def record(settings: DigitsSettings) -> Any:
    return run_digits(settings, console=quiet())


def test_record_and_page_are_there(record: Any, settings: DigitsSettings) -> None:
    assert read_sequence(settings.output_dir) == record
    assert "digits" in (settings.output_dir / "report.html").read_text(encoding="utf-8")
    assert [m.state for m in record.models] == ["complete"] * 2 * 8


def test_the_claims_can_be_computed(record: Any) -> None:
    verdicts = {claim.number: claim.verdict for claim in check_claims({DIGITS: record})}
    assert list(verdicts) == ["1s", "6a", "6b", "6c", "6d"] and verdicts["1s"] == "holds"


def test_finished_seeds_are_kept(record: Any, settings: DigitsSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    results = study.train_seed(dataclasses.replace(settings, epochs=1), [], 0)
    monkeypatch.setattr(study, "train_seed", lambda settings, arms, seed: trained.append(seed) or results)
    again = run_digits(settings, console=quiet())
    assert again.arms == record.arms and trained == []
    assert settings.differences(record.config) == []
    other = dataclasses.replace(settings, seeds=(0, 1, 2))
    assert other.differences(record.config) == ["seeds: was [0, 1], is [0, 1, 2]"]


def test_replay_is_a_share_of_the_mixture() -> None:
    new = Samples(torch.zeros(30, 2), torch.zeros(30, dtype=torch.long))
    old = Samples(torch.ones(30, 2), torch.ones(30, dtype=torch.long))
    mixed = with_replay(new, old, fraction=0.25, seed=0)
    assert mixed.labels.tolist().count(0) == 30 and mixed.labels.tolist().count(1) == 10
    assert torch.equal(mixed.inputs[:, 0].long(), mixed.labels)


def test_gains_are_paired() -> None:
    gain = gain_over({0: [1, 0, 0, 1], 1: [0, 0, 0, 0]}, {0: [1, 1, 0, 0], 1: [1, 1, 0, 0]})
    assert gain.by_seed == {0: 0.0, 1: 0.5} and gain.value == 0.25
    assert gain.interval is not None and gain.interval[0] < 0 < gain.interval[1]


def test_a_loss_that_is_not_finite_ends_the_training() -> None:
    samples = Samples(torch.full((4, 64), float("nan")), torch.zeros(4, dtype=torch.long))
    with pytest.raises(TrainingDiverged):
        train(nn.Linear(64, 10), samples, epochs=1, seed=0)


def test_the_committed_figures_come_out(tmp_path: Path) -> None:
    """Of one seed, as docs/log has them: sequential training leaves nothing of the even digits."""
    arms: list[Any] = ["single", {"sfa": {"p": 0.25, "beta": 0.35}}]
    whole = DigitsSettings(name="digits", output_dir=tmp_path, seeds=(0,), arms=arms)
    kept = {arm.kind: arm.scores["even"].value for arm in run_digits(whole, console=quiet()).arms}
    assert kept["sequential"] == 0 and kept["sfa"] > 0.8
