"""What came of a corpus that was prepared, or that passages were selected from: counts and what
they count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.data.prepare.run import Preparation, Prepared
    from holdfast.data.select.run import Selected

Rows = list[tuple[int, str]]
"""Numbers and what they count."""


def prepared_rows(request: Preparation, prepared: Prepared) -> Rows:
    """Of a prepared corpus: its rows, what was left out, files, characters and dates."""
    from holdfast.data.prepare.inputs import counts_in_words

    counts = prepared.record["counts"]
    rows = [(counts["records"], "records read"), (counts["train"], f"rows in {request.output}")]
    if request.heldout_path is not None:
        rows.append((counts["heldout"], f"rows in {request.heldout_path}"))
    rows += _left_out(counts, "skipped", "records")
    kinds, others = counts["kinds"], counts["other_files"]
    by_kind = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    dated = counts["documents"] - counts["undated"] if counts["first_date"] else 0
    facts = [
        (sum(kinds.values()), f"files read ({by_kind})"),
        (sum(others.values()), f"other files in the folders ({counts_in_words(others)})"),
        (counts["characters"], "characters"),
        (counts["malformed_dates"], "unusable dates; their documents count as undated"),
        (counts["undated"], "rows without a date"),
        (dated, f"rows dated {counts['first_date']} to {counts['last_date']}"),
    ]
    rows += [fact for fact in facts if fact[0]]
    return rows


def selected_rows(selected: Selected) -> Rows:
    """Of passages selected by perplexity: documents, what was left out, passages and their
    tokens."""
    counts = selected.record["counts"]
    rows = [(counts["records"], "documents read"), *_left_out(counts, "left out", "documents")]
    rows.append((counts["all"]["passages"], f"passages ranked, {_amount(counts['all'])}"))
    for path, name in ((selected.restoring, "restoring"), (selected.probing, "probing")):
        if path is not None:
            rows.append((counts[name]["passages"], f"passages in {path}, {_amount(counts[name])}"))
    return rows


def overlap_sentence(record: Mapping[str, Any]) -> str:
    """How many passages share words with the questions that were to be looked for."""
    counts, questions = record["counts"], record["questions"]
    text = (
        f"{counts['overlapping']:,} passages share 13 consecutive words with one of "
        f"{questions['count']:,} questions"
    )
    if record["options"]["overlap"] == "keep" and counts["overlapping"]:
        in_sets = counts["restoring"]["overlapping"] + counts["probing"]["overlapping"]
        text += f"; {in_sets:,} of these passages are in the output. --overlap drop leaves them out"
    too_short = (
        f" {questions['short']:,} questions are too short for this search."
        if questions["short"]
        else ""
    )
    return f"{text}.{too_short}"


def _left_out(counts: Mapping[str, Any], skipped: str, records: str) -> Rows:
    """What of a corpus was not taken: how many, and why."""
    rows = [(count, f"{skipped}: {reason}") for reason, count in counts["skipped"].items()]
    for name, count in counts.get("not_read", {}).items():
        rows.append((count, f"{records} with {name}, which is not read"))
    if counts["malformed"]:
        rows.append((counts["malformed"], "malformed and left out"))
    return rows


def _amount(counts: Mapping[str, Any]) -> str:
    return (
        f"{counts['tokens']:,} tokens, perplexity "
        f"{math.exp(min(counts['nats_per_token'], 700)):,.1f}"
    )
