"""A run says what of its rows it does not read, and counts what it trains on; a dry run says the same before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from data_files import jsonl
from holdfast.cli.main import main
from holdfast.records.run import RunFolder
from holdfast.training.trainers import trained_by_row
from tiny import build_model, build_tokenizer

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model whose chat template drops thoughts and ends turns with a token of its own."""
    monkeypatch.chdir(tmp_path)
    tokenizer = build_tokenizer(additional_special_tokens=["<|end|>"])
    tokenizer.chat_template = CHAT
    build_model(len(tokenizer)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path


def written(name: str, *rows: dict[str, Any]) -> str:
    return str(jsonl(name, rows))


def train(*words: str) -> None:
    asked = ["train", "--model_name_or_path", "model", "--output_dir", "out", "--max_steps", "1", "--report_to", "none"]
    assert main([*asked, "--use_cpu", "--bf16", "false", *words]) == 0


def test_what_is_not_read_is_told_before_a_run_in_it_and_in_its_record(capfd: pytest.CaptureFixture[str]) -> None:
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>why</think>y", "score": 1}]
    data = written("a.jsonl", {"messages": turns, "id": 1}, {"messages": turns, "id": None})
    old = written("old.jsonl", {"messages": turns, "source": "b"})
    words = ["--dataset_name", data, "--retention", f"replay:data={old},fraction=0.1"]
    expected = [
        "Not read: id (1 row), score of messages (2).",
        "Not read of old.jsonl: source (1 row), score of messages (1).",
        "old.jsonl: The chat template leaves out of the row that was checked: thoughts of the assistant (1 in 1 row).",
        "The chat template leaves out of 2 rows that were checked: thoughts of the assistant (2 in 2 rows).",
        "The chat template ends the assistant's turns with <|end|>, but generation stops at <|endoftext|>: "
        "the model learns to write <|end|>, and generation does not stop there. Set eos_token: <|end|>.",
    ]
    train(*words, "--dry_run", "--quick")
    shown = capfd.readouterr().out
    assert all(f"  note        {note}\n" in shown for note in expected)
    train(*words)
    record = RunFolder("out").read()
    assert record.data["not_read"] == {"id": 1, "score of messages": 2}
    assert record.notes[: len(expected)] == expected
    said = " ".join(capfd.readouterr().out.split())
    assert all(f"Note: {note}" in said for note in expected)
    train("--dataset_name", data, "--eos_token", "<|end|>", "--dry_run", "--quick", "--output_dir", "other")
    assert "ends a turn" not in capfd.readouterr().out


@pytest.mark.parametrize("trainer", ["dpo", "kto"])
def test_pairs_that_are_cut_or_left_out_are_counted(trainer: str, capfd: pytest.CaptureFixture[str]) -> None:
    short, long = "A list", "A list is " * 8
    rows = []
    for prompt, answer in ((short, "x"), (short, long), (short, "y"), (long, "x")):
        kto = {"prompt": prompt, "completion": answer, "label": len(rows) % 2 == 0}
        rows.append(kto if trainer == "kto" else {"prompt": prompt, "chosen": answer, "rejected": "no"})
    words = ["--trainer", trainer, "--dataset_name", written("pairs.jsonl", *rows), "--max_length", "16"]
    expected = [
        "1 of 4 training rows are left out: their prompt alone fills max_length=16 tokens. Raise max_length.",
        "1 of 4 training rows are longer than max_length=16 tokens and are cut there. Raise max_length.",
    ]
    train(*words, "--dry_run", "--quick")
    shown = " ".join(capfd.readouterr().out.split())
    assert all(note in shown for note in expected)
    train(*words)
    notes = RunFolder("out").read().notes
    assert [note for note in notes if "training rows" in note] == expected


def test_examples_and_tokens_are_those_that_are_trained() -> None:
    pairs = [{"prompt": "A list is " * 20, "completion": "x"}, {"prompt": "A list", "completion": " is"}]
    train("--dataset_name", written("a.jsonl", *pairs, pairs[0]), "--max_length", "16")
    record = RunFolder("out").read()
    counts = {name: record.data[name] for name in ("examples", "untrained_examples", "tokens", "trained_tokens")}
    assert counts["examples"] == 1 and counts["untrained_examples"] == 2
    assert counts["tokens"] == record.training["tokens"] and 0 < counts["trained_tokens"] < counts["tokens"] <= 16
    assert any(note.startswith("2 of 3 training examples have no trained tokens") for note in record.notes)


@pytest.mark.parametrize(
    ("limit", "end", "expected"), [(None, False, [2, 0, 1]), (2, False, [1, 0, 0]), (2, True, [1, 0, 1])]
)
def test_trained_labels_of_each_row(limit: int | None, end: bool, expected: list[int]) -> None:
    labels = [[-100, 2, -100, 4], [-100], [-100, -100, 7]]
    rows = Dataset.from_dict({"input_ids": labels, "labels": labels})
    assert trained_by_row(rows, limit, end=end).tolist() == expected
    assert np.array_equal(trained_by_row(rows.select([2, 0]), limit, end=end), np.array(expected)[[2, 0]])


def test_masks_beside_tokens_unless_whole_rows_are_asked_for() -> None:
    data = written("a.jsonl", {"input_ids": [5, 6, 7, 8], "completion_mask": [0, 0, 1, 1]})
    for number, (words, trained) in enumerate((((), 2), (("--completion_only_loss", "false"), 4))):
        train("--dataset_name", data, "--output_dir", f"out-{number}", *words)
        assert RunFolder(f"out-{number}").read().data["trained_tokens"] == trained


@pytest.mark.parametrize("more", [(), ("--assistant_only_loss", "true"), ("--packing", "true")])
def test_messages_that_are_not_to_be_trained(more: tuple[str, ...]) -> None:
    turns = [("user", "A list", {}), ("assistant", "is", {"weight": 0}), ("user", "a", {}), ("assistant", "list", {})]
    data = written("a.jsonl", {"messages": [{"role": role, "content": text, **flag} for role, text, flag in turns]})
    old = written("old.jsonl", {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]})
    train("--dataset_name", data, "--retention", f"replay:data={data},fraction=0.5", "--keep", old, *more)
    record = RunFolder("out").read()
    assert record.data["trained_tokens"] == 2 * (1 + len(build_tokenizer()("list")["input_ids"]))
    assert record.data["format"] == "chat" and record.data["not_read"] == {}


def test_a_dry_run_says_what_is_cut_and_counts_windows_of_whole_documents(capfd: pytest.CaptureFixture[str]) -> None:
    data = written("a.jsonl", *[{"text": "A list is a mutable sequence. " * 10}] * 3)
    words = ["--dataset_name", data, "--max_length", "32", "--dry_run", "--quick"]
    train(*words)
    shown = capfd.readouterr().out
    assert "note        3 of 3 training examples are longer than max_length=32" in shown
    assert "3 rows, 96 tokens an epoch" in shown
    train(*words, "--packing", "true", "--packing_strategy", "bfd_split")
    shown = capfd.readouterr().out
    assert "are cut there" not in shown and "3 rows, 96 tokens" not in shown


def test_two_bos_tokens_other_labels_and_files_that_are_left_out_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = build_tokenizer(bos_token="<|bos|>")
    build_model(len(tokenizer)).save_pretrained("model")
    tokenizer.save_pretrained("model")
    Path("rows").mkdir()
    twice = [tokenizer.bos_token_id] * 2 + [5, 6]
    written("rows/train.jsonl", {"input_ids": twice, "labels": twice}, {"input_ids": [5, 6], "labels": [6, 7]})
    written("rows/more.jsonl", {"input_ids": [5, 6]})
    train("--dataset_name", "rows", "--dry_run", "--quick")
    shown = capfd.readouterr().out
    assert "Not read: the file more.jsonl." in shown and "1 of 2 training examples begin with two <|bos|>" in shown
    assert "1 of 2 training examples have labels that differ from their tokens" in shown


def test_text_entries_say_what_they_do_not_read() -> None:
    turns = [("user", "A list", {}), ("assistant", "is", {"weight": 0}), ("assistant", "list", {})]
    row = {"messages": [{"role": role, "content": text, **flag} for role, text, flag in turns], "id": 1}
    train("--dataset_name", written("a.jsonl", {"text": "A list"}), "--keep", written("held.jsonl", row))
    notes = RunFolder("out").read().notes
    assert any("messages are scored even if `weight` or `train` excludes them from training" in n for n in notes)
    assert any("Not read of held: id (1 row)." in n for n in notes)


def test_held_out_rows_of_the_trainer(capfd: pytest.CaptureFixture[str]) -> None:
    data = written("a.jsonl", {"text": "A list"})
    held_out = written("held.jsonl", {"text": "A list", "id": 1})
    words = ["--dataset_name", data, "--eval_strategy", "steps", "--eval_steps", "1", "--eval_dataset_name", held_out]
    train(*words, "--dry_run", "--quick")
    assert "note        Not read of the held-out rows: id (1 row).\n" in capfd.readouterr().out


def test_held_out_rows_that_are_trained_or_replayed_are_told_before_a_run_and_in_its_record(
    capfd: pytest.CaptureFixture[str],
) -> None:
    texts = [{"text": f"The fox number {n} runs."} for n in range(8)]
    data, prose = written("a.jsonl", *texts[:4]), written("prose.jsonl", *texts[3:6])
    old = written("old.jsonl", *texts[4:])
    words = ["--dataset_name", data, "--retention", f"replay:data={old},fraction=0.5", "--keep", prose]
    expected = [
        "keep/prose: 1 of 3 rows are training rows, so this entry is not held-out data.",
        "keep/prose: 2 of 3 rows are rows of the replay data old.jsonl, so this entry is not held-out data.",
    ]
    train(*words, "--dry_run", "--quick")
    shown = capfd.readouterr().out
    assert all(f"  note        {note}\n" in shown for note in expected)
    train(*words)
    assert set(expected) <= set(RunFolder("out").read().notes)


def test_copies_and_held_out_rows_of_the_trainer_that_are_trained_on_are_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    texts = [{"text": f"The fox number {n} runs."} for n in range(4)]
    data = written("a.jsonl", *texts, *texts[:2], {"text": "The fox  number 0 runs."})
    held_out = written("held.jsonl", texts[3], {"text": "Nobody has read this."})
    words = ["--dataset_name", data, "--eval_strategy", "epoch", "--eval_dataset_name", held_out, "--dry_run"]
    train(*words, "--quick")
    shown = capfd.readouterr().out
    assert "2 of 7 training rows are duplicates of others" in shown
    assert "1 of 2 held-out rows (eval_strategy) are also training rows" in shown


def test_tokens_without_a_row_in_the_embedding_are_refused_wherever_they_stand(
    capfd: pytest.CaptureFixture[str],
) -> None:
    tokenizer = build_tokenizer(additional_special_tokens=["<|end|>"])
    tokenizer.add_tokens(["<|new|>"])
    tokenizer.save_pretrained("model")
    rows = [{"text": f"The fox number {n} runs."} for n in range(500)]
    words = ["--model_name_or_path", "model", "--dataset_name", "a.jsonl", "--use_cpu", "--quick"]
    for last, code in (("<|new|>", 2), ("<|end|>", 0)):
        rows[477] = {"text": f"And the {last} ends."}
        written("a.jsonl", *rows)
        assert main(["check", *words]) == code
        assert ("of the model's embedding: '<|new|>'." in capfd.readouterr().err) == bool(code)


def test_all_rows_are_looked_at_for_what_is_cut(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": f"The fox number {n} runs."} for n in range(450)]
    rows[225] = {"text": "The fox runs. " * 40}
    words = ["--dataset_name", written("a.jsonl", *rows), "--max_length", "32", "--dry_run", "--quick"]
    train(*words)
    assert "note        1 of 450 training examples are longer than max_length=32" in capfd.readouterr().out
    monkeypatch.setattr("holdfast.runs.preview.MOST", 450 // 2)  # every second one
    train(*words)
    assert "longer than max_length" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dtype", "bfloat16", "--learning_rate", "1e-7"], True),
        (["--dtype", "bfloat16", "--learning_rate", "1e-2"], False),
        (["--dtype", "float32", "--learning_rate", "1e-7"], False),
        (["--dtype", "bfloat16", "--learning_rate", "1e-7", "--use_peft"], False),
        (["--dtype", "bfloat16", "--learning_rate", "1e-7", "--optim", "sgd"], False),
    ],
)
def test_steps_that_are_rounded_away_are_told(words: list[str], told: bool, capfd: pytest.CaptureFixture[str]) -> None:
    train("--dataset_name", written("a.jsonl", {"text": "A list"}), "--dry_run", "--quick", *words)
    shown = capfd.readouterr().out
    one_line = " ".join(shown.split())
    assert ("% of the weights will not change." in one_line) == told
    assert ("bfloat16 rounds away changes" in one_line) == told
