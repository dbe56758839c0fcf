"""What a settings dataclass declares: its fields as `Setting`s, with the docstring under each as its help.

Bounds and the like stand in the type, `Annotated[float, Meta(ge=0)]`; a field without a docstring takes
`metadata={"help": ...}`, which is how transformers' and TRL's dataclasses explain theirs.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import gc
import inspect
import math
import pathlib
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

T = typing.TypeVar("T")

MISSING = dataclasses.MISSING
"""The default of a setting that has to be given."""

GROUP = "settings_group"
"""Class variable of a settings dataclass: the heading in `--help` of the fields that it declares itself."""
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
    """Name of the section that explains it (`--help NAME`); empty: it is common, and the short help explains it."""
    last: bool = False
    """Whether it stands after all others, though a base class declares it."""
    positional: bool = False
    """Whether the command line takes it as words without an option."""
    repeatable: bool = False
    """Whether the option may be given again, adding to a list."""
    one_word: bool = False
    """Whether such an option takes one word each time, so that words without dashes may follow it."""
    decides: bool = True
    """Whether it is part of what the result is known by (`deciding`): False for folders, logging and the like."""
    hidden: bool = False
    """Left out of `--help` and the tables: what a command hands to its own workers."""
    yaml: bool = True
    """Whether a YAML file may set it."""
    former: tuple[str, ...] = ()
    """Names that the key had before. They are read, and stand in no help and no schema."""
    parse: Callable[[Any], Any] | None = None
    """Takes the value as given, in place of coercion by type, and returns the setting's; raises ValueError, whose text
    (if any) is what was expected. It sees the value of a YAML or the text of a command line."""
    parse_word: Callable[[str], Any] | None = None
    """Turns one word of the command line into what YAML would have given (`sfa:p=0.25` for a method)."""
    expected: str | None = None
    """What a value looks like, in words, where the type does not tell."""
    json_schema: Callable[[], Mapping[str, Any]] | None = None
    """JSON Schema of the value, where the type does not tell."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One key: the type and the bounds of its value, its default and its help."""

    name: str
    types: tuple[Any, ...]
    """The type hints accepted, `NoneType` left out."""
    default: Any = None
    """As the dataclass has it; `MISSING` where the setting has to be given."""
    optional: bool = False
    """Whether null is a value of its own."""
    choices: tuple[Any, ...] = ()
    help: str = ""
    meta: Meta = Meta()
    source: str = ""
    """Which of several dataclasses takes the value, where a request is made of several."""

    @property
    def is_switch(self) -> bool:
        """True where the bare option (`--packing`) means true."""
        return bool in self.types

    @property
    def takes_many(self) -> bool:
        """True where the option takes several words (`--report_to wandb tensorboard`)."""
        return any(typing.get_origin(t) in (list, tuple) for t in self.types)

    @property
    def is_mapping(self) -> bool:
        """True where the value is a mapping, which a command line writes as YAML in quotes."""
        return any(t is dict or typing.get_origin(t) in (dict, Mapping) for t in map(_origin_of, self.types))

    @property
    def required(self) -> bool:
        """True where there is no default."""
        return self.default is MISSING

    @property
    def expected(self) -> str:
        """What a value looks like, in words: "a whole number of at least 2", "true or false", ..."""
        if self.meta.expected:
            return self.meta.expected
        if self.choices:
            return "one of " + ", ".join("null" if c is None else str(c) for c in self.choices)
        words = dict.fromkeys(type_in_words(hint) for hint in self.types)
        return " or ".join(words) + bounds_in_words(self.meta)


def current_name(name: str, known: Mapping[str, Setting]) -> str:
    """The name of a key that is written with one that it had before; any other name as it is."""
    if name not in known:
        for setting in known.values():
            if name in setting.meta.former:
                return setting.name
    return name


def _origin_of(hint: Any) -> Any:
    return typing.get_origin(hint) or hint


MAX_SEED = 2**32 - 1
"""numpy's generator takes no larger one, and libraries seed it with torch's."""
Seed = Annotated[int, Meta(ge=0, le=MAX_SEED)]


def settings_of(cls: Any) -> tuple[Setting, ...]:
    """The fields of a dataclass that its constructor takes, in order, those that are `Meta.last` after the others.

    Raises:
        TypeError: not a dataclass.
    """
    return _settings_of(cls)


@functools.cache
def _settings_of(cls: Any) -> tuple[Setting, ...]:
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise TypeError(f"expected a dataclass of settings, got {cls!r}")
    hints = typing.get_type_hints(cls, include_extras=True)
    docs = _docstrings(cls)
    found = tuple(_setting(f, hints[f.name], docs.get(f.name, "")) for f in dataclasses.fields(cls) if f.init)
    declaring = {name: base for base in reversed(cls.__mro__) for name in vars(base).get("__annotations__", {})}
    grouped = (_in_group(setting, declaring[setting.name]) for setting in found)
    return tuple(sorted(grouped, key=lambda s: s.meta.last))


def _in_group(setting: Setting, cls: type) -> Setting:
    """The setting with heading and section of the class that declares it, where it has none of its own."""
    group = setting.meta.group or vars(cls).get(GROUP, "")
    section = setting.meta.section or vars(cls).get(SECTION, "")
    return dataclasses.replace(setting, meta=dataclasses.replace(setting.meta, group=group, section=section))


def _setting(field: dataclasses.Field[Any], hint: Any, doc: str) -> Setting:
    hint, meta = _unwrap(hint)
    options, optional = union(hint)
    flat: list[Any] = []
    for option in options:
        option, inner = _unwrap(option)
        meta = inner or meta
        flat.append(option)
    meta = meta or Meta()
    choices = meta.choices or tuple(field.metadata.get("choices", ()))
    for option in flat:
        if isinstance(option, type) and issubclass(option, enum.Enum):
            choices = tuple(member.value for member in option)
        elif typing.get_origin(option) is typing.Literal and len(flat) == 1:
            choices = typing.get_args(option)
    default = field.default
    if default is MISSING and field.default_factory is not MISSING:
        default = field.default_factory()
    return Setting(
        name=field.name,
        types=tuple(flat),
        default=default.value if isinstance(default, enum.Enum) else default,
        optional=optional,
        choices=choices,
        help=" ".join((doc or str(field.metadata.get("help", ""))).replace("%%", "%").split()),
        meta=meta,
    )


def _unwrap(hint: Any) -> tuple[Any, Meta | None]:
    if typing.get_origin(hint) is typing.Annotated:
        inner, *marks = typing.get_args(hint)
        metas = [mark for mark in marks if isinstance(mark, Meta)]
        return inner, functools.reduce(_over, metas) if metas else None
    return hint, None


def _over(inner: Meta, outer: Meta) -> Meta:
    """What an annotation says, and over it what is said where it is used."""
    defaults = Meta()
    said = {f.name: getattr(outer, f.name) for f in dataclasses.fields(Meta)}
    return dataclasses.replace(inner, **{name: v for name, v in said.items() if v != getattr(defaults, name)})


def union(hint: Any) -> tuple[tuple[Any, ...], bool]:
    """The members of a union without None, and whether None was among them."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return tuple(p for p in parts if p is not types.NoneType), types.NoneType in parts


def _docstrings(cls: type) -> dict[str, str]:
    """The string under each field, those of base classes included; empty where the source is not at hand."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _documented(base.__module__).get(base.__qualname__, {})
    return found


def parse_source(source: str) -> ast.Module:
    """The tree of a module's source, while no garbage is collected: CPython 3.11 fails with "AST constructor recursion
    depth mismatch" where a collection runs Python code in the middle of it (python/cpython#106905)."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if collecting:
            gc.enable()


@functools.cache
def _documented(module: str) -> dict[str, dict[str, str]]:
    try:
        tree = parse_source(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return {}
    found: dict[str, dict[str, str]] = {}

    def walk(body: list[ast.stmt], path: str) -> None:
        for node in body:
            if not isinstance(node, ast.ClassDef):
                continue
            name = f"{path}{node.name}"
            mine = found.setdefault(name, {})
            for one, after in zip(node.body, node.body[1:], strict=False):
                if not (isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)):
                    continue
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    mine[one.target.id] = inspect.cleandoc(str(after.value.value))
            walk(node.body, name + ".")

    walk(tree.body, "")
    return found


def deciding(value: Any) -> dict[str, Any]:
    """The fields of a settings value that decide what comes out, by name (`Meta.decides`, or
    `metadata={"decides": False}`)."""
    known = {s.name: s for s in settings_of(type(value))}
    return {
        f.name: getattr(value, f.name)
        for f in dataclasses.fields(value)
        if f.name in known and known[f.name].meta.decides and f.metadata.get("decides", True)
    }


def part_of(value: Any, cls: type[T]) -> T:
    """The settings of a request that one of the dataclasses it is made of declares, as a value of that dataclass."""
    return cls(**{s.name: getattr(value, s.name) for s in settings_of(cls)})


# ------------------------------------------------------------------------------------------------ words for people


def type_in_words(hint: Any) -> str:
    """A type as a person would say it: "a whole number", "a list of texts"."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        inner, meta = _unwrap(hint)
        return (meta and meta.expected) or type_in_words(inner) + bounds_in_words(meta or Meta())
    if origin is typing.Literal:
        return " or ".join(str(a).lower() if isinstance(a, bool) else str(a) for a in typing.get_args(hint))
    if origin in (list, tuple) or hint in (list, tuple):
        args = [a for a in typing.get_args(hint) if a is not Ellipsis]
        item = _unwrap(args[0])[0] if args else Any
        plural = {str: "texts", int: "whole numbers", float: "numbers"}
        kind = "mappings" if dataclasses.is_dataclass(item) else plural.get(item, "values")
        many = f"{len(args)} " if origin is tuple and Ellipsis not in typing.get_args(hint) and args else ""
        return f"a list of {many}{kind}"
    if hint is dict or origin in (dict, Mapping) or dataclasses.is_dataclass(hint):
        return "a mapping"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "one of " + ", ".join(str(m.value) for m in hint)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", types.NoneType: "nothing"}
    if isinstance(hint, type) and issubclass(hint, pathlib.PurePath):
        return "a path"
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def bounds_in_words(meta: Meta) -> str:
    """The bounds as they follow "a number": " of at least 2", " above 0 and at most 1"."""
    ge, gt, le, lt = (_in_full(bound) for bound in (meta.ge, meta.gt, meta.le, meta.lt))
    low = f"at least {ge}" if ge else f"above {gt}" if gt else ""
    high = f"at most {le}" if le else f"below {lt}" if lt else ""
    if not low and not high:
        return f" of {meta.least} or more items" if meta.least else ""
    of = "of " if low.startswith("at least") or (not low and high.startswith("at most")) else ""
    return " " + of + " and ".join(w for w in (low, high) if w)


def _in_full(bound: float | None) -> str:
    return "" if bound is None else f"{bound:,}" if isinstance(bound, int) and abs(bound) >= 10**6 else f"{bound:g}"


def in_bounds(value: float, meta: Meta) -> bool:
    """Whether a number lies within the bounds; NaN never does."""
    return (
        not math.isnan(value)
        and (math.isfinite(value) or not meta.finite)
        and (meta.ge is None or value >= meta.ge)
        and (meta.gt is None or value > meta.gt)
        and (meta.le is None or value <= meta.le)
        and (meta.lt is None or value < meta.lt)
    )
