"""Documents that are nearly the same, such as one agency's article at several newspapers: MinHash with
locality-sensitive hashing.

The similarity of two documents is that of their sets of word 5-grams (Jaccard):

    similarity(A, B) = |A and B| / |A or B|

MinHash (Broder 1997, "On the resemblance and containment of documents") keeps the least value of 128 hash functions
over a document's set; the share of functions in which two documents agree estimates their similarity, with a standard
deviation of at most 0.044. Only documents that agree in a whole band of functions are compared (Leskovec, Rajaraman and
Ullman, "Mining of Massive Datasets", section 3.4): with b bands of r functions a pair of similarity s is found with
probability 1 - (1 - s^r)^b, and r is the largest number for which a pair at the threshold is found with 95 %. For 0.8
that is 18 bands of 7.

Pairs make groups, and of each group one document stays: the first published, else the one with the smallest hash of its
text. So the outcome does not depend on the order in which documents are read. A group may hold documents that are alike
only by way of others.

Capitals, punctuation and white space do not count. Characters of scripts that are written without spaces count as
words.

Memory is 8 bytes a band and document and little else (some 170 MB a million at 0.8); signatures (512 bytes a document)
wait in a scratch file. rensa and datasketch were measured against it (LOG, 2026-11-24): they keep ten times as much.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

FUNCTIONS = 128
WORDS = 5
FOUND = 0.95
"""Least probability with which a pair at the threshold is compared."""

_UNSPACED = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_WORD = re.compile(r"\w+")
_WORD_OR_SIGN = re.compile(rf"{_UNSPACED.pattern}|\w+")
_KNOWN_WORDS = 1 << 20
_BLOCK = 512
"""Shingles that are hashed at once: 256 kB, which stay in the processor's cache."""
_WRITTEN = 1 << 20
"""Bytes of signatures that are written at once."""
_GAMMA = 0x9E3779B97F4A7C15


def bands_of(similarity: float) -> tuple[int, int]:
    """(number of bands, functions in each) with which a pair of that similarity is found with probability `FOUND`."""
    rows = max(r for r in range(1, FUNCTIONS + 1) if 1 - (1 - similarity**r) ** (FUNCTIONS // r) >= FOUND or r == 1)
    return FUNCTIONS // rows, rows


def words_of(text: str) -> list[str]:
    """The words of a text in small letters; characters of scripts that are written without spaces are words."""
    plain = text.isascii() or not _UNSPACED.search(text)
    return (_WORD if plain else _WORD_OR_SIGN).findall(text.casefold())


class NearDuplicates:
    """Takes in documents one by one, in any order, and then says which are to be left out.

    Args:
        similarity: from which two documents are taken for one, 0.5 to 1.
        file: where signatures wait; not there yet.
    """

    def __init__(self, similarity: float, file: Path) -> None:
        self.similarity = similarity
        self.bands, self.rows = bands_of(similarity)
        self.file = file
        self.count = 0
        self._waiting = bytearray()
        self._keys = array("Q")
        numbers = _mixed(np.arange(1, 3 * FUNCTIONS + 1, dtype=np.uint64) * np.uint64(_GAMMA)).reshape(3, FUNCTIONS)
        self._factors, self._terms = _upper(numbers[0]) | np.uint32(1), _upper(numbers[1])
        self._weights = numbers[2] | np.uint64(1)
        self._hash_words = _WordHashes()

    def add(self, text: str) -> None:
        """Takes in the next document."""
        self._waiting += self.signature(text).tobytes()
        self.count += 1
        if len(self._waiting) >= _WRITTEN:
            self._set_down()

    def signature(self, text: str) -> np.ndarray:
        """The least values of all functions over a document's shingles, [FUNCTIONS] uint32."""
        shingles = self._shingles(text)
        least = np.full(FUNCTIONS, np.iinfo(np.uint32).max, dtype=np.uint32)
        for start in range(0, len(shingles), _BLOCK):
            values = np.multiply(shingles[start : start + _BLOCK, None], self._factors)
            values += self._terms
            np.minimum(least, values.min(axis=0), out=least)
        return least

    def _shingles(self, text: str) -> np.ndarray:
        """Hashes of the word 5-grams, [n] uint32; of all words where there are fewer than five, of the text where there
        is none."""
        words = self._hash_words(words_of(text))
        if not len(words):
            words = self._hash_words([text])
        size = min(WORDS, len(words))
        grams = np.stack([words[place : len(words) - size + 1 + place] for place in range(size)], axis=1)
        return _upper(self._joined(grams))

    def _joined(self, numbers: np.ndarray) -> np.ndarray:
        """One hash of each row of up to 128 hashes, [n, k] -> [n] uint64; wrapping around is meant."""
        return _mixed((numbers * self._weights[: numbers.shape[1]]).sum(axis=1, dtype=np.uint64))

    def left_out(self, priority: np.ndarray, advance: Callable[[float], None] = lambda amount: None) -> np.ndarray:
        """Which documents are near duplicates of others that stay, [count] bool.

        Args:
            priority: [count], a permutation of 0 to count - 1: of a group the document with the smallest number stays.
            advance: called for every band that was compared.
        """
        self._set_down()
        count = self.count
        parents = np.arange(count, dtype=np.int64)
        if count < 2:
            return np.zeros(count, dtype=bool)
        signatures = np.memmap(self.file, dtype=np.uint32, mode="r", shape=(count, FUNCTIONS))
        keys = np.frombuffer(self._keys, dtype=np.uint64).reshape(count, self.bands)
        for band in range(self.bands):
            for group in _equal(keys[:, band], priority):
                self._join(group, signatures, parents, priority)
            advance(1)
        return np.array([_root(parents, place) != place for place in range(count)], dtype=bool)

    def _set_down(self) -> None:
        """Writes the signatures that wait, and keeps the keys of their bands."""
        signatures = np.frombuffer(bytes(self._waiting), dtype=np.uint32).reshape(-1, FUNCTIONS)
        bands = signatures[:, : self.bands * self.rows].reshape(-1, self.rows)
        self._keys.frombytes(self._joined(bands.astype(np.uint64)).tobytes())
        with open(self.file, "ab") as file:
            file.write(self._waiting)
        self._waiting.clear()

    def _join(self, group: np.ndarray, signatures: np.ndarray, parents: np.ndarray, priority: np.ndarray) -> None:
        """Joins those of a band's documents that are alike: all that are like the first one, then the rest among
        themselves."""
        left, of_group = group, signatures[group]
        while len(left) > 1:
            alike = (of_group == of_group[0]).mean(axis=1) >= self.similarity
            for member in left[alike][1:]:
                one, other = _root(parents, left[0]), _root(parents, member)
                if one != other:
                    kept, joined = (one, other) if priority[one] < priority[other] else (other, one)
                    parents[joined] = kept
            left, of_group = left[~alike], of_group[~alike]


class _WordHashes:
    """64-bit hashes of words, those of common words from memory."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __call__(self, words: list[str]) -> np.ndarray:
        known = self._known
        new = set(words).difference(known)
        if len(known) + len(new) > _KNOWN_WORDS:
            known.clear()
            new = set(words)
        known.update((word, _hashed(word)) for word in new)
        return np.fromiter(map(known.__getitem__, words), dtype=np.uint64, count=len(words))


def _hashed(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def _upper(numbers: np.ndarray) -> np.ndarray:
    """The upper halves of 64-bit numbers, uint32."""
    return (numbers >> np.uint64(32)).astype(np.uint32)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014), element by element."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _equal(keys: np.ndarray, priority: np.ndarray) -> Iterator[np.ndarray]:
    """Indices of documents with equal keys, two or more, in the order of their priority."""
    order = np.lexsort((priority, keys))
    found = keys[order]
    borders = np.flatnonzero(np.r_[True, found[1:] != found[:-1], True])
    for place in np.flatnonzero(np.diff(borders) > 1):
        yield order[borders[place] : borders[place + 1]]


def _root(parents: np.ndarray, place: int) -> int:
    while parents[place] != place:
        parents[place] = parents[parents[place]]
        place = parents[place]
    return int(place)
