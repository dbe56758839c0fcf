"""Whether training data holds what a study measures, said by file and document
(`holdfast.data.overlap` decides).

Questions about pictures are known by the pictures: their words may be alike by design.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import DataError
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
        self._questions: dict[str, list[tuple[str, frozenset[str]]]] = {}
        self._unseen: list[str] = []
        for entry in entries:
            name, documents = _entry_name(entry), _documents(entry)
            if documents is None:
                self._unseen.append(name)
                continue
            self._texts[name], self._questions[name] = [], []
            for text, pictures in documents:
                if pictures:
                    self._questions[name].append((text, pictures))
                else:
                    self._texts[name].append(text)

    def stands_in(
        self, training: Iterable[str], *, what: str, pictures: Iterable[str] = ()
    ) -> list[str]:
        """What of it training data holds, a sentence a file and kind.

        Args:
            training: texts, each one looked at on its own.
            what: the data in words, as "the training data".
            pictures: the hashes of its pictures, see `pictures_in`.
        """
        from holdfast.data.overlap import held_in

        names, documents = list[str](), list[str]()
        for name, texts in self._texts.items():
            names += [name] * len(texts)
            documents += texts
        overlaps: dict[str, list[str]] = {}
        for index in held_in(documents, training) if documents else ():
            overlaps.setdefault(names[index], []).append(documents[index])
        sentences = []
        for name, texts in overlaps.items():
            count = f"{len(texts)} of {len(self._texts[name])} documents of {name}"
            sentences.append(f"{count} also occur in {what} ({_beginnings(texts)}).")
        if not any(self._questions.values()):
            return sentences
        known = frozenset(pictures)
        for name, questions in self._questions.items():
            texts = [text for text, hashes in questions if hashes & known]
            if texts:
                count = f"{len(texts)} of {len(questions)} questions of {name}"
                sentences.append(
                    f"{count} are about pictures that also occur in {what} ({_beginnings(texts)})."
                )
        return sentences

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
            last = (
                f"{found[-1]} Remove them from {what}, or set overlap: keep. Then the page "
                "reports the overlap."
            )
            raise CannotJudge([*found[:-1], last])
        if not self._unseen:
            return found
        names = ", ".join(self._unseen)
        return [
            *found,
            f"{what} was not checked for {names}: no local file has their text.",
        ]


def overlap_may_change(old: Mapping[str, Any]) -> Collection[str]:
    """`overlap`, unless the study was begun with `overlap: keep`: see
    `StudyConfigBase.resumable_changes`."""
    return {"overlap"} if old.get("overlap") != "keep" else ()


def _beginnings(texts: Sequence[str]) -> str:
    beginnings = [" ".join(text.split())[:60] for text in texts[:_SHOWN]]
    return "; ".join(f"'{text}'" for text in beginnings)


def _entry_name(entry: Entry) -> str:
    """An entry by its file, or as what it is called."""
    data = getattr(entry, "data", None)
    name = f"{entry.suite}/{entry.name}"
    return f"{name} ({Path(data).name})" if isinstance(data, str) else name


def pictures_in(
    name: str, *, split: str = "train", config: str | None = None
) -> Iterator[list[str]]:
    """The hashes of the pictures of each row of a data set (`data.vision.picture_hashes`).

    Raises:
        DataError: the data cannot be read, or an image is nowhere.
    """
    from holdfast.data.layouts import BadRow
    from holdfast.data.sources import data_files, load_rows
    from holdfast.data.vision import image_columns, is_metadata, picture_hashes, undecoded

    rows = undecoded(load_rows(name, split=split, config=config))
    files = data_files(name, split=split) if Path(name).exists() else []
    columns = image_columns(rows.column_names, metadata=is_metadata(files))
    folders = list(dict.fromkeys(file.absolute().parent for file in files))
    for number, row in enumerate(rows.select_columns(columns) if columns else [{}] * len(rows)):
        try:
            yield picture_hashes(row, columns, folders)
        except BadRow as problem:
            raise DataError(f"{name}, row {number}: {problem}.") from problem


def _documents(entry: Entry) -> list[tuple[str, frozenset[str]]] | None:
    """What an entry measures, a text a row with its pictures; None where it is no file here."""
    from holdfast.data.overlap import texts_of
    from holdfast.data.sources import is_path, load_rows
    from holdfast.data.vision import undecoded
    from holdfast.evaluation.entries import DataEntry
    from holdfast.evaluation.kinds.task import TaskEntry

    if isinstance(entry, TaskEntry) and entry.data is not None and is_path(entry.data):
        # the question or its passage, whatever the task calls it
        rows = load_rows(entry.data, split="train")
        return [(max(texts_of(row), key=len, default=""), frozenset()) for row in rows]
    if not isinstance(entry, DataEntry) or not is_path(entry.data):
        return None
    rows = undecoded(load_rows(entry.data, split=entry.split, config=entry.config))
    is_question = "prompt" in rows.column_names and entry.kind != "perplexity"
    texts = []
    for row in rows:
        texts.append("\n".join(texts_of(row["prompt"] if is_question else row)))
    pictures = pictures_in(entry.data, split=entry.split, config=entry.config)
    return list(zip(texts, map(frozenset, pictures), strict=True))
