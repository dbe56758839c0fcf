"""A study in the terminal: the table fits, a file gets plain lines, and the status says what is left to do."""

from __future__ import annotations

import dataclasses
import datetime
import io
import random

import pytest
from rich.console import Console
from synthetic_studies import (
    BEGAN,
    finished_frontier,
    frontier,
    measured_runs,
    nothing_finished,
    objective,
    record,
    trial,
)

from holdfast.reports.sweep_figures import kept_text
from holdfast.reports.sweep_text import SweepProgress, planned, print_status, print_sweep, status_view
from holdfast.statistics.selection import select_all
from holdfast.statistics.shares import Share

NOW = BEGAN + datetime.timedelta(minutes=88)


def printed(what, *, terminal: bool, width: int = 80, encoding: str = "utf-8") -> str:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding=encoding)
    what(Console(file=file, force_terminal=terminal, width=width, legacy_windows=False))
    file.flush()
    return buffer.getvalue().decode(encoding)


def shown(study, **more) -> str:
    return printed(lambda console: print_sweep(study, select_all(study), console), **more)


def test_a_terminal_of_eighty_columns_holds_the_table():
    text = shown(finished_frontier(), terminal=True)
    plain = "".join(part.partition("m")[2] if i else part for i, part in enumerate(text.split("\x1b[")))
    assert "\x1b[" in text  # colours
    assert max(map(len, plain.splitlines())) <= 80
    assert "+0.524" in plain
    assert "[+0.477, +0.570]" in plain  # whole intervals, not broken in two


def test_user_text_is_not_read_as_markup():
    study = record(
        [trial(0, "direct", "[bold]direct[/]", {}, measured_runs(random.Random(0), (0, 1, 2), 0.5, -0.3))],
        name="[red]x",
    )
    for terminal in (True, False):
        assert "[bold]direct[/]" in shown(study, terminal=terminal, width=140)
        assert "[red]x" in printed(lambda c: print_status(study, NOW, c), terminal=terminal)


# -------------------------------------------------------------------------------------------------------------- status


def test_status_counts_workers_and_bests():
    lines = status_lines(frontier(), NOW)
    assert lines[0] == "medical answers: running; 19 complete, 1 running, 1 waiting, 1 pruned, 1 failed, 1 lost"
    assert lines[1].startswith("About 7 min")
    (worker,) = [x for x in lines if x.startswith("alpha:4100")]
    assert worker.split("  ")[0] == "alpha:4100"
    assert "1 of 3 seeds done" in worker
    assert worker.endswith("4 min")
    best = [x for x in lines if ": trial " in x][:3]
    assert [x.partition(":")[0] for x in best] == ["paper", "keep_within", "knee"]
    assert all("(best of 19 on the same data, so optimistic)" in x for x in best)
    held_out = frontier(validation=objective("validation", "quiz"))
    lines_of = "\n".join(status_lines(held_out, NOW))
    assert "(best of 19 by quiz and what is kept, so optimistic)" in lines_of
    assert lines[-1] == "failed: trial 19, label annealing, weight 100, temperature 1: the loss became NaN at step 12"
    study = frontier()
    again = [dataclasses.replace(t, continued_by=23) if t.state == "failed" else t for t in study.trials]
    assert not any(
        x.startswith("failed: ") for x in status_lines(dataclasses.replace(study, trials=again), NOW)
    )  # it is tried again


def status_lines(study, now) -> list[str]:
    return printed(lambda console: print_status(study, now, console), terminal=False).splitlines()


def lasting(number: int, kind: str, seconds: float, **more):
    runs = [dataclasses.replace(r, seconds=seconds) for r in measured_runs(random.Random(number), (0,), 0.4, -0.1)]
    return trial(number, kind, f"trial {number}", {}, runs, overhead=0.0, **more)


def under_way(waiting: int = 0, **changes):
    """Trials took 150 s on average; two workers are 40 s into another one each."""
    trials = [lasting(0, "direct", 100.0), lasting(1, "l2", 200.0)]
    begun = (NOW - datetime.timedelta(seconds=40)).isoformat()
    running = {"state": "running", "started": begun, "finished": None}
    trials += [trial(2 + i, "l2", "l2", {}, [], worker=f"w{i}", **running) for i in range(2)]
    idle = {"state": "waiting", "worker": "", "started": None, "finished": None}
    trials += [trial(4 + i, "l2", "l2", {}, [], **idle) for i in range(waiting)]
    return record(trials, seeds=(0,), status="running", finished=None, **changes)


@pytest.mark.parametrize(("waiting", "remaining"), [(0, 110.0), (1, 185.0), (4, 410.0)])
def test_the_time_left_is_shared_by_the_workers(waiting, remaining):
    """Two trials of 110 s that are left, and 150 s for each that waits."""
    assert SweepProgress(under_way(waiting), NOW).remaining == pytest.approx(remaining)


def test_a_worker_longer_than_expected_is_about_to_end():
    assert SweepProgress(under_way(), NOW + datetime.timedelta(hours=1)).remaining == 0.0


def test_trials_that_the_sampler_has_yet_to_think_of_are_to_come():
    study = under_way(1, config={"search": {"sampler": "tpe", "trials": 8}})
    view = SweepProgress(study, NOW)
    assert (planned(study), view.to_come) == (8, 4)
    assert view.remaining == pytest.approx(410)
    assert "4 trials of the 8 planned not begun" in status_lines(study, NOW)
    assert planned(under_way(config={"search": {"trials": "many"}})) == 4


def test_without_a_complete_trial_or_a_worker_no_time_is_given():
    assert SweepProgress(nothing_finished(), NOW).remaining is None
    assert (
        status_lines(nothing_finished(), NOW)[1] == "Time left unknown until the first trial is complete, with 1 worker"
    )
    study = frontier()
    idle = dataclasses.replace(study, status="interrupted", trials=[t for t in study.trials if t.state != "running"])
    assert SweepProgress(idle, NOW).remaining is None
    assert status_lines(idle, NOW)[1] == "No worker has a trial, 1 trial to come: start a worker to go on"
    assert status_lines(finished_frontier(), NOW)[1] == "Finished"


def test_the_status_draws_itself_and_prints_plain_lines_elsewhere():
    drawn = printed(lambda c: c.print(status_view(frontier())), terminal=True, width=100)
    assert "\x1b[" in drawn
    assert "alpha:4100" in drawn
    assert "failed: trial 19" in drawn
    assert not any("\x1b[" in line or "─" in line for line in status_lines(frontier(), NOW))


def test_a_share_of_a_loss_that_cannot_be_told_from_zero_is_not_said():
    study = finished_frontier()
    chosen = next(s for s in select_all(study) if s.chosen is not None and s.kept and s.kept.interval)
    untold = Share(value=5.8, interval=None, reason="direct fine-tuning's own loss cannot be told from zero")
    words = kept_text(dataclasses.replace(chosen, avoided=untold), study)
    assert words.startswith("keeps ") and f" and changes {study.keep.label} by " in words and "580" not in words
