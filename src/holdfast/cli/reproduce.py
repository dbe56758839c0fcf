"""`holdfast reproduce`: a paper's recipes, run as studies, and its claims held against what came out."""

from __future__ import annotations

import sys

from holdfast.cli.options import console
from holdfast.cli.request import Request, RequestParser
from holdfast.errors import did_you_mean

SUBJECTS = {
    "label-annealing": "Memory Retaining Finetuning via Distillation: mathematics, code, alignment tax, niche "
    "knowledge",
    "residual": "Balancing Continuous Pre-Training and Instruction Fine-Tuning: budgets, sibling residuals",
}
RECIPES = ("math", "code", "alignment_tax", "niche_knowledge")
DESCRIPTION = """\
Runs a paper's studies and checks its claims: holds, does not hold, not enough data, each with the paper's figure, ours
and its interval. Small twins by default, on two CPU cores, no network, no GPU, no files of yours: half an hour for
label-annealing, 13 minutes for residual. Finished studies are not run again; an interrupted one continues.
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
    listed = "\n".join(f"  {name}   {text}" for name, text in SUBJECTS.items())
    if not argv:
        print(
            f"usage: holdfast reproduce PAPER [options]\n\npapers\n{listed}\n\nexample\n  holdfast reproduce "
            f"label-annealing",
            file=sys.stderr,
        )
        return 2
    request = Request(build_parser(), argv)
    subject = request.texts("paper")
    if len(subject) != 1:
        request.problems.append(
            f"expected one paper ({', '.join(SUBJECTS)}), got "
            f"{len(subject)}{': ' + ', '.join(subject) if subject else ''}"
        )
    elif subject[0].replace("_", "-") not in SUBJECTS:
        request.problems.append(
            f"unknown paper '{subject[0]}'.{did_you_mean(subject[0], SUBJECTS) or ' Known: ' + ', '.join(SUBJECTS) + '.'}"
        )
    recipes = request.texts("recipes") or list(RECIPES)
    for name in recipes:
        if name not in RECIPES:
            request.problems.append(
                f"--recipes: expected some of {', '.join(RECIPES)}, got '{name}'.{did_you_mean(name, RECIPES)}"
            )
    full, quick = request.on("full"), request.on("quick")
    paper = subject[0].replace("_", "-") if len(subject) == 1 else ""
    if paper == "residual":
        if request.has("recipes"):
            request.problems.append("--recipes: belongs to label-annealing; residual is one study")
        if full:
            request.problems.append(
                "--full: the paper's own sizes are study files, as in 'holdfast residual study --config "
                "configs/residual/llama3-budgets.yaml'"
            )
    if full and quick:
        request.problems.append("--quick and --full: choose one; --quick only shows that everything works")
    workers = request.whole("workers", None, least=1)
    folder = request.text("output_dir", f"reproduce-{paper or 'label-annealing'}")
    request.check()
    if paper == "residual":
        from holdfast.studies.residual.reproduction import reproduce as residual

        residual(quick=quick, workers=workers, output_dir=folder, console=console())
        return 0

    from holdfast.studies.reproduce import reproduce

    reproduce(recipes=recipes, full=full, quick=quick, workers=workers, output_dir=folder, console=console())
    return 0


def build_parser() -> RequestParser:
    """The options."""
    parser = RequestParser(prog="holdfast reproduce", description=DESCRIPTION, epilog=EPILOG, usage=USAGE, yaml=False)
    parser.words("paper", "PAPER", f"what is reproduced: {', '.join(SUBJECTS)}")
    parser.many("recipes", "RECIPE", f"label-annealing: some of {', '.join(RECIPES)} (all)")
    parser.switch(
        "full", "the paper's own size; its model and data have to be there, and what is missing is said first"
    )
    parser.switch("quick", "a check of a few minutes; its verdicts mean nothing")
    parser.one("workers", "N", "fine-tuning runs at the same time (2 on two and more cores, one a GPU)")
    parser.one("output_dir", "FOLDER", "where to write (./reproduce-PAPER)")
    return parser
