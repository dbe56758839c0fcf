"""The trade-off study: fine-tunes in many ways, and holds what each learnt against what each forgot.

A trial is a combination of settings, repeated over the seeds; direct fine-tuning is the first. Start and teacher are
shared. See `holdfast.studies.engine` for how trials are shared among workers.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import ConfigError, HoldfastError
from holdfast.printable import printable
from holdfast.records.run import RunFolder
from holdfast.records.study import STUDY_FILE, SeedRun, StudyRecord, seed_run_from_json, write_study
from holdfast.statistics.pareto import pareto
from holdfast.statistics.selection import select_all
from holdfast.studies.engine import session as engine
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.models import note_entries
from holdfast.studies.engine.progress import share_of_run
from holdfast.studies.engine.small import make_files
from holdfast.studies.engine.study import (
    COMPLETE,
    LABEL,
    PRUNED,
    RUNNING,
    Job,
    JobState,
    Study,
    StudyState,
    Writer,
)
from holdfast.studies.tradeoff import trial as trials
from holdfast.studies.tradeoff.growing import grown
from holdfast.studies.tradeoff.names import run_folder_name
from holdfast.studies.tradeoff.record import DIRECT, KIND, SETTINGS, gain, study_record
from holdfast.studies.tradeoff.sample_pairs import with_correlations
from holdfast.studies.tradeoff.study import PARAMS, StudyConfig, check_trials, filled, study_config
from holdfast.support.environment import say
from holdfast.support.files import from_jsonable, write_bytes_atomic

if TYPE_CHECKING:
    from holdfast.statistics.selection import Selection
    from holdfast.studies.engine.worker import Task

CHOSEN = "chosen.yaml"


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
    record: StudyRecord = engine.execute_study(Tradeoff(config), console=console, workers=workers, grace=grace)
    return record


def check_start(config: StudyConfig) -> None:
    """Finds out from its files whether the model that all trials start from can be loaded; not where it lies on the
    hub, or is made when the study runs.

    Raises:
        ModelError: it cannot.
    """
    import os

    from holdfast.checkpoints.named import located
    from holdfast.models import check_model

    name = config.train.get("model_name_or_path")
    if isinstance(name, str) and os.path.isdir(located(name)):
        check_model(name, trust_remote_code=bool(config.train.get("trust_remote_code")))


class Tradeoff(Study[StudyConfig]):
    """The trade-off study as the engine runs it."""

    noun: ClassVar[str] = "trial"
    begins: ClassVar[str] = "holdfast sweep --config study.yaml"

    @property
    def seeds(self) -> tuple[int, ...]:
        """As the study says."""
        return self.settings.seeds

    @classmethod
    def load(cls, resolved: Mapping[str, Any], *, storage: str, output_dir: Path) -> Tradeoff:
        """See `Study.load`."""
        config = study_config(resolved, prepared=True, source=f"study '{resolved['name']}'")
        return cls(dataclasses.replace(config, storage=storage, output_dir=output_dir))

    def open_folder(self, console: Any) -> None:
        """Looks at the start model's files, and prints what is worth knowing of the settings.

        Raises:
            ModelError: the model is not whole.
        """
        if not (Path(self.settings.output_dir) / STUDY_FILE).is_file():  # else it was looked at when the study began
            check_start(self.settings)
        for note in self.settings.notes:
            say(console, f"Note: {note}")

    def prepare(self, console: Any) -> Tradeoff:
        """The study with what `small:` makes; every trial is checked then.

        Raises:
            ConfigError: with every mistake at once.
        """
        config = self.settings
        if config.small is None:
            return self
        names = make_files(config.small, config.output_dir / "data", source=config.name, console=console)
        whole = filled(config, names)
        if problems := check_trials(whole):
            raise ConfigError(problems, source=config.name)
        return Tradeoff(whole)

    # ---------------------------------------------------------------------------------------------------------- trials

    def begin(self, task: Task) -> str:
        """Draws what the trial leaves open, and completes its training configuration."""
        config, params = self.settings, {}
        direct = bool(task.attributes.get(DIRECT))
        if PARAMS in task.attributes:
            params = dict(task.attributes[PARAMS])
        elif not direct:
            everything = config.search.sampler == "nsga2"
            params = task.draw(config, lambda trial: config.space.suggest(trial, everything=everything))
        settings = config.reference() if direct else config.settings(params)
        settings, note = trials.with_shared_teacher(settings, config.teacher)
        if note:
            task.note(note)
        label = "direct fine-tuning" if direct else config.space.label(params)
        kind = "direct" if direct else config.space.kind(params)
        task.set(**{SETTINGS: settings, LABEL: label, KIND: kind, PARAMS: params})
        return label

    def more(self, state: StudyState) -> list[tuple[Job, str]]:
        """Values beyond the ends of a grid that may grow; see `growing`."""
        if not self.settings.search.extend:
            return []
        # by the study's own rule: a page with another one asks for nothing
        record = dataclasses.replace(self.outcome(state), selection=self.settings.resolved["select"])
        return [
            (Job(attributes={DIRECT: False, LABEL: self.settings.space.label(g.params), PARAMS: g.params}), g.why)
            for g in grown(record, self.settings)
        ]

    def make(self, task: Task) -> SeedRun:
        """One fine-tuning; see `trial.run_seed`."""
        config, settings = self.settings, copy.deepcopy(task.attributes[SETTINGS])
        made = trials.run_seed(
            config,
            from_jsonable(settings),
            task.seed,
            kind=task.attributes[KIND],
            out=config.output_dir,
            console=task.console,
            check=task.check,
        )
        note_entries(RunFolder(config.output_dir / made.folder), task)
        return made

    def values(self, task: Task) -> Sequence[float] | None:
        """Mean gains on what the target is chosen by and on the source.

        Raises:
            HoldfastError: an objective was not measured.
        """
        runs = _runs(task.results)
        gains = [[gain(r.comparisons, w) for r in runs] for w in self.settings.judged_by]
        if any(g is None for side in gains for g in side):
            raise HoldfastError("an objective was not compared with the start: see comparisons.json of the run")
        if task.lease.slot == 0 and self.settings.search.sampler == "nsga2":
            return None  # the reference has no parameters, and must not be crossed with those that have
        return [sum(g for g in side if g is not None) / len(side) for side in gains]

    def clean(self, state: StudyState) -> None:
        """Deletes checkpoints, and the weights that the study was not asked to keep; all else of a run stays."""
        from holdfast.studies.engine.worker import remove_checkpoints, remove_weights

        out, keep = self.settings.output_dir, self.settings.keep
        ended = [j for j in state.jobs if j.state in (COMPLETE, PRUNED)]
        folders = {j.number: [out / r["folder"] for r in self.results(j.attributes)] for j in ended}
        for place in (f for found in folders.values() for f in found):
            remove_checkpoints(place)
        if keep == "all":
            return
        best: set[int] = set()
        if keep == "frontier":
            complete = [j for j in ended if j.state == COMPLETE]
            points = [(j.values[0], j.values[1]) for j in complete if j.values is not None]
            best = {complete[i].number for i in pareto(points)}
        for number, found in folders.items():
            for place in found if number not in best else ():
                remove_weights(place)

    def share(self, job: JobState) -> float:
        """How much of a trial is done, read from the metrics that its run in this folder has written."""
        seeds = len(self.seeds)
        share = super().share(job)
        if job.state == RUNNING and job.attributes.get(SETTINGS) and share < 1:
            done = {r["seed"] for r in self.results(job.attributes)}
            seed = next(s for s in self.seeds if s not in done)
            name = run_folder_name(job.attributes[SETTINGS], str(job.attributes.get(KIND)))
            folder = self.settings.output_dir / "runs" / name / f"seed-{seed}"
            share += share_of_run({**job.attributes[SETTINGS], "output_dir": folder}) / seeds
        return share

    # --------------------------------------------------------------------------------------------------------- outcome

    def outcome(self, state: StudyState) -> StudyRecord:
        """The study as in study.json."""
        return study_record(state, self.settings)

    def complete(self, record: StudyRecord) -> StudyRecord:
        """With what trials have in common over samples."""
        return with_correlations(record, self.settings.output_dir)

    def write(self, record: StudyRecord) -> None:
        """Writes study.json."""
        write_study(self.settings.output_dir, record)

    def page(self, record: StudyRecord) -> Writer:
        """The page with the frontier and the trial to take, whose configuration becomes chosen.yaml."""
        from holdfast.reports.html import write_page
        from holdfast.reports.sweep_report import sweep_page

        selections = select_all(record)
        command, text = chosen_command(record, selections[0], self.settings.output_dir)

        def write(path: Path) -> Path:
            page = sweep_page(record, path.parent, selections=selections, command=command, config_yaml=text)
            return write_page(page, path)

        return write

    def status(self, state: StudyState) -> Any:
        """The trials by state, what each worker does, when it ends, the best so far by each rule."""
        from holdfast.reports.sweep_text import status_view

        return status_view(self.outcome(state))

    def print_status(self, state: StudyState, console: Any) -> None:
        """Prints the same; outside of a terminal one line a fact."""
        from holdfast.reports.sweep_text import print_status

        print_status(self.outcome(state), datetime.datetime.now(datetime.UTC), console)


def _runs(results: Sequence[Mapping[str, Any]]) -> list[SeedRun]:
    return [seed_run_from_json(r) for r in results]


def chosen_command(record: StudyRecord, selection: Selection, out: Path) -> tuple[str, str]:
    """The command that trains the chosen trial, and its configuration, which is written to `chosen.yaml`. Empty where
    none is chosen."""
    import yaml

    trial = next((t for t in record.trials if t.number == selection.chosen), None)
    if trial is None or not trial.settings:
        (out / CHOSEN).unlink(missing_ok=True)
        return "", ""
    settings = {**trial.settings, "seed": record.seeds[0], "output_dir": f"runs/{record.name}-chosen"}
    what = f"Trial {trial.number} of the study {record.name} ({trial.label}), chosen by the rule {selection.rule}."
    text = f"# {printable(what)}\n" + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=150)
    write_bytes_atomic(out / CHOSEN, text.encode())
    return f"holdfast train --config {out / CHOSEN}", text
