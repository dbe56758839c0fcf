"""What studies have in common that were asked for by one dataclass of settings: how a file is read and checked, what
resuming compares, and how a small setting's files are made. A study adds a subclass of `AskedStudy`, which says what it
was asked for, and one of `StudyAsked`, which runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from holdfast.config.decode import Given, decode
from holdfast.config.synonyms import did_you_mean_key
from holdfast.errors import ConfigError, UserError
from holdfast.studies.engine import small as small_settings
from holdfast.studies.engine.keys import StudyKeys
from holdfast.studies.engine.models import training_problems
from holdfast.studies.engine.study import Job, Study
from holdfast.support.files import to_jsonable
from holdfast.support.secrets import without_secrets

A = TypeVar("A", bound=StudyKeys)
C = TypeVar("C", bound="AskedStudy[Any]")
NOT_DECIDING = ("workers", "storage")
"""Settings that a record leaves out."""


@dataclass(frozen=True, kw_only=True)
class AskedStudy(Generic[A]):
    """A study whose settings are those that were asked for; its jobs end or fail, and report no figure to the storage.

    A subclass adds `jobs`, and what follows from the settings.
    """

    settings_class: ClassVar[type[Any]]
    """The dataclass of settings; `small` is among them."""
    later: ClassVar[tuple[str, ...]] = ("evaluation",)
    """Keys of a training that are looked at once a small setting's files are there."""

    asked: A
    """What was asked for."""
    output_dir: Path
    storage: str
    names: Mapping[str, str]
    """What ${name} stands for; empty before a small setting is made."""
    resolved: dict[str, Any]
    """As plain JSON; itself a valid configuration."""

    @property
    def name(self) -> str:
        """Of the study."""
        return self.asked.name

    @property
    def workers(self) -> int | None:
        """Jobs at a time on this machine."""
        return self.asked.workers

    @property
    def measures(self) -> tuple[str, ...]:
        """What a finished job reports to the storage."""
        return ("done",)

    def jobs(self) -> Sequence[Job]:
        """What is put in the queue, in order."""
        raise NotImplementedError

    def differences(self, old: Mapping[str, Any]) -> list[str]:
        """What keeps the study whose `resolved` is `old` from being this one, a sentence each."""
        aside = {"output_dir", *self.may_change(old)}
        begun = self._with_defaults(old)
        keys = [k for k in dict.fromkeys([*begun, *self.resolved]) if k not in aside]
        changed = [k for k in keys if begun.get(k) != self.resolved.get(k)]
        return [f"{k}: was {begun.get(k)!r}, is {self.resolved.get(k)!r}" for k in changed]

    def _with_defaults(self, old: Mapping[str, Any]) -> dict[str, Any]:
        """A record of settings, at any depth with the defaults of those that there were not when it was written."""
        asked, mistakes = decode(self.settings_class, Given(values=dict(old)).set_here(self.settings_class))
        if asked is None or mistakes:
            return dict(old)
        known = to_jsonable(asked)
        return {**old, **{k: v for k, v in known.items() if k not in (*NOT_DECIDING, "small", "output_dir")}}

    def begun_as(self: C, old: Mapping[str, Any]) -> C | None:
        """The study as it was when its `resolved` was `old`; None where that cannot be read any more."""
        asked, mistakes = decode(self.settings_class, Given(values=dict(old)).set_here(self.settings_class))
        return None if asked is None or mistakes else dataclasses.replace(self, asked=asked)

    def has_jobs_of(self, begun: AskedStudy[A] | None) -> bool:
        """Whether every job of the study as it was begun is one of this one's, which then has got more."""
        mine = [job.coordinates for job in self.jobs()]
        return begun is not None and all(job.coordinates in mine for job in begun.jobs())

    def may_change(self, old: Mapping[str, Any]) -> Collection[str]:
        """Settings of the study whose `resolved` is `old` that may be others when it goes on."""
        return ()

    def filled(self, value: Any) -> Any:
        """A value with the names of the small setting in it replaced, where they are known."""
        return small_settings.fill(value, self.names) if self.names else value

    # -------------------------------------------------------------------------------------------------------- checking

    @staticmethod
    def normalised(asked: Any) -> Any:
        """Settings with those that follow from others where they were left out."""
        return asked

    @staticmethod
    def known_keys(asked: Any) -> Sequence[str]:
        """Keys of a training configuration."""
        from holdfast.runs.settings import training_keys

        return training_keys()

    @staticmethod
    def training_parts(asked: Any) -> dict[str, tuple[Mapping[str, Any], Collection[str]]]:
        """Training configurations among the settings: by place, the keys and those that the study knows beside the
        ones of `holdfast train`."""
        return {}

    @classmethod
    def key_problems(cls, asked: Any) -> list[str]:
        """Keys of training configurations that there are none of. To know them takes loading the libraries."""
        known = cls.known_keys(asked)
        return [
            f"{where}.{key}: no such key in a training configuration.{did_you_mean_key(key, known)}"
            for where, (train, own) in cls.training_parts(asked).items()
            for key in train
            if key not in known and key not in own
        ]

    @staticmethod
    def settings_problems(asked: Any) -> list[str]:
        """What is wrong with settings beside what their dataclass says."""
        return []

    def plan_problems(self) -> list[str]:
        """What is wrong with the plan, before any file is there."""
        return []

    def part_problems(self) -> list[str]:
        """What is wrong with models, data, and what is measured; with nothing left open."""
        return []

    def runs(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """The training configurations of the study, each under the place that messages name; with stand-ins for models
        and texts that the study makes."""
        return ()

    def problems_of_run(self, settings: Mapping[str, Any]) -> list[str]:
        """What the code that trains says of one of them."""
        return training_problems(settings)

    def run_problems(self, known: Sequence[str] = (), *, without: Collection[str] = ()) -> list[str]:
        """What the code that trains says of `runs`, each thing once.

        Args:
            known: what was said before and is left out.
            without: keys that are not looked at.
        """
        found: list[str] = []
        try:
            for where, settings in self.runs():
                problems = self.problems_of_run({k: v for k, v in settings.items() if k not in without})
                found += [f"{where}: {p}" for p in problems if not any(p in one for one in (*known, *found))]
        except UserError as error:
            found += getattr(error, "problems", [str(error)])
        return found

    @property
    def small_seed(self) -> int:
        """Which world a small setting is made of."""
        return 0

    @classmethod
    def read(cls: type[C], values: Mapping[str, Any] | Given, *, source: str | None = None, check: bool = True) -> C:
        """A study from keys as in the YAML, everything checked that can be before anything runs.

        Args:
            values: keys of `settings_class`.
            source: where they came from, for the message.
            check: whether configurations are read by the code that will use them; not by workers, who get a study that
                was checked.

        Raises:
            ConfigError: with every mistake at once.
        """
        given = values if isinstance(values, Given) else Given(values=dict(values), file=source)
        asked, mistakes = decode(cls.settings_class, given.set_here(cls.settings_class))
        given.check(mistakes)
        assert asked is not None
        asked = cls.normalised(asked)
        problems = cls.key_problems(asked) if check else []
        problems += cls.settings_problems(asked)
        folder = asked.folder
        small = small_settings.recorded(asked.small) if not problems else None
        resolved = {k: v for k, v in without_secrets(to_jsonable(asked)).items() if k not in NOT_DECIDING}
        config = cls(
            asked=dataclasses.replace(asked, small=small),
            output_dir=folder,
            storage=asked.database,
            names={},
            resolved={**resolved, "small": small, "output_dir": str(folder)},
        )
        if not problems:
            problems = config.plan_problems()
        if not problems and check:
            problems = config.problems_before() if small else config.part_problems()
        if problems:
            raise ConfigError(list(dict.fromkeys(problems)), source=source or (str(given.file) if given.file else None))
        return config

    def problems_before(self) -> list[str]:
        """Names that the small setting does not make, and what is wrong with a run whatever it makes; what is measured
        is looked at once its files are there."""

        def look(names: Mapping[str, str]) -> list[str]:
            small_settings.fill(self.resolved, names)
            return dataclasses.replace(self, names=names).run_problems(without=self.later)

        return small_settings.problems_before(self.resolved["small"], look)


class StudyAsked(Study[C]):
    """A study that was asked for so: how a worker loads it, and what its small setting makes."""

    config_class: ClassVar[type[AskedStudy[Any]]]

    @classmethod
    def load(cls, resolved: Mapping[str, Any], *, storage: str, output_dir: Path) -> StudyAsked[C]:
        """See `Study.load`."""
        config: C = cls.config_class.read(resolved, source=f"study '{resolved['name']}'", check=False)  # type: ignore[assignment]
        names = small_settings.existing_files(output_dir / "data") if config.resolved["small"] else {}
        return cls(dataclasses.replace(config, storage=storage, output_dir=output_dir, names=names))

    def prepare(self, console: Any) -> StudyAsked[C]:
        """The study with what `small:` makes; its parts are checked then.

        Raises:
            ConfigError: with every mistake at once.
        """
        config = self.settings
        small = config.resolved["small"]
        if small is None:
            return self
        place = config.output_dir / "data"
        names = small_settings.make_files(small, place, source=config.name, seed=config.small_seed, console=console)
        filled = dataclasses.replace(config, names=names)
        if problems := filled.part_problems():
            raise ConfigError(problems, source=config.name)
        return type(self)(filled)
