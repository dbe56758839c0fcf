"""What every study is asked for, whatever it studies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from holdfast.config.declare import Meta
from holdfast.config.values import Mistake

NAME = re.compile(r"\w[\w.-]*")
"""Of a study, a task or a track: also a folder's, so no path, and neither `.` nor `..`."""
ALLOWED = "letters, digits, '.', '_' and '-'"


@dataclass(frozen=True, kw_only=True)
class StudyKeys:
    """Keys that every study has; its own settings are a subclass with a default name."""

    name: str = "study"
    """Of the study in its storage and on its page; default: the file's name."""
    workers: Annotated[int | None, Meta(ge=0, decides=False, last=True, section="study")] = None
    """Jobs at a time on this machine; 0: only those that the command's 'worker' starts."""
    output_dir: Annotated[Path | None, Meta(metavar="FOLDER", last=True)] = None
    """Folder of the study; default: runs/NAME."""
    storage: Annotated[str | None, Meta(metavar="URL", decides=False, last=True, section="study")] = None
    """A database that several machines share; default: a file in the folder."""

    def problems(self) -> list[Mistake | str]:
        """A name that no folder can have."""
        if NAME.fullmatch(self.name):
            return []
        return [Mistake(path=("name",), text=f"expected {ALLOWED}, got {self.name!r}.")]

    @property
    def folder(self) -> Path:
        """Where the study is."""
        return self.output_dir or Path(f"runs/{self.name}")

    @property
    def database(self) -> str:
        """Its storage's address."""
        return self.storage or f"sqlite:///{self.folder}/study.db"
