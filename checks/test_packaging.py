"""What pip installs: archives with everything that the package reads, the same bytes each time, that install and run on
their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DATA = {".c", ".css", ".js", ".json", ".yaml", ".jinja", ".safetensors", ".typed"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def copied(place: Path) -> Path:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    shutil.copytree(ROOT / "src/holdfast", place / "src/holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    return place


def build(place: Path, *words: str) -> None:
    """`python -m build` with the backend that is installed, so that nothing is downloaded."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    words = (sys.executable, "-m", "build", "--no-isolation", *words)
    subprocess.run(words, cwd=place, env=environment, capture_output=True, check=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Two source archives, and the wheels that are made of them, of one tree in two folders at two times."""
    found: dict[str, list[Path]] = {"wheel": [], "sdist": []}
    for number in range(2):
        place = copied(tmp_path_factory.mktemp(f"build{number}"))
        for file in (place / "src").rglob("*"):
            os.utime(file, (1_600_000_000 + number, 1_600_000_000 + number))
        (place / "src/holdfast/errors.py").chmod(0o644 if number else 0o600)
        build(place)
        [wheel], [sdist] = (place / "dist").glob("*.whl"), (place / "dist").glob("*.tar.gz")
        found["wheel"].append(wheel)
        found["sdist"].append(sdist)
    return found


def wanted() -> set[str]:
    source = ROOT / "src"
    return {
        str(path.relative_to(source))
        for path in (source / "holdfast").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and (path.suffix in DATA | {".py"})
    }


def test_the_archives_have_all_that_the_package_reads(built: dict[str, list[Path]]) -> None:
    with zipfile.ZipFile(built["wheel"][0]) as wheel:
        inside = {name for name in wheel.namelist() if name.startswith("holdfast/")}
    assert inside == wanted() and len(inside) > 500
    with tarfile.open(built["sdist"][0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in wanted()} | {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= names
    assert not [n for n in names if not n.startswith("src/holdfast/") and "/" in n], "nothing of the tree's tools"


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_the_same_tree_gives_the_same_bytes(kind: str, built: dict[str, list[Path]]) -> None:
    one, other = built[kind]
    assert one.name == other.name and one.read_bytes() == other.read_bytes()


def test_a_wheel_made_of_the_tree_is_the_one_made_of_the_source_archive(
    built: dict[str, list[Path]], tmp_path: Path
) -> None:
    build(copied(tmp_path), "--wheel")
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert wheel.read_bytes() == built["wheel"][0].read_bytes()


@pytest.fixture(scope="module")
def installed(built: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and nothing else; returns its Python."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False)
    python = place / "bin/python"
    words = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    assert run([*words, str(built["wheel"][0])], place).returncode == 0
    return python


def run(words: list[str | Path], place: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True)


def test_it_is_installed_in_a_clean_environment(installed: Path, tmp_path: Path) -> None:
    command = installed.parent / "holdfast"
    assert run([command, "--version"], tmp_path).stdout == f"holdfast {PROJECT['version']}\n"
    assert "usage: holdfast COMMAND" in run([command, "--help"], tmp_path).stdout
    found = run([installed, "-c", "import holdfast; print(holdfast.__file__)"], tmp_path).stdout
    assert found.startswith(str(installed.parent.parent))


def test_it_runs_without_the_tree(installed: Path, tmp_path: Path) -> None:
    """With the libraries of this environment, which a clean one would download."""
    [site] = (installed.parent.parent / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    recipe = site / "holdfast/papers/recipes/ladder/tiny.yaml"
    done = run([installed.parent / "holdfast", "study", "run", recipe, "--dry_run"], tmp_path)
    assert done.returncode == 0, done.stderr
    (site / "libraries.pth").unlink()


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("extra", ["", *sorted(PROJECT["optional-dependencies"])])
def test_every_extra_resolves(extra: str, built: dict[str, list[Path]], tmp_path: Path) -> None:
    """As pip would install it into an empty environment, under the versions of constraints.txt."""
    asked = f"{built['wheel'][0]}[{extra}]" if extra else str(built["wheel"][0])
    report = tmp_path / "report.json"
    words = ["--dry-run", "--ignore-installed", "--quiet", "--report", report, "--constraint", ROOT / "constraints.txt"]
    done = run([sys.executable, "-m", "pip", "install", *words, asked], tmp_path)
    assert done.returncode == 0, done.stderr
    found = {item["metadata"]["name"].lower() for item in json.loads(report.read_text())["install"]}
    assert {"holdfast", "torch", "trl"} <= found
