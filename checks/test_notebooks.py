"""The notebooks: stored without outputs, and every cell of them runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from extending import PAGE
from notebook import code_cells

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples/notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_stored_without_outputs(name: str) -> None:
    found = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in found["cells"]]
    assert len(set(ids)) == len(ids) and all(0 < len(i) <= 64 for i in ids)
    for cell in found["cells"]:
        assert set(cell) - {"outputs", "execution_count"} == {"cell_type", "id", "metadata", "source"}
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)
    assert f"]({name}.ipynb)" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_method_is_that_of_the_page() -> None:
    [cell] = [source for source in code_cells(FOLDER / "own_method.ipynb") if "class Dropback" in source]
    assert cell.split("'''")[1].strip() in PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base of all three is pre-trained once."""
    return tmp_path_factory.mktemp("cache")


EXPECTED = {
    "first_run": [
        "('prose', 'nats_per_token', ",
        "'lost')",
        "('code', 'nats_per_token', -",
        "'gained')",
        "'report.html'",
    ],
    "gate": ["] 3\n", "keep/prose drop > 0.5%", "fail"],
    "own_method": ["'holds no more memory than it declares']\n", "my_method.py:Dropback", "'sha256'", "'gained')"],
}
"""What the cells show, by notebook."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs(name: str, cache: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HOLDFAST_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    words = [sys.executable, str(ROOT / "checks/notebook.py"), str(FOLDER / f"{name}.ipynb")]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert [words for words in EXPECTED[name] if words not in done.stdout] == [], done.stdout
