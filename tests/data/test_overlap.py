"""Held-out documents that training text holds."""

from __future__ import annotations

import random

from holdfast.data.overlap import WORDS, held_in, texts_of

DOCUMENT = " ".join(f"word{i}" for i in range(40))
"""Of 28 windows."""


def test_a_document_is_held_where_half_of_its_windows_are() -> None:
    words = DOCUMENT.split()
    for count, held in ((40, True), (14 + 12, True), (13 + 12, False), (WORDS, False)):
        text = "before it " + " ".join(words[:count]) + " after it"
        assert held_in([DOCUMENT], [text]) == ([0] if held else []), count


def test_windows_may_stand_in_several_texts_in_other_letters_and_signs() -> None:
    words = DOCUMENT.upper().split()
    assert held_in([DOCUMENT], [", ".join(words[:20]), "; ".join(words[15:36])]) == [0]


def test_a_short_document_is_held_as_a_whole() -> None:
    assert held_in(["A masterpiece!", "", "A dull one"], ["they call it a masterpiece, no less"]) == [0]
    assert held_in(["A masterpiece!"], ["a great masterpiece"]) == []


def test_it_finds_what_a_search_of_every_pair_finds() -> None:
    draw = random.Random(0)
    held = [" ".join(draw.choice("abcd") for _ in range(draw.randint(1, 30))) for _ in range(40)]
    training = [" ".join(draw.choice("abcd") for _ in range(60)) for _ in range(30)] + [held[3], f"x {held[7]} y"]

    def stands(document: str) -> bool:
        words = document.split()
        windows = [" ".join(words[i : i + WORDS]) for i in range(max(1, len(words) - WORDS + 1))]
        return sum(any(f" {w} " in f" {t} " for t in training) for w in windows) >= len(windows) / 2

    assert held_in(held, training) == [n for n, document in enumerate(held) if stands(document)]


def test_texts_of_a_row() -> None:
    row = {"messages": [{"role": "user", "content": "a"}], "n": 3, "text": "b"}
    assert list(texts_of(row)) == ["user", "a", "b"]
