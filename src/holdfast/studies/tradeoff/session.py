"""A study from its file to its page: checks, starts workers, shows what they do, and ends with the frontier and the
trial to take.

Everything that a later command needs is in the storage and in the runs' folders; this module can be interrupted at any
moment. Workers are processes of their own (`holdfast sweep worker`), so that one that runs out of memory takes its
trial with it and nothing else.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError, Interrupted, RunFolderError
from holdfast.records.run import RunFolder
from holdfast.records.study import StudyRecord, TrialRecord, write_study
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.storage import Storage
from holdfast.studies.tradeoff.record import study_record
from holdfast.studies.tradeoff.study import StudyConfig
from holdfast.studies.tradeoff.worker import prepared
from holdfast.support.environment import hardware, lock_folder, say, terminated_is_interrupted, versions
from holdfast.support.files import write_bytes_atomic
from holdfast.support.processes import Workers, good_workers, python_module

if TYPE_CHECKING:
    import optuna

    from holdfast.statistics.selection import Selection

STORAGE_VARIABLE = "HOLDFAST_STORAGE"
"""Environment variable with a storage's address: unlike an option it does not show in the list of processes."""
WATCH_SECONDS = 1.0
REPORT_SECONDS = 20.0
CHOSEN = "chosen.yaml"
PAGE = "report.html"
MARKER = "study.json"


def run_study(
    config: StudyConfig, *, console: Any = None, workers: int | None = None, grace: float = stored.GRACE_SECONDS
) -> StudyRecord:
    """Runs a study to its end, or continues it.

    Args:
        config: see `study.load_study`.
        console: a `rich.console.Console` for progress; None: a new one on standard output.
        workers: trials at a time on this machine; None: as the study says, else one a GPU, or two on two and more
            cores. 0 starts none and waits for those started elsewhere.
        grace: seconds without a sign of life after which another machine's trial is taken over.

    Returns:
        The study as it ended, as in study.json.

    Raises:
        ConfigError: the configuration, or the storage holds another study of this name (what differs).
        StorageError: the storage does not answer.
        RunFolderError: the folder is another's.
        Interrupted: Ctrl-C; the same command continues.
        HoldfastError: trials failed (which), after the others ended and the page was written.
    """
    from rich.console import Console

    console = console or Console()
    out = config.output_dir
    _refuse_foreign(out)
    asked = workers if workers is not None else config.workers if config.workers is not None else good_workers()
    storage = Storage(config.storage, grace=grace)
    try:
        with terminated_is_interrupted(), lock_folder(out / ".watching"):
            for note in config.notes:
                say(console, f"Note: {note}")
            ready = prepared(config, out, console=console)
            study = storage.open_study(config)
            study.set_user_attr("hardware", hardware())
            study.set_user_attr("versions", {**versions(), "optuna": _version("optuna")})
            try:
                _run_trials(storage, study, ready, out, asked, console, grace)
            finally:
                record, _ = finish(storage, study, ready, out)
    except KeyboardInterrupt:
        raise Interrupted(f"Interrupted; what is done stays in {out}. The same command continues.") from None
    finally:
        storage.close()
    failed = [t for t in record.trials if t.state == "failed" and t.continued_by is None]
    if failed:
        listed = "\n".join(f"  trial {t.number} ({t.label}): {t.reason}" for t in failed[:10])
        raise HoldfastError(
            f"{_count(len(failed), 'trial')} of {len(record.trials)} failed; the page is {out / PAGE}.\n{listed}\nThe "
            f"same command tries them again."
        )
    return record


def _run_trials(
    storage: Storage, study: optuna.Study, config: StudyConfig, out: Path, workers: int, console: Any, grace: float
) -> None:
    """Starts workers for what is left, if anything is."""
    record = study_record(storage, study, config)
    write_study(out, record)
    latest = [t for t in record.trials if t.continued_by is None]
    waiting = [t for t in latest if t.state in ("waiting", "running")]
    if waiting:
        before = f", {len(latest) - len(waiting)} ended before" if len(latest) > len(waiting) else ""
        size = (
            f"{_count(len(waiting), 'trial')} x {_count(len(config.seeds), 'seed')}{before}, "
            f"{_count(workers, 'worker')}"
        )
        say(console, f"{config.name}: {size}. Folder: {out}")
        _with_workers(storage, study, config, out, workers, console, grace)


def open_existing(
    out: Path, *, storage: str | None = None, name: str | None = None
) -> tuple[Storage, Any, StudyConfig]:
    """The study of a folder, or of a storage by its name, without running anything.

    Args:
        out: the study's folder.
        storage: its storage; None: the file in the folder, or the one that the environment names.
        name: of the study; None: the folder's, or the only one of the storage.

    Raises:
        ConfigError: no such study.
        StorageError: the storage does not answer.
        RunFolderError: no study in the folder.
    """
    import dataclasses

    from holdfast.errors import ConfigError
    from holdfast.records.study import read_study
    from holdfast.studies.tradeoff.study import study_config

    known = read_study(out) if (out / MARKER).is_file() else None
    own = known.storage if known is not None and known.storage.startswith("sqlite") else None
    url = storage or own or os.environ.get(STORAGE_VARIABLE) or f"sqlite:///{out}/study.db"
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file():
        if known is not None and own is None:
            raise ConfigError(
                f"--storage is missing: {out} is a study of {known.storage}. Give its address, or set "
                f"{STORAGE_VARIABLE}."
            )
        raise RunFolderError(
            f"expected a study in {out}, found no study.db. 'holdfast sweep --config study.yaml' begins one."
        )
    opened = Storage(url)
    names = opened.names()
    name = name or (known.name if known else names[0] if len(names) == 1 else None)
    if name is None:
        raise ConfigError(f"--study is missing: {stored.shown(url)} holds {', '.join(names) or 'no study'}.")
    study = opened.load(name)
    resolved = study.user_attrs.get(stored.CONFIG)
    if resolved is None:
        raise ConfigError(
            f"'{name}' in {stored.shown(url)} is a study of Optuna's, not one that 'holdfast sweep' began."
        )
    values = {k: v for k, v in resolved.items() if v is not None}
    config = study_config(values, prepared=True, source=f"study '{name}'")
    return opened, study, dataclasses.replace(config, storage=url, output_dir=out)


def finish(
    storage: Storage, study: optuna.Study, config: StudyConfig, out: Path
) -> tuple[StudyRecord, list[Selection]]:
    """Writes study.json, the chosen configuration and the page, from what there is."""
    from holdfast.reports.study_report import write_study_report
    from holdfast.statistics.selection import select_all

    record = study_record(storage, study, config)
    write_study(out, record)
    selections = select_all(record)
    command, text = chosen_command(record, selections[0], out)
    write_study_report(out / PAGE, record, selections=selections, command=command, config_yaml=text)
    return record, selections


def chosen_command(record: StudyRecord, selection: Selection, out: Path) -> tuple[str, str]:
    """The command that trains the chosen trial, and its configuration, which is written to `chosen.yaml`. Empty where
    none is chosen."""
    import yaml

    trial = next((t for t in record.trials if t.number == selection.chosen), None)
    if trial is None or not trial.settings:
        (out / CHOSEN).unlink(missing_ok=True)
        return "", ""
    settings = {**trial.settings, "seed": record.seeds[0], "output_dir": f"runs/{record.name}-chosen"}
    head = f"# Trial {trial.number} of the study {record.name} ({trial.label}), chosen by the rule {selection.rule}.\n"
    text = head + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=150)
    write_bytes_atomic(out / CHOSEN, text.encode())
    return f"holdfast train --config {out / CHOSEN}", text


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _refuse_foreign(out: Path) -> None:
    """A folder with files that are no study is not touched."""
    if (
        out.is_dir()
        and any(not p.name.startswith(".") for p in out.iterdir())
        and not any((out / n).exists() for n in (MARKER, "study.db", "data", "logs"))
    ):
        raise RunFolderError(
            f"{out} is not empty and holds no study. Expected a new or empty output_dir, so that nothing of yours is "
            f"overwritten."
        )


# -------------------------------------------------------------------------------------------------------------- workers


def worker_command(config: StudyConfig, out: Path, grace: float) -> list[str]:
    """How a worker of a study is started. The storage's address goes through the environment."""
    return python_module("sweep", "worker", "--study", config.name, "--output_dir", str(out), "--grace", f"{grace:g}")


def _processes(config: StudyConfig, out: Path, workers: int, grace: float) -> Workers:
    return Workers(
        worker_command(config, out, grace),
        count=workers,
        logs=out / "logs",
        environment={
            STORAGE_VARIABLE: config.storage,
            **({"HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1")} if config.small else {}),
        },
    )


def _with_workers(
    storage: Storage, study: Any, config: StudyConfig, out: Path, workers: int, console: Any, grace: float
) -> None:
    """Starts workers and shows what they do until no trial is left.

    Raises:
        HoldfastError: every worker ended although trials are left (the end of a log).
    """
    with _processes(config, out, workers, grace) as processes, _Bar(config, out, console) as bar:
        shown = 0.0
        while True:
            record = storage.patient(lambda: study_record(storage, study, config))
            bar.show(record)
            left = [t for t in record.trials if t.state in ("waiting", "running")]
            if time.monotonic() - shown > REPORT_SECONDS:
                write_study(out, record)
                shown = time.monotonic()
            if not left:
                break
            processes.restart_killed(lambda text: say(console, text))
            if workers and processes.ended:
                record = study_record(storage, study, config)
                if any(t.state in ("waiting", "running") for t in record.trials):
                    raise HoldfastError(f"Every worker ended although trials are left. {processes.last_words()}")
                break
            time.sleep(WATCH_SECONDS)


class _Bar:
    """One bar over all trials, moved by what the runs in this folder have written; without a terminal a line at each
    tenth."""

    def __init__(self, config: StudyConfig, out: Path, console: Any) -> None:
        self.config, self.out, self.console = config, out, console
        self.bar: Any = None
        self.tenth = -1

    def __enter__(self) -> _Bar:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

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

    def show(self, record: StudyRecord) -> None:
        """Moves the bar to where the study is."""
        latest = [t for t in record.trials if t.continued_by is None]
        parts = [self._share(t) for t in latest]
        active = [t.label for t in latest if t.state == "running"]
        done = sum(t.state not in ("waiting", "running") for t in latest)
        share = sum(parts) / max(1, len(parts))
        words = f"{done} of {len(latest)} trials" + (f"  {'; '.join(active[:2])}" if active else "")
        if self.bar is not None:
            self.bar.update(self.task, completed=share, description=words)
        elif int(10 * share) != self.tenth:
            self.tenth = int(10 * share)
            say(self.console, f"  {100 * share:.0f} %: {words}")

    def _share(self, trial: TrialRecord) -> float:
        if trial.state not in ("waiting", "running"):
            return 1.0
        seeds = len(self.config.seeds)
        share = len(trial.runs) / seeds
        if trial.state == "running" and trial.settings and len(trial.runs) < seeds:
            share += self._of_run(trial) / seeds
        return share

    def _of_run(self, trial: TrialRecord) -> float:
        from holdfast.studies.tradeoff.names import run_folder_name

        seed = next((s for s in self.config.seeds if all(r.seed != s for r in trial.runs)), None)
        run = RunFolder(self.out / "runs" / run_folder_name(trial.settings, trial.kind) / f"seed-{seed}")
        try:
            rows = run.metrics()
            steps = (
                float(trial.settings.get("max_steps") or 0) or float(rows[-1].get("step", 0) / rows[-1]["epoch"] * 1.0)
                if rows
                else 0.0
            )
        except (HoldfastError, OSError, KeyError, ZeroDivisionError):
            return 0.0
        if not rows or not steps:
            return 0.0
        if not trial.settings.get("max_steps"):
            steps *= float(trial.settings.get("num_train_epochs") or 3)
        return 0.9 * min(1.0, max(float(r.get("step", 0)) for r in rows) / steps)
