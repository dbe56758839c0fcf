"""A tiny study, and a real PostgreSQL server: the fixtures of the tests."""

from studies.sweep.conftest import asked, material, postgres

__all__ = ["asked", "material", "postgres"]
