"""The names of TRL's and accelerate's keys without importing either, against what the libraries declare."""

from __future__ import annotations

import pytest

from holdfast.runs import settings
from holdfast.runs.settings import known_keys, settings_of_all


def test_settings_names_of_keys_are_those_that_the_libraries_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = sorted(setting.name for setting in settings_of_all())
    assert "beta" in declared and "num_processes" in declared
    with monkeypatch.context() as without:
        without.setattr(settings, "settings_of_all", lambda: pytest.fail("TRL was imported for its names"))
        assert sorted(known_keys()) == declared
    monkeypatch.setattr(settings, "libraries", lambda: "trl 99.0")
    monkeypatch.setattr(settings, "settings_of_all", lambda: settings.settings_of(settings.OnPolicySettings))
    assert "temperature" in known_keys() and "beta" not in known_keys()
