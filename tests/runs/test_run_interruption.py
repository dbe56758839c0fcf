"""Runs that are killed, stopped or started twice: the same command again ends with the weights of an uninterrupted run,
bit for bit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import commandline
from checkpoint_folders import read_folder
from data_files import text_rows
from holdfast.cli.main import main
from holdfast.records.run import RunFolder
from small_runs import train_words
from tiny import SENTENCES

STEPS, EVERY = 20, 5
FEW = ("--max_steps", "4")

# The command line in a process of its own. With a speed limit, so that a signal finds the run at work on any machine:
# HOLDFAST_TEST_PAUSE names a moment and the seconds to wait there: before an evaluation or a step, or half way through
# a checkpoint or the saving of the result.
PROGRAM = """
import os, sys, time
from holdfast.cli.main import main
def slow(owner, name, seconds, count=[0]):
    original = getattr(owner, name)
    def waiting(*args, **kwargs):
        time.sleep(seconds)
        return original(*args, **kwargs)
    setattr(owner, name, waiting)
where, _, seconds = os.environ.get("HOLDFAST_TEST_PAUSE", "").partition("=")
if where:
    import holdfast.training.mixin as mixin, holdfast.runs.run as run
    if where == "evaluate": slow(run._Run, "evaluate", float(seconds))
    if where == "step": slow(mixin.RetentionMixin, "training_step", float(seconds))
    if where == "checkpoint": slow(mixin.RetentionMixin, "_save_retention_state", float(seconds))
    if where == "save": slow(run._Run, "_distances", float(seconds))
print("ready", flush=True)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def prose(place: Path) -> None:
    text_rows("prose.jsonl", [f"{n}. {s}" for n in (8, 9) for s in SENTENCES])


@pytest.fixture
def whole(prose: None, once: Callable[..., Path]) -> Path:
    """The run that was never interrupted, trained once for all tests."""
    return once("uninterrupted", lambda folder: main(words(str(folder))))


def words(out: str) -> list[str]:
    methods = ["--retention", "label_annealing", "--retention", "sfa:p=0.3", "--retention", "l2:coefficient=0.1"]
    often = f"--max_steps {STEPS} --save_steps {EVERY} --logging_steps 2 --save_total_limit 3 --keep prose.jsonl"
    adapter = "--use_peft --lora_r 4 --lora_dropout 0.1"  # with dropout the random state counts too
    return train_words(*often.split(), *methods, *adapter.split(), out=out)


def start(out: str, pause: str = "") -> subprocess.Popen:
    environment = {**os.environ, "HOLDFAST_TEST_PAUSE": pause, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words(out)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_until(process: subprocess.Popen, reached: Callable[[], bool], *, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not reached():
        if process.poll() is not None:
            pytest.fail(f"the run ended ({process.returncode}) before the moment to stop it:\n{process.stdout.read()}")
        if time.monotonic() > end:
            process.kill()
            pytest.fail(f"the moment to stop the run never came:\n{process.communicate()[0]}")
        time.sleep(0.005)


def assert_same_run(out: str, whole: Path) -> None:
    assert read_folder(Path(out)) == read_folder(whole) != {}
    metrics, expected = RunFolder(out).metrics(), RunFolder(whole).metrics()
    assert [row["step"] for row in metrics] == list(range(2, STEPS + 1, 2))
    for row, other in zip(metrics, expected, strict=True):
        for name in ("ce", "kl", "tokens", "learning_rate", "sfa_averages"):
            assert row[name] == pytest.approx(other[name], rel=1e-9), (row["step"], name)
    record = RunFolder(out).read()
    assert (record.status, record.error) == ("finished", None)
    (comparison,) = [c for c in RunFolder(out).comparisons() if c.primary]
    (reference,) = [c for c in RunFolder(whole).comparisons() if c.primary]
    assert comparison == reference
    assert not [p.name for p in Path(out).iterdir() if p.name.startswith(".") and p.name != ".lock"]


def stage(out: str) -> str:
    return RunFolder(out).read().stage if RunFolder(out).exists() else ""


MOMENTS: dict[str, tuple[str, Callable[[], bool]]] = {
    "first evaluation": ("evaluate=30", lambda: stage("cut") == "evaluate start"),
    "training": ("step=0.05", lambda: Path("cut/checkpoint-10").is_dir()),
    "checkpoint": ("checkpoint=30", lambda: any(Path("cut/.saving").glob("checkpoint-*/adapter_model.safetensors"))),
    "saving": ("save=30", lambda: Path("cut/adapter_model.safetensors").is_file() and not Path("cut/.final").exists()),
    "last evaluation": ("evaluate=2", lambda: stage("cut") == "evaluate result"),
}


@pytest.mark.slow
@pytest.mark.parametrize("moments", [["checkpoint"], list(MOMENTS)], ids=["while writing", "at any moment"])
def test_kill_at_any_moment_and_the_same_command_again(moments: list[str], whole: Path) -> None:
    """kill -9 during the first evaluation, in training, while a checkpoint is written, while the model is saved, during
    the last evaluation."""
    trained = [m for m in moments if m not in ("first evaluation", "last evaluation")]
    for moment in moments:
        pause, reached = MOMENTS[moment]
        process = start("cut", pause)
        wait_until(process, reached)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        if moment == "checkpoint":  # half a checkpoint lies aside, under a name that no run continues from
            assert Path("cut/.saving").is_dir()
            assert RunFolder("cut").read().training["sessions"] == trained.index(moment) + 1
    assert RunFolder("cut").read().status == "running"
    assert main(words("cut")) == 0
    assert_same_run("cut", whole)
    assert (
        RunFolder("cut").read().training["sessions"] == len(trained) + 1
    )  # one was killed while saving; the one after it saves, or only measures


def test_ctrl_c_writes_a_checkpoint_and_says_how_to_go_on(place: Path, whole: Path) -> None:
    from holdfast.training.mixin import RetentionMixin

    step = RetentionMixin.training_step

    def slowly(*args, **kwargs):  # so that the signal finds it at work on any machine
        time.sleep(0.1)
        return step(*args, **kwargs)

    def work() -> int:
        RetentionMixin.training_step = slowly
        return main(words("cut"))

    def at_work() -> bool:
        """A second process in the folder is refused while the first is at work, and does it no harm."""
        return Path("cut/checkpoint-5").is_dir() and main(words("cut")) == 2

    done = commandline.in_process(work, place, stop_when=at_work, limit=120)
    shown = done.out + done.err
    assert done.code == 130, shown
    assert re.search(
        r"Interrupted at step \d+ of 20; a checkpoint is in cut\. Run the same command to continue\.", shown
    ), shown
    assert "Traceback" not in shown
    record = RunFolder("cut").read()
    assert record.status == "interrupted"
    assert Path(f"cut/checkpoint-{record.training['steps']}").is_dir()
    assert Path("cut/report.html").is_file()
    assert main(words("cut")) == 0
    assert_same_run("cut", whole)


def stopped(out: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was interrupted at a step."""
    from holdfast.training.callbacks import StopOnSignal

    original = StopOnSignal.on_step_end

    def stop(self, args, state, control, **kwargs):
        self.stopped = self.stopped or state.global_step == step
        return original(self, args, state, control, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_step_end", stop)
        assert main(words(out)) == 130
    assert Path(f"{out}/checkpoint-{step}").is_dir()


def test_damaged_checkpoints_cost_steps_and_nothing_else(
    whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest has lost a file, the one before has a bit changed: the run says so, goes on from the third, and ends
    with the weights and figures of an undisturbed run."""
    stopped("cut", 13, monkeypatch)
    Path("cut/checkpoint-13/optimizer.pt").unlink()
    damage_one_bit(Path("cut/checkpoint-10/rng_state.pth"))
    capsys.readouterr()
    assert main(words("cut")) == 0
    told = (
        "Skipped: checkpoint-13 (optimizer.pt is missing), checkpoint-10 (rng_state.pth was changed after it was "
        "written). Training continues from checkpoint-5."
    )
    assert f"Note: {told}" in capsys.readouterr().out
    assert told in RunFolder("cut").read().notes
    assert "Training continues from checkpoint-5." in Path("cut/report.html").read_text()
    assert_same_run("cut", whole)


def damage_one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_what_a_killed_process_left_goes_at_the_next_call() -> None:
    """Also where the run was finished and nothing is left to do."""
    assert main([*words("cut"), *FEW]) == 0
    left = [Path("cut", name) for name in (".saving/checkpoint-5", ".final", ".deleting-checkpoint-5", "evaluations")]
    for folder in left:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".run.json.abcdefgh.tmp").write_text("half")
    Path("cut/.run.json.abcdefgh.tmp").write_text("half")
    assert main([*words("cut"), *FEW]) == 0
    assert [p.name for p in Path("cut").rglob(".*")] == [".lock"]


def test_ctrl_c_outside_of_training(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """During an evaluation, by a signal or from the keyboard: exit code 130, and the record says where the run
    stands."""
    from holdfast.runs import run

    for number in (signal.SIGINT, signal.SIGTERM):
        with monkeypatch.context() as patch:
            patch.setattr(run._Run, "evaluate", lambda *_, number=number: (os.kill(os.getpid(), number), time.sleep(5)))
            assert main(words("cut")) == 130
        assert "Interrupted during stage 'evaluate start'" in capsys.readouterr().err
        record = RunFolder("cut").read()
        assert (record.status, record.stage) == ("interrupted", "evaluate start")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_stop_at_the_last_step_still_saves_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast.training.callbacks import StopOnSignal

    original = StopOnSignal.on_step_end

    def at_the_end(self, args, state, control, **kwargs):
        if state.global_step == state.max_steps:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        return original(self, args, state, control, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(StopOnSignal, "on_step_end", at_the_end)
        assert main([*words("cut"), *FEW]) == 130
    assert "Interrupted after the last step; the trained model is in cut" in capsys.readouterr().err
    held = Path("cut/adapter_model.safetensors").stat().st_mtime_ns
    assert main([*words("cut"), *FEW]) == 0
    assert Path("cut/adapter_model.safetensors").stat().st_mtime_ns == held  # measured, not trained again
    assert RunFolder("cut").read().status == "finished"
