"""The published protocols on scanned digits: tasks as described, the same chain for all methods, honest rows."""

from __future__ import annotations

import json

import pytest
import torch


@pytest.fixture
def continual(script):
    return script("continual")


@pytest.fixture
def digits(continual):
    return continual.images_of("digits")


def test_tasks(continual, digits):
    tasks = continual.tasks_of(continual.PROTOCOLS["split-online"], digits, 3)
    assert [t.classes for t in tasks] == [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
    assert all(set(t.test.labels.tolist()) == set(t.classes) for t in tasks)
    drawn = [[t.classes for t in continual.tasks_of(continual.PROTOCOLS["split-class"], digits, s)] for s in (0, 1)]
    assert drawn[0] != drawn[1] and sorted(c for pair in drawn[0] for c in pair) == list(range(10))
    permuted = continual.tasks_of(continual.PROTOCOLS["permuted"], digits, 0)
    assert len(permuted) == 10 and not torch.equal(permuted[0].train.inputs, permuted[1].train.inputs)
    assert torch.equal(permuted[0].train.labels, permuted[9].train.labels)


def test_what_stands_against_each_other(continual, digits):
    of = {n: continual.PROTOCOLS[n] for n in ("permuted", "split-task", "split-online")}
    tasks = continual.tasks_of(of["split-online"], digits, 0)
    assert continual.groups_at(of["permuted"], tasks, 2) == ()
    assert continual.groups_at(of["split-task"], tasks, 1) == ((0, 1), (2, 3))
    assert continual.groups_at(of["split-online"], tasks, 1) == ((0, 1, 2, 3),)


def test_nothing_validated_is_trained_on(continual, digits):
    part = continual.held_back(digits, 100)
    assert len(part.train) + len(part.test) == len(digits.train) and len(part.test) == 120
    held = {row.tobytes() for row in digits.test}
    assert not any(row.tobytes() in held for row in part.test), "the test images stay out of the choice"


def test_a_memory_has_as_many_of_each_class(continual, digits):
    tasks = continual.tasks_of(continual.PROTOCOLS["split-online"], digits, 0)
    old = continual.remembered(tasks[:2], 40, 0)["old"]
    assert torch.bincount(old.labels).tolist() == [10, 10, 10, 10]
    assert len(continual.remembered(tasks[:2], None, 0)["old"].labels) == sum(len(t.train.labels) for t in tasks[:2])


def test_the_quick_form(continual, capsys, tmp_path):
    file = tmp_path / "figures.json"
    assert continual.main(["--quick", "--workers", "1", "--only", "split-online", "--save", str(file)]) == 0
    figures = {f["method"]: f for f in json.loads(file.read_text())["figures"]}
    assert set(figures) == set(continual.methods(continual.PROTOCOLS["split-online"]))
    assert figures["replay"]["mean"] > figures["sequential"]["mean"] + 0.1, "old samples help"
    assert figures["replay"]["published"] == 0.92 and len(figures["l2"]["seeds"]) == 2
    assert "online replay 0.92 published" in capsys.readouterr().out


def test_shortfalls_are_named(continual):
    row = {"protocol": "permuted", "method": "ewc", "mean": 0.7, "published": 0.83, "published_method": "EWC"}
    assert continual.shortfalls([{**row, "interval": [0.68, 0.72]}]) == ["permuted: EWC 0.700, published EWC 0.83"]
    assert continual.shortfalls([{**row, "interval": [0.6, 0.84]}]) == []
    assert continual.chosen(continual.PROTOCOLS["permuted"], "l2", {0.01: 0.5, 0.1: 0.7, 1.0: 0.6}) == (0.1, False)
    assert continual.chosen(continual.PROTOCOLS["permuted"], "l2", {0.1: 0.5, 1000.0: 0.7}) == (1000.0, True)


def test_the_table_of_the_documentation_is_of_the_rows(continual, capsys, tmp_path):
    assert continual.main(["--table"]) == 0
    assert capsys.readouterr().out in (continual.ROOT / "docs" / "sequence.md").read_text(encoding="utf-8")
    rows = continual.recorded(continual.RESULTS)
    ewc = next(r for r in rows if (r["protocol"], r["method"]) == ("permuted", "ewc"))
    assert ewc["strength"] == 10 and not ewc["end_of_grid"] and 0.832 < ewc["mean"] < 0.842
    assert continual.recorded(tmp_path) == [], "a protocol of which a row is missing has no figures"
