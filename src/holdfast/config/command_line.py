"""Command lines: options out of declared settings, the YAML behind `--config`, and the request that
both make.

`--key value`, `--key=value`, `--switch`, `--no_switch`, `--switch false`, `--list a b`,
`--mapping '{key: value}'`; dashes and underscores in names are alike, names are not abbreviated,
`--` ends an option's values, and the command line wins over the file.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from holdfast.config.declare import Meta, Setting, current_name, settings_of
from holdfast.config.decode import coerce_all, decode, expected, unknown_key
from holdfast.config.help import Help, Section, help_topic, wrapped
from holdfast.config.raw_request import RawRequest
from holdfast.config.yaml_file import read_yaml
from holdfast.config.yaml_text import from_yaml
from holdfast.errors import ConfigError, Problem, did_you_mean

T = TypeVar("T")

CONFIG = Setting(
    name="config",
    types=(Path,),
    optional=True,
    help=(
        "File with options; the command line overrides it. Keys are the names of the options "
        "without dashes."
    ),
    meta=Meta(metavar="FILE.yaml", yaml=False),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Generic[T]):
    """A command of the command line: the settings that make its request, and the words around
    them."""

    name: str
    """As typed: "holdfast data prepare"."""
    request: type[T]
    """The settings dataclass."""
    description: str = ""
    epilog: str = ""
    """Examples and outputs, as they stand at the end of `--help`."""
    sections: tuple[Section, ...] = ()
    """What `--help` lists and `--help NAME` prints."""
    usage: str = "[options]"
    """What follows the name in the first line of `--help`."""
    yaml: bool = True
    """Whether there is `--config FILE.yaml`."""
    yaml_needs: str = ""
    """What the file needs at least, for the message on an empty one."""
    more: tuple[Setting, ...] = ()
    """Settings beside the request's, such as a method's parameters; they are taken from what was
    given (`RawRequest.take`) before the request is decoded."""
    adapt: Callable[[RawRequest], None] | None = None
    """Rewrites what the file says, and adds its mistakes: files written for another tool, older
    forms of a key."""

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What may be given, `--config` first, those that are `Meta.last` after the others."""
        settings = sorted(
            (*settings_of(self.request), *self.more), key=lambda setting: setting.meta.last
        )
        return (CONFIG, *settings) if self.yaml else tuple(settings)

    def help(self, topic: str = "") -> str:
        """The text of `--help`, or of `--help TOPIC`.

        Raises:
            ConfigError: no such topic.
        """
        return Help(
            command=self.name,
            usage=self.usage,
            settings=self.settings,
            sections=self.sections,
            description=self.description,
            epilog=self.epilog,
        ).text(topic)

    def given(self, argv: Sequence[str]) -> RawRequest:
        """What the words and the YAML that they name say. Prints the help and exits where it is
        asked for.

        Raises:
            ConfigError: the YAML cannot be read, or there is no help on what `--help` names.
            SystemExit: with 0, after `--help`.
        """
        topic = help_topic(argv)
        if topic is not None:
            sys.stdout.write(self.help(topic))
            raise SystemExit(0)
        line = parse_words(argv, {setting.name: setting for setting in self.settings})
        if not self.yaml:
            return line
        path = line.values.pop("config", None)
        if path is None or any(problem.path == ("config",) for problem in line.problems):
            return line
        return line.over(self._read_file(path))

    def _read_file(self, path: str) -> RawRequest:
        """What the YAML says."""
        file = read_yaml(path, needs=self.yaml_needs)
        for setting in self.settings:
            if not setting.meta.yaml and file.take(setting.name):
                problem = Problem(setting.name, "belongs on the command line, not in a file.")
                file.problems.append(problem)
        if self.adapt is not None:
            self.adapt(file)
        return file

    def read(self, argv: Sequence[str]) -> T:
        """The request that the words after the command's name make.

        Raises:
            ConfigError: with every mistake at once.
        """
        return self.decode(self.given(argv))

    def take_switch(self, given: RawRequest, name: str) -> bool:
        """Removes a switch from what was given, before everything is decoded; whether it is on. A
        value that is none counts as off and becomes a mistake of `given`."""
        known = {setting.name: setting for setting in self.settings if setting.name == name}
        values, problems = coerce_all(known, given.take(name))
        given.problems += problems
        return bool(values.get(name))

    def decode(self, given: RawRequest, *, defaults: T | None = None) -> T:
        """The request out of what was given; the fields of `defaults` take the place of the
        declared defaults.

        Raises:
            ConfigError: with every mistake at once.
        """
        value, problems = decode(self.request, given.values, defaults=defaults)
        given.check(problems)
        assert value is not None
        return value


def read_step(
    argv: Sequence[str], steps: Collection[str], *, command: str, text: str
) -> tuple[str, list[str]]:
    """The step that follows a command of several, such as "extract" of `holdfast residual`, and the
    words after it.

    Args:
        argv: what follows the command.
        steps: those that there are.
        command: as typed.
        text: of `--help`; `--help STEP` is the step's own.

    Raises:
        ConfigError: no such step, with the nearest name.
        SystemExit: after the text.
    """
    words = list(argv)
    if words and words[0] in ("--help", "-h", "help"):
        words = [*words[1:2], "--help", *words[2:]]
    if words in ([], ["--help"]):
        sys.stdout.write(wrapped(text) + "\n")
        raise SystemExit(0 if words else 2)
    step, *rest = words
    if step not in steps:
        raise ConfigError(
            f"expected '{command}' with one of {', '.join(steps)}, got "
            f"'{step}'.{did_you_mean(step, steps)}"
        )
    return step, rest


# ---------------------------------------------------------------------------------------- the words


def parse_words(argv: Sequence[str], known: Mapping[str, Setting]) -> RawRequest:
    """The words of a command line by setting. Values stay text (`coerce` turns them into what was
    declared), except that mappings are parsed here.

    Args:
        argv: the words.
        known: all settings by name; their types decide how many words an option takes.
    """
    reader = _WordReader(argv, known)
    reader.read()
    return reader.request


class _WordReader:
    """Takes words off the front of a command line; `request` grows meanwhile.

    Args:
        argv: the words.
        known: all settings by name.
        refuses_others: whether an option without a setting is a problem. Its sentence takes
            milliseconds: the nearest name is looked for.
    """

    def __init__(
        self, argv: Sequence[str], known: Mapping[str, Setting], *, refuses_others: bool = True
    ) -> None:
        self.words = list(argv)
        self.known = known
        self.refuses_others = refuses_others
        self.positional = next(
            (setting for setting in known.values() if setting.meta.positional), None
        )
        self.request = RawRequest()

    def read(self) -> None:
        """Reads all words; `--` alone belongs to no option, and ends the values of one."""
        while self.words:
            word = self.words.pop(0)
            if word == "--":
                continue
            if word.startswith("--"):
                self._read_option(word)
            elif self.positional is not None and (
                word in ("", "-") or word[0] != "-" or _is_number(word)
            ):
                self._read_positional(self.positional, word)
            else:
                self._refuse_word(word)

    def _read_option(self, word: str) -> None:
        """Reads an option and its values."""
        text, equals, attached = word[2:].partition("=")
        name = text.replace("-", "_")
        negated = name.startswith("no_") and name not in self.known
        setting = self.known.get(
            current_name(name.removeprefix("no_") if negated else name, self.known)
        )
        if setting is None or (negated and not setting.is_switch) or setting.meta.positional:
            if self.refuses_others:
                self.request.problems.append(Problem((), self._unknown_option(name)))
            self._take(len(self.words))
            return
        values = [attached] if equals else self._take(self._most_values(setting))
        self.request.from_line.add(setting.name)
        if negated:
            self._set(setting, False, rest=values)
        elif values:
            self._read_values(setting, values)
        elif setting.is_switch:
            self._set(setting, True)
        else:
            self.request.problems.append(
                Problem(setting.name, f"expected {expected(setting)}, got nothing.")
            )

    def _most_values(self, setting: Setting) -> int:
        """How many of the following words may be an option's values."""
        if setting.types == (bool,):
            is_word_alone = (
                self.positional is not None and self.words and self.words[0].lower() not in _TRUTH
            )
            return 0 if is_word_alone else 1
        takes_many = setting.takes_many or setting.meta.repeatable
        if setting.meta.one_word or (self.positional is not None and not takes_many):
            return 1
        return len(self.words)  # of one value, the others are refused

    def _take(self, most: int) -> list[str]:
        """Takes words up to the next option off the front."""
        words: list[str] = []
        while self.words and len(words) < most and not self.words[0].startswith("--"):
            words.append(self.words.pop(0))
        return words

    def _read_values(self, setting: Setting, values: list[str]) -> None:
        """Takes an option's values, at least one, as YAML would have given them."""
        if setting.meta.parse_word is not None:
            self._extend(setting, self._parsed_words(setting, values))
        elif setting.is_mapping and len(setting.types) == 1:
            self._set(setting, _mapping(values[0]), rest=values[1:])
        elif setting.meta.repeatable:
            self._extend(setting, values)
        elif setting.takes_many and len(values) > 1:
            self._set(setting, values)
        else:
            self._set(setting, values[0], rest=values[1:])

    def _read_positional(self, setting: Setting, word: str) -> None:
        """Takes a word without an option."""
        if setting.takes_many:
            self._extend(setting, [word])
        elif setting.name in self.request.values:
            self._refuse_word(word)
        else:
            self._set(setting, word)
        self.request.from_line.add(setting.name)
        self.request.without_dashes.add(setting.name)

    def _parsed_words(self, setting: Setting, words: Sequence[str]) -> list[Any]:
        """What words stand for by the setting's own reader."""
        assert setting.meta.parse_word is not None
        values: list[Any] = []
        for word in words:
            try:
                parsed = setting.meta.parse_word(word)
            except ValueError as error:
                self.request.problems.append(Problem(setting.name, f"{word!r}: {error}"))
                continue
            values += parsed if isinstance(parsed, list) else [parsed]
        return values

    def _set(self, setting: Setting, value: Any, *, rest: Sequence[str] = ()) -> None:
        """Sets a value; the words after it are refused."""
        self.request.values[setting.name] = value
        for word in rest:
            text = (
                f"unexpected {word!r} after the option's value. Put a value with spaces in quotes."
            )
            self.request.problems.append(Problem(setting.name, text))

    def _extend(self, setting: Setting, values: Sequence[Any]) -> None:
        """Adds to the values of an option that may be given again."""
        before = self.request.values.get(setting.name) or []
        self.request.values[setting.name] = [*before, *values]

    def _unknown_option(self, name: str) -> str:
        """The sentence about an option that does not exist."""
        if self.positional is not None and name == self.positional.name:
            word = self.positional.meta.metavar or name
            return f"unknown option '--{name}'. {word} is positional: write only its value."
        options = [setting for setting in self.known.values() if not setting.meta.positional]
        listed = [setting.name for setting in options if not setting.meta.hidden]
        hidden = [setting.name for setting in options if setting.meta.hidden]
        return unknown_key(name, listed, hidden=hidden, option=True)

    def _refuse_word(self, word: str) -> None:
        advice = "Options start with two dashes (--)."
        if word.endswith((".yaml", ".yml", ".json")):
            advice = f"For a configuration file write '--config {word}'."
        self.request.problems.append(Problem((), f"unexpected argument {word!r}. {advice}"))


_TRUTH = ("true", "false", "yes", "no")
"""Words that a switch takes although words without an option may follow it."""


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _mapping(text: str) -> Any:
    """A mapping in YAML; other text is left to whatever reads the setting."""
    try:
        value = from_yaml(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def find_option(argv: Sequence[str], name: str) -> str | None:
    """The value of one option, found before the settings are known.

    Raises:
        ConfigError: the option without a value, or twice.
    """
    option = Setting(name=name, types=(str,), meta=Meta(repeatable=True, one_word=True))
    reader = _WordReader(argv, {name: option}, refuses_others=False)
    reader.read()
    request = reader.request
    if any(problem.path == (name,) for problem in request.problems):
        raise ConfigError(f"--{name} expects a value, as in '--{name} run.yaml'.")
    values = request.values.get(name, [])
    if len(values) > 1:
        raise ConfigError(
            f"--{name} was given {len(values)} times ({', '.join(values)}). Give it once."
        )
    return values[0] if values else None
