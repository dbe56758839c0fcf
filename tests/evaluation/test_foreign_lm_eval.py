"""Logs of lm-evaluation-harness: what its own runs wrote, compared sample by sample, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binomtest

from evaluation.harness_logs import run_harness, write_tasks
from holdfast.errors import ConfigError, DataError
from holdfast.evaluation.compare.request import CompareSettings, find_models, find_sides
from holdfast.evaluation.compare.result import Result, compare_sides
from holdfast.evaluation.foreign.lm_eval import read
from holdfast.evaluation.foreign.registry import reader_of


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OUT of two runs, with a folder a model."""
    folder = tmp_path_factory.mktemp("harness")
    tasks = write_tasks(folder)
    for seed in (0, 1):
        run_harness(folder / "out", seed, tasks)
    return folder / "out"


@pytest.fixture
def out(logged: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    shutil.copytree(logged, tmp_path / "out")
    return tmp_path / "out"


def models(out: Path) -> tuple[Path, Path]:
    return out / "__models__tiny-0", out / "__models__tiny-1"


def results_of(model: Path) -> Path:
    [file] = model.glob("results_*.json")
    return file


def samples_of(model: Path, task: str) -> Path:
    [file] = model.glob(f"samples_{task}_*.jsonl")
    return file


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def rewrite(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def change(file: Path, **changes: Any) -> None:
    """Changes keys of a results file; a mapping changes keys of what is there."""
    content = json.loads(file.read_text())
    for key, value in changes.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    file.write_text(json.dumps(content))


def compare(*words: Path | str, **settings: Any) -> Result:
    sides, problems = find_sides([str(word) for word in words])
    assert not problems, problems
    return compare_sides(sides, (), CompareSettings(**{"metrics": "all", **settings}))


# ----------------------------------------------------------------------------------------------------------- comparing


def test_two_logs_are_compared_as_exact_mcnemar_by_hand(logged):
    first, second = models(logged)
    result = compare(samples_of(first, "warm"), samples_of(second, "warm"))
    before = {row["doc_id"]: row["acc"] for row in lines(samples_of(first, "warm"))}
    after = {row["doc_id"]: row["acc"] for row in lines(samples_of(second, "warm"))}
    lost = sum(before[doc] > after[doc] for doc in before)
    gained = sum(before[doc] < after[doc] for doc in before)
    assert lost and gained  # else the test shows nothing
    [c] = result.comparisons
    assert (c.suite, c.name, c.metric, c.n) == ("lm_eval", "warm", "acc", 40)
    assert (c.flips_lost, c.flips_gained) == (lost, gained)
    assert c.p_value == pytest.approx(binomtest(lost, lost + gained).pvalue)
    assert c.before == pytest.approx(sum(before.values()) / 40)
    assert c.after == pytest.approx(sum(after.values()) / 40)


def test_a_folder_of_two_models_is_both_and_every_figure_is_the_harness_s(logged):
    result = compare(logged)
    assert result.labels == ("tiny-0", "tiny-1")
    of_harness = [json.loads(results_of(model).read_text())["results"] for model in models(logged)]
    figures = {(c.name, c.metric): (c.before, c.after) for c in result.comparisons}
    assert set(figures) == {
        ("colours", "acc"),
        ("sums", "exact_match,strict-match"),
        ("sums", "exact_match,anything"),
        ("prose", "bits_per_byte"),
        ("prose", "word_perplexity"),
    }
    for (name, metric), values in figures.items():
        if name != "colours":
            key = metric if "," in metric else f"{metric},none"
            assert values == pytest.approx([figure[name][key] for figure in of_harness])
    assert any("bleu,strict-match" in note and "cannot be paired" in note for note in result.notes)
    assert not result.unmatched


def test_a_group_is_one_entry_over_all_questions_and_another_average_is_said(logged):
    [log] = read(models(logged)[0])
    [group] = [entry for entry in log.entries if entry.name == "colours"]
    assert len(group.rows) == 60
    assert {row["task"] for row in group.rows} == {"warm", "cold"}
    figures = json.loads(results_of(models(logged)[0]).read_text())["results"]
    expected = (40 * figures["warm"]["acc,none"] + 20 * figures["cold"]["acc,none"]) / 60
    value = float(group.figures["acc"].of_sums(group.figures["acc"].columns(group.rows).sum(0)))
    assert value == pytest.approx(expected)
    assert figures["colours"]["acc,none"] != pytest.approx(expected)
    assert any("The harness reports the mean over subtasks" in note for note in group.notes)


def test_inside_a_group_without_a_common_metric_its_groups_are_entries(out):
    first, _ = models(out)
    results = results_of(first)
    inside = {"all": ["outer", "prose"], "outer": ["colours", "sums"], "colours": ["warm", "cold"]}
    change(results, group_subtasks=inside, groups={"all": {"alias": "all"}, "outer": {"alias": "outer"}})
    [log] = read(first)
    assert [entry.name for entry in log.entries] == ["colours", "sums", "prose"]
    change(results, group_subtasks={**inside, "all": ["unnamed", "prose"], "unnamed": ["colours", "sums"]})
    [log] = read(first)
    assert [entry.name for entry in log.entries] == ["colours", "sums", "prose"]


def test_a_task_without_a_mean_over_samples_is_left_out_and_the_others_are_read(out):
    first, _ = models(out)
    change(results_of(first), results={"sums": {"alias": "sums", "f1,strict-match": 0.123}})
    rewrite(samples_of(first, "sums"), [{**row, "f1": 0.0} for row in lines(samples_of(first, "sums"))])
    [log] = read(first)
    assert [entry.name for entry in log.entries] == ["colours", "prose"]
    [note] = [note for note in log.notes if note.startswith("sums has no metric that is a mean over samples.")]
    assert "0.123" in note and note.endswith("It is left out.")


@pytest.mark.parametrize("kind", ["other answers", "pictures"])
def test_questions_in_the_same_words_are_different_samples(out, kind):
    """Where their right answers differ, or where what they ask about is not logged."""
    for model in models(out):
        file = samples_of(model, "sums")
        rows = lines(file)
        for row in rows:
            row["arguments"]["gen_args_0"]["arg_0"] = "How many?"
            row["prompt_hash"] = "the same"
            row["target"] = row["target_hash"] = str(row["doc_id"]) if kind == "other answers" else "7"
        rewrite(file, rows)
        if kind == "pictures":
            configs = json.loads(results_of(model).read_text())["configs"]
            configs["sums"]["doc_to_image"] = ["image"]
            change(results_of(model), configs=configs)
    first, second = (samples_of(model, "sums") for model in models(out))
    result = compare(first, second)
    assert {c.n for c in result.comparisons} == {len({row["doc_id"] for row in lines(first)})}
    assert not any("duplicates" in note for note in result.notes)


def test_samples_in_a_file_that_ends_in_json_are_read(out):
    for model in models(out):
        for file in model.glob("samples_*.jsonl"):
            file.rename(file.with_suffix(".json"))
    assert {c.name for c in compare(out).comparisons} == {"colours", "sums", "prose"}


def test_the_page_shows_flips_with_question_options_and_both_answers(logged, tmp_path):
    from holdfast.cli.main import main

    before = {path: path.stat().st_mtime_ns for path in logged.rglob("*")}
    page, markdown = tmp_path / "page.html", tmp_path / "comment.md"
    junit = tmp_path / "gate.xml"
    words = ["compare", str(logged), "--html", str(page), "--markdown", str(markdown), "--junit", str(junit)]
    assert main([*words, "--fail_if", "any drop > 90%"]) == 0
    text = page.read_text()
    assert "Questions whose answers flipped" in text
    assert "thing 3 red or blue?" in text
    assert "A. red" in text and "B. blue" in text
    assert "lm\\_eval/sums" in markdown.read_text()
    assert "lm_eval/colours" in junit.read_text()
    assert {path: path.stat().st_mtime_ns for path in logged.rglob("*")} == before


def test_chance_is_known_of_multiple_choice(logged):
    [side] = find_models(str(models(logged)[0]), only=False)
    evaluation = side.folder.find("lm_eval", "colours")
    assert evaluation is not None
    assert evaluation.references == {"acc": {"chance": 0.5}}
    assert side.folder.samples("lm_eval", "colours")[0]["choices"] == ["red", "blue"]


# ------------------------------------------------------------------------------------------------------------- layouts


def as_before_0_4_3(model: Path) -> None:
    """The same run in the layout of 0.4.2: results.json, and an array of samples without hashes and filters a task."""
    file = results_of(model)
    content = json.loads(file.read_text())
    for key in ("higher_is_better", "n-samples", "task_hashes", "model_name", "chat_template_sha"):
        del content[key]
    content["config"]["model_args"] = "pretrained=/models/old,dtype=float32"
    for task in content["configs"]:
        rows = lines(samples_of(model, task))
        for row in rows:
            row["arguments"] = [list(request.values()) for request in row["arguments"].values()]
            for key in ("filter", "metrics", "doc_hash", "prompt_hash", "target_hash"):
                del row[key]
        samples_of(model, task).unlink()
        (model / f"pretrained____models__old,dtype__float32_{task}.jsonl").write_text(json.dumps(rows, indent=2))
    file.unlink()
    (model / "results.json").write_text(json.dumps(content))


def test_the_layout_before_0_4_3_pairs_with_the_current_one(out):
    first, second = models(out)
    shutil.rmtree(second)
    shutil.copytree(first, second)
    as_before_0_4_3(second)
    result = compare(first, second)
    assert result.labels == ("tiny-0", "old")
    assert not result.unmatched
    assert [c.difference for c in result.comparisons] == [0.0] * 5
    assert {c.name: c.n for c in result.comparisons} == {"colours": 60, "sums": 6, "prose": 20}


def as_of_0_5(model: Path) -> None:
    """The same run in the form of 0.5: tasks of a group have its name before theirs, likelihoods are in one list more,
    and filters say more."""
    file = results_of(model)
    text = file.read_text()
    for name in ("warm", "cold"):
        text = text.replace(f'"{name}"', f'"colours::{name}"')
        samples = samples_of(model, name)
        rows = lines(samples)
        rewrite(samples, [{**row, "filtered_resps": [[each] for each in row["filtered_resps"]]} for row in rows])
        samples.rename(samples.with_name(samples.name.replace(name, f"colours::{name}")))
    content = json.loads(text)
    for config in content["configs"].values():
        for pipeline in config.get("filter_list") or [config.setdefault("filter_list", []) or {}]:
            steps = [{"function": s.pop("function"), "kwargs": s} for s in pipeline.get("filter", [])]
            pipeline |= {"filter": steps, "metric_list": []}
        config["filter_list"] = config["filter_list"] or [{"name": "none", "filter": [], "metric_list": []}]
    file.write_text(json.dumps(content))


def test_the_form_of_0_5_pairs_with_the_current_one(out):
    first, second = models(out)
    shutil.rmtree(second)
    shutil.copytree(first, second)
    as_of_0_5(second)
    result = compare(first, second)
    assert not result.unmatched
    assert [c.difference for c in result.comparisons] == [0.0] * 5
    rows = [side.folder.samples("lm_eval", "colours") for side in result.sides]
    assert rows[0] == rows[1]


def test_a_results_file_from_python_holds_its_samples(out, tmp_path):
    first, second = models(out)
    content = json.loads(results_of(first).read_text())
    content["samples"] = {task: lines(samples_of(first, task)) for task in content["configs"]}
    file = tmp_path / "results_of_mine.json"
    file.write_text(json.dumps(content))
    assert {c.n for c in compare(file, second).comparisons} == {60, 6, 20}


def test_of_a_task_that_was_measured_twice_the_later_run_is_read_and_this_is_said(out):
    first, second = models(out)
    for file in list(first.iterdir()):
        shutil.copy(file, first / re.sub(r"\d{4}-", "2020-", file.name, count=1))
    result = compare(first, second)
    assert any("warm" in note or "colours" in note for note in result.notes if "measured several times" in note)


# ----------------------------------------------------------------------------------------------------------- bad input


def test_other_settings_are_named_and_never_compared(out):
    first, second = models(out)
    change(results_of(second), **{"n-shot": {"warm": 5}}, versions={"sums": 2.0}, chat_template_sha="ab12")
    with pytest.raises(DataError) as refused:
        compare(first, second)
    text = str(refused.value)
    assert "lm_eval/colours" in text and "num_fewshot: 0 and {'warm': 5, 'cold': 0}" in text
    assert "task_version: Yaml and 2.0" in text
    assert "chat_template: none and ab12" in text


def test_logs_of_other_tasks_have_nothing_in_common(out):
    first, second = models(out)
    with pytest.raises(DataError, match=r"warm: measured only before.*\n.*cold: measured only after"):
        compare(samples_of(first, "warm"), samples_of(second, "cold"))


def test_results_without_samples_say_how_to_get_them(out):
    first, _ = models(out)
    samples_of(first, "cold").unlink()
    with pytest.raises(DataError, match=r"samples of cold beside it \(samples_cold_.*found none.*--log_samples"):
        read(first)
    assert "--log_samples" in find_sides([str(first), str(first)])[1][0]


def test_samples_without_results_say_what_is_missing(out):
    first, _ = models(out)
    results_of(first).unlink()
    with pytest.raises(DataError, match="expected the results file of its run beside it"):
        read(samples_of(first, "warm"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda rows: [{k: v for k, v in row.items() if "doc" not in k} for row in rows],
            "sample 1: expected 'doc_id'",
        ),
        (lambda rows: [*rows, rows[3]], r"got 1 of them twice or more: 3"),
        (
            lambda rows: [{**rows[0], "acc": "1.0"}, *rows[1:]],
            r"doc_id 0: expected a number for acc, got '1.0' \(str\)",
        ),
        (lambda rows: [{**rows[0], "acc": None}, *rows[1:]], r"expected a number for acc, got nothing \(null\)"),
        (lambda rows: [{**rows[0], "acc": 100.0}, *rows[1:]], r"expected acc between 0 and 1.*got 100"),
        (lambda rows: rows[:-3], r"expected 40 samples of warm, as in the results, got 37"),
        (
            lambda rows: [{**row, "acc": 1.0} for row in rows],
            r"got 40 whose mean is 1. The samples belong to another run",
        ),
        (lambda rows: [{**rows[0], "acc": [1]}, *rows[1:]], r"got 40 of which 1 have no value"),
        (lambda rows: [{**rows[0], "arguments": "none"}, *rows[1:]], r"got another format \(\w+Error"),
    ],
    ids=["no documents", "twice", "text", "null", "percent", "cut short", "another run", "a list", "another form"],
)
def test_samples_that_are_wrong(out, spoil, said):
    file = samples_of(models(out)[0], "warm")
    rewrite(file, spoil(lines(file)))
    reader = reader_of(file)
    assert reader is not None
    with pytest.raises(DataError, match=said):
        reader.logs(file)


def test_files_that_are_cut_short_or_empty_are_named(out):
    first, _ = models(out)
    file = samples_of(first, "warm")
    file.write_text(file.read_text()[:-50])
    with pytest.raises(DataError, match=r"line 40: expected JSON.*cut short or damaged"):
        read(first)
    file.write_text("")
    with pytest.raises(DataError, match="got an empty file"):
        read(first)
    results_of(first).write_text("{")
    with pytest.raises(DataError, match=r"results_.*expected JSON"):
        read(results_of(first))


def test_a_nan_is_a_failure_of_its_entry(out):
    first, second = models(out)
    file = samples_of(second, "warm")
    rows = lines(file)
    rewrite(file, [{**rows[0], "acc": float("nan")}, *rows[1:]])
    change(results_of(second), results={"warm": {"acc,none": float("nan")}})
    result = compare(first, second)
    [sentence] = result.not_finite
    assert sentence.startswith("lm_eval/colours: after: 1 of 60 samples hold NaN")
    assert {c.name for c in result.comparisons if c.failed is None} == {"sums", "prose"}


def test_a_run_without_scores_is_refused(out):
    first, _ = models(out)
    change(results_of(first), results={"warm": {"alias": "warm", "bypass,none": 999}})
    with pytest.raises(DataError, match=r"got bypass\. Evaluate without --predict_only"):
        read(samples_of(first, "warm"))


def test_words_that_name_no_log(out, tmp_path):
    with pytest.raises(ConfigError, match=r"has logs of 2 models. Name the one to compare: .*tiny-0, .*tiny-1"):
        find_models(str(out), only=False)
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(ConfigError, match=r"or a log of another tool, got the file.*lm-evaluation-harness: results_"):
        find_models(str(tmp_path / "notes.txt"), only=False)


# ------------------------------------------------------------------------------------------------------------ unpaired


def without(file: Path, count: int, **changed: str) -> None:
    """Takes samples out of a log, as another limit does, or changes the first."""
    rows = lines(file)
    rows = [{**rows[0], **changed}, *rows[1:]][count:]
    rewrite(file, rows)
    task = re.sub(r"samples_(.*)_\d{4}.*", r"\1", file.name)
    [results] = file.parent.glob("results_*.json")
    figures = {"acc,none": sum(row["acc"] for row in rows) / len(rows)}
    change(results, results={task: figures}, **{"n-samples": {task: {"effective": len(rows)}}})


def test_samples_without_a_partner_are_named_and_above_the_share_an_error(out):
    first, second = models(out)
    without(samples_of(second, "warm"), 2)
    pair = samples_of(first, "warm"), samples_of(second, "warm")
    with pytest.raises(
        DataError, match=r"2 of 40 occur only before, and 0 of 38 only after.*At most 1 %.*allow_unpaired"
    ):
        compare(*pair)
    result = compare(*pair, allow_unpaired=0.05)
    [c] = result.comparisons
    assert c.n == 38
    assert (
        "lm_eval/warm: 2 of 40 samples (5.00%) were measured on one model only and are left out: 2 only before."
        in result.notes
    )
    with pytest.raises(DataError, match="occur only before"):
        compare(*pair, allow_unpaired=0.0)


@pytest.mark.parametrize(
    ("column", "meaning"), [("prompt_hash", "with another prompt"), ("target_hash", "with another right answer")]
)
def test_samples_that_were_asked_otherwise_do_not_pair(out, column, meaning):
    first, second = models(out)
    without(samples_of(second, "warm"), 0, **{column: "0"})
    pair = samples_of(first, "warm"), samples_of(second, "warm")
    with pytest.raises(DataError, match=rf"1 of 40 samples changed .*now {meaning}"):
        compare(*pair)
    result = compare(*pair, allow_unpaired=0.03)
    assert any(f"left out: 1 {meaning}" in note for note in result.notes)
    assert [c.n for c in result.comparisons] == [39]
