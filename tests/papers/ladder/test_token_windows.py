"""Text as token windows: nothing lost but the last stump, shared, and read as it is by training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import jsonl, rows_of
from holdfast.data.formats import standardise
from holdfast.data.sources import load_rows
from holdfast.errors import DataError
from holdfast.papers.ladder.token_windows import write_tokens
from holdfast.training.tiny import SENTENCES, build_tokenizer


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("holdfast.papers.ladder.token_windows._DOCUMENTS", 4)  # windows cross the batches
    return jsonl(tmp_path / "text.jsonl", [{"content": s * (1 + i % 3)} for i, s in enumerate(SENTENCES * 5)])


def stream(file: Path, tokenizer: Any) -> list[int]:
    """What the windows should hold, one document at a time."""
    texts = [row["content"] for row in rows_of(file)]
    return [i for t in texts for i in [*tokenizer(t, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]]


@pytest.mark.parametrize("context", [2, 16, 33])
def test_windows_are_the_text_in_order(file: Path, tmp_path: Path, context: int) -> None:
    tokenizer = build_tokenizer()
    info = write_tokens([str(file)], tokenizer, context, tmp_path / "tokens")
    wanted = stream(file, tokenizer)
    rows = load_rows(tmp_path / "tokens")
    assert np.concatenate(rows["input_ids"]).tolist() == wanted[: len(wanted) // context * context]
    assert rows["labels"][:] == rows["input_ids"][:]
    assert (info.windows, info.tokens, info.documents) == (len(rows), len(rows) * context, 30)
    assert str(rows.features["input_ids"].feature.dtype) == "uint16"
    ready, layout = standardise(rows, tokenizer)
    assert layout == "tokenised" and ready.column_names == ["input_ids", "labels"]


def test_they_are_written_once(file: Path, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    first = write_tokens([str(file)], tokenizer, 16, tmp_path / "tokens")
    file.unlink()
    assert write_tokens([str(file)], tokenizer, 16, tmp_path / "tokens") == first
    with pytest.raises(DataError, match="got windows of 16 tokens"):
        write_tokens([str(file)], tokenizer, 8, tmp_path / "tokens")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")], "nothing is left behind"


def test_too_little_and_no_text(file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Expected text of at least 100000 tokens"):
        write_tokens([str(file)], build_tokenizer(), 100_000, tmp_path / "tokens")
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(DataError, match=r"expected plain text to pre-train on .* 'prompt completion'"):
        write_tokens([str(chats)], build_tokenizer(), 4, tmp_path / "tokens")
    chats.write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    with pytest.raises(DataError, match=r"expected plain text to pre-train on .* 'chat'"):
        write_tokens([str(chats)], build_tokenizer(), 4, tmp_path / "tokens")
    assert not (tmp_path / "tokens").exists()
