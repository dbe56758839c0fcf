"""Where rows come from: a file, several files, a folder, or a data set of the hub.

A name is a path when it exists, when it starts with `.`, `/` or `~`, when it has a data file's
suffix, or when it has more than one slash. Only what is left can be a hub id, and only then is the
network used: a mistyped path never turns into a download.

Local rows are read once, validated completely (see `readers` and `json_rows`), and kept
memory-mapped in the datasets cache under the hash of their content, so the same files anywhere are
the same dataset. Row i is the i-th row of the file: for JSON Lines, its i-th non-blank line. What a
row must contain is not decided here but in `formats`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from holdfast.data.arrow_cache import FORMAT_VERSION, cache_scratch, cached_dataset
from holdfast.data.readers import (
    COMPRESSIONS,
    KINDS,
    SUPPORTED,
    Documents,
    file_tables,
    kind_of,
    row_lines,
)
from holdfast.errors import DataError, did_you_mean, first_line
from holdfast.support.paths import expanded
from holdfast.support.progress import progress

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

Source = str | os.PathLike[str]

_SPLIT_WORDS = {
    "train": "train",
    "training": "train",
    "test": "test",
    "valid": "validation",
    "validation": "validation",
    "val": "validation",
    "dev": "validation",
}
_LEGAL_STEMS = ("readme", "license", "licence", "notice", "copyright", "changelog", "dataset_card")


def load_rows(
    name: Source | Sequence[Source],
    *,
    split: str = "train",
    config: str | None = None,
    streaming: bool = False,
    documents: Documents = "file",
) -> datasets.Dataset:
    """Rows of a file, of several files one after the other, of a folder, or of a hub data set.

    Args:
        name: a file of a supported kind (see `readers`), a list of files, a folder of such files
            (read in the order of their relative paths; hidden files are left out), a folder that
            `Dataset.save_to_disk` wrote, or a hub id such as "openai/gsm8k".
        split: "train", a part of it such as "train[:1000]" or "train[10%:]", or several such parts
            joined by "+"; those of several splits are read from the hub only. A file given by name
            is the split "train", or the one it is named after; in a folder, files named after a
            split (train.jsonl, test-00.parquet) belong to that split only.
        config: the hub data set's configuration; meaningless for local files and refused there.
        streaming: gives an `IterableDataset` that reads while it is used and caches nothing; errors
            in the data then appear on the way.
        documents: how text files (.txt, .md) become rows: "file" or "line".

    Returns:
        The rows in file order; every row of a local file was parsed and validated.

    Raises:
        DataError: nothing by that name, no rows, or malformed content; the message names the file
            and, where there is one, the line.
        StorageError: the datasets cache cannot be written.
    """
    if documents not in get_args(Documents):
        raise DataError(
            f"documents: expected one of {', '.join(get_args(Documents))}, got "
            f"{documents!r}.{did_you_mean(documents, get_args(Documents))}"
        )
    if isinstance(name, (str, os.PathLike)) and not is_path(name):
        return _load_hub(os.fspath(name), split=split, config=config, streaming=streaming)
    if config is not None:
        raise DataError(
            f"A configuration ({config!r}) applies only to data sets of the hub, but "
            f"{_label(name)} is local. Leave it out."
        )
    if isinstance(name, (str, os.PathLike)) and is_saved_dataset(expanded(name)):
        return _load_saved(expanded(name), split)
    files = data_files(name, split=split)
    if streaming:
        return _stream(files, split, documents)
    # The suffixes belong to the key: the same bytes read as .txt or as .jsonl are different rows.
    suffixes = [file.suffixes[-2:] for file in files]
    key = content_hash(files) + repr((FORMAT_VERSION, documents, suffixes))
    with progress(f"Reading {_label(name)}", total=total_bytes(files)) as advance:
        rows = cached_dataset(
            hashlib.sha256(key.encode()).hexdigest(), _tables(files, documents, advance)
        )
    return _slice(rows, split)


def is_path(name: Source) -> bool:
    """Whether `name` means something on this machine's disk (existing or missing) rather than a hub
    id."""
    text = os.fspath(name)
    if (
        not isinstance(name, str)
        or text.startswith((".", "/", "~", "\\"))
        or text.count("/") > 1
        or "\\" in text
    ):
        return True
    return Path(text).exists() or Path(text).suffix.lower() in (*KINDS, *COMPRESSIONS)


def data_files(name: Source | Sequence[Source], *, split: str = "train") -> list[Path]:
    """The local files that `load_rows` reads for `name`, in reading order.

    Raises:
        DataError: a file or folder is missing (near names are listed), is of no supported kind, or
            a folder mixes kinds.
    """
    if not isinstance(name, (str, os.PathLike)):
        if not name:
            raise DataError("Expected at least one data file, got an empty list.")
        files = []
        for each in name:
            files += data_files(each, split=split)
        return files
    path = expanded(name)
    if path.is_dir():
        return _folder_files(path, split)
    if not path.is_file():
        raise DataError(_missing(path))
    if kind_of(path) is None:
        raise DataError(
            f"{path}: this kind of file cannot be read. Supported: {SUPPORTED}; or a folder of "
            "such files."
        )
    if _base(split) not in (
        "train",
        _split_of(path),
    ):  # training rows must not pass for a test split
        raise DataError(
            f"{path}: got the split '{_base(split)}', but a single file has only the split 'train', "
            "unless its name states another. For rows of another file, give the path of that file "
            "with the split 'train'."
        )
    return [path]


def left_out(name: Source, files: Sequence[Path]) -> list[str]:
    """The files of rows in a folder that are not read and belong to no other split, by their names
    below it.

    Args:
        name: of the data.
        files: those that are read.
    """
    folder = expanded(name)
    if not folder.is_dir() or is_saved_dataset(folder):
        return []
    names = []
    for file in _walk(folder):
        of_rows = kind_of(file) not in (None, "text") or _OTHER_ROWS & set(file.suffixes)
        if of_rows and file not in files and _split_of(file) is None:
            names.append(file.relative_to(folder).as_posix())
    return names


_OTHER_ROWS = {".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".xlsx", ".xml"}
"""Endings of rows, some of which cannot be read, or not in their compression."""


def content_hash(paths: Source | Sequence[Source]) -> str:
    """SHA-256 (64 hexadecimal digits) over contents: of one file as `sha256sum` prints it, of a
    folder over relative names and contents.

    Several paths are hashed over their hashes in order. Hidden files and folders are left out.

    Raises:
        DataError: a path is missing or a folder holds no files.
    """
    if isinstance(paths, (str, os.PathLike)):
        path = expanded(paths)
        if path.is_file():
            with open(path, "rb") as content:
                return hashlib.file_digest(content, "sha256").hexdigest()
        if not path.is_dir():
            raise DataError(_missing(path))
        files = _walk(path)
        if not files:
            raise DataError(f"{path} holds no files.")
        digest = hashlib.sha256()
        for file in files:
            digest.update(f"{file.relative_to(path).as_posix()}\0{content_hash(file)}\n".encode())
        return digest.hexdigest()
    hashes = list(map(content_hash, paths))
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def locate_rows(files: Sequence[Path], rows: Sequence[int]) -> list[str]:
    """Says where rows are, for messages: "data.jsonl, line 7" for JSON Lines, "data.csv, row 7"
    (from 1) for the rest.

    Args:
        files: what `data_files` gave.
        rows: indices from 0 into the dataset that `load_rows` made of all of `files`; ascending.
    """
    places: list[str] = []
    start = 0
    remaining = list(rows)
    for file in files:
        if not remaining:
            break
        lines = row_lines(file)
        count = sum(table.num_rows for table in file_tables(file)) if lines is None else len(lines)
        while remaining and remaining[0] < start + count:
            index = remaining.pop(0) - start
            places.append(
                f"{file}, line {lines[index]}" if lines is not None else f"{file}, row {index + 1}"
            )
        start += count
    return places


# -------------------------------------------------------------------------------------- local files


def _tables(
    files: Iterable[Path],
    documents: Documents,
    advance: Callable[[float], None] = lambda amount: None,
) -> Iterator[pa.Table]:
    for file in files:
        yield from file_tables(file, documents=documents, advance=advance)


def total_bytes(files: Iterable[Path]) -> int:
    """Of all files together."""
    return sum(file.stat().st_size for file in files)


def _walk(folder: Path) -> list[Path]:
    """The files of a folder that are not hidden, in the order of their relative paths."""
    files = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(".") and "/." not in name:
            files[name] = path
    return [files[name] for name in sorted(files)]


def _folder_files(folder: Path, split: str) -> list[Path]:
    kinds = {file: kind_of(file) for file in _walk(folder)}
    files = [file for file, kind in kinds.items() if kind is not None]
    if any(
        kinds[file] != "text" for file in files
    ):  # the README and the licence beside the data are not data
        files = [
            file
            for file in files
            if kinds[file] != "text" or not file.name.lower().startswith(_LEGAL_STEMS)
        ]
    if not files:
        raise DataError(f"{folder} holds no data files. Supported: {SUPPORTED}.")
    files = _of_split(folder, files, _base(split))
    examples = {str(kinds[file]): file for file in reversed(files)}
    if len(examples) > 1:
        names = [f"{file.relative_to(folder)} ({kind})" for kind, file in sorted(examples.items())]
        raise DataError(
            f"{folder} mixes kinds of data files: {', '.join(names)}. Keep one kind in the folder, "
            "or list the files to read."
        )
    return files


def _of_split(folder: Path, files: list[Path], split: str) -> list[Path]:
    """The files of a folder that belong to a split.

    Raises:
        DataError: there are none.
    """
    splits = sorted(set(filter(None, map(_split_of, files))))
    if split in splits:
        return [file for file in files if _split_of(file) == split]
    if splits:
        raise DataError(
            f"{folder}: got the split '{split}', but the names of the files state only the splits "
            f"{', '.join(splits)}. Choose one of these, or give the path of a file."
        )
    if split != "train":
        raise DataError(
            f"{folder}: got the split '{split}', but the names of the files state no splits, so "
            "there is only 'train'. For other rows, give the path of their file or folder with the "
            "split 'train'."
        )
    return files


def _split_of(file: Path) -> str | None:
    words = re.split(r"[^a-z]+", file.name.lower())
    return _SPLIT_WORDS.get(words[0])


def _base(split: str) -> str:
    """The split's name without the part: "train" of "train[:10%]" and of "train[:10%]+train[90%:]".

    Raises:
        DataError: several splits.
    """
    names = list(dict.fromkeys(re.sub(r"\[.*", "", spec).strip() for spec in split.split("+")))
    if len(names) > 1:
        raise DataError(
            "split: in local data, all parts have to be from the same split, but "
            f"{split!r} names {' and '.join(names)}. To train on all of them, list each as a "
            "separate entry under datasets:."
        )
    return names[0]


def _missing(path: Path) -> str:
    """What is missing, and what is there instead."""
    folder = path.parent
    if not folder.is_dir():
        return f"No file or folder {path}: the folder {folder} does not exist."
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    near = did_you_mean(path.name, names)
    if near:
        return f"No file or folder {path}.{near}"
    data = [name for name in names if kind_of(Path(name)) is not None]
    if not data:
        return f"No file or folder {path}; {folder} holds no data files."
    more = f" and {len(data) - 8} more" if len(data) > 8 else ""
    return f"No file or folder {path}; {folder} holds {', '.join(data[:8])}{more}."


def _label(name: Source | Sequence[Source]) -> str:
    if isinstance(name, (str, os.PathLike)):
        return os.fspath(name)
    return f"{len(name)} files" if len(name) != 1 else os.fspath(name[0])


def _stream(files: list[Path], split: str, documents: Documents) -> Any:
    import datasets

    if "[" in split or "+" in split:
        raise DataError(
            f"split: a part of a split ({split!r}) needs the number of rows, which is unknown "
            "when streaming. Leave out the part or streaming."
        )

    def rows() -> Iterator[dict[str, Any]]:
        for table in _tables(files, documents):
            yield from datasets.Dataset(table)

    return datasets.IterableDataset.from_generator(rows)


def _slice(rows: datasets.Dataset, split: str) -> datasets.Dataset:
    """The part that "train[10%:]" names; a plain name is everything."""
    if "[" not in split and "+" not in split:
        return rows
    from datasets import ReadInstruction

    base = _base(split)
    try:
        parts = ReadInstruction.from_spec(split).to_absolute({base: len(rows)})
    except (ValueError, AssertionError, AttributeError) as error:
        raise DataError(
            "split: expected a name or a part such as 'train[:1000]' or 'train[10%:]', got "
            f"{split!r} ({error})."
        ) from error
    indices: list[int] = []
    for stretch in parts:
        indices += range(stretch.from_ or 0, len(rows) if stretch.to is None else stretch.to)
    if not indices:
        raise DataError(f"split: {split!r} selects none of the {len(rows)} rows.")
    return rows.select(indices)


# -------------------------------------------------------------------------- saved and hub data sets


def is_saved_dataset(path: Path) -> bool:
    """Whether `Dataset.save_to_disk` wrote a folder."""
    return (path / "dataset_dict.json").is_file() or (
        (path / "dataset_info.json").is_file() and (path / "state.json").is_file()
    )


def _load_saved(path: Path, split: str) -> datasets.Dataset:
    import datasets

    try:
        loaded = datasets.load_from_disk(str(_linked(path)))
    except Exception as error:
        raise DataError(
            f"{path} looks like a saved dataset but cannot be read ({error}). Save it again with "
            "Dataset.save_to_disk."
        ) from error
    if isinstance(loaded, datasets.DatasetDict):
        base = _base(split)
        if base not in loaded:
            raise DataError(
                f"{path}: no split '{base}'; it holds "
                f"{', '.join(loaded)}.{did_you_mean(base, loaded)}"
            )
        loaded = loaded[base]
    if not len(loaded):
        raise DataError(f"{path} holds no rows.")
    return _slice(cast("datasets.Dataset", loaded), split)


def _linked(path: Path) -> Path:
    """A folder of links in the datasets cache: `map` keeps its results beside the rows, and the
    user's own folder stays as it is."""
    import datasets

    files, stats = [], []
    for file in sorted(path.rglob("*")):
        if file.is_file() and not file.name.startswith("cache-"):
            stat = file.stat()
            files.append(file)
            stats.append((str(file.relative_to(path)), stat.st_size, stat.st_mtime_ns))
    key = hashlib.sha256(repr((str(path.resolve()), stats)).encode()).hexdigest()
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "holdfast_rows" / key
    if not folder.is_dir():
        with cache_scratch(folder.parent) as scratch:
            for file in files:
                link = scratch / key / file.relative_to(path)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(file.resolve())
            if not folder.is_dir():
                os.replace(scratch / key, folder)
    return folder


def _load_hub(name: str, *, split: str, config: str | None, streaming: bool) -> datasets.Dataset:
    import datasets

    local = f"No file or folder has that name either.{did_you_mean(name, os.listdir())}"
    try:
        rows = datasets.load_dataset(name, config, split=split, streaming=streaming)
    except ValueError as error:  # an unknown split or configuration, named by datasets itself
        raise DataError(f"{name} (hub): {error}") from error
    except (datasets.exceptions.DatasetNotFoundError, FileNotFoundError) as error:
        raise DataError(
            f"{name}: no such data set on the hub, or no access to it ({first_line(error)}). "
            f"{local}"
        ) from error
    except (
        ConnectionError,
        TimeoutError,
        OSError,
        datasets.exceptions.DatasetGenerationError,
    ) as error:
        raise DataError(
            f"{name}: the hub data set could not be loaded ({first_line(error)}). {local} Check "
            "the network, or download the data and give its path."
        ) from error
    except RuntimeError as error:
        raise DataError(
            f"{name} (hub): {first_line(error)} Data sets with a loading script are not supported. "
            "Give a file instead."
        ) from error
    return cast("datasets.Dataset", rows)
