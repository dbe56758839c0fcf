"""What every study is asked for, whatever it studies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from holdfast.config.declare import MAX_SEED, Meta
from holdfast.errors import Problem
from holdfast.studies.engine import toy as toy_settings

NAME = re.compile(r"\w[\w.-]*")
"""Of a study, a task or a track: also a folder's, so no path, and neither `.` nor `..`."""
ALLOWED = "letters, digits, '.', '_' and '-'"


@dataclass(frozen=True, kw_only=True)
class BaseStudySettings:
    """Keys that every study has; its own settings are a subclass with a default name."""

    toy_start: ClassVar[str] = "model"
    """Which of the kinds of toy settings (`toy.known_settings`) this study can use; empty if it has
    its own."""

    name: str = "study"
    """Name of the study in its storage and on its page; default: the file's name."""
    workers: Annotated[int | None, Meta(ge=0, decides=False, last=True, section="study")] = None
    """Number of jobs at the same time on this machine; 0: only the workers that you start with
    'worker' run jobs."""
    output_dir: Annotated[Path | None, Meta(metavar="FOLDER", last=True)] = None
    """Folder of the study; default: runs/NAME."""
    storage: Annotated[
        str | None, Meta(metavar="URL", decides=False, last=True, section="study")
    ] = None
    """Database that several machines share; default: a file in the study's folder."""

    def problems(self) -> list[Problem | str]:
        """A name that no folder can have, a toy setting that there is not, and seeds that are the
        same."""
        problems: list[Problem | str] = []
        if not NAME.fullmatch(self.name):
            problems.append(Problem("name", f"expected {ALLOWED}, got {self.name!r}."))
        toy = getattr(self, "toy", None) if self.toy_start else None
        toy_problem = toy_settings.problem_with(toy, self.toy_start)
        if toy_problem is not None:
            problems.append(Problem("toy", toy_problem))
        if isinstance(self, SeedSettings) and len(set(self.seeds)) < len(self.seeds):
            text = f"expected different whole numbers such as [0, 1, 2], got {list(self.seeds)}."
            problems.append(Problem("seeds", text))
        return problems

    @property
    def folder(self) -> Path:
        """Where the study is."""
        return self.output_dir or Path(f"runs/{self.name}")

    @property
    def database(self) -> str:
        """Its storage's address."""
        return self.storage or f"sqlite:///{self.folder}/study.db"


@dataclass(frozen=True, kw_only=True)
class SeedSettings:
    """The key of a study that repeats its trainings."""

    seeds: Annotated[tuple[int, ...], Meta(ge=0, le=MAX_SEED, least=1, last=True)] = (0,)
    """Random seeds. Every training run is repeated with each seed."""


@dataclass(frozen=True, kw_only=True)
class ToySettings:
    """The key of a study whose base can be a small model that is made on the spot."""

    toy: Annotated[
        str | None, Meta(json_schema=toy_settings.settings_schema, last=True, former=("small",))
    ] = None
    """Make a small base and data offline, for a study that takes minutes."""
