"""What pip installs: a wheel with everything that the package reads, the same bytes each time, that runs on its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DATA = {".c", ".css", ".js", ".json", ".yaml", ".jinja", ".typed"}
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Two wheels and two source archives of the same tree, built in two folders."""
    found: dict[str, list[Path]] = {"wheel": [], "sdist": []}
    for number in range(2):
        place = tmp_path_factory.mktemp(f"build{number}")
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, place)
        shutil.copytree(ROOT / "src/holdfast", place / "src/holdfast", ignore=shutil.ignore_patterns("__pycache__"))
        environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
        for kind, files in found.items():
            words = [sys.executable, "-c", BUILD, kind, str(place / "dist")]
            (place / "dist").mkdir(exist_ok=True)
            done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, check=True)
            files.append(place / "dist" / done.stdout.strip().splitlines()[-1])
    return found


def test_the_wheel_has_all_that_the_package_reads(built: dict[str, list[Path]]) -> None:
    with zipfile.ZipFile(built["wheel"][0]) as wheel:
        inside = {name for name in wheel.namelist() if name.startswith("holdfast/")}
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "holdfast").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and (path.suffix in DATA | {".py"})
    }
    assert inside == wanted and len(inside) > 500


def test_the_same_tree_gives_the_same_wheel(built: dict[str, list[Path]]) -> None:
    one, other = built["wheel"]
    assert one.name == other.name and one.read_bytes() == other.read_bytes()


def test_a_wheel_made_of_the_source_archive_is_that_wheel(built: dict[str, list[Path]], tmp_path: Path) -> None:
    with tarfile.open(built["sdist"][0]) as archive:
        archive.extractall(tmp_path, filter="data")
    [place] = tmp_path.iterdir()
    words = [sys.executable, "-c", BUILD, "wheel", str(tmp_path)]
    subprocess.run(words, cwd=place, capture_output=True, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as again, zipfile.ZipFile(built["wheel"][0]) as wheel:
        held = [{n: z.read(n) for n in z.namelist() if n.startswith("holdfast/")} for z in (again, wheel)]
    assert held[0] == held[1]


def test_it_runs_without_the_tree(built: dict[str, list[Path]], tmp_path: Path) -> None:
    with zipfile.ZipFile(built["wheel"][0]) as wheel:
        wheel.extractall(tmp_path / "site")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import holdfast; "
        f"from holdfast.cli.main import main; "
        f"assert holdfast.__file__.startswith({str(tmp_path)!r}); "
        "sys.exit(main(['ladder', 'train', '--config', sys.argv[1], '--dry_run']))"
    )
    recipe = tmp_path / "site/holdfast/studies/recipes/ladder/tiny.yaml"
    done = subprocess.run(
        [sys.executable, "-c", script, str(recipe)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
