"""What people read about settings: the text of `--help` and the tables of keys in the
documentation.

`--help` alone is short: the first sentence on each common setting, its default, and a list of the
sections that have the other settings (`Meta.section`). `--help NAME` explains a section or one
setting, `--help all` everything.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
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
_HELP = Setting(
    name="help [NAME|all]",
    types=(bool,),
    default=False,
    help="Show this text, one option's help, or all help.",
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a command's help that the short text lists and `--help NAME` prints. It has the
    settings whose `Meta.section` is its name, and what stands here."""

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
    """What a command's `--help` says. In texts, paragraphs and tables of two columns are wrapped;
    indented lines of code stay as they are, and fit into 80 columns."""

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
        settings = {setting.name: setting for setting in self.settings if not setting.meta.hidden}
        sections = self._all_sections(settings.values())
        name = topic.lstrip("-").replace("-", "_")
        if name == "":
            paragraphs = self._short_text(settings.values(), sections.values(), width)
        elif name == ALL:
            paragraphs = self._whole_text(settings.values(), sections.values(), width)
        elif name in sections:
            paragraphs = _section_text(sections[name], width)
        elif name in settings:
            paragraphs = _grouped_rows([settings[name]], width)
        else:
            near = did_you_mean(name, [*sections, *settings, ALL])
            known = f" Known: {', '.join([*sections, ALL])}, and every option."
            raise ConfigError(
                f"--help {topic}: no section or option of '{self.command}' has that "
                f"name.{near or known}"
            )
        return "\n\n".join(filter(None, paragraphs)) + "\n"

    def _all_sections(self, settings: Iterable[Setting]) -> dict[str, Section]:
        """The sections by name, with the settings that belong to them."""
        sections = {section.name: section for section in self.sections}
        for setting in settings:
            name = setting.meta.section
            if name:
                section = sections.get(name, Section(name=name))
                sections[name] = dataclasses.replace(section, settings=(*section.settings, setting))
        return sections

    def _short_text(
        self, settings: Iterable[Setting], sections: Iterable[Section], width: int
    ) -> list[str]:
        """The paragraphs on common settings, and the list of sections."""
        common = [setting for setting in settings if not setting.meta.section]
        paragraphs = [*self._head(width), *_grouped_rows([*common, _HELP], width, short=True)]
        by_group: dict[str, list[tuple[str, str]]] = {}
        for section in sections:
            options = ", ".join(f"--{setting.name}" for setting in section.settings)
            by_group.setdefault(section.group, []).append(
                (section.name, section.summary or options)
            )
        for group, rows in by_group.items():
            longest = max(len(name) for name, _ in rows)
            paragraphs.append(_block(f"{group} (--help NAME)", rows, [longest + 4], width))
        return [*paragraphs, wrapped(self.epilog, width)]

    def _whole_text(
        self, settings: Iterable[Setting], sections: Iterable[Section], width: int
    ) -> list[str]:
        """The paragraphs on all settings and sections."""
        paragraphs = [*self._head(width), *_grouped_rows([*settings, _HELP], width)]
        for section in sections:
            if section.declared is not None or section.text:
                paragraphs += _section_text(dataclasses.replace(section, settings=()), width)
        return [*paragraphs, wrapped(self.epilog, width)]

    def _head(self, width: int) -> list[str]:
        usage = _wrap(f"usage: {self.command} {self.usage}", width, indent=7)
        return ["\n".join(usage), wrapped(self.description, width)]


def help_topic(argv: Sequence[str]) -> str | None:
    """What a command line asks help on: None where it asks for none, "" where it names no topic."""
    for position, word in enumerate(argv):
        option, _, topic = word.partition("=")
        if option in ("-h", "--help"):
            following = argv[position + 1 : position + 2]
            return topic or "".join(word for word in following if not word.startswith("-"))
    return None


def _section_text(section: Section, width: int) -> list[str]:
    """The paragraphs of one section."""
    paragraphs = [wrapped(f"{section.name}: {section.summary}", width)] if section.summary else []
    paragraphs += _grouped_rows(section.settings, width)
    if section.declared is not None:
        paragraphs += _grouped_rows(settings_of(section.declared), width, prefix=section.prefix)
    text = section.text if isinstance(section.text, str) else section.text()
    return [*paragraphs, wrapped(text, width)]


# ----------------------------------------------------------------------------------- rows and texts


def _grouped_rows(
    settings: Sequence[Setting], width: int, *, short: bool = False, prefix: str = "--"
) -> list[str]:
    """Settings below the headings of their groups."""
    by_group: dict[str, list[tuple[str, str]]] = {}
    for setting in settings:
        row = (_left(setting, prefix), explained(setting, short=short))
        by_group.setdefault(setting.meta.group, []).append(row)
    heading = "options" if prefix else "parameters"
    return [_block(group or heading, rows, _COLUMNS, width) for group, rows in by_group.items()]


def _left(setting: Setting, prefix: str) -> str:
    """A setting with its value, as it is typed."""
    value = metavar(setting)
    if setting.meta.positional:
        return value
    if setting.types == (bool,):
        negated = "no_" if setting.default is True else ""
        return f"{prefix}{negated}{setting.name}" if prefix else f"{setting.name} true|false"
    return f"{prefix}{setting.name} {value}"


def _block(
    heading: str, rows: Sequence[tuple[str, str]], columns: Sequence[int], width: int
) -> str:
    """Names and explanations below a heading, which begin where they take the fewest lines."""
    blocks: list[list[str]] = []
    for column in columns:
        lines = _wrap(heading, width)
        for left, text in rows:
            lines += _row(left, text, column, width)
        blocks.append(lines)
    shortest = min(blocks, key=len)
    return "\n".join(shortest)


def _row(left: str, text: str, column: int, width: int) -> list[str]:
    if len(left) + 4 <= column:
        return _wrap(f"  {left}".ljust(column) + text, width, indent=column)
    return [f"  {left}", *_wrap(" " * column + text, width, indent=column)]


def terminal_width() -> int:
    """The terminal's columns, 80 without one, from 60 to 120."""
    return max(60, min(120, shutil.get_terminal_size((80, 24)).columns))


def wrapped(text: str, width: int | None = None) -> str:
    """A text with its paragraphs and its tables of two columns at a width; other indented lines as
    they are."""
    width = width or terminal_width()
    paragraphs: list[tuple[str, int]] = []  # with the column at which its further lines begin
    for line in text.strip("\n").splitlines():
        indent = len(line) - len(line.lstrip())
        row = _TABLE_ROW.fullmatch(line)
        before, column = paragraphs[-1] if paragraphs else ("", 0)
        in_paragraph = not indent and not column and before and not before.startswith(" ")
        if line and row is None and (in_paragraph or indent == column > 0):
            paragraphs[-1] = (f"{before} {line.strip()}", column)
        else:
            paragraphs.append((line, len(row[1]) if row else 0))
    lines: list[str] = []
    for paragraph, column in paragraphs:
        is_code = paragraph.startswith((" ", "#")) and not column
        lines += [paragraph] if is_code else _wrap(paragraph, width, indent=column) or [""]
    return "\n".join(lines)


def _wrap(text: str, width: int, *, indent: int = 0) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def explained(setting: Setting, *, short: bool = False) -> str:
    """The help with default and bounds behind it in brackets; short: its first sentence with the
    default."""
    facts = []
    if setting.required:
        facts.append("required")
    elif shows_default(setting):
        facts.append(default_text(setting.default))
    text = setting.help
    if short:
        text = _SENTENCE_END.split(text)[0].removesuffix(".")
    else:
        facts.append(bounds_in_words(setting.meta).strip().removeprefix("of "))
        if not _shows_choices(setting):
            choices = ", ".join(str(choice) for choice in setting.choices if choice is not None)
            facts.append(choices and f"one of {choices}")
    facts = [fact for fact in facts if fact]
    return f"{text.rstrip('.')} ({'; '.join(facts)})" if facts else text


def shows_default(setting: Setting) -> bool:
    """Whether the default says something: not for what has none, for switches, or for what is
    empty."""
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
    word = setting.meta.metavar or _default_metavar(setting)
    return f"{word} ..." if setting.takes_many and not word.endswith("...") else word


def _default_metavar(setting: Setting) -> str:
    if _shows_choices(setting):
        return "|".join(str(choice) for choice in setting.choices if choice is not None)
    if setting.is_mapping:
        return "'{...}'"
    for type_name, word in (("int", "N"), ("float", "X"), ("Path", "PATH")):
        if type_name in str(setting.types[0]):
            return word
    return setting.name.rsplit("_", 1)[-1].upper()
