"""The four recipes of paper 000 at full size: sound, with the paper's set-up, measured by its suites, and prepared by commands that exist."""

from __future__ import annotations

import itertools
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.errors import ConfigError

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "configs" / "label_annealing"
RECIPES = ["alignment_tax", "code", "math", "niche_knowledge"]
TOKENS = {"alignment_tax": 220e6, "code": 30e6, "math": 179e6, "niche_knowledge": 455e6}
"""Of the fine-tuning data, in the paper."""
TRIALS = {"alignment_tax": 7, "code": 13, "math": 16, "niche_knowledge": 7}
METHODS = {
    "alignment_tax": {"label_annealing"},
    "code": {"label_annealing", "l2"},
    "math": {"label_annealing", "l2", "replay", "replay+label_annealing"},
    "niche_knowledge": {"label_annealing"},
}


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


def head(name: str) -> str:
    """The comment at the file's head, without its marks."""
    lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").split("\nname:")[0].splitlines()
    assert all(line.startswith("#") for line in lines)
    return "\n".join(line.removeprefix("#") for line in lines)


def commands(name: str) -> list[list[str]]:
    """The words of every command in the head."""
    text = re.sub(r"\\\n\s*", " ", head(name))
    return [shlex.split(line) for line in text.splitlines() if line.strip().startswith("holdfast ")]


def alternatives(study: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Every way of keeping that is tried, as a training configuration has it."""
    found = []
    for one in study["vary"]["retention"]:
        methods = one if isinstance(one, list) else [one]
        named = [(name, parameters) for method in methods for name, parameters in method.items()]
        spread = [
            [(name, key, v) for v in (value if isinstance(value, list) else [value])]
            for name, p in named
            for key, value in p.items()
        ]
        for combination in itertools.product(*spread):
            made: dict[str, dict[str, Any]] = {}
            for method, key, value in combination:
                made.setdefault(method, {})[key] = value
            found.append([{method: parameters} for method, parameters in made.items()])
    return found


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`train_config` in a folder where the files that a recipe names exist."""
    from holdfast.runs import config as config_module

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        config_module, "has_accelerator", lambda: True
    )  # num_processes and FSDP2 are for machines with one
    monkeypatch.setattr(config_module, "has_bf16", lambda: False)
    for name in ("WORLD_SIZE", "LOCAL_RANK", "RANK", "HOLDFAST_LAUNCHED"):
        monkeypatch.delenv(name, raising=False)

    def checked(study: dict[str, Any], **changes: Any) -> Any:
        stand_ins(study)
        return config_module.train_config(study["train"], use_cpu=True, **changes)

    return checked


def stand_ins(study: dict[str, Any]) -> None:
    """Tiny files in place of the data that a recipe names."""
    for name in set(re.findall(r"data/[\w/]+\.jsonl", yaml.safe_dump(study))):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(
            '{"question": "a", "options": ["a", "b", "c", "d"], "answer": 0}\n'
            if "questions" in name
            else '{"text": "a"}\n'
        )


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_sound_with_every_alternative(name, check):
    study = read(name)
    assert study["name"] == name and study["output_dir"] == f"runs/label_annealing/{name}"
    config = check(study)
    assert (
        config.retention == []
        and config.evaluation.suites == ("source", "target")
        and config.launch["accelerate_config"] == "fsdp2"
    )
    tried = alternatives(study)
    assert len(tried) + 1 == TRIALS[name], "and direct fine-tuning"
    for one in tried:
        methods = check(study, retention=one).retention
        assert [m.name for m in methods] == [next(iter(m)) for m in one] and not any(m.off for m in methods)
    assert {"+".join(next(iter(m)) for m in one) for one in tried} == METHODS[name]


@pytest.mark.parametrize("name", RECIPES)
def test_a_mistake_in_a_recipe_would_show(name, check):
    study = read(name)
    study["train"]["lerning_rate"] = study["train"].pop("learning_rate")
    study["train"]["evaluation"]["target"][0]["num_fewshots"] = 3
    with pytest.raises(ConfigError) as caught:
        check(study, retention=[{"label_annealing": {"wieght": 1}}])
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("name", RECIPES)
def test_the_papers_set_up(name, check):
    """128 sequences of 2048 tokens a step, 5 epochs, cosine with 5 % warm-up, peak 5e-6; the same for every recipe."""
    study = read(name)
    config = check(study)
    training = config.training
    assert training.per_device_train_batch_size * training.gradient_accumulation_steps * config.processes == 128
    assert (training.max_length, training.num_train_epochs, training.learning_rate, training.warmup_steps) == (
        2048,
        5,
        5e-6,
        0.05,
    )
    assert getattr(training.lr_scheduler_type, "value", training.lr_scheduler_type) == "cosine"
    assert training.packing and training.save_total_limit == 1
    start = "Meta-Llama-3-8B-Instruct" if name == "niche_knowledge" else "Meta-Llama-3-8B"
    assert config.model.model_name_or_path == f"meta-llama/{start}"


def test_recipes_differ_in_model_and_data_only():
    own = {
        "model_name_or_path",
        "dataset_name",
        "evaluation",
        "chat_template_path",
        "eos_token",
        "assistant_only_loss",
        "completion_only_loss",
    }
    shared = [{k: v for k, v in read(name)["train"].items() if k not in own} for name in RECIPES]
    assert all(one == shared[0] for one in shared)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_measures_the_papers_suite(name):
    """One truth: the entries are those of the shipped suite of that name, but for local files."""
    from holdfast.evaluation.shipped import suite_files

    (path,) = suite_files(f"label_annealing-{name}")
    suite, study = yaml.safe_load(path.read_text(encoding="utf-8")), read(name)
    for side in ("target", "source"):
        entries = [{k: v for k, v in entry.items() if k != "data"} for entry in study["train"]["evaluation"][side]]
        assert entries == suite[side]
        wanted = study["objectives"][side]
        assert (wanted if isinstance(wanted, list) else [wanted]) == [entry["task"] for entry in entries]


@pytest.mark.parametrize("name", RECIPES)
def test_the_commands_of_a_recipe_are_sound_and_make_its_data(name, tmp_path, monkeypatch):
    """Every `holdfast data` in the head parses, and their outputs are the files that the study reads (RedPajama's aside)."""
    from holdfast.cli.data import STEPS

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    made = set()
    found = commands(name)
    assert [words[:2] for words in found].count(["holdfast", "sweep"]) == 2
    for words in found:
        if words[1] == "sweep":
            assert words[2:4] == ["--config", f"configs/label_annealing/{name}.yaml"]
            continue
        step, *rest = words[2:]
        inputs = list(itertools.takewhile(lambda w: not w.startswith("--"), rest[rest.index("--input") + 1 :]))
        for path in inputs:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).touch()
        made.add(str(import_module(STEPS[step]).COMMAND.read(rest).output))
    named = set(re.findall(r"data/[\w/]+\.jsonl", yaml.safe_dump(read(name)))) - {"data/redpajama.jsonl"}
    assert named <= made


@pytest.mark.parametrize("name", RECIPES)
def test_what_the_head_computes(name):
    """Hours at 40 % of 8 H100s: 6 operations a parameter and token, a third more with a teacher; and the number of trials."""
    study, text = read(name), " ".join(head(name).split())
    rate, tokens = 8 * 989e12 * 0.4, 5 * TOKENS[name]
    direct = 6 * 8.03e9 * tokens / rate / 3600
    hours = direct
    for one in alternatives(study):
        names = [next(iter(m)) for m in one]
        hours += direct * (4 / 3 if "label_annealing" in names else 1) * (1 / 0.9 if "replay" in names else 1)
    assert f"{TRIALS[name]} trials" in text
    total = int(re.search(r"trials (\d+) hours \((\d+) GPU hours, ([\d,]+) USD", text).group(1))
    gpu_hours, price = (
        int(re.search(rf"{pattern}", text).group(1).replace(",", ""))
        for pattern in (r"(\d+) GPU hours", r"([\d,]+) USD at 2\.50")
    )
    assert (
        total == pytest.approx(hours, rel=0.05)
        and gpu_hours == pytest.approx(8 * hours, rel=0.05)
        and price == pytest.approx(20 * hours, rel=0.05)
    )
    said, unit = re.search(r"direct ([\d.]+) (hours|minutes)", text).groups()
    assert float(said) / (60 if unit == "minutes" else 1) == pytest.approx(direct, rel=0.1)


def test_tasks_of_the_recipes_exist():
    from holdfast.evaluation.tasks.tasks import _index

    tasks = {
        entry["task"]
        for name in RECIPES
        for side in ("source", "target")
        for entry in read(name)["train"]["evaluation"][side]
    }
    assert tasks <= {*_index().tasks, *_index().groups, *_index().tags, "quality"}
