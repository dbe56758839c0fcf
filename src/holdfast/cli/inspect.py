"""`holdfast inspect FOLDER`: what a checkpoint holds, where it comes from, and whether it is sound."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.checkpoints.sources import listing
from holdfast.cli.checkpoint_options import Workers, exactness, method_text, missing_folders, seconds_text, size_text
from holdfast.cli.console import print_json, print_line, stdout_console, stoppable
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta
from holdfast.config.values import Mistake

if TYPE_CHECKING:
    from holdfast.checkpoints.inspect import Check, Inspection

DESCRIPTION = """\
Shows what a checkpoint, adapter or residual folder holds: parameters, dtypes, files, vocabulary, where it comes from;
and checks it: headers against files, index against shards, configuration against tensors. That reads headers only and
takes milliseconds. With --verify every byte is read: NaN and infinities are named, and the content is compared with
the fingerprints that holdfast wrote into provenance.json. Exit code 1 if a check fails.
"""
EPILOG = """\
examples
  holdfast inspect merged
  holdfast inspect merged --verify          # did it survive the copy?
  holdfast inspect merged --json | jq .provenance.parents
"""


@dataclass(frozen=True, kw_only=True)
class InspectRequest:
    """`holdfast inspect`."""

    folder: Annotated[str, Meta(positional=True, metavar="FOLDER")]
    """A checkpoint, an adapter or a residual (or a hub id)."""
    verify: bool = False
    """Read all bytes: NaN, infinities, fingerprints."""
    json: bool = False
    """Print everything as JSON on stdout."""
    workers: Workers = None
    """Threads that read (all cores)."""

    def problems(self) -> list[Mistake]:
        """A folder that is not there."""
        return missing_folders(self, "folder")


COMMAND = Command(
    name="holdfast inspect",
    request=InspectRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="FOLDER [--verify] [--json]",
    yaml=False,
)


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast inspect --help`."""
    request = COMMAND.read(argv)

    from holdfast.checkpoints.inspect import inspect
    from holdfast.support.files import to_jsonable

    with stoppable():
        found = inspect(request.folder, verify=request.verify, workers=request.workers)
    if request.json:
        print_json({**to_jsonable(found), "sound": found.sound})
    else:
        show(found)
    return 0 if found.sound else 1


def show(found: Inspection) -> None:
    """Prints an inspection."""
    say = functools.partial(print_line, stdout_console())
    say(f"{found.folder}: {found.kind}{f', {found.architecture}' if found.architecture else ''}", style="bold")
    for key, value in [*_contents(found), *_origin(found)]:
        say(f"  {key:<12}{value}")
    say("\n  checks")
    for check in found.checks:
        mark, style = {True: ("ok", "green"), False: ("FAILED", "bold red"), None: ("-", "dim")}[check.passed]
        say(f"  {mark:<8}{check.name}: {_indented(check)}", style=style if check.passed is not True else None)
    for note in found.notes:
        say(f"\n  note: {note}")
    say(f"\n{'all bytes read' if found.verified else 'headers read'} in {seconds_text(found.seconds)}")


def _contents(found: Inspection) -> list[tuple[str, str]]:
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in found.parameters_by_kind.items())
    layers = f"; {found.layers} layers" if found.layers else ""
    rows = [
        ("parameters", f"{found.parameters:,} in {found.tensors} tensors{layers}"),
        ("by kind", kinds),
        *_many(
            "dtypes",
            [
                f"{s.dtype}: {s.parameters:,} parameters in {s.tensors} tensors, {size_text(s.bytes)}"
                for s in found.dtypes
            ],
        ),
        (
            "files",
            f"{len(found.files)} ({size_text(sum(f.bytes for f in found.files))}): "
            f"{listing([f.name for f in found.files], 4)}",
        ),
    ]
    if found.vocabulary:
        names = {"rows": "rows", "config": "in config.json", "tokens": "tokens in the tokenizer"}
        rows.append(("vocabulary", ", ".join(f"{n:,} {names[key]}" for key, n in found.vocabulary.items())))
    if found.tied_head is not None:
        rows.append(("head", "tied to the embeddings" if found.tied_head else "separate from the embeddings"))
    return [row for row in rows if row[1]]


def _origin(found: Inspection) -> list[tuple[str, str]]:
    record, run = found.provenance, found.run
    rows = []
    if record:
        rows.append(("made by", f"holdfast {record.get('command')}: {method_text(record.get('method') or {})}"))
        rows += _many("from", [_parent(parent) for parent in record.get("parents") or []])
        rows.append(
            (
                "when",
                f"{record.get('created')}, {', '.join(f'{k} {v}' for k, v in (record.get('versions') or {}).items())}",
            )
        )
        rows.append(("fingerprint", str(record.get("fingerprint"))))
        rows.append(("weights", _weights(record.get("origin"))))
        rows += [("exactness", text) for text in exactness(record)]
    if run:
        methods = [method_text(m) for m in run.get("retention") or []] or ["plain fine-tuning"]
        rows.append(("run", f"{run.get('name')} ({run.get('status')}), seed {run.get('seed')}"))
        rows.append(("retention", ", ".join(methods)))
        rows.append(
            ("from", " on ".join(str(run[k]["name"]) for k in ("model", "data") if (run.get(k) or {}).get("name")))
        )
        rows.append(("when", f"{run.get('created')}, finished {run.get('finished')}"))
    return [row for row in rows if row[1]]


def _weights(origin: Any) -> str:
    """What is to be said of the weights beyond how they were made: "dequantised from 4 bits (Q4_1), licence
    Apache-2.0"; empty for most."""
    held = origin if isinstance(origin, dict) else {}
    licence = f"licence {held['license']}" if held.get("license") else ""
    return ", ".join(str(part) for part in (held.get("note"), licence) if part)


def _parent(parent: dict[str, Any]) -> str:
    return f"{parent.get('role')}: {parent.get('name')}" + (
        f" ({parent['fingerprint']})" if parent.get("fingerprint") else ""
    )


def _indented(check: Check) -> str:
    return check.detail.replace("\n", "\n" + " " * 10)


def _many(name: str, values: list[str]) -> list[tuple[str, str]]:
    return [(name if i == 0 else "", value) for i, value in enumerate(values)]
