"""What differs between two JSON values, and files of recorded ones."""

from __future__ import annotations

import json
import lzma
import math
from pathlib import Path
from typing import Any

NEAR = 1e-12
"""Relative difference of numbers that are the same."""
LARGEST = 4_000
"""Bytes of a file that is kept as text; a larger one is compressed."""
SHOWN = 160
"""Characters of a value in a message."""


def differences(old: Any, new: Any, path: str, near: float = NEAR) -> list[str]:
    """A line for each difference: numbers beyond rounding, anything else at all."""
    if isinstance(old, dict) and isinstance(new, dict):
        lines = [f"{path}: missing {key}: {brief(old[key])}" for key in old if key not in new]
        lines += [f"{path}: new {key}: {brief(new[key])}" for key in new if key not in old]
        for key in old:
            if key in new:
                lines += differences(old[key], new[key], f"{path} / {key}", near)
        return lines
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return [f"{path}: {len(old)} entries there, {len(new)} now: {brief(old)} -> {brief(new)}"]
        lines = []
        for place, (before, after) in enumerate(zip(old, new, strict=True)):
            lines += differences(before, after, f"{path}[{place}]", near)
        return lines
    if is_number(old) and is_number(new):
        same = math.isclose(old, new, rel_tol=near, abs_tol=near)
    else:
        same = old == new and type(old) is type(new)
    return [] if same else [f"{path}: {brief(old)} -> {brief(new)}"]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def write_text(path: Path, text: str) -> None:
    """Writes a file, or PATH.xz in its place where it would be large."""
    packed = packed_path(path)
    data = text.encode()
    if len(data) > LARGEST:
        packed.write_bytes(lzma.compress(data))
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(data)
        packed.unlink(missing_ok=True)


def read_text(path: Path) -> str:
    """What `write_text` wrote."""
    packed = packed_path(path)
    return lzma.decompress(packed.read_bytes()).decode() if packed.is_file() else path.read_text(encoding="utf-8")


def is_recorded(path: Path) -> bool:
    return path.is_file() or packed_path(path).is_file()


def packed_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.xz")
