"""`holdfast check-method my_method.py:Dropback`: does a method keep the laws that ours keep, and what does it cost?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.retention.method import RetentionMethod

DESCRIPTION = """\
Runs the laws that every method of holdfast satisfies on a method of your own (or on one of holdfast's), with a tiny
model built in memory, in about ten seconds: a strength of nothing is direct fine-tuning bit for bit, a continued run
gives the weights of no interruption, no state from run to run, gradient accumulation changes nothing but rounding,
documentation, and that it keeps in memory what it declares. Prints the copies of the weights that it keeps. Exit code 1
if a law is broken.
"""
EPILOG = """\
examples
  holdfast check-method my_method.py:Dropback
  holdfast check-method my_method.py:Dropback:rate=0.3
  holdfast check-method my_package.methods:Dropback --json
"""


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """`holdfast check-method`."""

    method: Annotated[str, Meta(positional=True, metavar="METHOD")]
    """file.py:Class, module:Class or a name; parameters as in --retention."""
    json: bool = False
    """Everything as JSON on stdout."""


COMMAND = Command(
    name="holdfast check-method",
    request=CheckRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="METHOD [--json]",
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast check-method --help`."""
    request = COMMAND.read(argv)
    method = _method(request.method)

    from holdfast.cli.console import print_json, stdout_console
    from holdfast.support.files import to_jsonable
    from holdfast.training.method_laws import check_laws

    results = check_laws(method)
    sound = all(r.holds for r in results)
    if request.json:
        print_json(
            {
                "method": method.record(),
                "copies": to_jsonable(list(method.copies())),
                "laws": to_jsonable(results),
                "sound": sound,
            }
        )
        return 0 if sound else 1
    target = stdout_console()
    lines = [f"{method.label()}: {method.title}", *(f"  keeps      {line}" for line in kept(method)), ""]
    for line in lines:
        target.print(line, soft_wrap=True, markup=False, highlight=False)
    for result in results:
        mark, style = ("ok", "green") if result.holds else ("FAILED", "bold red")
        reason = "" if result.reason is None else f": {result.reason}"
        target.print(
            f"  {mark:<8}{result.law}{reason}",
            soft_wrap=True,
            markup=False,
            highlight=False,
            style=None if result.holds else style,
        )
    return 0 if sound else 1


def kept(method: RetentionMethod) -> list[str]:
    """A line for each copy of the trained weights that the method declares."""
    sizes = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
    places = {"device": "on the device", "cpu": "in host memory", "disk": "on the disk"}
    lines = []
    for copy in method.copies():
        size = (
            f"{sizes[copy.dtype]} bytes a trained parameter"
            if copy.dtype in sizes
            else copy.dtype or "the weights' own bytes"
        )
        lines.append(f"{copy.what}, {places.get(copy.place, copy.place)}: {size}")
    return lines or ["no copy of the weights"]


def _method(text: str) -> RetentionMethod:
    from holdfast.retention.registry import retention
    from holdfast.runs.settings import parse_compact_method

    try:
        methods = retention(parse_compact_method(text))
    except ValueError as error:
        raise ConfigError(f"{text}: {error}") from None
    if len(methods) != 1:
        raise ConfigError(f"{text}: expected one method, got {len(methods)}.")
    return methods[0]
