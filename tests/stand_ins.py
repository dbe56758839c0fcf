"""Files that stand in for models and data where only their being there counts."""

from __future__ import annotations

import re
from pathlib import Path


def put_model(folder: str | Path) -> Path:
    """A folder that looks like a model's."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text("{}")
    (place / "model.safetensors").write_bytes(b"")
    return place


def put_data(text: str) -> None:
    """A file of one row for every `.jsonl` that a text names."""
    for name in set(re.findall(r"[\w/]+\.jsonl\b", text)):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        row = (
            '{"question": "a", "options": ["a", "b", "c", "d"], "answer": 0}'
            if "questions" in name
            else '{"text": "a"}'
        )
        Path(name).write_text(row + "\n")
