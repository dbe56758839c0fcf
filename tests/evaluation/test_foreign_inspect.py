"""Logs of Inspect as plain values: epochs, letters, choices, settings, and what is refused.

What Inspect itself writes is read in checks/test_foreign_inspect.py, where it is installed.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import DataError, UserError
from holdfast.evaluation.compare.request import CompareSettings, find_sides
from holdfast.evaluation.compare.result import Result, compare_sides
from holdfast.evaluation.foreign import inspect_ai
from holdfast.evaluation.foreign.registry import reader_of

HEAD = '{\n  "version": 2,\n  "status": "success",\n  "eval": {}}'


def sample(number: int, epoch: int, value: Any, **changes: Any) -> dict[str, Any]:
    question = f"{number} + 2 ="
    return {
        "id": f"s{number}",
        "epoch": epoch,
        "input": question,
        "choices": None,
        "target": "2",
        "messages": [
            {"role": "system", "content": "Be brief.", "source": "input"},
            {"role": "user", "content": [{"type": "text", "text": question}], "source": "input"},
            {"role": "assistant", "content": f"It is {value}", "source": "generate"},
        ],
        "output": {"completion": f"It is {value}"},
        "scores": {"match": {"value": value, "answer": None}},
    } | changes


def log(values: str = "CICCCICI", epochs: int = 2, **about: Any) -> dict[str, Any]:
    """A log of as many samples as there are letters for their epochs."""
    samples = []
    for number, value in enumerate(values):
        samples.append(sample(number // epochs, number % epochs + 1, value))
    mean = sum({"C": 1.0, "P": 0.5}.get(value, 0.0) for value in values) / len(values)
    return {
        "status": "success",
        "error": None,
        "eval": {
            "task": "arithmetic/sums",
            "task_version": 1,
            "task_args": {},
            "created": "2026-11-30T05:00:00",
            "model": "mockllm/model",
            "model_args": {},
            "model_generate_config": {"temperature": None},
            "config": {"epochs": epochs, "limit": None},
            "dataset": {"name": "sums"},
            "packages": {"inspect_ai": "0.3.285"},
            "scorers": [{"name": "match", "options": {}}],
        }
        | about,
        "plan": {"steps": [{"solver": "generate", "params": {}}], "config": {}},
        "results": {"scores": [{"name": "match", "metrics": {"accuracy": {"value": mean}}}]},
        "samples": samples,
    }


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """By file name what Inspect reads; the files themselves are empty."""
    contents: dict[str, dict[str, Any]] = {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inspect_ai, "load", lambda path: copy.deepcopy(contents[path.name]))

    class Files(dict[str, dict[str, Any]]):
        def __setitem__(self, name: str, content: dict[str, Any]) -> None:
            Path(name).touch()
            contents[name] = content

        def __getitem__(self, name: str) -> dict[str, Any]:
            return contents[name]

    return Files()


def compare(*words: str, **settings: Any) -> Result:
    sides, problems = find_sides(words)
    assert not problems, problems
    return compare_sides(sides, (), CompareSettings(**{"metrics": "all", **settings}))


# ----------------------------------------------------------------------------------------------------------- comparing


def test_epochs_of_a_sample_are_one_cluster(logs):
    logs["a.eval"], logs["b.eval"] = log("CCCCIICI"), log("CIIICCII")
    result = compare("a.eval", "b.eval")
    [c] = result.comparisons
    assert (c.suite, c.name, c.metric, c.unit, c.n) == ("inspect", "sums", "match", "accuracy", 4)
    assert (c.before, c.after) == (5 / 8, 3 / 8)
    assert "inspect/sums: 8 samples in 4 clusters" in "".join(result.notes)


def test_one_epoch_is_mcnemar_and_letters_count_as_inspect_counts_them(logs):
    logs["a.eval"], logs["b.eval"] = log("CCCCIICI", 1), log("CIIICCII", 1)
    [c] = compare("a.eval", "b.eval").comparisons
    assert (c.flips_lost, c.flips_gained, c.n) == (4, 2, 8)
    logs["c.eval"] = log("CPIN", 1)
    [entry] = inspect_ai.read(Path("c.eval"))[0].entries
    assert [row["match"] for row in entry.rows] == [1.0, 0.5, 0.0, 0.0]
    row = entry.rows[1]
    assert (row["question"], row["gold"], row["output"]) == ("1 + 2 =", "2", "It is P")


def test_choices_have_letters_and_a_chance_level(logs):
    content = log("CICI", 1)
    for number, each in enumerate(content["samples"]):
        value = each["scores"].pop("match")["value"]
        each |= {"choices": ["red", "blue", "green", "grey"], "target": "B"}
        each["scores"]["choice"] = {"value": value, "answer": "BA"[number % 2]}
    logs["a.eval"] = content
    [entry] = inspect_ai.read(Path("a.eval"))[0].entries
    assert [(row["gold"], row["answer"]) for row in entry.rows] == [(1, 1), (1, 0)] * 2
    assert entry.references == {"choice": {"chance": 0.25}}


def test_a_scorer_whose_name_is_a_column_of_rows_and_one_of_several_parts(logs):
    content = log("CI", 1)
    for each in content["samples"]:
        each["scores"] = {
            "answer": {"value": 0.25, "answer": "x"},
            "judge": {"value": {"tone": 4, "fact": "C"}},
            "spans": {"value": [1, 2]},
        }
    logs["a.eval"] = content
    [entry] = inspect_ai.read(Path("a.eval"))[0].entries
    assert list(entry.figures) == ["answer score", "judge.tone", "judge.fact"]
    assert entry.figures["judge.tone"].unit == "judge.tone"
    assert entry.rows[0]["answer score"] == 0.25


def test_samples_that_ended_in_an_error_are_counted(logs):
    content = log("C" * 200, 1)
    content["samples"][3]["scores"] = {}
    logs["a.eval"], logs["b.eval"] = log("C" * 200, 1), content
    result = compare("a.eval", "b.eval")
    assert result.comparisons[0].n == 199
    notes = " ".join(result.notes)
    assert "1 of 200 samples have no score" in notes and "1 only before" in notes


def test_another_figure_of_inspect_is_said(logs):
    content = log("CI", 2)
    content["results"]["scores"][0]["metrics"]["accuracy"]["value"] = 1.0  # a reducer: the better of two
    logs["a.eval"] = content
    [entry] = inspect_ai.read(Path("a.eval"))[0].entries
    assert entry.notes == ["match: the comparison uses the mean over all samples and epochs, 0.5. Inspect reports 1."]


def test_of_a_folder_the_latest_finished_log_of_a_task_is_read(logs):
    logs["1.eval"] = log("CI", 1)
    logs["2.eval"] = log("CC", 1, created="2026-11-30T06:00:00")
    logs["3.eval"] = log("II", 1, created="2026-11-30T07:00:00") | {"status": "cancelled"}
    [read] = inspect_ai.read(Path("."))
    assert [row["match"] for row in read.entries[0].rows] == [1.0, 1.0]
    assert list(read.notes) == [
        "sums has several logs: 1.eval is not read.",
        "sums has several logs: 3.eval is not read.",
    ]


def test_local_weights_are_named_by_their_folder(logs):
    logs["a.eval"] = log(model="hf/local", model_args={"model_path": "/models/tuned/"})
    assert inspect_ai.read(Path("a.eval"))[0].model == "tuned"


# ----------------------------------------------------------------------------------------------------------- bad input


def test_an_aborted_run_is_refused(logs):
    logs["a.eval"] = log() | {"status": "error", "error": {"message": "the server went away"}}
    with pytest.raises(DataError, match=r"a finished run, got the status 'error' \('the server went.*eval-retry"):
        inspect_ai.read(Path("a.eval"))


def test_a_log_without_samples_is_refused(logs):
    logs["a.eval"] = log() | {"samples": []}
    with pytest.raises(DataError, match=r"expected samples, got a log without them.*--no-log-samples"):
        inspect_ai.read(Path("a.eval"))


def test_an_id_twice_in_one_epoch_is_refused(logs):
    content = log()
    content["samples"].append(sample(1, 2, "C"))
    logs["a.eval"] = content
    with pytest.raises(DataError, match="every id once per epoch, got 1 ids twice or more: s1"):
        inspect_ai.read(Path("a.eval"))


def test_a_score_that_is_text_is_refused_and_nan_fails_the_entry(logs):
    logs["a.eval"] = log("CX", 1)
    with pytest.raises(DataError, match=r"sample s1, epoch 1: expected a number for match, got 'X' \(str\)"):
        inspect_ai.read(Path("a.eval"))
    content = log("CI", 1)
    content["samples"][1]["scores"]["match"]["value"] = math.nan
    logs["a.eval"], logs["b.eval"] = log("CI", 1), content
    assert compare("a.eval", "b.eval").not_finite[0].startswith("inspect/sums: after: 1 of 2 samples hold NaN")


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"task_version": 2}, "task_version: 1 and 2"),
        ({"task_args": {"fewshot": 5}}, "task_args: none and {'fewshot': 5}"),
        ({"model_generate_config": {"temperature": 0.7}}, "generation: none and {'temperature': 0.7}"),
        ({"scorers": [{"name": "match", "options": {"location": "any"}}]}, "scorers: "),
    ],
)
def test_other_settings_are_named(logs, about, said):
    logs["a.eval"], logs["b.eval"] = log(), log(**about)
    with pytest.raises(DataError, match=f"measured with different settings before and after .*{said}"):
        compare("a.eval", "b.eval")


def test_another_prompt_or_target_does_not_pair(logs):
    asked, marked = log(), log()
    for each in asked["samples"]:
        each["messages"][0]["content"] = "Think first."
    for each in marked["samples"]:
        each["target"] = "3"
    logs["a.eval"], logs["b.eval"], logs["c.eval"] = log(), asked, marked
    with pytest.raises(DataError, match=r"8 of 8 samples changed .*now with another prompt"):
        compare("a.eval", "b.eval")
    with pytest.raises(DataError, match=r"8 of 8 samples changed .*now with another right answer"):
        compare("a.eval", "c.eval")


def test_logs_are_known_by_their_beginning(tmp_path, monkeypatch):
    (tmp_path / "log.json").write_text(HEAD)
    (tmp_path / "other.json").write_text('{"version": 2}')
    reader = reader_of(tmp_path / "log.json")
    assert reader is not None and reader.tool == "Inspect"
    assert reader_of(tmp_path / "other.json") is None
    assert reader_of(tmp_path) is reader
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"inspect_ai is needed, and it is not installed. Install it with: pip install 'holdfast\[ins"
    ):
        inspect_ai.load(tmp_path / "log.json")
