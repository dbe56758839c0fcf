"""`holdfast reproduce`: re-run a paper's studies and check its claims."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.cli.console import print_line, stdout_console, write
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.help import Section
from holdfast.config.values import show
from holdfast.errors import Problem, did_you_mean
from holdfast.papers.claims.registry import SIZES, SMALL, Paper, papers
from holdfast.papers.theory import QUICK_SEEDS, SEEDS, THEORIES
from holdfast.support.paths import expanded


def _paper_table(text: Callable[[Paper], str]) -> str:
    """One line a paper."""
    return "\n".join(f"  {name:<17}{text(paper)}" for name, paper in papers().items())


def _durations(paper: Paper) -> str:
    return ", ".join(f"{size} {duration}" for size, duration in paper.durations.items())


def _subject(paper: Paper) -> str:
    return paper.about + (
        f" (recipes: {', '.join(paper.recipes)})" if len(paper.recipes) > 1 else ""
    )


TABLE = _paper_table(_durations)
PAPERS = f"papers\n{_paper_table(_subject)}"
DESCRIPTION = f"""\
Re-runs a paper's studies and checks its claims. The verdict on each claim is "holds", "does not hold" or "cannot
tell", and stands beside the paper's figure, our figure and the interval of ours. By default the studies are small
versions, on two CPU cores, without network, GPU or files of yours. Finished studies are not run again. Interrupted?
Run the same command to continue.
--world makes the small world that the studies use (options: holdfast reproduce --world --help).

{PAPERS}
"""
OUTPUT = """\
output
  FOLDER/<recipe>/report.html     each study: frontier, trials, the trial to take
  FOLDER/claims.html              every claim with its figures and verdict
  FOLDER/claims.json              the same for programs
  FOLDER/theory.html, .json       with --theory, in place of the others: each check and statement of the paper's theory
"""
EPILOG = """\
examples
  # the small versions of the studies
  holdfast reproduce label-annealing
  holdfast reproduce label-annealing --recipes math code --medium
  # your own study, with any model and data
  holdfast reproduce sfa --on runs/my-sequence
  holdfast reproduce sfa --theory
  holdfast reproduce --world --output_dir world

exit code of --theory: 0 if every check holds, 1 if one fails
"""
USAGE = "PAPER [options]"


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest:
    """`holdfast reproduce`."""

    paper: Annotated[
        str, Meta(positional=True, metavar="PAPER", expected=f"one of {', '.join(papers())}")
    ]
    """Paper whose claims are checked."""
    recipes: Annotated[tuple[str, ...], Meta(repeatable=True, metavar="RECIPE")] = ()
    """Some of the paper's studies (default: all)."""
    on: Annotated[tuple[Path, ...], Meta(repeatable=True, metavar="FOLDER")] = ()
    """Check the claims on finished studies in these folders, in the order of --recipes. Nothing is
    run."""
    medium: bool = False
    """Run the small versions completely, with all seeds, arms and steps."""
    quick: bool = False
    """Test the command in a minute or two. The verdicts mean nothing."""
    theory: bool = False
    """Check the paper's theory instead of running its studies: compare closed forms with numerical
    results, in seconds. --quick uses fewer random problems."""
    workers: Annotated[int | None, Meta(ge=1)] = None
    """Number of fine-tuning runs at the same time (default: 2 if there are two or more cores; one
    per GPU)."""
    output_dir: Annotated[Path | None, Meta(metavar="FOLDER")] = None
    """Folder to write (default: ./reproduce-PAPER; for a size other than small:
    ./reproduce-PAPER-SIZE; for --theory: ./reproduce-PAPER-theory; for --on: the study's
    folder)."""

    @property
    def sizes(self) -> list[str]:
        """What was asked for; small where nothing was."""
        return [size for size in SIZES if getattr(self, size, False)] or [SMALL]

    def known_paper(self) -> Paper | None:
        """The paper, its name with dashes or underscores; None: there is none of that name."""
        return papers().get(self.paper.replace("_", "-"))

    def problems(self) -> list[str]:
        """A paper or recipes that do not exist, and sizes that the paper has not."""
        problems: list[str] = []
        paper = self.known_paper()
        if paper is None:
            hint = did_you_mean(self.paper.replace("_", "-"), papers())
            problems.append(
                Problem(
                    "paper", f"expected one of {', '.join(papers())}, got {show(self.paper)}.{hint}"
                )
            )
        problems += self._recipe_problems(paper)
        if self.theory:
            problems += self._theory_problems(paper)
        if self.on:
            for name in ("theory", "workers", *SIZES):
                if getattr(self, name, False):
                    problems.append(
                        Problem(
                            name,
                            "has no effect with --on, which runs nothing. Leave this option out.",
                        )
                    )
        if len(self.sizes) > 1:
            sizes = " and ".join(f"--{size}" for size in self.sizes)
            problems.append(Problem(self.sizes[0], f"expected one size, got {sizes}."))
        return problems

    def _recipe_problems(self, paper: Paper | None) -> list[Problem]:
        """Recipes that the paper has not; where the paper is not known, those that none has."""
        if paper is not None and len(paper.recipes) == 1:
            return (
                [Problem("recipes", f"{paper.name} has only one study. Leave --recipes out.")]
                if self.recipes
                else []
            )
        known: list[str] = []
        for other in papers().values() if paper is None else [paper]:
            known += other.recipes
        problems = []
        for recipe in self.recipes:
            if recipe not in known:
                hint = did_you_mean(recipe, known)
                text = f"expected some of {', '.join(known)}, got {show(recipe)}.{hint}"
                problems.append(Problem("recipes", text))
        return problems

    def _theory_problems(self, paper: Paper | None) -> list[Problem]:
        """A paper without a theory, and settings that are of studies."""
        problems = []
        if paper is not None and paper.name not in THEORIES:
            problems.append(
                Problem("theory", f"{paper.name} has no theory; {', '.join(THEORIES)} have one.")
            )
        for name in ("recipes", "medium", "workers"):
            if getattr(self, name):
                problems.append(
                    Problem(
                        name,
                        "has no effect with --theory, which runs no study. Leave this option out.",
                    )
                )
        if self.output_dir is not None and self.output_dir.is_file():
            problems.append(
                Problem("output_dir", f"expected a folder, got the file {self.output_dir}.")
            )
        return problems


COMMAND = Command(
    name="holdfast reproduce",
    request=ReproduceRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    sections=(
        Section(name="output", summary="the files that are written", text=OUTPUT),
        Section(name="durations", summary="how long each size takes on two idle cores", text=TABLE),
    ),
    usage=USAGE,
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast reproduce --help`."""
    if "--world" in argv:
        from holdfast.cli import world

        return world.run([word for word in argv if word != "--world"])
    if not argv:
        example = "example\n  holdfast reproduce label-annealing"
        write(
            *f"usage: {COMMAND.name} {USAGE}\n\n{PAPERS}\n\n{example}".splitlines(), to_stderr=True
        )
        return 2
    request = COMMAND.read(argv)
    paper = request.known_paper()
    assert paper is not None, "the request was checked"
    if request.theory:
        return run_theory(paper, request)
    if request.on:
        about = {
            "recipes": request.recipes,
            "output_dir": request.output_dir,
            "console": stdout_console(),
        }
        paper.load_judge()([expanded(folder) for folder in request.on], **about)
        return 0
    [size] = request.sizes
    folder = Path(f"reproduce-{paper.name}" if size == SMALL else f"reproduce-{paper.name}-{size}")
    recipes: dict[str, Any] = {}
    if len(paper.recipes) > 1:
        recipes["recipes"] = list(request.recipes or paper.recipes)
    paper.load()(
        **recipes,
        size=size,
        workers=request.workers,
        output_dir=request.output_dir or folder,
        console=stdout_console(),
    )
    return 0


def run_theory(paper: Paper, request: ReproduceRequest) -> int:
    """Computes a paper's theory, shows it, writes its page and record; 1 where a check fails."""
    from importlib.metadata import version

    from holdfast.papers.theory.page import print_theory, theory_page
    from holdfast.reports.html import write_page
    from holdfast.support.files import to_jsonable, write_json

    folder = request.output_dir or Path(f"reproduce-{paper.name}-theory")
    theory = importlib.import_module(THEORIES[paper.name]).theory(
        QUICK_SEEDS if request.quick else SEEDS
    )
    console = stdout_console()
    print_theory(theory, console)
    record = {
        **to_jsonable(theory),
        "versions": {name: version(name) for name in ("holdfast", "numpy")},
    }
    print_line(console, str(write_json(folder / "theory.json", record)))
    print_line(console, str(write_page(theory_page(theory), folder / "theory.html")))
    return 0 if theory.passed else 1
