"""JSON Schema (draft 2020-12) of declared settings, for editors that complete and check YAML.

One comment line at the head of a file makes an editor with a YAML language server use it:

    # yaml-language-server: $schema=train.schema.json
"""

from __future__ import annotations

import dataclasses
import enum
import pathlib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.config.declare import MISSING, Meta, Setting, _unwrap, settings_of, union
from holdfast.support.files import to_jsonable

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(settings: Iterable[Setting] | type, *, title: str, description: str = "") -> dict[str, Any]:
    """The schema of a mapping of settings.

    Args:
        settings: or a settings dataclass.
        title: of the schema.
        description: one paragraph.
    """
    found = settings_of(settings) if isinstance(settings, type) else tuple(settings)
    return {"$schema": DRAFT, "title": title, "description": description, **object_schema(found)}


def object_schema(settings: Iterable[Setting]) -> dict[str, Any]:
    """The schema of a mapping without `$schema` and title."""
    found = [s for s in settings if s.meta.yaml]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {s.name: setting_schema(s) for s in found},
        "additionalProperties": False,
    }
    if required := [s.name for s in found if s.required]:
        schema["required"] = required
    return schema


def setting_schema(setting: Setting) -> dict[str, Any]:
    """The schema of one setting's value, with help and default."""
    if setting.meta.json_schema is not None:
        schema = _any_of([dict(setting.meta.json_schema())], optional=setting.optional)
    elif setting.choices:
        schema = {"enum": [*setting.choices, *([None] if setting.optional and None not in setting.choices else [])]}
    elif setting.meta.parse is not None and setting.meta.expected:
        schema = {}
    else:
        schema = _any_of([_type(hint, setting.meta) for hint in setting.types], optional=setting.optional)
    if setting.help:
        schema["description"] = setting.help
    if setting.default is not MISSING and not dataclasses.is_dataclass(setting.default):
        schema["default"] = to_jsonable(setting.default)
    return schema


def _any_of(schemas: list[dict[str, Any]], *, optional: bool) -> dict[str, Any]:
    if any(not s for s in schemas):
        return {}
    unique = [s for i, s in enumerate(schemas) if s not in schemas[:i]] + ([{"type": "null"}] if optional else [])
    return unique[0] if len(unique) == 1 else {"anyOf": unique}


def _type(hint: Any, meta: Meta) -> dict[str, Any]:
    hint, own = _unwrap(hint)
    meta = own or meta
    if meta.json_schema is not None and own is not None:
        return dict(meta.json_schema())
    if own is not None and own.parse is not None:
        return {}
    options, optional = union(hint)
    if len(options) > 1 or optional:
        return _any_of([_type(o, meta) for o in options], optional=optional)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": list(args)}
    if hint in (list, tuple) or origin in (list, tuple):
        items = _type(args[0], dataclasses.replace(meta, least=None)) if args else {}
        array = {"type": "array", "items": items, **({"minItems": meta.least} if meta.least else {})}
        single = items.get("type") not in (None, "object", "array")
        return {"anyOf": [array, items]} if single else array  # `seeds: 3` is one seed
    if hint is dict or origin in (dict, Mapping):
        values = _type(args[1], meta) if len(args) == 2 else {}
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    if dataclasses.is_dataclass(hint):
        return object_schema(settings_of(typing.cast(type, hint)))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if isinstance(hint, type) and issubclass(hint, pathlib.PurePath):
        return {"type": "string"}
    plain = {bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null"}.get(hint)
    if plain in ("integer", "number"):
        return {"type": plain, **_bounds(meta)}
    if plain == "string":
        return {"type": ["string", "integer"]}  # `run_name: 7` is taken as text
    return {"type": plain} if plain else {}


def _bounds(meta: Meta) -> dict[str, float]:
    named = {"minimum": meta.ge, "exclusiveMinimum": meta.gt, "maximum": meta.le, "exclusiveMaximum": meta.lt}
    return {name: value for name, value in named.items() if value is not None}
