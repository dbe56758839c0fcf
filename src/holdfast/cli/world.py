"""`holdfast reproduce --world`: makes the embedded world: base and instruct model, new facts,
questions, and a suite that asks them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from holdfast.cli.console import print_json, print_line, stderr_console, stdout_console
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, part_of
from holdfast.errors import ConfigError
from holdfast.papers.worlds.world import WorldRecipe, quick_recipe
from holdfast.printable import lines

DESCRIPTION = """\
Makes a small world of invented people, and trains two models on it: a base that knows the people, and an instruct
model that follows instructions. Also writes dated articles with new facts, questions about old and new facts in
wordings that no training text has, prompts whose replies a program checks, and a suite of all of them. The command
takes a few minutes on two CPU cores, without network. Models are cached, so the second time takes seconds.
"""
EPILOG = """\
examples
  # base, instruct model, files
  holdfast reproduce --world --output_dir world
  # a test in seconds
  holdfast reproduce --world --output_dir world --quick
  # other people, other weights
  holdfast reproduce --world --output_dir world-1 --seed 1
  # articles that also correct old facts
  holdfast reproduce --world --output_dir world --changed_facts 20
  # the paths are printed
  holdfast evaluate base=BASE instruct=INSTRUCT --suite world/suite.yaml

output
  FOLDER/world.json         the paths of all files and models
  FOLDER/suite.yaml         for 'holdfast evaluate --suite' and 'evaluation: {suites: [...]}'
  FOLDER/articles.jsonl     new facts, for continued pre-training
"""


@dataclass(frozen=True, kw_only=True)
class _Output:
    output_dir: Annotated[Path, Meta(metavar="FOLDER")] = Path("world")
    """Folder for the files."""
    quick: bool = False
    """Tiny sizes, to test the command in seconds."""
    workers: Annotated[int | None, Meta(ge=1)] = None
    """Number of models to train at the same time (default: 2 with two or more cores)."""
    json: bool = False
    """Print paths and recipe as JSON on stdout."""


@dataclass(frozen=True, kw_only=True)
class WorldRequest(WorldRecipe, _Output):
    """`holdfast reproduce --world`."""


@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """`holdfast reproduce --world worker`, which another command starts."""

    folder: Annotated[Path, Meta(metavar="FOLDER")]
    """Folder with the request."""


COMMAND = Command(
    name="holdfast reproduce --world",
    request=WorldRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="--output_dir FOLDER [options]",
)
WORKER = Command(
    name="holdfast reproduce --world worker",
    request=WorkerRequest,
    usage="--folder FOLDER",
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast reproduce --world --help`."""
    if argv[:1] == ["worker"]:
        return _worker(argv[1:])
    words = COMMAND.given(argv)
    quick = COMMAND.take_switch(words, "quick")
    request = COMMAND.decode(
        words, defaults=WorldRequest(**dataclasses.asdict(quick_recipe())) if quick else None
    )
    recipe = part_of(request, WorldRecipe)

    from holdfast.papers.worlds.world import FILES, build_world
    from holdfast.studies.engine.study import refuse_foreign

    refuse_foreign(
        request.output_dir,
        ["world.json", "facts.json", *(f"{name}.jsonl" for name in FILES)],
        "world",
    )
    target = stderr_console() if request.json else stdout_console()
    paths = build_world(recipe, request.output_dir, workers=request.workers, console=target)
    if request.json:
        print_json({"paths": paths, "recipe": recipe.record()})
        return 0
    width = max(map(len, paths))
    for name, path in paths.items():
        print_line(target, f"{name:<{width}}  {path}")
        print_line(target, f"{'':<{width}}  {FILES[name]}", style="dim")
    print_line(target, lines("", "Measure both models:"))
    command = (
        f"holdfast evaluate base={paths['base']} instruct={paths['instruct']} --suite "
        f"{paths['suite']}"
    )
    print_line(target, f"  {command}")
    return 0


def _worker(argv: list[str]) -> int:
    """Trains models of a world that another command makes."""
    folder = WORKER.read(argv).folder

    from holdfast.papers.worlds.world_models import REQUEST, run_worker

    if not (folder / REQUEST).is_file():
        raise ConfigError(f"--folder: expected one with {REQUEST}, got {folder}")
    run_worker(folder)
    return 0
