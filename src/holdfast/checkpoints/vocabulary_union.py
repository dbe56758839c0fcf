"""One vocabulary out of several: the tokens that models were given beside a common one, all in the output.

The layout's tokens keep their rows, and those that others added (chat markers, names of tools) come behind them. A
model's own row stands for a token that it has. Where it has none, the row that stands in is the base's, else the only
other's, else the mean of those that have it (mergekit 0.1.5, `PermutedVocabulary`).

Only tokens that were *added* to a tokenizer can be brought over: a piece of a BPE or unigram vocabulary is nothing
without its merges and scores, and as an added token it would not be found in text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints.dtypes import DTYPES, Operand, compute_dtype, decode
from holdfast.checkpoints.sources import Entry, Source, config_of, folders_of, listing, read_object
from holdfast.checkpoints.vocabulary import RowMappedSource, home_of, row_map, vocabulary, vocabulary_tensors
from holdfast.checkpoints.vocabulary import why_unreadable as why
from holdfast.errors import StorageError

UNION = "union"
Added = list[dict[str, Any]]
"""Entries of `added_tokens` in tokenizer.json, with their new numbers."""


def unite_vocabularies(
    sources: Sequence[Source],
    roles: Sequence[str],
    *,
    members: Sequence[int],
    layout: int,
    base: int | None,
    problems: list[str],
    notes: list[str],
) -> tuple[list[Source], Added]:
    """The sources with the rows of all their tokens, and the tokens that the layout's tokenizer lacks.

    Args:
        sources, roles: the checkpoints and what messages call them.
        members: indices of those that the output is made of; others (Fisher information) get zeros where they lack a
            row.
        layout: index of the one whose tokenizer is added to.
        base: index of the one whose rows come first where a model has none, if any.
        problems, notes: get sentences.
    """
    names = [vocabulary_tensors(config_of(source), source.entries) for source in sources]
    rows = [source.entries[held[0]].shape[0] if held else 0 for source, held in zip(sources, names, strict=True)]
    homes = [home_of(folders_of(source)) for source in sources]
    held = {i: vocabulary(home) if (home := homes[i]) is not None else None for i in members}
    found = len(problems)
    for i in members:
        if held[i] is None:
            problems.append(f"{roles[i]}: a union needs its tokenizer: {why(homes[i] or sources[i].folder)}")
    home = homes[layout]
    if home is not None and not (home / "tokenizer.json").is_file():
        problems.append(f"{roles[layout]}: a union is written into tokenizer.json, which {home} has not")
    if len(problems) > found:
        return list(sources), []
    own = held[layout] or {}
    target = {token: row for token, row in own.items() if row < rows[layout]}
    number, added = 1 + max(own.values(), default=-1), list[dict[str, Any]]()
    for i in members:
        known, pieces = _added_tokens(homes[i]), list[str]()
        for token, row in sorted((held[i] or {}).items(), key=lambda item: item[1]):
            if row >= rows[i] or token in target:
                continue
            if token in own:  # the layout's tokenizer knows it, and only its rows end before it
                target[token] = own[token]
                continue
            if token not in known:
                pieces.append(token)
                continue
            target[token] = number
            added.append({**known[token], "id": number})
            number += 1
        if pieces:
            problems.append(
                f"{roles[i]} has {len(pieces)} tokens of its own that are pieces of its vocabulary "
                f"({listing(list(map(repr, pieces)), 8)}), not added to it: they cannot be brought into the tokenizer "
                f"of {roles[layout]}. Choose one tokenizer, with --vocabulary keep or zero"
            )
    if len(problems) > found:
        return list(sources), []
    total = max(rows[layout], 1 + max(target.values(), default=-1))
    if unused := [token for token, row in own.items() if row < total and token not in target]:
        notes.append(
            f"{len(unused)} tokens have a row in no model; theirs are zeros: {listing(list(map(repr, unused)), 8)}."
        )
    maps = {i: row_map(target, total, held[i] or {}, rows[i]).rows for i in members}
    if added:
        shown = listing([repr(token["content"]) for token in added], 8)
        notes.append(f"{len(added)} tokens are added to the tokenizer of {roles[layout]}: {shown}.")
    stand_in = _StandIn([sources[i] for i in members], [maps[i] for i in members], names[layout], sources[layout])
    if base in maps:
        stand_in.first = list(members).index(base)
    views = list(sources)
    for i in range(len(sources)):
        placed = maps.get(i, maps[layout])
        if i in maps:
            views[i] = RowMappedSource(sources[i], placed, names[i], fallback=stand_in)
        elif names[i]:
            views[i] = RowMappedSource(sources[i], np.where(placed < rows[i], placed, -1), names[i])
    return views, added


def add_to_tokenizer(folder: Path, added: Added) -> None:
    """Writes tokens into the tokenizer of a folder.

    Raises:
        ModelError: its files cannot be read.
        StorageError: the disk is full or failed.
    """
    path, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    whole = read_object(path, "a tokenizer's file")
    whole["added_tokens"] = [*(whole.get("added_tokens") or []), *added]
    stated = read_object(settings, "a tokenizer's settings") if settings.is_file() else {}
    try:
        path.write_text(json.dumps(whole, ensure_ascii=False), encoding="utf-8")
        if isinstance(decoder := stated.get("added_tokens_decoder"), dict):
            decoder |= {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in added}
            settings.write_text(json.dumps(stated, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Could not write {path} ({error.strerror or error}). Free some space.") from error


def _added_tokens(folder: Path | None) -> dict[str, dict[str, Any]]:
    """Tokens that were added to the tokenizer in a folder, with their settings."""
    if folder is None:
        return {}
    found: dict[str, dict[str, Any]] = {}
    path, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    stated = read_object(settings, "a tokenizer's settings").get("added_tokens_decoder") if settings.is_file() else None
    entries = list(stated.values()) if isinstance(stated, dict) else []
    if path.is_file():
        entries += read_object(path, "a tokenizer's file").get("added_tokens") or []
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("content"), str):
            flags = {key: bool(entry.get(key)) for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
            found.setdefault(entry["content"], {"content": entry["content"], **flags})
    return found


class _StandIn:
    """The rows that stand in for those that a model lacks, in the output's order; a `Source`."""

    def __init__(
        self, sources: Sequence[Source], maps: Sequence[NDArray[np.int64]], names: Sequence[str], layout: Source
    ) -> None:
        self.label, self.folder = layout.label, layout.folder
        self.first: int | None = None
        """The source whose rows come before a mean."""
        self._sources, self._maps = list(sources), list(maps)
        count = len(maps[0])
        self.entries: Mapping[str, Entry] = {
            name: layout.entries[name]._replace(shape=(count, *layout.entries[name].shape[1:]), offset=-1)
            for name in names
        }

    def read(self, name: str, start: int, stop: int, buffer: NDArray[np.uint8]) -> Operand:
        """See `Source.read`."""
        entry = self.entries[name]
        columns = max(1, entry.size // max(1, entry.shape[0]))
        wide = compute_dtype(*(s.entries[name].dtype for s in self._sources if name in s.entries), entry.dtype)
        values = np.zeros(stop - start, wide)
        for row in range(start // columns, -(-stop // columns)):
            begin, end = max(row * columns, start), min((row + 1) * columns, stop)
            owners = [i for i, rows in enumerate(self._maps) if rows[row] >= 0 and name in self._sources[i].entries]
            if self.first in owners:
                owners = [self.first]  # type: ignore[list-item]
            for i in owners:
                shift = (int(self._maps[i][row]) - row) * columns
                values[begin - start : end - start] += self._row(i, name, begin + shift, end + shift)
            if len(owners) > 1:
                values[begin - start : end - start] /= len(owners)
        return Operand(values, DTYPES["F64" if wide == np.float64 else "F32"])

    def _row(self, i: int, name: str, start: int, stop: int) -> NDArray[Any]:
        source = self._sources[i]
        operand = source.read(name, start, stop, np.empty((stop - start) * 8, np.uint8))
        return decode(operand.raw, operand.dtype)
