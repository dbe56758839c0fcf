"""`holdfast data prepare`: files and folders of text to one corpus, by date, a part held out."""

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
from holdfast.data.prepare.corpus import CorpusOptions
from holdfast.data.prepare.run import Preparation, Prepared, Rows

_MONTHS = 24
"""Months that are listed; with more, years are."""

DESCRIPTION = """\
Reads files and folders of text (.txt, .md, .jsonl, .json, .parquet) and writes one document a line, as text, title,
date and source. Equal documents are written once; what was skipped is counted with the reason, malformed records are
named with their lines. No document is on both sides of --heldout. The output is whole or absent, and OUTPUT.json
beside it records how it was made.
"""
EPILOG = """\
examples
  # folders and files, of any kinds
  holdfast data prepare --input news/ more.parquet --after 2023-12-01 \\
      --before 2024-10-01 --output new.jsonl --heldout 0.01 --seed 0
  holdfast data prepare --input dump.jsonl --text_column story \\
      --minimum_characters 200 --output stories.jsonl
"""


@dataclass(frozen=True, kw_only=True)
class _Files:
    input: Annotated[tuple[Path, ...], Meta(repeatable=True, metavar="FILE")]
    """Files and folders, in the order to read them."""
    output: Annotated[Path, Meta(metavar="FILE.jsonl")]
    """The rows; never overwritten by another request."""


@dataclass(frozen=True, kw_only=True)
class PrepareRequest(CorpusOptions, Rows, _Files):
    """`holdfast data prepare`: which files, which documents of them, and which rows are written."""

    def preparation(self) -> Preparation:
        """The request of the library: of the options of the corpus those that were given."""
        options = {setting.name: getattr(self, setting.name) for setting in settings_of(CorpusOptions)}
        options = {name: value for name, value in options.items() if value is not None and value is not False}
        rows = {setting.name: getattr(self, setting.name) for setting in settings_of(Rows)}
        return Preparation(inputs=self.input, output=self.output, options=options, **rows)

    def problems(self) -> list[str]:
        """What is wrong with the request as a whole, and with its files."""
        return self.preparation().problems()


COMMAND = Command(
    name="holdfast data prepare",
    request=PrepareRequest,
    description=DESCRIPTION,
    epilog=EPILOG,
    usage="--input FILE... --output FILE.jsonl [options]",
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
    rows += [(count, f"records with {name}, which is not read") for name, count in counts.get("not_read", {}).items()]
    rows += [(counts["malformed"], "malformed and left out")] if counts["malformed"] else []
    print_counts(out, rows + _documents(counts))
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
