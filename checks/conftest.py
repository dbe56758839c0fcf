"""The checks use the fixtures of the tests, and these two."""

from __future__ import annotations

import fcntl
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import commandline
import gallery as examples

pytest_plugins = ["shared_fixtures", "durations", "scratch"]


@pytest.fixture
def gallery(once: Callable[[str, Callable[[Path], None]], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with two finished runs, three evaluated models, a study, an update, a residual study and a
    merge.

    Their real commands made them, once for all test processes. One test at a time stands in it (finished work is known
    by absolute paths and by the times of files, so a copy would not be finished), and leaves what was made as it is.
    """

    def make(folder: Path) -> None:
        from holdfast.studies.engine.study import Study

        commandline.preload()
        examples.material_in(folder / "work")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Study, "one_in_process", True)  # a worker would import the libraries again
            examples.make(folder / "work", [(name, words) for name, words in examples.STEPS if name in examples.MADE])

    folder = once("gallery", make)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, value in {**commandline.QUIET, "HOLDFAST_CACHE": str(folder / "work" / "cache")}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(folder / "work")
        yield folder / "work"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports one of the benchmarks' scripts by name, as `python benchmarks/NAME.py` would find it."""
    folder = Path(__file__).resolve().parents[1] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))

    def load(name: str) -> ModuleType:
        file = folder / f"{name}.py"
        if getattr(sys.modules.get(name), "__file__", None) != str(file):  # folders of the tests have the names of some
            spec = importlib.util.spec_from_file_location(name, file)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, name, module)
            spec.loader.exec_module(module)
        return sys.modules[name]

    return load
