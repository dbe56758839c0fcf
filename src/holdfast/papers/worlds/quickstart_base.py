"""The base of `holdfast quickstart`, which the package carries: 1.05 million parameters in
bfloat16, 2.1 MB.

A Llama-architecture decoder, pre-trained on the English reference prose inside CPython and code of
a quarter of its size. `examples/quickstart_base.py` made it; `base.json` beside the weights says
from which texts, with which settings and seed, and which SHA-256 each file has.
"""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.errors import ModelError
from holdfast.papers.worlds.gguf import file_sha256

FOLDER = Path(__file__).with_name("quickstart_model")


def quickstart_base() -> Path:
    """The base's folder, an ordinary checkpoint.

    Raises:
        ModelError: a file is missing, or is not the one that was made.
    """
    record = json.loads((FOLDER / "base.json").read_text(encoding="utf-8"))
    for name, digest in record["sha256"].items():
        file = FOLDER / name
        if not file.is_file() or file_sha256(file) != digest:
            raise ModelError(
                f"{file} does not match the released file. Expected SHA-256 {digest}. Reinstall "
                "holdfast."
            )
    return FOLDER
