"""Whether training text holds what a study measures, said by file and document (`holdfast.data.overlap` decides)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.studies.engine.study import CannotJudge

if TYPE_CHECKING:
    from holdfast.evaluation.entries import Entry

_SHOWN = 3
"""Documents that a message names."""


class HeldOut:
    """The documents that entries measure.

    Args:
        entries: of which those that read a file here are looked at.

    Raises:
        DataError: a file cannot be read.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._texts: dict[str, list[str]] = {}
        self._unseen: list[str] = []
        for entry in entries:
            texts = _documents(entry)
            if texts is None:
                self._unseen.append(_shown(entry))
            else:
                self._texts[_shown(entry)] = texts

    def stands_in(self, training: Iterable[str], *, what: str) -> list[str]:
        """What of it training text holds, a sentence a file.

        Args:
            training: texts, each one looked at on its own.
            what: the text in words, as "the training data".
        """
        from holdfast.data.overlap import held_in

        documents = [(name, text) for name, texts in self._texts.items() for text in texts]
        if not documents:
            return []
        by_name: dict[str, list[str]] = {}
        for place in held_in([text for _, text in documents], training):
            by_name.setdefault(documents[place][0], []).append(documents[place][1])
        return [
            f"{len(own)} of {len(self._texts[name])} documents of {name} stand in {what} "
            f"({'; '.join(_begin(text) for text in own[:_SHOWN])})."
            for name, own in by_name.items()
        ]

    def judged(self, found: list[str], *, overlap: str, what: str) -> list[str]:
        """What the page says of it.

        Args:
            found: the sentences of `stands_in`.
            overlap: "refuse" or "keep".
            what: the text in words, as "the training data".

        Raises:
            CannotJudge: something was found, and it is to be refused.
        """
        if found and overlap == "refuse":
            last = f"{found[-1]} Take them out of {what}, or say overlap: keep, and the page will say so."
            raise CannotJudge([*found[:-1], last])
        if not self._unseen:
            return found
        names = ", ".join(self._unseen)
        return [*found, f"Whether {what} holds {names} was not looked at: they are no files here."]


def overlap_may_change(old: Mapping[str, Any]) -> Collection[str]:
    """`overlap`, where a study that goes on was not told to keep what stands in both: see `AskedStudy.may_change`."""
    return {"overlap"} if old.get("overlap") != "keep" else ()


def _begin(text: str) -> str:
    return f"'{' '.join(text.split())[:60]}'"


def _shown(entry: Entry) -> str:
    """An entry by its file, or as what it is called."""
    data = getattr(entry, "data", None)
    name = f"{entry.suite}/{entry.name}"
    return f"{name} ({Path(data).name})" if isinstance(data, str) else name


def _documents(entry: Entry) -> list[str] | None:
    """What an entry measures, a text a row; None where it is no file here."""
    from holdfast.data.overlap import texts_of
    from holdfast.data.sources import is_path, load_rows
    from holdfast.evaluation.entries import DataEntry

    if not isinstance(entry, DataEntry) or not is_path(entry.data):
        return None
    rows = load_rows(entry.data, split=entry.split, config=entry.config)
    asked = "prompt" in rows.column_names and entry.kind != "perplexity"
    return ["\n".join(texts_of(row["prompt"] if asked else row)) for row in rows]
