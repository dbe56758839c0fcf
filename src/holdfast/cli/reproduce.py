"""`holdfast reproduce`: re-run a paper's studies and check its claims."""

from __future__ import annotations

import sys

from holdfast.cli.options import console
from holdfast.cli.request import Request, RequestParser
from holdfast.errors import did_you_mean
from holdfast.studies.engine.papers import Paper, papers

DESCRIPTION = """\
Re-runs a paper's studies and checks its claims: holds, does not hold, not enough data, each with the paper's figure, ours
and its interval. Small twins by default, on two CPU cores, no network, no GPU, no files of yours: {durations}.
Finished studies are not run again; an interrupted one continues.
"""
EPILOG = """\
examples
  holdfast reproduce label-annealing                              # everything small, into ./reproduce-label-annealing
  holdfast reproduce label-annealing --quick                      # a few minutes: does it run here at all?
  holdfast reproduce label-annealing --recipes math code          # two of the four
  holdfast reproduce label-annealing --full --recipes code        # the paper's own size: needs its model and data
  holdfast reproduce residual                                     # the instruction residual on the embedded world

output
  FOLDER/<recipe>/report.html     each study: frontier, trials, the trial to take
  FOLDER/claims.html              every claim with its figures and verdict
  FOLDER/claims.json              the same for programs
"""
USAGE = "PAPER [options]"


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast reproduce --help`."""
    known = papers()
    if not argv:
        listed = "\n".join(f"  {name}   {paper.about}" for name, paper in known.items())
        print(
            f"usage: holdfast reproduce {USAGE}\n\npapers\n{listed}\n\nexample\n  holdfast reproduce label-annealing",
            file=sys.stderr,
        )
        return 2
    request = Request(build_parser(), argv)
    paper = _paper(request, known)
    full, quick = request.on("full"), request.on("quick")
    recipes = request.texts("recipes")
    words: dict[str, object] = {}
    if paper is not None and len(paper.recipes) == 1:
        if recipes:
            request.problems.append(f"--recipes: {paper.name} is one study; leave it out")
    else:
        choice = [r for p in ([paper] if paper is not None else known.values()) for r in p.recipes]
        words["recipes"] = recipes or choice
        request.problems += [
            f"--recipes: expected some of {', '.join(choice)}, got '{r}'.{did_you_mean(r, choice)}"
            for r in recipes
            if r not in choice
        ]
    if paper is not None and paper.full is None:
        words["full"] = full
    elif paper is not None and full:
        request.problems.append(f"--full: {paper.full}")
    if full and quick:
        request.problems.append("--quick and --full: choose one; --quick only shows that everything works")
    workers = request.whole("workers", None, least=1)
    folder = request.text("output_dir", f"reproduce-{paper.name}" if paper is not None else "")
    request.check()
    assert paper is not None, "the request was checked"
    paper.load()(**words, quick=quick, workers=workers, output_dir=folder, console=console())
    return 0


def _paper(request: Request, known: dict[str, Paper]) -> Paper | None:
    """The paper that a request names; None with a problem noted where there is none."""
    names = request.texts("paper")
    if len(names) != 1:
        got = f"{len(names)}{': ' + ', '.join(names) if names else ''}"
        request.problems.append(f"expected one paper ({', '.join(known)}), got {got}")
        return None
    name = names[0].replace("_", "-")
    if name not in known:
        hint = did_you_mean(name, known) or f" Known: {', '.join(known)}."
        request.problems.append(f"unknown paper '{names[0]}'.{hint}")
    return known.get(name)


def build_parser() -> RequestParser:
    """The options."""
    known = papers()
    durations = ", ".join(f"{paper.duration} for {name}" for name, paper in known.items())
    several = "; ".join(f"{p.name}: some of {', '.join(p.recipes)} (all)" for p in known.values() if len(p.recipes) > 1)
    parser = RequestParser(
        prog="holdfast reproduce",
        description=DESCRIPTION.format(durations=durations),
        epilog=EPILOG,
        usage=USAGE,
        yaml=False,
    )
    parser.words("paper", "PAPER", f"whose claims are checked: {', '.join(known)}")
    parser.many("recipes", "RECIPE", several)
    parser.switch("full", "the paper's own size; its model and data have to be there, what is missing is listed first")
    parser.switch("quick", "a check of a few minutes; its verdicts mean nothing")
    parser.one("workers", "N", "fine-tuning runs at the same time (2 on two and more cores, one a GPU)")
    parser.one("output_dir", "FOLDER", "where to write (./reproduce-PAPER)")
    return parser
