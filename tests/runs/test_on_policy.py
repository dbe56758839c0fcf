"""`holdfast train` with `on_policy`: a model held to another one on its own text, from the command line to a folder
that loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from checkpoint_folders import read_folder
from data_files import jsonl, text_rows
from holdfast.cli.main import main
from holdfast.records.run import RunFolder
from small_runs import stop_at
from tiny import SENTENCES, build_model, build_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model, the model of before, prompts and text to measure."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("new", 0), ("old", 5)):
        build_model(seed=seed).save_pretrained(name)
        tokenizer = build_tokenizer()
        tokenizer.chat_template = TEMPLATE
        tokenizer.save_pretrained(name)
    jsonl("prompts.jsonl", [{"prompt": f"{n}. {s[:20]}"} for n in range(2) for s in SENTENCES])
    turns = [[{"role": "user", "content": s}, {"role": "assistant", "content": "Yes."}] for s in SENTENCES]
    jsonl("chat.jsonl", [{"messages": turn} for turn in turns])
    text_rows("prose.jsonl", [f"{s} So it is said." for s in SENTENCES])
    Path("run.yaml").write_text(
        "model_name_or_path: new\n"
        "dataset_name: prompts.jsonl\n"
        "on_policy: {max_completion_length: 8}\n"
        "retention: [{label_annealing: {direction: reverse, teacher: online, reference: old}}]\n"
        "evaluation: {keep: [prose.jsonl]}\n"
        "max_steps: 6\nsave_steps: 2\nlogging_steps: 1\nper_device_train_batch_size: 4\nlearning_rate: 1.0e-2\n"
        "use_cpu: true\n"
    )
    return tmp_path


def run(*more: str) -> int:
    return main(["train", "--config", "run.yaml", *more])


def refused(capfd: pytest.CaptureFixture[str], *more: str) -> str:
    assert run(*more) != 0
    return " ".join(capfd.readouterr().err.split())


@pytest.fixture
def whole(place: Path, once: Callable[..., Path]) -> Path:
    """A run without an interruption, trained once for all tests."""
    return once("on-policy", lambda folder: run("--output_dir", str(folder)))


def test_a_run_comes_nearer_to_its_teacher_and_is_recorded(whole):
    folder = RunFolder(whole)
    record = folder.read()
    assert record.status == "finished" and record.data["format"] == "prompts"
    sampling = {"max_completion_length": 8, "temperature": 1.0, "top_p": 1.0}
    assert record.config["on_policy"] == {**sampling, "self_distillation": None}
    logged = [row for row in folder.metrics() if "kl" in row]
    assert len(logged) == 6 and all(row["kl"] > 0 and row["loss"] > 0 for row in logged)
    assert record.training["teacher"]["model"] == "old"
    assert folder.evaluated("start").all() and folder.evaluated("result").all()
    before, after = (load_file(f"{name}/model.safetensors") for name in ("new", whole))
    assert max(float((before[k] - after[k]).abs().max()) for k in after) > 1e-3


def test_an_interrupted_run_goes_on_to_the_same_weights(place, whole, monkeypatch):
    with monkeypatch.context() as patched:
        stop_at(3, patched)
        assert run("--output_dir", "cut") == 130
    assert run("--output_dir", "cut") == 0
    assert RunFolder("cut").read().training["sessions"] == 2
    assert read_folder(place / "cut") == read_folder(whole)


def test_conversations_are_prompts_up_to_the_answer(capsys):
    assert run("--dataset_name", "chat.jsonl", "--dry_run", "--quick") == 0
    said = capsys.readouterr().out
    assert f"{len(SENTENCES)} prompts of up to" in said and "answers of up to 8" in said
    assert run("--dataset_name", "chat.jsonl", "--output_dir", "out", "--max_steps", "1") == 0


ITSELF = ["--on_policy", "{max_completion_length: 8, self_distillation: reverse}", "--retention", "none"]


def test_a_model_that_reads_the_answers_is_its_own_teacher(capsys):
    chat = [*ITSELF, "--dataset_name", "chat.jsonl"]
    assert run(*chat, "--dry_run", "--quick") == 0
    assert f"{len(SENTENCES)} prompts of up to" in capsys.readouterr().out
    assert run(*chat, "--output_dir", "out") == 0
    folder = RunFolder("out")
    assert folder.read().status == "finished"
    losses = [row["loss"] for row in folder.metrics() if "loss" in row]
    assert len(losses) == 6 and all(loss > 0 for loss in losses)
    before, after = (load_file(f"{name}/model.safetensors") for name in ("new", "out"))
    assert max(float((before[k] - after[k]).abs().max()) for k in after) > 1e-3


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (ITSELF, "12 of 12 rows lack one of them, the first is row 1"),
        (ITSELF[:2], "label_annealing has its own teacher"),
        (["--retention", "none"], "on_policy: expected label_annealing with a weight above 0"),
        (
            ["--retention", "label_annealing", "--retention", "replay:data=prose.jsonl"],
            "retention.replay: mixes rows with labels",
        ),
        (
            ["--retention", "label_annealing", "--retention", "budget:kl=0.02"],
            "retention.budget: adapts the weight of label_annealing",
        ),
        (
            ["--retention", "label_annealing:mask_target=true"],
            "retention.label_annealing.mask_target: expected false with on_policy, got true",
        ),
        (["--eval_strategy", "epoch"], "eval_strategy: measures rows with labels"),
        (["--on_policy", "{max_completion_length: 1000}"], "the model's context holds 128"),
        (["--dataset_name", "empty.jsonl"], "expected prompts, but all 2 rows have none"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(more, expected, capfd):
    jsonl("empty.jsonl", [{"prompt": ""}, {"prompt": ""}])
    assert expected in refused(capfd, "--output_dir", "out", *more)
    assert not list(Path("out").glob("checkpoint-*"))
