"""The files that `holdfast quickstart` trains on and measures, out of the sources inside every
CPython."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.papers.worlds.drawing import beginnings
from holdfast.papers.worlds.embedded import embedded_corpus
from holdfast.papers.worlds.reference_chat import conversations, split
from holdfast.support.files import write_jsonl

HELD_OUT_DOCUMENTS = 100
"""Of prose, and of code."""
HELD_OUT_REPLIES = 60


def code_and_prose(folder: Path) -> dict[str, str]:
    """Writes the files of the small base's sweep, by name: what is learnt, what is replayed, and
    two held-out sets.

    A held-out document is the beginning of a piece: many documents for the paired intervals, few
    tokens to measure.
    """
    corpus = embedded_corpus()
    prose = beginnings(corpus.prose_heldout, HELD_OUT_DOCUMENTS, characters=600)
    code = beginnings(corpus.code_heldout, HELD_OUT_DOCUMENTS, characters=600)
    texts = {
        "code_train": corpus.code_train[::4],
        "prose_train": corpus.prose_train,
        "prose_heldout": prose,
        "code_heldout": code,
    }
    return _written(
        folder, {name: [{"text": text} for text in pieces] for name, pieces in texts.items()}
    )


def replies_and_prose(folder: Path) -> dict[str, str]:
    """Writes the files of the real model's sweep, by name: questions about functions of the
    standard library with answers in their docstrings' words, of which the answers are trained; held
    out, answers about other functions, and the beginnings of evenly spaced pieces of prose."""
    corpus = embedded_corpus()
    train, held_out = split(conversations(corpus.code_train), HELD_OUT_REPLIES)
    every = max(1, len(corpus.prose_heldout) // HELD_OUT_REPLIES)
    rows: dict[str, list[dict[str, Any]]] = {"prose_heldout": []}
    for piece in corpus.prose_heldout[::every]:
        rows["prose_heldout"].append({"text": piece[:900].rsplit(" ", 1)[0]})
    for name, chats in (("replies_train", train), ("replies_heldout", held_out)):
        rows[name] = []
        for chat in chats:
            question, answer = chat.messages[:2]
            rows[name].append({"prompt": [dict(question)], "completion": [dict(answer)]})
    return _written(folder, rows)


def _written(folder: Path, rows: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    paths = {}
    for name, of_file in rows.items():
        paths[name] = str(write_jsonl(folder / f"{name}.jsonl", of_file))
    return paths
