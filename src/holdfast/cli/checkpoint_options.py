"""What the checkpoint commands share: common options, and how a plan and its outcome are shown."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from holdfast.cli.console import print_json, print_line, stderr_console, stdout_console, write
from holdfast.config.declare import Meta
from holdfast.config.values import Mistake, Refused
from holdfast.errors import ConfigError, ModelError, StorageError
from holdfast.printable import lines, printable
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.checkpoints.build import Built, Prepared
    from holdfast.checkpoints.plan import Plan
    from holdfast.checkpoints.sources import Source
    from holdfast.records.run import LayerDistance


# ------------------------------------------------------------------------------------------------------- common options


def read_dtype(value: Any) -> str:
    """The name of a dtype, as it was written.

    Raises:
        Refused: no such dtype, with the nearest name.
    """
    from holdfast.checkpoints.dtypes import dtype

    if not isinstance(value, str):
        raise ValueError("the name of a dtype, such as bfloat16")
    try:
        dtype(value)
    except ConfigError as error:
        raise Refused(*(Mistake(path=(), text=p.removeprefix("dtype: ")) for p in error.problems)) from None
    return value


DTYPE = Meta(parse=read_dtype, metavar="DTYPE", json_schema=lambda: {"type": ["string", "null"]})
"""Of a setting that names a dtype."""
Workers = Annotated[int | None, Meta(ge=1)]
"""Threads; None: all cores."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """Options on what is written, and how."""

    settings_group: ClassVar[str] = "output"

    output_dir: Annotated[Path, Meta(metavar="FOLDER")]
    """Folder to write; it is complete or absent, whatever happens meanwhile."""
    overwrite: bool = False
    """Replace the folder if it is there and holdfast wrote it."""
    dry_run: bool = False
    """Check the request and the checkpoints' headers, show the plan, write nothing."""
    json: bool = False
    """Print the outcome, or the plan of --dry_run, as JSON."""
    workers: Workers = None
    """Threads (all cores)."""
    no_sync: bool = False
    """Do not wait until the disk has it all: quicker, but a power cut may lose it."""


def missing_folders(request: Any, *names: str) -> list[Mistake]:
    """Mistakes in settings that name a folder which is not there, with the nearest names. Asks no network: what could
    be a model of the hub is left for later.

    Args:
        request: a settings value.
        names: its settings, each a name, several, or None.
    """
    from holdfast.checkpoints.locate import base_and_adapter, local_folder

    found = []
    for key in names:
        value = getattr(request, key)
        named = value if isinstance(value, tuple) else [] if value is None else [value]
        for name in (part for whole in named for part in base_and_adapter(whole) or (whole,)):
            path = expanded(name)
            if not path.is_dir() and (path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1):
                try:
                    local_folder(name)
                except ModelError as error:
                    found.append(Mistake(path=(key,), text=str(error)))
    return found


# --------------------------------------------------------------------------------------------------- the plan, the work


def carry_out(prepared: Prepared, output: Output, notes: Sequence[str] = ()) -> int:
    """Shows the plan; with `--dry_run` that is all, else does the work and says what came of it.

    Raises:
        HoldfastError: see `Prepared.write`.
    """
    from holdfast.checkpoints.build import check_output

    check_output(prepared.plan, output.output_dir, overwrite=output.overwrite)
    if output.dry_run:
        return _dry_run(prepared, output.output_dir, notes, as_json=output.json)
    for line in announcement(prepared, notes):
        write(line, to_stderr=True)
    sys.stderr.flush()
    built = prepared.write(
        output.output_dir, overwrite=output.overwrite, sync=not output.no_sync, workers=output.workers
    )
    for line in outcome(prepared, built):
        write(line, to_stderr=output.json)
    if output.json:
        print_json(outcome_record(prepared, built))
    return 0


def _dry_run(prepared: Prepared, folder: Path, notes: Sequence[str], *, as_json: bool) -> int:
    target = stderr_console() if as_json else stdout_console()
    print_line(target, lines("Dry run: the request is sound; nothing was written.", ""))
    for key, value in plan_rows(prepared, folder, notes):
        print_line(target, f"  {key:<12}{value}")
    if prepared.plan.ancestry:
        print_ancestry(prepared.plan.ancestry, target)
    if as_json:
        print_json(plan_record(prepared, folder, notes))
    needed, free = prepared.plan.bytes_written, free_bytes(folder)
    if free < needed:
        raise StorageError(
            f"{folder} needs {size_text(needed)} and the disk has {size_text(free)} left. Free some space or choose "
            f"another folder."
        )
    return 0


def announcement(prepared: Prepared, notes: Sequence[str]) -> list[str]:
    """A few lines before the work: what is made of what, how much, and what is worth knowing."""
    plan = prepared.plan
    inputs = ", ".join(f"{role} {source.label}" for role, source in zip(plan.roles, plan.sources, strict=True))
    lines = [
        f"{prepared.command}: {method_text(prepared.recipe.identity())} of {inputs}",
        f"  {contents(plan)}; reads {size_text(plan.bytes_read)}{_passes(plan)}",
    ]
    return lines + [f"  {_note(n)}" for n in (*notes, *plan.notes)]


def outcome(prepared: Prepared, built: Built) -> list[str]:
    """What came of it, in one line, and what is worth knowing."""
    written, seconds = prepared.plan.bytes_written, built.seconds["total"]
    speed = f" ({written / seconds / 1e9:.2f} GB/s)" if seconds > 0 else ""
    lines = [
        f"Wrote {built.folder}: {size_text(written)} in {seconds_text(seconds)}{speed}, fingerprint "
        f"{built.record['fingerprint']}"
    ]
    if built.resumed:
        lines.append(
            f"  went on from an earlier, interrupted run: {len(built.resumed)} of {len(prepared.plan.files)} files "
            f"were there already"
        )
    return [*lines, *(f"  {text}" for text in exactness(built.record))]


def exactness(record: Mapping[str, Any]) -> list[str]:
    """What a residual's record says of whether base + residual is the tuned model; nothing where it does not say."""
    from holdfast.checkpoints.dtypes import dtype

    audit = record.get("audit") or {}
    inexact, compared = audit.get("inexact"), " and ".join(audit.get("compared_in") or ["its own dtypes"])
    if inexact is None:
        return []
    if not inexact:
        return [
            f"exact: put back on its base with scale 1, it gives the tuned model bit for bit (in {compared}, and in "
            f"every narrower dtype that holds the tuned model's numbers)"
        ]
    stored = dtype((record.get("request") or {}).get("dtype") or "float32")
    total = (record.get("plan") or {}).get("parameters") or 0
    return [
        f"inexact: {inexact:,} of {total:,} values do not come back bit for bit when it is put back on its base (in "
        f"{compared}): "
        + (
            "--dtype float32 keeps what is rounded away"
            if stored.itemsize < 4
            else "a zero lost its sign, or a weight became some 2^29 times smaller"
        )
    ]


def plan_rows(prepared: Prepared, folder: Path, notes: Sequence[str]) -> list[tuple[str, str]]:
    """What will be done, as keys and values for people."""
    plan, summary = prepared.plan, prepared.plan.summary()
    needed, free = plan.bytes_written, free_bytes(folder)
    rows = [(prepared.command.split()[-1], method_text(prepared.recipe.identity()))]
    rows += [
        (role, f"{source.label}: {source_text(source)}") for role, source in zip(plan.roles, plan.sources, strict=True)
    ]
    rows.append(("output", f"{folder}: {contents(plan)}"))
    rows.append(("layout", f"{plan.roles[plan.layout]} (names, dtypes, shards, configuration){_tokenizer(prepared)}"))
    matched = f"{summary['combined']} of {summary['tensors']} tensors are combined"
    rows.append(("matching", matched + (f", {summary['copied']} copied" if summary["copied"] else "")))
    rows.append(("policies", _policies(prepared)))
    rows += [("note" if i == 0 else "", _note(note)) for i, note in enumerate((*notes, *plan.notes))]
    rows.append(("reads", f"{size_text(plan.bytes_read)}{_passes(plan)}"))
    rows.append(("disk", f"needs {size_text(needed)}, {size_text(free)} free"))
    return [row for row in rows if row[1]]


def plan_record(prepared: Prepared, folder: Path, notes: Sequence[str]) -> dict[str, Any]:
    """What will be done, for programs."""
    plan = prepared.plan
    return {
        "command": prepared.command,
        "dry_run": True,
        "method": prepared.recipe.identity(),
        "request": dict(prepared.request),
        "inputs": [
            {"role": role, "name": source.label, **source_record(source)}
            for role, source in zip(plan.roles, plan.sources, strict=True)
        ],
        "layout": plan.roles[plan.layout],
        "output_dir": folder,
        "plan": {**plan.summary(), "notes": [*notes, *plan.notes]},
        "ancestry": plan.ancestry,
        "free_bytes": free_bytes(folder),
    }


def outcome_record(prepared: Prepared, built: Built) -> dict[str, Any]:
    """What came of it, for programs: the provenance record without its list of tensors, and the timing."""
    record = {key: value for key, value in built.record.items() if key != "tensors"}
    seconds = built.seconds["total"]
    rate = prepared.plan.bytes_written / seconds / 1e9 if seconds > 0 else None
    return {
        **record,
        "folder": built.folder,
        "seconds": built.seconds,
        "gigabytes_per_second": rate,
        "resumed": built.resumed,
    }


def print_ancestry(found: Sequence[LayerDistance], target: Console) -> None:
    """The distances between a model and its base, from a sample, as a table."""
    from rich.table import Table

    print_line(target, lines("", "  Is it a fine-tune of that base? A sample of every layer:"))
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for name in ("  layer", "relative norm", "cosine"):
        table.add_column(name, justify="left" if name == "  layer" else "right")
    for layer in found:
        table.add_row(printable(f"  {layer.layer}"), number_text(layer.relative), f"{layer.cosine:.6f}")
    target.print(table)


# -------------------------------------------------------------------------------------------------------------- wording


def method_text(identity: Mapping[str, Any]) -> str:
    """A method with its parameters, as `ties(density=0.5, scale=1)`."""
    shown = [f"{k}={_value_text(v)}" for k, v in identity.items() if k != "method" and v is not None]
    return f"{identity.get('method')}({', '.join(shown)})" if shown else str(identity.get("method"))


def contents(plan: Plan) -> str:
    """What the output will hold: tensors, parameters, dtypes, bytes, files."""
    summary = plan.summary()
    files = len(summary["files"])
    dtypes = ", ".join(summary["dtypes"])
    amount = f"{summary['tensors']} tensors, {summary['parameters']:,} parameters"
    return f"{amount} ({dtypes}), {size_text(summary['bytes_written'])} in {files} file{'s' if files != 1 else ''}"


def source_record(source: Source) -> dict[str, Any]:
    """Counts of one input as the engine sees it."""
    entries = source.entries.values()
    return {
        "tensors": len(source.entries),
        "parameters": sum(e.size for e in entries),
        "bytes": sum(e.nbytes for e in entries),
        "dtypes": sorted({e.dtype.name for e in entries}),
        "files": len({e.file for e in entries}),
    }


def source_text(source: Source) -> str:
    """Counts of one input, for people."""
    found = source_record(source)
    return (
        f"{found['tensors']} tensors, {found['parameters']:,} parameters ({', '.join(found['dtypes'])}), "
        f"{size_text(found['bytes'])}"
    )


def free_bytes(folder: Path) -> int:
    """Free space where a folder is to be."""
    place = expanded(folder).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def size_text(count: float) -> str:
    """Bytes in decimal units: 1.48 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.2f} TB"


def seconds_text(seconds: float) -> str:
    """A duration in the unit that suits it."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def number_text(value: float) -> str:
    """A figure of any size in a few characters."""
    return f"{value:.4g}" if math.isfinite(value) else "-" if math.isnan(value) else "inf"


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value_text(v) for v in value)}]"
    return str(value)


def _passes(plan: Plan) -> str:
    return f" in {plan.passes} passes" if plan.passes > 1 else ""


def _note(text: str) -> str:
    return text if text.startswith("WARNING") else f"note: {text}"


def _tokenizer(prepared: Prepared) -> str:
    found = prepared.request.get("tokenizer")
    return f"; tokenizer, chat template and generation settings of {found}" if found else ""


def _policies(prepared: Prepared) -> str:
    found = prepared.request.get("policies")
    return ", ".join(f"{name}: {value}" for name, value in vars(found).items()) if found is not None else ""
