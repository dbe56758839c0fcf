"""Real workers: processes of their own, one killed in the middle, on PostgreSQL; a study by the command line."""

from __future__ import annotations

import pytest

from holdfast.studies.sweep.session import SweepStudy
from holdfast.studies.sweep.study import StudyConfig


def test_a_small_study_builds_what_it_needs(tmp_path, monkeypatch):
    """`toy:` fills the names in; what hangs on its files is checked once they are there."""
    from holdfast.errors import ConfigError
    from holdfast.papers.worlds import toy_settings

    setting = next(iter(toy_settings.SETTINGS))
    names = toy_settings.SETTINGS[setting].placeholders
    train = {"model_name_or_path": "${base}", "dataset_name": "${train}", "max_steps": 2}
    first = next(n for n in names if n not in ("base", "train"))
    evaluation = {
        "keep": [{"perplexity": f"${{{first}}}", "name": "a"}],
        "learn": [{"perplexity": f"${{{first}}}", "name": "b"}],
    }
    values = {
        "toy": setting,
        "train": {**train, "evaluation": evaluation},
        "arms": ["l2"],
        "output_dir": str(tmp_path / "out"),
    }
    config = StudyConfig.read(values)
    assert config.learn.entries == (("learn", "b", None),)
    monkeypatch.setattr(toy_settings, "make_setting", lambda name, folder, **how: {n: str(tmp_path) for n in names})
    with pytest.raises(ConfigError, match=r"model_name_or_path: expected a model folder with config.json"):
        SweepStudy(config).prepare(None)
    with pytest.raises(ConfigError, match="learning_rate"):
        StudyConfig.read({**values, "train": {**values["train"], "learning_rate": -1}})
    values["train"]["evaluation"] = {"keep": ["${nothing}"], "learn": []}
    with pytest.raises(ConfigError, match=r"\$\{nothing\}: no such name"):
        StudyConfig.read(values)
