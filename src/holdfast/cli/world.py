"""`holdfast world`: the embedded world, made: base and instruct model, new facts, questions, and a suite that asks
them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.checkpoint_options import print_json, stderr_console, stdout_console
from holdfast.cli.request import Request, RequestParser
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.worlds.world import WorldRecipe

DESCRIPTION = """\
Makes a small world of people who do not exist, and two models of it: a base that knows them, and an instruct model that
follows instructions. Beside them: dated articles with new facts, questions about old and new ones in wordings that no
text has, prompts whose replies a program checks, and a suite that asks it all. A few minutes of two CPU cores, no
network, no files of yours. Models are kept in the cache, so the second time takes seconds.
"""
EPILOG = """\
examples
  holdfast world --output_dir world                       # base, instruct model, files
  holdfast world --output_dir world --quick               # seconds: does it run here at all?
  holdfast world --output_dir world-1 --seed 1            # other people, other weights
  holdfast world --output_dir world --changed_facts 20    # articles that also correct old facts
  holdfast evaluate base=BASE instruct=INSTRUCT --suite world/suite.yaml     # the paths are printed

output
  FOLDER/world.json         where everything lies, the models too
  FOLDER/suite.yaml         for 'holdfast evaluate --suite' and 'evaluation: {suites: [...]}'
  FOLDER/articles.jsonl     the new facts, to continue pre-training on
"""

_GROUPS: dict[str, dict[str, str]] = {
    "the world": {
        "seed": "of people, texts and weights",
        "people": "whom the base knows; half of them are asked about",
        "new_people": "of whom only the articles tell",
        "changed_facts": "facts of old people that the articles correct",
        "articles": "articles with the new facts",
        "old_people": "share of articles that also tell a fact of somebody whom the base knows",
        "articles_prose": "share of articles that are prose, on top of the others, 0 to below 1",
        "instructions": "prompts to test instruction following with",
        "held_out_prose": "held-out pieces of prose",
    },
    "the base": {
        "tellings": "how often the pre-training text tells each fact",
        "popular": "share of people of whom it tells more often, 0 to 1",
        "popularity": "how many times as often",
        "list_rounds": "how often lists without facts have every name",
        "prose_share": "of the pre-training text that is prose, 0 to below 1",
        "layers": "of the models",
        "width": "of the models",
        "heads": "of the models",
        "mlp": "width of the SwiGLU layers",
        "vocab_size": "of the byte-level BPE; names and values come on top",
        "context": "tokens of a training row",
        "batch_size": "rows a step",
        "steps": "of pre-training",
        "learning_rate": "of pre-training",
        "weight_decay": "of pre-training",
        "initializer_range": "standard deviation of the weights at the start",
    },
    "the instruct model": {
        "conversations": "to tune on",
        "tuning_steps": "of instruction tuning",
        "tuning_learning_rate": "of instruction tuning",
        "tuning_replay": "share of its tokens that are pre-training text, 0 to below 1",
    },
    "the sibling": {
        "sibling_steps": "by which the sibling base is pre-trained longer",
    },
    "the derived model": {
        "derived_steps": "of its tuning",
    },
}
"""Fields of `WorldRecipe` that are numbers, by heading."""
_FRACTIONS = (
    "old_people",
    "articles_prose",
    "popular",
    "prose_share",
    "learning_rate",
    "weight_decay",
    "initializer_range",
    "tuning_learning_rate",
    "tuning_replay",
)
_SWITCHES = {
    "the sibling": (
        "sibling",
        "makes a second base and instruct model: pre-trained longer, tuned on other conversations",
    ),
    "the derived model": (
        "derived",
        "makes another child of the base: tuned to answer, without a word about how a reply has to look",
    ),
}
"""Fields of `WorldRecipe` that are switches, by heading, with what they do."""
NOT_OPTIONS = ("continuing_steps", "continuing_learning_rate")
"""Fields of `WorldRecipe` that are no options: what `continuing_settings` gives studies."""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast world --help`."""
    if argv[:1] == ["worker"]:
        return _worker(argv[1:])
    request = Request(build_parser(), argv)
    recipe = read_recipe(request)
    folder = request.text("output_dir", "world")
    workers = request.whole("workers", None, least=1)
    as_json = request.on("json")
    request.check()

    from holdfast.worlds.world import FILES, build_world

    target = stderr_console() if as_json else stdout_console()
    paths = build_world(recipe, folder, workers=workers, console=target)
    if as_json:
        print_json({"paths": paths, "recipe": dataclasses.asdict(recipe)})
        return 0
    width = max(map(len, paths))
    for name, path in paths.items():
        target.print(f"{name:<{width}}  {path}", soft_wrap=True, markup=False, highlight=False)
        target.print(f"{'':<{width}}  {FILES[name]}", style="dim", markup=False, highlight=False)
    target.print("\nMeasure both models:", highlight=False)
    command = f"holdfast evaluate base={paths['base']} instruct={paths['instruct']} --suite {paths['suite']}"
    target.print(f"  {command}", soft_wrap=True, markup=False, highlight=False)
    return 0


def _worker(argv: list[str]) -> int:
    """Trains models of a world that another command makes."""
    parser = RequestParser(
        prog="holdfast world worker", description=_worker.__doc__ or "", epilog="", usage="--folder FOLDER", yaml=False
    )
    parser.one("folder", "FOLDER", "with the request")
    request = Request(parser, argv)
    folder = Path(request.required("folder", "folder with the request"))
    request.check()

    from holdfast.worlds.world_models import REQUEST, run_worker

    if not (folder / REQUEST).is_file():
        raise ConfigError(f"--folder: expected one with {REQUEST}, got {folder}")
    run_worker(folder)
    return 0


def read_recipe(request: Request) -> WorldRecipe:
    """The recipe of a request; mistakes are added to its problems."""
    from holdfast.worlds.world import WorldRecipe, quick_recipe

    plain = quick_recipe() if request.on("quick") else WorldRecipe()
    values: dict[str, Any] = {name: request.on(name) for name, _ in _SWITCHES.values()}
    before = len(request.problems)
    for name in (name for group in _GROUPS.values() for name in group):
        default = getattr(plain, name)
        values[name] = request.number(name, default) if name in _FRACTIONS else request.whole(name, default)
    recipe = dataclasses.replace(plain, **values)
    if len(request.problems) == before:  # what is no number is said; what follows from it would be said of the default
        request.problems += [f"--{problem}" for problem in recipe.problems()]
    return recipe


def build_parser() -> RequestParser:
    """The options."""
    parser = RequestParser(
        prog="holdfast world", description=DESCRIPTION, epilog=EPILOG, usage="--output_dir FOLDER [options]"
    )
    parser.one("output_dir", "FOLDER", "for the files (./world)")
    parser.switch("quick", "sizes of seconds, which only show that everything works")
    defaults = _defaults()
    for title, options in _GROUPS.items():
        group = parser.add_argument_group(title)
        if title in _SWITCHES:
            parser.switch(*_SWITCHES[title], group=group)
        for name, text in options.items():
            parser.one(name, "X" if name in _FRACTIONS else "N", f"{text} ({defaults[name]:g})", group=group)
    parser.one("workers", "N", "models that are trained at a time (2 on two and more cores)")
    parser.switch("json", "paths and recipe as JSON on stdout")
    return parser


def _defaults() -> dict[str, float]:
    from holdfast.worlds.world import WorldRecipe

    return {f.name: f.default for f in dataclasses.fields(WorldRecipe) if isinstance(f.default, (int, float))}
