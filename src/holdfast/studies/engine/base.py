"""What studies have in common whose settings are one dataclass: how a file is read and checked,
what resuming compares, and how a toy setting's files are made. A study adds a subclass of
`StudyConfigBase`, which says what it was asked for, and one of `ConfiguredStudy`, which runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from holdfast.config.declare import current_name, settings_of
from holdfast.config.decode import decode
from holdfast.config.raw_request import RawRequest, plain_key
from holdfast.config.synonyms import did_you_mean_key
from holdfast.errors import ConfigError, Problem, UserError
from holdfast.studies.engine import toy as toy_settings
from holdfast.studies.engine.keys import BaseStudySettings
from holdfast.studies.engine.models import training_problems
from holdfast.studies.engine.progress import share_of_run
from holdfast.studies.engine.states import RUNNING
from holdfast.studies.engine.study import LABEL, Job, JobState, Study
from holdfast.support.files import to_jsonable
from holdfast.support.secrets import without_secrets

A = TypeVar("A", bound=BaseStudySettings)
C = TypeVar("C", bound="StudyConfigBase[Any]")
NOT_DECIDING = ("workers", "storage")
"""Settings that a record leaves out."""


@dataclass(frozen=True, kw_only=True)
class StudyConfigBase(Generic[A]):
    """A study whose settings are those that were asked for; its jobs end or fail, and report no
    figure to the storage.

    A subclass adds `jobs`, and what follows from the settings.
    """

    settings_class: ClassVar[type[Any]]
    """The dataclass of settings; `toy` is among them."""
    later: ClassVar[tuple[str, ...]] = ("evaluation",)
    """Keys of a training that are looked at once a toy setting's files are there."""

    request: A
    """What was asked for."""
    output_dir: Path
    storage: str
    names: Mapping[str, str]
    """What ${name} stands for; empty before a toy setting is made."""
    resolved: dict[str, Any]
    """As plain JSON; itself a valid configuration."""

    @property
    def name(self) -> str:
        """Of the study."""
        return self.request.name

    @property
    def workers(self) -> int | None:
        """Jobs at a time on this machine."""
        return self.request.workers

    @property
    def measures(self) -> tuple[str, ...]:
        """What a finished job reports to the storage."""
        return ("done",)

    def jobs(self) -> Sequence[Job]:
        """What is put in the queue, in order."""
        raise NotImplementedError

    def with_paths(self, value: Any) -> Any:
        """A value with the names of the toy setting in it replaced, where they are known."""
        return toy_settings.fill(value, self.names) if self.names else value

    # ------------------------------------------------------------------------------------- resuming

    def differences(self, old: Mapping[str, Any]) -> list[str]:
        """What keeps the study whose `resolved` is `old` from being this one, a sentence each."""
        old = self.current_keys(old)
        begun, now = self._with_defaults(old), self._with_defaults(self.resolved)
        if begun is None or now is None:
            begun, now = dict(old), self.resolved
        ignored = {"output_dir", *self.resumable_changes(old)}
        changes = []
        for key in dict.fromkeys([*begun, *now]):
            if key not in ignored and begun.get(key) != now.get(key):
                before, after = old.get(key, begun.get(key)), self.resolved.get(key, now.get(key))
                changes.append(f"{key}: was {before!r}, is {after!r}")
        return changes

    def _with_defaults(self, old: Mapping[str, Any]) -> dict[str, Any] | None:
        """A record of settings, at any depth with the defaults of those that it does not have; None
        where it cannot be read any more."""
        begun = self.from_recorded(old)
        if begun is None:
            return None
        settings = to_jsonable(begun.request)
        for key in (*NOT_DECIDING, "toy", "output_dir"):
            settings.pop(key, None)
        return {**old, **settings}

    def from_recorded(self: C, old: Mapping[str, Any]) -> C | None:
        """The study as it was when its `resolved` was `old`; None where that cannot be read any
        more."""
        settings, problems = decode(
            self.settings_class, RawRequest(values=dict(old)).set_here(self.settings_class)
        )
        return None if settings is None or problems else dataclasses.replace(self, request=settings)

    def has_jobs_of(self, begun: StudyConfigBase[A] | None) -> bool:
        """Whether every job of the study as it was begun is one of this one's, which then has got
        more."""
        if begun is None:
            return False
        coordinates = [job.coordinates for job in self.jobs()]
        return all(job.coordinates in coordinates for job in begun.jobs())

    def resumable_changes(self, old: Mapping[str, Any]) -> Collection[str]:
        """Settings of the study whose `resolved` is `old` that may be others when it goes on."""
        return ()

    # ------------------------------------------------------------------------------------- checking

    @classmethod
    def current_keys(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Settings under the names that their keys have now. A key that is there under both names
        stays twice, to be refused. Where `Meta.former` cannot tell, the value does: a word under
        `keep` says whose weights stay."""
        known = {setting.name: setting for setting in settings_of(cls.settings_class)}
        current: dict[str, Any] = {}
        for key, value in values.items():
            name = current_name(plain_key(key), known)
            current[key if name in values else name] = value
        if isinstance(current.get("keep"), str) and "keep_weights" not in current:
            current["keep_weights"] = current.pop("keep")
        vary = current.get("vary")
        if isinstance(vary, Mapping) and "retention" in vary and "arms" not in current:
            current["arms"] = vary["retention"]
            current["vary"] = {key: value for key, value in vary.items() if key != "retention"}
        return current

    @staticmethod
    def normalised(request: Any) -> Any:
        """Settings with those that follow from others where they were left out."""
        return request

    @staticmethod
    def training_parts(request: Any) -> dict[str, tuple[Mapping[str, Any], Collection[str]]]:
        """Training configurations among the settings: by place, the keys and those that the study
        knows beside the ones of `holdfast train`."""
        return {}

    @classmethod
    def key_problems(cls, request: Any) -> Sequence[str]:
        """Keys of training configurations that there are none of. To know them takes loading the
        libraries."""
        from holdfast.runs.settings import training_keys

        known = training_keys()
        problems: list[str] = []
        for where, (train, also_known) in cls.training_parts(request).items():
            for key in train:
                if key not in known and key not in also_known:
                    near = did_you_mean_key(key, known)
                    problems.append(
                        f"{where}.{key}: no such key in a training configuration.{near}"
                    )
        return problems

    @staticmethod
    def settings_problems(request: Any) -> Sequence[str]:
        """What is wrong with settings beside what their dataclass says."""
        return []

    def plan_problems(self) -> Sequence[str]:
        """What is wrong with the plan, before any file is there."""
        return []

    def part_problems(self) -> Sequence[str]:
        """What is wrong with models, data, and what is measured; with nothing left open."""
        return []

    def runs(self) -> Iterable[tuple[str, Mapping[str, Any]]]:
        """The training configurations of the study, each under the place that messages name; with
        stand-ins for models and texts that the study makes."""
        return ()

    def run_problems(
        self, known: Sequence[str] = (), *, without: Collection[str] = ()
    ) -> Sequence[str]:
        """What the code that trains says of `runs`, each thing once.

        Args:
            known: what was said before and is left out.
            without: keys that are not looked at.
        """
        problems: list[str] = []
        try:
            for where, settings in self.runs():
                checked = {key: value for key, value in settings.items() if key not in without}
                for problem in training_problems(checked):
                    if not any(problem in sentence for sentence in (*known, *problems)):
                        problems.append(Problem(where, problem))
        except UserError as error:
            problems += getattr(error, "problems", [str(error)])
        return problems

    @classmethod
    def read(
        cls: type[C],
        values: Mapping[str, Any] | RawRequest,
        *,
        source: str | None = None,
        check: bool = True,
    ) -> C:
        """A study from keys as in the YAML, everything checked that can be before anything runs.

        Args:
            values: keys of `settings_class`.
            source: where they came from, for the message.
            check: whether configurations are read by the code that will use them; not by workers,
                who get a study that was checked.

        Raises:
            ConfigError: with every mistake at once.
        """
        request = (
            values
            if isinstance(values, RawRequest)
            else RawRequest(values=dict(values), file=source)
        )
        request.values = cls.current_keys(request.values)
        settings, mistakes = decode(cls.settings_class, request.set_here(cls.settings_class))
        request.check(mistakes)
        assert settings is not None
        settings = cls.normalised(settings)
        problems = [*cls.key_problems(settings)] if check else []
        problems += cls.settings_problems(settings)
        toy = toy_settings.versioned_name(settings.toy) if not problems else None
        if toy != settings.toy:
            settings = dataclasses.replace(settings, toy=toy)
        config = cls(
            request=settings,
            output_dir=settings.folder,
            storage=settings.database,
            names={},
            resolved=cls.recorded(settings, request.values),
        )
        if not problems:
            problems = [*config.plan_problems()]
        if not problems and check:
            problems = [*(config.validate_without_files() if toy else config.part_problems())]
        if problems:
            file = str(request.file) if request.file else None
            raise ConfigError(list(dict.fromkeys(problems)), source=source or file)
        return config

    @staticmethod
    def recorded(request: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as a record keeps them, itself a valid configuration.

        Args:
            request: the settings.
            given: keys and values that they were read from.
        """
        resolved = without_secrets(to_jsonable(request))
        for key in NOT_DECIDING:
            resolved.pop(key, None)
        return {**resolved, "output_dir": str(request.folder)}

    def validate_without_files(self) -> Sequence[str]:
        """Names that the toy setting does not make, and what is wrong with a run whatever it makes;
        what is measured is looked at once its files are there."""

        def problems_with(names: Mapping[str, str]) -> Sequence[str]:
            toy_settings.fill(self.resolved, names)
            return dataclasses.replace(self, names=names).run_problems(without=self.later)

        return toy_settings.validate_without_files(self.resolved["toy"], problems_with)


class ConfiguredStudy(Study[C]):
    """A study that was asked for so: how a worker loads it, and what its toy setting makes."""

    config_class: ClassVar[type[StudyConfigBase[Any]]]

    @classmethod
    def load(
        cls, resolved: Mapping[str, Any], *, storage: str, output_dir: Path
    ) -> ConfiguredStudy[C]:
        """See `Study.load`."""
        config: C = cls.config_class.read(
            resolved, source=f"study '{resolved.get('name', output_dir.name)}'", check=False
        )  # type: ignore[assignment]
        names = toy_settings.existing_files(output_dir / "data") if config.request.toy else {}
        return cls(dataclasses.replace(config, storage=storage, output_dir=output_dir, names=names))

    def prepare(self, console: Any) -> ConfiguredStudy[C]:
        """The study with what `toy:` makes; its parts are checked then.

        Raises:
            ConfigError: with every mistake at once.
        """
        config = self.settings
        toy = config.resolved["toy"]
        if toy is None:
            return self
        folder, seed = config.output_dir / "data", getattr(config.request, "seed", 0)
        names = toy_settings.make_files(toy, folder, source=config.name, seed=seed, console=console)
        filled = dataclasses.replace(config, names=names)
        problems = filled.part_problems()
        if problems:
            raise ConfigError(problems, source=config.name)
        return type(self)(filled)

    def dry_run(self) -> list[str]:
        """What `--dry_run` looks at and prints: the jobs, one a line."""
        return [
            f"{number:>3}. {job.attributes[LABEL]}"
            for number, job in enumerate(self.settings.jobs(), 1)
        ]

    @property
    def seeds(self) -> tuple[int, ...]:
        """As the settings say."""
        return tuple(getattr(self.settings.request, "seeds", (0,)))

    def values(self, task: Any) -> Sequence[float] | None:
        """That it is done."""
        return [1.0]

    def running(self, job: JobState) -> Mapping[str, Any] | None:
        """The training configuration of the run that a running job is at; None where it trains
        nothing."""
        return None

    def share(self, job: JobState) -> float:
        """How much of a job is done, read from what its runs have written."""
        share = super().share(job)
        if job.state != RUNNING or share >= 1:
            return share
        settings = self.running(job)
        if settings is None:
            return share
        return share + share_of_run(settings) / len(self.seeds_of(job.attributes))
