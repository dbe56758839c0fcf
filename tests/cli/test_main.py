"""The command `holdfast`: exit codes, messages, and how little it imports."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.cli import main as main_module
from holdfast.cli.main import COMMANDS, HELP, main
from holdfast.errors import ConfigError, DataError, Interrupted, TrainingDiverged

HEAVY = ("torch", "transformers", "trl", "datasets", "accelerate", "peft", "lm_eval", "rich", "plotly", "numpy")


@pytest.fixture(autouse=True)
def no_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(main_module.DEBUG, "")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Puts a function in the place of `holdfast train`."""

    def put(run) -> None:
        monkeypatch.setitem(sys.modules, "holdfast.cli.train", types.SimpleNamespace(run=run))

    return put


def raising(error: BaseException):
    def run(argv: list[str]) -> int:
        raise error

    return run


def torch_writer_failed() -> RuntimeError:
    """What torch.save raises on a full disk."""
    error = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")
    error.__context__ = RuntimeError("basic_ios::clear: iostream error")
    return error


def foreign_torchvision() -> RuntimeError:
    """What TRL raises where torchvision belongs to another torch: transformers swallows the reason twice."""
    error = RuntimeError("Failed to import trl.trainer.sft_config because of the following error")
    error.__cause__ = ModuleNotFoundError("Could not import module 'TrainingArguments'.")
    error.__cause__.__cause__ = RuntimeError("operator torchvision::nms does not exist")
    return error


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("bad key"), 2, "error: bad key\n"),
        (DataError("line 3: expected JSON"), 2, "error: line 3: expected JSON\n"),
        (TrainingDiverged("loss is NaN at step 7"), 1, "error: loss is NaN at step 7\n"),
        (Interrupted("Interrupted at step 3"), 130, "stopped: Interrupted at step 3\n"),
        (KeyboardInterrupt(), 130, "stopped: Interrupted. Run the same command to continue.\n"),
        (ValueError("odd"), 1, "error: ValueError: odd\nThis is a bug in holdfast or in a library"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "The disk is full. Free some space"),
        (torch_writer_failed(), 1, "The disk is full. Free some space"),
        (foreign_torchvision(), 2, "error: The installed torchvision was built for another torch"),
        (MemoryError(), 1, "Halve --per_device_train_batch_size"),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
                "to allocate 4000000000000000 bytes. Error code 12 (Cannot allocate memory)"
            ),
            1,
            "Not enough memory",
        ),
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000),
            2,
            f"error: {'x' * 100}...{'x' * 60}: cannot be used (File name too long). Choose a shorter name.\n",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/a/b"), 2, "/a/b: cannot be used (Permission denied)"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/a/b"), 1, "/a/b: no longer exists. It was deleted or"),
        (OSError(errno.EFBIG, "File too large", "/a/b"), 1, "/a/b: a file would exceed"),
        (OSError(errno.EIO, "Input/output error", "/a/b"), 1, "/a/b: the disk failed (Input/output error)"),
        (SystemExit(3), 3, ""),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, BaseException) else None,
)
def test_exit_codes_and_messages(
    command, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, text: str
) -> None:
    command(raising(error))
    assert main(["train"]) == code
    shown = capsys.readouterr().err
    assert text in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("error", [ConfigError("bad key"), ValueError("odd")])
@pytest.mark.parametrize("words", [["--debug", "train"], ["train", "--debug"]])
def test_debug_shows_the_traceback(
    command, capsys: pytest.CaptureFixture[str], words: list[str], error: Exception
) -> None:
    command(raising(error))
    main(words)
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert str(error) in shown


def test_debug_is_not_passed_on_but_trls_own_is(command) -> None:
    seen: list[list[str]] = []
    command(lambda argv: seen.append(argv) or 0)
    assert main(["train", "--debug", "--seed", "1"]) == 0
    assert main(["train", "--debug", "underflow_overflow"]) == 0
    assert seen == [["--seed", "1"], ["--debug", "underflow_overflow"]]


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["-h"], ["help"]):
        assert main(words) == 0
        assert capsys.readouterr().out.startswith(HELP)
    assert main([]) == 2
    assert capsys.readouterr().out.startswith(HELP)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {__version__}\n"
    assert all(name in HELP for name in COMMANDS)
    assert len(HELP.splitlines()) <= 24 and max(map(len, HELP.splitlines())) <= 80
    for words, start in (
        (["help", "inspect"], "inspect A"),
        (["study", "run", "--help"], "study run FILE"),
        (["residual", "--help", "apply"], "residual apply"),
    ):
        assert main(words) == 0
        assert capsys.readouterr().out.startswith(f"usage: holdfast {start}")


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "unknown command 'trian'. Did you mean 'train'?" in capsys.readouterr().err
    assert main(["zzz"]) == 2
    assert f"Known: {', '.join(COMMANDS)}." in capsys.readouterr().err


def test_environment_defaults_leave_the_users_settings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "0")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    main(["--version"])
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "0"
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


OTHERS = [name for name in COMMANDS if name != "merge"]
READERS = ("torch", "transformers", "safetensors", "plotly", "rich", "yaml", "huggingface_hub")


@pytest.mark.parametrize(
    ("requests", "unwanted"),
    [
        ([["--help"], ["--version"], ["trian"], ["residual"], *([name, "--help"] for name in OTHERS)], HEAVY),
        ([["merge", "--help"]], READERS),
    ],
    ids=["others", "merge"],
)
def test_help_imports_nothing_heavy(requests: list[list[str]], unwanted: tuple[str, ...]) -> None:
    """One interpreter asks for all of them: what the first import takes is paid once."""
    code = f"""
import sys
from holdfast.cli.main import main

for words in {requests!r}:
    main(words)
    loaded = [name for name in {unwanted!r} if name in sys.modules]
    if loaded:
        sys.exit(f"{{words}} imports {{loaded}}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def imported(words: list[str], unwanted: tuple[str, ...], folder: Path) -> tuple[int, list[str]]:
    """The exit code of a command, and which modules it imported of those that it should not."""
    code = f"""
import sys
from holdfast.cli.main import main

code = main({words!r})
print(code, *(name for name in {unwanted!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    exit_code, *names = done.stdout.splitlines()[-1].split()
    return int(exit_code), names


def test_a_study_with_a_mistyped_key_is_refused_without_any_library(tmp_path: Path) -> None:
    study = {
        "train": {"model_name_or_path": "base", "learning_rat": 1e-5},
        "tasks": {name: {"train": {"dataset_name": "rows.jsonl"}, "evaluation": ["rows.jsonl"]} for name in "ab"},
        "arms": ["single"],
    }
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    unwanted = ("torch", "transformers", "trl", "datasets", "accelerate", "peft", "lm_eval", "plotly", "pandas")
    assert imported(["sequence", "--config", "study.yaml"], unwanted, tmp_path) == (2, [])


def test_a_reader_that_goes_away_is_no_failure_with_a_traceback() -> None:
    code = "from holdfast.cli import main as m; m.HELP = m.HELP * 5000; raise SystemExit(m.main(['--help']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=30) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


def test_streams_that_are_closed_or_of_another_character_set_spoil_nothing(tmp_path) -> None:
    words = f"{sys.executable} -m holdfast report '{tmp_path}/狐'"
    for streams, code in (("<&-", 2), (">&-", 2), ("2>&-", 2), ("<&- >&- 2>&-", 2), (">/dev/full", 2)):
        assert subprocess.run(["bash", "-c", f"{words} {streams}"], capture_output=True).returncode == code, streams
    plain = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(["bash", "-c", words], capture_output=True, env=plain)
    assert (done.returncode, done.stderr.count(rb"\u72d0")) == (2, 1)
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m holdfast --help >/dev/full"], capture_output=True)
    assert done.returncode == 1 and b"The disk is full" in done.stderr
