"""Tests for retention methods of your own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import ConfigError
from holdfast.retention.protocol import RetentionMethod
from holdfast.retention.registry import retention
from holdfast.training.method_laws import LawBroken, check_laws


def check_method(method: RetentionMethod | str | Mapping[str, Any]) -> list[str]:
    """Runs the laws that every retention method satisfies, on a tiny model in memory, in about ten
    seconds.

    Args:
        method: a method, or what stands for it under `retention:` in a configuration, such as
            "my_method.py:Dropback" or {"my_method.py:Dropback": {"rate": 0.3}}.

    Returns:
        The laws, all of which hold.

    Raises:
        ConfigError: no such method, parameters that it does not take, or several methods.
        LawBroken: laws that do not hold, each with the reason.
    """
    methods = retention(method)
    if len(methods) != 1:
        raise ConfigError(f"expected one method, got {len(methods)}")
    results = check_laws(methods[0])
    broken = [f"{law}: {reason}" for law, reason in results.items() if reason is not None]
    if broken:
        title = f"{methods[0].label()} breaks {len(broken)} of {len(results)} laws:"
        raise LawBroken("\n".join([title, *(f"  {line}" for line in broken)]))
    return list(results)
