"""An overtraining study whose checkpoints get a vision tower: what it refuses before anything runs, and a whole one of
seconds, figures computed anew."""

from __future__ import annotations

import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from holdfast.errors import ConfigError, HoldfastError
from holdfast.papers.overtraining.plan import OvertrainingConfig
from holdfast.papers.overtraining.record import OvertrainingRecord, read_overtraining
from holdfast.papers.overtraining.study import OvertrainingStudy
from holdfast.papers.worlds.pictures.build import PicturesRecipe, build_pictures
from holdfast.papers.worlds.pictures.tower import TowerRecipe
from holdfast.records.run import RunFolder
from holdfast.studies.engine.session import execute_study
from tiny import build_model, save_ladder

OLD = [f"The quick brown fox {i} jumps over the lazy dog and then sleeps for {i} hours." for i in range(12)]
BUDGETS = {"s": 4, "l": 20}
"""Steps of pre-training by checkpoint."""
DIRECT, LORA = "direct fine-tuning", "direct fine-tuning (LoRA)"
ADAPTED: list[Any] = [{"train": {"use_peft": True, "lora_r": 2}}, {"label": "LoRA"}]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("pictures")
    tower = TowerRecipe(width=32, layers=1, heads=2, steps=10, batch_size=16)
    recipe = PicturesRecipe(captions=16, instructions=24, questions=4, validation=4, tower=tower)
    return build_pictures(recipe, place / "world", cache=place / "cache")


@pytest.fixture
def asked(world: dict[str, Path], tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A study of two checkpoints that learn to see, one way and rate, and by LoRA."""
    monkeypatch.chdir(tmp_path)
    save_ladder(build_model(seed=0, vocab_size=len(tokenizer)), tokenizer, OLD, BUDGETS)
    Path("old.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in OLD))
    about = {"name": "vision", "group": "family"}
    return {
        "name": "mine",
        "ladder": [{"model": name, "tokens": 1000.0 * steps} for name, steps in BUDGETS.items()],
        "probe": False,
        "tasks": {
            "look": {
                "align": {
                    "tower": str(world["tower"]),
                    "layer": -1,
                    "train": {"dataset_name": str(world["captions"]), "warmup_steps": 1, "learning_rate": 1e-2},
                },
                "train": {"dataset_name": str(world["instructions"])},
                "validation": [{"multiple_choice": str(world["vision_valid"]), **about}],
                "learn": [{"multiple_choice": str(world["vision_heldout"]), **about}],
            }
        },
        "keep": [{"perplexity": "old.jsonl", "name": "old"}],
        "early_stopping": False,
        "train": {"per_device_train_batch_size": 8, "num_train_epochs": 1, "use_cpu": True, "max_length": 128},
        "arms": ["direct", ADAPTED],
        "vary": {"learning_rate": [1e-2]},
        "output_dir": "out",
    }


def run_of(asked: dict[str, Any], **changes: Any) -> OvertrainingRecord:
    console = Console(file=io.StringIO(), width=160)
    return execute_study(OvertrainingStudy(OvertrainingConfig.read({**asked, **changes})), console=console, workers=1)


def with_align(asked: dict[str, Any], **changes: Any) -> dict[str, Any]:
    align = {**asked["tasks"]["look"]["align"], **changes}
    return {**asked, "tasks": {"look": {**asked["tasks"]["look"], "align": align}}}


def test_stage_1_comes_before_what_begins_with_it(asked: dict[str, Any]) -> None:
    text = {k: v for k, v in asked["tasks"]["look"].items() if k != "align"} | {"train": {"dataset_name": "old.jsonl"}}
    twice = {"look": asked["tasks"]["look"], "again": asked["tasks"]["look"], "text": text}
    config = OvertrainingConfig.read({**asked, "tasks": twice}, check=False)
    jobs = config.jobs()
    kinds = [job.attributes["kind"] for job in jobs]
    assert kinds == ["texts", *["align"] * 2, *["tune"] * 12], "one stage 1 for tasks that see alike"
    for job in jobs[3:]:
        task = config.tunings[job.attributes["model"]].task
        before = [jobs[n].attributes for n in job.after]
        aligned = [b["checkpoint"] for b in before if b["kind"] == "align"]
        assert aligned == ([job.attributes["checkpoint"]] if task != "text" else [])
        settings = config.training(job.attributes["checkpoint"], job.attributes["model"], 0)
        sees = task != "text"
        assert Path(settings["model_name_or_path"]).parts[:2] == (
            ("out", "aligned") if sees else (str(job.attributes["checkpoint"]),)
        )
        if "use_peft" in settings:
            assert "train_only" not in settings and ("lora_target_modules" in settings) == sees
        else:
            assert settings.get("train_only") == (["^(?!.*vision_tower)"] if sees else None)
    (way,) = config.ways_to_see
    stage = config.aligning("s", way, 1)
    assert stage["train_only"] == ["multi_modal_projector"] and stage["learning_rate"] == 1e-2
    assert stage["per_device_train_batch_size"] == 8 and stage["output_dir"].endswith("seed-1")


@pytest.mark.parametrize(("size", "runs"), [("small", 72), ("medium", 960)])
def test_the_recipe_shares_the_ladder_with_the_one_of_text(size: str, runs: int, tmp_path: Path) -> None:
    from holdfast.papers.overtraining.reproduction import TWINS

    text, pictures = (TWINS._recipe(name, size, tmp_path / name, None).settings for name in TWINS.studies)
    assert text.ladder.resolved == pictures.ladder.resolved
    assert [text.model(label) for label in text.rungs] == [pictures.model(label) for label in pictures.rungs]
    assert text.ladder.output_dir == tmp_path / "budgets-ladder", "as it was called before pictures came"
    kinds = [job.attributes["kind"] for job in pictures.jobs()]
    assert kinds.count("tune") * len(pictures.request.seeds) == runs and kinds.count("align") == len(pictures.rungs)
    assert str(pictures.resolved["toy"]).partition("@")[0] == "pictures"
    assert len(pictures.request.seeds) == {"small": 3, "medium": 8}[size]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tower": "nowhere"}, r"tasks\.look\.align: Expected a vision model at nowhere"),
        ({"tower": "s"}, r"tasks\.look\.align: Expected a CLIP vision model.* of type 'llama'"),
        ({"layer": 7}, r"tasks\.look\.align: Expected a layer of"),
        ({"train": {}}, r"tasks\.look\.align\.train\.dataset_name: is missing"),
        ({"train": {"dataset_name": "a", "train_only": ["x"]}}, r"align\.train\.train_only: is set by the study"),
        ({"towr": "x"}, r"tasks\.look\.align: unknown key 'towr'"),
    ],
)
def test_what_is_wrong_with_a_tower_is_said_before_anything_runs(
    asked: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        OvertrainingConfig.read(with_align(asked, **change))
    assert not Path("out").exists()


def test_an_adapter_leaves_the_tower_alone(asked: dict[str, Any]) -> None:
    wide: list[Any] = [{"train": {"use_peft": True, "lora_target_modules": ["all-linear"]}}, {"label": "LoRA"}]
    with pytest.raises(ConfigError, match="all-linear would also train the vision tower"):
        OvertrainingConfig.read({**asked, "arms": ["direct", wide], "vary": {"learning_rate": [1e-2]}})
    part: list[Any] = [{"train": {"train_only": ["multi_modal_projector"]}}, {"label": "projector alone"}]
    config = OvertrainingConfig.read({**asked, "arms": ["direct", part], "vary": {"learning_rate": [1e-2]}})
    patterns = [config.training("s", name, 0)["train_only"] for name in config.tunings]
    assert patterns == [["^(?!.*vision_tower)"], ["multi_modal_projector"]], "what the file says holds"


def test_pictures_that_are_asked_about_are_not_trained_on(asked: dict[str, Any], world: dict[str, Path]) -> None:
    from datasets import Dataset, concatenate_datasets, load_dataset

    held, train = (
        load_dataset("parquet", data_files=str(world[name]), split="train")
        for name in ("vision_heldout", "instructions")
    )
    seen: Dataset = held.select(range(3)).map(lambda row: {"completion": " x"}, remove_columns=["options", "answer"])
    seen = seen.remove_columns("family").cast(train.features)
    concatenate_datasets([train, seen]).to_parquet("leaky.parquet")
    said = (
        r"(?s)tasks\.look: 3 of 20 questions of learn/vision .* are about pictures that also occur in the training data"
    )
    task = {**asked["tasks"]["look"], "train": {"dataset_name": "leaky.parquet"}}
    with pytest.raises(HoldfastError, match=said):
        run_of({**asked, "tasks": {"look": task}})
    assert not Path("out/runs").exists() and not Path("out/aligned").exists()
    shutil.rmtree("out")
    leaking = {**asked["tasks"]["look"]["align"]["train"], "dataset_name": "leaky.parquet"}
    with pytest.raises(HoldfastError, match=said):
        run_of(with_align(asked, train=leaking))


def test_a_whole_study_of_models_that_see(asked: dict[str, Any], world: dict[str, Path]) -> None:
    from safetensors.torch import load_file

    from holdfast.models import load

    record = run_of(asked, keep_weights="all")
    assert record.status == "finished" and read_overtraining("out") == record
    assert [(m.arm, m.state) for m in record.models] == [(a, "complete") for a in (DIRECT, LORA) for _ in BUDGETS]
    assert [(a.label, a.kind) for a in record.arms] == [(DIRECT, "direct"), (LORA, "LoRA")]
    config = OvertrainingConfig.read(asked)
    names = {t.arm: name for name, t in config.tunings.items()}
    (way,) = config.ways_to_see
    tower = load_file(world["tower"] / "model.safetensors")
    for m in record.models:
        run = RunFolder(config.run_folder(m.checkpoint, names[m.arm], 0))
        start, tuned = (run.evaluated(which) for which in ("start", "result"))
        # stage 1 leaves language as it is, and what is lost is counted from there
        alone = load(m.checkpoint).identity["parameters"]
        assert {c.parameters for c in record.checkpoints} == {alone}, "without tower and projector"
        assert load(str(config.aligned(m.checkpoint, way, 0))).identity["parameters"] > alone
        one, other = (e.find("keep", "old") for e in (start, tuned))
        assert one is not None and other is not None
        lost = other.metrics["nats_per_token"].value - one.metrics["nats_per_token"].value
        score = m.scores["keep/old"].value
        assert m.costs["keep/old"].value == pytest.approx(lost, abs=1e-9)
        assert m.scores_alone["keep/old"].by_seed == {0: pytest.approx(score)}
        assert m.distance is not None and m.distance > 0
        if m.arm == LORA:
            moved = load_file(run.path / "adapter_model.safetensors")
            assert moved and all("vision_tower" not in name for name in moved)
            assert any("multi_modal_projector" in name for name in moved)
            continue
        after = load_file(run.path / "model.safetensors")
        before = load_file(config.aligned(m.checkpoint, way, 0) / "model.safetensors")
        same = {name for name in before if torch.equal(before[name], after[name])}
        assert same == {name for name in before if "vision_tower" in name}, "everything but the tower is trained"
        eyes = {name.partition("vision_tower.")[2]: w for name, w in before.items() if name in same}
        assert all(any(torch.equal(w, mine) for mine in eyes.values() if mine.shape == w.shape) for w in tower.values())
    # language before tuning is the checkpoint's own; models of 4 and 20 steps guess, so that any token has a share
    assert any("the image token gets" in note for note in record.notes)
    from holdfast.evaluation.session import ModelRequest, evaluate_models
    from holdfast.support.progress import ProgressDisplay

    requests = [ModelRequest(name=name, label=name) for name in BUDGETS]
    display = ProgressDisplay(console=Console(file=io.StringIO()))
    evaluate_models(requests, config.plan(None), Path("alone"), display=display)
    for m in record.models:
        own = json.loads(Path("alone", m.checkpoint, "keep.old.json").read_text())["metrics"]["nats_per_token"]
        before = m.scores["keep/old"].value - m.costs["keep/old"].value
        assert before == pytest.approx(own["value"], abs=5e-3)
    assert record.leading("look", "learn").chance == pytest.approx(0.4)  # type: ignore[union-attr]
    # how far two models score on the same pictures: the correlation of their answers
    (alike,) = record.score_correlations
    assert alike.entry == ("learn", "vision", "acc") and alike.trials == list(range(len(record.models)))
    folders = [RunFolder(config.run_folder(m.checkpoint, names[m.arm], 0)).evaluated("result") for m in record.models]
    right = np.array([[row["acc"] for row in folder.samples("learn", "vision")] for folder in folders])
    for place, row in enumerate(alike.rows):
        for other, value in enumerate(row):
            a, b = right[place] - right[place].mean(), right[other] - right[other].mean()
            size = math.sqrt((a @ a) * (b @ b))
            assert value == pytest.approx(a @ b / size if size else 0.0, abs=1e-6)
    page = Path("out/report.html").read_text()
    assert "Dotted: guessing, 0.4." in page
    assert not list(Path("out/aligned").rglob("*-start")), "the model with an untrained projector is gone"
