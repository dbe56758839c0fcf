"""The tasks that the shipped suites name, by the harness's own configurations."""

from __future__ import annotations

import pytest

from evaluation.test_shipped import NAMES, plan_of
from holdfast.errors import ConfigError
from holdfast.evaluation.entries import TaskEntry


@pytest.fixture(scope="module")
def labels_of():
    """What figures of a task are called, by the harness's own configurations."""
    from holdfast.evaluation.tasks import tasks

    known: dict[str, set[str]] = {}

    def of(task: str) -> set[str]:
        if task not in known:
            configs = tasks._find_configs(TaskEntry(suite="source", name=task, task=task))
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


@pytest.mark.slow
def test_the_quick_look_finds_what_the_harness_finds():
    """Every task, group and tag of the quick look is the harness's own of that name."""
    from holdfast.evaluation.tasks.tasks import index, task_manager

    whole = {n: str(e.yaml_path) if e.yaml_path else sorted(e.tags) for n, e in task_manager().task_index.items()}
    wrong = {name: (place, whole.get(name)) for name, place in index().items() if place != whole.get(name)}
    assert not wrong, f"{len(wrong)} differ: {list(wrong.items())[:5]}"
    assert {"mmlu", "mmlu_pro", "minerva_math", "bbh"} <= set(index())
