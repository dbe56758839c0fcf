"""How far trials gain on the same samples, from the rows in their runs' folders."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from claim_studies import objective
from evaluated_folders import texts, write
from holdfast.evaluation.compare.samples import compare_samples
from holdfast.records.run import RunFolder
from holdfast.records.study import SeedRun, StudyRecord, TrialRecord, read_study
from holdfast.statistics.shares import shares
from holdfast.studies.sweep.sample_pairs import with_correlations

TARGET, SOURCE = ("learn", "learn text"), ("keep", "keep text")
N, SEEDS = 40, (0, 1)


def measured(run: RunFolder, start: np.ndarray, gains: dict[tuple[str, str], np.ndarray]) -> list:
    """A run whose start costs `start` nats of ten tokens a document, and whose result costs that less `gains`."""
    compared = []
    for (suite, name), gain in gains.items():
        sides = [("start", start), ("result", start - gain)]
        folders = [
            write(run.evaluations / which, suite, name, texts(nats), metrics=["nats_per_token"], kind="text")
            for which, nats in sides
        ]
        rows = [f.samples(suite, name) for f in folders]
        evaluations = [e for f in folders if (e := f.find(suite, name)) is not None]
        compared += compare_samples(*rows, *evaluations)
    return compared


@pytest.fixture
def study(tmp_path) -> tuple[StudyRecord, dict[int, np.ndarray]]:
    """Three trials, direct fine-tuning first, with two seeds; and what each document gains in nats a token of target,
    mean over the seeds."""
    rng = np.random.default_rng(0)
    start, easy, lost = rng.uniform(25, 35, N), rng.normal(0, 1, N), rng.normal(0, 1, N)
    trials, influences = [], {}
    for number, (kind, learns) in enumerate([("direct", 4.0), ("l2", 3.5), ("sfa", 2.0)]):
        runs, found = [], []
        for seed in SEEDS:
            target = learns * (1 + 0.5 * easy + 0.1 * rng.normal(0, 1, N))
            source = -0.5 * learns * (1 + 0.5 * lost + 0.1 * rng.normal(0, 1, N))
            found.append(target / 10)
            run = RunFolder(tmp_path / f"runs/{number}/seed-{seed}")
            runs.append(
                SeedRun(
                    seed=seed,
                    folder=f"runs/{number}/seed-{seed}",
                    host="alpha",
                    seconds=1.0,
                    training_seconds=1.0,
                    comparisons=measured(run, start, {TARGET: target, SOURCE: source}),
                )
            )
        influences[number] = np.mean(found, axis=0)
        trials.append(
            TrialRecord(number=number, state="complete", kind=kind, label=kind, params={}, settings={}, runs=runs)
        )
    sides = [objective("learn"), objective("keep")]
    record = StudyRecord(
        name="s", status="finished", created="", config={}, seeds=list(SEEDS), learn=sides[0], keep=sides[1],
        pairs=[], trials=trials, selection={},
    )  # fmt: skip
    return record, influences


def test_correlations_are_those_of_what_documents_gain(study, tmp_path):
    record, influences = study
    found = with_correlations(record, tmp_path)
    assert [c.entry[:2] for c in found.correlations] == [TARGET, SOURCE]
    assert found.notes == []
    by_hand = np.corrcoef(np.stack(list(influences.values())))
    for one in range(3):
        for two in range(3):
            assert found.correlations[0].between(one, two) == pytest.approx(by_hand[one, two], abs=1e-5)
    found.write(tmp_path)
    assert read_study(tmp_path) == found


def test_a_share_is_that_of_pairs(study, tmp_path):
    """Fieller's set with float64 (co)variances over seeds and over the documents' influences."""
    record, influences = study
    found = with_correlations(record, tmp_path)
    (kept, _), (apart, _) = (shares(r.trials[1], r) for r in (found, record))
    assert kept.value == apart.value
    assert np.ptp(kept.interval) < 0.5 * np.ptp(apart.interval)
    entry = found.learn.entries[0]
    compared = [
        [c for run in trial.runs for c in run.comparisons if (c.suite, c.name, c.metric) == entry]
        for trial in found.trials[:2]
    ]
    by_seed = np.array([[c.gain for c in of] for of in compared])
    halves = [np.mean([np.ptp(c.interval) / 2 for c in of]) for of in compared]
    rho = np.corrcoef(influences[0], influences[1])[0, 1]
    for r in kept.interval:
        d = by_seed[1] - r * by_seed[0]
        seeds = 12.706204736174694**2 * d.var(ddof=1) / 2
        samples = halves[1] ** 2 - 2 * r * rho * halves[0] * halves[1] + r**2 * halves[0] ** 2
        assert d.mean() ** 2 == pytest.approx(seeds + samples, rel=1e-4)


def test_samples_that_are_not_there_are_counted(study, tmp_path):
    record, _ = study
    shutil.rmtree(tmp_path / "runs/2/seed-1")
    found = with_correlations(record, tmp_path)
    assert found.correlations[0].trials == [0, 1]
    assert len(found.notes) == 2 and "learn/learn text: 1 of 3 complete trials cannot be paired" in found.notes[0]
    assert found.notes[0].endswith("nats_per_token was not measured")
    assert shares(found.trials[2], found) == shares(record.trials[2], record)
