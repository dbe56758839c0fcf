"""The pinned versions (constraints.txt) against the published vulnerabilities, by pip-audit.

    make audit                     all pins
    python checks/audit.py torch    some of them

Exit status: 0 nothing is known of them, 1 something is (listed, with the versions that mend it), 2 they were NOT
checked, and why.

pip-audit asks the package index for each version. What it could not ask about it leaves out, and a mirror of the index
may answer without any list of vulnerabilities; both end in its "No known vulnerabilities found". So here every pin has
to be in its answer, and so has `CANARY`, a version that is known to be vulnerable, with what is known of it. Without
them nothing was checked, and that is said.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PINS = Path(__file__).resolve().parents[1] / "constraints.txt"
CANARY = ("jinja2", "2.4.1")
"""CVE-2014-1402 and others since."""
ACCEPTED: dict[str, str] = {}
"""Vulnerabilities by id that are known and do not matter here, and why."""
NOTHING_KNOWN, VULNERABLE, NOT_CHECKED = 0, 1, 2

Run = Callable[[Sequence[str]], tuple[int, str, str]]
"""Runs a command: exit status, stdout, stderr."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of it."""

    status: int
    lines: list[str]


def read_pins(text: str) -> dict[str, str]:
    """Versions by name, as constraints have them.

    Raises:
        ValueError: a line that is no exact version.
    """
    pins = {}
    for line in text.splitlines():
        words = line.partition("#")[0].strip()
        if not words:
            continue
        found = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;]+)(\s*;.*)?", words)
        if found is None:
            raise ValueError(f"expected NAME==VERSION, got {words!r}")
        pins[found[1]] = found[2]
    return pins


def run(command: Sequence[str]) -> tuple[int, str, str]:
    """Runs a command."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def audit(pins: Mapping[str, str], run: Run = run) -> Verdict:
    """Checks versions.

    Args:
        pins: versions by name.
        run: what runs pip-audit.
    """
    name, version = CANARY
    answers: dict[str, dict[str, Any]] = {}
    for asked in ({name: version}, pins):  # apart: of one package a file can name one version
        answer, problem = _ask(asked, run)
        if problem:
            return _not_checked(problem)
        if asked is pins:
            answers = answer
        elif not answer.get(_plain(name), {}).get("vulns"):
            reason = answer.get(_plain(name), {}).get("skip_reason", "it has no list of vulnerabilities")
            return _not_checked(f"the index knows nothing of {name} {version}, which is vulnerable ({reason})")
    lacking = [
        f"{name} {version} ({answers.get(_plain(name), {}).get('skip_reason', 'no answer')})"
        for name, version in pins.items()
        if "vulns" not in answers.get(_plain(name), {}) or answers[_plain(name)].get("version") != version
    ]
    if lacking:
        return _not_checked(f"{len(lacking)} of {len(pins)} were left out: {'; '.join(lacking)}")
    found = [
        (one["name"], one["version"], vulnerability)
        for one in answers.values()
        for vulnerability in one["vulns"]
        if not {vulnerability["id"], *vulnerability.get("aliases", ())} & set(ACCEPTED)
    ]
    if not found:
        return Verdict(status=NOTHING_KNOWN, lines=[f"{len(pins)} pinned versions: no known vulnerabilities."])
    lines = [
        f"{name} {version}: {v['id']} ({', '.join(v.get('aliases', ())) or 'no other name'}), "
        f"mended in {', '.join(v.get('fix_versions', ())) or 'no version yet'}"
        for name, version, v in found
    ]
    return Verdict(status=VULNERABLE, lines=[*lines, f"{len(found)} known vulnerabilities in {len(pins)} versions."])


def _ask(pins: Mapping[str, str], run: Run) -> tuple[dict[str, dict[str, Any]], str]:
    """What pip-audit answers, by name; or why it gives no answer."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pins.txt"
        file.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))
        options = ["--requirement", str(file), "--no-deps", "--disable-pip", "--format", "json"]
        status, out, err = run([sys.executable, "-m", "pip_audit", *options, "--progress-spinner", "off"])
    try:
        dependencies = json.loads(out)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = err.strip().splitlines()[-1:] or [f"it ended with {status} and said nothing"]
        return {}, f"pip-audit gave no answer: {last[0]}"
    return {_plain(one["name"]): one for one in dependencies}, ""


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _not_checked(why: str) -> Verdict:
    return Verdict(status=NOT_CHECKED, lines=[f"NOT CHECKED: {why}."])


def main(names: Sequence[str]) -> int:
    """The command."""
    pins = read_pins(PINS.read_text(encoding="utf-8"))
    unknown = [name for name in names if name not in pins]
    verdict = (
        _not_checked(f"not pinned: {', '.join(unknown)}")
        if unknown
        else audit({name: version for name, version in pins.items() if not names or name in names})
    )
    print("\n".join(verdict.lines))
    return verdict.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
