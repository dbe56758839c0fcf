"""Text as token windows for pre-training: written once, memory-mapped, shared by every run that
reads it.

Documents stand one after the other, each ended by the end-of-sequence token, and are cut into
windows of one length (the last stump is dropped), as GPT-style pre-training has it: nothing is
padded. The folder is what `Dataset.save_to_disk` writes, so that `holdfast train`, TRL and datasets
read it as it is; ids of vocabularies of up to 65,536 entries take two bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import DataError
from holdfast.support.files import read_as, write_json
from holdfast.support.leftovers import scratch_folder
from holdfast.support.progress import progress

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow as pa

INFO_FILE = "tokens.json"
_RULES = 1
"""Raised when the same text comes out as other windows."""
_DOCUMENTS = 2_000
"""That are tokenised at a time."""


@dataclass(frozen=True, kw_only=True)
class TokensInfo:
    """What a folder of token windows holds."""

    tokens: int
    """In the windows."""
    windows: int
    context: int
    """Tokens of a window."""
    documents: int
    vocabulary: int
    """Entries of the tokenizer."""
    hash: str
    """Of the ids, in order: equal for equal windows."""


def write_tokens(names: Sequence[str], tokenizer: Any, context: int, folder: Path) -> TokensInfo:
    """Tokenises text into windows, or finds that done.

    Args:
        names: files, folders or hub data sets of plain text (`text`, `content`, ...), read in
            order.
        tokenizer: with an end-of-sequence token.
        context: tokens of a window, at least 2.
        folder: appears whole; `holdfast.data.sources.load_rows` reads it: columns `input_ids` and
            `labels`.

    Returns:
        What was written.

    Raises:
        DataError: no text there, another layout than text, less than one window, or other windows
            in the folder.
        StorageError: it cannot be written.
    """
    if (folder / INFO_FILE).is_file():
        info = read_as(folder / INFO_FILE, TokensInfo)
        if (info.context, info.vocabulary) != (context, len(tokenizer)):
            raise DataError(
                f"{folder}: expected windows of {context} tokens with a vocabulary of "
                f"{len(tokenizer)}, got windows of {info.context} tokens with a vocabulary of "
                f"{info.vocabulary}. Choose another folder."
            )
        return info
    from holdfast.data.arrow_cache import cached_dataset
    from holdfast.support.environment import quiet_datasets

    sources = [text_rows(name) for name in names]
    cutting = _Cutting(tokenizer, context)
    key = hashlib.sha256(
        repr((_RULES, [s._fingerprint for s in sources], _known(tokenizer), context)).encode()
    )
    with progress("Tokenising", total=sum(map(len, sources))) as advance:
        rows = cached_dataset(key.hexdigest(), cutting.tables(sources, advance))
    if not len(rows):
        raise DataError(
            f"Expected text of at least {context} tokens, found less than one window of that "
            "length."
        )
    digest = hashlib.sha256()
    for table in rows.select_columns(["input_ids"]).with_format("arrow").iter(batch_size=10_000):
        digest.update(
            table.column(0).combine_chunks().flatten().to_numpy(zero_copy_only=False).tobytes()
        )
    info = TokensInfo(
        tokens=len(rows) * context,
        windows=len(rows),
        context=context,
        documents=sum(map(len, sources)),
        vocabulary=len(tokenizer),
        hash=digest.hexdigest(),
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(folder.parent, f".{folder.name}-") as scratch:
        with quiet_datasets(0):
            rows.save_to_disk(str(scratch / folder.name))
        write_json(scratch / folder.name / INFO_FILE, info)
        os.replace(scratch / folder.name, folder)
    return info


def text_rows(name: str) -> datasets.Dataset:
    """The rows of a file, a folder or a hub data set as one column `text`.

    Raises:
        DataError: nothing of that name, or another layout than text.
    """
    from holdfast.data.formats import detect, standardise
    from holdfast.data.sources import data_files, is_path, load_rows

    rows = load_rows(name)
    if (layout := detect(rows.column_names, rows[0])) != "text":
        raise DataError(
            f"{name}: expected plain text to pre-train on (a column such as text), got rows of the "
            f"layout '{layout.replace('_', ' ')}'."
        )
    return standardise(rows, None, files=data_files(name) if is_path(name) else None)[0]


def _known(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))


class _Cutting:
    """Documents into windows of ids."""

    def __init__(self, tokenizer: Any, context: int) -> None:
        import numpy as np

        if tokenizer.eos_token_id is None:
            raise DataError(
                "Expected a tokenizer with an end-of-sequence token, which ends every document."
            )
        self.tokenizer, self.context = tokenizer, context
        self.dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32

    def tables(self, sources: Sequence[datasets.Dataset], advance: Any) -> Iterator[pa.Table]:
        """Tables of whole windows; the stump of one goes before what comes next."""
        import numpy as np

        rest = np.zeros(0, self.dtype)
        for source in sources:
            for batch in source.select_columns(["text"]).iter(batch_size=_DOCUMENTS):
                ids = self.tokenizer(
                    batch["text"], add_special_tokens=False, return_attention_mask=False
                )["input_ids"]
                for document in ids:
                    document.append(self.tokenizer.eos_token_id)
                stream = np.concatenate(
                    [rest, *(np.asarray(document, self.dtype) for document in ids)]
                )
                end = len(stream) // self.context * self.context
                advance(len(ids))
                yield self._table(stream[:end])
                rest = stream[end:]

    def _table(self, stream: np.ndarray) -> pa.Table:
        import numpy as np
        import pyarrow as pa

        offsets = pa.array(np.arange(0, len(stream) + 1, self.context), pa.int32())
        windows = pa.ListArray.from_arrays(offsets, pa.array(stream))
        return pa.table({"input_ids": windows, "labels": windows})
