"""The `evaluation:` section: what is understood, and that every mistake is named at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.evaluation.entries import EvaluationPlan, PerplexityEntry, TaskEntry
from holdfast.evaluation.suite import parse_evaluation


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("prose.jsonl", "answers.jsonl.gz", "arc.jsonl", "mine.yaml"):
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "books").mkdir()
    return tmp_path


def problems_of(config, folder: Path) -> str:
    return "\n".join(parse_evaluation(config, base_dir=folder)[1])


def test_the_documented_shape(folder):
    plan, problems = parse_evaluation(
        {
            "target": [
                {"perplexity": "answers.jsonl.gz", "prompt": "Question: {question}\nAnswer:", "completion": " {answer}"}
            ],
            "style": ["arc_easy"],
            "source": [
                {"perplexity": "prose.jsonl", "window": 32, "stride": 16, "max_documents": 5},
                "arc_easy",
                {"task": "arc_easy", "name": "arc_local", "data": "arc.jsonl", "num_fewshot": 0, "limit": 200},
                "mine.yaml",
                "books",
            ],
            "batch_size": 4,
            "before": False,
        },
        base_dir=folder,
    )
    assert problems == []
    assert [(e.suite, e.name, e.kind) for e in plan.entries] == [
        ("source", "prose", "perplexity"),
        ("source", "arc_easy", "task"),
        ("source", "arc_local", "task"),
        ("source", "mine", "task"),
        ("source", "books", "perplexity"),
        ("target", "answers", "perplexity"),
        ("style", "arc_easy", "task"),
    ]
    assert plan.suites == ("source", "target", "style")
    assert (plan.batch_size, plan.before) == (4, False)
    prose, _, arc, mine, *_ = plan.entries
    assert isinstance(prose, PerplexityEntry)
    assert (prose.data, prose.window, prose.stride, prose.max_documents) == (
        str((folder / "prose.jsonl").resolve()),
        32,
        16,
        5,
    )
    assert isinstance(arc, TaskEntry)
    assert (arc.data, arc.num_fewshot, arc.limit, arc.is_file) == (str((folder / "arc.jsonl").resolve()), 0, 200, False)
    assert isinstance(mine, TaskEntry)
    assert mine.is_file


def test_nothing_is_an_empty_plan():
    assert parse_evaluation(None) == (EvaluationPlan(), [])
    assert parse_evaluation({"source": None}) == (EvaluationPlan(), [])


def test_all_problems_at_once(folder):
    text = problems_of(
        {
            "source": [
                {"perplexity": "prse.jsonl"},
                {"perplexity": "prose.jsonl", "windw": 3, "stride": "x"},
                {"task": "arc_easy", "limit": True},
                {"prompt": "{a}"},
                7,
            ],
            "batch_sise": 8,
            "before": "yes",
        },
        folder,
    )
    for part in (
        "Did you mean 'prose.jsonl'?",
        "source[1].windw: unknown key. Did you mean 'window'?",
        "source[1].stride: expected a whole number of at least 1, got 'x'.",
        "source[2].limit: expected a whole number of at least 1, got True.",
        "source[3]: expected one of `perplexity: <data file>`, `task: <task>`",
        "source[4]: expected a task name",
        "batch_sise: unknown key. Did you mean 'batch_size'?",
        "before: expected true or false, got 'yes'.",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"perplexity": "prose.jsonl", "prompt": "{a}"}, "`prompt` and `completion` go together"),
        ({"perplexity": "prose.jsonl", "text": "{a}", "prompt": "{a}", "completion": "{b}"}, "exclude each other"),
        ({"perplexity": "prose.jsonl", "text": "{a"}, "a brace that is text is written twice"),
        ({"perplexity": "prose.jsonl", "text": "no columns"}, "a template that names columns"),
        ({"perplexity": "prose.jsonl", "window": 8, "stride": 8}, "less than the window (8), got 8"),
        ({"perplexity": "prose"}, "A hub data set is written owner/name"),
        ({"perplexity": "owner/data"}, "needs `split:`"),
        ({"task": "prose.jsonl"}, "Write `perplexity: prose.jsonl`"),
        ({"task": "your.yaml"}, "no such file or folder 'your.yaml'"),
        ({"task": "arc_easy", "data": "arc.json"}, "Did you mean 'arc.jsonl'?"),
        ({"task": "arc_easy", "fewshot_data": "arc.jsonl"}, "only used together with `data`"),
        ({"task": "arc_easy", "perplexity": "prose.jsonl"}, "got perplexity and task"),
        ({"perplexty": "prose.jsonl"}, "Did you mean 'perplexity'?"),
    ],
)
def test_each_mistake_is_named(folder, entry, says):
    plan, problems = parse_evaluation({"source": [entry]}, base_dir=folder)
    assert len(problems) == 1
    assert problems[0].startswith("evaluation.source[0]")
    assert says in problems[0]
    assert plan.entries == ()


def test_a_hub_data_set_with_its_split_is_accepted(folder):
    plan, problems = parse_evaluation({"source": [{"perplexity": "owner/data", "split": "test"}]}, base_dir=folder)
    assert problems == []
    assert (plan.entries[0].data, plan.entries[0].split) == ("owner/data", "test")


def test_two_entries_of_one_name_are_refused_in_a_suite_and_fine_across_suites(folder):
    text = problems_of({"source": ["arc_easy", {"task": "arc_easy", "limit": 3}]}, folder)
    assert "source[1]: the name 'arc_easy' is taken by evaluation.source[0]" in text
    assert problems_of({"source": ["arc_easy"], "target": ["arc_easy"]}, folder) == ""


def test_misspelt_suites_are_no_suites(folder):
    assert "Did you mean 'source'?" in problems_of({"sources": ["arc_easy"]}, folder)
    assert "source: expected a list of entries" in problems_of({"source": "arc_easy"}, folder)
    assert "expected suites" in problems_of(["arc_easy"], folder)


def test_working_directory_is_tried_second(folder, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "only_here.jsonl").write_text("{}\n")
    monkeypatch.chdir(elsewhere)
    plan, problems = parse_evaluation({"source": ["only_here.jsonl"]}, base_dir=folder)
    assert problems == []
    assert plan.entries[0].data == str((elsewhere / "only_here.jsonl").resolve())


def test_parsing_loads_no_heavy_library():
    code = "import sys, holdfast.evaluation.suite; print([m for m in ('torch', 'lm_eval', 'transformers', 'datasets', 'numpy') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_shipped_suites_and_local_files_in_a_config(folder):
    plan, problems = parse_evaluation(
        {
            "source": ["prose.jsonl", {"task": "piqa", "num_fewshot": 0}],
            "suites": ["knowledge"],
            "data": {"arc_easy": "arc.jsonl"},
            "skip": ["boolq"],
            "limit": 7,
        },
        base_dir=folder,
    )
    assert problems == []
    names = [e.name for e in plan.entries]
    assert names == ["prose", "piqa", "arc_easy", "arc_challenge", "winogrande", "copa", "hellaswag"], (
        "piqa is there once, boolq not"
    )
    assert (
        plan.tasks["arc_easy"].data == str(folder / "arc.jsonl")
        and plan.tasks["piqa"].limit == 7
        and plan.entries[0].max_documents == 7
    )
    assert plan.averages == (), "an average of what is not measured goes"


def test_mistakes_in_suites_and_files(folder):
    text = problems_of(
        {"suites": ["knowlege", 3], "data": {"arc_easy": "nowhere.jsonl"}, "limit": 0, "skip": {"a": 1}}, folder
    )
    for part in (
        "evaluation.suites: expected names such as [knowledge]",
        "evaluation.data.arc_easy: no such file or folder 'nowhere.jsonl'",
        "evaluation.limit: expected a whole number of at least 1, got 0",
        "evaluation.skip: expected names of entries",
    ):
        assert part in text
    assert "evaluation.suites: unknown suite 'knowlege'. Did you mean 'knowledge'?" in problems_of(
        {"suites": "knowlege"}, folder
    )
    text = problems_of({"suites": "label_annealing-code", "data": {"arc_easy": "arc.jsonl"}}, folder)
    assert "evaluation.data: no entry or task 'arc_easy'" in text and "'humaneval' runs programs" in text
    plan, problems = parse_evaluation({"suites": "label_annealing-code", "skip": "humaneval"})
    assert problems == [] and [e.kind for e in plan.entries] == ["task"] * 4


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"classes": "prose.jsonl", "prompt": "{text}"}, "`classes` needs `options`"),
        ({"classes": "prose.jsonl", "prompt": "{text}", "options": ["a"]}, "at least two texts"),
        ({"classes": "prose.jsonl", "prompt": "{text}", "options": ["a", "a"]}, "expected different texts"),
        ({"memorisation": "prse.jsonl"}, "Did you mean 'prose.jsonl'?"),
        ({"answers": "mmlu", "metric": "acc"}, "unknown key"),
        ({"task": "arc_easy", "samples": 3}, "only for tasks whose answers are programs"),
        ({"task": "arc_easy", "answers": "mmlu"}, "got task and answers"),
    ],
)
def test_mistakes_in_the_other_kinds(folder, entry, says):
    assert says in problems_of({"source": [entry]}, folder)


def test_averages(folder):
    config = {
        "source": ["arc_easy", {"task": "ifeval", "name": "if"}],
        "averages": {"a": ["arc_easy", "if/prompt_level_strict_acc", "source/arc_easy/acc_norm"]},
    }
    plan, problems = parse_evaluation(config, base_dir=folder)
    assert problems == []
    assert plan.averages[0].members == (
        ("source", "arc_easy", None),
        ("source", "if", "prompt_level_strict_acc"),
        ("source", "arc_easy", "acc_norm"),
    )
    assert "Did you mean 'arc_easy'?" in problems_of({"source": ["arc_easy"], "averages": {"a": ["arc_esy"]}}, folder)
    assert "expected a name and a list" in problems_of({"source": ["arc_easy"], "averages": ["arc_easy"]}, folder)
