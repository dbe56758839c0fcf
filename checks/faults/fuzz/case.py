"""What a case is, and what is said of how its command ended."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from commandline import Outcome

REFUSED, ACCEPTED = "refused", "accepted"
RAW, NAMELESS, CODE, SILENT, STRICT, HANG, DIED = "raw", "nameless", "code", "silent", "strict", "hang", "died"
GOOD = (REFUSED, ACCEPTED)
VERDICTS = (*GOOD, RAW, NAMELESS, CODE, SILENT, STRICT, HANG, DIED)
FAULT = "This is a bug in holdfast or in a library"
"""What the command line says of an exception that nobody thought of."""
LIMIT = 60.0
"""Seconds that a case may take."""
MEMORY = 6 << 30
"""Bytes that a case may map beyond what the process that it is forked from has."""


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[list[str]]:
    """Nothing around a command, and no more words for it."""
    yield []


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command over one thing that is wrong, or strange and right."""

    what: str
    """For people: what was done to which file or key."""
    words: list[str]
    """After `holdfast`."""
    valid: bool | None
    """Whether it has to be accepted (True), refused (False), or either."""
    names: tuple[str, ...] = ()
    """A refusal has to contain one of them; empty: anything in words will do."""
    copies: tuple[str, ...] = ()
    """What of the stage it changes; the rest is linked."""
    prepare: Callable[[Path], str | None] = lambda folder: None
    """Puts the fault into the working directory; says more about it than is known before."""
    around: Callable[[Path], AbstractContextManager[list[str]]] = alone
    """What has to be there while the command runs, in its process; gives further words."""
    check: Callable[[Path, Outcome], str | None] = lambda folder, outcome: None
    """What is wrong with the result of an accepted request, None for nothing."""
    codes: tuple[int, ...] = (2,)
    """Exit codes of a refusal."""
    environment: Mapping[str, str] = field(default_factory=dict)
    limit: float = LIMIT
    memory: int = MEMORY
    may_abort: bool = False
    """Whether a library may end the process, as allocators do that have no way to say no."""


def verdict(case: Case, outcome: Outcome, wrong: str | None = None) -> str:
    """One of `VERDICTS`.

    Args:
        case: what was run.
        outcome: how its command ended.
        wrong: what `case.check` said.
    """
    said = outcome.err + outcome.out
    if outcome.timed_out:
        return HANG
    if outcome.signal:
        return REFUSED if case.may_abort and outcome.signal == signal.SIGABRT else DIED
    if "Traceback (most recent call last)" in said or FAULT in said:
        return RAW
    if outcome.code in (0, 3) and 0 not in case.codes:
        return SILENT if case.valid is False or wrong is not None else ACCEPTED
    if case.valid is True:
        return STRICT
    if outcome.code not in case.codes:
        return CODE
    return REFUSED if not case.names or any(name in said for name in case.names) else NAMELESS


def randomness(seed: int, kind: str, number: int) -> random.Random:
    """The generator that makes a case: the same for the same three."""
    return random.Random(f"{seed}:{kind}:{number}")
