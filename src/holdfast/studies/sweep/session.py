"""A sweep: fine-tunes in many ways, and holds what each learnt against what each forgot.

A trial is a combination of settings, repeated over the seeds; direct fine-tuning is the first.
Start and teacher are shared. See `holdfast.studies.engine` for how trials are shared among workers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import HoldfastError
from holdfast.printable import lines, printable
from holdfast.records.run import RunFolder
from holdfast.records.study import STUDY_FILE, SeedRun, StudyRecord, seed_run_from_json
from holdfast.statistics.pareto import pareto
from holdfast.statistics.selection import select_all
from holdfast.studies.engine import session as engine
from holdfast.studies.engine import storage as stored
from holdfast.studies.engine.base import ConfiguredStudy
from holdfast.studies.engine.models import check_local_model, note_entries
from holdfast.studies.engine.space import DIRECT_TITLE
from holdfast.studies.engine.states import COMPLETE, PRUNED
from holdfast.studies.engine.study import LABEL, PAGE, JobState, StudyState, Writer
from holdfast.studies.sweep import trial as trials
from holdfast.studies.sweep.names import run_folder_name
from holdfast.studies.sweep.record import DIRECT, KIND, SETTINGS, gain, study_record
from holdfast.studies.sweep.sample_pairs import with_correlations
from holdfast.studies.sweep.study import PARAMS, StudyConfig
from holdfast.support.environment import say
from holdfast.support.files import from_jsonable, write_bytes_atomic

if TYPE_CHECKING:
    from holdfast.statistics.selection import Selection
    from holdfast.studies.engine.worker import Task

CHOSEN = "chosen.yaml"


def run_study(
    config: StudyConfig,
    *,
    console: Any = None,
    workers: int | None = None,
    grace: float = stored.GRACE_SECONDS,
) -> StudyRecord:
    """Runs a study to its end, or continues it.

    Args:
        config: the study, see `study.load_study`.
        console: a `rich.console.Console` for progress; None: a new one on standard output.
        workers: number of trials that this machine runs at once. None: the study's own setting,
            else one a GPU, or two on two or more cores. 0 starts none and waits for workers that
            were started elsewhere.
        grace: seconds without a sign of life after which a trial of another machine is taken over.

    Returns:
        The finished study, as in study.json.

    Raises:
        ConfigError: the configuration has mistakes, or the storage holds a different study of this
            name (the message lists the differences).
        StorageError: the storage does not answer.
        RunFolderError: the folder belongs to something else.
        Interrupted: Ctrl-C; the same command continues.
        HoldfastError: some trials failed (the message names them). It is raised after the other
            trials ended and the page was written.
    """
    record: StudyRecord = engine.execute_study(
        SweepStudy(config), console=console, workers=workers, grace=grace
    )
    return record


LISTED_TRIALS = 60
"""Of a grid, in a dry run."""


class SweepStudy(ConfiguredStudy[StudyConfig]):
    """A sweep as the engine runs it."""

    config_class: ClassVar[type[StudyConfig]] = StudyConfig
    noun: ClassVar[str] = "trial"

    def open_folder(self, console: Any) -> None:
        """Looks at the start model's files, and prints what is worth knowing of the settings.

        Raises:
            ModelError: the model is not whole.
        """
        if not (
            Path(self.settings.output_dir) / STUDY_FILE
        ).is_file():  # else it was looked at when the study began
            train = self.settings.train
            check_local_model(train.get("model_name_or_path"), train)
        for note in self.settings.notes:
            say(console, f"Note: {note}")

    def dry_run(self) -> list[str]:
        """What `--dry_run` looks at and prints: the model, the objectives, the trials.

        Raises:
            ModelError: the model is not there or not whole.
        """
        config = self.settings
        if config.request.toy is None:
            check_local_model(config.base, config.train)
        planned, seeds = config.trials(), config.request.seeds
        count = f"{len(planned)} trial{'s' if len(planned) > 1 else ''} and direct fine-tuning"
        of_seeds = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        text = [f"study: {config.name} ({config.search.sampler}, {count}, {of_seeds})"]
        text += [f"learn: {config.learn.label}", f"keep: {config.keep.label}"]
        if config.validation is not None:
            text.append(f"chosen by: {config.validation.label}, not by learn")
        if config.request.toy is not None:
            text.append(
                f"toy: {str(config.request.toy).partition('@')[0]}; base and data are made when "
                "the study runs"
            )
        text += [f"note: {note}" for note in config.notes]
        text.append(f"   0  {DIRECT_TITLE}")
        if config.search.sampler == "grid":
            for number, trial in enumerate(planned[:LISTED_TRIALS], 1):
                text.append(f"{number:>4}  {config.space.label(trial)}")
            if len(planned) > LISTED_TRIALS:
                text.append(f"      ... and {len(planned) - LISTED_TRIALS} more")
        else:
            text.append(f"      {count.partition(' and ')[0]}, drawn while the study runs")
        return [*text, f"{(len(planned) + 1) * len(seeds)} fine-tuning runs in all."]

    # --------------------------------------------------------------------------------------- trials

    def begin(self, task: Task) -> str:
        """Draws what the trial leaves open, and completes its training configuration."""
        config, params = self.settings, dict(task.attributes.get(PARAMS, {}))
        direct = bool(task.attributes.get(DIRECT))
        if PARAMS not in task.attributes and not direct:
            everything = config.search.sampler == "nsga2"
            params = task.draw(
                config, lambda trial: config.space.suggest(trial, everything=everything)
            )
        settings = config.reference() if direct else config.settings(params)
        settings, note = trials.with_shared_teacher(settings, config.request.teacher)
        if note:
            task.note(note)
        label = "direct fine-tuning" if direct else config.space.label(params)
        kind = "direct" if direct else config.space.kind(params)
        task.set(**{SETTINGS: settings, LABEL: label, KIND: kind, PARAMS: params})
        return label

    def make(self, task: Task) -> SeedRun:
        """One fine-tuning; see `trial.run_seed`."""
        config, settings = self.settings, copy.deepcopy(task.attributes[SETTINGS])
        result = trials.run_seed(
            config,
            from_jsonable(settings),
            task.seed,
            kind=task.attributes[KIND],
            out=config.output_dir,
            console=task.console,
            check=task.check,
        )
        note_entries(RunFolder(config.output_dir / result.folder), task)
        return result

    def values(self, task: Task) -> Sequence[float] | None:
        """Mean gains on what choices go by and on what is kept.

        Raises:
            HoldfastError: an objective was not measured.
        """
        runs = [seed_run_from_json(result) for result in task.results]
        means = []
        for objective in self.settings.judged_by:
            gains = []
            for run in runs:
                value = gain(run.comparisons, objective)
                if value is None:
                    raise HoldfastError(
                        "an objective was not compared with the initial model: see "
                        "comparisons.json of the run"
                    )
                gains.append(value)
            means.append(sum(gains) / len(gains))
        if task.lease.slot == 0 and self.settings.search.sampler == "nsga2":
            return None  # the reference has no parameters, and must not be crossed with those that have
        return means

    def clean(self, state: StudyState) -> None:
        """Deletes checkpoints, and the weights that the study was not asked to keep; all else of a
        run stays."""
        from holdfast.studies.engine.worker import remove_checkpoints, remove_weights

        out, keep = self.settings.output_dir, self.settings.request.keep_weights
        best: set[int] = set()
        if keep == "frontier":
            numbers, points = list[int](), list[tuple[float, float]]()
            for job in state.jobs:
                if job.state == COMPLETE and job.values is not None:
                    numbers.append(job.number)
                    points.append((job.values[0], job.values[1]))
            best = {numbers[index] for index in pareto(points)}
        for job in state.jobs:
            if job.state not in (COMPLETE, PRUNED):
                continue
            for result in self.results(job.attributes):
                remove_checkpoints(out / result["folder"])
                if keep != "all" and job.number not in best:
                    remove_weights(out / result["folder"])

    def running(self, job: JobState) -> Mapping[str, Any] | None:
        """See `ConfiguredStudy`."""
        settings = job.attributes.get(SETTINGS)
        if not settings:
            return None
        done = {result["seed"] for result in self.results(job.attributes)}
        seed = next(seed for seed in self.seeds if seed not in done)
        name = run_folder_name(settings, str(job.attributes.get(KIND)))
        return {**settings, "output_dir": self.settings.output_dir / "runs" / name / f"seed-{seed}"}

    # -------------------------------------------------------------------------------------- outcome

    def outcome(self, state: StudyState) -> StudyRecord:
        """The study as in study.json."""
        return study_record(state, self.settings)

    def complete(self, record: StudyRecord) -> StudyRecord:
        """With what trials have in common over samples."""
        return with_correlations(record, self.settings.output_dir)

    def page(self, record: StudyRecord) -> Writer:
        """The page with the frontier and the trial to take, whose configuration becomes
        chosen.yaml."""
        from holdfast.reports.html import write_page
        from holdfast.reports.sweep_report import sweep_page

        selections = select_all(record)
        command, text = chosen_command(record, selections[0], self.settings.output_dir)

        def write(path: Path) -> Path:
            page = sweep_page(
                record, path.parent, selections=selections, command=command, config_yaml=text
            )
            return write_page(page, path)

        return write

    def show(self, record: StudyRecord, console: Any) -> None:
        """Prints the trials, what the study's rule chooses, the command that trains it, and where
        the page is."""
        from holdfast.reports.sweep_text import print_sweep

        out, selections = self.settings.output_dir, select_all(record)[:1]
        print_sweep(record, selections, console)
        if selections[0].chosen is not None:
            say(
                console,
                lines(
                    "",
                    f"Train it again, or on more data:  holdfast train --config {out / CHOSEN}",
                ),
            )
        say(console, f"What would another rule choose?  holdfast sweep report {out} --rule NAME")
        say(console, f"Report    {out / PAGE}")


def chosen_command(record: StudyRecord, selection: Selection, out: Path) -> tuple[str, str]:
    """The command that trains the chosen trial, and its configuration, which is written to
    `chosen.yaml`. Empty where none is chosen."""
    import yaml

    trial = next((t for t in record.trials if t.number == selection.chosen), None)
    if trial is None or not trial.settings:
        (out / CHOSEN).unlink(missing_ok=True)
        return "", ""
    settings = {
        **trial.settings,
        "seed": record.seeds[0],
        "output_dir": f"runs/{record.name}-chosen",
    }
    what = (
        f"Trial {trial.number} of the study {record.name} ({trial.label}), chosen by the rule "
        f"{selection.rule}."
    )
    text = f"# {printable(what)}\n" + yaml.safe_dump(
        settings, sort_keys=False, allow_unicode=True, width=150
    )
    write_bytes_atomic(out / CHOSEN, text.encode())
    return f"holdfast train --config {out / CHOSEN}", text
