"""What the record of every study says, beside its own figures: one JSON file in the study's
folder."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from holdfast.records.evaluation import SCHEMA
from holdfast.support.files import read_as, write_json


class RecordFile:
    """A dataclass that is one JSON file in a folder."""

    file: ClassVar[str]
    """The file's name."""

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Self:
        """The record in a folder.

        Raises:
            DataError: it is not there, or cannot be read.
        """
        return read_as(Path(folder) / cls.file, cls)

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Writes the record into a folder, atomically; returns its file."""
        return write_json(Path(folder) / self.file, self)


@dataclass(frozen=True, kw_only=True, repr=False)
class BaseRecord(RecordFile):
    """A study at one moment; a study's record is a subclass with its jobs and figures."""

    name: str
    status: str
    """"running", "interrupted", "failed" (jobs remain that failed) or "finished"."""
    created: str
    """ISO 8601, UTC."""
    finished: str | None = None
    config: dict[str, Any]
    """The settings as resolved."""
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA
