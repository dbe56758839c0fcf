"""JSON Schema (draft 2020-12) of declared settings, for editors that complete and check YAML.

One comment line at the head of a file makes an editor with a YAML language server use it:

    # yaml-language-server: $schema=train.schema.json
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from holdfast.config.declare import Setting, settings_of
from holdfast.config.decode import Section, kind_of
from holdfast.config.kinds import Kind, any_of
from holdfast.support.files import to_jsonable

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(
    settings: Iterable[Setting] | type, *, title: str, description: str = ""
) -> dict[str, Any]:
    """The schema of a mapping of settings.

    Args:
        settings: or a settings dataclass.
        title: of the schema.
        description: one paragraph.
    """
    declared = settings_of(settings) if isinstance(settings, type) else settings
    return {"$schema": DRAFT, "title": title, "description": description, **object_schema(declared)}


def object_schema(settings: Iterable[Setting]) -> dict[str, Any]:
    """The schema of a mapping without `$schema` and title."""
    settings = [setting for setting in settings if setting.meta.yaml]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {setting.name: setting_schema(setting) for setting in settings},
        "additionalProperties": False,
    }
    required = [setting.name for setting in settings if setting.required]
    if required:
        schema["required"] = required
    return schema


def setting_schema(setting: Setting) -> dict[str, Any]:
    """The schema of one setting's value, with help and default."""
    schema = _value_schema(setting)
    if setting.help:
        schema["description"] = setting.help
    if not setting.required and not dataclasses.is_dataclass(setting.default):
        schema["default"] = to_jsonable(setting.default)
    return schema


def _value_schema(setting: Setting) -> dict[str, Any]:
    meta = setting.meta
    if meta.json_schema is not None:
        return any_of([dict(meta.json_schema())], optional=setting.optional)
    if setting.choices:
        null = [None] if setting.optional and None not in setting.choices else []
        return {"enum": [*setting.choices, *null]}
    if meta.parse is not None and meta.expected:
        return {}
    return any_of(
        [schema_of(kind_of(hint, meta)) for hint in setting.types], optional=setting.optional
    )


def schema_of(kind: Kind) -> dict[str, Any]:
    """The schema of a kind of value."""
    if isinstance(kind, Section):
        return object_schema(settings_of(kind.cls))
    return kind.schema(schema_of)
