"""The corpus inside every CPython: English reference prose and Python code, for work without a
network.

Prose is `pydoc_data.topics`, the language reference behind `help("assert")`: 79 topics, 465 KB.
Code is the standard library's own source. Two clearly different domains, on every machine, are what
a forgetting experiment needs: pre-train on prose (and some code), tune on code, see what happens to
prose.

The splits are disjoint by document (topic or module), and text that several documents share is kept
only once: the reference repeats whole sections between topics, which would put held-out text into
training. Documents are cut at their natural borders into pieces small enough that each held-out
split has at least `HELD_OUT_PIECES` of them, as a paired bootstrap wants.

The corpus differs between Python versions (`python`, `sha256` say which one it is), not between
runs or machines of one version apart from modules that a distribution leaves out. Both parts are
under the PSF licence.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
import platform
import re
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError, DataError
from holdfast.support.files import fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PIECE_CHARACTERS = 4096
HELD_OUT_PIECES = 120
SHORT_TEXT = 80
"""In characters. A shorter paragraph may stand in several documents ("Changed in version 3.7", a
grammar line); a shorter piece is left out."""

KNOWN_CODE = 0.6
"""Of the pieces of `code_train`."""

PROSE_SHARES = {"prose_train": 0.8, "prose_heldout": 0.2}
CODE_SHARES = {"code_pretrain": 0.2, "code_train": 0.65, "code_heldout": 0.15}

_EXCLUDED_FOLDERS = {
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "turtledemo",
    "encodings",
    "site-packages",
    "dist-packages",
    "lib-dynload",
    "__pycache__",
}
_EXCLUDED_PREFIXES = ("test", "config-", "_sysconfigdata")
_MIN_BYTES, _MAX_BYTES = 500, 200_000

_PROSE_BORDERS = (r"\n\n(?=\S)", r"\n\n", r"\n", r" ")
_CODE_BORDERS = (
    r"\n\n(?=(?:@|def |class |async def )\S)",
    r"\n\n(?=    (?:@|def |class |async def )\S)",
    r"\n\n",
    r"\n",
    r" ",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddedCorpus:
    """Disjoint splits of the embedded corpus; each is a tuple of pieces of at most
    `PIECE_CHARACTERS` characters, in document order."""

    prose_train: tuple[str, ...]
    """English reference prose to pre-train on."""
    prose_heldout: tuple[str, ...]
    """Prose of other topics: what a base model should know and a tuned one should keep."""
    code_pretrain: tuple[str, ...]
    """Python source for the base's pre-training, so that it is not new to code altogether."""
    code_train: tuple[str, ...]
    """Python source of other modules, to tune on; the first part of it is read by bases that are to
    know source, see `code_known`."""
    code_heldout: tuple[str, ...]
    """Python source of yet other modules: what tuning should improve."""
    python: str
    """The Python version it comes from, such as "3.11.7"."""
    sha256: str
    """Over all splits and their names, 64 hexadecimal digits."""

    @property
    def code_known(self) -> tuple[str, ...]:
        """What a base reads that is to know source: `code_pretrain`, and the first `KNOWN_CODE` of
        `code_train`. In the order of the modules, so that at most one module stands on both
        sides."""
        return (*self.code_pretrain, *self.code_train[: self._known])

    @property
    def code_new(self) -> tuple[str, ...]:
        """The rest of `code_train`, which such a base has not read."""
        return self.code_train[self._known :]

    @property
    def _known(self) -> int:
        return int(KNOWN_CODE * len(self.code_train))


@functools.cache
def embedded_corpus() -> EmbeddedCorpus:
    """The corpus of the running Python; about 9 MB of text, read once a process.

    Raises:
        DataError: this Python came without `pydoc_data` or without its library's source.
    """
    prose = _splits(_prose_documents(), PROSE_SHARES, _PROSE_BORDERS)
    code = _splits(_code_documents(), CODE_SHARES, _CODE_BORDERS)
    splits = {name: tuple(pieces) for name, pieces in {**prose, **code}.items()}
    digest = fingerprint({name: list(pieces) for name, pieces in splits.items()})
    return EmbeddedCorpus(**splits, python=platform.python_version(), sha256=digest)


def cut(text: str, borders: Sequence[str], limit: int) -> list[str]:
    """Cuts a text into pieces of at most `limit` characters whose concatenation is the text, at the
    strongest borders that do.

    Args:
        text: anything.
        borders: regular expressions, strongest first; a piece ends after a match.
        limit: in characters, positive. Neighbours are joined again while they fit, so pieces come
            close to it.
    """
    if len(text) <= limit:
        return [text] if text else []
    if not borders:
        return [text[i : i + limit] for i in range(0, len(text), limit)]
    pieces: list[str] = []
    begin = 0
    for end in [*(match.end() for match in re.finditer(borders[0], text)), len(text)]:
        segment, begin = text[begin:end], end
        if len(segment) > limit:
            pieces += cut(segment, borders[1:], limit)
        elif pieces and len(pieces[-1]) + len(segment) <= limit:
            pieces[-1] += segment
        elif segment:
            pieces.append(segment)
    return pieces


# ---------------------------------------------------------------------------------------- documents


def _prose_documents() -> dict[str, str]:
    try:
        from pydoc_data import topics
    except ImportError as error:
        raise DataError(
            "This Python came without pydoc_data (the reference behind help()). Install the full "
            "standard library, or use your own text."
        ) from error
    return {name: topics.topics[name] for name in sorted(topics.topics)}


def _code_documents() -> dict[str, str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = {}
    for path in _modules(root):
        name = path.relative_to(root)
        content = path.read_bytes()
        if not _MIN_BYTES <= len(content) <= _MAX_BYTES:
            continue
        try:
            documents[name.as_posix()] = content.decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:  # a handful of old modules declare latin-1
            continue
    if len(documents) < 100:
        raise DataError(
            f"Expected the standard library's source under {root}, found {len(documents)} modules. "
            "Use a Python that ships its source."
        )
    return documents


def _modules(root: Path) -> list[Path]:
    """The library's own source files, sorted; folders that are left out are not entered
    (site-packages may be vast)."""

    def is_left_out(name: str) -> bool:
        return name in _EXCLUDED_FOLDERS or name.startswith(_EXCLUDED_PREFIXES)

    modules = []
    for folder, folders, files in os.walk(root):
        folders[:] = itertools.filterfalse(is_left_out, folders)
        modules += [
            Path(folder, name) for name in files if name.endswith(".py") and not is_left_out(name)
        ]
    return sorted(modules, key=lambda path: path.relative_to(root).as_posix())


# ------------------------------------------------------------------------------------------- splits


def _splits(
    documents: Mapping[str, str], shares: Mapping[str, float], borders: Sequence[str]
) -> dict[str, list[str]]:
    """Deals whole documents out to splits in proportion to `shares` (by size), then cuts them."""
    unique = _without_repeats(documents)
    dealt: dict[str, list[str]] = {name: [] for name in shares}
    sizes = dict.fromkeys(shares, 0)
    # Largest first, each to the split that lacks most: a deterministic rule that meets the shares
    # however unequal the documents are.
    for name in sorted(unique, key=lambda n: (-len(unique[n]), n)):
        total = sum(sizes.values()) + len(unique[name])
        split = max(shares, key=lambda s: (shares[s] * total - sizes[s], s))
        dealt[split].append(name)
        sizes[split] += len(unique[name])
    pieces: dict[str, list[str]] = {}
    for split, names in dealt.items():  # what is held out comes last in both
        texts = [unique[name] for name in sorted(names)]
        if not split.endswith("heldout"):
            pieces[split] = _pieces(texts, borders)
            continue
        # what is left of a short topic may be its title alone, which another topic has too
        known = set(itertools.chain(*pieces.values()))
        pieces[split] = [piece for piece in _held_out_pieces(texts, borders) if piece not in known]
    return pieces


def _without_repeats(documents: Mapping[str, str]) -> dict[str, str]:
    """Drops every paragraph that stood in an earlier document already (white space aside), however
    it is indented."""
    earlier: set[bytes] = set()
    unique = {}
    for name, text in documents.items():
        paragraphs = []
        here: set[bytes] = set()
        # paragraph, the blank lines after it, paragraph, ...
        parts = re.split(r"(\n(?:[ \t]*\n)+)", text)
        for paragraph, blank in zip(parts[::2], [*parts[1::2], ""], strict=True):
            plain = " ".join(paragraph.split())
            if len(plain) >= SHORT_TEXT:
                key = hashlib.sha256(plain.encode()).digest()
                if key in earlier:
                    continue
                here.add(key)
            paragraphs.append(paragraph + blank)
        earlier |= here
        unique[name] = "".join(paragraphs)
    return unique


def _pieces(
    documents: Sequence[str], borders: Sequence[str], limit: int = PIECE_CHARACTERS
) -> list[str]:
    pieces = [piece.strip("\n") for text in documents for piece in cut(text, borders, limit)]
    return list(dict.fromkeys(piece for piece in pieces if len(piece) >= SHORT_TEXT))


def _held_out_pieces(documents: Sequence[str], borders: Sequence[str]) -> list[str]:
    """At least `HELD_OUT_PIECES`, where they need not be very short for that."""
    limit = PIECE_CHARACTERS
    while len(pieces := _pieces(documents, borders, limit)) < HELD_OUT_PIECES and limit > 256:
        limit = limit * 3 // 4
    return pieces


# ---------------------------------------------------------------------------------------- tokenizer


def train_tokenizer(
    documents: Iterable[str], *, vocab_size: int, special_tokens: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE tokenizer: it can write any text, has no unknown token, and is the
    same for the same documents.

    Args:
        documents: the texts to learn merges from.
        vocab_size: entries in all, special tokens and the 256 bytes included; fewer come out where
            the texts offer no more merges.
        special_tokens: further ones beside "<|endoftext|>" (end of sequence, id 0) and "<|pad|>"
            (padding, id 1), such as chat markers.

    Returns:
        A transformers tokenizer that adds no token on its own; `save_pretrained` and
        `AutoTokenizer` give it back.

    Raises:
        ConfigError: `vocab_size` leaves no room for the bytes and the special tokens.
        DataError: no text at all.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = list(dict.fromkeys(["<|endoftext|>", "<|pad|>", *special_tokens]))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(alphabet) + len(special)
    if vocab_size < smallest:
        raise ConfigError(
            f"vocab_size: expected at least {smallest} ({len(alphabet)} bytes and {len(special)} "
            f"special tokens), got {vocab_size}."
        )
    texts = [text for text in documents if text]
    if not texts:
        raise DataError("Expected texts to train a tokenizer on, got none.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer, length=len(texts))
    end, padding, *others = special
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end,
        bos_token=end,
        pad_token=padding,
        clean_up_tokenization_spaces=False,
        **({"additional_special_tokens": others} if others else {}),
    )
