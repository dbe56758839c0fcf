"""Every shipped recipe is a sound request, says what it is, and does what its name, its head and its paper say.

Three families: training configurations (`configs/*.yaml`), the studies of "Memory Retaining Finetuning"
(`configs/label_annealing`) and those of "Balancing Continuous Pre-Training" (`configs/residual`).
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from declared_commands import command_of
from holdfast.cli.main import main
from holdfast.errors import ConfigError
from holdfast.papers.residual.plan import StudyConfig
from holdfast.runs.config import load_train_config, train_config
from stand_ins import put_data, put_model

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
METHODS: dict[str, set[str]] = {
    "chat": {"label_annealing"},
    "direct": {""},
    "label_annealing": {"label_annealing"},
    "lora_label_annealing": {"label_annealing"},
    "replay": {"replay"},
    "sfa": {"sfa"},
    "label_annealing/alignment_tax": {"label_annealing"},
    "label_annealing/code": {"label_annealing", "l2"},
    "label_annealing/math": {"label_annealing", "l2", "replay", "replay+label_annealing"},
    "label_annealing/niche_knowledge": {"label_annealing"},
}
"""Recipe: the methods it is for, or tries beside direct fine-tuning."""
STUDIES = {"alignment_tax": (9, 220e6), "code": (21, 30e6), "math": (22, 179e6), "niche_knowledge": (8, 455e6)}
"""Of Memory Retaining Finetuning: trials, and tokens of the fine-tuning data in the paper."""
LABEL_ANNEALING = ("direct", "label_annealing", "replay", *(f"label_annealing/{name}" for name in STUDIES))
"""Recipes that state the paper's set-up."""
RESIDUAL = {
    "llama3-budgets": 11,
    "llama-siblings": 9,
    "qwen-siblings-0.5b": 6,
    "qwen-siblings-1.5b": 6,
    "qwen-siblings-7b": 6,
    "scales": 9,
    "llama-1b-one-gpu": 11,
    "tiny": 290,
    "distilled": 21,
}
"""Of Balancing Continuous Pre-Training: models that each makes, given ones among them."""
SEQUENCE = {
    "tasks-tiny": (80, 80),
    "months": (119, 10),
    "groups": (44, 13),
    "smollm2": (11, 10),
    "pairs": (91, 92),
    "math-code-one-gpu": (46, 46),
    "three-tasks": (51, 32),
    "three-tasks-tiny": (39, 26),
    "six-tasks": (32, 7),
    "replay-shares": (11, 10),
}
"""Of Soup to Go: models that each makes with a seed, and its ways through the orders."""
STAGES = {"tiny": 10, "smollm2": 5, "llama2-alpaca": 10, "llama2-vicuna": 10, "olmo-alpaca-one-gpu": 10}
"""Of Pattern Shifting or Knowledge Losing: epochs of each."""
WITHOUT_OLD_DATA = {
    "functions": ({"self_replay", "label_annealing", "token_weighting", "wise_ft", "l2"}, "nsga2, 160 trials"),
    "functions-near": ({"self_replay", "label_annealing", "wise_ft"}, "tpe, 30 trials"),
    "functions-near-held-out": ({"self_replay", "label_annealing", "wise_ft", "train"}, "grid, 1 trial and direct"),
    "functions-epoch": ({"self_replay", "label_annealing", "wise_ft"}, "tpe, 24 trials"),
    "functions-epoch-held-out": (
        {"self_replay", "label_annealing", "wise_ft", "train"},
        "grid, 4 trials and direct",
    ),
    "functions-longer": ({"train", "self_replay", "label_annealing", "wise_ft"}, "grid, 4 trials and direct"),
    "functions-held-out": ({"self_replay", "label_annealing", "wise_ft", "train"}, "grid, 1 trial and direct"),
}
"""Search: the methods that it draws from, and how it is searched."""
LADDER = {
    "tiny": (3, 2_000_000),
    "long": (6, 88_000_000),
    "world": (6, 64_000_000),
    "world-3M": (6, 32_000_000),
    "paper": (18, 128_000_000_000),
}
"""Of Overtrained Language Models: rungs of each, and the largest budget."""
OVERTRAINING = {
    "tiny": (3, 6),
    "long": (6, 64),
    "world": (6, 24),
    "paper": (6, 1350),
    "sft": (6, 63),
    "sft-one-gpu": (6, 7),
    "pictures": (6, 20),
    "llava": (6, 20),
}
"""Checkpoints and fine-tunings of each."""
PUBLIC = {"olmo-1b": (41e9, 3094e9), "olmo-2-7b": (80e9, 3896e9), "amber": (0.12e12, 1.3e12)}
"""Ladders of published checkpoints: the smallest and the largest budget."""


def text_of(name: str) -> str:
    return (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load(text_of(name))


def training(name: str) -> dict[str, Any]:
    """The recipe's training configuration."""
    values = read(name)
    return values.get("train", values)


def head(name: str) -> str:
    """The comment at the file's head, without its marks."""
    lines = re.split(r"\n(?=name:|model_name_or_path)", text_of(name))[0].splitlines()
    assert all(line.startswith("#") for line in lines)
    return "\n".join(line.removeprefix("#") for line in lines)


def arms(name: str) -> list[list[dict[str, Any]]]:
    """Every way of keeping that a recipe tries, as a training configuration has it."""
    found = []
    values = read(name)
    for one in values["arms"] if "arms" in values else [values["retention"]]:
        methods = [] if one == "none" else one if isinstance(one, list) else [one]
        spread = [
            [(method, key, v) for v in (value if isinstance(value, list) else [value])]
            for item in methods
            for method, parameters in item.items()
            for key, value in parameters.items()
        ]
        for combination in itertools.product(*spread):
            made: dict[str, dict[str, Any]] = {}
            for method, key, value in combination:
                made.setdefault(method, {})[key] = value
            found.append([{method: parameters} for method, parameters in made.items()])
    return found


def checked(values: dict[str, Any], **changes: Any) -> Any:
    """`train_config`, with the files in place that a recipe names."""
    put_data(yaml.safe_dump([values, changes]))
    return train_config(values, use_cpu=True, **changes)


@pytest.fixture(autouse=True)
def place(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("holdfast.runs.config.has_accelerator", lambda: True)  # FSDP2 is for machines with one
    return desk


def test_the_recipes_are_these() -> None:
    elsewhere = {
        CONFIGS / "cluster",
        CONFIGS / "data",
    }  # test_two_nodes.py, test_recipes_of_data_sets.py
    files = [p for p in CONFIGS.rglob("*.yaml") if p.parent not in elsewhere]
    there = {p.relative_to(CONFIGS).with_suffix("").as_posix() for p in files}
    tiny = {f"label_annealing/{name}-tiny" for name in [*STUDIES, "math_variants", "code_variants"]}
    papers = {
        *(f"residual/{n}" for n in RESIDUAL),
        *(f"sequence/{n}" for n in SEQUENCE),
        *(f"stages/{n}" for n in STAGES),
        *(f"ladder/{n}" for n in LADDER),
        *(f"probe/{n}" for n in PUBLIC),
        *(f"overtraining/{n}" for n in OVERTRAINING),
        *(f"without_old_data/{n}" for n in WITHOUT_OLD_DATA),
    }
    assert there == {*METHODS, *tiny, *papers, "label_annealing/code-one-gpu", "label_annealing/smollm2"}
    package = ROOT / "src" / "holdfast" / "papers" / "recipes" / "residual"
    assert {p.resolve() for p in (CONFIGS / "residual").glob("*.yaml")} == set(package.glob("*.yaml"))


@pytest.mark.parametrize("name", METHODS)
def test_a_recipe_is_sound_with_every_alternative(name: str) -> None:
    values, tried = training(name), arms(name)
    for one in tried:
        config = checked(values, retention=one)
        assert [m.name for m in config.retention] == [next(iter(m)) for m in one]
        assert not any(m.off for m in config.retention)
    assert {"+".join(next(iter(m)) for m in one) for one in tried} == METHODS[name]
    config = checked(values)
    assert set(config.evaluation.suites) - {"related"} == {"keep", "learn"} and config.evaluation.before
    assert config.training.max_length >= 1024 and config.training.num_train_epochs > 0
    assert config.training.save_total_limit and config.resolved["output_dir"].startswith("runs/")
    assert all("trust_remote_code" not in note for note in config.notes)


@pytest.mark.parametrize("name", WITHOUT_OLD_DATA)
def test_a_search_without_old_data_uses_none(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast.retention.protocol import OLD_DATA
    from holdfast.retention.registry import METHODS as KNOWN

    study = read(f"without_old_data/{name}")
    ways = [way if isinstance(way, list) else [way] for way in study["arms"]]
    used = {name for way in ways for method in way for name in method} - {"label"}
    methods, search = WITHOUT_OLD_DATA[name]
    assert used == methods
    assert not {name for name in used & KNOWN.keys() if OLD_DATA in KNOWN[name]().needs}
    assert "replay" not in re.sub("self_replay", "", yaml.safe_dump(study["arms"]))
    config = str(CONFIGS / f"without_old_data/{name}.yaml")
    assert main(["sweep", "--config", config, "--dry_run"]) == 0
    assert search in capsys.readouterr().out


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_of_paper_000(name: str) -> None:
    study, tried = read(f"label_annealing/{name}"), arms(f"label_annealing/{name}")
    assert study["name"] == name and study["output_dir"] == f"runs/label_annealing/{name}"
    assert len(tried) + 1 == STUDIES[name][0], "and direct fine-tuning"
    config = checked(study["train"])
    assert config.retention == [] and config.launch["accelerate_config"] == "fsdp2"
    assert config.training.packing and config.training.save_total_limit == 1
    start = "Meta-Llama-3-8B-Instruct" if name == "niche_knowledge" else "Meta-Llama-3-8B"
    assert config.model.model_name_or_path == f"meta-llama/{start}"


def test_the_recipe_for_one_gpu_is_the_papers_but_for_the_model() -> None:
    """Rows by hub id, in the paper's set-up; the last line of its head says how claims are held against it."""
    name = "label_annealing/code-one-gpu"
    one, whole = read(name), read("label_annealing/code")
    size = ("model_name_or_path", "dataset_name", "data", "gradient_accumulation_steps", "num_processes")
    aside = (*size, "accelerate_config", "save_steps", "evaluation")
    shared = [{k: v for k, v in study["train"].items() if k not in aside} for study in (one, whole)]
    assert shared[0] == shared[1] and one["objectives"] == whole["objectives"]
    assert one["train"]["per_device_train_batch_size"] * one["train"]["gradient_accumulation_steps"] == 128
    assert one["train"]["dataset_name"] == "bigcode/self-oss-instruct-sc2-exec-filter-50k"
    assert f"{len(arms(name)) + 1} trials" in head(name)
    assert f"reproduce label-annealing --recipes code --on {one['output_dir']}" in head(name)


ONE_GPU = {
    "label_annealing/code-one-gpu": "label_annealing/code",
    "sequence/math-code-one-gpu": "sequence/pairs",
    "stages/olmo-alpaca-one-gpu": "stages/llama2-alpaca",
    "residual/llama-1b-one-gpu": "residual/llama3-budgets",
    "overtraining/sft-one-gpu": "overtraining/sft",
}
"""Recipes for a GPU of 80 GB, and the paper's that each is like: one of every paper."""
OF_SIZE = {"per_device_train_batch_size", "gradient_accumulation_steps", "num_processes", "accelerate_config"}
OF_DATA = {"model_name_or_path", "dataset_name", "data", "evaluation", "save_steps", "dtype", "gradient_checkpointing"}


@pytest.mark.parametrize(("name", "paper"), ONE_GPU.items())
def test_a_recipe_for_one_gpu_trains_as_the_papers_does(name: str, paper: str) -> None:
    """The same settings but for model, data and how a batch is spread; it says what it takes and how claims are held
    against it."""
    one, whole = read(name), read(paper)
    for part in ("train", "restore"):
        settings = [
            {key: value for key, value in study.get(part, {}).items() if key not in OF_SIZE | OF_DATA}
            for study in (one, whole)
        ]
        assert settings[0] == settings[1]
        assert not set(one.get(part, {})) & {"num_processes", "accelerate_config"}
    shorter = {"overtraining/sft-one-gpu": ["direct"], "label_annealing/code-one-gpu": one.get("arms")}
    assert one.get("arms") == shorter.get(name, whole.get("arms"))
    text = head(name)
    assert "one GPU of 80 GB" in text and "Not run here" in text
    assert re.search(r"reproduce [\w-]+ (--recipes \w+ )?--on " + re.escape(one["output_dir"]), text)


@pytest.mark.parametrize("name", METHODS)
def test_a_mistake_in_a_recipe_would_show(name: str) -> None:
    values = copy.deepcopy(training(name))
    values["lerning_rate"] = values.pop("learning_rate")
    values["evaluation"]["befor"] = True
    values["evaluation"]["learn"][0] = {"task": "mmlu", "num_fewshots": 3}
    with pytest.raises(ConfigError) as caught:
        checked(values, retention=[{"label_annealing": {"wieght": 1}}])
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize("name", LABEL_ANNEALING)
def test_the_papers_set_up(name: str) -> None:
    """128 sequences of 2048 tokens a step, 5 epochs, cosine with 5 % warm-up, peak 5e-6."""
    config = checked(training(name))
    args = config.training
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps * config.processes == 128
    assert (args.max_length, args.num_train_epochs, args.learning_rate, args.warmup_steps) == (2048, 5, 5e-6, 0.05)
    assert getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type) == "cosine"


@pytest.mark.parametrize(
    ("names", "own"),
    [
        (LABEL_ANNEALING[:3], "retention evaluation"),
        (
            LABEL_ANNEALING[3:],
            "model_name_or_path dataset_name evaluation chat_template_path eos_token assistant_only_loss "
            "completion_only_loss",
        ),
    ],
    ids=["methods", "tasks"],
)
def test_recipes_to_compare_differ_in_what_they_compare_only(names: tuple[str, ...], own: str) -> None:
    shared = [{k: v for k, v in training(name).items() if k not in own.split()} for name in names]
    assert all(one == shared[0] for one in shared)


@pytest.mark.parametrize("name", METHODS)
def test_the_commands_in_the_head_are_sound_and_make_the_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They parse, name the recipe, and write the files that it reads (RedPajama's aside)."""
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    made, subjects = set(), []
    for line in re.sub(r"\\\n\s*", " ", head(name)).splitlines():
        if line.strip("# ").startswith("python examples/paper_rows.py "):
            made.add(line.split("--output ")[1].split()[0])  # test_paper_rows.py
        if not re.match(r"(.* )?holdfast (train|sweep|data) ", line):
            continue
        words = shlex.split(line[line.index("holdfast ") :], comments=True)
        subjects.append(words[1])
        if words[1] != "data":
            assert words[2:4] == ["--config", f"configs/{name}.yaml"]
        if words[1] == "train":
            put_data(" ".join([text_of(name), *words]))
            if "--model_name_or_path" in words:  # the result of an earlier run
                put_model(words[words.index("--model_name_or_path") + 1])
            load_train_config(["--config", str(CONFIGS / f"{name}.yaml"), *words[4:], "--use_cpu"])
        elif words[1] == "data":
            inputs = itertools.takewhile(lambda w: not w.startswith("--"), words[words.index("--input") + 1 :])
            for path in map(Path, inputs):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            command, options = command_of(words)
            made.add(str(command.read(options).output))
    if "arms" not in read(name):
        assert set(subjects) == {"train"}
        return
    assert subjects.count("sweep") == 2
    named = set(re.findall(r"data/[\w/]+\.jsonl", yaml.safe_dump(read(name)))) - {"data/redpajama.jsonl"}
    by_other_tools = {file for file in named if file.endswith("/articles.jsonl")}  # which the head names
    assert named - by_other_tools <= made


@pytest.mark.parametrize("name", STUDIES)
def test_a_recipe_measures_the_papers_suite(name: str) -> None:
    """One truth: the entries are those of the shipped suite of that name, but for files and what needs a judge."""
    from holdfast.evaluation.shipped import suite_files

    (path,) = suite_files(f"label_annealing-{name}")
    suite, study = yaml.safe_load(path.read_text(encoding="utf-8")), read(f"label_annealing/{name}")
    measured = study["train"]["evaluation"]
    for side in ("learn", "keep"):
        entries = [{k: v for k, v in entry.items() if k != "data"} for entry in measured[side]]
        related = measured.get("related", []) if side == "keep" else []
        assert [*related, *(entry for entry in entries if "win_rate" not in entry)] == suite[side]
        wanted = study["objectives"][side]
        assert (wanted if isinstance(wanted, list) else [wanted]) == [
            entry.get("task") or entry["name"] for entry in entries
        ]


@pytest.mark.parametrize("name", STUDIES)
def test_what_the_head_computes(name: str) -> None:
    """Hours at 40 % of 8 H100s: 6 operations a parameter and token, a third more with a teacher; the number of
    trials."""
    text, (trials, tokens) = " ".join(head(f"label_annealing/{name}").split()), STUDIES[name]
    direct = 6 * 8.03e9 * 5 * tokens / (8 * 989e12 * 0.4) / 3600
    hours = direct
    for one in arms(f"label_annealing/{name}"):
        names = [next(iter(m)) for m in one]
        hours += direct * (4 / 3 if "label_annealing" in names else 1) * (1 / 0.9 if "replay" in names else 1)

    def stated(pattern: str) -> float:
        return float(re.search(pattern, text).group(1).replace(",", ""))  # type: ignore[union-attr]

    assert f"{trials} trials" in text
    assert stated(r"trials ([\d.]+) hours \(\d+ GPU hours, [\d,]+ USD") == pytest.approx(hours, rel=0.05)
    assert stated(r"(\d+) GPU hours") == pytest.approx(8 * hours, rel=0.05)
    assert stated(r"([\d,]+) USD at 2\.50") == pytest.approx(20 * hours, rel=0.05)
    minutes = 60 if re.search(r"direct [\d.]+ minutes", text) else 1
    assert stated(r"direct ([\d.]+) (?:hours|minutes)") / minutes == pytest.approx(direct, rel=0.1)


def test_tasks_of_the_recipes_exist() -> None:
    from holdfast.evaluation.tasks.tasks import index

    sides = [training(name)["evaluation"][side] for name in METHODS for side in ("keep", "learn")]
    tasks = {entry["task"] for entries in sides for entry in entries if "task" in entry}
    assert tasks and tasks <= {*index(), "quality"}


# ------------------------------------------------------------------------------------ Balancing Continuous Pre-Training


@pytest.mark.parametrize("name", RESIDUAL)
def test_a_residual_study_is_sound(name: str) -> None:
    text = text_of(f"residual/{name}")
    put_data(text)
    for file in re.findall(r"^corpus: \[(.*)\]", text, re.MULTILINE):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).touch()
    values = yaml.safe_load(text)
    if "train" in values:
        values["train"] |= {"use_cpu": True}
    config = StudyConfig.read(values, source=name)
    assert len(config.models()) == RESIDUAL[name]
    assert config.name == name and config.output_dir == Path("runs/residual") / name
    assert text.startswith("# ") and f"configs/residual/{name}.yaml" in text
    assert "siblings" not in name or not any(m.continued for m in config.models()), "tables 3 and 4 train nothing"


def test_table_2_has_the_papers_budgets_and_window() -> None:
    values = read("residual/llama3-budgets")
    assert values["budgets"] == ["100M", "500M", "1B"] and values["window"] == 4096 and values["epochs"] == 5
    assert str(values["after"]) == "2023-12-01" and str(values["before"]) == "2024-10-01"


# ----------------------------------------------------------------------------------------------------------- Soup to Go


@pytest.mark.parametrize("name", SEQUENCE)
def test_a_sequence_study_is_sound(name: str) -> None:
    from holdfast.studies.sequence.plan import SequenceConfig

    text = text_of(f"sequence/{name}")
    row = {"prompt": "a", "completion": " b", "options": [" b", " c"], "answer": 0}
    for file in set(re.findall(r"[\w./-]+\.jsonl\b", text)):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(json.dumps(row) + "\n")
    values = yaml.safe_load(text)
    values["train"] |= {"use_cpu": True}
    if name == "smollm2":
        put_model(values["train"]["model_name_or_path"])
    config = SequenceConfig.read(values, source=name)
    assert (len(config.models), len(config.chains)) == SEQUENCE[name]
    assert config.name == name and config.output_dir == Path("runs/sequence") / name
    assert text.startswith("# ") and f"configs/sequence/{name}.yaml" in text


# --------------------------------------------------------------------------------- Pattern Shifting or Knowledge Losing


@pytest.mark.parametrize("name", STAGES)
def test_a_stages_study_is_sound(name: str) -> None:
    from holdfast.studies.stages.plan import StagesConfig

    text = text_of(f"stages/{name}")
    row = {"prompt": "a", "completion": " b", "text": "a", "options": [" b", " c"], "answer": 0}
    for file in set(re.findall(r"[\w./-]+\.jsonl?\b", text)):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        lines = json.dumps([{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}])
        Path(file).write_text(json.dumps(row) + "\n" if file.endswith("l") else lines)
    values = yaml.safe_load(text)
    for place in (Path(c) for c in values["corpus"] if "$" not in c and not Path(c).exists()):
        place.mkdir(parents=True)
        (place / "a.jsonl").write_text(json.dumps(row) + "\n")
    for part in ("train", "restore"):
        values[part] |= {"use_cpu": True}
    if "chat_template_path" in values["train"]:
        values["train"]["chat_template_path"] = str(ROOT / values["train"]["chat_template_path"])
    if name == "smollm2":
        put_model(values["base"])
    config = StagesConfig.read(values, source=name)
    epochs = STAGES[name]
    doses = len(values.get("doses", [1]))
    assert len(config.steps) == 2 + doses * (epochs + 2), "base, fine-tuning; of each dose text, control and epochs"
    assert values["restore"].get("packing", False) is (name == "smollm2"), "a passage is a row, as in the paper"
    if name not in ("tiny", "smollm2"):
        assert [entry for _, entry in config.judged] == ["mmlu", "arc"] and values["train"]["save_only_model"]
        along = config.tuning("direct")["evaluation"]["along"]["entries"]
        assert set(along) <= {entry.name for entry in config.plan.entries} and values["curve"] > 0
    assert config.name == name and config.output_dir == Path("runs/stages") / name
    assert text.startswith("# ") and f"configs/stages/{name}.yaml" in text


# ------------------------------------------------------------------------------------------ Overtrained Language Models


@pytest.mark.parametrize("name", LADDER)
def test_a_ladder_is_sound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.papers.ladder.plan import LadderConfig

    text = text_of(f"ladder/{name}")
    values = yaml.safe_load(text)
    values["train"] |= {"use_cpu": True, "bf16": False}
    if name == "paper":
        Path("c4/en").mkdir(parents=True)
        for file in ("c4/en/a.jsonl", "c4/held_out.jsonl"):
            Path(file).write_text('{"text": "a"}\n')
    config = LadderConfig.read(values, source=name)
    assert (len(config.rungs), max(rung.budget for rung in config.rungs.values())) == LADDER[name]
    assert config.name == f"ladder-{name}" and config.output_dir == Path("runs") / f"ladder-{name}"
    assert text.startswith("# ") and f"configs/ladder/{name}.yaml" in text


@pytest.mark.parametrize("name", OVERTRAINING)
def test_an_overtraining_study_is_sound(name: str, model_folder: Path) -> None:
    from holdfast.papers.overtraining.plan import OvertrainingConfig

    text = text_of(f"overtraining/{name}")
    values = yaml.safe_load(text)
    values["train"] |= {"use_cpu": True, "bf16": False}
    values["keep"] = [e for e in values["keep"] if "task" not in e]  # data of a hub
    if isinstance(values["ladder"], list):
        rungs = [{"model": rung, "tokens": 1e6 * n} for n, rung in enumerate(values["ladder"], 1)]
    else:
        rungs = [{"model": f"rung-{n}", "tokens": 1e6 * n} for n in range(1, OVERTRAINING[name][0] + 1)]
        put_ladder(values["ladder"], rungs)
    for rung in rungs:
        shutil.copytree(model_folder, str(rung["model"]))
    put_overtraining_data(text)
    config = OvertrainingConfig.read(values, source=name, check=False)
    if name == "paper":  # every way and rate is checked as `holdfast train` checks it: two rates stand for 27
        values["vary"]["learning_rate"] = [4e-6, values["direction"]["learning_rate"]]
    OvertrainingConfig.read(values, source=name)
    assert (len(config.rungs), len(config.tunings)) == OVERTRAINING[name]
    assert config.name == f"overtraining-{name}" and config.output_dir == Path("runs") / f"overtraining-{name}"
    assert text.startswith("# ") and f"configs/overtraining/{name}.yaml" in text


def put_ladder(file: str, rungs: list[dict[str, Any]]) -> None:
    """What a ladder study writes."""
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(yaml.safe_dump({"ladder": rungs}))


def put_overtraining_data(text: str) -> None:
    """Stand-ins for the files that a recipe of the overtraining study names, its tower and template among them."""
    put_data(text)
    row = '{"prompt": "a", "completion": " b", "options": [" b", " c"], "answer": 0, "question": "a", "text": "a"}\n'
    for name in set(re.findall(r"data/overtraining/[\w./]+\.jsonl\b|c4/held_out\.jsonl|\w+\.heldout\.jsonl", text)):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(row * 8)
    for name in set(re.findall(r"[\w-]+-replies\.jsonl", text)):
        Path(name).write_text('{"prompt": "a", "output": "b"}\n')
    for name in set(re.findall(r"tower: (openai/\S+)", text)):
        put_tower(name)
    Path("configs/overtraining").mkdir(parents=True, exist_ok=True)
    shutil.copy(CONFIGS / "overtraining" / "chat.jinja", "configs/overtraining")


@pytest.mark.parametrize("name", ["paper", "sft", "llava"])
def test_the_studies_in_the_head_of_a_recipe_of_overtraining_are_sound(
    name: str, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the file itself, and of the other ladders that it is for."""
    text = text_of(f"overtraining/{name}")
    put_overtraining_data(text)
    values = yaml.safe_load(text)
    values["train"] |= {"use_cpu": True, "bf16": False}
    values["keep"] = values["keep"][:1]
    if name == "paper":
        values["vary"]["learning_rate"] = [4e-6, values["direction"]["learning_rate"]]
        values["tasks"] = {task: values["tasks"][task] for task in ("trec", "gsm8k")}
    file = f"configs/overtraining/{name}.yaml"
    Path(file).write_text(yaml.safe_dump(values))
    for n in range(1, 4):
        shutil.copytree(model_folder, f"rung-{n}")
    studies = re.findall(r"holdfast (study run .*)", head(f"overtraining/{name}"))
    assert len(studies) == 3
    for study in studies:
        words = shlex.split(study)
        ladder = words[words.index("--ladder") + 1] if "--ladder" in words else values["ladder"]
        public = CONFIGS / Path(ladder).relative_to("configs") if ladder.startswith("configs/") else None
        assert public is None or public.is_file()
        put_ladder(ladder, [{"model": f"rung-{n}", "tokens": 1e6 * n} for n in range(1, 4)])
        assert words[2] == file and main([*words, *(["--dry_run"] if "--dry_run" not in words else [])]) == 0
    assert capsys.readouterr().out.count("Folder: runs/") == 3


@pytest.mark.parametrize("name", ["paper", "sft"])
def test_the_data_in_the_head_of_a_recipe_of_overtraining_is_all_that_it_trains_on(name: str) -> None:
    import runpy

    known = runpy.run_path(str(ROOT / "examples" / "paper_rows.py"))["ROWS"]
    made = set()
    (loop,) = re.findall(r"for name in (.*); do", head(f"overtraining/{name}")) or [""]
    for rows, output in re.findall(r"paper_rows\.py (\S+) .*?--output (\S+)", head(f"overtraining/{name}")):
        for each in loop.split() if rows == "$name" else [rows]:
            assert each in known
            made.add(output.replace("$name", each))
    for words in re.findall(r"holdfast (data prepare .*)", head(f"overtraining/{name}")):
        Path("starcoderdata/python").mkdir(parents=True)
        Path("starcoderdata/python/a.jsonl").touch()
        command, options = command_of(["holdfast", *shlex.split(words, comments=True)])
        made.add(str(command.read(options).output))
    used = {task["train"]["dataset_name"] for task in read(f"overtraining/{name}")["tasks"].values()}
    assert used - made == ({"data/overtraining/gsm8k/train.jsonl"} if name == "paper" else set()), "published as it is"


def test_the_reference_of_the_win_rates_is_trained_as_the_study_trains(model_folder: Path) -> None:
    """Seed 0 at 1e-5, and nothing else tells it from the study's own fine-tunings."""
    from holdfast.papers.overtraining.plan import OvertrainingConfig

    values = read("overtraining/sft")
    put_overtraining_data(text_of("overtraining/sft"))
    put_ladder(values["ladder"], [{"model": "rung-1", "tokens": 1e6}, {"model": "rung-2", "tokens": 2e6}])
    config = OvertrainingConfig.read(values, check=False)
    (tuning,) = [t for t in config.arms("hh")[config.direct] if t.rate == 1e-5]
    expected = config.training("rung-2", tuning.name, 0)
    line = re.sub(r"\\\n\s*", " ", head("overtraining/sft"))
    (command,) = re.findall(r"holdfast (train .*)", line)
    shutil.copytree(model_folder, "rung-2")
    words = [*shlex.split(command)[1:], "--use_cpu", "--model_name_or_path", "rung-2", "--bf16", "false"]
    own = {**expected, "use_cpu": True, "bf16": False, "output_dir": "runs/hh-reference", "evaluation": {}}
    reference, studied = load_train_config(words), train_config(own)
    assert reference.training.to_dict() == studied.training.to_dict()
    assert reference.holdfast.train_on == studied.holdfast.train_on == "last"
    assert reference.script.dataset_name == studied.script.dataset_name == "hh.jsonl"


def test_the_chat_template_of_overtraining_marks_what_is_trained() -> None:
    import jinja2

    text = (CONFIGS / "overtraining" / "chat.jinja").read_text()
    text = text.replace("{% generation %}", "[").replace("{% endgeneration %}", "]")
    picture = [{"type": "image"}, {"type": "text", "text": " What?"}]
    turns = [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello."),
        ("user", picture),
        ("assistant", "A cat."),
    ]
    messages = [{"role": role, "content": content} for role, content in turns]
    made = jinja2.Environment().from_string(text).render(messages=messages, eos_token="</s>")
    assert made == (
        "<|system|>\nBe brief.\n<|user|>\nHi\n<|assistant|>\n[Hello.</s>]\n<|user|>\n<image> What?\n"
        "<|assistant|>\n[A cat.</s>]\n"
    )


@pytest.mark.parametrize(
    ("name", "part"), [("overtraining/world", "train"), ("ladder/tiny", "train"), ("stages/tiny", "restore")]
)
def test_what_is_wrong_with_a_run_is_named_before_its_small_setting_is_made(name: str, part: str) -> None:
    from holdfast.papers.ladder.plan import LadderConfig
    from holdfast.papers.overtraining.plan import OvertrainingConfig
    from holdfast.studies.stages.plan import StagesConfig

    values = yaml.safe_load(text_of(name))
    if isinstance(values.get("ladder"), str):
        Path(values["ladder"]).parent.mkdir(parents=True)
        rungs = [{"model": "rung-1", "tokens": 1e6}, {"model": "rung-2", "tokens": 2e6}]
        for rung in rungs:
            put_model(str(rung["model"]))
        Path(values["ladder"]).write_text(yaml.safe_dump({"ladder": rungs}))
    read = {"overtraining": OvertrainingConfig, "ladder": LadderConfig, "stages": StagesConfig}[name.split("/")[0]].read
    read(values)
    values[part] |= {"optim": "adamww"}
    with pytest.raises(ConfigError, match=r"'adamww'") as caught:
        read(values)
    assert len(caught.value.problems) == 1


def put_tower(folder: str) -> None:
    """A CLIP vision model with as many layers as the large one has, and its image processor."""
    from transformers import CLIPVisionConfig, CLIPVisionModel
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    shape = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "num_hidden_layers": 24}
    CLIPVisionModel(CLIPVisionConfig(**shape, image_size=336, patch_size=14)).save_pretrained(folder)
    CLIPImageProcessorPil().save_pretrained(folder)


def test_llavas_two_stages_have_the_papers_settings() -> None:
    """Table 2: batches of 256, cosine, AdamW without weight decay; 1e-3 after 50 steps, five rates after 40."""
    from holdfast.papers.overtraining.plan import OvertrainingConfig

    values = read("overtraining/llava")
    put_ladder(values["ladder"], [{"model": f"rung-{n}", "tokens": 1e6 * n} for n in range(1, 7)])
    config = OvertrainingConfig.read(values, check=False)
    (way,) = config.ways_to_see
    direct = [t for t in config.tunings.values() if t.kind == "direct"]
    assert [t.rate for t in direct] == [8e-6, 1e-5, 2e-5, 4e-5, 1e-4]
    first, *others = config.rungs
    stages = [config.aligning(first, way, 0), *(config.training(first, t.name, 0) for t in direct)]
    for number, stage in enumerate(stages):
        assert stage["per_device_train_batch_size"] * stage["gradient_accumulation_steps"] == 256
        assert (stage["lr_scheduler_type"], stage["weight_decay"]) == ("cosine", 0.0) and "optim" not in stage
        assert stage["warmup_steps"] == (40 if number else 50)
    assert stages[0]["learning_rate"] == 1e-3 and stages[0]["train_only"] == ["multi_modal_projector"]
    assert config.ways_to_see[way].tower == "openai/clip-vit-large-patch14-336" and len(others) == 5
    for missing in ("MME", "GQA", "AI2D", "POPE", "TextVQA"):
        assert missing in head("overtraining/llava") and missing in head("overtraining/pictures")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_published_ladder_is_one(name: str) -> None:
    from holdfast.evaluation.ladder import parse_ladder

    text = text_of(f"probe/{name}")
    rungs = parse_ladder(CONFIGS / "probe" / f"{name}.yaml")
    assert len(rungs) == 6 and (rungs[0].budget, rungs[-1].budget) == PUBLIC[name]
    assert len({rung.model.partition("@")[0] for rung in rungs}) == 1 and all("@" in rung.model for rung in rungs)
    assert text.startswith("# ") and re.search(rf"--(ladder|config) configs/probe/{name}.yaml --corpus", text)


def test_vicunas_template_marks_what_is_trained() -> None:
    import jinja2

    text = (
        (CONFIGS / "stages" / "vicuna.jinja")
        .read_text()
        .replace("{% generation %}", "[")
        .replace("{% endgeneration %}", "]")
    )
    asked = [("user", "Hi"), ("assistant", "Hello."), ("user", "Bye"), ("assistant", "Bye.")]
    made = (
        jinja2.Environment()
        .from_string(text)
        .render(messages=[{"role": r, "content": c} for r, c in asked], bos_token="<s>", eos_token="</s>")
    )
    assert made.startswith("<s>A chat between a curious user and")
    assert made.endswith("questions. USER: Hi ASSISTANT:[ Hello.</s>] USER: Bye ASSISTANT:[ Bye.</s>]")
