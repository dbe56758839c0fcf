"""Small networks on digits: the study's figures, what it keeps, and what the claims read."""

from __future__ import annotations

import dataclasses
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from holdfast.errors import TrainingDiverged
from holdfast.papers.claims.reproduction import size_changes
from holdfast.papers.digits import study
from holdfast.papers.digits.study import DigitsSettings, Samples, Tasks, gain_over, run_digits, train, with_replay
from holdfast.papers.sfa.cases import Pair
from holdfast.papers.sfa.claims import CLASSES, FIGURE_1, check_claims
from holdfast.records.sequence import read_sequence
from holdfast.support.files import read_object
from mnist_files import write_mnist


def quiet() -> Console:
    return Console(file=io.StringIO())


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> DigitsSettings:
    arms = [
        "single",
        "multitask",
        {"replay": {"fraction": 0.5}},
        {"sfa": {"p": [1, 0.25]}},
        {"l2": {"coefficient": 0.1}},
    ]
    arms += [{"ewc": {"coefficient": 100, "decoupled": True}}]
    folder = tmp_path_factory.mktemp("digits") / "out"
    return DigitsSettings(name="figure_1", output_dir=folder, epochs=4, seeds=(0, 1), arms=arms)


@pytest.fixture(scope="module")
def record(settings: DigitsSettings) -> Any:
    return run_digits(settings, console=quiet())


def test_record_and_page_are_there(record: Any, settings: DigitsSettings) -> None:
    assert read_sequence(settings.output_dir) == record
    assert "figure_1" in (settings.output_dir / "report.html").read_text(encoding="utf-8")
    assert [m.state for m in record.models] == ["complete"] * 2 * 9


def test_the_claims_can_be_computed(record: Any) -> None:
    claims = check_claims({FIGURE_1: record, CLASSES: record})
    assert [c.number for c in claims] == ["1s", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c"]
    assert all(c.figures for c in claims if c.number in ("1s", "6a", "6b", "6c"))


def test_arms_are_pairs_over_images(record: Any, settings: DigitsSettings) -> None:
    """The interval of a difference of two arms is that of the images that one of them alone answers rightly."""
    seeds = [read_object(settings.output_dir / f"seeds/seed-{seed}.json")["results"] for seed in settings.seeds]
    pair = Pair(record, ["even", "odd"], "even")
    [l2], sfa = pair.alone("l2"), pair.averaging()[0]
    difference = pair.against(sfa, "even") - pair.against(l2, "even")
    gains = [np.subtract(seed[sfa.arm]["right"]["even"], seed[l2.arm]["right"]["even"]) for seed in seeds]
    images = np.mean(gains, axis=0)
    half = 1.96 * images.std(ddof=1) / len(images) ** 0.5
    alone = math.hypot(sfa.against["even"].samples_half, l2.against["even"].samples_half)
    assert half <= difference.samples_half <= 1.5 * half < alone
    assert len(record.correlations) == 2 and record.correlations[0].trials == list(range(len(record.arms)))


def test_figure_1_has_the_protocol_that_the_paper_cites() -> None:
    """Two digits have one label, so that both tasks share five outputs; one layer of 128; Adam; six epochs."""
    protocol = DigitsSettings(name="x", output_dir=Path(), arms=[])
    assert (protocol.epochs, protocol.hidden, protocol.outputs, study.BATCH) == (6, 128, 5, 32)
    assert (protocol.optimizer, protocol.learning_rate, protocol.fisher_samples) == ("adam", 0.001, 1000 * 32)
    for samples in Tasks.read(protocol).training.values():
        assert set(samples.labels.tolist()) == {0, 1, 2, 3, 4}
    own = DigitsSettings.class_incremental(name="x", output_dir=Path(), arms=[], epochs=3)
    labels = {task: set(samples.labels.tolist()) for task, samples in Tasks.read(own).training.items()}
    assert labels == {"even": {0, 2, 4, 6, 8}, "odd": {1, 3, 5, 7, 9}} and own.outputs == 10 and own.epochs == 3


def test_what_is_shared_is_overwritten_and_what_has_outputs_of_its_own_is_not_answered(tmp_path: Path) -> None:
    """Sequential training leaves some even digits where both tasks share outputs, and none where they do not."""
    about: dict[str, Any] = {"name": "x", "seeds": (0,), "arms": [], "epochs": 12}
    left = []
    for make in (DigitsSettings, DigitsSettings.class_incremental):
        record = run_digits(make(output_dir=tmp_path / make.__name__, **about), console=quiet())
        left.append(record.arms[0].scores["even"].value)
    assert 0 == left[1] < left[0] < 0.9


def test_mnist_is_read_where_a_folder_is_given(tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist")
    whole = DigitsSettings(
        name="x", output_dir=tmp_path / "out", arms=["single"], epochs=1, seeds=(0,), mnist=str(folder)
    )
    record = run_digits(whole, console=quiet())
    assert record.config["images"] == "MNIST" and record.config["labels"] == "half"
    other = dataclasses.replace(whole, mnist="")
    assert other.differences(record.config) == ["images: was MNIST, is scikit-learn's digits"]


def test_the_grids_of_every_size_are_arms() -> None:
    for recipe in (FIGURE_1, CLASSES):
        for changes in size_changes("sfa")[recipe].values():
            problems: list[str] = []
            study.read_arms(changes["arms"], [], problems)
            assert not problems


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
        train(nn.Linear(64, 10), samples, DigitsSettings(name="x", output_dir=Path(), arms=[]), seed=0)


def test_the_committed_figures_come_out(tmp_path: Path) -> None:
    """Of one seed, as docs/log has them: sequential training leaves nothing of the even digits."""
    arms: list[Any] = ["single", {"sfa": {"p": 0.25, "beta": 0.35}}]
    whole = DigitsSettings.class_incremental(name="classes", output_dir=tmp_path, seeds=(0,), arms=arms)
    kept = {arm.kind: arm.scores["even"].value for arm in run_digits(whole, console=quiet()).arms}
    assert kept["sequential"] == 0 and kept["sfa"] > 0.8
