"""Every benchmark of the suites on the files that are published, and the harness's own numbers on the same files, one a
family of tasks."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from evaluation.conftest import make_model, make_tokenizer, measured
from holdfast.evaluation.judge.answers import read_prompts
from holdfast.evaluation.kinds.answer_distribution import AnswerDistributionEntry
from holdfast.evaluation.kinds.code import CodeEntry
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.evaluation.measures import check
from holdfast.evaluation.tasks.harness_model import SharedPrefixLM

FILES = {
    "mmlu": ("eval_sets/hf_mmlu_test.jsonl.gz", "eval_sets/hf_mmlu_dev.jsonl.gz"),
    "mmlu_anatomy": ("eval_sets/hf_mmlu_validation.jsonl.gz", None),
    "arc_challenge": ("eval_sets/hf_ai2_arc_ARC-Challenge_validation.jsonl.gz", None),
    "boolq": ("eval_sets/hf_boolq_validation.jsonl.gz", None),
    "piqa": ("eval_sets/hf_piqa_validation.jsonl.gz", None),
    "winogrande": ("eval_sets/hf_winogrande_winogrande_xl_validation.jsonl.gz", None),
    "copa": ("eval_sets/hf_super_glue_copa_validation.jsonl.gz", None),
    "truthfulqa_mc2": ("truthfulqa/TruthfulQA.csv", None),
    "gsm8k": ("gsm8k/test.jsonl", "gsm8k/train.jsonl.gz"),
    "ifeval": ("ifeval/input_data.jsonl", None),
    "lettered": ("eval_sets/oe_arc_challenge_test.docs.jsonl.gz", None),
}
METRIC = {
    "ifeval": {"prompt_level_strict_acc", "inst_level_strict_acc", "prompt_level_loose_acc", "inst_level_loose_acc"},
    "gsm8k": {"exact_match,strict-match", "exact_match,flexible-extract"},
}


@pytest.fixture(scope="module")
def model():
    return make_model(positions=256)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def an_entry(shared: Path, task: str, kind: type[TaskEntry] = TaskEntry, **changes) -> TaskEntry:
    data, shown = FILES[task]
    files = {"data": str(shared / data), "fewshot_data": str(shared / shown) if shown else None}
    return kind(suite="keep", name=task, task=task, **{**files, "limit": 4, **changes})


@pytest.mark.parametrize("task", [t for t in FILES if t != "mmlu"])
def test_each_benchmark_runs_on_its_published_file(shared_data, model, tokenizer, task):
    if task in ("gsm8k", "ifeval"):
        pytest.skip("generation is tested below")
    scores = measured(model, tokenizer, an_entry(shared_data, task, num_fewshot=0))
    assert METRIC.get(task, {"acc"}) <= set(scores.metrics)
    assert len(scores.rows) == 4
    for row in scores.rows:
        assert row["question"] and len(row["choices"]) == len(row["loglikelihoods"]) >= 2
        assert row["gold"] is not None and 0 <= row["answer"] < len(row["choices"])
        if task != "truthfulqa_mc2":  # a share of probability there, not right or wrong
            assert row["acc"] == float(row["answer"] == row["gold"])


@pytest.mark.slow
def test_the_whole_of_mmlu_is_divided_into_its_subjects(shared_data, tokenizer):
    from holdfast.evaluation.tasks.tasks import load_tasks

    tasks = load_tasks(an_entry(shared_data, "mmlu", num_fewshot=5, limit=None))
    assert len(tasks) == 57
    assert sum(len(task.eval_docs) for task in tasks.values()) == 14042


@pytest.mark.parametrize(
    "task",
    [
        "piqa",
        "winogrande",
        "truthfulqa_mc2",
        *(pytest.param(t, marks=pytest.mark.slow) for t in ("copa", "arc_challenge", "lettered")),
    ],
)
def test_the_harness_says_the_same(shared_data, model, tokenizer, task, monkeypatch):
    """Its own HFLM, one request a row and padded batches, against shared prefixes: log-likelihoods to 1e-4 and equal
    figures."""
    entry = an_entry(shared_data, task, num_fewshot=1 if task != "truthfulqa_mc2" else None, limit=12)
    ours = measured(model, tokenizer, entry)
    original = SharedPrefixLM.__init__

    def apart(self, *args, **kwargs):
        original(self, *args, **{**kwargs, "share": False})

    monkeypatch.setattr(SharedPrefixLM, "__init__", apart)
    theirs = measured(model, tokenizer, entry)
    for a, b in zip(ours.rows, theirs.rows, strict=True):
        assert (a["doc"], a["prompt"]) == (b["doc"], b["prompt"])
        assert a["loglikelihoods"] == pytest.approx(b["loglikelihoods"], rel=2e-7, abs=1e-4)
    assert {k: v.value for k, v in ours.metrics.items()} == pytest.approx(
        {k: v.value for k, v in theirs.metrics.items()}, abs=1e-6
    )


def test_the_harness_itself_says_the_same(shared_data, model, tokenizer, tmp_path):
    """`lm_eval.simple_evaluate` with `HFLM` on a task YAML of the same rows, nothing of ours in between."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from holdfast.data.sources import load_rows

    rows = [dict(row) for row in itertools.islice(load_rows(str(shared_data / FILES["piqa"][0])), 16)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "goals.yaml").write_text(
        "task: goals\ndataset_path: json\n"
        f"dataset_kwargs: {{data_files: {{test: {tmp_path}/rows.jsonl}}}}\n"
        "test_split: test\noutput_type: multiple_choice\n"
        'doc_to_text: "Question: {{goal}}\\nAnswer:"\ndoc_to_target: label\ndoc_to_choice: "{{[sol1, sol2]}}"\n'
        "metric_list:\n  - {metric: acc, aggregation: mean, higher_is_better: true}\n  - {metric: acc_norm, "
        "aggregation: mean, higher_is_better: true}\n"
    )
    theirs = lm_eval.simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, max_length=256),
        tasks=["goals"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
    )
    ours = measured(model, tokenizer, an_entry(shared_data, "piqa", limit=16))
    assert ours.metrics["acc"].value == theirs["results"]["goals"]["acc,none"]
    assert ours.metrics["acc_norm"].value == theirs["results"]["goals"]["acc_norm,none"]
    for row, sample in zip(ours.rows, theirs["samples"]["goals"], strict=True):
        assert row["loglikelihoods"] == pytest.approx([float(r[0][0]) for r in sample["resps"]], abs=1e-4)


def test_gsm8k_generates_and_matches(shared_data, model, tokenizer, monkeypatch):
    monkeypatch.setattr(SharedPrefixLM, "max_gen_toks", property(lambda self: 8))
    scores = measured(model, tokenizer, an_entry(shared_data, "gsm8k", num_fewshot=1, limit=3))
    assert METRIC["gsm8k"] == set(scores.metrics)
    assert all("#### " in row["gold"] and isinstance(row["output"], str) for row in scores.rows)


def test_the_four_metrics_of_ifeval(shared_data, model, tokenizer, monkeypatch):
    """Answers that follow some instructions: figures against a count by hand."""
    answers = ["no commas here " * 30, "Short, indeed."]
    monkeypatch.setattr(
        SharedPrefixLM,
        "generate_until",
        lambda self, requests, disable_tqdm=False: [answers[i % 2] for i in range(len(requests))],
    )
    scores = measured(model, tokenizer, an_entry(shared_data, "ifeval", limit=20))
    assert METRIC["ifeval"] == set(scores.metrics)
    for level in ("strict", "loose"):
        followed = sum(row[f"inst_level_{level}_acc"] for row in scores.rows)
        asked = sum(row[f"inst_level_{level}_acc#"] for row in scores.rows)
        metric = scores.metrics[f"inst_level_{level}_acc"]
        assert metric.value == pytest.approx(followed / asked) and 0 < followed < asked
        assert metric.interval[0] < metric.value < metric.interval[1]
    again = measured(model, tokenizer, an_entry(shared_data, "ifeval", limit=20))
    assert again.metrics == scores.metrics, "the same answers are judged alike"


def test_programs_of_the_release_pass_and_empty_ones_do_not(shared_data, model, tokenizer, monkeypatch):
    from holdfast.data.sources import load_rows

    data = shared_data / "human_eval" / "HumanEval.jsonl.gz"
    solutions = {row["prompt"]: row["canonical_solution"] for row in load_rows(str(data))}
    asked = []

    def generate(self, requests, disable_tqdm=False):
        asked.extend(requests)
        return [solutions[r.args[0]] if i % 2 == 0 else "    pass\n" for i, r in enumerate(requests)]

    monkeypatch.setattr(SharedPrefixLM, "generate_until", generate)
    entry = CodeEntry(suite="learn", name="humaneval", task="humaneval", data=str(data), limit=3, samples=2)
    found = measured(model, tokenizer, entry, allow_code_execution=True)
    assert found.primary == "pass@1" and found.metrics["pass@1"].value == pytest.approx(0.5)
    assert all(row["n"] == 2 and row["correct"] == 1 and row["pass@1"] == 0.5 for row in found.rows)
    assert found.settings["samples"] == 2 and len(asked) == 6 and asked[0].args[1]["do_sample"] is True


@pytest.mark.parametrize("name", ["mbpp.jsonl.gz", "sanitized-mbpp.json"])
def test_both_files_of_mbpp(shared_data, model, tokenizer, monkeypatch, name):
    from holdfast.evaluation.kinds.code import read_problems

    entry = CodeEntry(suite="learn", name="mbpp", task="mbpp", data=str(shared_data / "mbpp" / name), limit=2)
    problems, shown = read_problems(entry)
    assert [p["task_id"] for p in shown] == [2, 3, 4] and problems[0]["task_id"] >= 11
    solutions = iter([p["code"] for p in problems])
    monkeypatch.setattr(
        SharedPrefixLM, "generate_until", lambda self, requests, disable_tqdm=False: [next(solutions) for _ in requests]
    )
    check(entry, tokenizer)
    found = measured(model, tokenizer, entry, allow_code_execution=True)
    assert found.metrics["pass@1"].value == 1.0, [row["reasons"] for row in found.rows]


def test_answer_positions_of_mmlu(shared_data, model, tokenizer):
    entry = an_entry(shared_data, "mmlu_anatomy", AnswerDistributionEntry, num_fewshot=2, limit=10)
    found = measured(model, tokenizer, entry)
    rows = found.rows
    assert found.primary == "mass" and found.settings["num_fewshot"] == 2 and len(rows) == 10
    from holdfast.evaluation.tasks.tasks import load_tasks

    task = next(iter(load_tasks(entry).values()))
    task.set_fewshot_seed(seed=0)
    letters = {
        letter: [
            t
            for text in (letter, f" {letter}")
            if len(t := tokenizer(text, add_special_tokens=False)["input_ids"]) == 1
        ]
        for letter in "ABCD"
    }
    for doc, row in zip(task.eval_docs, rows, strict=False):
        context = task.fewshot_context(doc, num_fewshot=2)
        ids = tokenizer(context)["input_ids"][-256:]
        with torch.no_grad():
            p = model(torch.tensor([ids])).logits[0, -1].double().softmax(-1)
        shares = [sum(float(p[t[0]]) for t in letters[letter]) for letter in "ABCD"]
        assert row["mass"] == pytest.approx(sum(shares), abs=1e-5)
        assert row["probabilities"] == pytest.approx([s / sum(shares) for s in shares], abs=1e-4)
        assert row["entropy"] == pytest.approx(float(-(p * p.log()).sum()), abs=1e-4)
        assert row["option_entropy"] == pytest.approx(
            -sum(s / sum(shares) * math.log(s / sum(shares)) for s in shares), abs=1e-4
        )
        assert row["gold"] == doc["answer"] and row["acc"] == float(shares.index(max(shares)) == doc["answer"])


def test_generation_is_the_harness_s_own(model, tokenizer):
    """Groups of a few batches say what HFLM says of all requests at once, greedily and sampled twice alike."""
    from types import SimpleNamespace

    from lm_eval.models.huggingface import HFLM

    from holdfast.evaluation.tasks.harness import without_traces

    how = {"until": ["."], "max_gen_toks": 6, "do_sample": False}
    requests = [SimpleNamespace(args=("The quick brown fox " * (1 + i % 5) + str(i), dict(how))) for i in range(23)]
    with without_traces(model, tokenizer, seed=0):
        ours = SharedPrefixLM(model, tokenizer, batch_size=2, length=256).generate_until(requests)
        theirs = HFLM(
            pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=1, max_length=256
        ).generate_until(requests, disable_tqdm=True)
        assert ours == theirs
        for request in requests:
            request.args[1].update(do_sample=True, temperature=1.0)
        sampled = [
            SharedPrefixLM(model, tokenizer, batch_size=2, length=256, seed=3).generate_until(requests)
            for _ in range(2)
        ]
        assert sampled[0] == sampled[1] != ours


def test_answers_longer_than_the_context_end_after_half_of_it(shared_data, tokenizer):
    """IFEval asks for 1280 tokens, where the harness gives up on a model of 64."""
    short = make_model(positions=64)
    scores = measured(short, tokenizer, an_entry(shared_data, "ifeval", limit=2))
    note = "The model's context has 64 tokens, so answers were cut after 32; the task allows longer ones."
    assert note in scores.settings["notes"]
    longest = max(len(tokenizer.decode([token])) for token in range(len(tokenizer)))
    assert [len(row["output"]) <= 32 * longest for row in scores.rows] == [True, True]


def test_known_prompt_files(shared_data):
    assert len(read_prompts(shared_data / "instruct_fastchat" / "vicuna_bench_question.jsonl")) == 80
    assert len(read_prompts(shared_data / "instruct_fastchat" / "mt_bench_question.jsonl")) == 80
    found = read_prompts(shared_data / "instruct_self_instruct" / "user_oriented_instructions.jsonl")
    assert len(found) > 240 and found[0].endswith("please let me know.")
