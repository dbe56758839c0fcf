"""A method that a wrapper script registers is known to the workers of its sweep."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.records.study import read_study

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


@pytest.mark.parametrize("call", ['if __name__ == "__main__":\n    sys.exit(main())', "sys.exit(main())"])
def test_a_sweep_over_a_method_of_a_wrapper(asked, tmp_path, call):
    import yaml

    script, file = tmp_path / "wrapper.py", tmp_path / "study.yaml"
    script.write_text(SCRIPT.format(call=call))
    asked["arms"] = [{"gentle": {"coefficient": [0.1]}}]
    file.write_text(yaml.safe_dump(asked))
    words = [sys.executable, str(script), "sweep", "--config", str(file), "--workers", "1"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert [t.kind for t in read_study(asked["output_dir"]).trials] == ["direct", "gentle"]
