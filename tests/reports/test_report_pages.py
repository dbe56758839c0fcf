"""The HTML of run reports: its figures are those of the records, its text is escaped, and gaps are named."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys

import pytest
from synthetic_runs import metric_lines, perplexity, record

from holdfast.records.run import RunFolder
from holdfast.reports.charts import MOST_POINTS, plotly_figure, thin
from holdfast.reports.run_report import write_run_report
from holdfast.reports.training_charts import layer_chart


def figures_of(page: str) -> list[dict]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


def words_of(page: str) -> str:
    """The page without the compressed library."""
    return re.sub(r'<script type="text/plain".*?</script>', "", page, flags=re.S)


def write(folder: RunFolder) -> str:
    return write_run_report(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize("status", ["interrupted", "finished"])
def test_an_empty_run_says_what_is_missing(make_run, status) -> None:
    folder = make_run(
        comparisons=[],
        metrics=[],
        status=status,
        stage="prepare",
        error=None,
        retention=[],
        model={},
        data={},
        config={},
        parents=[],
        versions={},
        hardware={},
        created="",
        finished=None,
        training={},
        distance=[],
        notes=[],
    )
    page = write(folder)
    for sentence in (
        "No training step was logged",
        "This folder has no evaluation",
        "distance from the initial weights was not recorded",
        "not compared",
    ):
        assert sentence in page
    assert "direct fine-tuning" in page
    assert 'id="plotly-gzip"' not in page  # nothing to draw: no library
    assert f">{status}</span>" in page


def test_retention_without_a_logged_divergence_is_said(make_run) -> None:
    assert "No divergence from a teacher was logged" in write(
        make_run(metrics=metric_lines(20, kl=False), retention=[{"method": "l2", "coefficient": 0.1}])
    )


def test_failed_and_interrupted_runs_say_where(make_run) -> None:
    failed = write(make_run("a", status="failed", stage="train", error="The loss is NaN at step 60."))
    assert "The run failed in stage “train”." in failed
    assert "The loss is NaN at step 60." in failed
    assert "Run the same command to continue" in write(make_run("b", status="interrupted", stage="save"))


def test_one_sided_evaluations_are_shown(make_run) -> None:
    folder = make_run(comparisons=[])
    folder.evaluated("start").write(perplexity("keep", "prose", 2.9, 50), [])
    page = write(folder)
    assert "Only one of the two models" in page
    assert "nats_per_token, nats/token" in page and "[2.850, 2.950]" in page


def test_not_finite_metrics_become_gaps_and_are_counted(make_run) -> None:
    lines = [*metric_lines(10), {"step": 55, "loss": math.nan, "kl": math.inf, "ce": 2.0}]
    page = write(make_run(metrics=lines))
    loss = next(d for f in figures_of(page) for d in f["data"] if d.get("name") == "loss")
    assert loss["y"][-1] is None
    assert "1 logged value is not finite" in page


# ----------------------------------------------------------------------------------------------------------- charts


def test_thinning_keeps_extremes_and_order() -> None:
    ys = [math.sin(i / 50) for i in range(20_000)]
    ys[7777], ys[12_345] = 9.0, -9.0
    xs, kept = thin(range(20_000), ys)
    assert len(xs) <= MOST_POINTS + 2
    assert xs == sorted(xs)
    assert {max(kept), min(kept)} == {9.0, -9.0}
    assert all(ys[x] == y for x, y in zip(xs, kept, strict=True))


def test_layers_that_moved_from_zero_are_named_not_drawn() -> None:
    import dataclasses

    first, second, *_ = record().distance
    moved = [dataclasses.replace(first, layer="other", relative=math.inf), second]
    chart = layer_chart(moved)
    assert chart is not None
    assert plotly_figure(chart)["data"][0]["y"] == [None, pytest.approx(100 * moved[1].relative)]
    assert "norm is 0: other" in chart.caption


# ----------------------------------------------------------------------------------------------------------- layers


def test_reports_never_import_torch(make_run) -> None:
    folder = make_run()
    program = f"""
import io, sys
from rich.console import Console
from holdfast.reports import card, run_report
from holdfast.records.run import RunFolder
folder = RunFolder({str(folder.path)!r})
console = Console(file=io.StringIO(), width=80)
run_report.write_run_report(folder)
card.write_model_card(folder)
run_report.print_run_summary(folder, console)
print(sorted({{"torch", "transformers", "datasets", "lm_eval"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
