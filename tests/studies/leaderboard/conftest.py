"""A tiny leaderboard whose runs are a function of settings and seed in place of fine-tuning; all else is real."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.records.study import SeedRun
from holdfast.studies.tradeoff import trial as trials
from holdfast.studies.tradeoff.session import Tradeoff
from tiny import SENTENCES, build_model, build_tokenizer


@pytest.fixture(scope="session")
def material(tmp_path_factory) -> dict[str, Any]:
    """A start model and data files, as a `train:` section of runs of seconds."""
    place = tmp_path_factory.mktemp("material")
    build_model().save_pretrained(place / "base")
    build_tokenizer().save_pretrained(place / "base")
    for name, times in {"train": 8, "prose": 3, "code": 4}.items():
        rows = [{"text": f"{sentence} {name} {i}"} for i, sentence in enumerate(SENTENCES * times)]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "model_name_or_path": str(place / "base"),
        "dataset_name": str(place / "train.jsonl"),
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "max_length": 64,
        "logging_steps": 6,
        "save_strategy": "no",
        "use_cpu": True,
        "evaluation": {"source": [str(place / "prose.jsonl")], "target": [str(place / "code.jsonl")]},
    }


@pytest.fixture
def asked(material, tmp_path) -> dict[str, Any]:
    """A leaderboard of one track and one method, as its YAML would have it."""
    return {
        "name": "board",
        "tracks": {"one": {"train": dict(material)}},
        "methods": [{"l2": {"coefficient": [0.1, 2.0]}}],
        "rates": [2e-3],
        "extend": 0,
        "workers": 1,
        "output_dir": str(tmp_path / "board"),
    }


def pull_of(settings) -> float:
    return sum(v for m in settings["retention"] for p in m.values() for v in p.values() if isinstance(v, float))


@pytest.fixture
def ran(monkeypatch) -> list[tuple[str, float, float, int]]:
    """Stands in for the fine-tuning runs; gets (method, pull, rate, seed) of each. The stronger the pull, the less is
    learnt, and the less still is forgotten; a rate of 1e-3 does a little less of both."""
    calls: list[tuple[str, float, float, int]] = []

    def run_seed(config, settings, seed, *, kind, check, **rest):
        from claim_studies import comparison

        check()
        pull, rate = pull_of(settings), settings["learning_rate"]
        calls.append((kind, pull, rate, seed))
        size = (1.0 if rate > 1.5e-3 else 0.9) + 0.001 * seed
        figures = (("target", "code", size / (1 + 0.3 * pull)), ("source", "prose", -size / (1 + 2 * pull)))
        found = []
        for suite, name, gain in figures:
            one = comparison(suite, gain, 0.01)
            found.append(type(one)(**{**vars(one), "name": name}))
        return SeedRun(
            seed=seed,
            folder=f"runs/{kind}/seed-{seed}",
            host="h",
            seconds=2.0,
            training_seconds=1.0 + pull,
            comparisons=found,
            references={"source/prose/nats_per_token": {"unigram": 10.0}},
            steps=10,
        )

    monkeypatch.setattr(trials, "run_seed", run_seed)
    monkeypatch.setattr(Tradeoff, "one_in_process", True)
    return calls
