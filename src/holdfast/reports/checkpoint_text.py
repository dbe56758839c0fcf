"""What is made of checkpoints, as text and as records: the plan, what came of it, and what a
checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.support.environment import shown_bytes, shown_seconds

if TYPE_CHECKING:
    from holdfast.checkpoints.build import Built, Prepared
    from holdfast.checkpoints.plan import Plan
    from holdfast.checkpoints.sources import Source
    from holdfast.checkpoints.summary import Inspection

Rows = list[tuple[str, str]]
"""Subjects and what is said of them."""


# ----------------------------------------------------------------------------------------- the plan


def announcement(prepared: Prepared, notes: Sequence[str]) -> list[str]:
    """A few lines before the work: what is made of what, how much, and what is worth knowing."""
    plan = prepared.plan
    inputs = []
    for role, source in zip(plan.roles, plan.sources, strict=True):
        inputs.append(f"{role} {source.label}")
    return [
        f"{prepared.command}: {method_text(prepared.recipe.identity())} of {', '.join(inputs)}",
        f"  {_contents(plan)}; reads {_amount_read(plan)}",
        *(f"  {_note(note)}" for note in (*notes, *plan.notes)),
    ]


def plan_rows(prepared: Prepared, folder: Path, notes: Sequence[str]) -> Rows:
    """What will be done, for people."""
    plan, summary, request = prepared.plan, prepared.plan.summary(), prepared.request
    rows = [(prepared.command.split()[-1], method_text(prepared.recipe.identity()))]
    for role, source in zip(plan.roles, plan.sources, strict=True):
        counts = _counts(source)
        amount = (
            f"{counts['parameters']:,} parameters ({', '.join(counts['dtypes'])}), "
            f"{shown_bytes(counts['bytes'])}"
        )
        rows.append((role, f"{source.label}: {counts['tensors']} tensors, {amount}"))
    layout = f"{plan.roles[plan.layout]} (names, dtypes, shards, configuration)"
    if request.get("tokenizer"):
        layout += f"; tokenizer, chat template and generation settings of {request['tokenizer']}"
    matching = f"{summary['combined']} of {summary['tensors']} tensors are combined"
    if summary["copied"]:
        matching += f", {summary['copied']} copied"
    rows += [("output", f"{folder}: {_contents(plan)}"), ("layout", layout), ("matching", matching)]
    if request.get("policies") is not None:
        policies = [f"{name}: {value}" for name, value in vars(request["policies"]).items()]
        rows.append(("policies", ", ".join(policies)))
    name = "note"
    for note in (*notes, *plan.notes):
        rows.append((name, _note(note)))
        name = ""
    return [*rows, ("reads", _amount_read(plan))]


def plan_record(prepared: Prepared, folder: Path, notes: Sequence[str]) -> dict[str, Any]:
    """What will be done, for programs."""
    plan = prepared.plan
    inputs = []
    for role, source in zip(plan.roles, plan.sources, strict=True):
        inputs.append({"role": role, "name": source.label, **_counts(source)})
    return {
        "command": prepared.command,
        "dry_run": True,
        "method": prepared.recipe.identity(),
        "request": dict(prepared.request),
        "inputs": inputs,
        "layout": plan.roles[plan.layout],
        "output_dir": folder,
        "plan": {**plan.summary(), "notes": [*notes, *plan.notes]},
        "ancestry": plan.ancestry,
    }


# -------------------------------------------------------------------------------------- the outcome


def outcome(prepared: Prepared, built: Built) -> list[str]:
    """What came of it, in one line, and what is worth knowing."""
    bytes_written, rate = prepared.plan.bytes_written, _rate(prepared, built)
    speed = "" if rate is None else f" ({rate:.2f} GB/s)"
    amount = f"{shown_bytes(bytes_written)} in {shown_seconds(built.seconds['total'])}{speed}"
    text = [f"Wrote {built.folder}: {amount}, fingerprint {built.record['fingerprint']}"]
    if built.resumed:
        files = f"{len(built.resumed)} of {len(prepared.plan.files)} files existed already"
        text.append(f"  continued an earlier, interrupted run: {files}")
    return [*text, *(f"  {sentence}" for sentence in exactness(built.record))]


def outcome_record(prepared: Prepared, built: Built) -> dict[str, Any]:
    """What came of it, for programs: the provenance record without its list of tensors, and the
    timing."""
    record = dict(built.record)
    record.pop("tensors", None)
    return {
        **record,
        "folder": built.folder,
        "seconds": built.seconds,
        "gigabytes_per_second": _rate(prepared, built),
        "resumed": built.resumed,
    }


def _rate(prepared: Prepared, built: Built) -> float | None:
    """Gigabytes a second."""
    seconds = built.seconds["total"]
    return prepared.plan.bytes_written / seconds / 1e9 if seconds > 0 else None


def exactness(record: Mapping[str, Any]) -> list[str]:
    """What a residual's record says of whether base + residual is the tuned model; nothing where it
    does not say."""
    from holdfast.checkpoints.dtypes import dtype

    audit = record.get("audit") or {}
    inexact, dtypes = (
        audit.get("inexact"),
        " and ".join(audit.get("compared_in") or ["its own dtypes"]),
    )
    if inexact is None:
        return []
    if not inexact:
        return [
            f"exact: base + residual (scale 1) is the tuned model bit for bit in {dtypes}. This also "
            "holds in every narrower dtype that can represent the tuned model's numbers"
        ]
    reason = (
        "either a zero lost its sign, or a tuned weight is about 2^29 times smaller than the "
        "base's, so that float64 cannot hold the digits of both"
    )
    if dtype((record.get("request") or {}).get("dtype") or "float32").itemsize < 4:
        reason = "--dtype float32 avoids this rounding"
    total = (record.get("plan") or {}).get("parameters") or 0
    return [
        f"inexact: {inexact:,} of {total:,} values of base + residual differ from the tuned model "
        f"(in {dtypes}): {reason}"
    ]


def inspection_rows(inspection: Inspection, files: str) -> Rows:
    """What a checkpoint holds, and what its provenance.json says of where it comes from; `files`
    are their names."""
    layers = f"; {inspection.layers} layers" if inspection.layers else ""
    dtypes = []
    for dtype, parameters in inspection.dtypes.items():
        dtypes.append(f"{dtype}: {parameters:,} parameters")
    rows = [
        ("parameters", f"{inspection.parameters:,} in {inspection.tensors} tensors{layers}"),
        ("dtypes", ", ".join(dtypes)),
        ("files", f"{len(inspection.files)}, {shown_bytes(inspection.bytes)}: {files}"),
    ]
    record = inspection.provenance
    if not record:
        return rows
    rows.append(
        ("made by", f"holdfast {record.get('command')}: {method_text(record.get('method') or {})}")
    )
    for parent in record.get("parents") or []:
        fingerprint = parent.get("fingerprint") or "fingerprint unknown"
        rows.append(("from", f"{parent.get('role')}: {parent.get('name')} ({fingerprint})"))
    versions = [f"{name} {version}" for name, version in (record.get("versions") or {}).items()]
    rows.append(("when", f"{record.get('created')}, {', '.join(versions)}"))
    rows.append(("fingerprint", str(record.get("fingerprint"))))
    origin = record.get("origin")
    if isinstance(origin, dict):  # "dequantised from 4 bits (Q4_1)"
        rows += [
            ("weights", str(origin.get("note") or "")),
            ("licence", str(origin.get("license") or "")),
        ]
    rows += [("exactness", text) for text in exactness(record)]
    return rows


# ------------------------------------------------------------------------------------------ wording


def method_text(identity: Mapping[str, Any]) -> str:
    """A method with its parameters, as `ties(density=0.5, scale=1)`."""
    parameters = []
    for name, value in identity.items():
        if name != "method" and value is not None:
            parameters.append(f"{name}={_value_text(value)}")
    return (
        f"{identity.get('method')}({', '.join(parameters)})"
        if parameters
        else str(identity.get("method"))
    )


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value_text(item) for item in value)}]"
    return str(value)


def _contents(plan: Plan) -> str:
    """What the output will hold: tensors, parameters, dtypes, bytes, files."""
    summary = plan.summary()
    amount = (
        f"{summary['tensors']} tensors, {summary['parameters']:,} parameters "
        f"({', '.join(summary['dtypes'])})"
    )
    files = f"{len(plan.files)} file{'s' if len(plan.files) != 1 else ''}"
    return f"{amount}, {shown_bytes(plan.bytes_written)} in {files}"


def _counts(source: Source) -> dict[str, Any]:
    """Counts of one input as the engine sees it."""
    entries = source.entries.values()
    dtypes = {entry.dtype.name for entry in entries}
    files = {entry.file for entry in entries}
    parameters = sum(entry.size for entry in entries)
    size = sum(entry.nbytes for entry in entries)
    return {
        "tensors": len(entries),
        "parameters": parameters,
        "bytes": size,
        "dtypes": sorted(dtypes),
        "files": len(files),
    }


def _amount_read(plan: Plan) -> str:
    return shown_bytes(plan.bytes_read) + (f" in {plan.passes} passes" if plan.passes > 1 else "")


def _note(text: str) -> str:
    return text if text.startswith("WARNING") else f"note: {text}"
