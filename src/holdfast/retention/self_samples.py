"""The start model's own samples: a stream that is drawn once, kept in a folder, and read again by
every run that asks for the same.

**Which samples.** Sample after sample the stream is decided by the start's weights, the prompts and
how is drawn (`Stream.facts`), not by how many a run needs: a run with a larger share reads the same
ones and draws on. Prompts are gone through in an order of their own for each round, those of about
the same length together; a batch is drawn with a seed of its number. So neither the number of ranks
nor an interruption changes what a run trains on.

**Where.** `samples.jsonl` in `<cache>/self_replay/<key>`, a batch a line with a checksum, written
the moment it is there: what Ctrl-C costs is one batch. One process at a time draws; others with the
same key wait and find the batches.

**What is left out** is decided when they are read, so that another threshold draws nothing again
(`Filters`).
"""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import FolderBusy, ModelError
from holdfast.retention.services import Sample
from holdfast.support.files import fingerprint, write_json
from holdfast.support.ledger import Ledger, read_ledger
from holdfast.support.progress import progress

FORMAT = 1
"""Raised when the same facts give other samples."""
NGRAM = 4
"""Tokens of the stretches whose repetition is counted."""
REPEATS = 0.5
"""Share of repeated stretches from which on a text only repeats itself, where nobody says."""
SHORT = 16
"""Tokens; a longer text is not looked at for whether it is blank."""
JUDGED = 48
"""Samples that are looked at before a start model is refused by them."""
TOGETHER = 8
"""Batches whose prompts are sorted by length together."""

EMPTY, BRIEF, REPEATED = "empty", "too short", "repeats itself"
"""Why a sample is left out."""

Draw = Callable[[Sequence[Sequence[int]], int, int], list[Sample]]
"""(prompts, tokens at most, seed) -> what the start wrote."""


class Host(Protocol):
    """The process that draws, or one of several; see `retention.services.DataServices`."""

    @property
    def rank(self) -> int:
        """Of this process."""

    @property
    def world(self) -> int:
        """Processes; 1 without others."""

    @property
    def tokenizer(self) -> Any:
        """Of the model that writes."""

    def gather(self, value: Any) -> list[Any]:
        """Everybody's value, in the order of ranks."""

    def together(self, work: Callable[[], Any]) -> Any:
        """Does the work on every rank; an error on any is an error on all."""

    def say(self, text: str) -> None:
        """Tells the user a line, on the first process."""


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Which samples are left out. Empty ones always are: there is nothing to train on."""

    least_tokens: int = 1
    """Without the token that ends them."""
    max_repetition: float | None = None
    """Share of repeated stretches of four tokens; None: not looked at."""

    def reason(self, sample: Sample, text: Callable[[Sequence[int]], str]) -> str:
        """Why a sample is left out; "" where it is kept."""
        written = sample.said
        if not written or (len(written) <= SHORT and not text(written).strip()):
            return EMPTY
        if len(written) < self.least_tokens:
            return BRIEF
        if self.max_repetition is not None and repetition(written) > self.max_repetition:
            return REPEATED
        return ""


def repetition(ids: Sequence[int]) -> float:
    """Share of the stretches of `NGRAM` tokens that were there before; 0 for texts too short to
    tell."""
    count = len(ids) - NGRAM + 1
    if count < 2 * NGRAM:
        return 0.0
    return 1.0 - len({tuple(ids[i : i + NGRAM]) for i in range(count)}) / count


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A sample that is trained on."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]


@dataclass(kw_only=True)
class Drawn:
    """What a run gets of the stream, and what is said of it."""

    kept: list[Kept] = field(default_factory=list)
    tokens: int = 0
    """Of the kept ones, prompts included."""
    drawn: int = 0
    cut: int = 0
    """Kept ones that had not ended."""
    repeating: int = 0
    """Drawn ones that only repeat themselves, left out or not."""
    dropped: Counter[str] = field(default_factory=Counter)
    """By reason."""
    new: int = 0
    """Drawn in this run, not found."""
    seconds: float = 0.0
    """That drawing took in this run."""

    @property
    def unusable(self) -> int:
        """Samples that are left out, or only repeat themselves."""
        return sum(self.dropped.values()) + max(0, self.repeating - self.dropped[REPEATED])

    def figures(self) -> str:
        """In words, for a sentence."""
        parts = [f"{count:,} {_WORDS[reason]}" for reason, count in sorted(self.dropped.items())]
        if self.repeating > self.dropped[REPEATED]:
            parts.append(f"{self.repeating - self.dropped[REPEATED]:,} only repeat themselves")
        return f"of {self.drawn:,} samples {', '.join(parts) if parts else 'none was left out'}"


_WORDS = {
    EMPTY: "are empty",
    BRIEF: "are too short",
    REPEATED: "repeat themselves",
}


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Which samples, in which order.

    Args:
        prompts: token ids, none empty; all ranks have the same.
        once: each prompt is continued once, since another time would give the same text.
    """

    prompts: Sequence[Sequence[int]]
    max_new_tokens: int
    window: int
    """Tokens that a prompt and its sample have together at most."""
    batch_size: int
    seed: int
    once: bool
    how: Mapping[str, Any]
    """What else decides the samples: the start model, temperature, the server."""

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """What the stream is known by."""
        return {
            "format": FORMAT,
            "prompts": fingerprint([list(map(int, p)) for p in self.prompts], length=32),
            "max_new_tokens": self.max_new_tokens,
            "window": self.window if self.room(self.prompts) < self.max_new_tokens else None,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "once": self.once,
            **self.how,
        }

    @property
    def each_round(self) -> int:
        """Batches until every prompt has had its turn."""
        return -(-len(self.prompts) // self.batch_size)

    @property
    def batches(self) -> int | None:
        """How many there are; None without an end."""
        return self.each_round if self.once else None

    def batch(self, number: int) -> list[Sequence[int]]:
        """The prompts of a batch."""
        if len(self.prompts) == 1:
            return [self.prompts[0]] * (1 if self.once else self.batch_size)
        of_round = self._round(number // self.each_round)
        return [self.prompts[i] for i in of_round[number % self.each_round]]

    def room(self, prompts: Sequence[Sequence[int]]) -> int:
        """Tokens that samples after these prompts have at most."""
        return min(self.max_new_tokens, self.window - max(map(len, prompts)))

    def seed_of(self, number: int) -> int:
        """What a batch is drawn with."""
        return random.Random(f"{self.seed} {number}").getrandbits(63)

    @functools.lru_cache(maxsize=2)  # noqa: B019 -- a stream lives as long as its run's data is made
    def _round(self, number: int) -> list[list[int]]:
        rng = random.Random(f"{self.seed} round {number}")
        order = list(range(len(self.prompts)))
        rng.shuffle(order)
        size, batches = TOGETHER * self.batch_size, []
        for start in range(0, len(order), size):
            near = sorted(order[start : start + size], key=lambda i: len(self.prompts[i]))
            batches += [near[i : i + self.batch_size] for i in range(0, len(near), self.batch_size)]
        rng.shuffle(batches)  # or a run that needs few samples would get the short prompts
        return batches

    def __hash__(self) -> int:
        return id(self)


@dataclass(kw_only=True)
class Drawing:
    """One run's way through a stream.

    Args:
        services: of the run.
        title: what the samples are for, at the beginning of what is said.
        stream: which samples.
        filters: which of them count.
        draw: gives a batch, on any rank.
        folder: where they are kept.
        most: samples that are looked at at most; None: as many as it takes.
        max_dropped: share of unusable samples from which on the start model is refused.
        advice: what to do then.
    """

    services: Host
    stream: Stream
    filters: Filters
    draw: Draw
    folder: Path
    most: int | None
    max_dropped: float
    advice: str
    title: str = "Self-replay"
    _batches: dict[int, dict[str, Any]] = field(default_factory=dict)
    _drawn: Drawn = field(default_factory=Drawn)
    _next: int = 0
    """The first batch that was not counted yet."""

    def until(self, needed: Callable[[Drawn], float]) -> Drawn:
        """Samples in their order, until enough are kept or there are no more.

        Args:
            needed: how much is still lacking, in any unit; 0 or less: enough.

        Raises:
            ModelError: more than `max_dropped` of the samples are unusable.
            StorageError, RunFolderError: the folder cannot be written.
        """
        self._read()
        self._count(needed)
        if self._lacking(needed):
            with self._ledger() as ledger:
                self._read()  # another run may have drawn meanwhile
                self._count(needed)
                self._draw(ledger, needed)
        self._refuse(least=1)
        return self._drawn

    # ------------------------------------------------------------------------------------ the store

    @property
    def _file(self) -> Path:
        return self.folder / "samples.jsonl"

    def _read(self) -> None:
        """Takes what is there, on the first rank, and hands it around. Lines that do not fit their
        checksum are drawn again."""

        def read() -> tuple[dict[int, dict[str, Any]], int] | None:
            if self.services.rank != 0:
                return None
            rows = read_ledger(self._file)
            intact = {
                int(key): row for key, row in rows.items() if row.get("sha256") == _checksum(row)
            }
            return intact, len(rows) - len(intact)

        self._batches, damaged = self.services.gather(self.services.together(read))[0]
        if damaged:
            self.services.say(
                f"{self.title}: {damaged} damaged batch(es) in {self._file} are generated again."
            )

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[Ledger | None]:
        """The open file on the first rank, None on others. They meet at every attempt, so that no
        collective times out while another run draws."""
        ledger, is_waiting = None, False
        while True:

            def attempt() -> Ledger | None:
                if self.services.rank != 0:
                    return None
                try:
                    return Ledger(self._file, keep=lambda row: {"key": row["key"]}).__enter__()
                except FolderBusy:
                    return None

            ledger = self.services.together(attempt)
            if self.services.gather(ledger is not None)[0]:
                break
            if not is_waiting:
                self.services.say(
                    f"{self.title}: waiting for another run that generates the same samples into "
                    f"{self.folder}."
                )
                is_waiting = True
            time.sleep(0.5)
        try:
            if ledger is not None:
                write_json(self.folder / "facts.json", self.stream.facts)
            yield ledger
        finally:
            if ledger is not None:
                ledger.__exit__(None, None, None)

    # -------------------------------------------------------------------------------------- drawing

    def _lacking(self, needed: Callable[[Drawn], float]) -> bool:
        return needed(self._drawn) > 0 and not self._over()

    def _over(self) -> bool:
        """Whether there are no more samples to look at."""
        beyond = self.most is not None and self._drawn.drawn >= self.most
        return beyond or (self.stream.batches is not None and self._next >= self.stream.batches)

    def _draw(self, ledger: Ledger | None, needed: Callable[[Drawn], float]) -> None:
        if not self._lacking(needed):
            return
        services, began = self.services, time.monotonic()
        services.say(f"{self.title}: generating text with the model into {self.folder}")
        with self._bar(needed(self._drawn)) as advance:
            while self._lacking(needed):
                before = needed(self._drawn)
                numbers = self._wanted()
                mine = numbers[services.rank] if services.rank < len(numbers) else None
                own_row = services.together(functools.partial(self._batch, mine))
                rows = [row for row in services.gather(own_row) if row is not None]
                if ledger is not None:
                    ledger.add(rows)
                for row in rows:
                    number = int(row["key"])
                    if number not in self._batches:
                        self._drawn.new += len(row["ids"])
                    self._batches[number] = row
                self._count(needed)
                advance(before - needed(self._drawn))
            self._drawn.seconds = time.monotonic() - began

    def _bar(self, total: float) -> Any:
        """A progress bar on the first rank."""
        if self.services.rank != 0:
            return contextlib.nullcontext(lambda amount: None)
        return progress("Generating text with the model", total=total)

    def _wanted(self) -> list[int]:
        """The next batches that are not there, at most one a rank."""
        numbers: list[int] = []
        number = self._next
        while len(numbers) < self.services.world and (
            self.stream.batches is None or number < self.stream.batches
        ):
            if number not in self._batches:
                numbers.append(number)
            number += 1
        return numbers

    def _batch(self, number: int | None) -> dict[str, Any] | None:
        """A row of the file."""
        if number is None:
            return None
        prompts = self.stream.batch(number)
        began = time.monotonic()
        samples = self.draw(prompts, self.stream.room(prompts), self.stream.seed_of(number))
        row = {
            "key": str(number),
            "ids": [list(s.ids) for s in samples],
            "ended": [s.ended for s in samples],
            "seconds": round(time.monotonic() - began, 3),
        }
        return {**row, "sha256": _checksum(row)}

    # ------------------------------------------------------------------------------------- counting

    def _count(self, needed: Callable[[Drawn], float]) -> None:
        """Goes on through the batches that are there, in order, until enough are kept."""
        drawn = self._drawn
        while self._lacking(needed) and self._next in self._batches:
            row, prompts = self._batches[self._next], self.stream.batch(self._next)
            for prompt, ids, ended in zip(prompts, row["ids"], row["ended"], strict=True):
                if self.most is not None and drawn.drawn >= self.most:
                    break
                self._count_one(prompt, Sample(ids=tuple(ids), ended=ended))
            self._next += 1
            if drawn.drawn >= JUDGED:
                self._refuse(least=JUDGED)

    def _count_one(self, prompt: Sequence[int], sample: Sample) -> None:
        drawn = self._drawn
        drawn.drawn += 1
        reason = self.filters.reason(sample, self._text)
        bound = REPEATS if self.filters.max_repetition is None else self.filters.max_repetition
        if reason in ("", REPEATED) and repetition(sample.said) > bound:
            drawn.repeating += 1
        if reason:
            drawn.dropped[reason] += 1
            return
        drawn.cut += not sample.ended
        drawn.tokens += len(prompt) + len(sample.ids)
        drawn.kept.append(Kept(prompt=tuple(prompt), ids=sample.ids))

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.services.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _refuse(self, *, least: int) -> None:
        drawn = self._drawn
        if drawn.drawn < least or (drawn.kept and drawn.unusable <= self.max_dropped * drawn.drawn):
            return
        raise ModelError(
            f"{self.title}: the generated text cannot be used for training: {drawn.figures()}; "
            f"expected at most {self.max_dropped:.0%} unusable samples. {self.advice}"
        )


def _checksum(row: Mapping[str, Any]) -> str:
    return fingerprint({k: v for k, v in row.items() if k != "sha256"}, length=16)
