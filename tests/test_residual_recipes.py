"""The recipes of paper 004: sound, of the paper's models and budgets, and shown in configs/ as they come with the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from holdfast.studies.residual.plan import is_continued, study_config

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "configs" / "residual"
MODELS = {
    "llama3-budgets": 11,
    "llama-siblings": 9,
    "qwen-siblings-0.5b": 6,
    "qwen-siblings-1.5b": 6,
    "qwen-siblings-7b": 6,
    "scales": 9,
    "tiny": 36,
}
"""Models that each makes, given ones among them."""


def test_the_recipes_are_these():
    assert sorted(p.stem for p in FOLDER.glob("*.yaml")) == sorted(MODELS)
    package = ROOT / "src" / "holdfast" / "studies" / "recipes" / "residual"
    assert {p.resolve() for p in FOLDER.glob("*.yaml")} == set(package.glob("*.yaml"))


@pytest.mark.parametrize("name", MODELS)
def test_a_recipe_is_sound(name, tmp_path, monkeypatch):
    from holdfast.runs import config as config_module

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config_module, "has_accelerator", lambda: False)
    monkeypatch.setattr(config_module, "has_bf16", lambda: False)
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    for file in re.findall(r"^corpus: \[(.*)\]", text, re.MULTILINE):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text('{"text": "a"}\n')
    config = study_config(yaml.safe_load(text), source=name)
    assert len(config.models()) == MODELS[name]
    assert config.name == name and config.output_dir == Path("runs/residual") / name
    assert text.startswith("# ") and f"configs/residual/{name}.yaml" in text


def test_table_2_has_the_papers_budgets_and_window(tmp_path, monkeypatch):
    values = yaml.safe_load((FOLDER / "llama3-budgets.yaml").read_text())
    assert values["budgets"] == ["100M", "500M", "1B"] and values["window"] == 4096 and values["epochs"] == 5
    assert str(values["after"]) == "2023-12-01" and str(values["before"]) == "2024-10-01"


def test_tables_3_and_4_train_nothing():
    for name in ("llama-siblings", "qwen-siblings-0.5b", "qwen-siblings-1.5b", "qwen-siblings-7b"):
        config = study_config(yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))
        assert not any(is_continued(m) for m in config.models())
