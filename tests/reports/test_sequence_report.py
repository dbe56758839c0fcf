"""The page of a sequence study: which way figures point, and what is missing or not shown said."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rich.console import Console

from holdfast.records.sequence import SequenceRecord, read_sequence
from holdfast.reports import blocks
from holdfast.reports.charts import Chart
from holdfast.reports.sequence_report import print_sequence, sequence_page, summary

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def two_tasks() -> SequenceRecord:
    """A model that learnt mathematics and then code, measured in nats."""
    return read_sequence(EXAMPLES / "real_sequence")


def twelve_months() -> SequenceRecord:
    return read_sequence(EXAMPLES / "months")


def charts(record: SequenceRecord) -> dict[str, Chart]:
    sections = [x for x in sequence_page(record).blocks if isinstance(x, blocks.Section)]
    return {c.title: c for s in sections for c in s.blocks if isinstance(c, Chart)}


def test_what_is_not_there_is_said():
    record = two_tasks()
    waiting = [dataclasses.replace(m, state="waiting", distance=None, curves={}) for m in record.models]
    arms = [dataclasses.replace(a, scores={}, against={}, distance=None, matrix=[], measures={}) for a in record.arms]
    nothing = dataclasses.replace(record, models=waiting, arms=arms, tasks={}, keep={}, finished=None)
    assert "Not measured yet" in summary(nothing) and not charts(nothing)
    failed = dataclasses.replace(record.models[0], state="failed", reason="no memory")
    page = sequence_page(dataclasses.replace(record, models=[failed, *record.models[1:]]))
    assert any(isinstance(x, blocks.Banner) and "failed" in blocks.plain_text(x.content) for x in page.blocks)


def test_tasks_of_a_long_chain_that_are_not_shown_are_named(capsys):
    record = twelve_months()
    order = record.orders[0]
    assert len(order) == 12
    said = f"Not shown here: {', '.join([*order[1:5], *order[6:9]])} and {order[9]}. See the page's tables"
    print_sequence(record, "runs/months", Console(width=400))
    assert said in capsys.readouterr().out
    assert said in str(sequence_page(record))
    assert "Not shown" not in str(sequence_page(two_tasks()))


def test_a_headline_of_mixed_units_says_which_arms_it_means():
    record = twelve_months()
    assert "such arms" in summary(record)
    first, *rest = record.orders[0]
    tasks = {**record.tasks, first: dataclasses.replace(record.tasks[first], unit="nats/token")}
    text = summary(dataclasses.replace(record, tasks=tasks))
    assert "the best of 4 such arms, SFA, p 0.5, to 1.970 nats/token" in summary(two_tasks()), "the lowest of a loss"
    assert "such arms" not in text and f"arms without old data that learn {rest[-1]} nearly as well" in text


def test_other_entries_of_a_task_stand_in_a_table_of_their_own():
    record = two_tasks()
    assert "its other entries" not in str(sequence_page(record))
    about = dataclasses.replace(record.tasks["code"], name="terms_of_service", before=0.123)
    arms = []
    for arm in record.arms:
        scores = {**arm.scores, "code/terms_of_service": arm.scores["code"] * 2.0}
        arms.append(dataclasses.replace(arm, scores=scores))
    more = dataclasses.replace(record, arms=arms, entries={"code/terms_of_service": about})
    page = str(sequence_page(more))
    assert "code: its other entries" in page and "math: its other entries" not in page
    assert "terms_of_service, better" in page and "0.123" in page


def test_distances_of_all_methods_stand_against_what_is_kept():
    """The paper's figure 5 has SFA alone; its table 2 has rehearsal and multitask training, too."""
    page = str(sequence_page(two_tasks()))
    assert "distance of the weights against math (kept)" in page
    chart = next(c for c in all_charts(two_tasks()) if c.title.startswith("distance of the weights"))
    assert {"sequential fine-tuning", "SFA, p 0.25", "replay, fraction 0.1"} <= {row["arm"] for row in chart.rows}


def all_charts(record: SequenceRecord) -> list[Chart]:
    found: list[Chart] = []

    def look(block: object) -> None:
        if isinstance(block, Chart):
            found.append(block)
        for inner in getattr(block, "blocks", None) or ():
            look(inner)

    look(sequence_page(record))
    return found


def test_the_level_of_a_model_that_never_saw_a_task():
    """Figure 9's line is multitask training without the task; without that arm the page says whose line stands in."""
    record = two_tasks()
    models = []
    for model in record.models:
        models.append(dataclasses.replace(model, curves={"math": [(0.0, 1.0), (1.0, 1.5)]}))
    watched = dataclasses.replace(record, models=models)
    chart = next(c for c in all_charts(watched) if c.title.startswith("loss on math while later tasks"))
    assert "The model trained on the last task alone never saw math" in str(chart.caption)
    without = dataclasses.replace(
        record.arms[0], kind="multitask", arm="multitask without math", models=[models[0].name], left_out=["math"]
    )
    chart = next(
        c
        for c in all_charts(dataclasses.replace(watched, arms=[*record.arms, without]))
        if c.title.startswith("loss on math while later tasks")
    )
    assert "Horizontal line: the loss after multitask training without math" in str(chart.caption)
    [row] = [row for row in chart.rows if row["line"] == "multitask without math"]
    assert row["x"] == [0, 1] and row["y"] == [1.5, 1.5]
