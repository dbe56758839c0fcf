"""Every error holdfast raises on purpose.

```
HoldfastError                 exit code 1   something failed although the request was sound
├── UserError                 exit code 2   the request itself has to change
│   ├── ConfigError             a key, a value or a combination in the YAML or on the command line (lists ALL of them)
│   ├── DataError               a data file: missing, empty, malformed, wrong columns
│   ├── ModelError              a model or tokenizer that cannot be used as asked
│   ├── RunFolderError          the output folder: another run, no space, not writable
│   │   └── FolderBusy            another process is at work in it; waiting may help
│   └── ShapeError              tensors whose shapes, dtypes or vocabularies do not fit together
├── TrainingDiverged          exit code 1   NaN or infinite loss / gradient
├── NotFinite                 exit code 4   a model was measured, and what came is NaN or infinite
├── StorageError              exit code 1   the disk failed or filled up while writing
└── Interrupted               exit code 130 Ctrl-C or SIGTERM; the same command continues
```

A message says three things: what was expected, what came, what to do next. `UserError`s are printed
without a traceback by the command line (`--debug` shows it); library users catch `HoldfastError`.
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from typing import Self

from holdfast.printable import Lines, lines, printable


class HoldfastError(Exception):
    """Base class of every error that holdfast raises on purpose. `exit_code` is the exit code of
    the command line.

    Args:
        parts: the lines of the message. Line breaks inside a part are escaped
            (`holdfast.printable`).
    """

    exit_code: int = 1

    def __init__(self, *parts: str) -> None:
        super().__init__(lines(*parts))

    def __str__(self) -> str:
        text: Lines = self.args[0]
        return text

    def __format__(self, spec: str) -> str:
        """One line, for messages that quote this one."""
        return format(" ".join(line.strip() for line in str(self).split("\n")), spec)


def check_platform() -> None:
    """Checks that this system has what every command needs: locks on files (`fcntl`) and POSIX
    paths and signals.

    Raises:
        UserError: it is Windows, or another system without them.
    """
    if sys.platform == "win32" or importlib.util.find_spec("fcntl") is None:
        raise UserError(
            f"holdfast runs on Linux and macOS, got {sys.platform}: run folders need file locks "
            "and atomic writes of these systems. On Windows use WSL 2 ('wsl --install')."
        )


class UserError(HoldfastError):
    """The request has to change: a wrong option, file or model."""

    exit_code = 2


KeyPath = tuple[str | int, ...]
"""Where a value stands in a request: keys and, in lists, numbers from 0."""


class Problem(str):
    """One thing that is wrong with a request: a sentence that begins with the key it is about, and
    where that key is.

    It is a text, so that a list of problems may hold plain sentences too, such as those of a method
    of the user's own: these are about the request as a whole.

    Args:
        path: of the key; a name is a path of one; empty for the request as a whole.
        text: a sentence that does not repeat the key: "expected a number, got 'many' (text).".
        key: a key below the path that is none of its own, which the text names; its line is the
            problem's.
    """

    path: KeyPath
    text: str
    key: str

    def __new__(cls, path: str | KeyPath, text: str, *, key: str = "") -> Self:
        path = (path,) if isinstance(path, str) else path
        problem = super().__new__(cls, f"{dotted(path)}: {text}" if path else text)
        problem.path, problem.text, problem.key = path, text, key
        return problem

    def __getnewargs_ex__(self) -> tuple[tuple[KeyPath, str], dict[str, str]]:
        return (self.path, self.text), {"key": self.key}

    def below(self, *path: str | int) -> Problem:
        """The same problem, seen from further above: `path` leads to what it was found in."""
        return Problem((*path, *self.path), self.text, key=self.key)


class Note(str):
    """Something decided for the user that is worth knowing: a sentence, and a word that code tells
    it by.

    Args:
        code: the word, for example "bf16_off".
        text: the sentence.
    """

    code: str

    def __new__(cls, code: str, text: str) -> Self:
        note = super().__new__(cls, text)
        note.code = code
        return note

    def __getnewargs_ex__(self) -> tuple[tuple[str, str], dict[str, str]]:
        return (self.code, str(self)), {}


def problem_of(sentence: str) -> Problem:
    """A problem as it is; a plain sentence as one of the request as a whole."""
    return sentence if isinstance(sentence, Problem) else Problem((), sentence)


def dotted(path: KeyPath) -> str:
    """A path as messages write it: `retention[0].label_annealing.weight`."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text


class ConfigError(UserError):
    """A configuration has one or more mistakes. The message lists all of them.

    Args:
        problems: one `Problem`, or sentence, for each mistake; a single one is the whole message.
        source: the file name of the configuration, for the first line.
    """

    def __init__(self, problems: str | Sequence[str], *, source: str | None = None) -> None:
        sentences = [problems] if isinstance(problems, str) else list(problems)
        self.problems: list[Problem] = [problem_of(sentence) for sentence in sentences]
        self.source = source
        where = f" in {source}" if source else ""
        if len(sentences) == 1 and not source:
            super().__init__(sentences[0])  # its lines are kept where it has several of ours
            return
        count = f"{len(sentences)} problem{'s' if len(sentences) != 1 else ''}"
        super().__init__(
            f"{count}{where}:", *(Lines(f"  - {printable(sentence)}") for sentence in sentences)
        )


class DataError(UserError):
    """A data file is missing, empty or malformed, or lacks something that is needed."""


class ModelError(UserError):
    """A model or tokenizer cannot be used in the requested way."""


class RunFolderError(UserError):
    """The output folder cannot hold this run."""


class FolderBusy(RunFolderError):
    """Another process holds the lock of a folder or a file; the same request may succeed once it
    has ended."""


class ShapeError(UserError):
    """Tensors do not fit together. The message states both sides."""


class TrainingDiverged(HoldfastError):
    """The loss or the gradient is no longer finite. The last good checkpoint is intact."""


class NotFinite(HoldfastError):
    """A figure, or a sample behind it, is NaN or infinite. It supports no conclusion and passes no
    rule."""

    exit_code = 4


class StorageError(HoldfastError):
    """Writing failed because the disk is full or unavailable (earlier output is intact), or a file
    that was read does not match its checksum."""


class Interrupted(HoldfastError):
    """The user stopped the run. Everything needed to continue is on disk."""

    exit_code = 130


def first_line(error: BaseException) -> str:
    """The first line of what an error says, its kind where it says nothing: libraries put whole
    manuals below it."""
    return str(error).strip().split("\n")[0].strip() or type(error).__name__


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A suffix such as `" Did you mean 'learning_rate'?"`, empty when nothing is near.

    Args:
        name: what the user wrote.
        known: the names that exist.
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""
