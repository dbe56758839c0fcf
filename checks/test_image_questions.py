"""Questions about images: two processes, positions in three dimensions, interruptions, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from evaluation import test_images
from evaluation.test_images import OPTIONS, choices, on, question, reference, write
from holdfast.cli.main import main
from holdfast.errors import ConfigError
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


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_by_the_command(llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("suite.yaml").write_text("keep:\n  - {multiple_choice: questions.jsonl}\n")
    words = ["evaluate", "whole", "--suite", "suite.yaml", "--output_dir"]
    assert main([*words, "one"]) == 0
    assert main([*words, "two", "--num_processes", "2"]) == 0
    one, two = (Path(f"{out}/whole/keep.questions.samples.jsonl").read_text() for out in ("one", "two"))
    assert one == two and len(one.splitlines()) == 6


def test_a_harness_task_with_images_is_refused(llava: Path) -> None:
    loaded, entry = load("whole"), shown()
    with pytest.raises(ConfigError, match="has images or sounds in its rows, but holdfast runs tasks as text only"):
        check(entry, loaded.tokenizer, loaded.processor)


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
