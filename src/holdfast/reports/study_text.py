"""A trade-off study in a terminal: blocks of its page (`print_study`), and how far a running one is (`StudyProgress`).

When it ends is estimated from the trials that are complete: a trial still to come takes the mean of its method's, or of
all where its method has none yet. The workers that are alive, those with a running trial, take the waiting trials one
after the other; the last to end is the estimate. A sampler that decides as it goes has trials that nobody wrote down
yet: as many as the study's `search.trials` says are to come.

Where no terminal is watching, the same words come without colours, boxes and line breaks, so that `grep` and logs can
have them.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import heapq
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.records.study import FINISHED, StudyRecord, TrialRecord
from holdfast.reports.blocks import Block, Fold, Panel, Paragraph, Table, columns
from holdfast.reports.format import duration, plural
from holdfast.reports.study_figures import (
    chosen_on,
    counts_text,
    kept_text,
    lead,
    moment,
    read_trials,
    rule_title,
    typographic,
    worker_seconds,
)
from holdfast.reports.study_report import rule_panels, trials_section
from holdfast.reports.terminal import Printer, Shown
from holdfast.statistics.selection import Selection, select_all

if TYPE_CHECKING:
    from rich.console import Console


def print_study(record: StudyRecord, selections: Sequence[Selection], console: Console | None = None) -> None:
    """Prints every trial, what the rules choose, and how firmly.

    Args:
        record: finished or not.
        selections: the study's own rule first, as `holdfast.statistics.selection.select_all` gives it.
        console: where to print; the terminal by default.
    """
    out = Printer(console)
    trials = read_trials(record)
    found: list[Block] = [Paragraph(f"{record.name} ({record.status})", "strong"), Paragraph(lead(record, selections))]
    found += trials_section(record, trials, selections, Path(), narrow=out.console.is_terminal).blocks
    rules = [Panel([x for x in p.blocks if not isinstance(x, Fold)]) for p in rule_panels(record, selections)]
    found += [*rules, Paragraph("")]
    out.show([*found, *(Paragraph(f"Note: {n}", "note") for n in record.notes)])


@dataclasses.dataclass(frozen=True)
class StudyProgress:
    """How far a study is."""

    record: StudyRecord
    now: datetime.datetime
    """With its time zone."""

    @functools.cached_property
    def running(self) -> list[tuple[str, TrialRecord, float | None]]:
        """(worker, its trial, seconds since that began or None where it does not say when), by name."""
        found = []
        for t in self.record.trials:
            if t.state == "running":
                begun = moment(t.started)
                elapsed = None if begun is None else max(0.0, (self.now - begun).total_seconds())
                found.append((t.worker or "unknown", t, elapsed))
        return sorted(found, key=lambda w: (w[0], w[1].number))

    @functools.cached_property
    def waiting(self) -> list[str | None]:
        """The kinds of the trials to come, None for those that the sampler has yet to write down."""
        known: list[str | None] = [t.kind for t in self.record.trials if t.state == "waiting"]
        return known + [None] * max(0, planned(self.record) - sum(t.state != "lost" for t in self.record.trials))

    @functools.cached_property
    def remaining(self) -> float | None:
        """Seconds until the last trial ends; None where no complete trial, or no worker, says."""
        lasted = [(t.kind, worker_seconds(t)) for t in self.record.trials if t.state == FINISHED and t.runs]
        return _time_left(lasted, [(worker, t.kind, elapsed) for worker, t, elapsed in self.running], self.waiting)

    @property
    def ending(self) -> str:
        """When it ends, as a sentence without its end."""
        if self.record.status == "finished":
            return "Finished"
        if not self.running:
            left = plural(len(self.waiting), "trial")
            return f"No worker has a trial{f', {left} to come: start a worker to go on' if self.waiting else ''}"
        alive = f"with {plural(len({worker for worker, *_ in self.running}), 'worker')}"
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
        found: list[Block] = [Paragraph(title, "strong"), Paragraph(self.ending)]
        unknown = self.waiting.count(None)
        if unknown and record.status != "finished":
            found.append(Paragraph(f"{plural(unknown, 'trial')} of the {planned(record)} planned not begun"))
        rows = [
            [worker, str(t.number), t.label, seeds_done(t, record), "" if elapsed is None else duration(elapsed)]
            for worker, t, elapsed in self.running
        ]
        heads = columns("Worker", "#", "Trial", "Last measured", "For", right=(1, 4))
        found.append(Table(columns=heads, rows=rows) if rows else Paragraph(""))
        for place, selection in enumerate(select_all(record)):
            found.append(Paragraph(_best(selection, record), "note" if place else ""))
        failed = [t for t in record.trials if t.state == "failed" and t.continued_by is None]
        texts = [f"failed: trial {t.number}, {t.label}: {t.reason or 'no reason recorded'}" for t in failed]
        return [*found, *(Paragraph(text, "bad") for text in texts)]


def _time_left(
    lasted: Sequence[tuple[str, float]],
    running: Sequence[tuple[str, str, float | None]],
    waiting: Sequence[str | None],
) -> float | None:
    """Seconds until the last job ends; None where none is complete, or no worker is at work.

    Args:
        lasted: (kind, seconds) of those that are complete.
        running: (worker, kind, seconds since it began) of those under way.
        waiting: kinds of those to come, None where they are not known.
    """
    if not lasted or not running:
        return None

    def expected(kind: str | None) -> float:
        mine = [s for k, s in lasted if k == kind]
        return statistics.fmean(mine or [s for _, s in lasted])

    free: dict[str, float] = {}
    for worker, kind, elapsed in running:
        free[worker] = max(free.get(worker, 0.0), expected(kind) - (elapsed or 0.0))
    ends = list(free.values())
    heapq.heapify(ends)
    for waits in waiting:
        heapq.heapreplace(ends, ends[0] + expected(waits))
    return max(ends)


def _best(s: Selection, record: StudyRecord) -> str:
    if s.chosen is None:
        return f"{rule_title(s)}: none so far, {typographic(s.reason)}"
    share = None if s.stability is None else s.stability.get(s.chosen, 0.0)
    firm = "" if share is None else f"; the same in {100 * share:.0f} % of the draws of the seeds"
    count = len(s.candidates)
    among = f" (best of {count} {chosen_on(s)}, so optimistic)" if count > 1 else ""
    return f"{rule_title(s)}: trial {s.chosen}, {s.label}, {kept_text(s, record)}{among}{firm}"


def status_view(record: StudyRecord) -> Shown:
    """How far a study is at this moment, as something that rich draws."""
    return Shown(StudyProgress(record, datetime.datetime.now(datetime.UTC)).blocks)


def print_status(record: StudyRecord, now: datetime.datetime, console: Console | None = None) -> None:
    """Prints how far a study is: drawn in a terminal, else one line a fact, whatever its length.

    Args:
        record: at any moment of a study.
        now: with its time zone.
        console: where to print; the terminal by default.
    """
    Printer(console).show(StudyProgress(record, now).blocks)


def planned(record: StudyRecord) -> int:
    """Trials that the study means to have, direct fine-tuning among them: `search.trials` where a sampler decides as it
    goes, else those known."""
    search = record.config.get("search")
    wanted = search.get("trials") if isinstance(search, dict) else None
    known = sum(t.state != "lost" for t in record.trials)
    return max(known, wanted) if isinstance(wanted, int) and not isinstance(wanted, bool) else known


def seeds_done(trial: TrialRecord, record: StudyRecord) -> str:
    """How many seeds are done; "" of a single one that is not."""
    if not trial.runs and len(record.seeds) == 1:
        return ""
    return f"{len(trial.runs)} of {plural(len(record.seeds), 'seed')} done"
