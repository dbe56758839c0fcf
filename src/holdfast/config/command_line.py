"""Command lines: options out of declared settings, the YAML behind `--config`, and the request that both make.

`--key value`, `--key=value`, `--switch`, `--no_switch`, `--switch false`, `--list a b`, `--mapping '{key: value}'`;
dashes and underscores in names are alike, names are not abbreviated, `--` ends an option's values, and the command line
wins over the file.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from holdfast.config.declare import Meta, Setting, current_name, settings_of
from holdfast.config.decode import Given, coerce_all, decode
from holdfast.config.help import Help, Section, help_topic, wrapped
from holdfast.config.synonyms import did_you_mean_key
from holdfast.config.yaml_file import from_yaml, read_yaml
from holdfast.errors import ConfigError, Problem, did_you_mean

T = TypeVar("T")

CONFIG = Setting(
    name="config",
    types=(Path,),
    optional=True,
    help="Options from a file; the command line wins. Keys are those of the options, without the dashes.",
    meta=Meta(metavar="FILE.yaml", yaml=False),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(Generic[T]):
    """A command of the command line: the settings that make its request, and the words around them."""

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
    """Settings beside the request's, such as a method's parameters; they are taken from what was given
    (`Given.take`) before the request is decoded."""
    adapt: Callable[[Given], None] | None = None
    """Rewrites what the file says, and adds its mistakes: files written for another tool, older forms of a key."""

    @property
    def settings(self) -> tuple[Setting, ...]:
        """What may be given, `--config` first, those that are `Meta.last` after the others."""
        settings = sorted((*settings_of(self.request), *self.more), key=lambda setting: setting.meta.last)
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

    def given(self, argv: Sequence[str]) -> Given:
        """What the words and the YAML that they name say. Prints the help and exits where it is asked for.

        Raises:
            ConfigError: the YAML cannot be read, or there is no help on what `--help` names.
            SystemExit: with 0, after `--help`.
        """
        if (topic := help_topic(argv)) is not None:
            sys.stdout.write(self.help(topic))
            raise SystemExit(0)
        known = {s.name: s for s in self.settings}
        line = parse_words(argv, known)
        file = Given()
        if self.yaml and "config" in line.values and not any(m.path == ("config",) for m in line.problems):
            file = read_yaml(line.values["config"], needs=self.yaml_needs)
            for key in [k for k in file.values if k in known and not known[k].meta.yaml]:
                del file.values[key]
                file.problems.append(Problem(key, "goes on the command line, not into a file."))
            if self.adapt is not None:
                self.adapt(file)
        if self.yaml:
            line.values.pop("config", None)
        return line.over(file)

    def read(self, argv: Sequence[str]) -> T:
        """The request that the words after the command's name make.

        Raises:
            ConfigError: with every mistake at once.
        """
        return self.decode(self.given(argv))

    def take_switch(self, given: Given, name: str) -> bool:
        """Removes a switch from what was given, before everything is decoded; whether it is on. A value that is none
        counts as off and becomes a mistake of `given`."""
        [setting] = (s for s in self.settings if s.name == name)
        values, problems = coerce_all({name: setting}, given.take(name))
        given.problems += problems
        return bool(values.get(name))

    def decode(self, given: Given, *, defaults: T | None = None) -> T:
        """The request out of what was given; the fields of `defaults` take the place of the declared defaults.

        Raises:
            ConfigError: with every mistake at once.
        """
        value, problems = decode(self.request, given.values, defaults=defaults)
        given.check(problems)
        assert value is not None
        return value


def read_step(argv: Sequence[str], steps: Collection[str], *, command: str, text: str) -> tuple[str, list[str]]:
    """The step that follows a command of several, such as "extract" of `holdfast residual`, and the words after it.

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
            f"expected '{command}' with one of {', '.join(steps)}, got '{step}'.{did_you_mean(step, steps)}"
        )
    return step, rest


# --------------------------------------------------------------------------------------------------------- the words


def parse_words(argv: Sequence[str], known: Mapping[str, Setting]) -> Given:
    """The words of a command line by setting. Values stay text (`coerce` turns them into what was declared), except
    that mappings are parsed here.

    Args:
        argv: the words.
        known: all settings by name; their types decide how many words an option takes.
    """
    given = Given()
    positional = next((s for s in known.values() if s.meta.positional), None)
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":  # what follows belongs to no option
            continue
        if not _is_option(word):
            if positional is not None and not (word.startswith("-") and len(word) > 1 and not _is_number(word)):
                _add(given, positional, [word], extend=positional.takes_many)
            else:
                _unexpected(given, word)
            continue
        name, equals, attached = word[2:].partition("=")
        name = name.replace("-", "_")
        negated = name.startswith("no_") and name not in known
        setting = known.get(current_name(name[3:] if negated else name, known))
        if setting is None or (negated and not setting.is_switch) or setting.meta.positional:
            given.problems.append(Problem((), _unknown_option(name, known)))
            while words and not _ends_values(words[0]):
                words.pop(0)
            continue
        values = [attached] if equals else _values(setting, words, positional=positional is not None)
        given.from_line.add(setting.name)
        if negated:
            given.values[setting.name] = False
            _too_many(given, setting, values)
        elif not values and setting.is_switch:
            given.values[setting.name] = True
        elif not values:
            given.problems.append(Problem(setting.name, f"expected {setting.expected}, got nothing."))
        else:
            _add(given, setting, values, extend=setting.meta.repeatable)
    return given


def _is_option(word: str) -> bool:
    return word.startswith("--") and len(word) > 2


def _ends_values(word: str) -> bool:
    return word.startswith("--")


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _values(setting: Setting, words: list[str], *, positional: bool) -> list[str]:
    """Takes the words that belong to an option off the front."""
    values: list[str] = []
    if setting.is_switch and setting.types == (bool,):
        plain = ("true", "false", "yes", "no")
        if words and not _ends_values(words[0]) and (not positional or words[0].lower() in plain):
            values.append(words.pop(0))
        return values
    one = setting.meta.one_word
    many = (setting.takes_many or setting.meta.repeatable) and not one
    while words and not _ends_values(words[0]) and (many or not (positional or one) or not values):
        values.append(words.pop(0))
    return values


def _add(given: Given, setting: Setting, values: list[str], *, extend: bool) -> None:
    name = setting.name
    if setting.meta.parse_word is not None:
        parsed: list[Any] = []
        for value in values:
            try:
                read = setting.meta.parse_word(value)
            except ValueError as error:
                given.problems.append(Problem(name, f"{value!r}: {error}"))
                continue
            parsed += read if isinstance(read, list) else [read]
        given.values[name] = [*(given.values.get(name) or []), *parsed]
    elif setting.is_mapping and len(setting.types) == 1:
        given.values[name] = _mapping(given, setting, values[0])
        _too_many(given, setting, values[1:])
    elif extend:
        given.values[name] = [*(given.values.get(name) or []), *values]
    elif setting.takes_many and len(values) > 1:
        given.values[name] = values
    else:
        if setting.meta.positional and name in given.values:
            _unexpected(given, values[0])
            return
        given.values[name] = values[0]
        _too_many(given, setting, values[1:])
    given.from_line.add(name)
    if setting.meta.positional:
        given.without_dashes.add(name)


def _mapping(given: Given, setting: Setting, text: str) -> Any:
    """A mapping in YAML; where a setting has a reader of its own, other words are left to that."""
    try:
        parsed = from_yaml(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        if setting.meta.parse is not None:
            return text
        wanted = f"expected a mapping in quotes, as in --{setting.name} '{{key: value}}', got {text!r}."
        given.problems.append(Problem(setting.name, wanted))
        return {}
    return parsed


def _too_many(given: Given, setting: Setting, values: Sequence[str]) -> None:
    for value in values:
        text = f"unexpected {value!r} after its value. Put a value with spaces in quotes."
        given.problems.append(Problem(setting.name, text))


def _unexpected(given: Given, word: str) -> None:
    file = f" For a configuration file write '--config {word}'." if word.endswith((".yaml", ".yml", ".json")) else ""
    text = f"unexpected argument {word!r}.{file or ' Options start with two dashes (--).'}"
    given.problems.append(Problem((), text))


def _unknown_option(name: str, known: Mapping[str, Setting]) -> str:
    shown = [n for n, s in known.items() if not s.meta.hidden and not s.meta.positional]
    few = f" Known: {', '.join('--' + n for n in shown)}." if len(shown) <= 40 else ""
    near = did_you_mean_key(name, [*shown, *known], dashes="--")
    for setting in known.values():
        if setting.meta.positional and near == f" Did you mean '--{setting.name}'?":
            near = f" Write its value alone: {setting.meta.metavar or setting.name} is no option here."
    return f"unknown option '--{name}'.{near or few}"


def find_option(argv: Sequence[str], name: str) -> str | None:
    """The value of one option, found before the settings are known.

    Raises:
        ConfigError: the option without a value, or twice.
    """
    found = []
    for position, word in enumerate(argv):
        option, equals, value = word.partition("=")
        if not _is_option(word) or option[2:].replace("-", "_") != name:
            continue
        if not equals:
            if position + 1 >= len(argv) or _is_option(argv[position + 1]):
                raise ConfigError(f"--{name} expects a value, as in '--{name} run.yaml'.")
            value = argv[position + 1]
        found.append(value)
    if len(found) > 1:
        raise ConfigError(f"--{name} was given {len(found)} times ({', '.join(found)}). Give it once.")
    return found[0] if found else None
