"""Which tools' logs are read: one line a reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import DataError, first_line
from holdfast.evaluation.foreign import inspect_ai, lighteval, lm_eval, table
from holdfast.evaluation.foreign.log import ForeignLog


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How the logs of one tool are read."""

    tool: str
    expects: str
    """What it reads, for messages."""
    recognises: Callable[[Path], bool]
    """Whether a file or a folder is a log of it; reads no samples."""
    read: Callable[[Path], list[ForeignLog]]

    def logs(self, path: Path) -> list[ForeignLog]:
        """What was logged there, a log a model.

        Raises:
            HoldfastError: it cannot be read; says what is wrong with it.
        """
        try:
            return self.read(path)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{path}: expected a log of {self.tool}: {self.expects}; got another format "
                f"({type(error).__name__}: {first_line(error)}). The log is damaged, or of an "
                "unknown version. Report it with the tool's version."
            ) from error


READERS = (
    Reader(  # first: it looks at the beginning of a file alone
        tool="Inspect",
        expects=".eval or .json logs, or a folder of them (the package inspect_ai reads them)",
        recognises=inspect_ai.recognises,
        read=inspect_ai.read,
    ),
    Reader(
        tool="lm-evaluation-harness",
        expects="results_*.json beside samples_*.jsonl (lm_eval --output_path OUT --log_samples)",
        recognises=lm_eval.recognises,
        read=lm_eval.read,
    ),
    Reader(
        tool="lighteval",
        expects="details_*.parquet beside results_*.json (--output-dir OUT --save-details)",
        recognises=lighteval.recognises,
        read=lighteval.read,
    ),
    Reader(
        tool="a table",
        expects=".csv, .tsv or .jsonl with the columns id and score",
        recognises=table.recognises,
        read=table.read,
    ),
)


def reader_of(path: Path) -> Reader | None:
    """Who reads a file or a folder; None where nobody does."""
    for reader in READERS:
        if reader.recognises(path):
            return reader
    return None
