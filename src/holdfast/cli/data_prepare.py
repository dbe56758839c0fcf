"""`holdfast data prepare`: files and folders of text to one corpus, by date, a part held out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from holdfast.cli.console import print_counts, print_line, stdout_console, stoppable
from holdfast.config.command_line import Command
from holdfast.config.declare import Meta, part_of
from holdfast.config.decode import with_floats
from holdfast.data.prepare.corpus import CorpusOptions
from holdfast.data.prepare.run import Preparation, Rows
from holdfast.errors import Problem

DESCRIPTION = """\
Reads files and folders of text (.txt, .md, .jsonl, .json, .parquet) and writes one document per line, with text,
title, date and source. Equal documents are written once. Skipped documents are counted by reason; malformed records
are listed with their lines. With --heldout, no document is both held out and trained on. After an interruption, the
output is either complete or absent. OUTPUT.json beside it records how it was made.
"""
EPILOG = """\
examples
  # folders and files of any of these types
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
    """File to write the rows to. A file that was made with other settings is never overwritten."""


@dataclass(frozen=True, kw_only=True)
class PrepareRequest(CorpusOptions, Rows, _Files):
    """`holdfast data prepare`: which files, which documents of them, and which rows are written."""

    def preparation(self) -> Preparation:
        """The request of the library: of the options of the corpus those that were given."""
        options = {}
        for name, value in vars(part_of(self, CorpusOptions)).items():
            if value is not None and value is not False:
                options[name] = value
        return Preparation(
            inputs=self.input, output=self.output, options=options, **vars(part_of(self, Rows))
        )

    def problems(self) -> list[Problem]:
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
        stoppable(
            "Stopped. No partial output was left. The same command starts from the beginning."
        ),
    ):
        prepared = prepare(request)
    if prepared.done_before:
        print_line(
            stdout_console(),
            f"Nothing to do: {request.output} exists, made from the same input and options.",
        )

    from holdfast.reports.corpus_text import prepared_rows

    print_corpus(prepared.record, prepared_rows(request, prepared))
    return 0


def print_corpus(record: Mapping[str, Any], rows: list[tuple[int, str]]) -> None:
    """Prints counts of a corpus, and the lines that could not be read."""
    console = stdout_console()
    print_counts(console, rows)
    for line in record["malformed_places"]:
        print_line(console, f"  malformed: {line}")
    for line in record.get("malformed_date_places", []):
        print_line(console, f"  no usable date: {line}")
