"""A method that a wrapper script registers is known to the workers of its sweep."""

from __future__ import annotations

import json
import sys

import pytest

from holdfast.errors import ConfigError
from holdfast.retention import registered
from holdfast.retention.registry import METHODS

SCRIPT = """
import dataclasses, sys
from holdfast.cli.main import main
from holdfast.retention.methods.l2 import L2
from holdfast.retention.registry import METHODS

@dataclasses.dataclass(frozen=True, kw_only=True)
class Gentle(L2):
    name = "gentle"

METHODS[Gentle.name] = Gentle
{call}
"""


def test_a_class_is_found_again_by_its_file(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SCRIPT.format(call='if __name__ == "__main__":\n    raise RuntimeError'))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr("holdfast.retention.registry.METHODS", METHODS.copy())
    import holdfast.retention.registry as registry

    assert registered.registered_environment() == {}
    module = __import__("mine")
    handed_on = registered.registered_environment()
    assert json.loads(handed_on[registered.VARIABLE]) == {"gentle": [str(tmp_path / "mine.py"), "Gentle"]}
    del registry.METHODS["gentle"]
    monkeypatch.setenv(registered.VARIABLE, handed_on[registered.VARIABLE])
    registered.load_registered()
    assert registry.METHODS["gentle"].__name__ == module.Gentle.__name__

    class Local(METHODS["l2"]):
        pass

    registry.METHODS["local"] = Local
    with pytest.raises(ConfigError, match="'local' is registered in this process only"):
        registered.registered_environment()
