"""A study while it runs, as a page: jobs by state, what each worker does, when it ends, and what was found so far.
Reads the storage and the study's folder; nothing is written and nothing is held."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.reports.blocks import (
    Bars,
    Block,
    Fold,
    Page,
    Panel,
    Paragraph,
    Section,
    Span,
    Table,
    Tile,
    Tiles,
    chip,
    columns,
    problems,
    sub,
)
from holdfast.reports.format import duration, plural, significant
from holdfast.reports.live import Look
from holdfast.reports.study_text import time_left
from holdfast.studies.engine.session import open_existing
from holdfast.studies.engine.storage import REASON
from holdfast.studies.engine.study import COMPLETE, FAILED, PRUNED, RUNNING, WAITING, JobState, Study, StudyState

TONES = {"finished": "good", "running": "good", "interrupted": "warn", "failed": "bad"}
STATES = {RUNNING: "good", PRUNED: "warn", FAILED: "bad", COMPLETE: "flat", WAITING: ""}


class WatchedStudy:
    """Looks at a study again and again.

    Args:
        folder: the study's.
        kind: its class, where it is not holdfast's.
        storage: address of its storage, where that is not in the folder.
        name: of the study, where the storage holds several.
        clock: the time, in seconds since 1970.
    """

    def __init__(
        self,
        folder: Path,
        *,
        kind: type[Study[Any]] | None = None,
        storage: str | None = None,
        name: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder, self.kind, self.storage, self.name, self.clock = folder, kind, storage, name, clock
        self._found: tuple[list[JobState], Page | None, str] | None = None

    def __call__(self) -> Look:
        """How the study is now.

        Raises:
            HoldfastError: it cannot be read.
        """
        with open_existing(self.kind, self.folder, storage=self.storage, name=self.name, read_only=True) as opened:
            state = opened.state()
            found, trouble = self._so_far(opened.study, state)
            page = live_page(opened.study, state, found, trouble=trouble, now=self.clock())
        return Look(page=page, over=state.status in ("finished", "failed", "interrupted"))

    def _so_far(self, study: Study[Any], state: StudyState) -> tuple[Page | None, str]:
        """The study's own page and why there is none; made anew where a job has changed, for choosing takes time."""
        if self._found is None or self._found[0] != state.jobs:
            page, trouble = None, ""
            try:
                page = study.so_far(study.outcome(state))
            except (HoldfastError, LookupError, ValueError, OSError) as error:  # of an unfinished study it may fail
                trouble = str(error) or type(error).__name__
            self._found = state.jobs, page, trouble
        return self._found[1:]


def live_page(
    study: Study[Any], state: StudyState, found: Page | None = None, *, trouble: str = "", now: float
) -> Page:
    """A study at one moment.

    Args:
        study: of the state.
        state: as the storage knows it.
        found: the study's own page on it.
        trouble: why there is none.
        now: seconds since 1970.
    """
    jobs, noun = state.latest, study.noun
    failed = [f"{noun} {j.number}, {j.label}: {j.attributes.get(REASON)}" for j in jobs if j.state == FAILED]
    shares = [study.share(j) if j.state == RUNNING else float(not j.open) for j in jobs]
    share = sum(shares) / max(1, len(shares))
    lead = f"{_doing(study, state, now)}."
    every = _all(study, jobs, now)
    under_way = state.status == "running"
    return Page(
        tab=f"{f'{100 * share:.0f} % · ' if under_way else ''}{state.name}: holdfast watch",
        eyebrow="holdfast watch",
        title=state.name,
        status=(state.status, TONES.get(state.status, "")),
        lead=found.lead if found is not None and state.ended else lead,
        details=found.details if found is not None else "",
        blocks=[
            *problems(f"{plural(len(failed), noun)} failed.", failed, "bad"),
            Panel([Bars([(f"{noun.capitalize()}s", share, True)])], "progress") if under_way else None,
            None if state.ended and found is not None else Tiles(_tiles(study, state, now)),
            _at_work(study, jobs, now),
            Paragraph(f"What was found so far cannot be shown yet: {trouble}.", "note") if trouble else None,
            *(_found(found, lead_shown=state.ended) if found is not None else []),
            Section(f"The queue of {noun}s", [every if found is None else _fold(every, len(jobs), noun)]),
        ],
        footer=f"Read from the study's storage ({state.storage}) and its folder.",
    )


def _fold(table: Table, count: int, noun: str) -> Fold:
    return Fold(f"All {plural(count, noun)}, by state and worker", [table])


def _found(page: Page, *, lead_shown: bool) -> list[Block]:
    """The study's own page, its answer in front where it is not the head's."""
    blocks = [x for x in page.blocks if x is not None]
    if lead_shown:
        return blocks
    tiles = [x for x in blocks[:1] if isinstance(x, Tiles)]
    return [Section("So far", [Paragraph(page.lead), *tiles]), *blocks[len(tiles) :]]


# ------------------------------------------------------------------------------------------------------------ progress


def _seconds(job: JobState, now: float) -> float | None:
    """How long it took, or has been at work; None where that is not known."""
    try:
        began = datetime.fromisoformat(job.started or "").timestamp()
        return max(0.0, (datetime.fromisoformat(job.finished).timestamp() if job.finished else now) - began)
    except ValueError:
        return None


def _kind(job: JobState) -> str:
    return str(job.attributes.get("kind") or "")


def remaining(jobs: list[JobState], now: float) -> float | None:
    """Seconds until the last job ends; None where no complete job, or no worker, says."""
    lasted = [(_kind(j), s) for j in jobs if j.state == COMPLETE and (s := _seconds(j, now)) is not None]
    running = [(j.worker, _kind(j), _seconds(j, now)) for j in jobs if j.state == RUNNING]
    return time_left(lasted, running, [_kind(j) for j in jobs if j.state == WAITING])


def _workers(jobs: list[JobState]) -> set[str]:
    return {j.worker for j in jobs if j.state == RUNNING}


def _doing(study: Study[Any], state: StudyState, now: float) -> str:
    """How far the study is, as a sentence without its end."""
    jobs = state.latest
    done, left = sum(not j.open for j in jobs), remaining(jobs, now)
    text = f"{done} of {plural(len(jobs), study.noun)} ended"
    if state.status == "running":
        text += f", {plural(len(_workers(jobs)), 'worker')} at work"
        return text + (f", about {duration(left)} left" if left is not None else "")
    if state.status == "interrupted":
        return f"{text}; nobody is at work. The command that began the study continues it"
    return text


def _tiles(study: Study[Any], state: StudyState, now: float) -> list[Tile]:
    jobs, noun = state.latest, study.noun
    states = [j.state for j in jobs]
    counts = [f"{states.count(s)} {s}" for s in (RUNNING, WAITING, PRUNED, FAILED) if s in states]
    found = [Tile(f"{noun.capitalize()}s complete", f"{states.count(COMPLETE)} of {len(jobs)}", ", ".join(counts))]
    left, lasted = (
        remaining(jobs, now),
        [s for j in jobs if j.state == COMPLETE and (s := _seconds(j, now)) is not None],
    )
    if state.status == "running":
        found.append(Tile("Time left", "not known yet" if left is None else duration(left), "from those that ended"))
        found.append(Tile("Workers", str(len(_workers(jobs))), ", ".join(sorted(_workers(jobs)))))
    if lasted:
        found.append(Tile(f"Time of a {noun}", duration(sum(lasted) / len(lasted)), "mean of those complete"))
    return found


def _at_work(study: Study[Any], jobs: list[JobState], now: float) -> Section | None:
    """What each worker does."""
    running = [j for j in jobs if j.state == RUNNING]
    if not running:
        return None
    bars = []
    for j in running:
        who, lasts = j.worker or "unknown worker", duration(_seconds(j, now))
        bars.append((f"{who}: {study.noun} {j.number}, {j.label}, for {lasts}", study.share(j), True))
    return Section("At work", [Panel([Bars(bars)], "progress")], anchor="work")


def _all(study: Study[Any], jobs: list[JobState], now: float) -> Table:
    """Every job with its state and what it reported."""
    measures = study.settings.measures
    reported = any(j.values for j in jobs)
    heads = columns(
        *("#", study.noun.capitalize(), "State", "Worker", "Time"), *(measures if reported else ()),
        right=(0, 4, *range(5, 5 + len(measures) * reported)),
    )  # fmt: skip
    rows = []
    for j in jobs:
        seconds = _seconds(j, now) if j.state != WAITING else None
        why = str(j.attributes.get(REASON) or "") if j.state in (FAILED, PRUNED) else ""
        label = (j.label, sub(why, tone="bad" if j.state == FAILED else "") if why else None)
        values = (
            [significant(float(v)) for v in j.values or [None] * len(measures) if v is not None] if reported else []
        )
        values += [""] * (len(measures) * reported - len(values))
        time_ = Span("" if seconds is None else duration(seconds))
        rows.append([str(j.number), label, chip(j.state, STATES.get(j.state, "")), j.worker, time_, *values])
    return Table(columns=heads, rows=rows, kind="dense")
