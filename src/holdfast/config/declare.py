"""What a settings dataclass declares: its fields as `Setting`s, with the docstring under each as
its help.

Bounds and the like stand in the type, `Annotated[float, Meta(ge=0)]`; a field without a docstring
takes `metadata={"help": ...}`, which is how transformers' and TRL's dataclasses explain theirs.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from holdfast.config.docstrings import field_docstrings

T = typing.TypeVar("T")

MISSING = dataclasses.MISSING
"""The default of a setting that has to be given."""

GROUP = "settings_group"
"""Class variable of a settings dataclass: the heading in `--help` of the fields that it declares
itself."""
SECTION = "settings_section"
"""The same for `Meta.section`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Meta:
    """What a type does not say of a setting; stands in its `Annotated`."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    """Bounds of a number, or of every number of a list."""
    finite: bool = True
    """Whether a number has to be finite; NaN is refused in any case."""
    least: int | None = None
    """Fewest items of a list."""
    choices: tuple[Any, ...] = ()
    """The values allowed, for a type that is no `Literal`."""
    metavar: str | None = None
    """What `--help` shows for the value."""
    group: str = ""
    """Heading in `--help` and in the table of keys."""
    section: str = ""
    """Name of the section that explains it (`--help NAME`); empty: it is common, and the short help
    explains it."""
    last: bool = False
    """Whether it stands after all others, though a base class declares it."""
    positional: bool = False
    """Whether the setting is positional on the command line (words without an option)."""
    repeatable: bool = False
    """Whether the option may be given again, adding to a list."""
    one_word: bool = False
    """Whether such an option takes one word each time, so that words without dashes may follow
    it."""
    decides: bool = True
    """Whether it is part of what the result is known by (`deciding`): False for folders, logging
    and the like."""
    hidden: bool = False
    """Left out of `--help` and the tables: what a command hands to its own workers."""
    yaml: bool = True
    """Whether a YAML file may set it."""
    former: tuple[str, ...] = ()
    """Names that the key had before. They are read, and stand in no help and no schema."""
    parse: Callable[[Any], Any] | None = None
    """Takes the value as given, in place of coercion by type, and returns the setting's; raises
    ValueError, whose text (if any) is what was expected. It sees the value of a YAML or the text of
    a command line."""
    parse_word: Callable[[str], Any] | None = None
    """Turns one word of the command line into what YAML would have given (`sfa:p=0.25` for a
    method)."""
    expected: str | None = None
    """What a value looks like, in words, where the type does not tell."""
    json_schema: Callable[[], Mapping[str, Any]] | None = None
    """JSON Schema of the value, where the type does not tell."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One key: the type and the bounds of its value, its default and its help."""

    name: str
    types: tuple[Any, ...]
    """The accepted type hints, without `NoneType`."""
    default: Any = None
    """Default value of the field in the dataclass; `MISSING` if the setting is required."""
    optional: bool = False
    """Whether null is a value of its own."""
    choices: tuple[Any, ...] = ()
    help: str = ""
    meta: Meta = Meta()
    source: str = ""
    """Index of the dataclass that gets the value, if a request has several dataclasses."""

    @property
    def is_switch(self) -> bool:
        """True where the bare option (`--packing`) means true."""
        return bool in self.types

    @property
    def takes_many(self) -> bool:
        """True where the option takes several words (`--report_to wandb tensorboard`)."""
        return any(typing.get_origin(hint) in (list, tuple) for hint in self.types)

    @property
    def is_mapping(self) -> bool:
        """True where the value is a mapping, which a command line writes as YAML in quotes."""
        return any((typing.get_origin(hint) or hint) in (dict, Mapping) for hint in self.types)

    @property
    def required(self) -> bool:
        """True where there is no default."""
        return self.default is MISSING


def current_name(name: str, known: Mapping[str, Setting]) -> str:
    """The name of a key that is written with one that it had before; any other name as it is."""
    if name not in known:
        for setting in known.values():
            if name in setting.meta.former:
                return setting.name
    return name


MAX_SEED = 2**32 - 1
"""numpy's generator takes no larger one, and libraries seed it with torch's."""
Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]


def settings_of(cls: Any) -> tuple[Setting, ...]:
    """The fields of a dataclass that its constructor takes, in order, those that are `Meta.last`
    after the others.

    Raises:
        TypeError: not a dataclass.
    """
    return _settings_of(cls)


@functools.cache
def _settings_of(cls: Any) -> tuple[Setting, ...]:
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise TypeError(f"expected a dataclass of settings, got {cls!r}")
    hints = typing.get_type_hints(cls, include_extras=True)
    texts = field_docstrings(cls)
    declaring = {
        name: base
        for base in reversed(cls.__mro__)
        for name in vars(base).get("__annotations__", {})
    }
    settings = []
    for field in dataclasses.fields(cls):
        if field.init:
            setting = _setting(field, hints[field.name], texts.get(field.name, ""))
            settings.append(_in_group(setting, declaring[field.name]))
    return tuple(sorted(settings, key=lambda setting: setting.meta.last))


def _in_group(setting: Setting, cls: type) -> Setting:
    """The setting with heading and section of the class that declares it, where it has none of its
    own."""
    group = setting.meta.group or vars(cls).get(GROUP, "")
    section = setting.meta.section or vars(cls).get(SECTION, "")
    return dataclasses.replace(
        setting, meta=dataclasses.replace(setting.meta, group=group, section=section)
    )


def _setting(field: dataclasses.Field[Any], hint: Any, docstring: str) -> Setting:
    hint, meta = unwrap(hint)
    members, optional = union(hint)
    types_ = []
    for member in members:
        member, member_meta = unwrap(member)
        types_.append(member)
        meta = member_meta or meta
    meta = meta or Meta()
    help_text = (docstring or str(field.metadata.get("help", ""))).replace("%%", "%")
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return Setting(
        name=field.name,
        types=tuple(types_),
        default=default.value if isinstance(default, enum.Enum) else default,
        optional=optional,
        choices=_choices(types_) or meta.choices or tuple(field.metadata.get("choices", ())),
        help=" ".join(help_text.split()),
        meta=meta,
    )


def _choices(types_: list[Any]) -> tuple[Any, ...]:
    """The values that types allow: those of an enumeration, also beside text, and of a `Literal`
    that is alone."""
    for hint in types_:
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return tuple(member.value for member in hint)
        if typing.get_origin(hint) is typing.Literal and len(types_) == 1:
            return typing.get_args(hint)
    return ()


def unwrap(hint: Any) -> tuple[Any, Meta | None]:
    """The type in an `Annotated`, and its `Meta`: of several, what the outer one says goes over the
    inner one's."""
    if typing.get_origin(hint) is not Annotated:
        return hint, None
    inner, *marks = typing.get_args(hint)
    metas = [mark for mark in marks if isinstance(mark, Meta)]
    return inner, functools.reduce(_over, metas) if metas else None


def _over(inner: Meta, outer: Meta) -> Meta:
    stated = {}
    for field in dataclasses.fields(Meta):
        value = getattr(outer, field.name)
        if value != field.default:
            stated[field.name] = value
    return dataclasses.replace(inner, **stated)


def union(hint: Any) -> tuple[tuple[Any, ...], bool]:
    """The members of a union without None, and whether None was among them."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if is_union else (hint,)
    return tuple(
        member for member in members if member is not types.NoneType
    ), types.NoneType in members


def deciding(value: Any) -> dict[str, Any]:
    """The fields of a settings value that decide what comes out, by name (`Meta.decides`)."""
    names = {setting.name for setting in settings_of(type(value)) if setting.meta.decides}
    fields = dataclasses.fields(value)
    return {field.name: getattr(value, field.name) for field in fields if field.name in names}


def part_of(value: Any, cls: type[T]) -> T:
    """The settings of a request that one of the dataclasses it is made of declares, as a value of
    that dataclass."""
    return cls(**{s.name: getattr(value, s.name) for s in settings_of(cls)})


def bounds_in_words(meta: Meta) -> str:
    """The bounds as they follow "a number": " of at least 2", " above 0 and at most 1"."""
    words = []
    if meta.ge is not None:
        words.append(f"at least {_digits(meta.ge)}")
    elif meta.gt is not None:
        words.append(f"above {_digits(meta.gt)}")
    if meta.le is not None:
        words.append(f"at most {_digits(meta.le)}")
    elif meta.lt is not None:
        words.append(f"below {_digits(meta.lt)}")
    if not words:
        return f" of {meta.least} or more items" if meta.least else ""
    of = "of " if words[0].startswith("at ") else ""
    return f" {of}{' and '.join(words)}"


def _digits(bound: float) -> str:
    """A bound in full, with commas from a million on."""
    return f"{bound:,}" if isinstance(bound, int) and abs(bound) >= 10**6 else f"{bound:g}"


def in_bounds(value: float, meta: Meta) -> bool:
    """Whether a number lies within the bounds; NaN never does."""
    if math.isnan(value) or (meta.finite and math.isinf(value)):
        return False
    above = (meta.ge is None or value >= meta.ge) and (meta.gt is None or value > meta.gt)
    return above and (meta.le is None or value <= meta.le) and (meta.lt is None or value < meta.lt)
