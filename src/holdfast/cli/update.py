"""`holdfast update`: keep an instruct model current: continue its base on new text, add the instruction residual,
measure, report."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.options import console
from holdfast.cli.request import Request, RequestParser, read_yaml
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.studies.residual.plan import ResidualConfig

DESCRIPTION = """\
Keeps an instruct model current without instruction data. To train it on new text ruins how it follows instructions; so
its BASE is trained on the new text, and what instruction tuning had changed is added back:

  new instruct model = (base + new text) + scale * (instruct - base)

Documents are packed whole into windows, none sees another one; a part is held out and measured. Base, instruct and result
are measured alike and held against each other. Interrupted? The same command continues; nothing finished is done again.
"""
EPILOG = """\
update.yaml (every key is an option too)
  base: meta-llama/Meta-Llama-3-8B
  instruct: meta-llama/Meta-Llama-3-8B-Instruct
  corpus: [news/, more.jsonl.gz]        # text, JSONL, Parquet, WET, output of fundus; folders too
  after: 2023-12-01                     # only what is new
  tokens: 100M                          # of it; left out: all
  train:                                # keys of 'holdfast train' for the continued base
    learning_rate: 1.0e-5
    use_peft: true                      # LoRA in place of full fine-tuning
    retention: [{label_annealing: {weight: 0.3}}]
  evaluation: {suites: [instruction_residual]}
  continued_instruct: true              # also continue the instruct model itself, to see what that would have cost
  scales: [0.5, 0.75, 1, 1.25]          # try several; 1 is kept unless another is better with its whole interval
  output_dir: runs/update

examples
  holdfast update --base BASE --instruct INSTRUCT --corpus news/ --dry_run        # checks everything that can be checked
  holdfast update --base BASE --instruct INSTRUCT --corpus news/ --after 2024-01-01 --tokens 100M \\
      --train learning_rate=1e-5 use_peft=true --evaluation instruction_residual
  holdfast update --config update.yaml
  holdfast cost --model BASE --tokens 100M --window 4096                          # what it will take

output
  FOLDER/models/<result>/    the updated model: safetensors, the instruct model's tokenizer and chat template
  FOLDER/report.html         what was gained, what was kept, how it was made
  FOLDER/update.json         the same for programs
"""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast update --help`."""
    request = Request(build_parser(), argv)
    dry_run = request.on("dry_run")
    config = read_config(request)
    if dry_run:
        return _dry_run(config)
    from holdfast.reports.residual_text import print_update
    from holdfast.studies.residual.session import update

    shown = console()
    record = update(config, console=shown)
    print_update(record, config.output_dir, shown)
    return 0


def build_parser() -> RequestParser:
    """The options."""
    from holdfast.studies.residual.plan import CORPUS_KEYS, KEEP, UPDATE_KEYS

    parser = RequestParser(
        prog="holdfast update",
        description=DESCRIPTION,
        epilog=EPILOG,
        usage="--base MODEL --instruct MODEL --corpus PATH... [options]",
    )
    many = {"corpus": "PATH", "scales": "X", "choose_by": "ENTRY", "train": "KEY=VALUE", "evaluation": "SUITE"}
    switches = {"continued_instruct", "titles"}
    text = {
        **UPDATE_KEYS,
        "train": "keys of 'holdfast train' for the continued models, or a YAML file",
        "evaluation": "suites that are measured, shipped ones or YAML files; the held-out new text always is",
        "keep": f"whose weights stay on disk: {', '.join(KEEP)}",
    }
    corpus = parser.add_argument_group("which documents")
    for name, about in text.items():
        group = corpus if name in CORPUS_KEYS else None
        if name in switches:
            parser.switch(name, about.removeprefix("true: "), group=group)
        elif name in many:
            parser.many(name, many[name], about, group=group)
        else:
            parser.one(name, "FOLDER" if name == "output_dir" else "VALUE", about, group=group)
    parser.switch("dry_run", "checks models, corpus files and tasks, and says what would be done")
    return parser


def read_config(request: Request) -> ResidualConfig:
    """The configuration of a request.

    Raises:
        ConfigError: with every mistake at once.
    """
    from holdfast.studies.residual.plan import UPDATE_KEYS, update_config

    values: dict[str, Any] = {name: request.raw(name) for name in UPDATE_KEYS if request.has(name)}
    for name in ("near_duplicates", "minimum_characters"):
        if isinstance(values.get(name), str):
            values[name] = (
                request.number(name, None) if name == "near_duplicates" else request.whole(name, None, least=0)
            )
    if isinstance(values.get("train"), list):
        values["train"] = _assignments(values["train"], request)
    if isinstance(values.get("evaluation"), list) and "evaluation" in request.given:
        values["evaluation"] = {"suites": values["evaluation"]}
    if request.has("titles"):
        values["titles"] = request.on("titles")
    try:
        config = update_config(values)
    except ConfigError as error:
        raise ConfigError(list(dict.fromkeys([*request.problems, *error.problems]))) from None
    request.check()
    return config


def _assignments(words: list[str], request: Request) -> Any:
    """`KEY=VALUE ...` as a mapping, each value read as YAML; a single file as its content."""
    import yaml

    if len(words) == 1 and "=" not in words[0]:
        return read_yaml(Path(words[0]))
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            request.problems.append(f"--train: expected KEY=VALUE or one YAML file, got '{word}'")
            continue
        read = yaml.safe_load(value)
        found[name] = _number(read)
    return found


def _number(value: Any) -> Any:
    """YAML reads 1e-5 as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _dry_run(config: ResidualConfig) -> int:
    from holdfast.studies.residual.plan import TRAIN_DEFAULTS, is_continued
    from holdfast.studies.residual.session import check_measuring, check_models, whole_plan
    from holdfast.support.token_counts import shown_tokens

    notes, _ = check_models(config)
    check_measuring(config)
    budget = config.budgets[0]
    lines = [
        f"New text: {', '.join(config.corpus)} ({'all of it' if budget is None else shown_tokens(budget) + ' tokens'})"
    ]
    lines += [
        f"{number}. {model.label}" + ("" if is_continued(model) else "  (as it is)")
        for number, model in enumerate(config.models(), 1)
    ]
    if config.evaluation:
        entries = ", ".join(f"{e.suite}/{e.name}" for e in whole_plan(config, None).entries)
        lines.append(f"Measured of each: the held-out new text, {entries}")
    else:
        lines.append(
            "Measured of each: the held-out new text alone. Add evaluation: to see what was kept, such as "
            "--evaluation instruction_residual."
        )
    lines += [f"Note: {note}" for note in notes]
    if budget is not None:
        keys = " ".join(
            f"--{k} {shlex.quote(str(v))}"
            for k, v in config.train.items()
            if TRAIN_DEFAULTS.get(k) != v and isinstance(v, (str, int, float))
        )
        amounts = f"--tokens {shown_tokens(budget)} --epochs {config.epochs:g} --window {config.window} --packing true"
        lines.append(
            f"What it takes: holdfast cost --model {shlex.quote(config.families[0].base)} {amounts} {keys}".rstrip()
        )
    lines.append(f"Folder: {config.output_dir}")
    print("\n".join(lines))
    return 0
