"""A rehearsal finds what a run would die of hours later, on a copy of its model, and leaves nothing behind. Each
request that it refuses here is sound to a check without it (`--quick`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_files import jsonl
from holdfast.checkpoints import tiny_copy
from holdfast.cli.main import main
from tiny import SENTENCES, build_model, build_tokenizer

OWN = """
from dataclasses import dataclass
from typing import ClassVar

from holdfast.evaluation.entries import OwnMeasure
from holdfast.retention.protocol import Passive, RetentionMethod


def alone(completions):
    return [1.0] * len(completions)


def one(completions, **more):
    return [1.0]


def good(completions, **more):
    return [float(len(text)) for text in completions]


@dataclass(frozen=True, kw_only=True)
class Fails(RetentionMethod):
    name: ClassVar[str] = "fails"
    title: ClassVar[str] = "fails"
    place: ClassVar[str] = "gradient"
    summary: ClassVar[str] = "fails where it is told to"

    at: str = "gradient"

    def start(self, anchors):
        return Active(self.at)


class Active(Passive):
    def __init__(self, at):
        self.at = at

    def gradient(self, named, step):
        assert self.at != "gradient", "no such layer"

    def state_dict(self):
        assert self.at != "save", "cannot be pickled"
        return {"seen": 1}

    def load_state_dict(self, state):
        assert self.at != "resume", "other keys"


@dataclass(frozen=True, kw_only=True)
class Asks(OwnMeasure):
    metrics = {"letters": True}

    def measure(self, model, tokenizer):
        raise KeyError("letter")
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model of six layers, and rows for every trainer."""
    monkeypatch.chdir(tmp_path)
    build_model(layers=6).save_pretrained("start")
    build_tokenizer().save_pretrained("start")
    starts = [(f"{number}. {text[:12]}", text[12:]) for number in range(2) for text in SENTENCES]
    jsonl("rows.jsonl", [{"prompt": prompt, "completion": rest} for prompt, rest in starts])
    jsonl("prompts.jsonl", [{"prompt": prompt} for prompt, _ in starts])
    jsonl("pairs.jsonl", [{"prompt": prompt, "chosen": rest, "rejected": " no"} for prompt, rest in starts])
    turns = {"prompt": [{"role": "user", "content": "Rome?"}]}
    for key, text in {"chosen": "Italy", "rejected": "no"}.items():
        turns[key] = [{"role": "assistant", "content": text}]
    jsonl("chats.jsonl", [turns])
    Path("own.py").write_text(OWN)
    return tmp_path


def check(*words: str) -> int:
    least = ["--model_name_or_path", "start", "--dataset_name", "rows.jsonl"]
    if "grpo" not in words:
        least += ["--max_length", "64"]
    return main(["check", *least, "--use_cpu", "--bf16", "false", "--report_to", "none", "--max_steps", "9", *words])


DPO = "--trainer dpo --dataset_name pairs.jsonl"
GRPO = "--trainer grpo --dataset_name prompts.jsonl --max_completion_length 4 --num_generations 2"
HELD_OUT = "--eval_dataset_name rows.jsonl --eval_strategy steps --eval_steps 5 --save_steps 5"
DEADLY = {
    f"{HELD_OUT} --load_best_model_at_end --metric_for_best_model eval_accuracy": (
        "evaluating held-out rows and saving a checkpoint: KeyError",
        "'eval_accuracy', which is not found in the evaluation metrics",
    ),
    "--gradient_checkpointing --gradient_checkpointing_kwargs '{determinism: 1}'": (
        "taking a step: ValueError",
        "Unexpected keyword arguments: determinism",
    ),
    "--model_init_kwargs '{layers: 2}'": ("preparing the run: Could not load start", "argument 'layers'"),
    "--activation_offloading": ("preparing the run: AttributeError", "'NoneType'"),
    f"{DPO} --loss_type sigmoyd": ("taking a step: ValueError", "Unknown loss type: sigmoyd"),
    f"{DPO} --use_peft --sync_ref_model": ("preparing the run: NotImplementedError", "sync_ref_model"),
    f"{GRPO} --reward_funcs own.py:alone": ("taking a step: TypeError", "alone() got an unexpected keyword argument"),
    f"{GRPO} --reward_funcs own.py:one": ("taking a step: ValueError", "returned 1 rewards"),
    "--max_steps -1 --num_train_epochs 1 --retention sfa:every=500": ("preparing the run: sfa.every", "got 500"),
    "--learning_rate 1e38": ("saving a checkpoint: Training stopped at step 1", "parameters are no longer finite"),
}
"""Requests, and what is said of each: what was being done, and the library's words."""


@pytest.mark.parametrize("request_", DEADLY, ids=lambda text: text.replace("--", "")[-60:])
def test_what_a_run_dies_of_is_said_before_it(request_: str, capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    words = shlex.split(request_)
    assert check(*words, "--quick") == 0, "read, it is sound"
    capsys.readouterr()
    assert check(*words) == 2
    said = capsys.readouterr()
    doing, message = DEADLY[request_]
    assert doing in said.err and message in said.err
    assert "bug in holdfast" not in said.err and "sound" not in said.out and "holdfast-" not in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--dataloader_drop_last --per_device_train_batch_size 64",
            "expected at least 64 training rows (one batch), got 12. dataloader_drop_last",
        ),
        (
            f"{GRPO} --reward_funcs own.py:good --per_device_train_batch_size 48",
            "expected at least 24 training rows (one batch), got 12. GRPO samples 2 answers",
        ),
        (f"{DPO} --max_length 3", "No training row is left after truncation to max_length=3"),
        (f"{DPO} --dataset_name chats.jsonl", "The training rows cannot be prepared: "),
    ],
)
def test_rows_that_fill_no_batch_or_cannot_be_prepared_are_refused_when_they_are_read(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(*words.split(), "--quick") == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--retention", "own.py:Fails:at=gradient"], "rehearsal, taking a step: AssertionError: no such layer"),
        (["--retention", "own.py:Fails:at=save"], "saving a checkpoint: AssertionError: cannot be pickled"),
        (["--retention", "own.py:Fails:at=resume"], "resuming from the checkpoint: AssertionError: other keys"),
        (["--evaluation", "{keep: [{own.py:Asks: {}}]}"], "measuring the initial model: KeyError: 'letter'"),
    ],
)
def test_what_was_being_done_is_named(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(*words) == 2
    assert said in capsys.readouterr().err


def test_a_sound_request_is_rehearsed_on_a_copy_that_leaves_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = "{keep: [{perplexity: rows.jsonl}, {perplexity: owner/texts, split: test}]}"
    words = ["--retention", "label_annealing:teacher=cached", "--evaluation", entries]
    words += ["--gradient_accumulation_steps", "8", "--report_to", "wandb", "--use_peft"]
    before = sorted(place.rglob("*"))
    assert check(*words) == 0
    said = capsys.readouterr().out
    assert said.startswith("The request is sound; nothing was trained.")
    assert "a step, a checkpoint, a resume, a sample of each entry, in " in said
    assert "2 of 6 layers, random weights, gradient_accumulation_steps 2 instead of 8" in said
    assert "NOT rehearsed: report_to, keep/texts" in said
    assert sorted(place.rglob("*")) == before


def test_what_cannot_be_rehearsed_here_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--for", "gpu", "--bf16", "true", "--num_processes", "2") == 0
    assert "NOT rehearsed: bf16, launching 2 processes" in capsys.readouterr().out
    assert check("--quick") == 0
    said = capsys.readouterr().out
    assert "No problem was found, but the run was not rehearsed: --quick" in said and "sound" not in said


def test_a_model_without_a_small_copy_is_not_called_sound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tiny_copy, "_SHALLOW", tiny_copy._SHALLOW[:1])
    monkeypatch.setattr("holdfast.runs.small_request.MOST_PARAMETERS", 1000)
    assert check() == 0
    said = capsys.readouterr().out
    assert "not rehearsed: no small copy of start can be made (" in said and "sound" not in said


@pytest.mark.parametrize(
    "words",
    [
        ["--use_peft", "--lora_target_modules", "model.layers.5.self_attn.q_proj"],
        ["--train_only", "layers.5."],
    ],
)
def test_settings_that_name_layers_are_left_out_where_the_copy_has_none(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(*words) == 0
    assert "NOT rehearsed: settings that name layers" in capsys.readouterr().out


def test_long_rows_are_cut_to_what_memory_has_room_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("holdfast.runs.small_request.MOST_LOGITS", 320 * 12)
    assert check() == 0
    assert "per_device_train_batch_size 1 instead of 8, max_length 12 instead of 64" in capsys.readouterr().out


def test_a_sample_of_an_entry_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    jsonl("texts.jsonl", [{"text": "a"}, {"text": SENTENCES[0]}, {"text": SENTENCES[1]}])
    assert check("--keep", "texts.jsonl") == 0, "the first document has no token that can be scored"
    jsonl("texts.jsonl", [{"text": "a"}, {"text": "b"}])
    assert check("--keep", "texts.jsonl") == 2
    assert "rehearsal, measuring the initial model: keep/texts: Expected text to score" in capsys.readouterr().err
