"""A base and three tasks of a few sentences each: the fixtures of the tests."""

from studies.sequence.conftest import asked, base

__all__ = ["asked", "base"]
