"""A trade-off study in a terminal: its trials and what the rules choose (`print_study`), and how far a running one is
(`StatusView`).

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
from typing import TYPE_CHECKING

from holdfast.records.study import FINISHED, StudyRecord, TrialRecord
from holdfast.reports.blocks import Block, Paragraph, Span, Table, Text, columns, figure, sub
from holdfast.reports.format import duration, number, plural
from holdfast.reports.study_figures import (
    TrialFigures,
    chosen_text,
    counts_text,
    covered,
    gain_texts,
    kept_text,
    lead,
    moment,
    read_trials,
    rule_title,
    share_interval_text,
    share_text,
    tone,
    typographic,
    worker_seconds,
)
from holdfast.reports.terminal import Printer, plain_table
from holdfast.statistics.selection import Selection, select_all

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


STATE_TONES = {"running": "good", "waiting": "flat", "pruned": "warn", "failed": "bad", "lost": "warn"}


# --------------------------------------------------------------------------------------------------------------- table


def print_study(record: StudyRecord, selections: Sequence[Selection], console: Console | None = None) -> None:
    """Prints every trial, what the rules choose, and how firmly.

    Args:
        record: finished or not.
        selections: the study's own rule first, as `holdfast.statistics.selection.select_all` gives it.
        console: where to print; the terminal by default.
    """
    out = Printer(console, unbroken=True)
    found: list[Block] = [Paragraph(f"{record.name} ({record.status})", "strong"), Paragraph(lead(record, selections))]
    found += [Paragraph(""), trials_table(record, read_trials(record), selections, narrow=out.console.is_terminal)]
    for s in selections:
        found += [*_selection(s, record), Paragraph("")]
    out.show([*found, *(Paragraph(f"Note: {n}", "note") for n in record.notes)])


def trials_table(
    record: StudyRecord, trials: Sequence[TrialFigures], selections: Sequence[Selection] = (), *, narrow: bool
) -> Table:
    """Every trial with its gains and shares; `narrow` fits into eighty characters: shares without intervals, the time
    below the label."""
    title = (
        f"Gains against the start, more is better: target {record.target.label} ({record.target.unit}), source "
        f"{record.source.label}"
    )
    title += "" if record.source.unit == record.target.unit else f" ({record.source.unit})"
    rows, tones = [], []
    for t in trials:
        by = [s.rule for s in selections if s.chosen == t.trial.number]
        shares = [
            figure(share_text(s), "" if narrow else share_interval_text(s)) if s.value is not None else ""
            for s in (t.kept, t.avoided)
        ]
        time = duration(t.seconds) if t.trial.runs else ""
        label = Span(_label(t, by), tone=STATE_TONES.get(t.trial.state, ""))
        sides = [
            Span(figure(*gain_texts(g)), tone=tone(g) if t.whole else "flat") if g is not None else ""
            for g in (t.target, t.source)
        ]
        first: list[Text] = [str(t.trial.number)]
        if narrow:
            below = sub(shares[1]) if shares[1] else None
            rows.append([*first, (label, sub(time) if time else None), *sides, (shares[0], below)])
        else:
            rows.append([*first, label, *sides, *shares, time])
        tones.append("taken" if by else "" if t.whole else "minor")
    if narrow:
        heads = columns("#", "Trial, time", "Target", "Source", "Gain kept\nLoss avoided", right=(0, 2, 3, 4))
    else:
        titles = ("#", "Trial", "Target", "Source", "Gain kept", "Loss avoided", "Time")
        heads = columns(*titles, right=(0, 2, 3, 4, 5, 6))
    return Table(columns=heads, rows=rows, title=title, tones=tones)


def _label(t: TrialFigures, by: Sequence[str]) -> Text:
    """A trial's label, who chose it, and why it does not count."""
    state = "" if t.trial.state == FINISHED else t.trial.state
    trouble = typographic(t.trouble).removeprefix(f"{t.trial.state}: ").removeprefix(t.trial.state)
    # The trouble of what has not begun, or is under way, is its state.
    why = ": ".join(x for x in (state, "" if state in ("running", "waiting") else trouble) if x)
    below = [f"chosen: {', '.join(by)}" if by else "", why]
    return t.trial.label, *(sub(b) for b in below if b)


def _selection(s: Selection, record: StudyRecord) -> list[Block]:
    found = [Paragraph(f"{rule_title(s)}: {typographic(s.text)}", "strong")]
    found.append(Paragraph(f"  {chosen_text(s, record)}.", "" if s.chosen is not None else "warn"))
    said = []
    if s.chosen is not None:
        said.append(f"{typographic(s.reason[:1].upper() + s.reason[1:])}.")
    if s.rule_target is not None and s.rule_source is not None:
        sides = (("target", s.rule_target), ("source", s.rule_source))
        unseen = ", ".join(f"{name} {covered(*gain_texts(g))}" for name, g in sides)
        said.append(f"On seeds it did not choose by: {unseen}.")
    if s.stability is not None:
        parts = [f"trial {n} in {100 * share:.0f} %" for n, share in list(s.stability.items())[:4]]
        parts += [f"{len(s.stability) - 4} more"] if len(s.stability) > 4 else []
        parts += [f"none in {100 * s.stability_none:.0f} %"] if s.stability_none else []
        said.append(f"Of {s.draws:,} draws of the seeds it chooses {', '.join(parts)}.")
    if s.seeds_reason is not None and s.candidates:
        said.append(f"No stability: {s.seeds_reason}.")
    return found + [Paragraph(f"  {text}", "note") for text in said]


# -------------------------------------------------------------------------------------------------------------- status


WORKERS = (("Worker", False), ("#", True), ("Trial", False), ("Last measured", False), ("For", True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """A worker that is alive, and its trial."""

    worker: str
    number: int
    label: str
    rung: str
    """What was measured last, empty before the first."""
    elapsed: float | None
    """Seconds since the trial began, None where it does not say when."""


@dataclasses.dataclass(frozen=True)
class StatusView:
    """How far a study is. Draws itself on a rich console, once or in a `rich.live.Live`; `print_status` prints it
    unbroken to what is no terminal."""

    record: StudyRecord
    now: datetime.datetime
    """With its time zone."""
    selections: Sequence[Selection] | None = None
    """As `select_all` gives them; made here where they are not given."""

    @functools.cached_property
    def workers(self) -> list[WorkerStatus]:
        """Those with a running trial, by name."""
        found = []
        for t in self.record.trials:
            if t.state == "running":
                begun = moment(t.started)
                elapsed = None if begun is None else max(0.0, (self.now - begun).total_seconds())
                found.append(
                    WorkerStatus(
                        worker=t.worker or "unknown",
                        number=t.number,
                        label=t.label,
                        rung=rung_text(t, self.record),
                        elapsed=elapsed,
                    )
                )
        return sorted(found, key=lambda w: (w.worker, w.number))

    @functools.cached_property
    def to_come(self) -> int:
        """Trials that wait, and those that the sampler has yet to write down."""
        waiting = sum(t.state == "waiting" for t in self.record.trials)
        return waiting + max(0, planned(self.record) - sum(t.state != "lost" for t in self.record.trials))

    @functools.cached_property
    def remaining(self) -> float | None:
        """Seconds until the last trial ends; None where no complete trial, or no worker, says."""
        lasted = [(t.kind, worker_seconds(t)) for t in self.record.trials if t.state == FINISHED and t.runs]
        if not lasted or not self.workers:
            return None
        overall = statistics.fmean(s for _, s in lasted)

        def expected(kind: str | None) -> float:
            mine = [s for k, s in lasted if k == kind]
            return statistics.fmean(mine) if mine else overall

        kinds = {t.number: t.kind for t in self.record.trials}
        free: dict[str, float] = {}
        for w in self.workers:
            left = max(0.0, expected(kinds[w.number]) - (w.elapsed or 0.0))
            free[w.worker] = max(free.get(w.worker, 0.0), left)
        ends = list(free.values())
        heapq.heapify(ends)
        waiting: list[str | None] = [t.kind for t in self.record.trials if t.state == "waiting"]
        for kind in [*waiting, *([None] * (self.to_come - len(waiting)))]:
            heapq.heapreplace(ends, ends[0] + expected(kind))
        return max(ends)

    @property
    def ending(self) -> str:
        """When it ends, as a sentence without its end."""
        if self.record.status == "finished":
            return "finished"
        if not self.workers:
            left = plural(self.to_come, "trial")
            return f"no worker has a trial{f', {left} to come: start a worker to go on' if self.to_come else ''}"
        alive = f"with {plural(len({w.worker for w in self.workers}), 'worker')}"
        if self.remaining is None:
            return f"time left unknown until the first trial is complete, {alive}"
        at = (self.now + datetime.timedelta(seconds=self.remaining)).astimezone()
        day = "" if at.date() == self.now.astimezone().date() else f"{at:%Y-%m-%d} "
        return f"about {duration(self.remaining)} left {alive}, until {day}{at:%H:%M}"

    @functools.cached_property
    def chosen(self) -> Sequence[Selection]:
        """What each rule would choose now, the study's own first."""
        return select_all(self.record) if self.selections is None else self.selections

    def lines(self) -> list[str]:
        """The whole view as plain lines."""
        record = self.record
        found = [f"{record.name}: {record.status}; {counts_text(record)}", self.ending[:1].upper() + self.ending[1:]]
        unknown = self.to_come - sum(t.state == "waiting" for t in record.trials)
        if unknown > 0 and record.status != "finished":
            found.append(f"{plural(unknown, 'trial')} of the {planned(record)} planned not begun")
        if self.workers:
            found += ["", *plain_table(WORKERS, self._working)]
        found += ["", *(self._best(s) for s in self.chosen)]
        return [*found, *self._troubles()]

    @property
    def _working(self) -> list[list[str]]:
        return [
            [w.worker, str(w.number), w.label, w.rung, "" if w.elapsed is None else duration(w.elapsed)]
            for w in self.workers
        ]

    def _best(self, s: Selection) -> str:
        if s.chosen is None:
            return f"{rule_title(s)}: none so far, {typographic(s.reason)}"
        firm = (
            f"; the same in {100 * s.stability.get(s.chosen, 0.0):.0f} % of the draws of the seeds"
            if s.stability is not None
            else ""
        )
        return f"{rule_title(s)}: trial {s.chosen}, {s.label}, {kept_text(s, self.record)}{firm}"

    def _troubles(self) -> list[str]:
        failed = [t for t in self.record.trials if t.state == "failed" and t.continued_by is None]
        return (
            ["", *(f"failed: trial {t.number}, {t.label}: {t.reason or 'no reason recorded'}" for t in failed)]
            if failed
            else []
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        out = Printer(console)
        if not console.is_terminal:
            yield from (Text(out.text(line)) for line in self.lines())
            return
        yield Text.assemble((self.record.name, "bold"), out.text(f" {self.record.status}: {counts_text(self.record)}"))
        yield Text(out.text(self.ending[:1].upper() + self.ending[1:]))
        if self.workers:
            yield out.made("", WORKERS, [[Text(out.text(c)) for c in row] for row in self._working])
        for place, s in enumerate(self.chosen):
            yield Text(out.text(self._best(s)), style="" if place == 0 else "dim")
        for line in self._troubles():
            yield Text(out.text(line), style="red")


def status_view(
    record: StudyRecord, now: datetime.datetime | None = None, *, selections: Sequence[Selection] | None = None
) -> StatusView:
    """The view at this moment, where `now` is not given."""
    return StatusView(record, now if now is not None else datetime.datetime.now(datetime.UTC), selections)


def print_status(
    record: StudyRecord,
    now: datetime.datetime,
    console: Console | None = None,
    *,
    selections: Sequence[Selection] | None = None,
) -> None:
    """Prints how far a study is: drawn in a terminal, else one line a fact, whatever its length.

    Args:
        record: at any moment of a study.
        now: with its time zone.
        console: where to print; the terminal by default.
        selections: as `holdfast.statistics.selection.select_all` gives them; made here where they are not given.
    """
    out, view = Printer(console, unbroken=True), StatusView(record, now, selections)
    if out.console.is_terminal:
        out.console.print(view)
        return
    for line in view.lines():
        out.line(line)


def status_lines(
    record: StudyRecord, now: datetime.datetime, *, selections: Sequence[Selection] | None = None
) -> list[str]:
    """How far a study is, as plain lines: trials by state, what each worker does, when it ends, the best so far by each
    rule.

    Args:
        record: at any moment of a study.
        now: with its time zone.
        selections: as `holdfast.statistics.selection.select_all` gives them; made here where they are not given.
    """
    return StatusView(record, now, selections).lines()


def planned(record: StudyRecord) -> int:
    """Trials that the study means to have, direct fine-tuning among them: `search.trials` where a sampler decides as it
    goes, else those known."""
    search = record.config.get("search")
    wanted = search.get("trials") if isinstance(search, dict) else None
    known = sum(t.state != "lost" for t in record.trials)
    return max(known, wanted) if isinstance(wanted, int) and not isinstance(wanted, bool) else known


def rung_text(trial: TrialRecord, record: StudyRecord) -> str:
    """`seed 1 at 50 %: target +0.290, source −0.120`, and how many seeds are done."""
    done = (
        f"{len(trial.runs)} of {plural(len(record.seeds), 'seed')} done" if trial.runs or len(record.seeds) > 1 else ""
    )
    if not trial.rungs:
        return done
    last = trial.rungs[-1]
    text = (
        f"seed {last.seed} at {100 * last.share:.0f} %: target {number(last.target, 3, sign=True)}, source "
        f"{number(last.source, 3, sign=True)}"
    )
    return f"{text}; {done}" if done else text
