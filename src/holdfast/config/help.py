"""What people read about settings: the text of `--help` and the tables of keys in the documentation.

`--help` alone is short: the first sentence on each common setting, its default, and a list of the sections that have
the other settings (`Meta.section`). `--help NAME` explains a section or one setting, `--help all` everything.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from holdfast.config.declare import Setting, bounds_in_words, settings_of
from holdfast.errors import ConfigError, did_you_mean

ALL = "all"
"""What follows `--help` for the whole text."""
_COLUMNS = (26, 30, 35)
"""Where the explanations of a group may begin; the one that takes the fewest lines is chosen."""
_TABLE_ROW = re.compile(r"( *\S+(?: \S+)*  +)([^\s#].*)")
"""A line of two columns, a name and what it is; not code with a comment."""
_SENTENCE_END = re.compile(r"(?<=[^.])\. (?=[A-Z])")
_HELP = Setting(name="help [NAME|all]", types=(bool,), default=False, help="This text, an option, or everything.")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a command's help that the short text lists and `--help NAME` prints. It has the settings whose
    `Meta.section` is its name, and what stands here."""

    name: str
    summary: str = ""
    """One line for the list; empty: the names of its options."""
    group: str = "more"
    """Heading of the list."""
    declared: type | None = None
    """A dataclass whose fields are settings of the section too, such as a method's parameters."""
    prefix: str = "--"
    """What stands before the names of these."""
    settings: tuple[Setting, ...] = ()
    text: str | Callable[[], str] = ""
    """More of it, or what reads it."""


@dataclass(frozen=True, kw_only=True)
class Help:
    """What a command's `--help` says. In texts, paragraphs and tables of two columns are wrapped; indented lines of
    code stay as they are, and fit into 80 columns."""

    command: str
    """As typed: "holdfast data prepare"."""
    usage: str = "[options]"
    """What follows the command in the first line."""
    settings: Sequence[Setting] = ()
    """In the order shown; hidden ones are left out."""
    sections: Sequence[Section] = ()
    description: str = ""
    epilog: str = ""

    def text(self, topic: str = "") -> str:
        """The text; ends with a newline.

        Args:
            topic: what follows `--help`: nothing, the name of a section or of a setting, or "all".

        Raises:
            ConfigError: no such topic, with the nearest name.
        """
        width = terminal_width()
        settings = {s.name: s for s in self.settings if not s.meta.hidden}
        sections = self._all_sections(settings.values())
        name = topic.lstrip("-").replace("-", "_")
        if name in ("", ALL):
            parts = self._parts(list(settings.values()), sections, width, whole=name == ALL)
        elif name in sections:
            parts = _section_parts(sections[name], width)
        elif name in settings:
            parts = _grouped_rows([settings[name]], width)
        else:
            near = did_you_mean(name, [*sections, *settings, ALL])
            known = f" Known: {', '.join([*sections, ALL])}, and every option."
            raise ConfigError(f"--help {topic}: no section or option of '{self.command}' has that name.{near or known}")
        return "\n\n".join(part for part in parts if part) + "\n"

    def _all_sections(self, settings: Iterable[Setting]) -> dict[str, Section]:
        """The sections by name, with the settings that belong to them."""
        sections = {section.name: section for section in self.sections}
        for setting in settings:
            if name := setting.meta.section:
                section = sections.get(name, Section(name=name))
                sections[name] = dataclasses.replace(section, settings=(*section.settings, setting))
        return sections

    def _parts(
        self, settings: Sequence[Setting], sections: Mapping[str, Section], width: int, *, whole: bool
    ) -> list[str]:
        """The paragraphs of the short or the whole text."""
        usage = _wrap(f"usage: {self.command} {self.usage}", width, indent=7)
        parts = ["\n".join(usage), wrapped(self.description, width)]
        common = [s for s in settings if whole or not s.meta.section]
        parts += _grouped_rows([*common, _HELP], width, short=not whole)
        if whole:
            for section in sections.values():
                if section.declared is not None or section.text:
                    parts += _section_parts(dataclasses.replace(section, settings=()), width)
        else:
            for group in dict.fromkeys(section.group for section in sections.values()):
                rows = [_list_row(section) for section in sections.values() if section.group == group]
                longest = max(len(name) for name, _ in rows)
                parts.append(_block(f"{group} (--help NAME)", rows, [longest + 4], width))
        return [*parts, wrapped(self.epilog, width)]


def help_topic(argv: Sequence[str]) -> str | None:
    """What a command line asks help on: None where it asks for none, "" where it names no topic."""
    for position, word in enumerate(argv):
        option, _, topic = word.partition("=")
        if option in ("-h", "--help"):
            following = argv[position + 1 : position + 2]
            return topic or "".join(word for word in following if not word.startswith("-"))
    return None


def _list_row(section: Section) -> tuple[str, str]:
    """A section in the list: its name, and what it is on."""
    return section.name, section.summary or ", ".join(f"--{setting.name}" for setting in section.settings)


def _section_parts(section: Section, width: int) -> list[str]:
    """The paragraphs of one section."""
    parts = [wrapped(f"{section.name}: {section.summary}", width)] if section.summary else []
    parts += _grouped_rows(section.settings, width)
    if section.declared is not None:
        parts += _grouped_rows(settings_of(section.declared), width, prefix=section.prefix)
    text = section.text if isinstance(section.text, str) else section.text()
    return [*parts, wrapped(text, width)]


# ------------------------------------------------------------------------------------------------------- rows and texts


def _grouped_rows(settings: Sequence[Setting], width: int, *, short: bool = False, prefix: str = "--") -> list[str]:
    """Settings below the headings of their groups."""
    parts = []
    for group in dict.fromkeys(s.meta.group for s in settings):
        rows = [(_left(s, prefix), explained(s, short=short)) for s in settings if s.meta.group == group]
        parts.append(_block(group or ("options" if prefix else "parameters"), rows, _COLUMNS, width))
    return parts


def _left(setting: Setting, prefix: str) -> str:
    """A setting with its value, as it is typed."""
    value = metavar(setting)
    if setting.meta.positional:
        return value
    if setting.types == (bool,):
        negated = "no_" if setting.default is True else ""
        return f"{prefix}{negated}{setting.name}" if prefix else f"{setting.name} true|false"
    return f"{prefix}{setting.name} {value}"


def _block(heading: str, rows: Sequence[tuple[str, str]], columns: Sequence[int], width: int) -> str:
    """Names and explanations below a heading."""
    blocks: list[list[str]] = []
    for column in columns:
        lines = _wrap(heading, width)
        for left, text in rows:
            lines += _row(left, text, column, width)
        blocks.append(lines)
    shortest = min(blocks, key=len)
    return "\n".join(shortest)


def _row(left: str, text: str, column: int, width: int) -> list[str]:
    lead = f"  {left}".ljust(column)
    if len(left) + 4 <= column:
        return _wrap(lead + text, width, indent=column)
    return [f"  {left}", *_wrap(" " * column + text, width, indent=column)]


def terminal_width() -> int:
    """The terminal's columns, 80 without one, from 60 to 120."""
    return max(60, min(120, shutil.get_terminal_size((80, 24)).columns))


def wrapped(text: str, width: int | None = None) -> str:
    """A text with its paragraphs and its tables of two columns at a width; other indented lines as they are."""
    width = width or terminal_width()
    lines: list[tuple[str, int]] = []
    for line in text.strip("\n").splitlines():
        indent = len(line) - len(line.lstrip())
        row = _TABLE_ROW.fullmatch(line)
        last, last_indent = lines[-1] if lines else ("", 0)
        in_paragraph = not indent and not last_indent and last and not last.startswith(" ")
        if line and row is None and (in_paragraph or indent == last_indent > 0):
            lines[-1] = (f"{last} {line.strip()}", last_indent)
        else:
            lines.append((line, len(row[1]) if row else 0))
    shown: list[str] = []
    for line, indent in lines:
        code = line.startswith((" ", "#")) and not indent
        shown += [line] if code else _wrap(line, width, indent=indent) or [""]
    return "\n".join(shown)


def _wrap(text: str, width: int, *, indent: int = 0) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def explained(setting: Setting, *, short: bool = False) -> str:
    """The help with default and bounds behind it in brackets; short: its first sentence with the default."""
    facts = [default_text(setting.default)] if shows_default(setting) else ["required"] if setting.required else []
    text = setting.help
    if short:
        text = _SENTENCE_END.split(text)[0].removesuffix(".")
    elif bounds := bounds_in_words(setting.meta).strip().removeprefix("of "):
        facts.append(bounds)
    if not short and setting.choices and not _shows_choices(setting):
        facts.append(f"one of {', '.join(str(choice) for choice in setting.choices if choice is not None)}")
    return f"{text.rstrip('.')} ({'; '.join(facts)})" if facts else text


def shows_default(setting: Setting) -> bool:
    """Whether the default says something: not for what has none, for switches, or for what is empty."""
    if setting.required or setting.types == (bool,) or dataclasses.is_dataclass(setting.default):
        return False
    return setting.default not in (None, "", (), [], {})


def default_text(default: Any) -> str:
    """A default as a person would type it."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:g}"
    if isinstance(default, (list, tuple)):
        return " ".join(default_text(item) for item in default)
    if isinstance(default, (str, int, PurePath)):
        return str(default)
    return repr(default) if not dataclasses.is_dataclass(default) else type(default).__name__


def _shows_choices(setting: Setting) -> bool:
    return bool(setting.choices) and len("|".join(map(str, setting.choices))) <= 40


def metavar(setting: Setting) -> str:
    """What stands for the value in `--help`: "N", "FOLDER", "a|b"."""
    if setting.meta.metavar:
        word = setting.meta.metavar
    elif _shows_choices(setting):
        word = "|".join(str(c) for c in setting.choices if c is not None)
    elif setting.is_mapping:
        word = "'{...}'"
    else:
        first = str(setting.types[0]) if setting.types else ""
        number = "N" if "int" in first else "X" if "float" in first else ""
        word = number or ("PATH" if "Path" in first else setting.name.rsplit("_", 1)[-1].upper())
    return f"{word} ..." if setting.takes_many and not word.endswith("...") else word
