"""The names of TRL's and accelerate's keys, read without importing either, against what the libraries declare."""

from __future__ import annotations

import pytest

from holdfast.runs import key_names
from holdfast.runs.settings import known_keys, known_settings


def test_the_names_are_those_that_the_libraries_declare() -> None:
    assert key_names.trl_keys() and key_names.launch_keys()
    assert sorted(known_keys()) == sorted(known_settings())


@pytest.mark.parametrize(
    "moved",
    [
        ("trl", "trainer/elsewhere.py", "SFTConfig", ("_BaseConfig",)),
        ("trl", "trainer/sft_config.py", "SFTSettings", ("_BaseConfig",)),
        ("trl", "trainer/sft_config.py", "SFTConfig", ("_BaseConfig", "Mixin")),
        ("no_such_package", "trainer/sft_config.py", "SFTConfig", ("_BaseConfig",)),
    ],
    ids=["file", "class", "base classes", "package"],
)
def test_libraries_that_are_built_otherwise_are_imported(
    moved: tuple[str, str, str, tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_names, "_DATACLASSES", (*key_names._DATACLASSES, moved))
    assert key_names.trl_keys() == []
    assert sorted(known_keys()) == sorted(known_settings())
