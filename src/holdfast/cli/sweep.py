"""`holdfast sweep`: the trade-off study, its workers, its status, its page."""

from __future__ import annotations

import argparse
import datetime
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.options import OptionParser, console
from holdfast.errors import ConfigError, Interrupted, did_you_mean

if TYPE_CHECKING:
    from holdfast.studies.tradeoff.study import StudyConfig

SUBJECTS = {
    "worker": "runs trials of a study that another command began, here or on another machine",
    "status": "what is running, what is done, how long it will take; changes nothing",
    "report": "the table again, the page anew, also with another rule of selection",
}
DESCRIPTION = """\
Fine-tunes in many ways, measures what each learnt and what each forgot, draws the frontier between the two, and says
which one to take. Start, direct fine-tuning and label annealing's teacher are computed once and shared.
Interrupted? The same command continues; nothing finished is done again.
"""
EPILOG = f"""\
also
  holdfast sweep worker      {SUBJECTS["worker"]}
  holdfast sweep status      {SUBJECTS["status"]}
  holdfast sweep report      {SUBJECTS["report"]}

study.yaml
  train: run.yaml                      # a training configuration of 'holdfast train', as a file or as keys
  vary:
    retention:                         # alternatives; a list varies, an inner list is a combination of methods
      - label_annealing: {{weight: {{log: [0.1, 10], points: 5}}, temperature: [1, 2]}}
      - l2: {{coefficient: [0.001, 0.01]}}
      - [{{replay: {{data: old.jsonl, fraction: 0.1}}}}, {{label_annealing: {{weight: [0.3, 1]}}}}]
    learning_rate: [1.0e-5, 3.0e-5]    # any key of the training configuration
  objectives: {{target: gsm8k, source: [mmlu, humaneval]}}    # entries of its evaluation section; several: their mean
  seeds: [0, 1, 2]                     # every trial is repeated
  search: {{sampler: grid}}              # or random, tpe, nsga2, these with trials: 30
  pruning: {{at: [0.5]}}                 # stop what falls behind (left out: nothing is stopped)
  select: {{rule: paper}}                # or target_within (points: 1pt), knee
  keep: frontier                       # whose weights stay on disk: all, frontier, none
  output_dir: runs/my-study

examples
  holdfast sweep --config study.yaml
  holdfast sweep --config study.yaml --dry_run                  # the trials, and all mistakes
  holdfast sweep status runs/my-study --watch
  holdfast sweep report runs/my-study --rule knee

  # several machines, one database (pip install 'holdfast[postgres]'; $HOLDFAST_STORAGE keeps a password out of the process list)
  holdfast sweep --config study.yaml --storage postgresql://user@host/database
  holdfast sweep worker --storage postgresql://user@host/database --study my-study        # on each other machine

  optuna-dashboard sqlite:///runs/my-study/study.db             # the study in Optuna's dashboard (pip install optuna-dashboard)
"""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast sweep --help`."""
    if argv and not argv[0].startswith("-"):
        subject, *rest = argv
        if subject not in SUBJECTS:
            hint = (
                f" For a study file write '--config {subject}'."
                if subject.endswith((".yaml", ".yml"))
                else did_you_mean(subject, SUBJECTS)
            )
            raise ConfigError(f"unknown 'holdfast sweep {subject}'.{hint or ' Known: ' + ', '.join(SUBJECTS) + '.'}")
        return {"worker": _worker, "status": _status, "report": _report}[subject](rest)
    return _sweep(argv)


def sweep_parser() -> OptionParser:
    """The options of `holdfast sweep`."""
    parser = OptionParser(prog="holdfast sweep", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--config", type=Path, metavar="study.yaml", help="the study")
    parser.add_argument("--output_dir", metavar="FOLDER", help="folder of the study (runs/NAME)")
    parser.add_argument("--name", metavar="NAME", help="of the study in its storage (the file's name)")
    _add_storage(parser)
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="trials at a time here (one a GPU; two on two cores; 0: only workers elsewhere)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="repetitions of every trial")
    parser.add_argument("--dry_run", action="store_true", help="checks the request and lists the trials")
    return parser


def _sweep(argv: list[str]) -> int:
    options = sweep_parser().parse(argv)
    if options.config is None:
        raise ConfigError(
            "--config is missing: expected a study, as in 'holdfast sweep --config study.yaml'. 'holdfast sweep --help' shows one."
        )

    from holdfast.studies.tradeoff.study import load_study

    overrides = {k: getattr(options, k) for k in ("output_dir", "name", "workers", "seeds")}
    config = load_study(options.config, {**overrides, "storage": _storage(options)})
    if options.dry_run:
        print(plan(config))
        return 0
    from holdfast.studies.tradeoff.session import run_study

    target = console()
    record = run_study(config, console=target, workers=options.workers, grace=options.grace)
    _print(record, config.output_dir, target)
    return 0


def worker_parser() -> OptionParser:
    """The options of `holdfast sweep worker`."""
    parser = OptionParser(
        prog="holdfast sweep worker",
        description="Runs trials of a study until none is left. Start as many as you like, on as many machines as reach the storage.",
        epilog="""\
examples
  holdfast sweep worker --storage postgresql://user@host/database --study my-study

Model, data and evaluation files are looked for where the study names them, from this working directory: start workers in a copy of the project.
Runs are written to --output_dir; figures go to the storage, so the page of the study needs no shared disk. With a shared disk, name the same folder.
A worker that dies loses nothing: another one continues its trial, from its last checkpoint where the folder is shared, else from the beginning.
""",
    )
    parser.add_argument("--study", metavar="NAME", help="of the study (needed where the storage holds several)")
    parser.add_argument(
        "--output_dir",
        type=Path,
        metavar="FOLDER",
        help="where this worker writes its runs (the study's own, seen from here)",
    )
    _add_storage(parser)
    return parser


def _worker(argv: list[str]) -> int:
    options = worker_parser().parse(argv)
    url = _storage(options)
    if url is None and options.output_dir is None:
        raise ConfigError(
            "--storage is missing: expected the address of the study's database, such as postgresql://user@host/database."
        )

    from holdfast.studies.tradeoff.session import open_existing
    from holdfast.studies.tradeoff.worker import prepared, work
    from holdfast.support.environment import say, terminated_is_interrupted

    storage, study, config = open_existing(options.output_dir or Path("."), storage=url, name=options.study)
    storage.grace = options.grace
    out = options.output_dir or Path(config.resolved["output_dir"])
    target = console()
    try:
        with terminated_is_interrupted():
            ready = prepared(config, out, console=target)
            ended = work(storage, study, ready, out=out, console=target, several=True)
    except KeyboardInterrupt:
        raise Interrupted("Interrupted; the trial waits for the next worker.") from None
    say(target, f"No trial of '{config.name}' is left; this worker ended {ended}.")
    return 0


def status_parser() -> OptionParser:
    """The options of `holdfast sweep status`."""
    parser = OptionParser(prog="holdfast sweep status", description="What a study is doing. Reads only.", epilog="")
    _add_study(parser)
    parser.add_argument("--watch", action="store_true", help="stays, and shows it anew every few seconds")
    parser.add_argument("--json", action="store_true", help="study.json of this moment on standard output")
    return parser


def _status(argv: list[str]) -> int:
    options = status_parser().parse(argv)

    from holdfast.studies.tradeoff.record import study_record

    storage, study, config = _open(options)

    def now() -> Any:
        return storage.patient(lambda: study_record(storage, study, config))

    if options.json:
        import json

        from holdfast.support.files import to_jsonable

        print(json.dumps(to_jsonable(now()), indent=2))
        return 0
    from holdfast.reports.study_text import print_status, status_view

    target = console()
    if not (options.watch and target.is_terminal):
        print_status(now(), datetime.datetime.now(datetime.UTC), target)
        return 0
    from rich.live import Live

    with Live(console=target, refresh_per_second=1, screen=False) as live:
        while True:
            record = now()
            live.update(status_view(record))
            if record.status in ("finished", "failed"):
                return 0
            time.sleep(3)


def report_parser() -> OptionParser:
    """The options of `holdfast sweep report`."""
    parser = OptionParser(
        prog="holdfast sweep report",
        description="Prints a study's table and writes report.html, study.json and chosen.yaml anew.",
        epilog="""\
rules
  paper            leave out what does not improve the target on the start; of the rest the best source
  target_within    the best target of those whose source loses at most --points
  knee             the bend of the frontier

examples
  holdfast sweep report runs/my-study
  holdfast sweep report runs/my-study --rule target_within --points 1pt
""",
    )
    _add_study(parser)
    parser.add_argument("--rule", metavar="RULE", help="paper, target_within or knee (the study's)")
    parser.add_argument(
        "--points", metavar="LOSS", help="with target_within: what the source may lose, in the metric's unit or as 1pt"
    )
    parser.add_argument(
        "--strict", action="store_true", help="whole intervals have to be on the right side, not only the figures"
    )
    return parser


def _report(argv: list[str]) -> int:
    options = report_parser().parse(argv)
    storage, study, config = _open(options)
    out = config.output_dir
    if options.rule or options.points or options.strict:
        import dataclasses

        from holdfast.statistics.rules import rule_from_config

        rule = {"rule": options.rule or "target_within" if options.points else options.rule or "paper"}
        rule |= {k: v for k, v in (("points", options.points), ("strict", options.strict)) if v}
        rule_from_config(rule)
        config = dataclasses.replace(config, select=rule)

    from holdfast.studies.tradeoff.session import finish

    record, _ = finish(storage, study, config, out)
    _print(record, out, console())
    return 0


def plan(config: StudyConfig) -> str:
    """What a study would do, as text."""
    trials = config.trials()
    seeds = ", ".join(map(str, config.seeds))
    rows = [
        (
            "study",
            f"{config.name} ({config.search.sampler}, {len(trials)} trials and direct fine-tuning, seeds {seeds})",
        ),
        ("target", config.target.label),
        ("source", config.source.label),
        ("output", str(config.output_dir)),
    ]
    rows += (
        [("small", f"{config.small}: base and data are made when the study runs, and the trials are checked then")]
        if config.small
        else []
    )
    rows += [("note", n) for n in config.notes]
    lines = ["Dry run: the request is sound; nothing was trained.", "", *(f"  {k:<8} {v}" for k, v in rows), ""]
    shown = [config.space.label(p) for p in trials if p][:60]
    lines += [f"  {number:>4}  {label}" for number, label in enumerate(["direct fine-tuning", *shown])]
    if len(trials) > len(shown):
        more = "are drawn as the study runs" if not shown else f"... and {len(trials) - len(shown)} more"
        lines.append(f"        {len(trials)} combinations {more}" if not shown else f"        {more}")
    runs = (len(trials) + 1) * len(config.seeds)
    return "\n".join([*lines, "", f"  {runs} fine-tuning runs in all."])


def _add_storage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="database of the study: sqlite:///FILE, postgresql://user@host/database ($HOLDFAST_STORAGE)",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="without a sign of life, until a worker counts as dead (60)",
    )


def _add_study(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="the study's folder")
    parser.add_argument("--study", metavar="NAME", help="of the study, where only its storage is known")
    _add_storage(parser)


def _storage(options: argparse.Namespace) -> str | None:
    from holdfast.studies.tradeoff.session import STORAGE_VARIABLE

    return options.storage or os.environ.get(STORAGE_VARIABLE)


def _open(options: argparse.Namespace) -> Any:
    from holdfast.studies.tradeoff.session import open_existing

    if options.folder is None and _storage(options) is None:
        raise ConfigError(
            "expected the folder of a study, as in 'holdfast sweep status runs/my-study', or --storage and --study."
        )
    storage, study, config = open_existing(options.folder or Path("."), storage=options.storage, name=options.study)
    if options.folder is None:
        import dataclasses

        config = dataclasses.replace(config, output_dir=Path(config.resolved["output_dir"]))
    return storage, study, config


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return value


def _print(record: Any, out: Path, target: Any) -> None:
    from holdfast.reports.study_text import print_study
    from holdfast.statistics.selection import select_all
    from holdfast.studies.tradeoff.session import CHOSEN, PAGE

    selections = select_all(record)
    print_study(record, selections, target)
    if selections[0].chosen is not None:
        target.print(
            f"\nTrain it again, or on more data:  holdfast train --config {out / CHOSEN}",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
    target.print(f"Report    {out / PAGE}", soft_wrap=True, markup=False, highlight=False)
