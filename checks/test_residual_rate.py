"""The rate of the residual's small worlds: the rule that chooses it, and what it runs."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def bench(script):
    return script("residual_rate")


@pytest.mark.parametrize(
    ("kept", "rate"),
    [
        ({1e-5: [0.95, 0.9], 2e-5: [0.89, 0.7], 3e-5: [0.8, 0.61]}, 3e-5),  # the highest of those within
        ({1e-5: [0.95, 0.9], 2e-5: [0.85, 0.55], 3e-5: [0.5, 0.3]}, 1e-5),  # none: both miss by 0.05, the lowest
        ({1e-5: [0.99, 0.95], 2e-5: [0.92, 0.58], 3e-5: [0.5, 0.3]}, 2e-5),
    ],
)
def test_the_rule(bench, kept, rate):
    assert bench.chosen(kept) == rate


def test_only_the_continued_instruct_model_of_the_worlds_that_choose_is_made(bench):
    from holdfast.papers.residual.plan import StudyConfig

    config = StudyConfig.read(bench.settings_of(2e-5, Path("out")))
    models = config.models()
    assert {m.seed for m in models} == {0, 1, 2} and {m.residual for m in models} == {None}
    assert {m.start for m in models if m.continued} == {"instruct"} and not any(m.tuned for m in models)
    assert config.request.train["learning_rate"] == 2e-5
    assert config.request.train["per_device_train_batch_size"] == 2, "the rest as tiny.yaml says"
    twin = StudyConfig.read(bench.yaml.safe_load(bench.TWIN.read_text()))
    assert set(twin.request.seeds).isdisjoint(bench.WORLDS), "what is judged did not choose"
    assert config.request.budgets == twin.request.budgets
