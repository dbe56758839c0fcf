"""Rows that are streamed (`dataset_streaming`, or `streaming` of `datasets:`): trained on while they are read, packed,
dealt out over processes, continued bit for bit also behind their end, and what needs all rows refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoint_folders import read_folder
from data_files import text_rows
from holdfast.errors import ConfigError, DataError, Interrupted
from holdfast.records.run import RunFolder
from holdfast.runs.config import train_config
from holdfast.runs.dry_run import look
from small_runs import killed_at, logged, run_of
from tiny import SENTENCES

STEPS = 8


@pytest.fixture
def settings(least: dict[str, Any]) -> dict[str, Any]:
    """Sixteen rows, which are gone after three steps."""
    text_rows("train.jsonl", [f"{number}. {text}" for number in range(2) for text in SENTENCES])
    return {
        **least,
        "dataset_streaming": True,
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_length": 64,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_steps": 2,
    }


def test_a_dry_run_names_what_of_a_stream_is_not_read(settings: dict[str, Any]) -> None:
    Path("train.jsonl").write_text(json.dumps({"text": "a cat", "weight": 0.5}) + "\n")
    notes = look(train_config(settings)).notes
    assert "Not read: weight." in notes
    assert any(note.startswith("rows are streamed: only the first rows were checked") for note in notes)


MIXED = {
    "dataset_name": None,
    "dataset_streaming": None,
    "streaming": True,
    "datasets": [
        {"path": "json", "data_files": "train.jsonl", "fraction": 0.75},
        {"path": "json", "data_files": "other.jsonl", "fraction": 0.25},
    ],
}


SLOW = pytest.mark.slow
KILLED = [
    pytest.param({}, 1, id="rows, first pass", marks=SLOW),
    pytest.param({}, 5, id="rows", marks=SLOW),
    pytest.param({"packing": True}, 1, id="bfd, first pass", marks=SLOW),
    pytest.param({"packing": True}, 5, id="bfd"),
    pytest.param({"packing": True, "packing_strategy": "bfd_split"}, 5, id="bfd_split", marks=SLOW),
    pytest.param({"packing": True, "packing_strategy": "wrapped"}, 5, id="wrapped", marks=SLOW),
    pytest.param({"packing": True, "shuffle_dataset": True}, 5, id="shuffled", marks=SLOW),
    pytest.param({"packing": True, **MIXED}, 5, id="mixture", marks=SLOW),
]


@pytest.mark.parametrize(("changes", "at"), KILLED)
def test_a_killed_run_goes_on_bit_for_bit(settings: dict[str, Any], changes: dict[str, Any], at: int) -> None:
    """In the first pass over the rows, and behind their end."""
    text_rows("other.jsonl", [f"Another one: {text}" for text in SENTENCES[:5]])
    asked = {**settings, **changes, "retention": ["label_annealing"]}
    whole = run_of({**asked, "output_dir": "whole"})
    with pytest.raises(Interrupted):
        run_of(asked, [killed_at(at, "on_substep_end")])
    again = run_of(asked if changes.get("shuffle_dataset") else {**asked, "dataloader_num_workers": 1})
    assert logged(again) == logged(whole) and len(logged(whole)) == STEPS
    assert read_folder(again.path) == read_folder(whole.path)
    assert whole.read().data["streamed"] is True


def test_it_trains_on_the_rows_of_the_file_in_order(settings: dict[str, Any]) -> None:
    """As many as there are, the same as without streaming; and what is measured is the same too."""
    evaluation = {"keep": ["train.jsonl"]}
    asked = {**settings, "max_steps": 4, "evaluation": evaluation}
    streamed = run_of(asked)
    plain = {"dataset_streaming": False, "train_sampling_strategy": "sequential", "output_dir": "plain"}
    assert read_folder(streamed.path) == read_folder(run_of({**asked, **plain}).path)
    found, [other] = streamed.comparisons(), RunFolder("plain").comparisons()[:1]
    assert (found[0].difference, found[0].interval) == (other.difference, other.interval)


def test_it_reads_no_further_than_it_trains(settings: dict[str, Any]) -> None:
    texts = [f"{number}. {SENTENCES[number % len(SENTENCES)]}" for number in range(2500)]
    text_rows("train.jsonl", texts)
    with open("train.jsonl", "a") as file:
        file.write('{"text": 7}\n{"text": null}\n')
    asked = {**settings, "packing": True, "max_steps": 2}
    run_of(asked)
    with pytest.raises(DataError, match=r"train\.jsonl"):
        run_of({**asked, "dataset_streaming": False, "output_dir": "whole"})


def test_each_data_set_gives_its_share(settings: dict[str, Any]) -> None:
    from holdfast.models import load_tokenizer
    from holdfast.runs.loading import load_training_data

    text_rows("other.jsonl", ["other"] * 3)
    text_rows("train.jsonl", ["mine"] * 5)
    tokenizer = load_tokenizer(settings["model_name_or_path"])

    def drawn(**changes: Any) -> list[str]:
        rows, _ = load_training_data(train_config({**settings, **MIXED, **changes}), tokenizer)
        return [row["text"] for row, _ in zip(rows, range(400), strict=False)]

    first = drawn()
    assert len(first) == 400 and 0.68 < first.count("mine") / 400 < 0.82
    assert first == drawn() != drawn(seed=1)
    whole = [{**entry, "fraction": None} for entry in MIXED["datasets"]]  # type: ignore[attr-defined]
    assert drawn(datasets=whole) == ["mine"] * 5 + ["other"] * 3, "one after the other, as TRL has it"
    with pytest.raises(DataError, match="`fraction` must be set for either all"):
        drawn(datasets=[MIXED["datasets"][0], whole[1]])  # type: ignore[index]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_steps": -1}, "max_steps: expected a number of steps"),
        ({"num_train_epochs": 3}, "num_train_epochs: has no effect with"),
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy: group_by_length sorts all rows"),
        ({"test_split_size": 0.1, "eval_strategy": "steps"}, "test_split_size: a streamed data set cannot be split"),
        (
            {"retention": [{"replay": {"data": "train.jsonl", "fraction": 0.1}}]},
            r"retention\.replay: needs to know the number of training rows",
        ),
        (
            {"retention": [{"label_annealing": {"teacher": "cached"}}]},
            r"label_annealing\.teacher: cached needs all rows",
        ),
    ],
)
def test_what_needs_all_rows_is_refused(settings: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    text_rows("other.jsonl", ["other"])
    with pytest.raises(ConfigError, match=words):
        train_config({**settings, **changes})


def test_a_trainer_of_ones_own_refuses_replay_of_a_stream(tmp_path: Path) -> None:
    from cases import make_trainer
    from datasets import IterableDataset

    text_rows(tmp_path / "old.jsonl", ["old"])
    rows = IterableDataset.from_generator(lambda: iter([{"text": "new"}] * 4))
    with pytest.raises(ConfigError, match="replay needs the number of rows"):
        make_trainer(tmp_path, {"replay": {"data": str(tmp_path / "old.jsonl"), "fraction": 0.1}}, data=rows)
