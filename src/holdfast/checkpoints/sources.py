"""Where the engine gets its tensors from: a folder of safetensors, or a view of one (an adapter
merged on the fly, rows in another order).

A source knows its tensors by name and hands out any stretch of one as an `Operand`. Sources are
read by several threads at once.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast.errors import ModelError
from holdfast.printable import Lines, lines

if TYPE_CHECKING:
    import numpy as np

    from holdfast.checkpoints.element_types import DType, Operand


LENGTH = 262_144
"""Elements that are compared at a time where two tensors may be one."""


class Entry(NamedTuple):
    """One tensor of a source."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    file: Path
    """File that contains the tensor (or most of it), for messages and for sharding outputs."""
    offset: int = -1
    """Position of its first byte in `file`; -1 if the tensor is computed."""

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes when stored in `dtype`."""
        return self.size * self.dtype.itemsize


class Source(Protocol):
    """Tensors by name, read in stretches."""

    label: str
    """What messages call it."""
    folder: Path
    entries: Mapping[str, Entry]

    def read(self, name: str, start: int, stop: int, buffer: np.ndarray) -> Operand:
        """Elements [start, stop) of the flattened (row-major) tensor.

        Args:
            name: a key of `entries`.
            start, stop: elements, 0 <= start <= stop <= size.
            buffer: 1-D uint8, at least `(stop - start) * itemsize` bytes; a stored tensor's raw
                elements come in its memory.

        Returns:
            `[stop - start]` in the entry's dtype, or float32 where the source computes the values.

        Raises:
            ModelError: the file ends before the tensor does, or cannot be read.
        """
        ...


def listing(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def bullets(problems: Sequence[str], most: int = 40) -> Lines:
    """One line a problem, for an error that lists them all; beyond `most` it says how many more
    there are."""
    more = [f"... and {len(problems) - most} more"] if len(problems) > most else []
    return lines(*(f"  - {problem}" for problem in [*problems[:most], *more]))


def read_object(
    path: Path, what: str, *, again: str = " Copy or download it again."
) -> dict[str, Any]:
    """A JSON object.

    Args:
        path: the file.
        what: what it is, for the error ("a tokenizer's file").
        again: how the error ends: what to do.

    Raises:
        ModelError: it is not there, or no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("expected a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"Expected {what} in {path}, but it cannot be read ({error}).{again}"
        ) from None
    return content


def read_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """`config.json` of a folder; empty where there is none.

    Raises:
        ModelError: it is there and cannot be read.
    """
    path = Path(folder) / "config.json"
    return read_object(path, "a model's configuration", again="") if path.is_file() else {}


def config_of(source: Source) -> dict[str, Any]:
    """The model's configuration: of the folder itself, or of what the source is a view of (an
    adapter's folder has none)."""
    config = getattr(source, "config", None)
    if isinstance(config, dict):
        return config
    stored, inner = read_config(source.folder), inner_source(source)
    return config_of(inner) if not stored and inner is not None else stored


def tied_head(config: Mapping[str, Any]) -> bool | None:
    """Whether a model's configuration ties the head to the embeddings; None where it does not
    say."""
    for holder in (config, config.get("text_config")):
        if isinstance(holder, dict) and isinstance(holder.get("tie_word_embeddings"), bool):
            return bool(holder["tie_word_embeddings"])
    return None


def same_values(one: Source, name: str, other: Source, other_name: str) -> bool:
    """Whether two tensors hold the same numbers in the same shape, bit for bit once they are
    widened."""
    import numpy as np

    from holdfast.checkpoints.dtypes import decode

    if one.entries[name].shape != other.entries[other_name].shape:
        return False
    buffer, other_buffer = np.empty(8 * LENGTH, np.uint8), np.empty(8 * LENGTH, np.uint8)
    for start, stop in stretches(one.entries[name].size, LENGTH):
        values = decode(*one.read(name, start, stop, buffer))
        others = decode(*other.read(other_name, start, stop, other_buffer))
        if values.tobytes() != others.tobytes():
            return False
    return True


def inner_source(source: Source) -> Source | None:
    """What a view looks at; None for a folder."""
    return getattr(source, "source", None) or getattr(source, "base", None)


def changes_of(source: Source) -> dict[str, Any]:
    """Keys of config.json in which a view differs from the file that it comes from."""
    inner = inner_source(source)
    below = {} if inner is None else changes_of(inner)
    return below | dict(getattr(source, "config_changes", None) or {})


def notes_of(source: Source) -> list[str]:
    """What views have to say about themselves."""
    inner = inner_source(source)
    below = [] if inner is None else notes_of(inner)
    return [*below, *getattr(source, "notes", ())]


def folders_of(source: Source) -> list[Path]:
    """Folders that files beside the weights come from, the most important last: an adapter's own
    after its base's."""
    inner = inner_source(source)
    below = [] if inner is None else folders_of(inner)
    return below if source.folder in below else [*below, source.folder]


def stretches(size: int, unit: int) -> Iterator[tuple[int, int]]:
    """[start, stop) pairs of at most `unit` elements that cover `size`; one empty pair for an empty
    tensor."""
    if size == 0:
        yield 0, 0
    for start in range(0, size, unit):
        yield start, min(start + unit, size)
