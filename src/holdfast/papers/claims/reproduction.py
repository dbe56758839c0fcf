"""A paper's studies run, or found finished, and its claims held against what came out.

A study file is the medium size. What a smaller size changes of it stands in the paper's
`sizes.yaml` as mappings like the file's own, which `changed` lays over it:

```python
settings = StudyConfig.read(changed(yaml.safe_load(file), size_changes(paper)[study][size]))
```

A paper declares its small studies, with a file and its changes for each, and how its claims are
held against them, as `Twins`.

output_dir/
  <recipe>/       the studies, each with its report.html
  claims.json     every claim: the paper's figure, ours, the verdict
  claims.html     the same as a page
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import (
    ConfigError,
    DataError,
    HoldfastError,
    Interrupted,
    did_you_mean,
    first_line,
)
from holdfast.papers.claims.claim import RULES, Claim, family_lines
from holdfast.papers.claims.registry import SMALL, Paper
from holdfast.printable import lines
from holdfast.records.study import StudyRecord
from holdfast.studies.engine.study import PAGE as STUDY_PAGE
from holdfast.studies.engine.study import Settings
from holdfast.support.environment import hardware, now, say, versions
from holdfast.support.files import read_json, write_json

CLAIMS_FILE, PAGE = "claims.json", "claims.html"
OWN_STUDY = "study"
"""Size of claims that are held against a study of one's own."""


class Comparable(Protocol):
    """What a reproduction reads of a study's settings."""

    @property
    def resolved(self) -> dict[str, Any]:
        """The settings as plain JSON."""

    def differences(self, old: Mapping[str, Any]) -> list[str]:
        """What keeps the study whose `resolved` is `old` from being this one, a sentence each."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One study of a reproduction."""

    name: str
    """Name of the study, as in `Paper.recipes`. Its folder has the same name."""
    settings: Comparable
    run: Callable[..., Any]
    """Runs the study, as `run(settings, console=..., workers=...)`, and returns its record."""

    def is_done(self, record: Any) -> bool:
        """Whether a record is of this study, finished: a wider search adds jobs."""
        if (
            record is None
            or record.status != "finished"
            or self.settings.differences(record.config)
        ):
            return False
        return bool(self.settings.resolved.get("search") == record.config.get("search"))


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A small study that stands in for one of a paper's."""

    file: str
    """Its YAML below `papers/recipes`."""
    sizes: Mapping[str, Mapping[str, Any]]
    """By size: what differs from the file. A study that a size does not have is not run there."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the file in every size, where several studies have one file."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """A small study that a script of its own runs; its record is of the paper's kind."""

    settings: Callable[..., Comparable]
    """`settings(name=..., output_dir=..., **changes)`."""
    run: Callable[..., Any]
    """See `Recipe`."""
    sizes: Mapping[str, Mapping[str, Any]]
    """By size: what differs from the script's settings."""


@dataclass(frozen=True, kw_only=True)
class Twins:
    """The small studies of a paper, and how its claims are held against studies."""

    paper: Paper
    studies: Mapping[str, Twin | Script]
    """By name, as `Paper.recipes` has them."""
    config: Callable[..., Settings]
    """`config(values, source=...)`: the settings of a study."""
    run: Callable[..., Any]
    """See `Recipe`."""
    read: Callable[[Path], Any]
    """The record in a study's folder; a `DataError` where it cannot be read."""
    check: Callable[[Mapping[str, Any]], list[Claim]]
    """The claims about records by name of recipe; None where a study was not run."""
    reading: Sequence[str] = ()
    """How figures and verdicts are to be read, for the page; empty: the page's own words."""

    def reproduce(
        self,
        *,
        recipes: Sequence[str] = (),
        size: str = SMALL,
        workers: int | None = None,
        output_dir: str | os.PathLike[str] | None = None,
        console: Any = None,
    ) -> list[Claim]:
        """Runs the small studies, or continues them, and checks the claims about them.

        Args:
            recipes: some of the studies; empty: all. Claims about others cannot be told.
            size: one of `registry.SIZES`.
            workers, console: see `run_and_judge`.
            output_dir: gets the studies, claims.json and claims.html; None: reproduce-PAPER.

        Returns:
            The claims, as in claims.json.

        Raises:
            ConfigError: no such study or size here, or the folder holds another study (what
                differs).
            Interrupted, HoldfastError: see `run_and_judge`.
        """
        if unknown := [name for name in recipes if name not in self.studies]:
            hint = did_you_mean(unknown[0], self.studies)
            raise ConfigError(
                f"recipes: expected some of {', '.join(self.studies)}, got {unknown[0]!r}.{hint}"
            )
        available = [name for name, study in self.studies.items() if size in study.sizes]
        if not available:
            known = dict.fromkeys(size for study in self.studies.values() for size in study.sizes)
            raise ConfigError(
                f"size: expected one of {', '.join(known)}, got "
                f"{size!r}.{did_you_mean(size, known)}"
            )
        chosen = [name for name in dict.fromkeys(recipes or available) if name in available]
        if not chosen:
            raise ConfigError(
                f"recipes: the size {size} has only {', '.join(available)}. Choose another size or "
                "other recipes."
            )
        out = Path(output_dir or f"reproduce-{self.paper.name}")
        studies = [self._recipe(name, size, out / name, console) for name in chosen]
        return self.run_and_judge(
            studies, size=size, output_dir=out, workers=workers, console=console
        )

    def _recipe(self, name: str, size: str, folder: Path, console: Any) -> Recipe:
        import yaml

        from holdfast.papers.worlds.toy_settings import SETTINGS, make_setting
        from holdfast.studies.engine.toy import fill

        twin = self.studies[name]
        if isinstance(twin, Script):
            settings = twin.settings(name=name, output_dir=folder, **twin.sizes[size])
            return Recipe(name=name, settings=settings, run=twin.run)
        path = Path(__file__).resolve().parents[1] / "recipes" / twin.file
        values = changed(
            {**yaml.safe_load(path.read_text(encoding="utf-8")), "name": name}, twin.own
        )
        values = changed(values, twin.sizes[size])
        if (
            size == "quick" and values.get("toy") in SETTINGS
        ):  # with a base of seconds; a world has its own
            toy, seed = values.pop("toy"), int(values.get("seed", 0))
            values = fill(
                values, make_setting(toy, folder / "data", seed=seed, quick=True, console=console)
            )
        config = self.config({**values, "output_dir": str(folder)}, source=path.name)
        return Recipe(name=name, settings=config, run=self.run)

    def run_and_judge(
        self,
        recipes: Sequence[Recipe],
        *,
        size: str,
        output_dir: str | os.PathLike[str],
        workers: int | None,
        console: Any,
    ) -> list[Claim]:
        """Runs studies, or continues them, and checks the claims about them.

        Args:
            recipes: the studies, in order.
            size: one of `registry.SIZES`; the page says which.
            output_dir: gets a folder a study, claims.json and claims.html.
            workers: jobs at a time; None: as the study or the machine says.
            console: a `rich.console.Console`; None: a new one on standard output.

        Returns:
            The claims, as in claims.json.

        Raises:
            ConfigError, DataError: settings, or a folder with another study.
            Interrupted: Ctrl-C; the same call continues. The claims are written as far as they can
                be told.
            HoldfastError: a study failed, after the others ended and the claims were written.
        """
        from rich.console import Console

        console, out = console or Console(), Path(output_dir)
        folders = {recipe.name: out / recipe.name for recipe in recipes}
        records = self._read_all(folders)
        failures = []
        try:
            for number, recipe in enumerate(recipes, 1):
                where = f"{number} of {len(recipes)}: {recipe.name}"
                if recipe.is_done(records[recipe.name]):
                    say(console, f"{where} is finished; nothing is run again.")
                    continue
                say(console, where)
                try:
                    records[recipe.name] = recipe.run(
                        recipe.settings, console=console, workers=workers
                    )
                except (ConfigError, DataError, Interrupted):
                    raise
                except HoldfastError as error:
                    failures.append(f"{recipe.name}: {error}")
                    records[recipe.name] = self._read_if_any(folders[recipe.name])
                    say(console, f"{recipe.name} failed. {first_line(error)}")
        except (Interrupted, KeyboardInterrupt):
            records = self._read_all(folders)
            if any(records.values()):
                self.write(records, folders, size, out)
            raise
        claims = self.write(records, folders, size, out, console)
        if failures:
            count = f"{len(failures)} of {len(recipes)} studies failed:"
            raise HoldfastError(count, *failures, "Run the same command to retry them.")
        return claims

    def judge(
        self,
        folders: Sequence[Path],
        *,
        recipes: Sequence[str] = (),
        output_dir: str | os.PathLike[str] | None = None,
        console: Any = None,
    ) -> list[Claim]:
        """Checks the claims about studies that were run, whatever their models and data.

        Args:
            folders: the studies'.
            recipes: which of the paper's studies they stand for, in order; one folder may stand for
                several. Empty: those of their names, else the first ones.
            output_dir: gets claims.json and claims.html; None: the first study's folder.
            console: a `rich.console.Console`; None: a new one on standard output.

        Raises:
            DataError: a folder without a record of the paper's kind.
            ConfigError: more studies than the paper has, or than `recipes` names.
        """
        from rich.console import Console

        records = [self.read(folder) for folder in folders]
        names = list(recipes) or list(dict.fromkeys(record.name for record in records))
        if not recipes and (len(names) < len(records) or not set(names) <= set(self.paper.recipes)):
            names = list(self.paper.recipes)[: len(records)]
        if len(records) == 1:
            records, folders = records * len(names), list(folders) * len(names)
        if len(names) != len(records):
            expected = (
                f"expected {len(names)} {'study' if len(names) == 1 else 'studies'} "
                f"({', '.join(names)})"
            )
            raise ConfigError(f"on: {expected}, got {len(records)}.")
        by_name = dict(zip(names, records, strict=True))
        out = Path(output_dir or folders[0])
        return self.write(
            by_name, dict(zip(names, folders, strict=True)), OWN_STUDY, out, console or Console()
        )

    def write(
        self,
        records: Mapping[str, Any],
        folders: Mapping[str, Path],
        size: str,
        out: Path,
        console: Any = None,
    ) -> list[Claim]:
        """Writes claims.json and the page made of it, and prints the claims to a console, if there
        is one.

        Args:
            records: by recipe; None: not run.
            folders: of the records.
            size: one of `registry.SIZES`, or `OWN_STUDY`.
            out: where to write.
            console: a `rich.console.Console`.
        """
        from holdfast.papers.claims.page import claims_page, verdict_table
        from holdfast.reports.blocks import Paragraph
        from holdfast.reports.html import write_page
        from holdfast.reports.terminal import Printer

        claims, studies = self.check(records), {}
        for name, record in records.items():
            page = folders[name] / STUDY_PAGE
            link = Path(os.path.relpath(page, out)).as_posix() if page.is_file() else None
            studies[name] = {
                "title": self.paper.recipes[name],
                "report": link,
                **study_facts(record),
            }
        about: dict[str, Any] = {"reading": list(self.reading)} if self.reading else {}
        about |= {
            "created": now(),
            "studies": studies,
            "versions": versions(),
            "hardware": hardware(),
        }
        write_json(out / CLAIMS_FILE, claims_record(self.paper, size, claims, **about))
        written = read_json(out / CLAIMS_FILE)
        write_page(claims_page(written), out / PAGE)
        if console is not None:
            families = Paragraph(" ".join(family_lines(claims)))
            Printer(console).show([verdict_table(claims), families])
            say(console, lines("", f"Page: {out / PAGE}"))
        return claims

    def _read_all(self, folders: Mapping[str, Path]) -> dict[str, Any]:
        return {name: self._read_if_any(folder) for name, folder in folders.items()}

    def _read_if_any(self, folder: Path) -> Any:
        """The record in a folder; None where there is none, or it cannot be read."""
        try:
            return self.read(folder) if folder.is_dir() else None
        except (DataError, KeyError, TypeError, ValueError):
            return None


def study_facts(record: Any) -> dict[str, Any]:
    """What a paper's page says of a study: how far it is, its seeds, how many of its jobs are
    complete."""
    if record is None:
        return {"status": "not run", "seeds": [], "trials": 0}
    jobs = record.trials if isinstance(record, StudyRecord) else record.models
    complete = sum(job.state == "complete" for job in jobs)
    return {"status": record.status, "seeds": record.config.get("seeds") or [0], "trials": complete}


def changed(values: Any, changes: Any) -> Any:
    """Settings with others laid over them: mappings are joined key by key at any depth, all else is
    replaced.

    Args:
        values: as a study's YAML has them; left as they are.
        changes: what is different, in the same shape.
    """
    if not isinstance(values, Mapping) or not isinstance(changes, Mapping):
        return copy.deepcopy(changes)
    joined = copy.deepcopy(dict(values))
    for key, change in changes.items():
        joined[key] = changed(values.get(key), change)
    return joined


@functools.cache
def size_changes(paper: str) -> dict[str, dict[str, Any]]:
    """What each size changes of a study's file, by study and size.

    Args:
        paper: the folder of `holdfast.papers` whose `sizes.yaml` says it.
    """
    import yaml

    file = Path(__file__).parents[1] / paper / "sizes.yaml"
    changes: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return changes


def claims_record(paper: Paper, size: str, claims: Sequence[Claim], **about: Any) -> dict[str, Any]:
    """claims.json: claims and the rules that they were judged by.

    Args:
        paper: whose they are.
        size: of the evidence, for people; one of `registry.SIZES` from `reproduce`.
        claims: as `check` gave them.
        about: what else is kept, as plain JSON: studies, versions, hardware.
    """
    return {
        "paper": paper.title,
        "size": size,
        "rules": RULES + paper.rules,
        "claims": [claim.to_json() for claim in claims],
        **about,
    }
