"""Details of lighteval in both of their forms, and what is refused.

The files are written here with the columns that lighteval 0.13 and 0.9 give them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest

from holdfast.errors import DataError
from holdfast.evaluation.compare.request import CompareSettings, find_sides
from holdfast.evaluation.compare.result import Result, compare_sides
from holdfast.evaluation.foreign.lighteval import read

DATE = "2026-11-30T06-01-05.894500"


def asked(number: int, right: bool, *, prompt: str = "") -> dict[str, Any]:
    """A sample of multiple choice, as of 0.13."""
    gold = number % 2
    answer = gold if right else 1 - gold
    doc = {"query": f"Is item {number} red or blue?\nAnswer:", "choices": [" red", " blue"], "gold_index": gold}
    doc |= {"id": str(number), "instruction": None, "fewshot_samples": [{"query": "Is it?", "choices": [" red"]}]}
    response = {"input": prompt or None, "text": [], "logprobs": [-1.0 - (answer == 1), -1.0 - (answer == 0)]}
    return {"doc": doc, "metric": {"acc": int(right)}, "model_response": response}


def said(number: int, score: float) -> dict[str, Any]:
    """A generated sample, as of 0.13."""
    doc = {"query": f"Say {number}.", "choices": [str(number)], "gold_index": 0, "fewshot_samples": []}
    response = {"input": None, "text": [f"It is {number}."], "logprobs": []}
    return {"doc": doc, "metric": {"rouge": score, "bleu": 0.5}, "model_response": response}


def as_before_0_10(sample: dict[str, Any]) -> dict[str, Any]:
    doc, response = sample["doc"], sample["model_response"]
    predictions = [[value, False] for value in response["logprobs"]]
    return {
        "example": doc["query"],
        "full_prompt": response["input"],
        "choices": doc["choices"],
        "gold": [],
        "gold_index": [doc["gold_index"]],
        "predictions": predictions,
        "metrics": sample["metric"],
    }


def write(out: Path, model: str, tasks: dict[str, list[dict[str, Any]]], **config: Any) -> Path:
    """What `lighteval ... --output-dir OUT --save-details` leaves."""
    details = out / "details" / model / DATE
    details.mkdir(parents=True)
    figures: dict[str, dict[str, float]] = {}
    for task, samples in tasks.items():
        pq.write_table(pa.Table.from_pylist(samples), details / f"details_{task}_{DATE}.parquet")
        metrics = [sample.get("metric", sample.get("metrics")) for sample in samples]
        if isinstance(metrics[0], dict):
            figures[task] = {name: float(np.mean([m[name] for m in metrics])) for name in metrics[0]}
            figures[task] |= {"bleu": 31.0} if "bleu" in figures[task] else {}
    configs = {}
    for task in tasks:
        metric = {"metric_name": "rouge", "higher_is_better": True}
        configs[task] = {"version": 1, "num_fewshots": int(task[-1]), "metrics": [metric]} | config
    general = {"model_name": model, "max_samples": None}
    content = {"config_general": general, "results": figures, "config_tasks": configs}
    results = out / "results" / model / f"results_{DATE}.json"
    results.parent.mkdir(parents=True)
    results.write_text(json.dumps(content))
    return out


def answers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(30) < 0.5


def colours(seed: int, **how: Any) -> list[dict[str, Any]]:
    return [asked(number, bool(right), **how) for number, right in enumerate(answers(seed))]


def compare(*words: Path, **settings: Any) -> Result:
    sides, problems = find_sides([str(word) for word in words])
    assert not problems, problems
    return compare_sides(sides, (), CompareSettings(**{"metrics": "all", **settings}))


def test_two_runs_are_compared_by_exact_mcnemar(tmp_path):
    pair = (
        write(tmp_path / "a", "org/base", {"colours|1": colours(0)}),
        write(tmp_path / "b", "org/tuned", {"colours|1": colours(1)[::-1]}),
    )
    result = compare(*pair)
    lost, gained = int((answers(0) & ~answers(1)).sum()), int((~answers(0) & answers(1)).sum())
    [c] = result.comparisons
    assert result.labels == ("base", "tuned")
    assert (c.suite, c.name, c.metric, c.unit, c.n) == ("lighteval", "colours", "acc", "accuracy", 30)
    assert (c.flips_lost, c.flips_gained) == (lost, gained)
    assert c.p_value == pytest.approx(binomtest(lost, lost + gained).pvalue)
    row = result.sides[0].folder.samples("lighteval", "colours")[3]
    assert (row["choices"], row["gold"], row["answer"]) == (["red", "blue"], [1], 1 - answers(0)[3] ^ 1)


@pytest.mark.parametrize("kind", ["other answers", "pictures"])
def test_questions_in_the_same_words_are_different_samples(tmp_path, kind):
    def samples(score: float) -> list[dict[str, Any]]:
        found = [said(number, score) for number in range(30)]
        for number, sample in enumerate(found):
            own = {"images": [f"{number}.png"], "choices": ["7"]} if kind == "pictures" else {}
            sample["doc"] |= {"query": "How many?", "id": str(number), **own}
        return found

    pair = [write(tmp_path / name, name, {"count|0": samples(0.5)}) for name in ("a", "b")]
    assert {c.n for c in compare(*pair).comparisons} == {30}


def test_every_folder_of_a_run_is_found(tmp_path):
    out = write(tmp_path / "a", "org/base", {"colours|1": colours(0), "say|0": [said(i, 0.5) for i in range(12)]})
    folder = out / "details" / "org" / "base"
    for place in (out, folder.parent, folder, folder / DATE):
        [log] = read(place)
        assert sorted(entry.name for entry in log.entries) == ["colours", "say"]
    [log] = read(folder / DATE / f"details_say|0_{DATE}.parquet")
    [entry] = log.entries
    assert entry.settings["num_fewshot"] == 0
    assert (entry.rows[2]["output"], entry.rows[2]["gold"]) == ("It is 2.", "2")
    assert list(entry.figures) == ["rouge"]
    assert entry.notes == [
        "bleu is 31 in the results, but the samples' mean is 0.5. The metric is left out, because it is not a "
        "mean over samples."
    ]


def test_the_form_before_0_10_has_the_same_rows(tmp_path):
    old = [as_before_0_10(sample) for sample in colours(0, prompt="Look. ")]
    pair = (
        write(tmp_path / "a", "base", {"colours|1": colours(0, prompt="Look. ")}),
        write(tmp_path / "b", "tuned", {"colours|1": old}),
    )
    [c] = compare(*pair).comparisons
    assert (c.difference, c.n) == (0.0, 30)
    for side in compare(*pair).sides:
        row = side.folder.samples("lighteval", "colours")[0]
        assert row["loglikelihoods"] == colours(0)[0]["model_response"]["logprobs"]


def test_other_settings_and_prompts_are_named(tmp_path):
    first = write(tmp_path / "a", "base", {"colours|1": colours(0)})
    shots = write(tmp_path / "b", "tuned", {"colours|5": colours(0)}, version=2)
    with pytest.raises(DataError, match=r"num_fewshot: 1 and 5, task_version: 1 and 2"):
        compare(first, shots)
    prompts = write(tmp_path / "c", "tuned", {"colours|1": colours(0, prompt="<user>")})
    with pytest.raises(DataError, match=r"30 of 30 samples changed .*now with another prompt"):
        compare(first, prompts)


def test_details_without_their_results_are_said_to_be(tmp_path):
    out = write(tmp_path / "a", "base", {"colours|1": colours(0)})
    [results] = out.glob("results/*/*.json")
    results.unlink()
    [entry] = read(out)[0].entries
    assert entry.notes[0].startswith("details_colours|1") and "has no results file beside it" in entry.notes[0]
    assert entry.settings["num_fewshot"] == 1


@pytest.mark.parametrize(
    ("metric", "said_of_it"),
    [
        ({"acc": "right"}, r"row 1: expected a number for acc, got 'right' \(str\)"),
        ({"acc": 100}, r"row 1: expected acc between 0 and 1.*got 100"),
        ({"acc": [1]}, r"expected a metric that is a mean over samples"),
    ],
)
def test_scores_that_are_wrong(tmp_path, metric, said_of_it):
    out = write(tmp_path / "a", "base", {"colours|1": colours(0)})
    [file] = out.glob("details/*/*/*.parquet")
    pq.write_table(pa.Table.from_pylist([{**sample, "metric": metric} for sample in colours(0)]), file)
    with pytest.raises(DataError, match=said_of_it):
        read(out)


def test_files_that_are_wrong(tmp_path):
    out = write(tmp_path / "a", "base", {"colours|1": colours(0)})
    [file] = out.glob("details/*/*/*.parquet")
    pq.write_table(pa.table({"question": ["a"]}), file)
    with pytest.raises(DataError, match=r"expected the columns doc, metric and model_response.*got question"):
        read(out)
    file.write_bytes(b"PAR1")
    with pytest.raises(DataError, match="not a readable parquet file"):
        read(out)


def test_nan_is_a_failure_of_the_entry(tmp_path):
    broken = [said(i, 0.5 if i else float("nan")) for i in range(12)]
    pair = (
        write(tmp_path / "a", "base", {"say|0": [said(i, 0.5) for i in range(12)]}),
        write(tmp_path / "b", "tuned", {"say|0": broken}),
    )
    assert compare(*pair).not_finite[0].startswith("lighteval/say: after: 1 of 12 samples hold NaN")
