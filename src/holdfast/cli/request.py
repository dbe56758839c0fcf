"""Requests that may come from a YAML file, from the command line, or from both.

Every option of a command is a key of its YAML too, the command line wins, and all mistakes show at once.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast.cli.options import OptionParser, nearest, with_underscores
from holdfast.errors import ConfigError, did_you_mean

T = TypeVar("T")

_NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|-inf$")


class RequestParser(OptionParser):
    """Options of a command that may also come from a YAML file. Values are kept as text; `Request` turns them into
    numbers.

    Args:
        prog, description, epilog: as of `OptionParser`.
        usage: the line after "usage:".
        yaml: whether there is `--config FILE.yaml`.
    """

    def __init__(self, *, prog: str, description: str, epilog: str, usage: str, yaml: bool = True) -> None:
        super().__init__(prog=prog, description=description, epilog=epilog)
        self.usage = f"{prog} {usage}"
        self._negative_number_matcher = _NEGATIVE  # argparse takes -1e-3 for an option
        self.values: dict[str, str] = {}
        """Option: "one", "many" or "switch"."""
        self.yaml = yaml
        if yaml:
            self.one(
                "config", "FILE.yaml", "options from a file, keys as below without the dashes; the command line wins"
            )

    def one(self, name: str, metavar: str, text: str, *, group: Any = None) -> None:
        """An option with one value."""
        self.values[name] = "one"
        (group or self).add_argument(f"--{name}", metavar=metavar, default=argparse.SUPPRESS, help=text)

    def many(self, name: str, metavar: str, text: str, *, group: Any = None) -> None:
        """An option with one or more values, which may be given several times."""
        self.values[name] = "many"
        (group or self).add_argument(
            f"--{name}", metavar=metavar, nargs="+", action="extend", default=argparse.SUPPRESS, help=text
        )

    def switch(self, name: str, text: str, *, group: Any = None) -> None:
        """An option that is on or off: `--name`, `--name false`, `--no_name`."""
        self.values[name] = "switch"
        for option, value, said in ((name, "true", text), (f"no_{name}", "false", argparse.SUPPRESS)):
            (group or self).add_argument(
                f"--{option}", dest=name, action="store_const", const=value, default=argparse.SUPPRESS, help=said
            )

    def words(self, name: str, metavar: str, text: str) -> None:
        """What stands without a dash, any number of words."""
        self.values[name] = "many"
        self.add_argument(name, metavar=metavar, nargs="*", default=argparse.SUPPRESS, help=text)

    def given(self, argv: list[str]) -> tuple[dict[str, Any], list[str]]:
        """What the words say by option, and a sentence for each unknown option."""
        found, rest = self.parse_known_intermixed_args(list(self._switches(with_underscores(argv))))
        shown = [
            o for a in self._actions for o in a.option_strings if o.startswith("--") and a.help != argparse.SUPPRESS
        ]
        all_options = [*shown, *(f"--{name}" for name in self.values if f"--{name}" not in shown)]
        known = f" Known: {', '.join(sorted(shown))}."
        problems = [
            f"unknown option '{w}'.{did_you_mean(w.partition('=')[0], all_options) or known}"
            for w in rest
            if w.startswith("-")
        ]
        problems = problems or [
            f"unexpected '{w}': expected options, as in 'holdfast {self.prog.split()[-1]} --help'" for w in rest
        ]
        return vars(found), problems

    def _switches(self, words: list[str]) -> Iterator[str]:
        """The words with `--name true`, `--name false` and `--name=false` of switches in the form that needs no
        value."""
        rest = iter(range(len(words)))
        for i in rest:
            name, _, value = words[i].partition("=")
            following = words[i + 1].lower() if i + 1 < len(words) else ""
            if self.values.get(name.removeprefix("--")) != "switch" or not name.startswith("--"):
                yield words[i]
            elif value or following in ("true", "false"):
                if not value:
                    next(rest)
                said = (value or following).lower()
                yield name if said == "true" else name.replace("--", "--no_", 1) if said == "false" else words[i]
            else:
                yield name


class Request:
    """The options of one command: the YAML's, and over them the command line's. Mistakes are collected in `problems`.

    Args:
        parser: the command's options.
        argv: its words.
        translate: turns a YAML of another kind into this command's keys; gets the mapping and the list of problems.

    Raises:
        ConfigError: the YAML file is missing or no YAML.
    """

    def __init__(
        self,
        parser: RequestParser,
        argv: list[str],
        *,
        translate: Callable[[dict[str, Any], list[str]], dict[str, Any] | None] | None = None,
    ) -> None:
        self.parser = parser
        self.given, self.problems = parser.given(argv)
        self.unknown = bool(self.problems)
        """Whether there were options that nobody knows; the words after them may be anything then."""
        self.from_yaml: dict[str, Any] = {}
        self.notes: list[str] = []
        if "config" in self.given:
            self._read_yaml(Path(self.given.pop("config")), translate)

    def _read_yaml(
        self, path: Path, translate: Callable[[dict[str, Any], list[str]], dict[str, Any] | None] | None
    ) -> None:
        found: list[str] = []
        mapping = read_yaml(path)
        translated = translate(mapping, found) if translate is not None else None
        if translated is not None:
            self.notes += translated.pop("notes", [])
            self.from_yaml = translated
        else:
            known = [name for name in self.parser.values if name != "config"]
            for key, value in mapping.items():
                name = str(key).replace("-", "_")
                if name not in known:
                    found.append(
                        f"unknown key '{key}'.{did_you_mean(name, known) or ' Known: ' + ', '.join(known) + '.'}"
                    )
                elif value is not None:
                    self.from_yaml[name] = value
        self.problems += [f"{path}: {p}" for p in found]

    def has(self, name: str) -> bool:
        """Whether an option was given anywhere."""
        return name in self.given or name in self.from_yaml

    def raw(self, name: str) -> Any:
        """An option as it was written; None: not given."""
        return self.given[name] if name in self.given else self.from_yaml.get(name)

    def text(self, name: str, default: T) -> str | T:
        """An option as text; numbers of a YAML too, lists and mappings not."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, (list, dict, bool)):
            return self._refuse(name, "text", value, default)
        return str(value)

    def texts(self, name: str) -> list[str]:
        """An option as a list of texts; a single one counts as a list."""
        value = self.raw(name)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(item, (list, dict, bool)) or item is None for item in items):
            return self._refuse(name, "a list of names", value, [])
        return [str(item) for item in items]

    def number(self, name: str, default: T) -> float | T:
        """An option as a number; text such as "1e-4" counts."""
        value = self.raw(name)
        if value is None:
            return default
        try:
            if isinstance(value, bool):
                raise TypeError
            return float(value)
        except (TypeError, ValueError):
            return self._refuse(name, "a number", value, default)

    def whole(self, name: str, default: T, *, least: int | None = None) -> int | T:
        """An option as a whole number."""
        value = self.raw(name)
        if value is None:
            return default
        expected = "a whole number" + (f" of at least {least}" if least is not None else "")
        try:
            number = float(value) if not isinstance(value, (bool, str)) else int(value)
            if isinstance(value, bool) or not float(number).is_integer() or (least is not None and number < least):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            return self._refuse(name, expected, value, default)
        return int(number)

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        value = self.raw(name)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if value is None or isinstance(value, bool):
            return bool(value)
        return self._refuse(name, "true or false", value, False)

    def choice(self, name: str, known: Sequence[str], default: str) -> str:
        """An option that is one of a few words."""
        value = self.text(name, default)
        if value not in known:
            self.problems.append(
                f"{self.named(name)}: expected one of {', '.join(known)}, got '{value}'.{did_you_mean(value, known)}"
            )
            return default
        return value

    def required(self, name: str, what: str) -> str:
        """An option that has to be there, as text; empty with a problem noted where it is not."""
        if self.raw(name) is None:
            self.problems.append(f"--{name} is missing: {what}")
        return self.text(name, "")

    def named(self, name: str) -> str:
        """How messages call an option: as it was written, dashes or a YAML's key."""
        return f"--{name}" if name in self.given or name not in self.from_yaml else name

    def check(self) -> None:
        """Raises all problems together.

        Raises:
            ConfigError: there are any.
        """
        if self.problems:
            raise ConfigError(list(dict.fromkeys(self.problems)))

    def _refuse(self, name: str, expected: str, value: Any, default: T) -> T:
        said = " ".join(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else value
        self.problems.append(f"{self.named(name)}: expected {expected}, got {said!r}")
        return default


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file's mapping.

    Raises:
        ConfigError: no such file (with the nearest name), no YAML, or no mapping.
    """
    import yaml

    try:
        found = yaml.safe_load(path.expanduser().read_text(encoding="utf-8"))
    except FileNotFoundError:
        beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        near = [str(path.parent / n) for n in nearest(path.name, beside)]
        raise ConfigError(
            f"--config: no such file: {path}.{' Did you mean ' + ' or '.join(near) + '?' if near else ''}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config: {path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"--config: expected keys and values in {path}, got {type(found).__name__}")
    return found
