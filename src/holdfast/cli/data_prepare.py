"""`holdfast data prepare`: files of public data sets and corpora to rows to train on."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.cli.console import print_counts, print_line, stdout_console, stoppable
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, settings_of
from holdfast.config.decode import with_floats
from holdfast.data.prepare.classification import ClassificationOptions
from holdfast.data.prepare.corpus import CorpusOptions
from holdfast.data.prepare.quality import QualityOptions
from holdfast.data.prepare.registry import FORMATS
from holdfast.data.prepare.run import Preparation, Prepared, Rows
from holdfast.data.prepare.stackexchange import StackExchangeOptions

_MONTHS = 24
"""Months that are listed; with more, years are."""

DESCRIPTION = """\
Reads files of a public data set or of a corpus as they are and writes one JSON object a line. Equal rows are written
once; what was skipped is counted with the reason, malformed records are named with their lines. The same question is
never on both sides of --heldout. The output is whole or absent, and OUTPUT.json beside it records how it was made.

formats
"""
EPILOG = """\
examples
  holdfast data prepare metamath --input MetaMathQA-395K.json --output metamath.jsonl --seed 0 --limit 50000
  holdfast data prepare stackexchange --input math.stackexchange.com.7z --site math.stackexchange.com --min_score 5 \\
      --output stack.jsonl                                                          # .7z needs: pip install py7zr
  holdfast data prepare starcoder_instructions --input train.parquet --output code.jsonl --heldout 0.01
  holdfast data prepare ultrachat --input train_sft-*.parquet --output chat.jsonl --heldout 0.01 --seed 0
  holdfast data prepare corpus --input news/ more.parquet CC-NEWS.warc.wet.gz --after 2023-12-01 --before 2024-10-01 \\
      --near_duplicates 0.8 --output new.jsonl --heldout 0.01                       # folders and files, of any kinds
  holdfast data prepare quality --input QuALITY.v1.0.1.htmlstripped.train --output articles.jsonl
  holdfast data prepare quality --input QuALITY.v1.0.1.htmlstripped.train --questions --output questions.jsonl
  holdfast evaluate MODEL --tasks quality --data quality=questions.jsonl
"""


@dataclass(frozen=True, kw_only=True)
class _Files:
    format: Annotated[str, Meta(positional=True, metavar="FORMAT", choices=tuple(FORMATS))]
    """Which data set's files these are."""
    input: Annotated[tuple[Path, ...], Meta(repeatable=True, metavar="FILE")]
    """The files, in the order to read them; of corpus also folders."""
    output: Annotated[Path, Meta(metavar="FILE.jsonl")]
    """The rows; never overwritten by another request."""


@dataclass(frozen=True, kw_only=True)
class PrepareRequest(ClassificationOptions, QualityOptions, StackExchangeOptions, CorpusOptions, Rows, _Files):
    """`holdfast data prepare`: what is common, and the options of all formats."""

    def preparation(self) -> Preparation:
        """The request of the library: of the formats' options those that were given."""
        owners = [one.own for one in FORMATS.values() if one.own is not None]
        given = {s.name: getattr(self, s.name) for owner in owners for s in settings_of(owner)}
        options = {name: value for name, value in given.items() if value is not None and value is not False}
        options |= {name: list(value) for name, value in options.items() if isinstance(value, tuple)}
        common = {s.name: getattr(self, s.name) for s in settings_of(Rows)}
        return Preparation(format=self.format, inputs=self.input, output=self.output, options=options, **common)

    def problems(self) -> list[str]:
        """What is wrong with the request as a whole, and with its files."""
        return self.preparation().problems()


COMMAND = Command(
    name="holdfast data prepare",
    request=PrepareRequest,
    description=DESCRIPTION
    + "\n".join(f"  {name:<24}{one.about}\n{'':<26}-> {one.rows}" for name, one in FORMATS.items()),
    epilog=EPILOG,
    usage="FORMAT --input FILE... --output FILE.jsonl [options]",
)


def run(argv: list[str]) -> int:
    """`holdfast data prepare`."""
    from holdfast.data.prepare.run import prepare
    from holdfast.support.environment import terminated_is_interrupted

    request = with_floats(COMMAND.read(argv)).preparation()
    with (
        terminated_is_interrupted(),
        stoppable("Stopped. Nothing was left half written; the same command begins anew."),
    ):
        found = prepare(request)
    show_prepared(request, found)
    return 0


def show_prepared(asked: Preparation, found: Prepared) -> None:
    """Prints what was written, and every count."""
    counts, out = found.record["counts"], stdout_console()
    say = functools.partial(print_line, out)
    if found.done_before:
        say(f"Nothing to do: {asked.output} is there, from the same input and options.")
    rows = [(counts["records"], "records read"), (counts["train"], f"rows in {asked.output}")]
    if asked.heldout_path is not None:
        rows.append((counts["heldout"], f"rows in {asked.heldout_path}"))
    rows += [(count, f"skipped: {reason}") for reason, count in counts["skipped"].items()]
    rows += [(count, f"left out of its row: {reason}") for reason, count in counts["shortened"].items()]
    rows += [(counts["malformed"], "malformed and left out")] if counts["malformed"] else []
    print_counts(out, rows + (_documents(counts) if "documents" in counts else []))
    for place in found.record["malformed_places"]:
        say(f"  malformed: {place}")
    for place in found.record.get("malformed_date_places", []):
        say(f"  no usable date: {place}")


def _documents(counts: Mapping[str, Any]) -> list[tuple[int, str]]:
    """What is counted of a corpus beside its rows: files, characters, dates, and documents a month (a year where there
    are many)."""
    from holdfast.data.prepare.inputs import counts_in_words

    kinds, others = counts["kinds"], counts["other_files"]
    dated = counts["documents"] - counts["undated"] if counts["first_date"] else 0
    found = [
        (sum(kinds.values()), f"files read ({', '.join(f'{n:,} {kind}' for kind, n in kinds.items())})"),
        (sum(others.values()), f"other files in the folders ({counts_in_words(others)})"),
        (counts["characters"], "characters"),
        (counts["malformed_dates"], "dates that cannot be used; their documents count as undated"),
        (counts["undated"], "rows without a date"),
        (dated, f"rows dated {counts['first_date']} to {counts['last_date']}"),
    ]
    periods: Counter[str] = Counter()
    for month, count in counts["months"].items():
        periods[month if len(counts["months"]) <= _MONTHS else month[:4]] += count
    return [row for row in found if row[0]] + [(count, f"  {period}") for period, count in periods.items()]
