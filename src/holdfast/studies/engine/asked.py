"""What studies have in common that were asked for by one dataclass of settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from holdfast.studies.engine import small as small_settings

A = TypeVar("A")


@dataclass(frozen=True, kw_only=True)
class AskedStudy(Generic[A]):
    """A study whose settings are those that were asked for; its jobs end or fail, and report no figure to the storage.

    A subclass adds `jobs`, and what follows from the settings.
    """

    asked: A
    """Settings with `name` and `workers`."""
    output_dir: Path
    storage: str
    names: Mapping[str, str]
    """What ${name} stands for; empty before a small setting is made."""
    resolved: dict[str, Any]
    """As plain JSON; itself a valid configuration."""

    @property
    def name(self) -> str:
        """Of the study."""
        return str(self.asked.name)  # type: ignore[attr-defined]

    @property
    def workers(self) -> int | None:
        """Jobs at a time on this machine."""
        found: int | None = self.asked.workers  # type: ignore[attr-defined]
        return found

    @property
    def measures(self) -> tuple[str, ...]:
        """What a finished job reports to the storage."""
        return ("done",)

    def differences(self, old: Mapping[str, Any]) -> list[str]:
        """What keeps the study whose `resolved` is `old` from being this one, a sentence each."""
        aside = {"output_dir", *self.may_change(old)}
        keys = [k for k in dict.fromkeys([*old, *self.resolved]) if k not in aside]
        changed = [k for k in keys if old.get(k) != self.resolved.get(k)]
        return [f"{k}: was {old.get(k)!r}, is {self.resolved.get(k)!r}" for k in changed]

    def may_change(self, old: Mapping[str, Any]) -> Collection[str]:
        """Settings of the study whose `resolved` is `old` that may be others when it goes on."""
        return ()

    def filled(self, value: Any) -> Any:
        """A value with the names of the small setting in it replaced, where they are known."""
        return small_settings.fill(value, self.names) if self.names else value
