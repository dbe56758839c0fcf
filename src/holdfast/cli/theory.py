"""`holdfast theory SUBJECT`: the papers' theories, computed: closed forms, the iterations that reach them, and what
they say about forgetting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from holdfast.cli.console import print_json, stderr_console, stdout_console, stoppable
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, settings_of
from holdfast.errors import ConfigError, did_you_mean
from holdfast.theory.averaging_settings import AveragingSettings
from holdfast.theory.overtraining_settings import OvertrainingSettings
from holdfast.theory.regression_settings import WEIGHTS, ComputedSettings, RegressionSettings, Weights

if TYPE_CHECKING:
    from holdfast.reports.blocks import Page

REGRESSION = """\
Label annealing, L2 and direct fine-tuning in linear regression with more parameters than rows
(Memory Retaining Finetuning, section 4). Draws random problems, computes all three in closed form, runs gradient
descent until it arrives there, checks every statement of the theory, and compares what each method forgets at equal
fine-tuning error. Needs no model and no network.
"""
REGRESSION_EPILOG = """\
examples
  holdfast theory regression                                  # a table here, a page in theory/regression.html
  holdfast theory regression --decay 1                        # features of uneven strength: the verdict turns
  holdfast theory regression --overlap 0                      # new rows orthogonal to the old: nothing is forgotten
  holdfast theory regression --dimension 400 --pretrain_rows 240 --finetune_rows 80 --seeds 50
  holdfast theory regression --lambdas 0.1 1 10 --json        # JSON for a program

exit code: 0 where every statement holds, 1 where one fails, 2 where the request has to change
"""
AVERAGING = """\
Sequential fine-tuning with averaging beside L2, EWC and Fisher merging (Soup to Go, section 4 and appendix A.2). Checks
the identities between them step by step, has what p and beta do on quadratic tasks in closed form, and asks of random
pairs of such tasks what the paper observes: holds, does not hold, or cannot tell. Needs no model and no network.
"""
AVERAGING_EPILOG = """\
examples
  holdfast theory averaging                                   # a table here, a page in theory/averaging.html
  holdfast theory averaging --alignment 0                     # tasks that feel different directions
  holdfast theory averaging --rotation 0                      # a diagonal Fisher information that holds all
  holdfast theory averaging --p 0.5 0.25 0.05 --beta 0.3 --json

exit code: 0 where every identity holds, 1 where one fails, 2 where the request has to change; statements about the
random problems may turn out either way
"""
OVERTRAINING = """\
Why pre-training for longer can harm what is fine-tuned or perturbed afterwards, in a two-layer linear network
(Overtrained Language Models, section 4 and appendix A). Checks the closed forms against gradient descent and noise that
is drawn, and asks of models as training leaves them what the theorems say: when the loss turns, what moves the turn,
and what that costs. Needs no model and no network.
"""
OVERTRAINING_EPILOG = """\
examples
  holdfast theory overtraining                                # a table here, a page in theory/overtraining.html
  holdfast theory overtraining --flatness 0 --spread 0.2      # a new task much like the old: fine-tuning never turns
  holdfast theory overtraining --gammas 0.02 0.1 0.3          # noise of other sizes
  holdfast theory overtraining --tau 50 --finetune_time 40    # so long that what was not learnt is learnt as well
  holdfast theory overtraining --lambdas 0.5 5 --json         # JSON for a program

exit code: 0 where every closed form holds, 1 where one fails, 2 where the request has to change; statements about the
random problems may turn out either way
"""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast theory --help`."""
    if not argv or argv[0] in ("--help", "-h", "help"):
        print(HELP)
        return 0 if argv else 2
    subject, *rest = argv
    if subject not in SUBJECTS:
        raise ConfigError(
            f"unknown subject '{subject}'.{did_you_mean(subject, SUBJECTS)} Known: {', '.join(SUBJECTS)}. See "
            f"'holdfast theory --help'."
        )
    return SUBJECTS[subject][0](rest)


@dataclass(frozen=True, kw_only=True)
class _Written:
    """Where a study goes."""

    settings_group: ClassVar[str] = "output"

    output_dir: Annotated[Path, Meta(metavar="FOLDER")] = Path("theory")
    """Folder for SUBJECT.json and SUBJECT.html, written anew."""
    json: bool = False
    """The record as JSON on stdout in place of the tables."""

    def folder_problems(self) -> list[str]:
        """An output folder that is a file."""
        taken = self.output_dir.exists() and not self.output_dir.is_dir()
        return [f"output_dir: expected a folder, got the file {self.output_dir}."] if taken else []


@dataclass(frozen=True, kw_only=True)
class RegressionRequest(_Written, ComputedSettings):
    """`holdfast theory regression`."""

    lambdas: Weights = WEIGHTS
    """Weights of the penalty (0 is direct fine-tuning, which is always computed); L2's are times the mean squared
    singular value."""

    def problems(self) -> list[str]:
        """Rules over several settings, and an output folder that is a file."""
        return [*super().problems(), *self.folder_problems()]


@dataclass(frozen=True, kw_only=True)
class AveragingRequest(_Written, AveragingSettings):
    """`holdfast theory averaging`."""

    def problems(self) -> list[str]:
        """An output folder that is a file."""
        return self.folder_problems()


@dataclass(frozen=True, kw_only=True)
class OvertrainingRequest(_Written, OvertrainingSettings):
    """`holdfast theory overtraining`."""

    def problems(self) -> list[str]:
        """Rules over several settings, and an output folder that is a file."""
        return [*super().problems(), *self.folder_problems()]


REGRESSION_COMMAND = Command(
    name="holdfast theory regression", request=RegressionRequest, description=REGRESSION, epilog=REGRESSION_EPILOG
)
AVERAGING_COMMAND = Command(
    name="holdfast theory averaging", request=AveragingRequest, description=AVERAGING, epilog=AVERAGING_EPILOG
)
OVERTRAINING_COMMAND = Command(
    name="holdfast theory overtraining",
    request=OvertrainingRequest,
    description=OVERTRAINING,
    epilog=OVERTRAINING_EPILOG,
)


def run_regression(argv: list[str]) -> int:
    """`holdfast theory regression`: the table or JSON on stdout, OUT/regression.json and OUT/regression.html; 1 where a
    statement fails."""
    request = REGRESSION_COMMAND.read(argv)
    setting = RegressionSettings(**_asked(ComputedSettings, request), weights=request.lambdas)

    from holdfast.reports.theory_report import print_regression, regression_page
    from holdfast.theory.regression_study import run_regression, work_of

    return _carry_out(
        "regression", request, setting, run_regression, work_of(setting), print_regression, regression_page
    )


def run_averaging(argv: list[str]) -> int:
    """`holdfast theory averaging`: the same with OUT/averaging.json and OUT/averaging.html; 1 where an identity
    fails."""
    request = AVERAGING_COMMAND.read(argv)
    setting = AveragingSettings(**_asked(AveragingSettings, request))

    from holdfast.reports.averaging_report import averaging_page, print_averaging
    from holdfast.theory.averaging_study import run_averaging, work_of

    return _carry_out("averaging", request, setting, run_averaging, work_of(setting), print_averaging, averaging_page)


def run_overtraining(argv: list[str]) -> int:
    """`holdfast theory overtraining`: the same with OUT/overtraining.json and OUT/overtraining.html; 1 where a closed
    form fails."""
    request = OVERTRAINING_COMMAND.read(argv)
    setting = OvertrainingSettings(**_asked(OvertrainingSettings, request))

    from holdfast.reports.overtraining_theory_report import overtraining_page, print_overtraining
    from holdfast.theory.overtraining_study import run_overtraining, work_of

    return _carry_out(
        "overtraining",
        request,
        setting,
        run_overtraining,
        work_of(setting),
        print_overtraining,
        overtraining_page,
    )


def _asked(settings: Any, request: _Written) -> dict[str, Any]:
    """What a request says of the settings of a study."""
    return {s.name: getattr(request, s.name) for s in settings_of(settings)}


def _carry_out(
    subject: str,
    request: _Written,
    setting: Any,
    study_of: Callable[..., Any],
    work: int,
    show: Callable[..., None],
    page_of: Callable[..., Page],
) -> int:
    """Computes a study, writes its record and its page, shows it."""
    from holdfast.reports.html import write_page
    from holdfast.support.files import to_jsonable, write_json
    from holdfast.support.progress import progress

    with stoppable(), progress("Random problems", total=work) as advance:
        study = study_of(setting, advance=advance)
    record = {**to_jsonable(study), **_circumstances(subject)}
    written = [
        write_json(request.output_dir / f"{subject}.json", record),
        write_page(page_of(study), request.output_dir / f"{subject}.html"),
    ]
    if request.json:
        print_json(record)
    else:
        show(study, stdout_console())
    target = stderr_console() if request.json else stdout_console()
    for label, path in zip(("JSON", "page"), written, strict=True):
        target.print(f"{label}: {path}", soft_wrap=True, markup=False, highlight=False)
    return 0 if study.passed else 1


def _circumstances(subject: str) -> dict[str, Any]:
    """What can change a figure: versions and the machine's kind. Not the accelerators, which nothing here uses and
    which take seconds to ask."""
    import importlib.metadata
    import os
    import platform
    from datetime import UTC, datetime

    versions = {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("holdfast", "numpy", "scipy")},
    }
    hardware = {"system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count()}
    return {
        "command": f"theory {subject}",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "hardware": hardware,
    }


SUBJECTS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "regression": (
        run_regression,
        "label annealing, L2 and direct fine-tuning in linear regression (Memory Retaining Finetuning, section 4)",
    ),
    "averaging": (
        run_averaging,
        "averaging with the old model, L2, EWC and Fisher merging on quadratic tasks (Soup to Go, section 4)",
    ),
    "overtraining": (
        run_overtraining,
        "why longer pre-training can harm, in a two-layer linear network (Overtrained Language Models, section 4)",
    ),
}
"""Name: what runs it, and one line of help."""

HELP = f"""\
usage: holdfast theory SUBJECT [options]

The papers' theories as computations: closed forms beside the iterations that reach them, every statement checked to
rounding, and what it says about forgetting, as a table, JSON and a page. Seconds on a laptop; no model, no network.

subjects
{chr(10).join(f"  {name:<13}{line}" for name, (_, line) in SUBJECTS.items())}

examples
  holdfast theory regression
  holdfast theory regression --decay 1 --output_dir uneven
  holdfast theory averaging --alignment 0
  holdfast theory overtraining --spread 0.6

'holdfast theory SUBJECT --help' explains its options.
"""
