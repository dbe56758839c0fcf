"""Vocabularies that differ: rows of embeddings and heads are matched by TOKEN, through both
tokenizers.

Row i of one model and row i of another belong together only where both tokenizers give the same
token the number i. So the rows of a model are put into the order of the model that the output looks
like (the layout); a view does that while reading, nothing is copied. Rows that no token uses
(embeddings are padded to round sizes) match by their number where both sides have no token there.

Tokenizers are read as JSON: `tokenizer.json`, or `vocab.json` / `vocab.txt` with added tokens.
SentencePiece models without a `tokenizer.json` and tiktoken files are not read. Merges and
normalisation are not looked at: two tokenizers with the same tokens count as the same vocabulary.
"""

from __future__ import annotations

import dataclasses
import filecmp
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints.companions import config_value
from holdfast.checkpoints.dtypes import compute_dtype, decode
from holdfast.checkpoints.element_types import DTYPES, Operand
from holdfast.checkpoints.parents import Findings, Parents
from holdfast.checkpoints.sources import bullets, config_of, folders_of, listing, read_object
from holdfast.errors import ModelError, ShapeError

if TYPE_CHECKING:
    from holdfast.checkpoints.sources import Entry, Source

EMBEDDINGS = (
    "embed_tokens",
    "wte",
    "word_embeddings",
    "embed_in",
    "tok_embeddings",
    "embeddings",
    "shared",
)
"""Modules that hold one row a token of the input."""
HEADS = (
    "lm_head",
    "embed_out",
    "output",
    "output_layer",
    "head",
    "ff_out",
    "decoder",
    "predictions",
)
"""Modules that hold one row a token of the output. The general names among them count only with
exactly the vocabulary's rows."""
FILES = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "added_tokens.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
"""Files that say which token has which number."""

_MERGES = re.compile(rb',?\s*"merges"\s*:\s*\[')


def vocabulary_tensors(config: Mapping[str, Any], entries: Mapping[str, Entry]) -> list[str]:
    """Names of the tensors with one row a token: embeddings, heads and their biases.

    Args:
        config: the model's config.json; `vocab_size`, also of its text part, tells embeddings from
            others. It may be empty.
        entries: the checkpoint's tensors.
    """
    modules = {}
    for name in entries:
        words = name.split(".")
        if len(words) >= 2 and words[-1] in ("weight", "bias") and entries[name].shape:
            modules[name] = words[-2]
    rows = set()
    for name, module in modules.items():
        if module in EMBEDDINGS and name.endswith(".weight") and len(entries[name].shape) == 2:
            rows.add(entries[name].shape[0])
    stated = config_value(config, "vocab_size")
    if isinstance(stated, int) and (stated in rows or not rows):
        rows = {stated}
    return [
        name
        for name, module in modules.items()
        if module in EMBEDDINGS + HEADS and entries[name].shape[0] in rows
    ]


def first_matrix(names: Iterable[str], modules: Sequence[str]) -> str | None:
    """The first weight that belongs to one of the modules, such as `EMBEDDINGS`."""
    for name in names:
        if name.endswith(".weight") and name.split(".")[-2] in modules:
            return name
    return None


# --------------------------------------------------------------------------------------- tokenizers


def vocabulary(folder: str | Path) -> dict[str, int] | None:
    """Token: number, of the tokenizer in a folder; None where there is none that can be read
    (`why_unreadable` says why).

    Raises:
        ModelError: a tokenizer file is damaged.
    """
    folder = Path(folder)
    tokens: dict[str, int] = {}
    if (folder / "tokenizer.json").is_file():
        tokens = _from_tokenizer_json(folder / "tokenizer.json")
    elif (folder / "vocab.json").is_file():
        tokens = _numbers(
            read_object(folder / "vocab.json", "a tokenizer's file"), folder / "vocab.json"
        )
    elif (folder / "vocab.txt").is_file():
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
        if not lines[-1]:  # what follows the last line break
            del lines[-1]
        for number, line in enumerate(lines):
            tokens[line.rstrip("\r")] = number
    if not tokens:
        return None
    if (folder / "added_tokens.json").is_file():
        tokens |= _numbers(
            read_object(folder / "added_tokens.json", "a tokenizer's file"),
            folder / "added_tokens.json",
        )
    for token, number in _declared(folder).items():
        tokens.setdefault(token, number)
    return tokens


def why_unreadable(folder: str | Path) -> str:
    """Why `vocabulary` gives None: part of a sentence, with what to do."""
    names = [name for name in (*FILES, "tiktoken.model") if (Path(folder) / name).is_file()]
    if not names:
        return f"{folder} has no tokenizer; copy the tokenizer of its model there"
    return (
        f"{folder} has only {', '.join(names)}, which holdfast cannot read. Save it as "
        "tokenizer.json with transformers: "
        f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    )


def same_tokenizer_files(folder: str | Path, other: str | Path) -> bool:
    """Whether two folders hold the same tokens, judged by their files' bytes; False proves
    nothing."""
    folder, other = Path(folder), Path(other)
    names = [name for name in FILES if (folder / name).is_file()]
    if not names or names != [name for name in FILES if (other / name).is_file()]:
        return False
    same_files = all(filecmp.cmp(folder / name, other / name, shallow=False) for name in names)
    return same_files and _declared(folder) == _declared(other)


def _from_tokenizer_json(path: Path) -> dict[str, int]:
    tokenizer = _before_merges(path) or read_object(path, "a tokenizer's file")
    model = tokenizer.get("model") or {}
    pieces = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(pieces, list):
        numbered, pieces = pieces, {}
        for number, piece in enumerate(numbered):
            if isinstance(piece, list) and piece:
                pieces[piece[0]] = number
    tokens = _numbers(pieces or {}, path)
    for added in tokenizer.get("added_tokens") or []:
        if (
            isinstance(added, dict)
            and isinstance(added.get("content"), str)
            and isinstance(added.get("id"), int)
        ):
            tokens[added["content"]] = added["id"]
    return tokens


def _before_merges(path: Path) -> dict[str, Any] | None:
    """A tokenizer.json up to its merges, which take most of the file and of the memory; everything
    needed comes before them as the tokenizers library writes it. None where it does not."""
    content = path.read_bytes()
    merges = _MERGES.search(content)
    if merges is None:
        return None
    try:
        tokenizer = json.loads(content[: merges.start()] + b"}}")
    except (ValueError, RecursionError):
        return None
    if not isinstance(tokenizer, dict) or "vocab" not in (tokenizer.get("model") or {}):
        return None
    return tokenizer if "added_tokens" in tokenizer else None


def _declared(folder: Path) -> dict[str, int]:
    """Tokens that tokenizer_config.json adds."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    decoder = read_object(path, "a tokenizer's file").get("added_tokens_decoder")
    if not isinstance(decoder, dict):
        return {}
    tokens = {}
    for number, stated in decoder.items():
        if isinstance(stated, dict) and "content" in stated and number.isdigit():
            tokens[stated["content"]] = int(number)
    return tokens


def _numbers(found: Mapping[str, Any], path: Path) -> dict[str, int]:
    wrong = [token for token, number in found.items() if not isinstance(number, int) or number < 0]
    if wrong:
        raise ModelError(
            f"{path}: expected a number for every token, but {wrong[0]!r} has {found[wrong[0]]!r}. "
            "Copy or download it again."
        )
    return dict(found)


# ----------------------------------------------------------------------------------------- row maps


@dataclass(frozen=True)
class RowMap:
    """Where each row of the target lies in the source."""

    rows: NDArray[np.int64]
    """`[target rows]`; -1: the source has no such row."""
    source_rows: int
    missing: tuple[str, ...] = ()
    """Tokens of the target that the source has no row for, by row."""
    extra: tuple[str, ...] = ()
    """Tokens of the source that the target has no row for, by row."""

    @cached_property
    def identity(self) -> bool:
        """Whether the rows are the same, in number and order."""
        return len(self.rows) == self.source_rows and bool(
            (self.rows == np.arange(len(self.rows))).all()
        )


def row_map(
    target: Mapping[str, int], target_rows: int, source: Mapping[str, int], source_rows: int
) -> RowMap:
    """Matches rows by token; rows that no token uses match by number where neither side has a token
    there.

    Args:
        target: token: row, of the model whose order is wanted. Tokens beyond `target_rows` have no
            row and are ignored.
        target_rows: rows of its embeddings.
        source: token: row, of the model to be read.
        source_rows: rows of its embeddings.
    """
    rows = np.full(target_rows, -1, np.int64)
    free = np.arange(min(target_rows, source_rows))
    is_named = np.zeros(max(target_rows, source_rows), bool)
    for numbers, count in ((target.values(), target_rows), (source.values(), source_rows)):
        taken = np.fromiter(numbers, np.int64)
        is_named[taken[taken < count]] = True
    free = free[~is_named[: len(free)]]
    rows[free] = free
    missing, extra = [], []
    for token, row in target.items():
        if row < target_rows:
            source_row = source.get(token, source_rows)
            if source_row < source_rows:
                rows[row] = source_row
            else:
                missing.append((row, token))
    for token, row in source.items():
        if row < source_rows and target.get(token, target_rows) >= target_rows:
            extra.append((row, token))
    # of two tokens that share a row one may be known
    lost = tuple(token for row, token in sorted(missing) if rows[row] < 0)
    return RowMap(rows, source_rows, lost, tuple(token for _, token in sorted(extra)))


def row_map_by_number(target_rows: int, source_rows: int) -> RowMap:
    """Matches rows by their number, for tokenizers that cannot be read; rows beyond the source's
    are missing."""
    rows = np.arange(target_rows, dtype=np.int64)
    rows[source_rows:] = -1
    return RowMap(rows, source_rows)


class RowMappedSource:
    """A source with the rows of some tensors in another order and number.

    Args:
        source: what is looked at.
        rows: `[target rows]` int64, the source's row for each; -1: from `fallback`.
        names: the tensors it applies to.
        fallback: a source in the TARGET's order, whose row of the same number stands in; None, or
            without that tensor: zeros.

    Raises:
        ShapeError: tensors whose rows or columns do not fit; all of them.
    """

    def __init__(
        self,
        source: Source,
        rows: NDArray[np.int64],
        names: Sequence[str],
        *,
        fallback: Source | None = None,
    ) -> None:
        self.source, self.fallback = source, fallback
        self.label, self.folder = source.label, source.folder
        self._rows = np.asarray(rows, np.int64)
        self._names = frozenset(names)
        entries: dict[str, Entry] = dict(source.entries)
        needed, problems = int(self._rows.max(initial=-1)) + 1, []
        for name in names:
            entry = source.entries[name]
            if not entry.shape or entry.shape[0] < needed:
                problems.append(
                    f"{name}: expected {needed} rows or more in {source.label}, got shape "
                    f"{list(entry.shape)}"
                )
                continue
            entries[name] = entry._replace(shape=(len(self._rows), *entry.shape[1:]), offset=-1)
            other = fallback.entries.get(name) if fallback is not None else None
            if other is not None and other.shape != entries[name].shape:
                problems.append(
                    f"{name}: expected {list(entries[name].shape)} in "
                    f"{fallback.label if fallback else ''}, got {list(other.shape)}"
                )
        self.entries: Mapping[str, Entry] = entries
        if problems:
            raise ShapeError("Rows cannot be matched:", bullets(problems))

    def read(self, name: str, start: int, stop: int, buffer: NDArray[np.uint8]) -> Operand:
        """See `Source.read`. float32 (float64) where the stretches are stored in different
        dtypes."""
        if name not in self._names:
            return self.source.read(name, start, stop, buffer)
        if stop <= start:
            return self.source.read(name, 0, 0, buffer)
        entry = self.entries[name]
        memory = buffer[: (stop - start) * entry.dtype.itemsize].view(entry.dtype.storage)
        pieces = []
        for begin, end, source, first in self._runs(entry, start, stop):
            pieces.append((begin, self._piece(name, entry, memory[begin:end], source, first)))
        if all(piece.dtype is entry.dtype for _, piece in pieces):
            for begin, piece in pieces:
                target = memory[begin : begin + len(piece.raw)]
                if not np.may_share_memory(target, piece.raw):
                    target[:] = piece.raw
            return Operand(memory, entry.dtype)
        wide = compute_dtype(*(piece.dtype for _, piece in pieces))
        values = np.empty(stop - start, wide)
        for begin, piece in pieces:
            values[begin : begin + len(piece.raw)] = decode(piece.raw, piece.dtype)
        return Operand(values, DTYPES["F64" if wide == np.float64 else "F32"])

    def _runs(
        self, entry: Entry, start: int, stop: int
    ) -> list[tuple[int, int, Source | None, int]]:
        """(begin, end, source, first): stretches of a block that lie together in a source, and
        their first element there."""
        columns = max(1, entry.size // max(1, entry.shape[0]))
        first_row, last_row = start // columns, -(-stop // columns)
        rows = self._rows[first_row:last_row]
        before, after = rows[:-1], rows[1:]
        both_lack = (before < 0) & (after < 0)
        follows = both_lack | ((before >= 0) & (after == before + 1))
        breaks = [0, *(np.flatnonzero(~follows) + 1).tolist(), len(rows)]
        stands_in = self.fallback if self.fallback and entry.name in self.fallback.entries else None
        runs: list[tuple[int, int, Source | None, int]] = []
        for i, j in pairwise(breaks):
            begin, end = max((first_row + i) * columns, start), min((first_row + j) * columns, stop)
            if rows[i] < 0:
                runs.append((begin - start, end - start, stands_in, begin))
            else:
                shift = (int(rows[i]) - first_row - i) * columns
                runs.append((begin - start, end - start, self.source, begin + shift))
        return runs

    def _piece(
        self, name: str, entry: Entry, memory: NDArray[Any], source: Source | None, first: int
    ) -> Operand:
        if source is None:
            memory[:] = 0
            return Operand(memory, entry.dtype)
        stored = source.entries[name].dtype
        buffer = memory.view(np.uint8)
        if stored.itemsize > entry.dtype.itemsize:
            buffer = np.empty(len(memory) * stored.itemsize, np.uint8)
        return source.read(name, first, first + len(memory), buffer)


# ---------------------------------------------------------------------------------------- alignment


def align_vocabularies(
    parents: Parents, policy: str, findings: Findings, *, lacking: str = "layout"
) -> Parents:
    """Brings the vocabulary tensors of all parents into the rows of the one whose tokenizer the
    output has.

    A token that all have needs no policy, wherever its row lies, and neither does a row that no
    token uses. Of other rows: "error" adds a problem; "keep" gives every source the target's row;
    "zero" gives a source that lacks the row the base's (a delta of 0), and every source the
    target's where the base lacks it or there is no base. Tokens that the target lacks are not in
    the output; a note says how many.

    Args:
        parents: the checkpoints. Extras (Fisher information) get zeros where they lack a row.
        policy: "error", "keep" or "zero".
        findings: gets problems and notes.
        lacking: what stands in under "keep": "layout", the target's row for all sources, or
            "zeros", for the one that lacks the row only.

    Returns:
        The parents, those that need it behind a `RowMappedSource`.
    """
    alignment = _Alignment(parents, policy, findings)
    maps = alignment.row_maps()
    if lacking == "zeros" and policy == "keep":
        views = list(parents.sources)
        for index, rows in maps.items():
            views[index] = RowMappedSource(views[index], rows.rows, alignment.names[index])
    else:
        views = alignment.views(maps)
    return dataclasses.replace(parents, sources=tuple(views))


class _Alignment:
    """The vocabularies of several checkpoints beside that of the target."""

    def __init__(self, parents: Parents, policy: str, findings: Findings) -> None:
        self.parents, self.policy, self.findings = parents, policy, findings
        self.target = parents.vocabulary
        self.names = [
            vocabulary_tensors(config_of(source), source.entries) for source in parents.sources
        ]
        self.rows = [0] * len(parents.sources)
        for index, (source, names) in enumerate(zip(parents.sources, self.names, strict=True)):
            if names:
                self.rows[index] = source.entries[names[0]].shape[0]
        self.homes = [home_of(folders_of(source)) for source in parents.sources]
        self._known: dict[Path, dict[str, int] | None] = {}
        """Vocabularies by folder."""

    def row_maps(self) -> dict[int, RowMap]:
        """Of those whose rows are not the target's."""
        maps = {}
        for index, names in enumerate(self.names):
            if index == self.target or not names or not self.names[self.target]:
                continue
            rows = self._by_token(index)
            if rows is None:
                rows = row_map_by_number(self.rows[self.target], self.rows[index])
                self._report_unreadable(index)
            elif rows.missing or rows.extra:
                self._report_difference(index, rows)
            elif not rows.identity:
                role, target = self.parents.roles[index], self.parents.roles[self.target]
                self.findings.notes.append(
                    f"The {self.rows[index]} vocabulary rows of {role} are matched by token with "
                    f"the {self.rows[self.target]} rows of {target}."
                )
            if not rows.identity:
                maps[index] = rows
        return maps

    def _by_token(self, index: int) -> RowMap | None:
        """Rows by token; None where a tokenizer is missing or cannot be read."""
        target, source = self.homes[self.target], self.homes[index]
        target_rows, source_rows = self.rows[self.target], self.rows[index]
        both = target is not None and source is not None and target_rows == source_rows
        if both and same_tokenizer_files(str(target), str(source)):
            return row_map_by_number(target_rows, source_rows)
        target_tokens, source_tokens = self._tokens(target), self._tokens(source)
        if target_tokens is None or source_tokens is None:
            return None
        return row_map(target_tokens, target_rows, source_tokens, source_rows)

    def _tokens(self, folder: Path | None) -> dict[str, int] | None:
        if folder is None:
            return None
        if folder not in self._known:
            self._known[folder] = vocabulary(folder)
        return self._known[folder]

    def _report_unreadable(self, index: int) -> None:
        role, target = self.parents.roles[index], self.parents.roles[self.target]
        count, target_count = self.rows[index], self.rows[self.target]
        reasons = []
        for side in (index, self.target):
            home = self.homes[side]
            if self._tokens(home) is None:
                reasons.append(why_unreadable(home or self.parents.sources[side].folder))
        reason = "; ".join(reasons)
        sizes = f"{role} has {count} vocabulary rows, {target} {target_count}"
        if count != target_count and self.policy == "error":
            self.findings.problems.append(f"{sizes}, and tokens cannot be matched: {reason}")
        elif count != target_count:
            self.findings.notes.append(f"{sizes}: {reason}. Rows are matched by row number.")
        elif self.homes[index] is not None or self.homes[self.target] is not None:
            self.findings.notes.append(
                f"{role} and {target}: {reason}. Their {count} rows are assumed to be the same "
                "tokens."
            )

    def _report_difference(self, index: int, rows: RowMap) -> None:
        role, target = self.parents.roles[index], self.parents.roles[self.target]
        differences = []
        if rows.missing:
            differences.append(
                f"{len(rows.missing)} are missing ({listing(list(map(repr, rows.missing)), 8)})"
            )
        if rows.extra:
            differences.append(
                f"{len(rows.extra)} additional tokens are not in the output "
                f"({listing(list(map(repr, rows.extra)), 8)})"
            )
        sentence = f"The tokens of {role} are not those of {target}: {' and '.join(differences)}"
        if self.policy == "error":
            self.findings.problems.append(
                f"{sentence}. With --vocabulary keep, a model that lacks a row gets it from "
                f"{target}. With --vocabulary zero, it contributes no change to this row"
            )
        else:
            self.findings.notes.append(f"{sentence} (vocabulary: {self.policy}).")

    def views(self, maps: Mapping[int, RowMap]) -> list[Source]:
        """All sources in the target's rows."""
        parents, views = self.parents, list(self.parents.sources)
        base = parents.base
        width = len(next(iter(maps.values())).rows) if maps else 0
        in_all = np.ones(width, bool)
        """Rows that are taken from each source; elsewhere the stand-in's."""
        for index in parents.members:
            if index in maps and (self.policy != "zero" or index == base):
                in_all &= maps[index].rows >= 0
        base_first = sorted(range(len(views)), key=lambda index: index != base)
        for index in base_first if maps else ():
            is_member = index in parents.members
            unchanged = index not in maps and (bool(in_all.all()) or not is_member)
            if index == self.target or not self.names[index] or unchanged:
                continue
            rows = maps[index].rows if index in maps else np.arange(width, dtype=np.int64)
            if not is_member:
                views[index] = RowMappedSource(views[index], rows, self.names[index])
                continue
            from_base = base is not None and index != base and self.policy == "zero"
            stand_in = (
                views[base] if from_base and base is not None else parents.sources[self.target]
            )
            rows = np.where(in_all, rows, -1)
            views[index] = RowMappedSource(views[index], rows, self.names[index], fallback=stand_in)
        return views


def home_of(folders: Sequence[Path]) -> Path | None:
    """The folder whose tokenizer counts: the most important one that has any."""
    for folder in reversed(folders):
        if any((folder / name).is_file() for name in FILES):
            return folder
    return None
