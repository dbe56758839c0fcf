"""What the folders of a study's runs are called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.support.files import fingerprint


def run_folder_name(settings: Mapping[str, Any], kind: str) -> str:
    """The folder of a trial below `runs/`: its methods for people, and a hash of what decides
    it."""
    words = re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-") or "direct"
    return f"{words}-{fingerprint(settings, length=10)}"
