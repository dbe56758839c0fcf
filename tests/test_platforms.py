"""Where holdfast runs: Windows is refused in a sentence, a Mac has all but the sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.errors import ConfigError

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("before", "code"),
    [
        ("sys.platform = 'win32'", "from holdfast.cli.main import main; sys.exit(main(['train', '--help']))"),
        ("sys.modules['fcntl'] = None", "from holdfast.cli.main import main; sys.exit(main(['--version']))"),
        ("sys.platform = 'win32'", "import holdfast; holdfast.train"),
    ],
)
def test_windows_is_refused_in_a_sentence(before: str, code: str, tmp_path: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); {before}; {code}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert "holdfast runs on Linux and macOS, got" in done.stderr and "WSL 2" in done.stderr
    assert "No module named" not in done.stderr
    assert done.returncode == (2 if "main" in code else 1)


def test_on_a_mac_all_but_the_sandbox_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As far as it can be played here: without what only Linux has."""
    from holdfast.errors import check_platform
    from holdfast.evaluation.code import sandbox

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    for name in ("sched_getaffinity", "memfd_create", "pidfd_open"):
        monkeypatch.delattr(os, name, raising=False)
    sandbox._probed.cache_clear()
    try:
        check_platform()
        with pytest.raises(ConfigError, match=r"runs only in a sandbox.*Expected Linux .* got Darwin"):
            sandbox.require_sandbox()
    finally:
        monkeypatch.undo()
        sandbox._probed.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    for name in ("sched_getaffinity", "memfd_create", "pidfd_open"):
        monkeypatch.delattr(os, name, raising=False)
    out = tmp_path / "merged"
    assert main(["merge", str(model_folder), str(model_folder), "--output_dir", str(out)]) == 0, capsys.readouterr().err
