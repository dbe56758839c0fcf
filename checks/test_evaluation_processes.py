"""Processes that an evaluation starts: those of torchrun, one that dies, vLLM, and programs in the sandbox, which end
with their caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import test_evaluation_served
from evaluation import test_processes, test_sandbox
from evaluation.test_processes import OWN, SUITE, same
from holdfast.cli.main import main

pytestmark = pytest.mark.timeout(280)
desk, served_desk = test_processes.desk, test_evaluation_served.desk
needs_sandbox = test_sandbox.needs_sandbox


def evaluate(*words: str, launcher: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *launcher, "-m", "holdfast", "evaluate", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.distributed
@pytest.mark.slow
def test_under_torchrun_too(desk: Path) -> None:
    words = ["base", "tuned", "--suite", "suite.yaml"]
    assert main(["evaluate", *words, "--output_dir", "one"]) == 0
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "3")
    done = evaluate(*words, "--output_dir", "three", launcher=torchrun)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("entries measured") == 2
    same(desk / "three", desk / "one")


@pytest.mark.distributed
@pytest.mark.slow
def test_a_mistake_is_said_once(desk: Path) -> None:
    (desk / "suite.yaml").write_text(SUITE.replace("name: classified", "name: classified, label: absent"))
    done = evaluate("base", "--suite", "suite.yaml", "--output_dir", "out", "--num_processes", "2")
    assert done.returncode == 2
    assert done.stderr.count("no column 'absent'") == 1, done.stderr
    assert not (desk / "out").exists()


@pytest.mark.distributed
@pytest.mark.slow
def test_a_process_that_dies_ends_the_others(desk: Path) -> None:
    """The main process says which one ended, and what was measured is kept."""
    (desk / "own.py").write_text(
        OWN.replace("        yield", "        import time; open('asked', 'w').close(); time.sleep(3)\n        yield")
    )
    command = [sys.executable, "-m", "holdfast", "evaluate", "base", "--suite", "suite.yaml", "--num_processes", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    began = time.monotonic()
    while not (desk / "asked").exists():
        assert process.poll() is None and time.monotonic() - began < 200
        time.sleep(0.1)
    [other] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(other), signal.SIGKILL)
    (desk / "own.py").write_text(OWN)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "evaluation processes has died" in said and "the same command continues" in said
    kept = {p.name for p in (desk / "evaluated" / "base").glob("keep.*.json")}
    assert "keep.followed.json" in kept and "keep.own.json" not in kept


def children_of(parent: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(entry))
            except OSError:
                continue
    return found


@pytest.mark.usefixtures("needs_sandbox")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 7), (signal.SIGKILL, -signal.SIGKILL)])
def test_no_child_outlives_the_caller(tmp_path, number, code):
    """Ctrl-C kills them and goes on to the caller; a caller that is killed takes them along."""
    script = tmp_path / "script.py"
    script.write_text(
        "import signal\nfrom holdfast.evaluation.code.sandbox import Limits, "
        "run_all\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try: run_all(['import time; time.sleep(60)'] * 4, workers=2, limits=Limits(wall_seconds=60))\n"
        "except KeyboardInterrupt: raise SystemExit(7)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], env={**os.environ, "TMPDIR": str(tmp_path)}) as caller:
        try:
            deadline = time.monotonic() + 15
            while len(children := children_of(caller.pid)) < 2 or not all(
                b"-c" in Path(f"/proc/{c}/cmdline").read_bytes() for c in children
            ):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(0.3)  # past their start
            caller.send_signal(number)
            assert caller.wait(15) == code
        finally:
            caller.kill()
    while any(
        Path(f"/proc/{child}").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text() for child in children
    ):
        assert time.monotonic() < deadline + 15
        time.sleep(0.05)
