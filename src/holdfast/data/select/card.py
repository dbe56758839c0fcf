"""The data card of a selection: what is in the folder, and how it was chosen. All else is in
`selection.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.printable import lines

_HOW = """\
Passages of at most {max_length} tokens, ranked by their perplexity under `{model}`.
`restoring.jsonl` has the passages of lowest perplexity, in rising order, {tokens:,} tokens at most.
`probing.jsonl`, if present, is a random sample that shares no {disjoint} with `restoring.jsonl`.
Columns: `text`, `nats_per_token` (mean over predicted tokens), `tokens`, `source`."""
_OVERLAPPING = """\
{overlapping:,} passages share 13 consecutive words with one of {count:,} questions of {names}
({short:,} questions were too short for this search)."""
_REST = """\
`selection.json` has the model, every input with its hash, the options, and what was left out.
The texts belong to their authors. Their licences are not recorded here."""


def card(record: Mapping[str, Any]) -> str:
    """Markdown, with the front matter by which `datasets` finds the sets.

    Args:
        record: what `selection.json` holds.
    """
    counts, options = record["counts"], record["options"]
    rows = ["---", "configs:"]
    for output in record["outputs"]:
        name = output["name"]
        rows += [f"- config_name: {name.removesuffix('.jsonl')}", f"  data_files: {name}"]
    how = _HOW.format(**options, model=record["model"].get("name", "a model"))
    rows += ["---", "", "# Passages by perplexity", "", how, ""]
    rows += ["| | passages | tokens | documents | nats a token |", "|---|---|---|---|---|"]
    for name in ("all", "restoring", "probing"):
        row = counts[name]
        if row["passages"]:
            numbers = (
                f"{row['passages']:,} | {row['tokens']:,} | {row['documents']:,} | "
                f"{row['nats_per_token']:.3f}"
            )
            rows.append(f"| {name} | {numbers} |")
    questions = record.get("questions")
    if questions:
        names = ", ".join(questions["files"])
        rows += [
            "",
            _OVERLAPPING.format(**questions, names=names, overlapping=counts["overlapping"]),
        ]
    return lines(*rows, "", _REST) + "\n"
