"""The method of docs/extending.md, as a user would have it in a file."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
REFERENCE = "my_method.py:Dropback"


def write_method(folder: Path, *, name: str = "my_method.py", more: str = "") -> Path:
    """The page's code block, word for word, and what comes after it."""
    block = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None
    (folder / name).write_text(block[1] + more, encoding="utf-8")
    return folder / name
