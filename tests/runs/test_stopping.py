"""`early_stopping`: what `evaluation` measures along training ends it, and says which checkpoint is the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint_folders import read_folder
from data_files import text_rows
from holdfast.errors import ConfigError, Interrupted
from holdfast.records.evaluation import Metric
from holdfast.records.run import RunFolder
from holdfast.runs.config import train_config
from holdfast.runs.stopping import StopRule, outcome
from small_runs import killed_at, run_of
from tiny import SENTENCES

STEPS = 24
ACC, NATS = (
    {"unit": "accuracy", "higher_is_better": True, "n": 9},
    {"unit": "nats/token", "higher_is_better": False, "n": 9},
)


def accuracy(values: list[float]) -> list[tuple[int, dict[str, Metric]]]:
    return [(step, {"learn/a": Metric(value=v, **ACC)}) for step, v in enumerate(values, 1)]


def nats(values: list[float]) -> list[tuple[int, dict[str, Metric]]]:
    return [(step, {"keep/p": Metric(value=v, **NATS)}) for step, v in enumerate(values, 1)]


# ------------------------------------------------------------------------------------------------- what is decided


@pytest.mark.parametrize(
    ("values", "kept", "ends"),
    [
        ([0.2, 0.4], 2, False),
        ([0.2, 0.4, 0.3], 2, False),
        ([0.2, 0.4, 0.3, 0.4], 2, True),  # an equal one is no better
        ([0.2, 0.1, 0.3, 0.2], 3, False),
        ([0.2, 0.1, 0.0], 1, True),
    ],
)
def test_patience_keeps_the_best(values: list[float], kept: int, ends: bool) -> None:
    found = outcome((StopRule(entry="learn/a", patience=2),), {}, accuracy(values))
    assert (found.kept, found.ended is not None) == (kept, ends)


@pytest.mark.parametrize(
    ("values", "kept", "ends"),
    [([1.0, 1.1], 2, False), ([1.0, 1.3, 1.0], 1, True), ([1.3], None, True), ([1.25], 1, False), ([0.5], 1, False)],
)
def test_a_limit_keeps_the_last_within_it(values: list[float], kept: int | None, ends: bool) -> None:
    start = {"keep/p": Metric(value=1.0, **NATS)}
    found = outcome((StopRule(entry="keep/p", max_loss=0.25),), start, nats(values))
    assert (found.kept, found.ended is not None) == (kept, ends)
    assert not ends or "keep/p had lost 0.3 nats/token, more than 0.25" in str(found.ended)


# ------------------------------------------------------------------------------------------------------------- runs


@pytest.fixture
def settings(by_heart: dict[str, Any]) -> dict[str, Any]:
    text_rows("prose.jsonl", SENTENCES)
    return {
        **by_heart,
        "max_steps": STEPS,
        "learning_rate": 3e-2,
        "save_strategy": "no",
        "evaluation": {"keep": ["prose.jsonl"], "learn": ["held.jsonl"], "along": {"every": 3}},
        "early_stopping": {"entry": "learn/held", "patience": 1},
    }


@pytest.fixture
def whole(settings: dict[str, Any], once: Callable[..., Path]) -> RunFolder:
    """The run with these settings and without an interruption, trained once for all tests."""
    return RunFolder(once("stopped-run", lambda folder: run_of({**settings, "output_dir": str(folder)})))


def along(run: RunFolder, suite: str, name: str) -> dict[int, float]:
    found = {step: folder.find(suite, name) for step, folder in run.trajectory()}
    return {step: e.metrics[e.primary].value for step, e in found.items() if e is not None}


def test_target(whole: RunFolder) -> None:
    record, figures = whole.read(), along(whole, "learn", "held")
    figures.pop(0)
    best = min(figures, key=lambda step: figures[step])
    assert record.training["steps"] == max(figures) == best + 3 < STEPS, figures
    assert record.training["result_step"] == best
    assert read_folder(whole.path) == read_folder(whole.path / f"checkpoint-{best}")
    assert any(f"Ended at step {best + 3} of 24: learn/held did not improve" in note for note in record.notes)
    result = whole.evaluated("result").find("learn", "held")
    assert result is not None and result.metrics[result.primary].value == figures[best]


def test_source(settings: dict[str, Any]) -> None:
    free = run_of({**settings, "early_stopping": None, "output_dir": "free"})
    figures = along(free, "keep", "prose")
    losses = {step: value - figures[0] for step, value in figures.items()}
    over = next(step for step in list(losses)[2:] if losses[step] > max([0, *(losses[s] for s in losses if s < step)]))
    limit = (losses[over] + max(losses[step] for step in losses if step < over)) / 2
    run = run_of({**settings, "early_stopping": {"entry": "keep/prose", "max_loss": limit}})
    assert run.read().training["steps"] == over and run.read().training["result_step"] == over - 3, losses
    assert read_folder(run.path) == read_folder(run.path / f"checkpoint-{over - 3}")


@pytest.mark.parametrize("at", [pytest.param(4, marks=pytest.mark.slow), 7])
def test_a_continued_run_ends_where_it_would_have(settings: dict[str, Any], whole: RunFolder, at: int) -> None:
    other = {**settings, "output_dir": "other", "save_strategy": "steps", "save_steps": 2}
    with pytest.raises(Interrupted):
        run_of(other, [killed_at(at)])
    again = run_of({**other, "save_total_limit": 1})
    for key in ("steps", "result_step"):
        assert again.read().training[key] == whole.read().training[key]
    assert read_folder(again.path) == read_folder(whole.path)


def test_killed_between_the_end_and_the_saving(
    settings: dict[str, Any], whole: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.training.trainers import SFTRetentionTrainer

    other = {**settings, "output_dir": "other", "save_strategy": "steps", "save_steps": 3}
    with monkeypatch.context() as patch:
        patch.setattr(
            SFTRetentionTrainer, "_load_best_model", lambda self: (_ for _ in ()).throw(Interrupted("killed"))
        )
        with pytest.raises(Interrupted):
            run_of(other)
    steps = whole.read().training["steps"]
    assert Path(f"other/checkpoint-{steps}").is_dir()
    again = run_of(other)
    assert again.read().training["steps"] == steps, "no step more"
    assert read_folder(again.path) == read_folder(whole.path)


# --------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"early_stopping": {"entry": "learn/hel", "patience": 1}},
            r"early_stopping\.entry: .*Did you mean 'learn/held'",
        ),
        (
            {"early_stopping": {"entry": "learn/held", "patience": 0}},
            r"early_stopping\.patience: expected .* at least 1",
        ),
        ({"early_stopping": [{"entry": "learn/held", "patience": 1}] * 2}, "expected one rule with patience"),
        ({"retention": ["sfa"]}, r"retention\.sfa: changes the weights after the last step.*Leave out early_stopping"),
        ({"num_processes": 2}, r"early_stopping: expected one process"),
    ],
)
def test_what_cannot_be(settings: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        train_config({**settings, **changes})


def test_what_it_looks_at_makes_the_run(settings: dict[str, Any]) -> None:
    key, evaluation = train_config(settings).key, settings["evaluation"]
    more = {**evaluation, "keep": [], "confidence": 0.9}
    assert train_config({**settings, "evaluation": more}).key == key, "nothing looks at the source"
    assert train_config({**settings, "evaluation": {**evaluation, "along": {"every": 4}}}).key != key
    assert train_config({**settings, "early_stopping": {"entry": "learn/held", "patience": 2}}).key != key
    Path("held.jsonl").rename("other.jsonl")
    changed = {**evaluation, "learn": [{"perplexity": "other.jsonl", "name": "held", "window": 8}]}
    assert train_config({**settings, "evaluation": changed}).key != key
