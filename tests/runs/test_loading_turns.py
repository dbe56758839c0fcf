"""Which turns of conversations a run trains: with every template, the same in a dry run, in the run and in what it
measures along the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trl.chat_template_utils import llama3_chat_template

from data_files import jsonl
from holdfast.cli.main import main
from holdfast.runs.config import train_config
from holdfast.runs.loading import load_data, load_tokenizer
from holdfast.runs.preview import preview
from tiny import build_model, build_tokenizer

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SPECIAL = ["<|end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
CHAT = [("user", "Rome?"), ("assistant", "<think>Hm.</think>Italy."), ("user", "Bern?"), ("assistant", "CH.")]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model whose chat template marks nothing, and a conversation."""
    monkeypatch.chdir(tmp_path)
    tokenizer = build_tokenizer(additional_special_tokens=SPECIAL, bos_token="<|bos|>")
    tokenizer.chat_template = PLAIN
    tokenizer.save_pretrained("model")
    build_model(len(tokenizer)).save_pretrained("model")
    jsonl("chat.jsonl", [{"messages": [{"role": role, "content": text} for role, text in CHAT]}])
    return tmp_path


def loaded(**settings: Any) -> tuple[Any, Any, Any, Any]:
    """Config, tokenizer, training rows and held-out rows."""
    given = {
        "model_name_or_path": "model",
        "dataset_name": "chat.jsonl",
        "use_cpu": True,
        "bf16": False,
        "max_length": 99,
    }
    config = train_config({**given, **settings})
    tokenizer = load_tokenizer(config)
    rows, _, held_out = load_data(config, tokenizer)
    return config, tokenizer, rows, held_out


def trained(**settings: Any) -> str:
    """The row as a dry run shows it."""
    config, tokenizer, rows, _ = loaded(**settings)
    (row,) = preview(config, tokenizer, rows).rows
    return "".join(f"»{text}«" if flag else text for text, flag in row.pieces(tokenizer))


@pytest.mark.parametrize(
    ("settings", "first", "last"),
    [
        ({"assistant_only_loss": True}, "»<think>Hm.</think>Italy.<|end|>«", "»CH.<|end|>«"),
        ({"train_on": "all"}, "»<think>Hm.</think>Italy.<|end|>«", "»CH.<|end|>«"),
        ({"train_on": "last"}, "<think>Hm.</think>Italy.<|end|>", "»CH.<|end|>«"),
        ({"assistant_only_loss": True, "train_thoughts": False}, "<think>Hm.</think>»Italy.<|end|>«", "»CH.<|end|>«"),
    ],
)
def test_a_template_without_marks(settings: dict[str, Any], first: str, last: str) -> None:
    assert trained(**settings) == f"<user>Rome?<|end|><assistant>{first}<user>Bern?<|end|><assistant>{last}"


def test_a_template_that_trl_marks_gives_the_labels_of_trl() -> None:
    theirs = trained(chat_template=llama3_chat_template, assistant_only_loss=True)
    assert "»<think>Hm.</think>Italy.<|eot_id|>«" in theirs
    assert trained(chat_template=llama3_chat_template, train_on="all") == theirs
    assert trained(chat_template=llama3_chat_template, train_on="last").count("»") == 1


@pytest.mark.parametrize("template", [PLAIN, llama3_chat_template])
def test_held_out_rows_are_scored_alike(template: str, place: Path) -> None:
    """Also where the training rows say what is trained and the held-out rows leave it to the template."""
    from holdfast.training.trainers import SFTRetentionTrainer

    turns = [{"role": role, "content": text, "train": text != "CH."} for role, text in CHAT]
    jsonl("weighted.jsonl", [{"messages": [{**turn, "train": None} if turn["train"] else turn for turn in turns]}])
    config, tokenizer, rows, held_out = loaded(
        dataset_name="weighted.jsonl",
        eval_dataset_name="chat.jsonl",
        eval_strategy="steps",
        chat_template=template,
        assistant_only_loss=True,
        output_dir=str(place / "out"),
        report_to="none",
    )
    trainer = SFTRetentionTrainer(
        model=build_model(len(tokenizer)),
        args=config.training,
        train_dataset=rows,
        eval_dataset=held_out,
        processing_class=tokenizer,
        retain=[],
    )
    (row,), (other,) = trainer.train_dataset, trainer.eval_dataset
    texts = [tokenizer.decode([token for token in labels["labels"] if token != -100]) for labels in (row, other)]
    assert "Italy." in texts[0] and "CH." not in texts[0] and "Rome" not in texts[0]
    assert "Italy." in texts[1] and "CH." in texts[1] and "Rome" not in texts[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--train_thoughts", "false"), "train_thoughts: applies only if the assistant's messages alone are trained"),
        (("--rewritten_turns", "whole"), "rewritten_turns: applies only if"),
        (("--train_on", "first"), "train_on: expected"),
        (("--train_on", "last", "--trainer", "dpo"), "train_on: applies only with trainer: sft, got dpo"),
        (
            ("--train_on", "last", "--dataset_streaming", "--max_steps", "1"),
            "rows that are not streamed and have no images",
        ),
        (("--train_on", "last", "--dataset_name", "text.jsonl"), "because the rows are not conversations"),
        (("--train_on", "per_message"), "chat.jsonl: train_on: per_message expected conversations"),
    ],
)
def test_what_does_not_go_together(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    jsonl("text.jsonl", [{"text": "Rome"}])
    names = ["--model_name_or_path", "model", "--dataset_name", "chat.jsonl", "--use_cpu", "--dry_run"]
    assert main(["train", *names, *words]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
