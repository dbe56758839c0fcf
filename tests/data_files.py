"""Files of rows in the working directory, and requests to prepare them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.config.declare import settings_of
from holdfast.data.prepare.corpus import CorpusOptions
from holdfast.data.prepare.run import Preparation, prepare

PLAIN = SimpleNamespace(chat_template=None)
CHAT = SimpleNamespace(chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
"""All that `standardise` asks of a tokenizer."""


def text(name: str | Path, content: str | bytes) -> Path:
    """A file of any content, with its folders."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def jsonl(name: str | Path, rows: Iterable[Any]) -> Path:
    """A file of one JSON value a line."""
    return text(name, "".join(json.dumps(row) + "\n" for row in rows))


def text_rows(name: str | Path, texts: Iterable[str]) -> Path:
    """A file of one text a row."""
    return jsonl(name, [{"text": text} for text in texts])


def rows_of(path: str | Path = "train.jsonl") -> list[dict[str, Any]]:
    """The rows of a JSON Lines file."""
    return [json.loads(line) for line in Path(path).read_text().split("\n") if line]


def preparation(*inputs: str | Path, output: str | Path = "train.jsonl", **options: Any) -> Preparation:
    """A request; options are those of the corpus or of its rows, by name."""
    corpus = {setting.name for setting in settings_of(CorpusOptions)}
    own = {name: options.pop(name) for name in list(options) if name in corpus}
    return Preparation(inputs=tuple(map(Path, inputs)), output=Path(output), options=own, **options)


def prepared(*inputs: str | Path, **options: Any) -> dict[str, Any]:
    """Carries out such a request; its record."""
    return prepare(preparation(*inputs, **options)).record
