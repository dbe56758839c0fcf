"""How far a study is: one bar over all jobs while it runs, and a table for `status`."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.printable import printable
from holdfast.records.run import RunFolder, planned_steps
from holdfast.studies.engine.states import COMPLETE, RUNNING
from holdfast.support.environment import say, shown_seconds
from holdfast.support.progress import ProgressLines

if TYPE_CHECKING:
    from holdfast.studies.engine.study import StudyState


class Bar:
    """One bar over all jobs; without a terminal a line at most every half a minute.

    Args:
        study: says how much of a running job is done.
        console: where to draw.
    """

    def __init__(self, study: Any, console: Any) -> None:
        self.study, self.console = study, console
        self.bar: Any = None
        self.lines: ProgressLines | None = None

    def __enter__(self) -> Bar:
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        if self.console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(elapsed_when_finished=False),
            )
            self.bar = Progress(*columns, console=self.console, speed_estimate_period=600)
            self.bar.start()
            self.task = self.bar.add_task("Starting", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, state: StudyState) -> None:
        """Moves the bar to where the study is."""
        jobs = state.latest
        parts = [1.0 if not j.open else self.study.share(j) for j in jobs]
        active = [j.label for j in jobs if j.state == RUNNING]
        share = sum(parts) / max(1, len(parts))
        done = f"{sum(not j.open for j in jobs)} of {len(jobs)} {self.study.noun}s"
        text = done + (f"  {'; '.join(active[:2])}" if active else "")
        if self.bar is not None:
            self.bar.update(self.task, completed=share, description=text)
            return
        if self.lines is None:
            self.lines = ProgressLines(lambda line: say(self.console, line), done=share)
        self.lines.update(f"  {text}", share, 1.0)


def share_of_run(settings: Mapping[str, Any]) -> float:
    """How much of a run is done, 0 to 1, read from the metrics that it has written; training is
    nine tenths of it.

    Args:
        settings: its training configuration.
    """
    try:
        rows = RunFolder(settings["output_dir"]).metrics()
        steps = planned_steps(settings, rows[-1] if rows else None)
        return (
            0.9 * min(1.0, max(float(r.get("step", 0)) for r in rows) / steps)
            if rows and steps
            else 0.0
        )
    except (HoldfastError, OSError, KeyError, ValueError):
        return 0.0


def time_left(study: Any, state: StudyState) -> str:
    """About how long the open jobs take with the workers at work, by what complete ones took; ""
    where none says."""
    lasted: list[float] = []
    workers: set[str] = set()
    left = 0.0
    for job in state.latest:
        if job.state == COMPLETE and job.started and job.finished:
            lasted.append(
                (
                    datetime.fromisoformat(job.finished) - datetime.fromisoformat(job.started)
                ).total_seconds()
            )
        if job.state == RUNNING:
            workers.add(job.worker)
        if job.open:
            left += 1.0 - study.share(job)
    if not lasted or not workers:
        return ""
    seconds = statistics.fmean(lasted) * left / len(workers)
    return (
        f"; about {shown_seconds(seconds)} left with {len(workers)} "
        f"worker{'s' if len(workers) > 1 else ''}"
    )


def status_table(study: Any, state: StudyState) -> Any:
    """Jobs by state, how long it will take, what runs where, and what failed."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    jobs = state.latest
    numbers = Counter(job.state for job in jobs)
    counts = []
    for name in dict.fromkeys([COMPLETE, RUNNING, *numbers]):
        if numbers[name]:
            counts.append(f"{numbers[name]} {name}")
    table = Table(box=None, pad_edge=False, padding=(0, 2), show_header=False)
    for job in jobs:
        what = str(job.attributes.get("reason") or "") if job.state == "failed" else job.worker
        share = f"{100 * study.share(job):.0f} %" if job.state == RUNNING else ""
        table.add_row(
            str(job.number), Text(printable(job.label)), job.state, share, Text(printable(what))
        )
    title = (
        f"{state.name}: {state.status}; {', '.join(counts)} of {len(jobs)} "
        f"{study.noun}s{time_left(study, state)}"
    )
    return Group(Text(title), table)
