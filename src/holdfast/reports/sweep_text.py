"""A sweep in a terminal: blocks of its page (`print_sweep`), and how far a running one is (`SweepProgress`).

When it ends is estimated from the trials that are complete: each one that is to come takes as long as they did on
average, and the workers that are alive, those with a running trial, share them. A sampler that decides as it goes has
trials that nobody wrote down yet: as many as the study's `search.trials` says are to come.

Where no terminal is watching, the same words come without colours, boxes and line breaks, so that `grep` and logs can
have them.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.records.study import FINISHED, StudyRecord, TrialRecord
from holdfast.reports.blocks import Block, Fold, Panel, Paragraph, paragraphs
from holdfast.reports.format import duration, plural
from holdfast.reports.study_page import Cells, grid
from holdfast.reports.sweep_figures import (
    chosen_on,
    counts_text,
    kept_text,
    parse_time,
    read_trials,
    rule_title,
    summary,
    with_minus_signs,
    worker_seconds,
)
from holdfast.reports.sweep_report import rule_panels, trials_section
from holdfast.reports.terminal import Printer, Shown
from holdfast.statistics.selection import Selection, select_all

if TYPE_CHECKING:
    from rich.console import Console


def print_sweep(record: StudyRecord, selections: Sequence[Selection], console: Console | None = None) -> None:
    """Prints every trial, what the rules choose, and how firmly.

    Args:
        record: finished or not.
        selections: the study's own rule first, as `holdfast.statistics.selection.select_all` gives it.
        console: where to print; the terminal by default.
    """
    out = Printer(console)
    trials = read_trials(record)
    blocks: list[Block] = [
        Paragraph(f"{record.name} ({record.status})", "strong"),
        Paragraph(summary(record, selections)),
    ]
    blocks += trials_section(record, trials, selections, Path()).blocks
    for panel in rule_panels(record, selections):
        blocks.append(Panel([block for block in panel.blocks if not isinstance(block, Fold)]))
    blocks.append(Paragraph(""))
    out.show([*blocks, *paragraphs(record.notes, before="Note: ")])


@dataclasses.dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is."""

    record: StudyRecord
    now: datetime.datetime
    """With its time zone."""

    @functools.cached_property
    def running(self) -> list[TrialRecord]:
        """The trials under way, by the name of their worker."""
        running = [trial for trial in self.record.trials if trial.state == "running"]
        return sorted(running, key=lambda trial: (trial.worker or "unknown", trial.number))

    def elapsed(self, trial: TrialRecord) -> float | None:
        """Seconds since a trial began; None where it does not say when."""
        begun = parse_time(trial.started)
        return None if begun is None else max(0.0, (self.now - begun).total_seconds())

    @property
    def to_come(self) -> int:
        """Trials that nobody has begun."""
        begun = sum(trial.state not in ("lost", "waiting") for trial in self.record.trials)
        return planned(self.record) - begun

    @property
    def remaining(self) -> float | None:
        """Seconds until the last trial ends; None where no complete trial, or no worker, says."""
        lasted = []
        for trial in self.record.trials:
            if trial.state == FINISHED and trial.runs:
                lasted.append(worker_seconds(trial))
        if not lasted or not self.running:
            return None
        done = math.fsum(self.elapsed(trial) or 0.0 for trial in self.running)
        left = statistics.fmean(lasted) * (self.to_come + len(self.running)) - done
        return max(0.0, left) / self.workers

    @property
    def workers(self) -> int:
        """Those that have a trial."""
        return len({trial.worker for trial in self.running})

    @property
    def ending(self) -> str:
        """When it ends, as a sentence without its end."""
        if self.record.status == "finished":
            return "Finished"
        if not self.running:
            left = f", {plural(self.to_come, 'trial')} to come: start a worker to go on" if self.to_come else ""
            return f"No worker has a trial{left}"
        alive = f"with {plural(self.workers, 'worker')}"
        if self.remaining is None:
            return f"Time left unknown until the first trial is complete, {alive}"
        at = (self.now + datetime.timedelta(seconds=self.remaining)).astimezone()
        day = "" if at.date() == self.now.astimezone().date() else f"{at:%Y-%m-%d} "
        return f"About {duration(self.remaining)} left {alive}, until {day}{at:%H:%M}"

    @property
    def blocks(self) -> list[Block]:
        """Trials by state, when it ends, what each worker does, the best so far by each rule, what failed."""
        record = self.record
        title = f"{record.name}: {record.status}; {counts_text(record)}"
        blocks: list[Block] = [Paragraph(title, "strong"), Paragraph(self.ending)]
        if self.to_come and record.status != "finished":
            blocks.append(Paragraph(f"{plural(self.to_come, 'trial')} of the {planned(record)} planned not begun"))
        blocks.append(self._workers() if self.running else Paragraph(""))
        for index, selection in enumerate(select_all(record)):
            blocks.append(Paragraph(_best(selection, record), "note" if index else ""))
        for trial in record.trials:
            if trial.state == "failed" and trial.continued_by is None:
                reason = trial.reason or "no reason recorded"
                blocks.append(Paragraph(f"failed: trial {trial.number}, {trial.label}: {reason}", "bad"))
        return blocks

    def _workers(self) -> Block:
        """What each worker does."""

        def lasted(trial: TrialRecord) -> str:
            elapsed = self.elapsed(trial)
            return "" if elapsed is None else duration(elapsed)

        cells: Cells = {
            "Worker": lambda trial: trial.worker or "unknown",
            "#": lambda trial: str(trial.number),
            "Trial": "label",
            "Last measured": lambda trial: seeds_done(trial, self.record),
            "For": lasted,
        }
        return grid(self.running, cells, words=4)


def _best(s: Selection, record: StudyRecord) -> str:
    """What a rule would choose by now."""
    if s.chosen is None:
        return f"{rule_title(s)}: none so far, {with_minus_signs(s.reason)}"
    text = f"{rule_title(s)}: trial {s.chosen}, {s.label}, {kept_text(s, record)}"
    if len(s.candidates) > 1:
        text += f" (best of {len(s.candidates)} {chosen_on(s)}, so optimistic)"
    if s.stability is not None:
        text += f"; the same in {100 * s.stability.get(s.chosen, 0.0):.0f} % of the draws of the seeds"
    return text


def status_view(record: StudyRecord) -> Shown:
    """How far a sweep is at this moment, as something that rich draws."""
    return Shown(SweepProgress(record, datetime.datetime.now(datetime.UTC)).blocks)


def print_status(record: StudyRecord, now: datetime.datetime, console: Console | None = None) -> None:
    """Prints how far a sweep is: drawn in a terminal, else one line a fact, whatever its length.

    Args:
        record: at any moment of a study.
        now: with its time zone.
        console: where to print; the terminal by default.
    """
    Printer(console).show(SweepProgress(record, now).blocks)


def planned(record: StudyRecord) -> int:
    """Trials that the study means to have, direct fine-tuning among them: `search.trials` where a sampler decides as it
    goes, else those known."""
    search = record.config.get("search")
    planned_trials = search.get("trials") if isinstance(search, dict) else None
    known_trials = sum(trial.state != "lost" for trial in record.trials)
    if isinstance(planned_trials, int) and not isinstance(planned_trials, bool):
        return max(known_trials, planned_trials)
    return known_trials


def seeds_done(trial: TrialRecord, record: StudyRecord) -> str:
    """How many seeds are done; "" of a single one that is not."""
    if not trial.runs and len(record.seeds) == 1:
        return ""
    return f"{len(trial.runs)} of {plural(len(record.seeds), 'seed')} done"
