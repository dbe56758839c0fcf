"""The page of a stages study: the verdict in words first, what to do, the stages behind the scores."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console
from synthetic_stages import SELECTED, stages

from holdfast.records.stages import ACTUAL, GAINED, INCONCLUSIVE, NONE, PSEUDO, StagesRecord
from holdfast.reports import blocks
from holdfast.reports.charts import Chart, plotly_figure
from holdfast.reports.markdown import document as markdown
from holdfast.reports.stages_report import advice, lead, print_stages, stages_page


def charts(record: StagesRecord) -> dict[str, Chart]:
    sections = [x for x in stages_page(record).blocks if isinstance(x, blocks.Section)]
    return {c.title: c for s in sections for c in s.blocks if isinstance(c, Chart)}


def test_the_answer_says_what_is_lost_where_it_begins_and_what_to_do() -> None:
    text = lead(stages())
    assert text.startswith("facts: after epoch 3, actual forgetting. It fell by 30.0 points")
    assert "Stop at epoch 2, or hold on to the base (label annealing, replay)" in text
    assert "restoring brings back 50 % of the fall" in text
    assert "Actual forgetting begins at epoch 3 [epoch 3 to after the last one]." in text
    assert lead(stages(remedy=True)).endswith("With the remedy, facts becomes no forgetting: It did not change.")


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ((PSEUDO, PSEUDO, PSEUDO), "The knowledge is there: an epoch of plain text on top shows it again."),
        ((NONE, NONE, PSEUDO), "on top shows it again, and epoch 2 still shows it as it is."),
        ((GAINED, NONE, NONE), "Nothing has to be done."),
        ((ACTUAL, ACTUAL, ACTUAL), "No checkpoint is free of it: fine-tune more gently, or hold on to the base"),
        ((PSEUDO, ACTUAL, ACTUAL), "Stop at epoch 1"),
        ((PSEUDO, PSEUDO, INCONCLUSIVE), ""),
    ],
)
def test_what_to_do_follows_from_the_verdicts(verdicts: tuple[str, ...], said: str) -> None:
    found = [dataclasses.replace(v, verdict=w) for v, w in zip(stages().verdicts, verdicts, strict=True)]
    text = advice(found, ["epoch 1", "epoch 2", "epoch 3"], None)
    assert said in text and bool(text) == bool(said)


def test_stages_are_the_ground_of_the_scores() -> None:
    chart = charts(stages())["facts (direct)"]
    assert [(s.start, s.end, s.text) for s in chart.shades] == [(0.5, 2.5, "pseudo"), (2.5, 3.5, "actual")]
    drawn = plotly_figure(chart)["layout"]
    assert [(s["x0"], s["x1"], s["layer"]) for s in drawn["shapes"][:2]] == [(0.5, 2.5, "below"), (2.5, 3.5, "below")]
    assert {"pseudo", "actual"} <= {a["text"] for a in drawn["annotations"]}
    assert [r.y for r in chart.rules] == [25.0], "guessing"


def test_all_figures_of_the_paper_are_there() -> None:
    titles = charts(stages())
    for title in (
        "Plain text along restoring",
        "Plain text (direct)",
        "facts (direct)",
        "Probability on the options: facts (direct)",
        "Entropy of the next token (nats): facts (direct)",
        "facts: mass",
    ):
        assert title in titles
    assert "from step 30 on" in titles["facts: mass"].caption


def test_an_entry_that_was_measured_at_the_ends_alone_is_no_curve() -> None:
    record = stages()
    ends = {"direct": [record.along["direct"][0], record.along["direct"][-1]]}
    assert "facts: mass" not in charts(dataclasses.replace(record, along=ends))


def test_the_text_that_was_chosen_and_questions_in_it_are_shown() -> None:
    page = markdown(stages_page(stages(texts=SELECTED)))
    assert "40 passages, 2.100 nats per token" in page
    assert "3 passages with 13 words of one of 400 questions (kept" in page
    config = {**stages().config, "base": "${base}", "small": "stages"}
    assert "the base of the small setting stages" in markdown(stages_page(stages(config=config)))


def test_what_is_not_judged_yet_is_said() -> None:
    record = stages(verdicts=[], status="running")
    waiting = [dataclasses.replace(m, state="waiting") for m in record.models]
    assert lead(dataclasses.replace(record, models=waiting)) == "Not judged yet: 4 models still to be restored."
    out = io.StringIO()
    print_stages(stages(), "runs/x", Console(file=out, width=160))
    assert "actual forgetting" in out.getvalue() and "runs/x/report.html" in out.getvalue()
