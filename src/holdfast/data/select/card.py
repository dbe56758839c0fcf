"""The data card of a selection: what is in the folder, how it was chosen, and what was left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from holdfast.printable import lines


def card(record: Mapping[str, Any]) -> str:
    """Markdown, with the front matter by which `datasets` finds the sets.

    Args:
        record: what `selection.json` holds.
    """
    counts, options, model = record["counts"], record["options"], record["model"]
    sets = {name: counts[name] for name in ("all", "restoring", "probing") if counts[name]["passages"]}
    names = [one["name"] for one in record["outputs"]]
    front = ["---", "configs:"]
    for name in names:
        front += [f"- config_name: {name.removesuffix('.jsonl')}", f"  data_files: {name}"]
    rows = [
        *front,
        "---",
        "",
        "# Passages by perplexity",
        "",
        f"Passages of at most {options['max_length']} tokens, ranked by the perplexity that "
        f"`{model.get('name', 'a model')}` gives them. `restoring.jsonl` has those of lowest perplexity up to "
        f"{options['tokens']:,} tokens, low to high"
        + (
            f"; `probing.jsonl` is a random sample that shares no {options['disjoint']} with it."
            if counts["probing"]["passages"]
            else "."
        ),
        "",
        "| | passages | tokens | documents | nats a token | perplexity | median | 95 % below |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, own in sets.items():
        mean, median, high = own["nats_per_token"], own["quantiles"]["0.5"], own["quantiles"]["0.95"]
        rows.append(
            f"| {name} | {own['passages']:,} | {own['tokens']:,} | {own['documents']:,} | {mean:.3f} | "
            f"{_perplexity(mean)} | {_perplexity(median)} | {_perplexity(high)} |"
        )
    rows += ["", "Columns: `text`, `nats_per_token` (mean over predicted tokens), `tokens`, `source`.", ""]
    rows += ["## What was read", "", "| input | bytes | SHA-256 |", "|---|---|---|"]
    rows += [f"| {one['name']} | {one['bytes']:,} | {one['sha256']} |" for one in record["inputs"]]
    rows += ["", f"- {counts['records']:,} documents, of which {counts['malformed']:,} malformed and left out"]
    rows += [f"- {number:,} left out: {reason}" for reason, number in counts["skipped"].items()]
    rows += [f"- {number:,} with {name}, which is not read" for name, number in counts.get("not_read", {}).items()]
    if asked := record.get("questions"):
        rows.append(
            f"- {counts['overlapping']:,} passages share 13 words in a row with one of {asked['count']:,} questions of "
            f"{', '.join(asked['files'])} ({'left out' if options['overlap'] == 'drop' else 'kept'}; "
            f"{asked['short']:,} questions were too short to be looked for)"
        )
    rows += ["", "## How", "", f"- model: {', '.join(f'{k} {v}' for k, v in model.items())}"]
    rows += [f"- {name}: {value}" for name, value in options.items() if value is not None]
    rows += ["", "The texts are their authors'; this card says nothing about their licences."]
    return lines(*rows) + "\n"


def _perplexity(nats: float) -> str:
    return f"{math.exp(nats):,.1f}" if nats < 100 else f"e^{nats:.0f}"
