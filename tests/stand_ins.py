"""Files that stand in for models and data where only their being there counts."""

from __future__ import annotations

import json
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
    """A file of one row for every `.jsonl` that a text names, and every `.json` of a folder `data`."""
    for name in set(re.findall(r"[\w/]+\.jsonl\b|\bdata/[\w/]+\.json\b", text)):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        row = (
            '{"question": "a", "options": ["a", "b", "c", "d"], "answer": 0}'
            if "questions" in name
            else '{"instruction": "a", "output": "a"}'
            if name.endswith(".json")
            else '{"text": "a"}'
        )
        Path(name).write_text(row + "\n")


def put_study(file: Path, model: str) -> None:
    """A sweep of two trials over `rows.jsonl`."""
    study = {
        "train": {
            "model_name_or_path": model,
            "dataset_name": "rows.jsonl",
            "max_steps": 2,
            "use_cpu": True,
            "evaluation": {"keep": ["rows.jsonl"], "learn": ["rows.jsonl"]},
        },
        "arms": [{"l2": {"coefficient": [0.01, 0.1]}}],
    }
    file.write_text(json.dumps(study))
