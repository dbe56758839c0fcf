"""Tasks of the harness by name: those of the shipped suites, groups of subtasks, and what is not on this machine."""

from __future__ import annotations

import pytest

from evaluation import conftest
from evaluation.test_harness import an_entry, write_rows
from evaluation.test_shipped import NAMES, plan_of
from holdfast.errors import ConfigError, DataError
from holdfast.evaluation.kinds.task import TaskEntry
from holdfast.evaluation.tasks.harness import load

tiny_tokenizer = conftest.tiny_tokenizer


@pytest.fixture(scope="module")
def labels_of():
    """What figures of a task are called, by the harness's own configurations."""
    from holdfast.evaluation.tasks import tasks

    known: dict[str, set[str]] = {}

    def of(task: str) -> set[str]:
        if task not in known:
            configs = tasks._find_configs(TaskEntry(suite="keep", name=task, task=task))
            assert configs
            known[task] = set.intersection(*(set(labels(config)) for config in configs))
        return known[task]

    def labels(config: dict) -> list[str]:
        filters = [f["name"] for f in config.get("filter_list") or []]
        metrics = [metric["metric"] for metric in config.get("metric_list") or [{"metric": "acc"}]]
        metrics = [metric if isinstance(metric, str) else metric.__name__ for metric in metrics]
        return [metric if name == "none" else f"{metric},{name}" for metric in metrics for name in filters or ["none"]]

    return of


@pytest.mark.parametrize("name", NAMES)
def test_tasks_and_metrics_exist(name: str, labels_of) -> None:
    """Every task's configuration is found, and has the metrics that the suite and its averages name."""
    plan = plan_of(name)
    tasks = {(e.suite, e.name): e for e in plan.entries if isinstance(e, TaskEntry) and e.kind != "code"}
    wanted = [(entry, entry.metric) for entry in tasks.values()]
    wanted += [(tasks[suite, entry], metric) for average in plan.averages for suite, entry, metric in average.members]
    for entry, metric in wanted:
        try:
            labels = labels_of(entry.task)
        except ConfigError as error:
            if "a package that is not installed" not in str(error):
                raise
            pytest.skip(str(error))
        assert labels, f"{entry.task} has no metric that all its subtasks share"
        if metric is not None:
            found = [label for label in labels if label == metric or label.split(",")[0] == metric]
            assert len(found) == 1, f"{entry.task}: '{metric}' names {found} of {labels}"


def test_the_sixteen_numbers_of_the_residual_paper() -> None:
    members = {average.name: average.members for average in plan_of("instruction_residual").averages}
    assert {name: len(found) for name, found in members.items()} == {
        "sub_average_1": 8,
        "sub_average_2": 7,
        "average": 16,
    }
    assert members["average"][:15] == members["sub_average_1"] + members["sub_average_2"]


def test_without_a_network_nothing_is_tried_again_and_again(tiny_tokenizer, monkeypatch):
    """The host is asked once; what is not in the cache is missing at once, and the message says how to go on."""
    import socket
    import time

    from holdfast.evaluation.tasks import harness

    asked = []

    def refuse(address, timeout=None):
        asked.append(address)
        raise OSError("unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    harness.hub_answers.cache_clear()
    try:
        began = time.monotonic()
        for task in ("piqa", "sciq"):
            with pytest.raises(DataError, match=rf"{task}.*could not be loaded.*--data it=FILE"):
                load(an_entry(task), tiny_tokenizer)
        assert time.monotonic() - began < 15
        assert asked == [("huggingface.co", 443)]
        assert huggingface_hub.constants.HF_HUB_OFFLINE is False
    finally:
        harness.hub_answers.cache_clear()


def test_subtasks_that_pick_their_rows_share_a_file(tiny_tokenizer, tmp_path):
    """MMLU-Pro's have no data set names: each keeps the rows of its category."""
    from holdfast.evaluation.tasks.tasks import load_tasks

    common = {"options": ["a", "b"], "answer": "A", "answer_index": 0, "cot_content": "A: Let's see.", "src": "s"}
    from lm_eval.tasks.mmlu_pro import utils  # noqa: F401

    categories = "biology,business,chemistry,computer science,economics,engineering,health,history,law,math,other"
    categories = f"{categories},philosophy,physics,psychology".split(",")
    rows = [{"question_id": i, "question": f"q{i}", "category": c, **common} for i, c in enumerate(categories * 2)]
    tasks = load_tasks(an_entry("mmlu_pro", data=write_rows(tmp_path / "pro.jsonl", rows), num_fewshot=1))
    assert len(tasks) == 14 and all(len(list(task.eval_docs)) == 2 for task in tasks.values())
