"""Every shipped recipe is a sound configuration, says what it is, and does what its name and comments say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
NAMES = [path.stem for path in CONFIGS]

METHODS = {
    "direct": [],
    "label_annealing": ["label_annealing"],
    "lora_label_annealing": ["label_annealing"],
    "sfa": ["sfa"],
    "replay": ["replay"],
    "chat": ["label_annealing"],
}
"""Recipe: the methods it is for."""

PAPER_000 = ("direct", "label_annealing", "replay")
"""Recipes that state the paper's set-up."""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Loads a recipe in a folder where the files it names exist, with further words as on the command line."""
    from holdfast.runs import config as config_module

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config_module, "has_accelerator", lambda: False)
    monkeypatch.setattr(config_module, "has_bf16", lambda: False)
    for name in ("WORLD_SIZE", "LOCAL_RANK", "RANK", "HOLDFAST_LAUNCHED"):
        monkeypatch.delenv(name, raising=False)

    def loaded(path: Path, *words: str) -> Any:
        text = path.read_text(encoding="utf-8")
        for name in set(re.findall(r"[\w/]+\.jsonl", text)) | {w for w in words if w.endswith(".jsonl")}:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text('{"text": "a"}\n')
        return config_module.load_train_config(["--config", str(path), *words])

    return loaded


def test_the_recipes_are_these():
    assert sorted(METHODS) == NAMES


@pytest.mark.parametrize("path", CONFIGS, ids=NAMES)
def test_a_recipe_is_sound(path, load):
    config = load(path)
    assert [m.name for m in config.retention] == METHODS[path.stem]
    assert not any(m.off for m in config.retention)
    assert config.evaluation.suites == ("source", "target")
    assert config.evaluation.before
    assert config.training.max_length >= 1024
    assert config.training.num_train_epochs > 0
    assert config.training.save_total_limit
    assert config.resolved["output_dir"].startswith("runs/")
    assert all("trust_remote_code" not in note for note in config.notes)


@pytest.mark.parametrize("path", CONFIGS, ids=NAMES)
def test_a_mistake_in_a_recipe_would_show(path, load, tmp_path):
    text = path.read_text(encoding="utf-8")
    broken = tmp_path / "broken.yaml"
    broken.write_text(
        text.replace("learning_rate:", "lerning_rate:").replace("evaluation:", "evaluation:\n  befor: true")
    )
    with pytest.raises(ConfigError) as caught:
        load(broken)
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize("path", CONFIGS, ids=NAMES)
def test_the_commands_in_a_recipe_are_sound(path, load):
    """The comment at the head shows how to run it; those words, too, must parse."""
    head = path.read_text(encoding="utf-8").split("\nmodel_name_or_path")[0]
    assert head.startswith("# ")
    assert all(line.startswith("#") for line in head.splitlines())
    commands = [line.split("#", 1)[1].split("     #")[0] for line in head.splitlines() if "holdfast train " in line]
    assert commands
    for command in commands:
        words = shlex.split(command)
        assert words[:2] == ["holdfast", "train"]
        assert words[2:4] == ["--config", f"configs/{path.name}"]
        rest = words[4:]
        if "--model_name_or_path" in rest:  # the result of an earlier run
            folder = Path(rest[rest.index("--model_name_or_path") + 1])
            folder.mkdir(parents=True)
            (folder / "config.json").write_text("{}")
            (folder / "model.safetensors").write_bytes(b"")
        load(path, *rest)


@pytest.mark.parametrize("name", PAPER_000)
def test_the_papers_set_up(name, load):
    """128 sequences of 2048 tokens a step, 5 epochs, cosine with 5 % warm-up, peak 5e-6."""
    training = load(CONFIGS[NAMES.index(name)]).training
    assert training.per_device_train_batch_size * training.gradient_accumulation_steps == 128
    assert (training.max_length, training.num_train_epochs, training.learning_rate, training.warmup_steps) == (
        2048,
        5,
        5e-6,
        0.05,
    )
    assert getattr(training.lr_scheduler_type, "value", training.lr_scheduler_type) == "cosine"


def test_recipes_to_compare_differ_in_the_method_only():
    """A comparison of methods is one of methods only when nothing else differs; what is measured does not change the weights."""
    aside = {"retention", "evaluation"}
    direct, *others = (
        {k: v for k, v in yaml.safe_load(CONFIGS[NAMES.index(n)].read_text()).items() if k not in aside}
        for n in PAPER_000
    )
    assert all(other == direct for other in others)


def test_tasks_of_the_recipes_exist():
    from holdfast.evaluation.tasks.tasks import _index

    entries = [
        e
        for path in CONFIGS
        for suite in ("source", "target")
        for e in yaml.safe_load(path.read_text())["evaluation"][suite]
    ]
    tasks = {e["task"] for e in entries if "task" in e}
    assert tasks
    assert tasks <= {*_index().tasks, *_index().groups, *_index().tags}
