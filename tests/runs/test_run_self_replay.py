"""`self_replay` in a whole run: said before, stopped while samples are drawn, continued, and held to its rows."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from cases import rows
from rich.console import Console

from data_files import jsonl
from holdfast.errors import ConfigError, Interrupted, RunFolderError
from holdfast.records.run import RunFolder
from holdfast.retention.protocol import packing_problem
from holdfast.runs.config import train_config
from holdfast.runs.dry_run import look
from holdfast.runs.plan_text import drawn_before
from holdfast.runs.run import _Run, train
from holdfast.training.data_services import TrainerDataServices


@pytest.fixture
def settings(least: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    jsonl("train.jsonl", rows())
    return {
        **least,
        "max_steps": 4,
        "save_steps": 2,
        "max_length": 64,
        "retention": [{"self_replay": {"fraction": 0.3, "max_new_tokens": 16, "batch_size": 4}}],
    }


def run_of(settings: dict[str, Any]) -> tuple[RunFolder, str]:
    shown = io.StringIO()
    return train(train_config(settings), console=Console(file=shown, width=200)), shown.getvalue()


@pytest.mark.slow
def test_a_run_stopped_while_it_draws_goes_on_and_is_held_to_its_rows(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = TrainerDataServices.continued
    asked: list[int] = []

    def counted(self: Any, prompts: Any, *, seed: int, **how: Any) -> Any:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(seed)
        return draws(self, prompts, seed=seed, **how)

    with monkeypatch.context() as patch:
        patch.setattr(TrainerDataServices, "continued", counted)
        with pytest.raises(Interrupted, match="Run the same command to continue"):
            run_of(settings)
    with monkeypatch.context() as patch:
        patch.setattr(_Run, "save", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(Interrupted):
            run_of(settings)
    [mixed] = RunFolder("run").read().data["mixed"]
    assert mixed["drawn"] == mixed["kept"] + sum(mixed["dropped"].values()) and mixed["drawn"] > 8

    [file] = (tmp_path / "cache/self_replay").glob("*/samples.jsonl")
    kept = file.read_text()
    with monkeypatch.context() as patch:  # another device draws other samples
        patch.setattr(
            TrainerDataServices, "continued", lambda self, p, *, seed, **how: draws(self, p, seed=seed + 1, **how)
        )
        shutil.rmtree(file.parent)
        with pytest.raises(RunFolderError, match="samples differ from those with which the run"):
            run_of(settings)
    file.write_text(kept)
    run, shown = run_of(settings)
    assert run.read().status == "finished" and "found in the cache" in shown


def test_a_dry_run_says_what_has_to_be_written(settings: dict[str, Any]) -> None:
    config = train_config(settings)
    [line] = drawn_before(config, look(config))
    tokens = look(config).tokens * 0.3 / 0.7
    assert line.startswith(f"self_replay: about {tokens:,.0f} tokens of text from the initial model, unless cached")
    assert "passes of up to 4 samples; the time is shown after the first batch" in line
    assert not Path("run").exists()


@pytest.mark.parametrize("weighed", [True, False])
def test_rows_that_are_weighed_apart_are_not_cut_by_packing(settings: dict[str, Any], weighed: bool) -> None:
    """Known from the settings alone: found before a token is drawn."""
    annealing = {"label_annealing": {"weight": 1.0, **({"weight_generated": 3.0} if weighed else {})}}
    settings |= {"packing": True, "packing_strategy": "wrapped", "retention": [*settings["retention"], annealing]}
    if not weighed:
        assert train_config(settings).training.packing_strategy == "wrapped"
        return
    with pytest.raises(ConfigError, match=r"packing_strategy: expected bfd or bfd_split .* got wrapped"):
        train_config(settings)
    assert train_config({**settings, "packing_strategy": "bfd_split"}).training.packing
    assert train_config({k: v for k, v in settings.items() if k != "packing_strategy"}).training.packing
    with pytest.raises(ConfigError, match=r"cut_anywhere, which does not keep rows"):  # one that TRL may have some day
        raise ConfigError(packing_problem(train_config({**settings, "packing": False}).retention, "cut_anywhere"))
