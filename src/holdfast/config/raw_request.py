"""What a request says before it is decoded: keys with their values, where each stands, and the
mistakes in its form."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from holdfast.config.declare import settings_of
from holdfast.errors import ConfigError, KeyPath, Problem

_WORD = re.compile(r"\w[\w-]*")


@dataclasses.dataclass(kw_only=True)
class RawRequest:
    """What a request says: the YAML's values and over them the command line's, and the mistakes in
    their form."""

    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Values by key. The command line overrides the file."""
    from_line: set[str] = dataclasses.field(default_factory=set)
    """Keys whose values were given on the command line."""
    without_dashes: set[str] = dataclasses.field(default_factory=set)
    """Keys whose values were given as positional words on the command line."""
    problems: list[Problem] = dataclasses.field(default_factory=list)
    lines: dict[KeyPath, int] = dataclasses.field(default_factory=dict)
    """Line number in the file (from 1) of every key and item. It is stored under the path of
    the key or item, with underscores for dashes (see `normal`)."""
    file: str | None = None
    """Name of the YAML file; None without a file."""

    def over(self, other: RawRequest) -> RawRequest:
        """This one's values over another's (the command line's over the file's)."""
        return RawRequest(
            values={**other.values, **self.values},
            from_line=self.from_line | (other.from_line - set(self.values)),
            without_dashes=self.without_dashes,
            problems=[*other.problems, *self.problems],
            lines=other.lines | self.lines,
            file=self.file or other.file,
        )

    def set_here(self, cls: type) -> dict[str, Any]:
        """The values without the nulls of a settings dataclass's keys, which stand for "not set"; a
        key that it does not have stays, to be refused."""
        known = {setting.name for setting in settings_of(cls)}
        stated = {}
        for key, value in self.values.items():
            if value is not None or plain_key(key) not in known:
                stated[key] = value
        return stated

    def take(self, *names: str) -> dict[str, Any]:
        """Removes keys from the values and returns those that were there."""
        return {name: self.values.pop(name) for name in names if name in self.values}

    def sentences(self, problems: Iterable[Problem]) -> list[str]:
        """Mistakes as people read them: with the option's dashes, or with the line in the file."""
        return list(dict.fromkeys(self._sentence(problem) for problem in problems))

    def check(self, problems: Iterable[Problem] = ()) -> None:
        """Raises everything that is wrong together.

        Raises:
            ConfigError: there is a mistake, among the given ones or of the request's form.
        """
        sentences = self.sentences([*self.problems, *problems])
        if sentences:
            raise ConfigError(sentences, source=self.file)

    def _sentence(self, problem: Problem) -> str:
        key = problem.path[0] if problem.path else None
        if key in self.from_line or self.file is None:
            option = key in self.from_line and key not in self.without_dashes
            return f"--{problem}" if option else problem
        path = normal((*problem.path, problem.key))
        while path and path not in self.lines:
            path = path[:-1]
        return f"line {self.lines[path]}: {problem}" if path else problem


def plain_key(name: Any) -> str:
    """A key as settings have it, with underscores where dashes were written; what is no word stays
    as it is."""
    text = str(name)
    return text.replace("-", "_") if _WORD.fullmatch(text) else text


def normal(path: KeyPath) -> KeyPath:
    """A path with underscores for dashes."""
    return tuple(plain_key(key) if isinstance(key, str) else key for key in path)
