"""`holdfast check`: what would be done, once everything that the run reads was read, and the run
was rehearsed. `holdfast train --dry_run` is the same."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.checkpoints.named import check_on_hub
from holdfast.cli.console import print_line, stdout_console, write
from holdfast.config.command_line import parse_words
from holdfast.config.declare import Meta, Setting, settings_of
from holdfast.config.decode import coerce_all
from holdfast.config.help import Help, help_topic
from holdfast.errors import ConfigError, Note
from holdfast.printable import lines, printable

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.runs.config import Machine, TrainConfig
    from holdfast.runs.dry_run import Look
    from holdfast.runs.preview import PreparedRow, Preview
    from holdfast.runs.rehearsal import Rehearsal

DESCRIPTION = """\
Checks a training request without training. Reads the settings, the model and all rows, and reports text that is
ignored, cut, dropped or duplicated, and held-out text in the training data. Then rehearses the run on a copy of the
model with few layers: one step of the real trainer, a checkpoint, a resume, and one sample of each evaluation. At the
end it says that the request is sound, or what is wrong. Nothing is downloaded, and nothing is written outside a
temporary folder.
"""
EPILOG = """\
examples
  holdfast check run.yaml
  # override settings of the file with any option of 'holdfast train'
  holdfast check run.yaml --learning_rate 1e-5 --use_peft
  # on a laptop, for the machine that trains
  holdfast check run.yaml --for gpu --flops_per_second 4e14

Exit code 0: sound; 2: the request has to change.
"""
EXAMPLES = 3
LONGEST = 800
"""Characters of a stretch that are shown: its beginning and its end."""


@dataclass(frozen=True, kw_only=True)
class CheckFlags:
    """What `holdfast check` takes beside a run's settings."""

    for_: Annotated[Literal["here", "gpu"], Meta(section="running")] = "here"
    """In a check: gpu means that the settings are for another machine, which has a GPU."""
    flops_per_second: Annotated[float | None, Meta(gt=0, metavar="F", section="running")] = None
    """In a check: floating-point operations per second that a device reaches. This is its peak
    rate times the expected utilisation (4e14 is about 40 % of an H100's peak). The plan then
    estimates the training time."""
    quick: Annotated[bool, Meta(section="running")] = False
    """In a check: skip the rehearsal. Only the request, the model and the rows are read."""


def flags(declared: type = CheckFlags) -> tuple[Setting, ...]:
    """The fields as options: `for` is no name that Python takes."""
    settings = settings_of(declared)
    return tuple(dataclasses.replace(s, name=s.name.removesuffix("_")) for s in settings)


def split_words(argv: list[str], settings: Sequence[Setting]) -> tuple[dict[str, Any], list[str]]:
    """The values of a command's flags, and all other words. `--debug` is no flag here: what `main`
    leaves of it is TRL's.

    Args:
        argv: the words.
        settings: the flags.

    Raises:
        ConfigError: a flag without a sound value.
    """
    known = {setting.name: setting for setting in settings if setting.name != "debug"}
    flag_words: list[str] = []
    words: list[str] = []
    target = words
    for word in argv:
        if word.startswith("--"):
            option = word[2:].partition("=")[0].replace("-", "_")
            target = flag_words if option in known else words
        target.append(word)  # a value goes where its option went
    request = parse_words(flag_words, known)
    values, problems = coerce_all(known, request.values)
    request.check(problems)
    return values, words


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast check --help`."""
    if (topic := help_topic(argv)) is not None:
        write(*check_help().text(topic).splitlines())
        return 0
    values, words = split_words(argv, flags())
    if words and not words[0].startswith("--"):
        words = ["--config", *words]
    if not words:
        raise ConfigError(
            lines(
                "nothing to check: expected a training configuration, as in",
                "  holdfast check run.yaml",
                "or the options of 'holdfast train'.",
            )
        )
    return check(words, values)


def check_help() -> Help:
    """What `--help` says."""
    settings = [
        dataclasses.replace(s, meta=dataclasses.replace(s.meta, section="")) for s in flags()
    ]
    return Help(
        command="holdfast check",
        usage="run.yaml [--key value ...]",
        settings=settings,
        description=DESCRIPTION,
        epilog=EPILOG,
    )


def check(words: list[str], flags: Mapping[str, Any]) -> int:
    """Prints the plan, once the request, its files and its rehearsal are seen to be sound.

    Args:
        words: as `holdfast train` takes them, without those of `CheckFlags`.
        flags: the values of those.

    Raises:
        UserError: what is wrong with the request.
    """
    from holdfast.runs import launch
    from holdfast.runs.config import GPU, load_train_config, this_machine
    from holdfast.support.environment import frozen_heap, without_compiler

    fresh_process = "torch" not in sys.modules
    with without_compiler():
        launch.check_world()
        machine = GPU if flags.get("for") == "gpu" else this_machine()
        config, accelerator = load_train_config(words, machine=machine), machine.accelerator
        command = None
        if launch.is_needed(config.launch, has_accelerator=accelerator):
            command = launch.command(config.launch, words, has_accelerator=accelerator)
        # a caller's heap stays as it is: it may be frozen already
        with frozen_heap() if fresh_process else contextlib.nullcontext():
            _print_plan(config, command, machine=machine, flags=flags)
    return 0


def _print_plan(
    config: TrainConfig, command: list[str] | None, *, machine: Machine, flags: Mapping[str, Any]
) -> None:
    from holdfast.records.run import RunFolder
    from holdfast.runs.dry_run import look
    from holdfast.runs.plan_text import plan_text
    from holdfast.runs.run_folder import run_to_continue
    from holdfast.support.environment import quiet_datasets, quiet_libraries

    folder = config.training.output_dir
    record = run_to_continue(RunFolder(folder), config)
    with quiet_libraries(), quiet_datasets():
        if machine.here:
            check_on_hub(str(config.model.model_name_or_path))
        view = look(config)
        rehearsal = "--quick" if flags.get("quick") else _rehearsed(config, view, machine)
    config.notes.extend(Note("rows", text) for text in view.notes)
    rate = flags.get("flops_per_second")
    write(
        plan_text(config, view, rehearsal, command=command, machine=machine, flops_per_second=rate)
    )
    if record is not None:
        write(
            f"  {'continues':<11} the run in {folder} (status {record.status}, stage "
            f"'{record.stage}')"
        )
    if view.preview is not None:
        print_examples(view.preview, view.tokenizer, stdout_console())


def _rehearsed(config: TrainConfig, view: Look, machine: Machine) -> Rehearsal | str:
    """The rehearsal, or why there is none."""
    from holdfast.runs.rehearsal import rehearse
    from holdfast.runs.small_request import NoCopy

    if not view.here:
        return "the model or the data is not on this machine"
    try:
        steps = view.cost.work.steps if view.cost is not None else None
        return rehearse(config, view.tokenizer, machine=machine, steps=steps)
    except NoCopy as error:
        return str(error)


def print_examples(preview: Preview, tokenizer: Any, console: Console) -> None:
    """A few rows as they are trained on: what counts in colour, or between » and « where there is
    none."""
    from rich.text import Text

    plain = console.color_system is None
    print_line(console)
    print_line(
        console,
        f"Trained tokens are {'between » and «' if plain else 'green'}. All other tokens are only "
        "read.",
    )
    for number, row in enumerate(_spread(preview.rows), 1):
        print_line(console)
        print_line(
            console, f"  example {number}: {len(row.ids):,} tokens, {sum(row.trained):,} trained"
        )
        text = Text()
        for piece, trained in row.pieces(tokenizer):
            if len(piece) > LONGEST:
                piece = f"{piece[: LONGEST // 2]} [...] {piece[-LONGEST // 2 :]}"
            if plain and trained:
                piece = f"»{piece}«"
            text.append(printable(piece, breaks=True), style="green" if trained else "dim")
        console.print(text, soft_wrap=True)


def _spread(rows: tuple[PreparedRow, ...]) -> list[PreparedRow]:
    """As many as are shown, evenly over all."""
    count = min(EXAMPLES, len(rows))
    return [rows[number * (len(rows) - 1) // max(1, count - 1)] for number in range(count)]
