"""Another tokenizer for a model: rows of embeddings and head for the tokens of a donor's vocabulary.

Tokens are compared by the bytes that they stand for, so that "Ġthe" of a byte-level BPE and "▁the" of SentencePiece
are one. A row of the result is

    copied      the model's own row, where its tokenizer has the same token, or for a special token that of the same
                role (begin, end, padding, unknown);
    averaged    else the mean of the rows of the tokens into which the model's tokenizer cuts the token's text;
    mean        else, and for padding, the mean of all rows.

This is where FOCUS [Dobler and de Melo 2023] and WECHSEL [Minixhofer et al. 2022] begin: those two weigh the rows of
similar tokens by vectors learnt from text, which this does not look at. The result speaks the donor's tokens and has to
be trained; without training its texts are poorer than the model's. All other weights are copied.

The tokenizer's files and the chat template are the donor's; ids of special tokens in config.json and
generation_config.json follow.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.checkpoints.build import Slots
from holdfast.checkpoints.chat_template import asked_template, template_of
from holdfast.checkpoints.companions import TOKENIZER, changed_config
from holdfast.checkpoints.dtypes import DTYPES, DType, Operand, compute_dtype, decode
from holdfast.checkpoints.kernels import Flags
from holdfast.checkpoints.locate import local_folder, open_source
from holdfast.checkpoints.merge import Name, Prepared
from holdfast.checkpoints.methods.protocol import Block, Sum, weighted_sum
from holdfast.checkpoints.plan import make_plan, quantised
from holdfast.checkpoints.reader import stretches
from holdfast.checkpoints.residual import Passless
from holdfast.checkpoints.sources import Entry, Source, config_of, folders_of, listing, read_object
from holdfast.checkpoints.vocabulary import RowMappedSource, home_of, vocabulary, vocabulary_tensors, why_unreadable
from holdfast.errors import ConfigError, ModelError

ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_IDS = re.compile(r"(\w+_token)_ids?")
_ROWS = 4096
"""Rows that are added up at a time, where all of them are."""


# ----------------------------------------------------------------------------------------------------------- tokenizers


@dataclass(frozen=True)
class TokenTexts:
    """The tokens of a folder's tokenizer, and the bytes that they stand for.

    Raises:
        ModelError: no tokenizer.json, or one that cannot be read.
    """

    folder: Path

    def __post_init__(self) -> None:
        if not (self.folder / "tokenizer.json").is_file():
            raise ModelError(f"A transplant needs both tokenizers as tokenizer.json. {why_unreadable(self.folder)}.")

    @cached_property
    def tokens(self) -> dict[str, int]:
        """Token: number."""
        return vocabulary(self.folder) or {}

    @cached_property
    def _stated(self) -> dict[str, Any]:
        return read_object(self.folder / "tokenizer.json", "a tokenizer's file")

    @cached_property
    def added(self) -> dict[str, bool]:
        """Tokens that were added to the vocabulary, and whether they are special."""
        entries = self._stated.get("added_tokens") or []
        return {e["content"]: bool(e.get("special")) for e in entries if isinstance(e, dict) and "content" in e}

    @cached_property
    def roles(self) -> dict[str, str]:
        """The token of each role that the tokenizer's settings name."""
        found: dict[str, str] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            path = self.folder / name
            settings = read_object(path, "a tokenizer's settings") if path.is_file() else {}
            for role in ROLES:
                value = settings.get(role)
                token = value.get("content") if isinstance(value, dict) else value
                if isinstance(token, str) and token in self.tokens:
                    found[role] = token
        return found

    @cached_property
    def alphabet(self) -> str:
        """How tokens write spaces and bytes: "bytes" (byte-level BPE), "metaspace" (SentencePiece), "words"
        (WordPiece), or "text"."""
        kinds = set(_types(self._stated))
        parts = json.dumps([self._stated.get(key) for key in ("normalizer", "pre_tokenizer", "decoder")])
        if "ByteLevel" in kinds:
            return "bytes"
        if "Metaspace" in kinds or "\\u2581" in parts:
            return "metaspace"
        return "words" if (self._stated.get("model") or {}).get("type") == "WordPiece" else "text"

    def text(self, token: str) -> bytes:
        """The bytes that a token stands for."""
        if token in self.added:
            return token.encode()
        if self.alphabet == "bytes":
            known = _bytes_by_letter()
            return b"".join(known[c] if c in known else c.encode() for c in token)
        if self.alphabet == "metaspace":
            byte = _BYTE.fullmatch(token)
            return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()
        if self.alphabet == "words":
            return token[2:].encode() if token.startswith("##") else f" {token}".encode()
        return token.encode()

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        except Exception as error:  # the library raises no type of its own
            raise ModelError(
                f"Expected a tokenizer in {self.folder / 'tokenizer.json'}, but the library tokenizers cannot read it "
                f"({str(error).strip()}). Copy or download it again."
            ) from error

    def pieces(self, text: bytes) -> list[int]:
        """Numbers of the tokens that the tokenizer cuts a text into, unknown ones left out."""
        try:
            plain = text.decode()
        except UnicodeDecodeError:
            plain = ""  # a part of a letter
        if self.alphabet == "bytes":
            found = self._cut("".join(_letters()[byte] for byte in text))
        elif self.alphabet == "metaspace":
            found = self._cut(plain.replace(" ", "\u2581"))
            if not found:
                found = [self.tokens[byte] for b in text if (byte := f"<0x{b:02X}>") in self.tokens]
        else:
            found = list(self._tokenizer.encode(plain.strip(), add_special_tokens=False).ids) if plain.strip() else []
        unknown = {self.tokens[t] for t in (self.roles.get("unk_token"), self._unknown) if t in self.tokens}
        return [number for number in found if number not in unknown]

    @cached_property
    def _unknown(self) -> str | None:
        model = self._stated.get("model") or {}
        if isinstance(number := model.get("unk_id"), int):
            return next((token for token, row in self.tokens.items() if row == number), None)
        return model.get("unk_token")

    def _cut(self, letters: str) -> list[int]:
        """By the model alone: normalizers put spaces in front, and splitters cut at places of their own."""
        try:
            return [token.id for token in self._tokenizer.model.tokenize(letters)] if letters else []
        except Exception:  # a letter that the model does not know, and no token for unknown ones
            return []


def _types(stated: Any) -> list[str]:
    """Types of all parts in a tokenizer's normalizer, pre-tokenizer and decoder."""
    if isinstance(stated, list):
        return [kind for one in stated for kind in _types(one)]
    if not isinstance(stated, dict):
        return []
    inner = [
        stated.get(k) for k in ("normalizer", "pre_tokenizer", "decoder", "pretokenizers", "decoders", "normalizers")
    ]
    own = [stated["type"]] if isinstance(stated.get("type"), str) else []
    return own + [kind for one in inner for kind in _types(one)]


@functools.cache
def _bytes_by_letter() -> dict[str, bytes]:
    """The letters by which byte-level BPE writes bytes [Radford et al. 2019, `bytes_to_unicode`]."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in set(shown)]
    return {chr(b): bytes([b]) for b in shown} | {chr(256 + i): bytes([b]) for i, b in enumerate(hidden)}


@functools.cache
def _letters() -> dict[int, str]:
    return {byte[0]: letter for letter, byte in _bytes_by_letter().items()}


# ----------------------------------------------------------------------------------------------------------- assignment


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Where each row of the result comes from."""

    rows: NDArray[np.int64]
    """`[rows]`: the model's row that is copied; -1: none."""
    pieces: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Rows that are means of others: which. A row in neither is the mean of all."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many tokens were "copied" ("by_role" among them), "averaged" and "mean", and rows that are "padding"."""
    unlike: Sequence[str] = ()
    """Tokens with the mean of all rows."""


def assign(model: TokenTexts, donor: TokenTexts, model_rows: int, *, multiple: int = 1) -> Assignment:
    """The rows of the donor's vocabulary out of the model's.

    Args:
        model, donor: their tokenizers.
        model_rows: of the model's embeddings; tokens beyond have no row.
        multiple: of which the number of rows is to be.
    """
    count = 1 + max(donor.tokens.values(), default=-1)
    total = -(-count // multiple) * multiple
    held = {token: row for token, row in model.tokens.items() if row < model_rows}
    plain: dict[bytes, int] = {}
    # of two tokens for one text a piece comes before a byte, and both before what was added
    for token, row in sorted(
        held.items(), key=lambda item: (item[0] in model.added, bool(_BYTE.fullmatch(item[0])), item[1])
    ):
        plain.setdefault(model.text(token), row)
    alike = model.alphabet == donor.alphabet
    own_roles = {token: role for role, token in reversed(donor.roles.items())}
    rows = np.full(total, -1, np.int64)
    pieces: dict[int, list[int]] = {}
    unlike, by_role = [], 0
    for token, row in sorted(donor.tokens.items(), key=lambda item: item[1]):
        text = donor.text(token)
        special = donor.added.get(token, False)
        both = token in model.added if token in donor.added else alike and token not in model.added
        found = held.get(token) if both else None
        if found is None and not special:
            found = plain.get(text)
        if found is None and (role := own_roles.get(token)) is not None:
            found = held.get(model.roles.get(role, ""))
            by_role += found is not None
        if found is not None:
            rows[row] = found
        elif parts := [number for number in model.pieces(text) if number < model_rows]:
            pieces[row] = parts
        else:
            unlike.append(token)
    counts = {
        "copied": int((rows >= 0).sum()),
        "by_role": by_role,
        "averaged": len(pieces),
        "mean": len(unlike),
        "padding": total - len(set(donor.tokens.values())),
    }
    return Assignment(rows=rows, pieces=pieces, counts=counts, unlike=unlike)


class _Means:
    """The rows that are means of the model's, in the result's order; a `Source`."""

    def __init__(self, source: Source, names: Sequence[str], found: Assignment, used: NDArray[np.int64]) -> None:
        self.source, self.label, self.folder = source, source.label, source.folder
        self._pieces, self._used = found.pieces, used
        self._lock, self._whole = threading.Lock(), dict[str, NDArray[Any]]()
        self.entries: Mapping[str, Entry] = {
            name: source.entries[name]._replace(shape=(len(found.rows), *source.entries[name].shape[1:]), offset=-1)
            for name in names
        }

    def read(self, name: str, start: int, stop: int, buffer: NDArray[np.uint8]) -> Operand:
        """See `Source.read`."""
        entry = self.entries[name]
        columns = max(1, entry.size // max(1, entry.shape[0]))
        wide = compute_dtype(entry.dtype)
        values = np.empty(stop - start, wide)
        for row in range(start // columns, -(-stop // columns)):
            begin, end = max(row * columns, start), min((row + 1) * columns, stop)
            within = slice(begin - row * columns, end - row * columns)
            if row in self._pieces:
                parts = self._pieces[row]
                total = sum(self._row(name, p * columns + within.start, p * columns + within.stop) for p in parts)
                mean = total / len(parts)
            else:
                mean = self._mean(name, columns)[within]
            values[begin - start : end - start] = mean
        return Operand(values, DTYPES["F64" if wide == np.float64 else "F32"])

    def _row(self, name: str, start: int, stop: int) -> NDArray[np.float64]:
        operand = self.source.read(name, start, stop, np.empty((stop - start) * 8, np.uint8))
        return decode(operand.raw, operand.dtype).astype(np.float64)

    def _mean(self, name: str, columns: int) -> NDArray[np.float64]:
        """Of all rows that a token has."""
        with self._lock:
            if name not in self._whole:
                size = self.source.entries[name].size
                total = np.zeros(columns)
                for start, stop in stretches(size, _ROWS * columns):
                    values = self._row(name, start, stop).reshape(-1, columns)
                    here = self._used[(self._used >= start // columns) & (self._used < stop // columns)]
                    total += values[here - start // columns].sum(0)
                self._whole[name] = total / max(1, len(self._used))
            return self._whole[name]


class TransplantedSource(RowMappedSource):
    """A model with the rows of another vocabulary; a `Source`.

    Args:
        source: the model.
        names: its tensors with a row a token.
        found: where rows come from.
        used: rows of the model that a token has.
        config_changes: keys of config.json that follow.
    """

    def __init__(
        self,
        source: Source,
        names: Sequence[str],
        found: Assignment,
        used: NDArray[np.int64],
        config_changes: Mapping[str, Any],
    ) -> None:
        super().__init__(source, found.rows, names, fallback=_Means(source, names, found, used))
        self.config_changes = dict(config_changes)
        self.config = changed_config(config_of(source), config_changes)


class _Donor:
    """The donor's folder, of which the tokenizer's files travel; a `Source` without tensors."""

    companions = TOKENIZER

    def __init__(self, folder: Path, label: str) -> None:
        self.folder, self.label = folder, label
        self.entries: Mapping[str, Entry] = {}

    def read(self, name: str, start: int, stop: int, buffer: NDArray[np.uint8]) -> Operand:
        raise AssertionError("no tensors")


# -------------------------------------------------------------------------------------------------------------- request


@dataclass(frozen=True, kw_only=True)
class Transplant(Passless):
    """Copies model 1."""

    def as_sum(self, models: Sequence[DType], state: Any) -> Sum | None:
        return Sum(None, [(1.0, 1, None)])

    def combine(self, block: Block, state: Any, out: Operand) -> Flags:
        return weighted_sum(block, Sum(None, [(1.0, 1, None)]), out)

    def identity(self) -> dict[str, Any]:
        return {"method": "transplant", "rule": "mean of sub-tokens"}


def prepare_transplant(
    model: Name,
    tokenizer: Name,
    *,
    multiple: int = 1,
    adapter_base: Name | None = None,
    chat_template: str | None = None,
    dtype: str | None = None,
) -> Prepared:
    """Checks and plans a transplant.

    Args:
        model: folder, hub id or adapter.
        tokenizer: the donor: a folder or hub id with a tokenizer.json; it needs no weights.
        multiple: of which the number of rows is to be (hardware likes 64 or 128).
        adapter_base: the model that an adapter belongs to.
        chat_template: see `prepare_merge`; default: the donor's.
        dtype: of the result; default: the model's, tensor by tensor.

    Raises:
        ConfigError: settings out of range.
        ModelError: a tokenizer or the model cannot be read, or is quantised; the model has no vocabulary.
    """
    if multiple < 1:
        raise ConfigError(f"pad_to_multiple_of: expected a number of at least 1, got {multiple}")
    source = open_source(model, base=adapter_base)
    if method := quantised(source):
        raise ModelError(f"{source.label} is quantised ({method}). Take the checkpoint that was quantised.")
    home = home_of(folders_of(source))
    mine, theirs = TokenTexts(home or source.folder), TokenTexts(local_folder(tokenizer))
    names = vocabulary_tensors(config_of(source), source.entries)
    if not names:
        raise ModelError(f"{source.label} has no tensor with a row for each token, which a transplant would change.")
    rows = source.entries[names[0]].shape[0]
    found = assign(mine, theirs, rows, multiple=multiple)
    used = np.unique([row for row in mine.tokens.values() if row < rows]).astype(np.int64)
    numbers, lost = _special_ids(config_of(source), mine, theirs)
    view = TransplantedSource(source, names, found, used, {"vocab_size": len(found.rows), **numbers})
    generation = _generation(folders_of(source))
    ids, also = _special_ids(generation, mine, theirs)
    donor = _Donor(theirs.folder, os.fspath(tokenizer))
    plan = make_plan([view], ["model"], layout=0, base=None, dtype=dtype)
    notes = _notes(found, rows, mine, theirs, [*dict.fromkeys([*lost, *also])], chat_template)
    plan = dataclasses.replace(plan, notes=(*plan.notes, *notes), generation=ids)
    return Prepared(
        command="transplant",
        plan=plan,
        recipe=Transplant(),
        slots=Slots(base=None, models=(0,)),
        request={
            "tokenizer": os.fspath(tokenizer),
            "tokenizer_sha256": hashlib.sha256((theirs.folder / "tokenizer.json").read_bytes()).hexdigest(),
            "rows": dict(found.counts),
            "dtype": dtype,
        },
        companions=(view, donor),
        chat_template=asked_template(chat_template, [view, donor]) if chat_template is not None else None,
    )


def _generation(folders: Sequence[Path]) -> dict[str, Any]:
    path = next((p for f in reversed(folders) if (p := f / "generation_config.json").is_file()), None)
    return read_object(path, "generation settings") if path is not None else {}


def _special_ids(config: Mapping[str, Any], model: TokenTexts, donor: TokenTexts) -> tuple[dict[str, Any], list[str]]:
    """Keys of a configuration that hold numbers of tokens, with the donor's numbers, and those that have none.

    A role that the donor's settings name has the donor's token; other tokens are found by their text. A list (several
    ends) has all that are found and the donor's own."""
    by_row = {row: token for token, row in model.tokens.items()}
    own = {role: donor.tokens[token] for role, token in donor.roles.items()}
    changes: dict[str, Any] = {}
    lost = []
    holders = [config, *(value for value in config.values() if isinstance(value, dict))]
    for key, value in [item for holder in holders for item in holder.items()]:
        role = _IDS.fullmatch(key)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if (
            role is None
            or key in changes
            or not (whole or (isinstance(value, list) and all(type(v) is int for v in value)))
        ):
            continue
        there = [donor.tokens.get(by_row.get(number, "")) for number in ([value] if whole else value)]
        known = list(dict.fromkeys([*([own[role[1]]] if role[1] in own else []), *(n for n in there if n is not None)]))
        changes[key] = (known[0] if known else None) if whole else known
        lost += [] if known else [key]
    return changes, lost


def _notes(
    found: Assignment,
    rows: int,
    model: TokenTexts,
    donor: TokenTexts,
    lost: Sequence[str],
    chat_template: str | None,
) -> list[str]:
    counts = found.counts
    role = f" ({counts['by_role']} of them by their role)" if counts["by_role"] else ""
    notes = [
        f"{rows:,} rows become {len(found.rows):,}: {counts['copied']:,} tokens that both have are copied{role}, "
        f"{counts['averaged']:,} are means of the model's tokens for their text, {counts['mean']:,} are the mean of all"
        + (f", and so are {counts['padding']:,} rows that no token has" if counts["padding"] else "")
        + "."
    ]
    if found.unlike:
        notes.append(f"Tokens with the mean of all rows: {listing(list(map(repr, found.unlike)), 8)}.")
    if counts["averaged"] + counts["mean"]:
        notes.append("Rows that are not copied are a start for training, not a model that is ready.")
    if lost:
        notes.append(f"The donor has no token for {listing(list(lost))}: these are set to nothing. Check config.json.")
    if chat_template is None and template_of(donor.folder) is None and template_of(model.folder) is not None:
        notes.append(
            "The donor has no chat template, and the model's is written in its own special tokens: the result has "
            "none. --chat_template gives it one."
        )
    return notes
