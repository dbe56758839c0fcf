"""What differs between two JSON values."""

from __future__ import annotations

import json
import math
from typing import Any

NEAR = 1e-12
"""Relative difference of numbers that are the same."""
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
