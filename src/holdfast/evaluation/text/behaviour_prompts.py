"""The prompts that `behaviour: shipped` asks: templates and values of `behaviour_prompts.yaml`, each
template with each value, always the same 200 in the same order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COLUMNS = ("tools", "json_keys", "language", "harmful", "category")
"""What a row may have beside what is asked; null where it says nothing."""


def shipped_prompts() -> list[dict[str, Any]]:
    """Rows with the column "prompt" and `COLUMNS`; tools are JSON text."""
    import yaml

    file = Path(__file__).with_suffix(".yaml")
    rows = []
    for group in yaml.safe_load(file.read_text(encoding="utf-8")):
        columns = {column: group.get(column) for column in COLUMNS}
        if columns["tools"] is not None:
            columns["tools"] = json.dumps(columns["tools"])
        for value in group["values"]:
            for template in group["templates"]:
                rows.append({"prompt": template.replace("{}", value), **columns})
    return rows
