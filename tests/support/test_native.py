"""Building C at first use: kept in the cache, named by what went into it, and a plain reason where it cannot be."""

from __future__ import annotations

import os
import shutil

import pytest

from holdfast.support import native
from holdfast.support.native import Settings, build

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler on this machine"
)
ON = Settings("1", "")


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A C file that gives 41 plus what ADD is defined as; the cache is a fresh folder."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "answer.c"
    file.write_text("int answer(void) { return 41 + ADD; }\n", encoding="utf-8")
    return file


def kept(tmp_path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "native").iterdir())


@needs_compiler
def test_a_library_is_built_once_and_kept(source, tmp_path, monkeypatch):
    first = build(source, flags=("-fPIC", "-DADD=1"), wanted=ON)
    assert not isinstance(first, str) and first.library.answer() == 42 and first.compiler
    files = kept(tmp_path)
    assert len(files) == 1 and files[0].startswith("answer-") and files[0].endswith(".so")
    monkeypatch.setattr(native, "scratch_folder", None)  # what building needs
    again = build(source, flags=("-fPIC", "-DADD=1"), wanted=ON)
    assert not isinstance(again, str) and again.library.answer() == 42


@needs_compiler
def test_other_flags_and_other_sources_are_other_libraries(source, tmp_path):
    assert build(source, flags=("-fPIC", "-DADD=1"), wanted=ON).library.answer() == 42
    assert build(source, flags=("-fPIC", "-DADD=2"), wanted=ON).library.answer() == 43
    source.write_text("int answer(void) { return 0; }\n", encoding="utf-8")
    assert build(source, flags=("-fPIC", "-DADD=2"), wanted=ON).library.answer() == 0
    assert len(kept(tmp_path)) == 3


@needs_compiler
def test_what_the_compiler_says_is_the_reason(source, tmp_path):
    reason = build(source, flags=("-fPIC",), wanted=ON)
    assert isinstance(reason, str) and reason.startswith("building it failed") and "answer.c" in reason
    assert kept(tmp_path) == []


@pytest.mark.parametrize("switch", ["0", "off", "False", "no"])
def test_it_can_be_switched_off(source, switch):
    assert build(source, flags=(), wanted=Settings(switch, "")) == "it is switched off (HOLDFAST_NATIVE=0)"


def test_without_a_compiler(source, monkeypatch):
    assert (
        build(source, flags=(), wanted=Settings("1", "no-such-compiler"))
        == "no C compiler was found (no-such-compiler)"
    )
    monkeypatch.setenv("PATH", "")
    assert build(source, flags=(), wanted=ON) == "no C compiler was found (cc, gcc, clang)"


@needs_compiler
@pytest.mark.skipif(os.name != "posix", reason="owners and modes")
def test_a_folder_that_others_can_write_to_keeps_nothing(source, tmp_path):
    folder = tmp_path / "cache" / "native"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert build(source, flags=("-fPIC", "-DADD=1"), wanted=ON).library.answer() == 42
    assert kept(tmp_path) == []
