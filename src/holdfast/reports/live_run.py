"""A run while it runs, as a page: how far it is and when it ends, its curves, its forecast, what was measured so far.

Reads the run's folder only, and of the log what came since the last look. Sections are those of the run's report.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import DataError
from holdfast.records.forecast import RUN_FILE
from holdfast.records.run import RunFolder, planned_steps
from holdfast.reports.blocks import (
    Banner,
    Bars,
    Block,
    Facts,
    Page,
    Panel,
    Section,
    Tile,
    Tiles,
    fold_facts,
    notes,
    problems,
)
from holdfast.reports.compared import gains, primary_of
from holdfast.reports.format import count, duration, joined, percent, plural, significant
from holdfast.reports.live import Look
from holdfast.reports.run_report import (
    STATUS_TONES,
    RunFigures,
    along_section,
    change_tables,
    forecast_section,
    level_table,
    read_run,
    run_tiles,
    state_banners,
    training_section,
)
from holdfast.support.tail import JsonlTail

RECENT = 50
"""Logged rows by which the speed is judged."""
SILENT_TRAINING, SILENT = 120.0, 1800.0
"""Seconds without anything new after which a run that trains, and one that does something else, may have died."""
DOING = {
    "prepare": "Reading the model and the data",
    "evaluate start": "Measuring the start model",
    "train": "Training; the first figures come with the first logged step",
    "save": "Saving the model",
    "evaluate result": "Trained; measuring the result",
    "report": "Trained and measured; writing the report",
}


class WatchedRun:
    """Looks at a run's folder again and again.

    Args:
        folder: of the run, begun or not.
        clock: the time, in seconds since 1970.
    """

    def __init__(self, folder: RunFolder, *, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.clock = folder, clock
        self.log = JsonlTail(folder.metrics_file)
        self._files: Any = None
        self._found: RunFigures | None = None
        self._shown: tuple[Any, Look] | None = None

    def __call__(self) -> Look:
        """How the run is now; the same object as before where nothing is new.

        Raises:
            DataError: the folder is gone, or its run.json cannot be read.
        """
        if not self.folder.path.is_dir():
            raise DataError(f"{self.folder.path} is not there any more.")
        if not self.folder.exists():
            return self._look(("not begun",), lambda: Look(page=waiting_page(self.folder.path)))
        new = self.log.read()
        files = list(_files(self.folder))
        if self._found is None or new or files != self._files:
            self._files, self._found = files, read_run(self.folder, log=tuple(self.log.rows))
        silent = self._silent(self._found, max(when for _, when, _ in files) / 1e9)
        return self._look((id(self._found), silent), lambda: self._seen(silent))

    def _look(self, state: Any, make: Callable[[], Look]) -> Look:
        if self._shown is None or self._shown[0] != state:
            self._shown = state, make()
        return self._shown[1]

    def _seen(self, silent: str) -> Look:
        found = self._found
        assert found is not None
        over = found.record.status in ("finished", "failed", "interrupted")
        return Look(page=live_page(found, silent=silent, unread=self.log.unreadable), over=over)

    def _silent(self, run: RunFigures, last: float) -> str:
        """For how long nothing was written, where that is longer than usual."""
        if run.record.status != "running":
            return ""
        limit = SILENT
        if run.record.stage == "train" and run.metrics:
            limit = max(SILENT_TRAINING, 10 * (_seconds_a_step(run.metrics) or 0.0) * _steps_a_row(run.metrics))
        seconds = self.clock() - last
        return duration(60 * (seconds // 60)) if seconds > limit else ""


def waiting_page(folder: Path, what: str = "run") -> Page:
    """The page of a folder in which nothing has begun."""
    text = f"No {what} has begun in this folder yet. It will be shown as soon as it does."
    return dataclasses.replace(opening_page(folder), status=("not begun", ""), lead=text)


def opening_page(folder: Path) -> Page:
    """The page until the first look is over."""
    tab = f"{folder.name}: holdfast watch"
    return Page(tab=tab, eyebrow="holdfast watch", title=folder.name, lead="Reading the folder.", blocks=[])


def live_page(run: RunFigures, *, silent: str = "", unread: int = 0) -> Page:
    """A run at one moment.

    Args:
        run: as `read_run` gives it.
        silent: for how long nothing was written, where that is worth saying.
        unread: lines of the log that are no JSON.
    """
    record = run.record
    running = record.status == "running"
    banners: list[Block] = [] if running else state_banners(run)
    if running:
        banners += problems("Some files could not be read.", run.problems)
    if silent:
        text = (
            f"Nothing was written for {silent}. Either a step takes that long, or the process has gone; the command "
            f"that began the run continues it."
        )
        banners.append(Banner(text, "warn"))
    if unread:
        text = f"Left out of the curves: {plural(unread, 'line')} of metrics.jsonl that could not be read."
        banners.append(Banner(text, "warn"))
    state = (record.status, STATUS_TONES.get(record.status, "good"))
    facts = [(label, text) for label, text in run.facts if label not in ("Steps", "Finished")]
    stages = record.training.get("stages") or {}
    spent = [(name, duration(float(seconds))) for name, seconds in stages.items()]
    return Page(
        tab=f"{_tab(run)}{run.title}: holdfast watch",
        eyebrow=f"holdfast watch ({record.command})",
        title=run.title,
        status=state,
        lead=f"{_doing(run)}." if running else run.verdict,
        details=joined(record.model.get("name"), record.model.get("origin"), run.method),
        blocks=[
            *banners,
            *(_progress(run) if running else []),
            Tiles(_tiles(run) if running else run_tiles(run)),
            training_section(run),
            along_section(run),
            forecast_section(run),
            _measured(run),
            notes(record.notes, "Notes of the run"),
            Section("What is trained", [Panel([Facts(facts)], "card"), fold_facts("Time by stage", spent)]),
        ],
        footer=f"Read from {record.name or 'the run'}'s folder; 'holdfast report' writes a page that stays.",
    )


def _measured(run: RunFigures) -> Section | None:
    """What was measured: the comparison where both ends are, else the models one by one."""
    if run.rows:
        return Section("Before and after", [*gains(primary_of(run.rows)), *change_tables(run)])
    return Section("Measured so far", [level_table(run.levels, title="")]) if run.levels else None


def _files(folder: RunFolder) -> Iterator[tuple[str, int, int]]:
    """(path, when it was written in ns, bytes) of everything that a run's page is made of."""
    found = [folder.run_file, folder.metrics_file, folder.path / RUN_FILE]
    for place in (folder.evaluations, folder.along):
        found += sorted(place.rglob("*.json"))
    for path in found:
        try:
            at = os.stat(path)
        except OSError:  # not there, or replaced just now
            continue
        yield str(path), at.st_mtime_ns, at.st_size


# ------------------------------------------------------------------------------------------------------------ progress


def _last(metrics: Sequence[Mapping[str, Any]], key: str) -> Any:
    return next((m[key] for m in reversed(metrics) if m.get(key) is not None), None)


def _planned(run: RunFigures) -> float | None:
    total = run.record.training.get("total_steps")
    row = next((m for m in reversed(run.metrics) if m.get("epoch")), None)
    return float(total) if total else planned_steps(run.record.config, row)


def _step(run: RunFigures) -> int:
    return int(_last(run.metrics, "step") or 0)


def _share(run: RunFigures) -> float | None:
    """Of the optimiser's steps, 0 to 1."""
    planned = _planned(run)
    return min(1.0, _step(run) / planned) if planned else None


def _steps_a_row(metrics: Sequence[Mapping[str, Any]]) -> float:
    steps = sorted({m["step"] for m in metrics[-RECENT:] if m.get("step") is not None})
    return (steps[-1] - steps[0]) / (len(steps) - 1) if len(steps) > 1 else float(steps[0]) if steps else 1.0


def _seconds_a_step(metrics: Sequence[Mapping[str, Any]]) -> float | None:
    """As in the last rows of the log; None where they do not say."""
    timed = [(m["step"], m["seconds"]) for m in metrics[-RECENT:] if m.get("step") and m.get("seconds") is not None]
    if not timed:
        return None
    (first, began), (last, ended) = (timed[0] if timed[0][0] < timed[-1][0] else (0, 0.0)), timed[-1]
    return (ended - began) / (last - first) if last > first and ended > began else None


def _training_left(run: RunFigures) -> float | None:
    """Seconds of training that are left; None where nothing says."""
    planned, each = _planned(run), _seconds_a_step(run.metrics)
    return None if planned is None or each is None else max(0.0, planned - _step(run)) * each


def _measuring_left(run: RunFigures) -> float:
    """Seconds that measuring the result will take: about as many as the start took."""
    stages = run.record.training.get("stages") or {}
    return float(stages.get("evaluate start", 0.0))


def _left(run: RunFigures) -> float | None:
    training = _training_left(run)
    return None if training is None else training + _measuring_left(run)


def _trains(run: RunFigures) -> bool:
    return run.record.stage == "train" and bool(run.metrics)


def _doing(run: RunFigures) -> str:
    """What the run is at, as a sentence without its end."""
    if not _trains(run):
        return DOING.get(run.record.stage, f"In stage “{run.record.stage}”")
    planned, left = _planned(run), _left(run)
    of = "" if planned is None else f" of {significant(round(planned))}"
    when = "" if left is None else f", about {duration(left)} left"
    return f"Training: step {significant(_step(run))}{of}{when}"


def _tab(run: RunFigures) -> str:
    share = _share(run) if run.record.status == "running" and _trains(run) else None
    return "" if share is None else f"{100 * share:.0f} % · "


def _progress(run: RunFigures) -> list[Block]:
    share = _share(run) if _trains(run) else None
    return [] if share is None else [Panel([Bars([("Steps", share, True)])], "progress")]


def _tiles(run: RunFigures) -> list[Tile]:
    """Step, time left, the last loss and how it moved, speed."""
    found = []
    planned, step, metrics = _planned(run), _step(run), run.metrics
    epoch = _last(metrics, "epoch")
    of = "" if planned is None else f" of {significant(round(planned))}"
    share = _share(run)
    below = joined(
        "" if share is None else percent(100 * share, sign=False),
        "" if epoch is None else f"epoch {float(epoch):.2f}",
    )
    found.append(Tile("Optimiser step", f"{significant(step)}{of}" if step else "none yet", below))
    left, each = (_left(run), _seconds_a_step(metrics)) if _trains(run) else (None, None)
    if left is not None:
        measuring = _measuring_left(run)
        parts = [f"{_short(each)} a step"] if each is not None else []
        parts += [f"{duration(measuring)} of it to measure the result"] if measuring >= 1 else []
        found.append(Tile("Time left", duration(left), ", ".join(parts)))
    for key, label in (("loss", "Loss"), ("eval_loss", "Held-out loss"), ("kl", "KL to the teacher")):
        values = [float(m[key]) for m in metrics if isinstance(m.get(key), (int, float))]
        if values:
            below = f"nats/token; first {significant(values[0])}, lowest {significant(min(values))}"
            found.append(Tile(label, significant(values[-1]), below))
    tokens, seconds = _last(metrics, "tokens"), _last(metrics, "seconds")
    if tokens and seconds:
        found.append(Tile("Speed", f"{count(tokens / seconds)} tokens/s", f"{count(tokens)} tokens"))
    return found


def _short(seconds: float) -> str:
    return f"{significant(float(f'{seconds:.2g}'))} s"
