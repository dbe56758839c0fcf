"""Kinds of entries: each is a class in a file of its own, and all of them stand in one table."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from holdfast.evaluation import kinds
from holdfast.evaluation.entries import Entry
from holdfast.evaluation.kinds import KINDS


def test_every_kind_is_in_the_table() -> None:
    declared: set[type[Entry]] = set()
    for module in pkgutil.iter_modules(kinds.__path__, f"{kinds.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Entry) and value.kind:
                declared.add(value)
    assert declared == set(KINDS.values())
    assert {cls.kind: cls for cls in declared} == KINDS, "two kinds of one name"


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_says_what_it_needs(kind: str) -> None:
    cls = KINDS[kind]
    assert cls.requests is not Entry.requests and cls.scores is not Entry.scores
    assert cls.local_files is not Entry.local_files, "its key would not know its data"
    assert cls.__doc__ and (cls.source in cls.__dataclass_fields__ or not cls.written)
