"""A stream of Arrow tables as a memory-mapped Dataset, kept in the datasets cache under the hash of
what it was made from.

Tables come with the columns their own rows show. They are written as they come; only if their
columns differ in the end (a key that appears late, an integer column that turns out to hold
fractions) are they written once more under one common schema. Columns whose types have nothing in
common, and objects with different keys, become `datasets.Json`, in which every value keeps its own
type and every object its own keys. Memory use does not grow with the file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.data.json_rows import holds_objects, json_array
from holdfast.errors import StorageError
from holdfast.support.leftovers import scratch_folder

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

FORMAT_VERSION = 3
"""Part of every cache key; raise it when rows come out differently for the same file."""


def cached_dataset(key: str, tables: Iterable[pa.Table]) -> datasets.Dataset:
    """The dataset stored under `key`, made from `tables` where there is none yet.

    Args:
        key: hexadecimal; equal keys promise equal rows. It also becomes the dataset's fingerprint,
            so later `map` calls are cached as well.
        tables: consumed only when nothing is stored; its exceptions pass through and leave nothing
            behind.

    Raises:
        StorageError: the cache folder cannot be written.
    """
    import datasets
    import pyarrow as pa
    from datasets.table import MemoryMappedTable

    folder = Path(datasets.config.HF_DATASETS_CACHE) / "holdfast_rows"
    path = folder / key / "rows.arrow"
    if not path.is_file():
        with cache_scratch(folder) as scratch:
            written = _write(tables, scratch)
            with _disk_errors(path):
                path.parent.mkdir(exist_ok=True)
                os.replace(written, path)  # two processes may both get here; either file is right
    try:
        table = MemoryMappedTable.from_file(str(path))
    except (OSError, pa.ArrowInvalid) as error:
        raise StorageError(
            f"The cached rows {path} cannot be read ({error}). Delete this file and run again."
        ) from error
    # cache_files of the dataset name this file, so `map` keeps its results in the folder beside it
    info = datasets.DatasetInfo(features=datasets.Features.from_arrow_schema(table.schema))
    return datasets.Dataset(table, info=info, fingerprint=key[:32])


@contextlib.contextmanager
def cache_scratch(folder: Path) -> Iterator[Path]:
    """A place to write in below the datasets cache, gone afterwards.

    Raises:
        StorageError: the cache folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            scratch = stack.enter_context(scratch_folder(folder, ".writing-"))
        except OSError as error:
            raise StorageError(
                f"Cannot write the datasets cache {folder} ({error.strerror}). Set "
                "HF_DATASETS_CACHE to another folder."
            ) from error
        yield scratch


def _write(tables: Iterable[pa.Table], scratch: Path) -> Path:
    """Writes runs of equal schema to part files, then joins them if there is more than one; returns
    the finished file."""
    parts: list[Path] = []
    schemas: list[pa.Schema] = []
    with contextlib.ExitStack() as stack:
        writer: Any = None
        for table in tables:
            if writer is None or not table.schema.equals(schemas[-1]):
                stack.close()
                parts.append(scratch / f"part-{len(parts)}.arrow")
                schemas.append(table.schema)
                writer = stack.enter_context(_writer(parts[-1], table.schema))
            with _disk_errors(parts[-1]):
                writer.write_table(table)
    if len(parts) == 1:
        return parts[0]
    schema = common_schema(schemas)
    joined = scratch / "joined.arrow"
    with _writer(joined, schema) as writer, _disk_errors(joined):
        for path in parts:
            for table in _read(path):
                writer.write_table(conform(table, schema))
    return joined


def _read(part: Path) -> Iterator[pa.Table]:
    import pyarrow as pa

    with pa.memory_map(str(part)) as source, pa.ipc.open_stream(source) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])


@contextlib.contextmanager
def _writer(path: Path, schema: pa.Schema) -> Iterator[Any]:
    import pyarrow as pa

    with (
        _disk_errors(path),
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_stream(sink, schema) as writer,
    ):
        yield writer


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Could not write the datasets cache {path.parent} ({error}). Free some space or set "
            "HF_DATASETS_CACHE."
        ) from error


def common_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """One schema that all fit into: the union of the columns, wider numbers, and `datasets.Json`
    where types do not meet."""
    import pyarrow as pa

    fields: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            known = fields.get(field.name)
            if known is None:
                fields[field.name] = field.type
            elif known != field.type:
                fields[field.name] = _common_type(known, field.type)
    return pa.schema(list(fields.items()))


def _common_type(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if (
        pa.json_() in (a, b) or holds_objects(a) or holds_objects(b)
    ):  # whose keys would be those of all
        return pa.json_()
    try:
        both = [pa.schema([("x", a)]), pa.schema([("x", b)])]
        merged: pa.DataType = pa.unify_schemas(both, promote_options="permissive").field("x").type
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return pa.json_()
    return merged


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` under a schema that `common_schema` made for it: missing columns are null."""
    import pyarrow as pa

    columns = []
    for field in schema:
        column = (
            table.column(field.name)
            if field.name in table.column_names
            else pa.nulls(table.num_rows)
        )
        if column.type == field.type:
            columns.append(column)
        elif field.type == pa.json_():
            columns.append(json_array(column.to_pylist()))
        else:
            columns.append(column.cast(field.type))
    return pa.table(columns, schema=schema)
