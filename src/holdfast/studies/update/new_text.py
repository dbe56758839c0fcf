"""The new text of an update: read once, a part held out to be measured, and cut to budgets of
tokens.

```
corpus/all.jsonl              what was read: {"text", "title", "date", "source"}, in an order that only the seed and the
                              texts decide
corpus/all.heldout.jsonl      held out of it
corpus/all.jsonl.json         how it came about: files, options, what was skipped and why
corpus/lengths.json           tokens of each document
corpus/100M.jsonl             the first documents of all.jsonl that make up a budget; the smaller budgets are parts of
                              the larger
```
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, DataError, Problem
from holdfast.studies.update.plan import UpdateConfig
from holdfast.support.files import (
    fingerprint,
    read_json,
    read_jsonl,
    read_object,
    write_json,
    write_jsonl,
)
from holdfast.support.progress import progress
from holdfast.support.token_counts import shown_tokens

if TYPE_CHECKING:
    from holdfast.data.prepare.run import Preparation

BATCH = 1000
SMALL_HELD_OUT = 0.2
"""Share of the documents that is held out of a corpus so small that the default share is less than
one."""
LONGEST_TEXT = 1_000_000
"""Characters that are tokenised at a time of one document: a tokenizer's time grows faster than a
very long text."""


@dataclass(frozen=True, kw_only=True)
class NewText:
    """What there is to train on, and what to measure."""

    files: dict[int | None, Path]
    """By budget."""
    held_out: Path | None
    facts: dict[str, Any]
    """For the record: see `ResidualRecord.corpus`."""
    notes: list[str] = field(default_factory=list)


def corpus_request(config: UpdateConfig, output: Path) -> Preparation:
    """What `holdfast data prepare` is asked for.

    Args:
        config: the corpus and its options.
        output: the file for its documents.

    Raises:
        ConfigError: options that do not fit, files or folders without anything that is read.
    """
    from holdfast.data.prepare.run import Preparation

    request = Preparation(
        inputs=tuple(Path(name) for name in config.request.corpus),
        output=output,
        options=config.corpus_options,
        heldout=config.request.held_out,
        seed=0,
    )
    problems = []
    for problem in request.problems():
        is_option = problem.path and problem.path[0] in config.corpus_options
        problems.append(problem if is_option else Problem("corpus", problem.text))
    if problems:
        raise ConfigError(problems)
    return request


def new_text(config: UpdateConfig, tokenizer: Any, folder: Path) -> NewText:
    """Reads the corpus, or finds it read, and cuts it to the budgets.

    Args:
        config: names the files, the options and the budgets.
        tokenizer: the base's; budgets are counted with it, end-of-sequence tokens included.
        folder: gets the files.

    Raises:
        ConfigError: options that do not fit, or a corpus smaller than a budget.
        DataError: files that cannot be read, or no document left.
    """
    import numpy as np

    from holdfast.data.packing import pack
    from holdfast.data.prepare.run import NothingHeldOut, prepare

    settings, everything = config.request, folder / "all.jsonl"
    request = corpus_request(config, everything)
    notes = []
    try:
        prepared = prepare(request)
    except NothingHeldOut as error:
        if "held_out" in config.resolved:
            raise DataError(
                f"held_out: {settings.held_out:g} of {error.rows} documents is less than one "
                "document. Give a larger share, or 0 to measure no new text."
            ) from None
        prepared = prepare(dataclasses.replace(request, heldout=SMALL_HELD_OUT))
        notes.append(
            f"{settings.held_out:.0%} of {error.rows} documents is less than one document, so "
            f"{SMALL_HELD_OUT:.0%} are held out. To change this share, set held_out."
        )
    counts = prepared.record["counts"]
    held_out = (
        request.heldout_path if request.heldout_path is not None and counts["heldout"] else None
    )
    lengths = _lengths(everything, tokenizer, folder / "lengths.json")
    total = sum(lengths)
    window = settings.window
    largest = max(filter(None, settings.budgets), default=0)
    if largest > total:
        raise ConfigError(
            f"tokens: the corpus has {total:,} tokens in {len(lengths):,} documents to train on, "
            f"less than the budget of {shown_tokens(largest)}. Give more text, or a budget of at "
            f"most {shown_tokens(total)}. To read the same text several times, set `epochs`."
        )
    files: dict[int | None, Path] = {}
    for budget in settings.budgets:
        if budget is None:
            files[None] = everything
        else:
            files[budget] = _cut(everything, lengths[: _count(lengths, budget)], budget, folder)
    packed = pack(np.array(lengths), window).info
    longer = sum(n > window for n in lengths)
    if longer:
        share = (
            f"{longer:,} of {len(lengths):,} documents are longer than the window of {window} "
            f"tokens (longest: {max(lengths):,})"
        )
        notes.append(f"{share}: they are split into independent parts.")
    facts: dict[str, Any] = {
        "first_date": counts.get("first_date"),
        "last_date": counts.get("last_date"),
        "documents": len(lengths),
        "tokens": total,
    }
    facts |= {
        "held_out": counts["heldout"],
        "undated": counts.get("undated", 0),
        "months": counts.get("months", {}),
        "skipped": dict(counts.get("skipped", {})),
    }
    facts |= {
        "mean_tokens": round(total / max(1, len(lengths)), 1),
        "longest": max(lengths, default=0),
        "windows": packed.windows,
        "wasted": packed.wasted,
    }
    return NewText(files=files, held_out=held_out, facts=facts, notes=notes)


def _lengths(file: Path, tokenizer: Any, path: Path) -> list[int]:
    """Tokens of every document with the end-of-sequence token, counted once for a file and a
    tokenizer."""
    from holdfast.evaluation.runner import tokenizer_fingerprint

    stat = file.stat()
    key = fingerprint([file.name, stat.st_size, stat.st_mtime_ns, tokenizer_fingerprint(tokenizer)])
    if path.is_file():
        known = read_object(path)
        if known.get("key") == key and isinstance(known.get("lengths"), list):
            return [int(n) for n in known["lengths"]]
    lengths: list[int] = []
    with progress("Counting tokens", total=stat.st_size) as advance:
        for texts in _batches(file, BATCH):
            pieces: list[str] = []
            counts: list[int] = []
            for text in texts:
                begins = range(0, len(text), LONGEST_TEXT)
                pieces += [text[begin : begin + LONGEST_TEXT] for begin in begins]
                counts.append(len(begins))
            sizes = map(len, tokenizer(pieces)["input_ids"])
            for text, count in zip(texts, counts, strict=True):
                lengths.append(sum(itertools.islice(sizes, count)) + 1)
                advance(len(text.encode()))
    write_json(path, {"key": key, "lengths": lengths})
    return lengths


def _batches(file: Path, size: int) -> Iterator[list[str]]:
    batch: list[str] = []
    for row in read_jsonl(file):
        batch.append(row["text"])
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _count(lengths: Sequence[int], budget: int) -> int:
    """How many documents make up a budget: the last one is left out where that comes nearer, and
    there always is one."""
    sums, count = 0, 0
    for length in lengths:
        if sums >= budget or (count and budget - sums <= sums + length - budget):
            break
        sums, count = sums + length, count + 1
    return count


def _cut(everything: Path, lengths: Sequence[int], budget: int, folder: Path) -> Path:
    """The first documents, with as many tokens each, as a file."""
    path, count, stat = folder / f"{shown_tokens(budget)}.jsonl", len(lengths), everything.stat()
    stamp = Path(f"{path}.json")
    of = fingerprint([stat.st_size, stat.st_mtime_ns])
    about = {"documents": count, "tokens": sum(lengths), "budget": budget, "of": of}
    if path.is_file() and stamp.is_file() and read_json(stamp) == about:
        return path
    write_jsonl(path, itertools.islice(read_jsonl(everything), count))
    write_json(stamp, about)
    return path
