"""What all tests share: a tiny model and tokenizer on disk, one thread a process, no network."""

from __future__ import annotations

import atexit
import fcntl
import functools
import gc
import importlib.metadata
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# Before anything imports torch or the hub client: the suite runs several workers on few cores, offline.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# A cache of their own, one for all test processes: what a test keeps must never reach the user's.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["HOLDFAST_CACHE"] = tempfile.mkdtemp(prefix="holdfast-tests-cache-")
    atexit.register(shutil.rmtree, os.environ["HOLDFAST_CACHE"], ignore_errors=True)
    # But for what is named by all that it was made of, and takes twenty seconds to make: compiled C, and the harness's
    # index of its tasks.
    for name in ("native", "harness"):
        kept = Path(__file__).parents[1] / "build" / "tests-cache" / name
        kept.mkdir(parents=True, exist_ok=True, mode=0o700)
        Path(os.environ["HOLDFAST_CACHE"], name).symlink_to(kept)

import pytest
from dill import detect

# A shell starts what runs in the background with Ctrl-C ignored; the tests that press it mean what happens in the
# foreground.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from tiny import build_model, build_tokenizer

os.fsync = lambda fd: None  # no test takes the power away: nothing waits for a disk
# A third of the time of a training of six steps: accelerate reads the description of PEFT at every call, and datasets
# disassembles the functions that it maps, to name their results. Both give the same each time.
importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)
detect.nestedglobals = functools.cache(detect.nestedglobals)


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, tokenizer) -> Path:
    """A tiny Llama with its tokenizer, saved as safetensors."""
    folder = tmp_path_factory.mktemp("model") / "tiny-llama"
    build_model().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """`once(name, make)`: a folder that `make(folder)` fills, by the first test process that asks; the others wait for
    it and read."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent

    def made(name: str, make: Callable[[Path], None]) -> Path:
        folder, done = place / f"once-{name}", place / f"once-{name}.done"
        with open(place / f"once-{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The shared data folder, or a skip."""
    folder = Path(os.environ.get("HOLDFAST_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("needs the shared data folder (../shared/data or HOLDFAST_SHARED_DATA)")
    return folder


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory on a machine without an accelerator, in a process that nothing launched."""
    from holdfast.runs import config

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "has_accelerator", lambda: False)
    monkeypatch.setattr(config, "has_bf16", lambda: False)
    for name in ("WORLD_SIZE", "LOCAL_RANK", "RANK", "HOLDFAST_LAUNCHED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    return tmp_path


MODULES = pytest.StashKey[int]()
"""How many were imported when the collector was last told to pass over what they made."""


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """The garbage collector passes over what libraries made when they were imported: every run of a trainer asks for a
    full collection, and to look through a million objects takes longer than the run's steps."""
    stash = item.config.stash
    if len(sys.modules) > stash.get(MODULES, 0) + 300:
        stash[MODULES] = len(sys.modules)
        gc.collect()
        if gc.get_freeze_count() == 0:
            atexit.register(gc.unfreeze)  # libraries in C++ take themselves down by the collector, or list what is left
        gc.freeze()


def pytest_collection_modifyitems(items) -> None:
    for item in items:
        if "shared_data" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.shared_data)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))  # on a machine that has other things to do, too
