"""The files that a request reads: those named, and those in the folders named, in the order of
their paths.

In folders, what is hidden is left out, and so are the records that holdfast writes beside its own
outputs (`x.jsonl.json`). Files of other kinds are counted by their endings. Links to folders are
not followed, so no folder comes twice.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.data.sources import content_hash, total_bytes
from holdfast.support.paths import real
from holdfast.support.progress import progress

OWN_RECORDS = "records of holdfast"


@dataclass(kw_only=True)
class Inputs:
    """What was found."""

    files: list[Path] = field(default_factory=list)
    names: dict[Path, str] = field(default_factory=dict)
    """Of files in folders: their path there."""
    others: Counter[str] = field(default_factory=Counter)
    """Files in folders that are not read, by ending."""
    unreadable: list[str] = field(default_factory=list)
    """Folders that cannot be listed, with the reason."""

    def name(self, file: Path) -> str:
        """What a file is called in rows and records: no machine's paths."""
        return self.names.get(file, file.name)


def find_inputs(paths: Iterable[Path], accept: Callable[[str], bool]) -> Inputs:
    """The files behind `paths`, each once.

    Args:
        paths: files, taken as they are, and folders; missing ones are left out.
        accept: says by its name whether a file of a folder is read.
    """
    inputs, known = Inputs(), set()
    for path in paths:
        inside = path.is_dir()
        for file in _in_folder(path, accept, inputs) if inside else [path]:
            if file.is_file() and real(file) not in known:
                known.add(real(file))
                inputs.files.append(file)
                if inside:
                    inputs.names[file] = file.relative_to(path).as_posix()
    return inputs


def hashed_inputs(inputs: Inputs) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of every file."""
    records = []
    with progress("Hashing the input", total=total_bytes(inputs.files), unit="bytes") as advance:
        for path in inputs.files:
            size = path.stat().st_size
            records.append({"name": inputs.name(path), "bytes": size, "sha256": content_hash(path)})
            advance(size)
    return records


def counts_in_words(others: Mapping[str, int]) -> str:
    """`3 .pdf, 1 .docx`, the commonest first."""
    ranked = sorted(others.items(), key=lambda item: (-item[1], item[0]))
    counts = [f"{count:,} {ending}" for ending, count in ranked[:8]]
    if len(ranked) > 8:
        counts.append(f"{len(ranked) - 8} more kinds")
    return ", ".join(counts)


def _in_folder(folder: Path, accept: Callable[[str], bool], inputs: Inputs) -> list[Path]:
    """The files of a folder that are read; what is not is noted in `inputs`."""
    files = []

    def note(error: OSError) -> None:
        inputs.unreadable.append(f"{error.filename} ({error.strerror})")

    for path, folders, names in os.walk(folder, onerror=note):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(path, name)
            if name.startswith("."):
                continue
            if name.endswith(".jsonl.json") and name.removesuffix(".json") in names:
                inputs.others[OWN_RECORDS] += 1
            elif not accept(name):
                inputs.others[file.suffix.lower() or "without an ending"] += 1
            elif not file.is_file():
                inputs.others["broken links"] += 1
            else:
                files.append(file)
    return sorted(files, key=lambda file: file.relative_to(folder).as_posix())
