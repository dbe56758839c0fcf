"""`holdfast inspect A [B]`: what a checkpoint holds and whether it is sound; how far another one is from it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.checkpoints.sources import listing
from holdfast.cli.checkpoint_options import Workers, exactness, method_text, missing_folders, seconds_text, size_text
from holdfast.cli.console import print_json, print_line, stderr_console, stdout_console, stoppable
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.values import Mistake
from holdfast.printable import lines

if TYPE_CHECKING:
    from holdfast.checkpoints.summary import Inspection

DESCRIPTION = """\
Of one checkpoint, adapter or residual folder: parameters, dtypes, files, where it comes from, and whether it is sound:
headers against files, index against shards, configuration against tensors. That reads headers only and takes
milliseconds. With --verify every byte is read: NaN and infinities are named, and the content is compared with the
fingerprints that holdfast wrote into provenance.json. Exit code 1 if a check fails.

Of two checkpoints: how far the weights moved from A to B, for every layer (or tensor) and in total:

  relative      norm of the difference over the norm of A
  L2            norm of the difference, |B - A|
  cosine        between A and B; 1 is the same direction
  signs kept    share of weights with the same sign
"""
EPILOG = """\
examples
  holdfast inspect merged
  holdfast inspect merged --verify          # did it survive the copy?
  holdfast inspect merged --json | jq .provenance.parents

  holdfast inspect base tuned               # layer by layer
  holdfast inspect base tuned --per tensor
  # a page with a heat map of layers and modules
  holdfast inspect base tuned --plot distance.html
"""


@dataclass(frozen=True, kw_only=True)
class InspectRequest:
    """`holdfast inspect`."""

    checkpoints: Annotated[tuple[str, ...], Meta(positional=True, least=1, metavar="A [B]")]
    """A checkpoint, an adapter or a residual (or a hub id); two checkpoints: the start and the result."""
    verify: bool = False
    """Read all bytes: NaN, infinities, fingerprints (of one checkpoint)."""
    per: Literal["layer", "tensor"] = "layer"
    """Rows of the table (of two checkpoints)."""
    plot: Annotated[str | None, Meta(metavar="FILE.html")] = None
    """A page with a heat map, to be opened in a browser (of two checkpoints)."""
    json: bool = False
    """Print everything as JSON on stdout."""
    workers: Workers = None
    """Threads that read (all cores)."""

    def problems(self) -> list[Mistake]:
        """Folders that are not there, and what is of one checkpoint or of two only."""
        mistakes = missing_folders(self, "checkpoints")
        two = len(self.checkpoints) == 2
        if len(self.checkpoints) > 2:
            text = f"expected one or two checkpoints, got {len(self.checkpoints)}"
            mistakes.append(Mistake(path=("checkpoints",), text=text))
        if two and self.verify:
            mistakes.append(Mistake(path=("verify",), text="is of one checkpoint; name one of the two"))
        if self.plot is not None and not two:
            mistakes.append(Mistake(path=("plot",), text="is of two checkpoints; name the other one, too"))
        if self.plot is not None and not self.plot.endswith(".html"):
            mistakes.append(Mistake(path=("plot",), text=f"expected a file that ends with .html, got {self.plot}"))
        return mistakes


COMMAND = Command(
    name="holdfast inspect",
    request=InspectRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="A [B] [options]",
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast inspect --help`."""
    request = COMMAND.read(argv)
    if len(request.checkpoints) == 2:
        return compare(request)

    from holdfast.checkpoints.summary import inspect_checkpoint
    from holdfast.support.files import to_jsonable

    with stoppable():
        found = inspect_checkpoint(request.checkpoints[0], verify=request.verify, workers=request.workers)
    if request.json:
        print_json({**to_jsonable(found), "sound": found.sound})
    else:
        show(found)
    return 0 if found.sound else 1


def compare(request: InspectRequest) -> int:
    """Shows how far the second checkpoint is from the first."""
    from holdfast.checkpoints.distance import distance
    from holdfast.reports.distance_report import distance_blocks, write_distance_report
    from holdfast.reports.terminal import Printer

    start, result = request.checkpoints
    with stoppable():
        found = distance(start, result, workers=request.workers)
    target = stderr_console() if request.json else stdout_console()
    if request.json:
        print_json(found)
    else:
        Printer(target).show(distance_blocks(found, per=request.per))
        print_line(target, seconds_text(found.seconds))
    if request.plot is not None:
        print_line(target, f"plot: {write_distance_report(found, request.plot)}")
    return 0


def show(found: Inspection) -> None:
    """Prints an inspection."""
    say = functools.partial(print_line, stdout_console())
    say(f"{found.folder}: {found.kind}{f', {found.architecture}' if found.architecture else ''}", style="bold")
    for key, value in [*_contents(found), *_origin(found.provenance)]:
        if value:
            say(f"  {key:<12}{value}")
    say(lines("", "  checks"))
    for check in found.checks:
        mark, style = {True: ("ok", "green"), False: ("FAILED", "bold red"), None: ("-", "dim")}[check.passed]
        detail = f": {check.detail}" if check.detail else ""
        say(f"  {mark:<8}{check.name}{detail}", style=style if check.passed is not True else None)


def _contents(found: Inspection) -> list[tuple[str, str]]:
    layers = f"; {found.layers} layers" if found.layers else ""
    dtypes = [f"{dtype}: {parameters:,} parameters" for dtype, parameters in found.dtypes.items()]
    return [
        ("parameters", f"{found.parameters:,} in {found.tensors} tensors{layers}"),
        ("dtypes", ", ".join(dtypes)),
        ("files", f"{len(found.files)}, {size_text(found.bytes)}: {listing(list(found.files), 4)}"),
    ]


def _origin(record: dict[str, Any]) -> list[tuple[str, str]]:
    """What provenance.json says."""
    if not record:
        return []
    versions = ", ".join(f"{name} {version}" for name, version in (record.get("versions") or {}).items())
    rows = [("made by", f"holdfast {record.get('command')}: {method_text(record.get('method') or {})}")]
    for parent in record.get("parents") or []:
        fingerprint = parent.get("fingerprint") or "fingerprint not known"
        rows.append(("from", f"{parent.get('role')}: {parent.get('name')} ({fingerprint})"))
    rows.append(("when", f"{record.get('created')}, {versions}"))
    rows.append(("fingerprint", str(record.get("fingerprint"))))
    origin = record.get("origin")
    if isinstance(origin, dict):  # "dequantised from 4 bits (Q4_1)"
        rows += [("weights", str(origin.get("note") or "")), ("licence", str(origin.get("license") or ""))]
    rows += [("exactness", text) for text in exactness(record)]
    return rows
