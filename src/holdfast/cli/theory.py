"""`holdfast theory SUBJECT`: the papers' theories, computed: closed forms, the iterations that reach them, and what
they say about forgetting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.checkpoint_options import print_json, stderr_console, stdout_console, stoppable
from holdfast.cli.request import Request, RequestParser
from holdfast.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from holdfast.theory.regression_study import RegressionStudy, Setting

REGRESSION = """\
Label annealing, L2 and direct fine-tuning in linear regression with more parameters than rows (paper 000, section 4).
Draws random problems, computes all three in closed form, runs gradient descent until it arrives there, checks every
statement of the theory, and compares what each method forgets at equal fine-tuning error. Needs no model and no network.
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


def run_regression(argv: list[str]) -> int:
    """`holdfast theory regression`: the table or JSON on stdout, OUT/regression.json and OUT/regression.html; 1 where a
    statement fails."""
    request = Request(regression_parser(), argv)
    setting, folder = read_regression(request)
    request.check()

    from holdfast.reports.theory_report import write_regression_report
    from holdfast.support.files import to_jsonable, write_json
    from holdfast.support.progress import progress
    from holdfast.theory.regression_study import run_study, work_of

    with stoppable(), progress("Random problems", total=work_of(setting)) as advance:
        study = run_study(setting, advance=advance)
    record = {**to_jsonable(study), **_circumstances()}
    written = [
        write_json(folder / "regression.json", record),
        write_regression_report(folder / "regression.html", study),
    ]
    as_json = request.on("json")
    if as_json:
        print_json(record)
    else:
        show_regression(study)
    target = stderr_console() if as_json else stdout_console()
    for label, path in zip(("JSON", "page"), written, strict=True):
        target.print(f"{label}: {path}", soft_wrap=True, markup=False, highlight=False)
    return 0 if study.passed else 1


def read_regression(request: Request) -> tuple[Setting, Path]:
    """The setting and the output folder of a request; mistakes are added to its problems."""
    from holdfast.theory.regression_study import Setting

    plain = Setting()
    lambdas = _numbers(request, "lambdas")
    values: dict[str, Any] = {"weights": tuple(lambdas) if lambdas is not None else plain.weights}
    for name in ("dimension", "pretrain_rows", "finetune_rows", "seeds", "seed", "most_steps"):
        values[name] = request.whole(name, getattr(plain, name))
    for name in ("overlap", "decay", "shift", "noise", "tolerance"):
        values[name] = request.number(name, getattr(plain, name))
    refused = {name for name in values if any(p.startswith(f"{request.named(name)}: ") for p in request.problems)}
    request.on("json")
    folder = Path(request.text("output_dir", "theory")).expanduser()
    if folder.exists() and not folder.is_dir():
        request.problems.append(f"{request.named('output_dir')}: expected a folder, got the file {folder}")
    setting = Setting(**values)
    for mistake in setting.mistakes():
        name, _, text = mistake.partition(": ")
        # What is measured against a number that could not be read says nothing.
        relative = name in ("pretrain_rows", "finetune_rows") or "room for" in text
        if not (relative and refused & {"dimension", "pretrain_rows", "finetune_rows"}):
            request.problems.append(f"{request.named(name)}: {text}")
    return setting, folder


def show_regression(study: RegressionStudy) -> None:
    """Prints the checks and the comparison at equal fine-tuning error."""
    from rich.markup import escape
    from rich.table import Table

    from holdfast.reports.theory_charts import scientific, with_interval
    from holdfast.reports.theory_report import lead

    target = stdout_console()
    target.print(lead(study), highlight=False, markup=False)
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2),
        header_style="bold",
        title="\nStatements, largest relative deviation",
        title_justify="left",
    )
    for title, side in (("statement", "left"), ("deviation", "right"), ("allowed", "right"), ("holds", "left")):
        table.add_column(title, justify="right" if side == "right" else "left")
    for check in study.checks:
        said = ("yes" if check.passed else "NO") + (f" ({check.note})" if check.note else "")
        table.add_row(
            escape(check.name),
            scientific(check.value),
            scientific(check.allowed),
            escape(said),
            style=None if check.passed else "red",
        )
    target.print(table)
    title = "\nPre-training error where the same share of the start's fine-tuning error is left"
    equal = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold", title=title, title_justify="left")
    for title in ("error left", "label annealing", "L2", "L2 / label annealing", "verdict"):
        equal.add_column(title, justify="left" if title == "verdict" else "right")
    for e in study.equal_errors:
        figures = [with_interval(e.pretraining[m], 4) for m in ("label_annealing", "l2")]
        equal.add_row(f"{100 * e.share:g} %", *(escape(text) for text in (*figures, with_interval(e.ratio), e.verdict)))
    target.print(equal)
    for note in study.notes:
        target.print(f"note: {note}", soft_wrap=True, markup=False, highlight=False)
    target.print()


def regression_parser() -> RequestParser:
    """The options of `holdfast theory regression`."""
    parser = RequestParser(
        prog="holdfast theory regression", description=REGRESSION, epilog=REGRESSION_EPILOG, usage="[options]"
    )
    group = parser.add_argument_group("the random problems")
    parser.one("dimension", "N", "parameters (200)", group=group)
    parser.one("pretrain_rows", "N", "rows of the old data, fewer than parameters (120)", group=group)
    parser.one("finetune_rows", "N", "rows of the new data, fewer than parameters (40)", group=group)
    parser.one(
        "overlap",
        "SHARE",
        "of the new inputs' squared length that lies in the span of the old rows, 0 to 1 (0.5)",
        group=group,
    )
    parser.one(
        "decay",
        "X",
        "the j-th feature has variance in proportion to j^-X, in both tasks; 0: all alike (0)",
        group=group,
    )
    parser.one(
        "shift", "X", "how far the tasks' true parameters are apart, over the size of the old ones (1)", group=group
    )
    parser.one("noise", "X", "standard deviation in the targets, where that of the old signal is 1 (0.1)", group=group)
    parser.one("seeds", "N", "problems drawn; intervals are over them (20)", group=group)
    parser.one("seed", "N", "of the first problem (0)", group=group)
    group = parser.add_argument_group("what is computed")
    parser.many(
        "lambdas",
        "X",
        "weights of the penalty, above 0; L2's are times the mean squared singular value (0.01 to 100)",
        group=group,
    )
    parser.one(
        "tolerance", "X", "how near gradient descent must come to the closed form, relative (1e-10)", group=group
    )
    parser.one(
        "most_steps",
        "N",
        "where gradient descent stops at the latest; its path so far is checked then (50000)",
        group=group,
    )
    group = parser.add_argument_group("output")
    parser.one("output_dir", "FOLDER", "for regression.json and regression.html, written anew (theory)", group=group)
    parser.switch("json", "the record as JSON on stdout in place of the tables", group=group)
    return parser


def _numbers(request: Request, name: str) -> list[float] | None:
    """A list of numbers; None where it was not given, or where one is no number (a problem then)."""
    if request.raw(name) is None:
        return None
    found = []
    for text in request.texts(name):
        try:
            found.append(float(text))
        except ValueError:
            request.problems.append(f"{request.named(name)}: expected numbers, got {text!r}")
            return None
    return found


def _circumstances() -> dict[str, Any]:
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
        "command": "theory regression",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "hardware": hardware,
    }


SUBJECTS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "regression": (
        run_regression,
        "label annealing, L2 and direct fine-tuning in linear regression (paper 000, section 4)",
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

'holdfast theory SUBJECT --help' explains its options.
"""
