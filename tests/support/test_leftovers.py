"""New folders go with a refused request; what dead processes left goes, and what living ones hold stays."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from holdfast.errors import ConfigError, FolderBusy, HoldfastError, RunFolderError
from holdfast.support.environment import lock_folder, result_folder, wait_for_lock
from holdfast.support.files import write_json
from holdfast.support.leftovers import NewFolder, remove_unless_held, scratch_folder


@contextlib.contextmanager
def another_process(code: str, cwd: Path) -> Iterator[None]:
    """Another process that has run some code and waits, until it is killed at the end of the body."""
    program = textwrap.dedent(code) + "\nprint('there', flush=True)\nimport time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], cwd=cwd, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "there\n"
            yield
        finally:
            process.send_signal(signal.SIGKILL)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---------------------------------------------------------------------------------------------------------- new folders


def refuse(place: AbstractContextManager[NewFolder], act: Callable[[NewFolder], object]) -> None:
    """A request that turns out to be wrong after it has done something in its new folder."""

    def request() -> None:
        with place as made:
            act(made)
            raise ConfigError("no")

    with pytest.raises(ConfigError):
        request()


def put(path: Path) -> Callable[[NewFolder], object]:
    return lambda made: path.touch()


def test_a_refused_request_takes_its_folders_with_it(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b" / "c"
    refuse(NewFolder(place), put(place / "file"))
    assert names(tmp_path) == []


@pytest.mark.parametrize("error", [HoldfastError("no"), KeyboardInterrupt(), None])
def test_any_other_end_leaves_them(tmp_path: Path, error: BaseException | None) -> None:
    def body() -> None:
        with NewFolder(tmp_path / "a" / "b"):
            if error is not None:
                raise error

    if error is None:
        body()
    else:
        with pytest.raises(type(error)):
            body()
    assert (tmp_path / "a" / "b").is_dir()


def test_what_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine").touch()
    refuse(NewFolder(tmp_path / "a"), lambda made: None)
    assert names(tmp_path / "a") == ["mine"]
    place = tmp_path / "a" / "b"
    refuse(NewFolder(place / "c"), put(place / "another's"))
    assert names(tmp_path / "a") == ["b", "mine"] and names(place) == ["another's"]


def test_what_is_of_worth_is_kept(tmp_path: Path) -> None:
    refuse(NewFolder(tmp_path / "a"), NewFolder.keep)
    assert (tmp_path / "a").is_dir()


# ---------------------------------------------------------------------------------------------------------------- locks


@pytest.mark.parametrize("lock", ["", ".watching"])
def test_a_folder_of_results(tmp_path: Path, lock: str) -> None:
    out = tmp_path / "runs" / "out"

    def work(made: NewFolder) -> None:
        (out / "run.json").touch()
        with pytest.raises(FolderBusy), lock_folder(out / lock):
            pytest.fail("entered a folder that is locked")

    refuse(result_folder(out, lock=lock), work)
    assert names(tmp_path) == []
    with result_folder(out, lock=lock):
        (out / "run.json").touch()
    assert names(out) == [".lock", "run.json"] if not lock else ["run.json"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="Could not write in the output folder"), result_folder(tmp_path / "file"):
        pytest.fail("entered a file")


def test_a_busy_folder_is_left_alone(tmp_path: Path) -> None:
    code = """
    from pathlib import Path
    from holdfast.support.environment import lock_folder
    held = lock_folder(Path("out")); held.__enter__()
    """
    with another_process(code, tmp_path):
        with pytest.raises(FolderBusy), result_folder(tmp_path / "out"):
            pytest.fail("entered a folder that another process has")
        assert names(tmp_path / "out") == [".lock"]
    with lock_folder(tmp_path / "out"):
        pass


def test_folders_that_are_locks_go_with_them(tmp_path: Path) -> None:
    code = """
    from pathlib import Path
    from holdfast.support.environment import lock_folder
    held = lock_folder(Path(".making")); held.__enter__()
    """
    with another_process(code, tmp_path):
        pass
    assert names(tmp_path) == [".making"]
    with lock_folder(tmp_path / ".making"), pytest.raises(FolderBusy), lock_folder(tmp_path / ".making"):
        pytest.fail("entered a folder that is locked")
    assert names(tmp_path) == []
    with wait_for_lock(tmp_path / "start"):
        assert names(tmp_path) == ["start.lock"]
    assert names(tmp_path) == []


def test_of_many_that_wait_one_is_in(tmp_path: Path) -> None:
    """The lock's file goes each time; nobody may be in with a file that has lost its name."""
    code = """
    import sys, time
    from pathlib import Path
    from holdfast.support.environment import wait_for_lock
    for _ in range(200):
        with wait_for_lock(Path("work")):
            with open("in", "x"):
                pass
            Path("in").unlink()
    """
    processes = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert names(tmp_path) == []


# ------------------------------------------------------------------------------------------------ what dead ones leave

WRITING = """
from holdfast.support.files import whole_file
file = whole_file("results.json"); file.__enter__().write(b"half")
"""
BUILDING = """
from pathlib import Path
from holdfast.support.leftovers import scratch_folder
folder = scratch_folder(Path("."), ".writing-"); (folder.__enter__() / "part").write_bytes(b"half")
"""


def write(folder: Path) -> None:
    write_json(folder / "results.json", {})


def build(folder: Path) -> None:
    with scratch_folder(folder, ".writing-") as scratch:
        assert names(scratch) == []


CASES = pytest.mark.parametrize(("code", "again"), [(WRITING, write), (BUILDING, build)], ids=["file", "folder"])


@CASES
def test_a_killed_process_leaves_nothing_after_the_next_call(
    code: str, again: Callable[[Path], None], tmp_path: Path
) -> None:
    with another_process(code, tmp_path):
        pass
    [left] = names(tmp_path)
    assert left.startswith((".results.json.", ".writing-"))
    again(tmp_path)
    assert names(tmp_path) == (["results.json"] if again is write else [])


@CASES
def test_a_living_process_keeps_what_it_is_writing(code: str, again: Callable[[Path], None], tmp_path: Path) -> None:
    with another_process(code, tmp_path):
        [held] = names(tmp_path)
        again(tmp_path)
        assert held in names(tmp_path)
        remove_unless_held(tmp_path / held)
        assert held in names(tmp_path)


@pytest.mark.parametrize("name", [".results.json.tmp", ".other.abcdefgh.tmp", "results.json.abcdefgh.tmp", ".writing"])
def test_files_of_others_stay(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    write(tmp_path)
    build(tmp_path)
    assert name in names(tmp_path)
