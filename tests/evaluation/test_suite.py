"""The `evaluation:` section: what is understood, and that every mistake is named at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from evaluation.conftest import parsed
from holdfast.evaluation import runner
from holdfast.evaluation.kinds.perplexity import PerplexityEntry
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.evaluation.shipped import shipped_suites
from holdfast.evaluation.suite import parse_evaluation, suite_schema
from holdfast.models import Loaded
from holdfast.records.evaluation import EvaluationFolder

OWN = """\
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.config.declare import Meta
from holdfast.evaluation.entries import OwnMeasure

nothing = 0


class Bare(OwnMeasure):
    def measure(self, model, tokenizer):
        return []


@dataclass(frozen=True)
class Length(OwnMeasure):
    metrics: ClassVar = {"letters": True, "odd": False}
    most: Annotated[int, Meta(ge=1)] = 3

    def measure(self, model, tokenizer):
        assert not model.training
        return [{'letters': n, 'odd': n % 2} for n in range(1, self.most + 1)]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("prose.jsonl", "answers.jsonl.gz", "arc.jsonl", "mine.yaml"):
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "books").mkdir()
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def problems_of(config, folder: Path) -> str:
    return "\n".join(parsed(config, folder)[1])


def test_the_documented_shape(folder):
    plan, problems = parsed(
        {
            "learn": [
                {"perplexity": "answers.jsonl.gz", "prompt": "Question: {question}\nAnswer:", "completion": " {answer}"}
            ],
            "style": ["arc_easy"],
            "keep": [
                {"perplexity": "prose.jsonl", "window": 32, "stride": 16, "max_documents": 5},
                "arc_easy",
                {"task": "arc_easy", "name": "arc_local", "data": "arc.jsonl", "num_fewshot": 0, "limit": 200},
                "mine.yaml",
                "books",
            ],
            "batch_size": 4,
            "before": False,
        },
        folder,
    )
    assert problems == []
    assert [(e.suite, e.name, e.kind) for e in plan.entries] == [
        ("keep", "prose", "perplexity"),
        ("keep", "arc_easy", "task"),
        ("keep", "arc_local", "task"),
        ("keep", "mine", "task"),
        ("keep", "books", "perplexity"),
        ("learn", "answers", "perplexity"),
        ("style", "arc_easy", "task"),
    ]
    assert plan.suites == ("keep", "learn", "style")
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


def test_all_problems_at_once(folder):
    text = problems_of(
        {
            "keep": [
                {"perplexity": "prse.jsonl"},
                {"perplexity": "prose.jsonl", "windw": 3, "stride": "x"},
                {"task": "arc_easy", "limit": True},
                {"prompt": "{a}"},
                7,
            ],
            "batch_sise": 8,
            "before": "maybe",
            "suites": ["knowlege", 3],
            "data": {"arc_easy": "nowhere.jsonl"},
            "limit": 0,
            "skip": {"a": 1},
        },
        folder,
    )
    for part in (
        "Did you mean 'prose.jsonl'?",
        "evaluation.keep[1]: unknown key 'windw'. Did you mean 'window'?",
        "evaluation.keep[1].stride: expected a whole number of at least 1, got 'x'",
        "evaluation.keep[2].limit: expected a whole number of at least 1, got True",
        "evaluation.keep[3]: expected one of `perplexity: <data file>`, `task: <task>`",
        "evaluation.keep[4]: expected a task name",
        "evaluation.batch_sise: unknown key. Did you mean 'batch_size'?",
        "evaluation.before: expected true or false, got 'maybe'",
        "evaluation.suites: unknown suite 'knowlege'. Did you mean 'knowledge'?",
        "evaluation.data.arc_easy: no such file or folder 'nowhere.jsonl'",
        "evaluation.limit: expected a whole number of at least 1, got 0",
        "evaluation.skip: expected names of entries",
    ):
        assert part in text


CLASSES = {"classification": "prose.jsonl", "prompt": "{text}"}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"perplexity": "prose.jsonl", "prompt": "{a}"}, "expected both `prompt`"),
        (
            {"perplexity": "prose.jsonl", "text": "{a}", "prompt": "{a}", "completion": "{b}"},
            "expected either `text`",
        ),
        ({"perplexity": "prose.jsonl", "text": "{a"}, "write a literal brace twice"),
        ({"perplexity": "prose.jsonl", "text": "no columns"}, "a template that names columns"),
        ({"perplexity": "prose.jsonl", "window": 8, "stride": 8}, ".stride: expected less than the window (8), got 8"),
        ({"perplexity": "prose"}, "A hub data set has the form owner/name"),
        ({"perplexity": "owner/data"}, "needs `split:`"),
        ({"task": "prose.jsonl"}, "Write `perplexity: prose.jsonl`"),
        ({"task": "arc_easy", "data": "arc.json"}, "Did you mean 'arc.jsonl'?"),
        ({"task": "arc_easy", "fewshot_data": "arc.jsonl"}, ".fewshot_data: needs `data`"),
        ({"task": "arc_easy", "perplexity": "prose.jsonl"}, "got task and perplexity"),
        ({"perplexty": "prose.jsonl"}, "Did you mean 'perplexity'?"),
        (CLASSES, ".options: is missing: expected at least two different texts"),
        ({"task": "arc_easy", "samples": 3}, ".samples: only for tasks whose answers are programs"),
        ("own.py:Nothing", "own.py has no 'Nothing'"),
        ("own.py:nothing", "expected a subclass of holdfast.evaluation.entries.OwnMeasure"),
        ("own.py:Bare", "expected a dataclass with a method `measure` and a dictionary `metrics`"),
        ({"own.py:Length": {"most": 0}}, "own.py:Length.most: expected a whole number of at least 1, got 0"),
        ({"own.py:Length": {"mst": 1}}, "unknown key 'mst'. Did you mean 'most'?"),
    ],
)
def test_each_mistake_is_named(folder, entry, says):
    plan, problems = parsed({"keep": [entry]}, folder)
    assert len(problems) == 1
    assert problems[0].startswith("evaluation.keep[0]")
    assert says in problems[0]
    assert plan.entries == ()


def test_two_entries_of_one_name_are_refused_in_a_suite_and_fine_across_suites(folder):
    text = problems_of({"keep": ["arc_easy", {"task": "arc_easy", "limit": 3}]}, folder)
    assert "keep[1]: the name 'arc_easy' is used by evaluation.keep[0]" in text
    assert problems_of({"keep": ["arc_easy"], "learn": ["arc_easy"]}, folder) == ""


def test_shipped_suites_and_local_files_in_a_config(folder):
    plan, problems = parsed(
        {
            "keep": ["prose.jsonl", {"task": "piqa", "num_fewshot": 0}],
            "suites": ["knowledge"],
            "data": {"arc_easy": "arc.jsonl"},
            "skip": ["boolq"],
            "limit": 7,
        },
        folder,
    )
    assert problems == []
    names = [e.name for e in plan.entries]
    assert names == ["prose", "piqa", "arc_easy", "arc_challenge", "winogrande", "copa", "hellaswag"], (
        "piqa is there once, boolq not"
    )
    entries = {entry.name: entry for entry in plan.entries}
    assert entries["arc_easy"].data == str(folder / "arc.jsonl")
    assert entries["piqa"].limit == 7 and entries["prose"].max_documents == 7
    assert plan.averages == (), "an average of what is not measured goes"


def test_programs_in_a_suite_need_permission_or_are_skipped(folder):
    text = problems_of({"suites": "label_annealing-code", "data": {"arc_easy": "arc.jsonl"}}, folder)
    assert "evaluation.data: no entry or task 'arc_easy'" in text and "'humaneval' runs programs" in text
    plan, problems = parse_evaluation({"suites": "label_annealing-code", "skip": "humaneval"})
    assert problems == [] and [e.kind for e in plan.entries] == ["task"] * 4


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            {"task": "humaneval", "apply_chat_template": True},
            "apply_chat_template: humaneval does not use this setting",
        ),
        ({"task": "humaneval_instruct", "num_fewshot": 5}, "num_fewshot: humaneval_instruct does not use this setting"),
        (
            {"task": "humaneval", "metric": "pass@10", "samples": 10},
            "metric: expected pass@1, the first metric of humaneval, got 'pass@10'",
        ),
        ({"task": "humaneval", "num_fewshot": 5, "metric": "pass@1", "apply_chat_template": False}, None),
        ({"task": "humaneval_instruct", "num_fewshot": 0, "apply_chat_template": True}, None),
    ],
)
def test_settings_that_a_task_with_programs_does_not_read(folder, entry, problem):
    found = problems_of({"keep": [entry], "allow_code_execution": True}, folder)
    assert found == "" if problem is None else problem in found


def test_averages(folder):
    config = {
        "keep": ["arc_easy", {"task": "ifeval", "name": "if"}],
        "averages": {"a": ["arc_easy", "if/prompt_level_strict_acc", "keep/arc_easy/acc_norm"]},
    }
    plan, problems = parsed(config, folder)
    assert problems == []
    assert plan.averages[0].members == (
        ("keep", "arc_easy", None),
        ("keep", "if", "prompt_level_strict_acc"),
        ("keep", "arc_easy", "acc_norm"),
    )
    assert "Did you mean 'arc_easy'?" in problems_of({"keep": ["arc_easy"], "averages": {"a": ["arc_esy"]}}, folder)
    assert "expected a name and a list" in problems_of({"keep": ["arc_easy"], "averages": ["arc_easy"]}, folder)


# -------------------------------------------------------------------------------------------------------- finding again

SECTION = {
    "keep": [
        {"perplexity": "prose.jsonl", "window": 32, "stride": 16, "max_documents": 5},
        {"perplexity": "owner/prose", "split": "test", "config": "en", "name": "hub"},
        {"perplexity": "prose.jsonl", "name": "given", "prompt": "{text}", "completion": "{text}"},
        {"memorisation": "prose.jsonl", "text": "{text}"},
        {
            "classification": "prose.jsonl",
            "name": "listed",
            "prompt": "{text}",
            "options": [" a", " b"],
            "label": "kind",
        },
        {"classification": "prose.jsonl", "name": "mapped", "prompt": "{text}", "options": {0: " a", "x": " b"}},
        {"multiple_choice": "prose.jsonl", "name": "choices", "length_normalised": False, "group": "text"},
        {"instructions": "asked.jsonl", "max_new_tokens": 32, "apply_chat_template": True},
    ],
    "learn": [
        "arc_easy",
        {"task": "arc_easy", "name": "local", "data": "prose.jsonl", "fewshot_data": "asked.jsonl", "num_fewshot": 5},
        {"task": "ifeval", "limit": 3, "apply_chat_template": True, "metric": "inst_level_strict_acc"},
        {"task": "mine.yaml"},
        {"answer_distribution": "mmlu", "num_fewshot": 5},
        {"task": "humaneval", "samples": 20, "temperature": 0.2},
    ],
    "averages": {"both": ["arc_easy", "mmlu-answers/acc"]},
    "batch_size": 4,
    "seed": 7,
    "confidence": 0.9,
    "allow_code_execution": True,
}
MINE = "task: mine\ndataset_path: json\ndataset_kwargs: {data_files: {test: prose.jsonl}}\noutput_type: loglikelihood\n"
KEYS_OF_VERSION_0_1 = {
    "prose": "ed9f03e6130c2ae5",
    "hub": "2d8231e9e42c3d09",
    "given": "163a83af59bfcf00",
    "prose-memorisation": "8ea3caa63bf494ab",
    "listed": "eb3efc59eaca37a5",
    "mapped": "bfafaf1bfc0495a7",
    "choices": "9f33c4054d544d16",
    "asked": "30779ff40c59ed6b",
    "arc_easy": "34dd1c166ed826fd",
    "local": "97058f3fe1487e48",
    "ifeval": "f557d3d4a3a65da5",
    "mine": "ecde3a780b0b0a1f",
    "mmlu-answers": "f202b79ba2e94e37",
    "humaneval": "d4030ec52067774d",
}


def test_evaluations_of_before_are_found_again(tmp_path, monkeypatch):
    """Keys of entries and fingerprints of plans, as commit 84277cf computed them, at library versions of "1".
    Those of kinds that were renamed since are as they are now."""
    import importlib.metadata

    from holdfast.evaluation.text import sentences

    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1")
    monkeypatch.setattr(runner, "package_version", lambda name: "1")
    monkeypatch.setattr(sentences, "sentence_model", lambda: "s")
    (tmp_path / "prose.jsonl").write_text('{"text": "a", "label": 0}\n')
    (tmp_path / "asked.jsonl").write_text('{"prompt": "a", "instruction_id_list": ["plain:quotes"], "kwargs": [{}]}\n')
    (tmp_path / "mine.yaml").write_text(MINE)
    monkeypatch.setattr(runner, "_RULES", 2)  # which stands in every key: what settings make of it is looked at here
    plan, problems = parsed(SECTION, tmp_path)
    assert problems == []
    kept = runner._Kept(
        plan=plan, folder=EvaluationFolder(tmp_path), tokenizer_hash="tokenizer", model_identity={"hash": "model"},
        cache=None, start=None, processor=None,
    )  # fmt: skip
    assert {e.name: kept.key(e)[:16] for e in plan.entries} == (KEYS_OF_VERSION_0_1)
    target = [SECTION["learn"][number] for number in (0, 4, 5)]  # no local files: their places would be part of it
    names = ("averages", "seed", "allow_code_execution")
    shorter = {"keep": [SECTION["keep"][1]], "learn": target, **{key: SECTION[key] for key in names}}
    plan, problems = parse_evaluation(shorter)
    assert problems == []
    assert runner.plan_fingerprint(plan)[:16] == "bbf033e08043f326"


# --------------------------------------------------------------------------------------------------------------- schema


def test_the_schema_takes_what_is_shipped_and_documented():
    jsonschema = pytest.importorskip("jsonschema")
    schema = suite_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for value in (*(yaml.safe_load(path.read_text()) for path in shipped_suites().values()), SECTION):
        assert [error.message for error in validator.iter_errors(value)] == []
    for entry in (
        {"perplexity": "a.jsonl", "windw": 3},
        {"perplexity": "a.jsonl", "window": 1},
        {"classification": "a.jsonl", "prompt": "{a}"},
        {"answer_distribution": "mmlu", "metric": "acc"},
        {"own.py:Length": 3},
        7,
    ):
        assert not validator.is_valid({"keep": [entry]}), entry
    assert not validator.is_valid({"batch_size": 0}) and not validator.is_valid({"batch_sise": 8})


# ---------------------------------------------------------------------------------------------------------- one's own


def test_an_entry_of_ones_own(folder, tiny_model, tiny_tokenizer):
    plan, problems = parsed({"keep": [{"own.py:Length": {"most": "2"}}, "own.py:Length"]}, folder)
    assert len(problems) == 1 and "the name 'Length' is used" in problems[0]
    entries = [{"own.py:Length": {"most": "2"}}, {"own.py:Length": None, "name": "short"}]
    plan, problems = parsed({"keep": entries}, folder)
    assert problems == []
    two, short = plan.entries
    assert (two.kind, two.name, two.own.most, short.name, short.own.most) == ("own", "Length", 2, "short", 3)
    assert runner.check_plan(plan, tiny_tokenizer) == []
    found = EvaluationFolder(folder / "out")
    loaded = Loaded(model=tiny_model, tokenizer=tiny_tokenizer, identity={"name": "m", "hash": "h"})
    done = runner.evaluate(loaded, plan, folder=found)
    assert [(e.primary, e.metrics["letters"].value, e.metrics["letters"].n) for e in done] == [
        ("letters", 1.5, 2),
        ("letters", 2.0, 3),
    ]
    assert done[0].metrics["letters"].higher_is_better and not done[0].metrics["odd"].higher_is_better
    kept = runner.kept_evaluations(plan, tiny_tokenizer, found, {"name": "m", "hash": "h"})
    assert kept is not None and [e.key for e in kept] == [e.key for e in done]
    before = runner.plan_fingerprint(plan)
    (folder / "own.py").write_text(OWN + "# changed\n")
    again, _ = parsed({"keep": entries}, folder)
    assert runner.kept_evaluations(again, tiny_tokenizer, found, {"name": "m", "hash": "h"}) is None
    assert runner.plan_fingerprint(again) != before
