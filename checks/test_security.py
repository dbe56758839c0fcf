"""What SECURITY.md and the Makefile say: what is parsed, what an audit that checked nothing says, what `make` installs,
and that no file names a machine."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import audit

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/holdfast"
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


PARSERS = {
    "json": "`json`",
    "yaml": "PyYAML",
    "csv": "`csv`",
    "pyarrow": "pyarrow",
    "datasets": "datasets",
    "safetensors": "safetensors",
    "tokenizers": "tokenizers",
    "jinja2": "jinja2",
    "optuna": "Optuna",
    "lm_eval": "harness",
    "peft": "PEFT",
    "transformers": "transformers",
    "gzip": "`.gz`",
    "zlib": "`.gz`",
    "zstandard": "`.zst`",
    "sqlite3": None,  # a scratch file of our own
    "xml.etree": None,  # writes JUnit
    "configparser": "",
    "tomllib": "",
    "plistlib": "",
    "zipfile": "`zipfile`",
    "tarfile": "",
    "lxml": "",
    "bs4": "",
    "xml.dom": "",
    "xml.sax": "",
    "pandas": "",
    "h5py": "",
    "numpy.lib.format": "",
    "onnx": "",
}
"""Modules that read files of others: how SECURITY.md calls them; None: no files of others; "": not in use."""


def test_every_file_that_is_parsed_is_in_the_table() -> None:
    """And what is not in use comes into use only with a line there."""
    used = set()
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
            used |= {module for module in PARSERS for name in names if f"{name}.".startswith(f"{module}.")}
    assert sorted(m for m in used if PARSERS[m] == "") == [], "say in SECURITY.md what it reads, and here"
    assert sorted(m for m in used if PARSERS[m] and PARSERS[m] not in PAGE) == []
    from holdfast.data.readers import COMPRESSIONS, KINDS

    assert [suffix for suffix in (*KINDS, *COMPRESSIONS) if f"`{suffix}`" not in PAGE] == []


def stand_in(
    answers: Any = None, *, known: bool = True, status: int = 1, err: str = ""
) -> tuple[audit.Run, list[list[str]]]:
    """What runs pip-audit: an answer to the canary, then `answers` (a list, or text)."""
    name, version = audit.CANARY
    asked: list[list[str]] = []

    def run(command: Sequence[str]) -> tuple[int, str, str]:
        file = Path(command[command.index("--requirement") + 1])
        asked.append(file.read_text().splitlines())
        if asked[-1] == [f"{name}=={version}"]:
            found = [{"name": name.upper(), "version": version, "vulns": [{"id": "CVE-1"}] if known else []}]
            return status, json.dumps({"dependencies": found}), ""
        return status, answers if isinstance(answers, str) else json.dumps({"dependencies": answers}), err

    return run, asked


PINNED = {"torch": "2.13.0", "Two_Words": "1.0"}


SOUND = [{"name": "torch", "version": "2.13.0", "vulns": []}, {"name": "two-words", "version": "1.0", "vulns": []}]


def test_an_audit_that_finds_nothing_has_asked_about_everything() -> None:
    run, asked = stand_in(SOUND, status=0)
    verdict = audit.audit(PINNED, run)
    assert (verdict.status, verdict.lines) == (0, ["2 pinned versions: no known vulnerabilities."])
    assert asked == [["jinja2==2.4.1"], ["torch==2.13.0", "Two_Words==1.0"]]


def test_what_is_known_is_listed_with_what_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"id": "PYSEC-1", "aliases": ["CVE-2"], "fix_versions": ["2.13.1"]}
    run, _ = stand_in([{**SOUND[0], "vulns": [known]}, SOUND[1]])
    verdict = audit.audit(PINNED, run)
    assert verdict.status == 1 and verdict.lines[0] == "torch 2.13.0: PYSEC-1 (CVE-2), mended in 2.13.1"
    monkeypatch.setitem(audit.ACCEPTED, "CVE-2", "does not concern us")
    assert audit.audit(PINNED, run).status == 0


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (
            stand_in("", err="x\nERROR: Could not connect to PyPI's vulnerability feed\n")[0],
            "Could not connect to PyPI",
        ),
        (stand_in("", err="No module named pip_audit")[0], "No module named pip_audit"),
        (stand_in("[]", status=0)[0], "it ended with 0 and said nothing"),
        (
            stand_in(SOUND, known=False, status=0)[0],
            "knows nothing of jinja2 2.4.1, which is vulnerable (it has no list",
        ),
        (stand_in(SOUND[:1], status=0)[0], "1 of 2 were left out: Two_Words 1.0 (no answer)"),
        (
            stand_in([SOUND[0], {"name": "two-words", "skip_reason": "not found on PyPI"}], status=0)[0],
            "(not found on PyPI)",
        ),
        (stand_in([SOUND[0], {**SOUND[1], "version": "2.0"}], status=0)[0], "1 of 2 were left out"),
    ],
    ids=["no network", "no pip-audit", "no answer", "no list", "left out", "skipped", "another version"],
)
def test_what_was_not_checked_is_never_taken_for_nothing_found(run: audit.Run, why: str) -> None:
    verdict = audit.audit(PINNED, run)
    assert verdict.status == 2 and verdict.lines[0].startswith("NOT CHECKED: ") and why in verdict.lines[0]


def test_every_pin_is_read() -> None:
    lines = [line for line in audit.PINS.read_text().splitlines() if line and not line.startswith("#")]
    assert len(audit.read_pins(audit.PINS.read_text())) == len(lines) > 100
    with pytest.raises(ValueError, match="expected NAME==VERSION, got 'torch>=2'"):
        audit.read_pins("torch>=2\n")
    assert audit.main(["no-such-package"]) == 2


def test_make_installs_what_each_target_needs() -> None:
    """On a machine where nothing is: what `make -n` would run, in its order."""

    def commands(target: str) -> str:
        words = ["make", "-n", "-C", str(ROOT), target, "VENV=/nowhere/venv", f"PYTHON={sys.executable}"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    for target, last in {
        "quickstart": "holdfast quickstart",
        "test": "-m 'not slow and not gpu and not network'",
        "test-all": "-m 'not gpu and not network'",
        "bench": "benchmarks/gate.py --check",
    }.items():
        shown = commands(target)
        steps = ["-m venv", "'^torch=='", "--constraint constraints.txt --editable .", last]
        places = [shown.index(step) for step in steps]
        assert places == sorted(places) and "(3, 11)" in shown[: places[0]], target
    assert "pip_audit" not in commands("test") and re.search(
        r"venv-audit/bin/python checks/audit.py", commands("audit")
    )


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_checkpoints_states_are_read_without_unpickling(file: str) -> None:
    """transformers' own loads of them, which a run's continuation goes through."""
    from transformers import Trainer

    text = inspect.getsource(inspect.getmodule(Trainer))  # type: ignore[arg-type]
    loads = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and ast.unparse(n.func) == "torch.load"]
    assert len(loads) >= 6
    for node in loads:
        assert [k.value.value for k in node.keywords if k.arg == "weights_only"] == [True], ast.unparse(node)  # type: ignore[attr-defined]
    assert f"`{file}`" in PAGE


def tracked_files() -> list[Path]:
    """Files that git holds or would take in; the whole tree of a source archive without git."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        folders = ("src", "tests", "docs", "configs", "examples", "benchmarks")
        return [p for f in folders for p in (ROOT / f).rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return [ROOT / name for name in done.stdout.split("\0") if name]


def test_no_file_names_a_machine():
    """Home folders and the like say where a file was written and help nobody."""
    homes = re.compile(r"(?<![\w.~$}>-])/(?:" + "|".join(["work", "root", "home", "Users"]) + r")/[\w.-]+")
    found, read = [], 0
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):  # a binary file, or one deleted but not yet committed
            continue
        read += 1
        found += [
            f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, m.start()) + 1}: {m.group()}"
            for m in homes.finditer(text)
        ]
    assert read > 50
    assert found == []
