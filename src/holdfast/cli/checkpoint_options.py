"""What the checkpoint commands share: common options, and how a plan and its outcome are shown."""

from __future__ import annotations

import contextlib
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.cli.request import Request, RequestParser
from holdfast.errors import ConfigError, HoldfastError, Interrupted, ModelError, StorageError

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.checkpoints.build import Built
    from holdfast.checkpoints.merge import Prepared
    from holdfast.checkpoints.plan import Plan, Policies
    from holdfast.checkpoints.sources import Source
    from holdfast.records.run import LayerDistance


def missing_folders(names: Iterable[tuple[str, str]]) -> list[str]:
    """Sentences on folders that are named like folders and are not there, with the nearest names. Asks no network.

    Args:
        names: `(option, folder)` pairs. What could be a model of the hub is left for later.
    """
    from holdfast.checkpoints.locate import local_folder

    found = []
    for option, name in names:
        path = Path(name).expanduser()
        if not path.is_dir() and (path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1):
            try:
                local_folder(name)
            except ModelError as error:
                found.append(f"{option}: {error}")
    return found


def all_here(names: Iterable[str]) -> bool:
    """Whether all are local folders, so that opening them downloads nothing."""
    return all(name and Path(name).expanduser().is_dir() for name in names)


# ------------------------------------------------------------------------------------------------------- common options

POLICY_HELP = """\
Checkpoints that differ are refused with a list of all differences, unless an option says what to do."""


def add_policies(parser: RequestParser) -> None:
    """Options for checkpoints that differ."""
    import dataclasses

    from holdfast.checkpoints.plan import CHOICES, Policies

    group = parser.add_argument_group("where the checkpoints differ", POLICY_HELP)
    for field in dataclasses.fields(Policies):
        parser.one(field.name, "|".join(CHOICES[field.name]), str(field.metadata["help"]), group=group)


def policies_of(request: Request) -> Policies:
    """The policies of a request; mistakes are added to its problems."""
    from holdfast.checkpoints.plan import CHOICES, Policies

    return Policies(**{name: request.choice(name, known, known[0]) for name, known in CHOICES.items()})


def add_output(parser: RequestParser) -> None:
    """Options on what is written, and how."""
    group = parser.add_argument_group("output")
    parser.one(
        "output_dir", "FOLDER", "the folder to write; it is complete or absent, whatever happens meanwhile", group=group
    )
    parser.switch("overwrite", "replace the folder if it is there and holdfast wrote it", group=group)
    parser.switch("dry_run", "check everything, show the plan, write nothing", group=group)
    parser.switch("json", "the plan (with --dry_run) or the outcome as JSON on stdout", group=group)
    parser.one("workers", "N", "threads (all cores)", group=group)
    parser.switch("no_sync", "do not wait until the disk has it all: quicker, but a power cut may lose it", group=group)


def dtype_of(request: Request, default: str | None = None) -> str | None:
    """The option `dtype`, checked; mistakes are added to the request's problems."""
    from holdfast.checkpoints.dtypes import dtype as dtype_named

    value = request.text("dtype", default)
    if value is not None:
        try:
            dtype_named(value)
        except ConfigError as error:
            request.problems += [f"{request.named('dtype')}: {p.removeprefix('dtype: ')}" for p in error.problems]
            return default
    return value


def plan_request(request: Request, prepare: Callable[[], Prepared], folders: Sequence[tuple[str, str]]) -> Prepared:
    """Plans a request, or raises all that is wrong with it together.

    Args:
        request: with the problems found so far; what had mistakes has its default meanwhile.
        prepare: plans it.
        folders: `(option, folder)` of all inputs.

    Raises:
        HoldfastError: see `prepare_merge`; one `ConfigError` with everything where the options have mistakes.
    """
    if not request.unknown:
        request.problems += missing_folders(folders)
    if request.problems:
        if all_here(name for _, name in folders):
            try:
                prepare()
            except ConfigError as error:
                request.problems += error.problems
            except HoldfastError:
                pass  # what is wrong with the checkpoints may change when the options do
        request.check()
    return prepare()


# --------------------------------------------------------------------------------------------------- the plan, the work


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Says what Ctrl-C leaves behind, outside of the writing itself, which says so on its own.

    Raises:
        Interrupted: Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("Stopped. Nothing was left half written.") from None


def carry_out(prepared: Prepared, request: Request) -> int:
    """Shows the plan; with `--dry_run` that is all, else does the work and says what came of it.

    Raises:
        HoldfastError: see `Prepared.write`.
    """
    as_json, folder = request.on("json"), Path(request.text("output_dir", ""))
    overwrite, workers = request.on("overwrite"), request.whole("workers", None, least=1)
    from holdfast.checkpoints.build import check_output

    check_output(prepared.plan, folder, overwrite=overwrite)
    if request.on("dry_run"):
        return _dry_run(prepared, folder, request.notes, as_json=as_json)
    for line in announcement(prepared, folder, request.notes):
        print(line, file=sys.stderr)
    sys.stderr.flush()
    built = prepared.write(folder, overwrite=overwrite, sync=not request.on("no_sync"), workers=workers)
    for line in outcome(prepared, built):
        print(line, file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print_json(outcome_record(prepared, built))
    return 0


def _dry_run(prepared: Prepared, folder: Path, notes: Sequence[str], *, as_json: bool) -> int:
    target = stderr_console() if as_json else stdout_console()
    estimate = prepared.estimate()
    target.print("Dry run: the request is sound; nothing was written.\n")
    for key, value in plan_rows(prepared, folder, notes, estimate):
        target.print(f"  {key:<12}{value}", soft_wrap=True, markup=False, highlight=False)
    if prepared.plan.ancestry:
        print_ancestry(prepared.plan.ancestry, target)
    if as_json:
        print_json(plan_record(prepared, folder, notes, estimate))
    needed, free = prepared.plan.bytes_written, free_bytes(folder)
    if free < needed:
        raise StorageError(
            f"{folder} needs {size_text(needed)} and the disk has {size_text(free)} left. Free some space or choose "
            f"another folder."
        )
    return 0


def announcement(prepared: Prepared, folder: Path, notes: Sequence[str]) -> list[str]:
    """A few lines before the work: what is made of what, how much, how long, and what is worth knowing."""
    plan = prepared.plan
    inputs = ", ".join(f"{role} {source.label}" for role, source in zip(plan.roles, plan.sources, strict=True))
    lines = [
        f"{prepared.command}: {method_text(prepared.recipe.identity())} of {inputs}",
        f"  {contents(plan)}; reads {size_text(plan.bytes_read)}{_passes(plan)}; about "
        f"{seconds_text(prepared.estimate())}",
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
    inexact = (built.record.get("audit") or {}).get("inexact")
    if inexact == 0:
        lines.append("  exact: put back on its base with scale 1, it gives the tuned model bit for bit")
    elif inexact:
        total = prepared.plan.summary()["parameters"]
        lines.append(
            f"  {inexact:,} of {total:,} values do not come back bit for bit when it is put back on its base; --dtype "
            f"float64 is exact"
        )
    return lines


def plan_rows(prepared: Prepared, folder: Path, notes: Sequence[str], estimate: float) -> list[tuple[str, str]]:
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
    rows.append(
        ("disk", f"needs {size_text(needed)}, {size_text(free)} free" + ("" if needed <= free else ": NOT ENOUGH"))
    )
    rows.append(("time", f"about {seconds_text(estimate)}"))
    return [row for row in rows if row[1]]


def plan_record(prepared: Prepared, folder: Path, notes: Sequence[str], estimate: float) -> dict[str, Any]:
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
        "estimated_seconds": estimate,
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

    target.print("\n  Is it a fine-tune of that base? A sample of every layer:")
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for name in ("  layer", "relative norm", "cosine"):
        table.add_column(name, justify="left" if name == "  layer" else "right")
    for layer in found:
        table.add_row(f"  {layer.layer}", number_text(layer.relative), f"{layer.cosine:.6f}")
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
    place = folder.expanduser().absolute()
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


def stdout_console() -> Console:
    """Where results go."""
    from holdfast.cli.options import console

    found: Console = console()
    return found


def stderr_console() -> Console:
    """Where everything else goes when results are JSON."""
    from rich.console import Console

    return Console(stderr=True) if sys.stderr.isatty() else Console(stderr=True, width=120)


def print_json(value: Any) -> None:
    """A value as JSON on stdout."""
    import json

    from holdfast.support.files import to_jsonable

    print(json.dumps(to_jsonable(value), indent=2, ensure_ascii=False, allow_nan=False))


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
