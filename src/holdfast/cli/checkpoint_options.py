"""What the checkpoint commands share: common options, and how a plan and its outcome are shown."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from holdfast.cli.console import print_json, print_line, stderr_console, stdout_console, write
from holdfast.config.declare import Meta
from holdfast.config.values import Refused
from holdfast.errors import ConfigError, ModelError, Problem, StorageError
from holdfast.printable import lines, printable
from holdfast.support.environment import shown_bytes
from holdfast.support.paths import expanded

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.checkpoints.build import Prepared
    from holdfast.records.run import LayerDistance


# ----------------------------------------------------------------------------------- common options


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
        raise Refused(*(Problem((), problem.text) for problem in error.problems)) from None
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
    """Folder to write. After an interruption it is either complete or absent."""
    overwrite: bool = False
    """Replace an existing folder that holdfast wrote."""
    dry_run: bool = False
    """Check the request and the checkpoints' headers, and show the plan. Write nothing."""
    json: bool = False
    """Print the outcome, or the plan of --dry_run, as JSON."""
    workers: Workers = None
    """Number of threads (default: all cores)."""
    no_sync: bool = False
    """Do not wait until everything is on disk (fsync): faster, but a power cut may lose data."""


def missing_folders(request: Any, *names: str) -> list[str]:
    """Problems of settings that name a folder which is not there, with the nearest names. Asks no
    network: what could be a model of the hub is left for later.

    Args:
        request: a settings value.
        names: its settings, each a name, several, or None.
    """
    from holdfast.checkpoints.locate import base_and_adapter, local_folder

    problems: list[str] = []
    for key in names:
        value = getattr(request, key)
        for model in value if isinstance(value, tuple) else (value,):
            for name in () if model is None else base_and_adapter(model) or (model,):
                path = expanded(name)
                names_a_path = (
                    path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1
                )
                if path.is_dir() or not names_a_path:
                    continue
                try:
                    local_folder(name)
                except ModelError as error:
                    problems.append(Problem(key, f"{error}"))
    return problems


# ------------------------------------------------------------------------------- the plan, the work


def carry_out(prepared: Prepared, output: Output, notes: Sequence[str] = ()) -> int:
    """Shows the plan; with `--dry_run` that is all, else does the work and says what came of it.

    Raises:
        HoldfastError: see `Prepared.write`.
    """
    from holdfast.checkpoints.build import check_output
    from holdfast.reports.checkpoint_text import announcement, outcome, outcome_record

    folder = output.output_dir
    check_output(prepared.plan, folder, overwrite=output.overwrite)
    if output.dry_run:
        _dry_run(prepared, folder, notes, as_json=output.json)
        return 0
    write(*announcement(prepared, notes), to_stderr=True)
    built = prepared.write(
        folder, overwrite=output.overwrite, sync=not output.no_sync, workers=output.workers
    )
    write(*outcome(prepared, built), to_stderr=output.json)
    if output.json:
        print_json(outcome_record(prepared, built))
    return 0


def _dry_run(prepared: Prepared, folder: Path, notes: Sequence[str], *, as_json: bool) -> None:
    """Shows the plan.

    Raises:
        StorageError: the disk has too little room for it.
    """
    from holdfast.reports.checkpoint_text import plan_record, plan_rows

    needed, free = prepared.plan.bytes_written, _free_bytes(folder)
    console = stderr_console() if as_json else stdout_console()
    print_line(console, lines("Dry run: the request is sound; nothing was written.", ""))
    disk = f"needs {shown_bytes(needed)}, {shown_bytes(free)} free"
    for key, value in [*plan_rows(prepared, folder, notes), ("disk", disk)]:
        print_line(console, f"  {key:<12}{value}")
    if prepared.plan.ancestry:
        _print_ancestry(prepared.plan.ancestry, console)
    if as_json:
        print_json({**plan_record(prepared, folder, notes), "free_bytes": free})
    if free < needed:
        raise StorageError(
            f"{folder} needs {shown_bytes(needed)} and the disk has {shown_bytes(free)} left. Free "
            "some space or choose another folder."
        )


def _print_ancestry(layers: Sequence[LayerDistance], console: Console) -> None:
    """The distances between a model and its base, from a sample, as a table."""
    from rich.table import Table

    print_line(console, lines("", "  Check of the base, on a sample of every layer:"))
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("  layer")
    table.add_column("relative norm", justify="right")
    table.add_column("cosine", justify="right")
    for layer in layers:
        relative = "-" if math.isnan(layer.relative) else f"{layer.relative:.4g}"
        table.add_row(printable(f"  {layer.layer}"), relative, f"{layer.cosine:.6f}")
    console.print(table)


def _free_bytes(folder: Path) -> int:
    """Free space where a folder is to be."""
    existing = expanded(folder).absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free
