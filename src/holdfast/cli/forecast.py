"""`holdfast forecast`: what the first steps of a fine-tune say of its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from holdfast.cli.console import print_json, print_line, stdout_console
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.values import Mistake
from holdfast.errors import ConfigError, did_you_mean

HELP = """\
usage: holdfast forecast fit|test|show [options]

  fit     makes a predictor of finished runs, and tests it on runs unlike those that it was fitted on
  test    holds a predictor against finished runs that it was not fitted on
  show    what is expected of a run, or was, beside what came

A run is looked at once 5 % of its cumulative learning rate is spent, where its configuration says so:
  holdfast train --config run.yaml --forecast

examples
  holdfast forecast fit runs/sweep-a runs/sweep-b --output predictor.json
  holdfast train --config run.yaml --forecast --forecast_predictor predictor.json
  holdfast forecast test runs/later --predictor predictor.json
  holdfast forecast show runs/mine --predictor predictor.json

'holdfast forecast fit --help' explains the options.
"""
FIT = """\
Fits the loss at the end of a fine-tune to what was seen once 5 % of its cumulative learning rate was spent: how far the
model has drifted on the texts that are to be kept and on training rows, how far the weights went, how easily the start
is moved, and how much learning rate is yet to come. The runs come from 'holdfast train', a sweep or a study with
'forecast: true'; folders are searched to the bottom. Runs with one kind of data, model, learning rate or method are
held out in turn: R2, and the share of runs whose loss lay in its interval, are printed whatever they are.
"""
FIT_EPILOG = """\
examples
  holdfast forecast fit runs/study --output predictor.json
  holdfast forecast fit runs/a runs/b --level 0.8 --json

A forecast beyond what was fitted on (a larger model, a further drift) is refused, not guessed.
"""
TEST = """\
Holds a predictor against finished runs that it was not fitted on: R2, the share of runs whose loss lay in its interval,
and what it refused to say, and why.
"""
TEST_EPILOG = """\
examples
  holdfast forecast test runs/later
  holdfast forecast test runs/later --predictor predictor.json --output later.html
"""
SHOW = """\
What a predictor expects of a run from its early signs, beside what came where the run has ended.
"""


@dataclass(frozen=True, kw_only=True)
class _Shared:
    settings_group: ClassVar[str] = "output"

    json: bool = False
    """Prints the record as JSON."""


def _problems(runs: tuple[Path, ...], output: Path | None) -> list[Mistake]:
    """No runs, or an output that is a folder."""
    found = [] if runs else [Mistake(path=("runs",), text="expected folders with runs, got none.")]
    if output is not None and output.is_dir():
        found.append(Mistake(path=("output",), text=f"expected a file, got the folder {output}."))
    return found


@dataclass(frozen=True, kw_only=True)
class FitRequest(_Shared):
    """`holdfast forecast fit`."""

    settings_group: ClassVar[str] = "what is fitted"

    runs: Annotated[tuple[Path, ...], Meta(positional=True, metavar="FOLDER ...")] = ()
    """Runs, or folders with runs in them."""
    output: Annotated[Path, Meta(metavar="FILE")] = Path("predictor.json")
    """The predictor; its page stands beside it (.html)."""
    level: Annotated[float, Meta(gt=0, lt=1)] = 0.9
    """Of the intervals."""
    about: str = ""
    """What the runs are, in words, for whoever reads a forecast."""

    def problems(self) -> list[Mistake]:
        """Nothing to fit on, or an output that is a folder."""
        return _problems(self.runs, self.output)


@dataclass(frozen=True, kw_only=True)
class TestRequest(_Shared):
    """`holdfast forecast test`."""

    settings_group: ClassVar[str] = "what is tested"

    runs: Annotated[tuple[Path, ...], Meta(positional=True, metavar="FOLDER ...")] = ()
    """Runs, or folders with runs in them."""
    predictor: Annotated[Path | None, Meta(metavar="FILE")] = None
    """Of 'holdfast forecast fit'; default: the one that comes along."""
    output: Annotated[Path | None, Meta(metavar="FILE")] = None
    """A page of predicted against actual losses (.html)."""

    def problems(self) -> list[Mistake]:
        """Nothing to test on, or an output that is a folder."""
        return _problems(self.runs, self.output)


@dataclass(frozen=True, kw_only=True)
class ShowRequest(_Shared):
    """`holdfast forecast show`."""

    settings_group: ClassVar[str] = "which run"

    run: Annotated[Path | None, Meta(positional=True, metavar="RUN")] = None
    """A run's folder."""
    predictor: Annotated[Path | None, Meta(metavar="FILE")] = None
    """Asks this one anew; default: what the run was told."""

    def problems(self) -> list[Mistake]:
        """No run."""
        return [] if self.run is not None else [Mistake(path=("run",), text="expected the folder of a run, got none.")]


FIT_COMMAND = Command(
    name="holdfast forecast fit", request=FitRequest, description=FIT, epilog=FIT_EPILOG, usage="FOLDER ... [options]"
)
TEST_COMMAND = Command(
    name="holdfast forecast test",
    request=TestRequest,
    description=TEST,
    epilog=TEST_EPILOG,
    usage="FOLDER ... [options]",
)
SHOW_COMMAND = Command(name="holdfast forecast show", request=ShowRequest, description=SHOW, usage="RUN [options]")


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast forecast --help`."""
    if not argv or argv[0] in ("--help", "-h", "help"):
        print(HELP)
        return 0 if argv else 2
    step, *rest = argv
    steps = {"fit": run_fit, "test": run_test, "show": run_show}
    if step not in steps:
        raise ConfigError(
            f"expected 'holdfast forecast' with one of {', '.join(steps)}, got '{step}'.{did_you_mean(step, steps)}"
        )
    return steps[step](rest)


def run_fit(argv: list[str]) -> int:
    """`holdfast forecast fit`: the predictor, its page, and its tests on stdout.

    Raises:
        DataError: no runs, or too few.
    """
    request = FIT_COMMAND.read(argv)

    from holdfast.records.forecast import write_predictor
    from holdfast.reports.forecast_report import predictor_page, print_predictor
    from holdfast.reports.html import write_page
    from holdfast.runs.forecasting import fit_predictor

    predictor = fit_predictor(request.runs, level=request.level, about=request.about)
    write_predictor(request.output, predictor)
    page = write_page(predictor_page(predictor), request.output.with_suffix(".html"))
    if request.json:
        print_json(predictor)
        return 0
    print_predictor(predictor, stdout_console())
    print_line(stdout_console(), f"Predictor {request.output}\nReport    {page}")
    return 0


def run_test(argv: list[str]) -> int:
    """`holdfast forecast test`: how near a predictor comes, on stdout.

    Raises:
        DataError: no runs, or no predictor.
    """
    request = TEST_COMMAND.read(argv)

    from holdfast.errors import DataError
    from holdfast.reports.forecast_report import predictor_page, print_predictor
    from holdfast.reports.html import write_page
    from holdfast.runs.forecasting import predictor_of, tested

    if (predictor := predictor_of(request.predictor)) is None:
        raise DataError("Expected a predictor, none comes along here. Fit one with 'holdfast forecast fit'.")
    found = tested(request.runs, predictor)
    page = None if request.output is None else write_page(predictor_page(found), request.output)
    if request.json:
        print_json(found)
        return 0
    print_predictor(found, stdout_console())
    if page is not None:
        print_line(stdout_console(), f"Report    {page}")
    return 0


def run_show(argv: list[str]) -> int:
    """`holdfast forecast show`.

    Raises:
        DataError: no run, or one that was not looked at.
    """
    request = SHOW_COMMAND.read(argv)

    from holdfast.errors import DataError
    from holdfast.records.forecast import RunForecast
    from holdfast.records.run import RunFolder
    from holdfast.reports.forecast_report import came_table, forecast_lines
    from holdfast.reports.terminal import Printer
    from holdfast.runs.forecasting import forecast, predictor_of

    assert request.run is not None
    folder = RunFolder(request.run)
    found = RunForecast.in_folder(folder.path)
    if found is None:
        raise DataError(
            f"Expected a run that was looked at early in {request.run}, found none. Train it with forecast: true."
        )
    if request.predictor is not None:
        found = forecast(found.signs, folder.evaluated("start").all(), predictor_of(request.predictor))
    if request.json:
        print_json(found)
        return 0
    for line in forecast_lines(found):
        print_line(stdout_console(), line)
    if (table := came_table(found, folder.comparisons())) is not None:
        Printer(stdout_console()).show([table])
    return 0
