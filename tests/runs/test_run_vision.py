"""`holdfast train` on vision-language models, from the command line to a folder that loads with its processor."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoProcessor
from transformers.utils import is_torchvision_available

from checkpoint_folders import read_folder
from data_files import jsonl, text_rows
from holdfast.cli.main import main
from holdfast.records.run import RunFolder, RunRecord
from small_runs import train_words
from tiny import SENTENCES
from vision_models import ARCHITECTURES, COLOURS, WITH_VIDEOS, image, write_vision_model


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, once: Callable[..., Path]) -> Path:
    """A working directory with a model, rows with images (every fourth without), and text to measure."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(once("llava", write_vision_model), "llava")
    (tmp_path / "pictures").mkdir()
    for colour in COLOURS:
        image(colour).save(tmp_path / "pictures" / f"{colour}.png")
    rows = []
    for number in range(16):
        colour = list(COLOURS)[number % 4]
        slot = [] if number % 4 == 3 else [{"type": "image"}]
        asked = [*slot, {"type": "text", "text": f"{number}. Which is it?"}]
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": f"It is {colour}."}]
        rows.append({"messages": messages, "images": [f"pictures/{colour}.png"] if slot else []})
    jsonl("train.jsonl", rows)
    text_rows("prose.jsonl", [f"{s} So it is said." for s in SENTENCES])
    jsonl(
        "chat.jsonl",
        [{"messages": [{"role": "user", "content": s}, {"role": "assistant", "content": "Yes."}]} for s in SENTENCES],
    )
    return tmp_path


def run(*more: str, model: str = "llava", out: str = "out") -> RunRecord:
    assert main(train_words("--use_cpu", *more, model=model, out=out)) == 0
    return RunFolder(out).read()


def interrupt(folder: str) -> None:
    """Leaves a run as if it had died after its second step."""
    shutil.rmtree(f"{folder}/checkpoint-4")
    for name in ("model.safetensors", "adapter_model.safetensors", "report.html", "README.md"):
        Path(folder, name).unlink(missing_ok=True)
    record = json.loads(Path(folder, "run.json").read_text())
    record["status"], record["training"] = "interrupted", {}
    Path(folder, "run.json").write_text(json.dumps(record))


def refused(capfd, *more: str) -> str:
    assert main(train_words("--use_cpu", *more, model="llava")) != 0
    return " ".join(capfd.readouterr().err.split())


NEEDS_TORCHVISION = pytest.mark.skipif(not is_torchvision_available(), reason="these read videos too, by torchvision")


@pytest.mark.parametrize(
    "architecture", [*ARCHITECTURES, *(pytest.param(name, marks=NEEDS_TORCHVISION) for name in WITH_VIDEOS)]
)
def test_a_run_with_text_measured_before_and_after(architecture, place):
    from transformers import AutoModelForImageTextToText

    write_vision_model(place / "model", architecture)
    record = run(
        "--retention", "label_annealing:weight=0.5", "--keep", "prose.jsonl", "--learn", "chat.jsonl", model="model"
    )
    assert record.status == "finished" and record.data["examples"] == 16
    assert record.training["teacher"]["name"] == "online"
    for folder in ("out", "out/checkpoint-2"):
        processor = AutoProcessor.from_pretrained(folder)
        assert processor.chat_template == AutoProcessor.from_pretrained("model").chat_template
        model = AutoModelForImageTextToText.from_pretrained(folder)
    asked = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which?"}]}]
    batch = processor(images=[image("red")], text=processor.apply_chat_template(asked), return_tensors="pt")
    assert torch.isfinite(model(**batch).logits).all()
    before, after = (RunFolder("out").evaluated(which).all() for which in ("start", "result"))
    assert len(before) == len(after) == 2
    assert record.distance[-1].layer == "total" and record.distance[-1].l2 > 0
    assert not any("covers" in note for note in record.notes)
    assert "AutoProcessor" in Path("out/README.md").read_text()


def test_continued_after_an_interruption_gives_the_same_weights_with_the_same_images_only(place, capfd):
    run()
    shutil.copytree("out", "whole")
    interrupt("out")
    run()
    assert read_folder(place / "out") == read_folder(place / "whole")
    interrupt("out")
    image("blue").save("pictures/red.png")
    assert "pictures/red.png: other contents" in refused(capfd)


@pytest.mark.slow
def test_lora(place):
    """An adapter on a model that reads images: interrupted, continued, loaded, and put into the weights."""
    from peft import PeftModel

    from holdfast.models import load

    adapted = ["--use_peft", "--lora_target_modules", "all-linear", "--retention", "label_annealing:weight=0.5"]
    record = run(*adapted)
    assert record.training["teacher"]["name"] == "adapter_off"
    shutil.copytree("out", "whole")
    interrupt("out")
    run(*adapted)
    assert read_folder(place / "out") == read_folder(place / "whole")
    assert Path("out/processor_config.json").is_file()
    loaded = load("out").model
    start = load("llava").model
    applied = PeftModel.from_pretrained(load("llava").model, "out")
    processor = AutoProcessor.from_pretrained("out")
    batch = processor(images=[image("red")], text="<image>Which?", return_tensors="pt")
    with torch.no_grad():
        by_peft, by_us, without = (model(**batch).logits for model in (applied, loaded, start))
    torch.testing.assert_close(by_us, by_peft, rtol=1e-4, atol=1e-5)
    assert (by_us - without).abs().max() > 1e-3


MARKED = (
    "{% for message in messages %}{{ message['role'] + ': ' }}{% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'][0]['text'] + eos_token }}{% endgeneration %}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{{ '\\n' }}{% endif %}"
    "{% endfor %}"
)


def test_the_assistants_words_alone(capfd):
    """With images, by the template's marks; one without them is refused before anything is measured."""
    said = refused(capfd, "--assistant_only_loss", "--keep", "prose.jsonl")
    assert "assistant_only_loss: the chat template does not mark the assistant's turns" in said
    assert "--debug" not in said and not Path("out/evaluations").exists()
    Path("marked.jinja").write_text(MARKED)
    marked = ["--assistant_only_loss", "--chat_template_path", "marked.jinja"]
    only, every = (
        [row["loss"] for row in (run(*more, out=out), RunFolder(out))[1].metrics() if "loss" in row]
        for more, out in ((marked, "only"), (marked[1:], "every"))
    )
    assert len(only) == len(every) == 4 and only != every


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--packing",), "packing: expected false with a vision-language model"),
        (("--retention", "label_annealing:teacher=cached"), "expected 'online' or 'adapter_off' for rows with images"),
        (("--max_length", "4"), "would cut an image in two"),
    ],
)
def test_settings_that_images_do_not_go_with(more, said, capfd):
    assert said in refused(capfd, *more)


ALIGN = """
model_name_or_path: llava
dataset_name: train.jsonl
output_dir: aligned
max_steps: 2
per_device_train_batch_size: 4
max_length: 64
use_cpu: true
train_only: [multi_modal_projector]
learning_rate: 1e-3
"""


def moved(before: str, after: str) -> set[str]:
    """Parts of the model, by the first part of a tensor's name, that differ."""
    a, b = (load_file(f"{folder}/model.safetensors") for folder in (before, after))
    assert a.keys() == b.keys()
    return {name.split(".")[0] for name in a if not torch.equal(a[name], b[name])}


def test_the_projector_alone_and_then_everything():
    Path("run.yaml").write_text(ALIGN)
    assert main(["train", "--config", "run.yaml"]) == 0
    tune = ALIGN.replace("llava", "aligned", 1).replace("output_dir: aligned", "output_dir: out")
    Path("run.yaml").write_text(tune.replace("train_only: [multi_modal_projector]\n", ""))
    assert main(["train", "--config", "run.yaml"]) == 0
    assert moved("llava", "aligned") == {"multi_modal_projector"}
    assert moved("aligned", "out") == {"multi_modal_projector", "language_model", "vision_tower"}
    first, last = (RunFolder(folder).read() for folder in ("aligned", "out"))
    assert first.model["trainable"] < first.model["parameters"] == last.model["trainable"]
    assert last.parents[0]["name"] == "aligned"


def test_a_check_rehearses_rows_whose_pictures_lie_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = train_words("--use_cpu", model="llava", out="out")[1:]
    assert main(["check", *words]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert said.startswith("The request is sound") and "per_device_train_batch_size 1 instead of" in said
