"""Levels that a model reaches without knowing anything, and that they are in the records of a run."""

from __future__ import annotations

import math

import pytest

from holdfast.evaluation.baselines import chance_level, unigram_levels
from holdfast.evaluation.measures import Outcome
from holdfast.evaluation.text.documents import EncodedDocument
from holdfast.statistics.estimates import TEXT_FIGURES


def document(ids, spans, size):
    return EncodedDocument(doc="d", ids=ids, spans=spans, bytes=size)


def test_unigram_by_hand():
    """Scored are 5 5 6 of the first and 7 of the second; the 9s are given, or stand before all."""
    encoded = [document([9, 5, 5, 9, 6], [(1, 3), (4, 5)], 6), document([9, 7], [(1, 2)], 2)]
    found = unigram_levels(encoded, vocabulary=10)
    nats = -(2 * math.log(3 / 14) + 2 * math.log(2 / 14)) / 4
    assert found["nats_per_token"]["unigram"] == pytest.approx(nats)
    assert found["perplexity"]["unigram"] == pytest.approx(math.exp(nats))
    assert found["bits_per_byte"]["unigram"] == pytest.approx(4 * nats / math.log(2) / 8)
    assert unigram_levels([document([1], [], 0)], vocabulary=10) == {}


def test_chance():
    assert chance_level([{"choices": ["a", "b"]}, {"choices": ["a", "b", "c", "d"]}]) == pytest.approx(0.375)
    assert chance_level([{"probabilities": [0.1] * 10}]) == pytest.approx(0.1)
    assert chance_level([{"choices": ["a", "b"]}, {"output": "x"}]) is None
    assert chance_level([{"chance": 0.25}, {"choices": ["a", "b"]}]) == pytest.approx(0.375), "a cluster of questions"
    assert chance_level([]) is None


def test_levels_of_an_outcome():
    text = Outcome(
        rows=[{"doc": "d", "nats": 1.0, "tokens": 1, "bytes": 1}],
        figures=TEXT_FIGURES,
        references={"nats_per_token": {"unigram": 3.0}},
    )
    assert text.levels == {"nats_per_token": {"unigram": 3.0}}
    chosen = Outcome(rows=[{"choices": ["a", "b"], "acc": 1.0}], figures={"acc": None, "nats": None})
    assert chosen.levels == {"acc": {"chance": 0.5}}
