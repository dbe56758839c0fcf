"""Tasks of the harness: local YAML, built-in redirected to local data, and no traces left behind."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path

import pytest
import torch

from data_files import jsonl
from evaluation.conftest import make_model, make_tokenizer, measured
from holdfast.errors import ConfigError, DataError, ModelError
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.evaluation.tasks.harness import load

ARC = [
    {
        "id": f"q{i}",
        "question": f"Which thing number {i} is a dog?",
        "choices": {"text": ["the fox", "the lazy dog", f"ship {i}"], "label": ["A", "B", "C"]},
        "answerKey": "ABC"[i % 3],
    }
    for i in range(8)
]


def write_rows(path: Path, rows: list[dict]) -> str:
    jsonl(path, rows)
    return str(path)


def an_entry(task: str, **changes) -> TaskEntry:
    return TaskEntry(suite="keep", name="it", task=task, **changes)


def choice_nats(model, tokenizer, context: str, choice: str) -> float:
    """Log-likelihood of a choice the way the harness asks: tokens of context + choice after those of the context."""
    whole = tokenizer(context + choice)["input_ids"]
    start = len(tokenizer(context)["input_ids"])
    with torch.no_grad():
        log_p = model(input_ids=torch.tensor([whole])).logits[0].double().log_softmax(-1)
    return sum(float(log_p[t - 1, whole[t]]) for t in range(start, len(whole)))


def test_local_task_agrees_with_the_models_own_likelihoods(tiny_model, tiny_tokenizer, colour_task):
    scores = measured(tiny_model, tiny_tokenizer, an_entry(str(colour_task)), batch_size=3)
    assert scores.primary == "acc"
    assert len(scores.rows) == 10
    for i, row in enumerate(scores.rows):
        context = f"Question: Is item {i} red or blue?\nAnswer:"
        values = [choice_nats(tiny_model, tiny_tokenizer, context, f" {c}") for c in ("red", "blue")]
        assert row["acc"] == float(values.index(max(values)) == i % 2)
    metric = scores.metrics["acc"]
    assert metric.value == pytest.approx(sum(r["acc"] for r in scores.rows) / 10)
    assert (metric.n, metric.unit, metric.higher_is_better) == (10, "accuracy", True)
    assert metric.interval is not None
    assert len({r["doc"] for r in scores.rows}) == len({r["prompt"] for r in scores.rows}) == 10


def test_fewshot_examples_never_show_the_question_asked(tiny_model, tiny_tokenizer, tmp_path, monkeypatch):
    import lm_eval.models.huggingface as hf

    data = write_rows(tmp_path / "arc.jsonl", ARC)
    contexts: list[str] = []
    original = hf.HFLM.loglikelihood

    def spy(self, requests, **kwargs):
        contexts.extend(r.args[0] for r in requests)
        return original(self, requests, **kwargs)

    monkeypatch.setattr(hf.HFLM, "loglikelihood", spy)
    model = make_model(positions=512)
    scores = measured(model, tiny_tokenizer, an_entry("arc_easy", data=data, num_fewshot=7))
    assert "never include the question that is asked" in scores.settings["notes"][0]
    for context in contexts:
        questions = [line for line in context.split("\n") if line.startswith("Question")]
        assert len(questions) == len(set(questions)) == 8
    contexts.clear()
    examples = write_rows(tmp_path / "shots.jsonl", [{**ARC[0], "question": f"Example {i}?"} for i in range(2)])
    shown = measured(model, tiny_tokenizer, an_entry("arc_easy", data=data, fewshot_data=examples, num_fewshot=2))
    assert not any("Few-shot" in note for note in shown.settings["notes"])
    assert all(context.count("Example") == 2 for context in contexts)
    with pytest.raises(DataError, match="too few for 8 examples"):
        measured(model, tiny_tokenizer, an_entry("arc_easy", data=data, num_fewshot=8))


def test_missing_columns_are_named(tiny_tokenizer, tmp_path):
    data = write_rows(tmp_path / "arc.jsonl", [{"question": "a", "options": ["x"], "answer": 1}])
    with pytest.raises(DataError, match=r"lacks answerKey, choices.*it has question, options, answer.*ai2_arc"):
        load(an_entry("arc_easy", data=data), tiny_tokenizer)
    with pytest.raises(DataError, match=r"lacks label"):
        load(
            an_entry("boolq", data=write_rows(tmp_path / "b.jsonl", [{"question": "a", "passage": "b", "idx": 1}])),
            tiny_tokenizer,
        )


def test_answers_outside_the_choices_are_no_silent_zeros(tiny_tokenizer, tmp_path):
    rows = [{"goal": "g", "sol1": "a", "sol2": "b", "label": i} for i in (0, 1, 2)]
    with pytest.raises(DataError, match="no right answer among the choices in 1 of 3 questions"):
        load(an_entry("piqa", data=write_rows(tmp_path / "p.jsonl", rows)), tiny_tokenizer)


def test_group_on_one_file_is_divided_by_subtask(tiny_model, tiny_tokenizer, tmp_path):
    """mmlu_humanities: thirteen subtasks, redirected by the column that holds their names."""
    from holdfast.evaluation.tasks.tasks import _find_configs

    names = [c["dataset_name"] for c in _find_configs(an_entry("mmlu_humanities"))]
    rows = [
        {"question": f"About {name} {i}?", "subject": name, "choices": ["fox", "dog", "ship", "sky"], "answer": i}
        for i in range(2)
        for name in [*names, "anatomy"]
    ]
    data = write_rows(tmp_path / "mmlu.jsonl", rows)
    scores = measured(tiny_model, tiny_tokenizer, an_entry("mmlu_humanities", data=data))
    assert len(scores.rows) == 2 * len(names)
    assert {r["task"].removeprefix("mmlu_") for r in scores.rows} == set(names)
    assert len(scores.settings["subtasks"]) == len(names)
    assert scores.metrics["acc"].value == pytest.approx(sum(r["acc"] for r in scores.rows) / len(scores.rows))
    with pytest.raises(DataError, match="needs a column that names the data set of each row's task"):
        load(an_entry("mmlu_humanities", data=write_rows(tmp_path / "one.jsonl", rows[:3])), tiny_tokenizer)


def generation_task(folder: Path) -> str:
    rows = [{"q": f"{i} + 1 =", "a": str(i + 1)} for i in range(3)]
    data = write_rows(folder / "sums.jsonl", rows)
    path = folder / "sums.yaml"
    path.write_text(
        f"task: sums\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\n"
        'output_type: generate_until\ndoc_to_text: "{{q}}"\ndoc_to_target: "{{a}}"\n'
        'generation_kwargs:\n  until: ["\\n"]\n  max_gen_toks: 4\n  do_sample: false\n'
        "filter_list:\n"
        "  - name: strict-match\n    filter:\n      - function: regex\n        regex_pattern: '^(\\d+)$'\n     "
        " - function: take_first\n"
        "  - name: anything\n    filter:\n      - function: regex\n        regex_pattern: '[\\s\\S]'\n"
        "        fallback: '2'\n      - function: take_first\n"
        "metric_list:\n  - metric: exact_match\n    aggregation: mean\n    higher_is_better: true\n"
    )
    return str(path)


def test_filters_become_metrics_of_one_row(tiny_model, tiny_tokenizer, tmp_path):
    scores = measured(tiny_model, tiny_tokenizer, an_entry(generation_task(tmp_path)))
    assert list(scores.metrics) == ["exact_match,strict-match", "exact_match,anything"]
    assert scores.primary == "exact_match,strict-match"
    assert len(scores.rows) == 3
    assert all({"exact_match,strict-match", "exact_match,anything"} <= set(row) for row in scores.rows)
    chosen = measured(tiny_model, tiny_tokenizer, an_entry(generation_task(tmp_path), metric="exact_match,anything"))
    assert chosen.primary == "exact_match,anything"
    with pytest.raises(ConfigError, match=r"no metric 'f1'.*exact_match,strict-match"):
        measured(tiny_model, tiny_tokenizer, an_entry(generation_task(tmp_path), metric="f1"))


def test_rolling_likelihood_gives_text_rows_that_agree_with_ours(tiny_model, tiny_tokenizer, tmp_path):
    from holdfast.evaluation.text.perplexity import score_documents

    texts = ["The quick brown fox.", "Seven ships sailed south."]
    data = write_rows(tmp_path / "t.jsonl", [{"text": t} for t in texts])
    path = tmp_path / "rolling.yaml"
    path.write_text(
        f"task: rolling\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\n"
        'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: "{{text}}"\n'
        "metric_list:\n  - metric: word_perplexity\n  - metric: byte_perplexity\n  - metric: bits_per_byte\n"
    )
    scores = measured(tiny_model, tiny_tokenizer, an_entry(str(path)))
    ours = score_documents(tiny_model, tiny_tokenizer, texts)
    assert [r["nats"] for r in scores.rows] == pytest.approx([r["nats"] for r in ours], abs=1e-3)
    assert [r["bytes"] for r in scores.rows] == [r["bytes"] for r in ours]
    assert scores.primary == "bits_per_byte"
    assert not scores.metrics["bits_per_byte"].higher_is_better


def test_chat_template_changes_the_prompts(tiny_model, colour_task):
    entry, chat = an_entry(str(colour_task)), an_entry(str(colour_task), apply_chat_template=True)
    plain = measured(tiny_model, make_tokenizer(), entry)
    templated = measured(tiny_model, make_tokenizer(chat=True), chat)
    assert [r["doc"] for r in plain.rows] == [r["doc"] for r in templated.rows]
    assert not {r["prompt"] for r in plain.rows} & {r["prompt"] for r in templated.rows}
    with pytest.raises(ModelError, match="needs a chat template, but the tokenizer has none"):
        measured(tiny_model, make_tokenizer(), chat)


def test_code_execution_is_refused(tiny_tokenizer, colour_task):
    colour_task.write_text(colour_task.read_text() + "unsafe_code: true\n")
    with pytest.raises(ConfigError, match="runs the model's code without a sandbox"):
        load(an_entry(str(colour_task)), tiny_tokenizer)


def test_unreachable_data_points_to_a_local_copy(tiny_tokenizer, colour_task):
    colour_task.write_text(colour_task.read_text().replace("test: colours.jsonl", "test: gone.jsonl"))
    with pytest.raises(DataError, match=r"could not be loaded.*`data: FILE` \(`--data it=FILE`\)"):
        load(an_entry(str(colour_task)), tiny_tokenizer)


def test_no_traces_are_left(colour_task, capsys, monkeypatch):
    import datasets.config

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    model, tokenizer = make_model().train(), make_tokenizer()
    model.model.layers[0].eval()
    flags = [m.training for m in model.modules()]
    environment, level, cwd = dict(os.environ), logging.getLogger("lm_eval").level, Path.cwd()
    random.seed(1)
    torch.manual_seed(1)
    expected = (random.random(), torch.rand(1).item())
    random.seed(1)
    torch.manual_seed(1)
    measured(model, tokenizer, an_entry(str(colour_task)))
    assert (random.random(), torch.rand(1).item()) == expected
    assert [m.training for m in model.modules()] == flags
    assert tokenizer.pad_token is None
    assert len(tokenizer) == len(make_tokenizer())
    assert (dict(os.environ), logging.getLogger("lm_eval").level, Path.cwd()) == (environment, level, cwd)
    assert datasets.config.HF_HUB_OFFLINE is False
    assert capsys.readouterr().err == ""


def test_one_subject_takes_its_own_rows_of_a_file_of_many(tiny_tokenizer, tmp_path):
    rows = [
        {"question": f"q{i}", "subject": ("anatomy", "virology")[i % 2], "choices": list("abcd"), "answer": i % 4}
        for i in range(10)
    ]
    data = write_rows(tmp_path / "mmlu.jsonl", rows)
    task = load(an_entry("mmlu_anatomy", data=data), tiny_tokenizer)["mmlu_anatomy"]
    assert [doc["question"] for doc in task.eval_docs] == ["q0", "q2", "q4", "q6", "q8"]
    other = write_rows(tmp_path / "other.jsonl", [{**row, "subject": "mine"} for row in rows])
    task = load(an_entry("mmlu_anatomy", data=other), tiny_tokenizer)["mmlu_anatomy"]
    assert len(list(task.eval_docs)) == 10, "a file that does not name the subject is the user's own"
