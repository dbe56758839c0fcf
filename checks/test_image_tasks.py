"""Tasks of the harness about images: groups of them, ChartQA and MMMU on local files, and pictures that are damaged."""

from __future__ import annotations

import dataclasses
import io
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from evaluation import test_images
from evaluation.test_images import OPTIONS, choices, on, question, reference, write
from holdfast.cli.main import main
from holdfast.errors import ConfigError, DataError
from holdfast.evaluation.entries import EvaluationPlan
from holdfast.evaluation.kinds.answer_distribution import AnswerDistributionEntry
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.evaluation.measures import check, measure
from holdfast.evaluation.resume import Partial
from holdfast.evaluation.text.shared_prefix import Scorer
from holdfast.models import Loaded, load
from vision_models import COLOURS, build_processor, build_vision_model, image

models, desk, llava = test_images.models, test_images.desk, test_images.llava

SHOWN = """\
task: shown
dataset_path: parquet
dataset_kwargs: {data_files: {test: shown.parquet}}
test_split: test
output_type: generate_until
doc_to_image: [image]
doc_to_text: "<image>{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 6, temperature: 0.0, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


def shown(**changes: str) -> TaskEntry:
    from datasets import Dataset, Features, Value
    from datasets import Image as Kind

    text = SHOWN
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    Path("shown.yaml").write_text(text)
    rows = [{"question": f"{n}. Which?", "answer": "red", "image": image(list(COLOURS)[n % 4])} for n in range(6)]
    features = Features({"question": Value("string"), "answer": Value("string"), "image": Kind()})
    Dataset.from_list(rows, features=features).to_parquet("shown.parquet")
    return TaskEntry(suite="keep", name="shown", task="shown.yaml")


def member(text: str) -> str:
    """A task's YAML as an item of a group's list."""
    return "  - " + textwrap.indent(text, "    ").lstrip()


@pytest.mark.parametrize("chat", [False, True])
def test_a_group_of_groups_with_several_images_and_none(chat: bool, desk: Path) -> None:
    """As MMMU is built: its subtasks are asked as each would be by itself, those of text alone as text."""
    from datasets import Dataset, Features, List, Value
    from datasets import Image as Kind

    loaded, entry = load("whole"), shown()
    both = [image("red"), image("blue")]
    rows = [{"question": f"{n}", "answer": "red", "image": both if n % 2 else both[:1]} for n in range(4)]
    places = "<image>{{question}}{% if image|length > 1 %} or <image>{% endif %}?"
    pairs = SHOWN.replace("task: shown", "task: pairs").replace("shown.parquet", "pairs.parquet")
    pairs = pairs.replace('"<image>{{question}}"', json.dumps(places))
    pairs = pairs.replace("doc_to_image: [image]", "doc_to_image: !function looks.pictures")
    Path("looks.py").write_text("def pictures(doc):\n    return doc['image']\n")
    Path("pairs.yaml").write_text(pairs)
    features = Features({"question": Value("string"), "answer": Value("string"), "image": List(Kind())})
    Dataset.from_list(rows, features=features).to_parquet("pairs.parquet")
    told = SHOWN.replace("task: shown", "task: told").replace("doc_to_image: [image]\n", "").replace("<image>", "")
    Path("told.yaml").write_text(told)
    means = "aggregate_metric_list: [{metric: exact_match, aggregation: mean, weight_by_size: true}]\n"
    seen = f"group: seen\ntask:\n{member(Path('shown.yaml').read_text())}{member(pairs)}{means}"
    Path("exam.yaml").write_text(f"group: exam\ntask:\n{member(seen)}{member(told)}{means}")
    how = {"apply_chat_template": chat, "suite": "keep"}
    plan = EvaluationPlan(entries=(entry,), batch_size=3)
    whole = measure(TaskEntry(name="exam", task="exam.yaml", **how), on(loaded, plan=plan))
    of = [{**row, "task": row["task"].split("::")[-1]} for row in whole.rows]
    assert [row["task"] for row in of] == ["shown"] * 6 + ["pairs"] * 4 + ["told"] * 6
    for name in ("shown", "pairs", "told"):
        alone = measure(TaskEntry(name=name, task=f"{name}.yaml", **how), on(loaded, plan=plan)).rows
        assert [{**row, "task": name} for row in alone] == [row for row in of if row["task"] == name]
    outputs = {name: [row["output"] for row in of if row["task"] == name] for name in ("pairs", "told")}
    assert len(set(outputs["pairs"])) > 1 and outputs["told"] != [r["output"] for r in whole.rows[:6]]


def test_pictures_of_a_harness_task_are_read_before_anything_is_measured(llava: Path) -> None:
    from datasets import Dataset, Features, Value
    from datasets import Image as Kind

    whole = io.BytesIO()
    Image.effect_noise((64, 64), 60).save(whole, "JPEG")
    features = Features({"question": Value("string"), "answer": Value("string"), "image": Kind()})
    for name, size in (("cut", -400), ("sound", None)):
        contents = [whole.getvalue(), whole.getvalue()[:size]]
        rows = [{"question": "Which?", "answer": "red", "image": {"bytes": c, "path": "a.jpg"}} for c in contents]
        Dataset.from_list(rows, features=features).to_parquet(f"{name}.parquet")
    entry, loaded = shown(), load("whole")
    plain = Path("shown.yaml").read_text()
    Path("shown.yaml").write_text(plain.replace("shown.parquet", "cut.parquet"))
    with pytest.raises(DataError, match=r"A picture of the task 'shown' .* cannot be read: image file is truncated"):
        check(entry, loaded.tokenizer, loaded.processor)
    # examples are other questions, so that the harness reads those that are asked only when they are
    whole_ones = "dataset_kwargs: {data_files: {test: cut.parquet, train: sound.parquet}}\nfewshot_split: train"
    changed = plain.replace("dataset_kwargs: {data_files: {test: shown.parquet}}", whole_ones)
    Path("shown.yaml").write_text(changed)
    assert changed != plain
    with pytest.raises(DataError, match=r"The task 'shown', question 1 \(from 0\): a.jpg is cut short or damaged"):
        check(entry, loaded.tokenizer, loaded.processor)
    check(dataclasses.replace(entry, limit=1), loaded.tokenizer, loaded.processor)


@pytest.mark.slow
def test_chartqa_by_its_name_on_a_local_file(llava: Path) -> None:
    from datasets import Dataset, Features, List, Value
    from datasets import Image as Kind

    rows = [{"query": "Which?", "label": ["red"], "image": image(colour)} for colour in COLOURS]
    features = Features({"query": Value("string"), "label": List(Value("string")), "image": Kind()})
    Dataset.from_list(rows, features=features).to_parquet("charts.parquet")
    settings = json.loads(Path("whole/config.json").read_text())
    settings["text_config"]["max_position_embeddings"] = 2048
    Path("whole/config.json").write_text(json.dumps(settings))
    loaded, entry = load("whole"), TaskEntry(suite="keep", name="chartqa", task="chartqa", data="charts.parquet")
    found = measure(entry, on(loaded, plan=EvaluationPlan(entries=(entry,))))
    assert found.primary == "exact_match" and {"relaxed_accuracy", "anywhere_accuracy"} <= found.figures.keys()
    assert len({row["doc"] for row in found.rows}) == 4


@pytest.mark.slow
def test_mmmu_by_its_name_on_a_local_file(llava: Path) -> None:
    """A group of subtasks, with one image or several in a question."""
    from datasets import Dataset, Features, Value
    from datasets import Image as Kind

    options = str(["red", "blue", "green", "white"])
    common = {"options": options, "answer": "A", "question_type": "multiple-choice"}
    rows = [
        {"question": "Is <image 1> or <image 2>?", "image_1": image("red"), "image_2": image("blue"), **common},
        {"question": "Which is <image 1>?", "image_1": image("green"), "image_2": None, **common},
    ]
    rows = [{**row, "subject": subject} for subject in ("Art", "Art_Theory", "Design", "Music") for row in rows]
    kinds = {name: Value("string") for name in ("question", "subject", *common)}
    features = Features({**kinds, "image_1": Kind(), "image_2": Kind()})
    Dataset.from_list(rows, features=features).to_parquet("exam.parquet")
    settings = json.loads(Path("whole/config.json").read_text())
    settings["text_config"]["max_position_embeddings"] = 1024
    Path("whole/config.json").write_text(json.dumps(settings))
    loaded = load("whole")
    entry = TaskEntry(suite="keep", name="mmmu", task="mmmu_val_art_and_design", data="exam.parquet")
    found = measure(entry, on(loaded, plan=EvaluationPlan(entries=(entry,))))
    assert found.primary == "acc" and len({row["task"] for row in found.rows}) == 4 and len(found.rows) == 8


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_by_the_command(llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shown()
    Path("suite.yaml").write_text("keep:\n  - {multiple_choice: questions.jsonl}\n  - {task: shown.yaml}\n")
    words = ["evaluate", "whole", "--suite", "suite.yaml", "--output_dir"]
    assert main([*words, "one"]) == 0
    assert main([*words, "two", "--num_processes", "2"]) == 0
    for name in ("questions", "shown"):
        one, two = (Path(f"{out}/whole/keep.{name}.samples.jsonl").read_text() for out in ("one", "two"))
        assert one == two and len(one.splitlines()) == 6


def test_a_harness_task_with_images(desk: Path) -> None:
    loaded, entry = load("whole"), shown()
    plan = EvaluationPlan(entries=(entry,), batch_size=3)
    check(entry, loaded.tokenizer, loaded.processor)
    found = measure(entry, on(loaded, plan=plan))
    assert found.primary == "exact_match" and len(found.rows) == 6
    processor = loaded.processor()  # type: ignore[misc]
    for number in (0, 3):
        batch = dict(
            processor(text=[f"<image>{number}. Which?"], images=[[image(list(COLOURS)[number])]], return_tensors="pt")
        )
        ids = loaded.model.generate(**batch, max_new_tokens=6, do_sample=False)[0, batch["input_ids"].shape[1] :]
        assert found.rows[number]["output"] == processor.tokenizer.decode(ids, skip_special_tokens=True).split("\n")[0]
    again = measure(entry, on(load("whole"), plan=plan)).rows
    assert again == found.rows  # the hashes of questions, too
    assert len({row["doc"] for row in again}) == 6
    in_chat = dataclasses.replace(entry, apply_chat_template=True)
    assert len(measure(in_chat, on(loaded, plan=plan)).rows) == 6


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"kind": ("generate_until", "multiple_choice")}, TaskEntry, "asks about images by generate_until only"),
        ({}, AnswerDistributionEntry, "shows images, and answer_distribution entries ask by text"),
        ({"sound": ("doc_to_image: [image]", "doc_to_audio: [image]")}, TaskEntry, "has sounds in its questions"),
    ],
)
def test_harness_tasks_that_cannot_be_asked(changes: Any, kind: Any, said: str, llava: Path) -> None:
    loaded, entry = load("whole"), shown(**changes)
    if "kind" in changes:
        Path("shown.yaml").write_text(Path("shown.yaml").read_text() + "doc_to_choice: [red, blue]\n")
    with pytest.raises(ConfigError, match=said):
        check(kind(suite="keep", name="shown", task=entry.task), loaded.tokenizer, loaded.processor)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("<image>{{", "{{"), r"question 0 \(from 0\): expected a place \(<image>\) for each of its 1 images, got 0"),
        (("max_gen_toks: 6", "max_gen_toks: 120"), r"tokens with its images, and 8 of the model's context of 128"),
        (("[image]", "[question]"), r"question 0 \(from 0\): image 1: expected an image of Pillow, or its bytes"),
    ],
)
def test_harness_questions_that_do_not_fit(change: Any, said: str, llava: Path) -> None:
    loaded, entry = load("whole"), shown(change=change)
    with pytest.raises(DataError, match=said):
        measure(entry, on(loaded, plan=EvaluationPlan(entries=(entry,))))


def test_positions_in_three_dimensions(llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts behind an image are rows of their own there: branches would have positions in one."""
    model, processor = build_vision_model("qwen2_vl").eval(), build_processor("qwen2_vl")
    with torch.no_grad():
        for name, weight in model.named_parameters():  # so that positions matter
            weight.mul_(8 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1)
    place = "<|vision_start|><|image_pad|><|vision_end|>"
    write("squares.jsonl", *(question(n, prompt=f"<image>{n}. Which colour is it?") for n in range(4)))
    loaded = Loaded(model=model, tokenizer=processor.tokenizer, identity={}, processor=lambda: processor)
    passes, states = [], Scorer.states
    monkeypatch.setattr(Scorer, "states", lambda scorer, row: [passes.append(row), states(scorer, row)][1])
    rows = measure(choices("squares.jsonl"), on(loaded)).rows
    assert len(passes) == 4 * 4
    for number, row in enumerate(rows):
        asked = question(number)
        for value, option in zip(row["loglikelihoods"], OPTIONS, strict=True):
            nats, _ = reference(loaded, f"{place}{number}. Which colour is it?", asked["image"], option)
            assert value == pytest.approx(nats, abs=2e-5)


def test_an_interrupted_measurement_goes_on(llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.evaluation import images

    write("questions.jsonl", *(question(number) for number in range(30)))
    loaded = load("whole")
    whole = measure(choices(), on(loaded)).rows
    asked: list[str] = []
    encode = images.encode

    def interrupted(prompt: Any, processor: Any) -> Any:
        asked.append(prompt.place)
        if len(asked) == 15:
            raise KeyboardInterrupt
        return encode(prompt, processor)

    monkeypatch.setattr(images, "encode", interrupted)
    partial = Partial(llava / ".key.partial.jsonl")
    with pytest.raises(KeyboardInterrupt):
        measure(choices(), on(loaded, partial=partial))
    partial.flush()
    again = measure(choices(), on(loaded, partial=Partial(llava / ".key.partial.jsonl"))).rows
    assert again == whole
    assert len(asked) == 15 + 16  # the questions that were missing, the broken one with them
