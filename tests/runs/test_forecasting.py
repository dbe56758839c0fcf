"""`forecast: true`: early signs without a trace in the run, what a predictor makes of them, and what it refuses."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors.torch import load_file
from transformers import TrainerCallback

from holdfast.cli.main import main
from holdfast.errors import ConfigError, DataError, Interrupted
from holdfast.records.comparison import Comparison
from holdfast.records.forecast import EarlySigns, Expected, RunForecast, TextSigns, read_predictor
from holdfast.records.run import RunFolder, RunRecord
from holdfast.reports.forecast_report import forecast_lines
from holdfast.reports.methods import DIRECT
from holdfast.reports.run_report import print_run_summary, write_run_report
from holdfast.runs.config import train_config
from holdfast.runs.early_signs import ahead, look_at, rates_of, source_texts
from holdfast.runs.forecasting import fit_predictor, forecast, method_of, predictor_of
from holdfast.runs.run import train
from holdfast.support.files import write_json
from tiny import SENTENCES, build_model


@pytest.fixture
def asked(tmp_path: Path, model_folder: Path) -> dict[str, Any]:
    for name, texts in (("rows", SENTENCES[:3] * 8), ("kept", SENTENCES[3:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return {
        "model_name_or_path": str(model_folder),
        "dataset_name": str(tmp_path / "rows.jsonl"),
        "max_steps": 60,
        "per_device_train_batch_size": 2,
        "max_length": 64,
        "learning_rate": 3e-3,
        "warmup_steps": 4,
        "use_cpu": True,
        "save_steps": 2,
        "logging_steps": 10,
        "forecast": True,
        "evaluation": {"source": [str(tmp_path / "kept.jsonl")]},
        "output_dir": str(tmp_path / "run"),
    }


def run_of(settings: dict[str, Any], *callbacks: TrainerCallback) -> tuple[RunFolder, str]:
    shown = io.StringIO()
    return train(train_config(settings), console=Console(file=shown, width=200), callbacks=callbacks), shown.getvalue()


@pytest.mark.slow
def test_early_signs_leave_no_trace_in_the_run(asked: dict[str, Any], tmp_path: Path) -> None:
    run, shown = run_of(asked)
    plain, _ = run_of({**asked, "forecast": False, "output_dir": str(tmp_path / "plain")})
    for name, tensor in load_file(run.path / "model.safetensors").items():
        assert tensor.equal(load_file(plain.path / "model.safetensors")[name]), name
    losses = [[row["loss"] for row in one.metrics()] for one in (run, plain)]
    assert losses[0] == losses[1] and run.read().config_key == plain.read().config_key
    found = RunForecast.in_folder(run.path)
    assert found is not None and RunForecast.in_folder(plain.path) is None
    signs = found.signs
    assert (signs.step, signs.steps) == (4, 60) and signs.parameters == run.read().model["parameters"]
    assert signs.distance > 0 and signs.kl > 0 and 16 < signs.ahead <= 20
    [text] = signs.texts
    assert text.entry == "source/kept" and text.kl > 0 and text.noise > 0 and text.fisher > 0
    [silent] = found.expected  # what comes along knows models of a million parameters
    assert silent.loss is None and "parameters (fitted on 1,069,696 to 1,163,904)" in silent.why
    assert f"No forecast of kept: {silent.why}" in shown
    nothing = forecast(signs, run.evaluated("start").all(), None)
    assert nothing.expected == [] and "Nothing here reads them" in forecast_lines(nothing)[0]
    assert not (run.path / "start.forecast").exists()


def test_a_method_is_known_by_what_makes_it_strong() -> None:
    annealing = {"method": "label_annealing", "weight": 3.0, "teacher": "auto", "direction": "forward"}
    l2 = {"method": "l2", "coefficient": 0.1, "anchor": "start"}
    assert method_of(RunRecord(name="r")) == DIRECT
    assert method_of(RunRecord(name="r", retention=[annealing])) == "label annealing (weight 3)"
    both = RunRecord(name="r", retention=[annealing, l2], config={"use_peft": True})
    assert method_of(both) == "label annealing (weight 3) + L2 (coefficient 0.1) by an adapter"
    own = RunRecord(name="r", retention=[{"method": "mine.py:Mine", "title": "mine", "rate": 0.1}])
    assert method_of(own) == "mine (rate 0.1)"


class Stop(TrainerCallback):
    """Ends a run after a step."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            raise Interrupted("here")


@pytest.mark.slow
def test_a_run_that_is_continued_before_it_was_looked_at(asked: dict[str, Any], tmp_path: Path) -> None:
    whole, _ = run_of({**asked, "output_dir": str(tmp_path / "whole")})
    asked["save_steps"] = 1
    with pytest.raises(Interrupted):
        run_of(asked, Stop())
    assert (Path(asked["output_dir"]) / "start.forecast").is_file()
    run, _ = run_of(asked)
    assert RunForecast.in_folder(run.path) == RunForecast.in_folder(whole.path)


@pytest.mark.slow
def test_texts_that_changed_in_between_make_no_forecast(asked: dict[str, Any], tmp_path: Path) -> None:
    asked["save_steps"] = 1
    with pytest.raises(Interrupted):
        run_of(asked, Stop())
    (tmp_path / "kept.jsonl").write_text(json.dumps({"text": SENTENCES[0]}) + "\n")
    run, _ = run_of(asked)
    assert RunForecast.in_folder(run.path) is None
    assert "No forecast: the texts that are looked at have changed since the run began." in run.read().notes


def test_what_gets_better_is_said_with_an_interval_that_does() -> None:
    one = Expected(entry="source/kept", unit="nats/token", loss=-0.1, interval=(-0.3, 0.05))
    found = RunForecast(signs=signs_of(0.1), expected=[one], level=0.9, predictor="runs")
    assert forecast_lines(found)[0].endswith("kept 0.100 nats/token better [−0.050, 0.300] (90 % intervals)")


def test_an_adapter_is_looked_at_by_what_it_adds(asked: dict[str, Any]) -> None:
    adapter = {"use_peft": True, "lora_r": 4, "lora_target_modules": "all-linear"}
    run, _ = run_of({**asked, **adapter, "max_steps": 40, "learning_rate": 1e-2})
    found = RunForecast.in_folder(run.path)
    assert found is not None and 0 < found.signs.distance < 0.25 and found.signs.texts[0].kl > 0


def test_too_short_a_run_says_so(asked: dict[str, Any]) -> None:
    run, _ = run_of({**asked, "max_steps": 2})
    assert RunForecast.in_folder(run.path) is None
    assert any(
        note.startswith("No forecast: it is made once 5 % of the cumulative learning rate is spent")
        for note in run.read().notes
    )
    assert [look_at([1.0] * n) for n in (1, 2, 3, 40, 41, 1000)] == [0, 0, 2, 2, 3, 50]


def test_no_more_is_looked_at_than_the_context_holds(asked: dict[str, Any], tokenizer: Any) -> None:
    plan, model = train_config(asked).evaluation, build_model()
    whole = source_texts(plan, model, tokenizer)["source/kept"]
    model.config.max_position_embeddings = 16
    short = source_texts(plan, model, tokenizer)["source/kept"]
    assert [p.ids[:16] for p in whole] == [p.ids for p in short] and max(len(p.ids) for p in whole) > 16
    assert all(p.targets == list(range(p.targets[0], len(p.ids))) for p in short)


def test_rows_that_nothing_is_learnt_of_make_no_forecast(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runs.early_signs.trained_rows", lambda trainer: [])
    run, _ = run_of({**asked, "max_steps": 4})
    assert RunForecast.in_folder(run.path) is None
    assert "No forecast: the first training rows have no token that can be looked at." in run.read().notes


def test_the_learning_rate_ahead() -> None:
    class Schedule:
        lr_lambdas = (lambda step: min(1.0, step / 4),)

    rates = rates_of(Schedule(), 10)
    assert ahead(rates, 3) == pytest.approx((0 + 0.25 + 0.5 + 0.75 + 6) / 0.75)
    assert math.isinf(ahead(rates, 1)) and ahead(rates_of(None, 30), 3) == 10


@pytest.mark.parametrize("warmup", [0, 3, 10, 30])
@pytest.mark.parametrize("kind", ["linear", "cosine", "constant_with_warmup"])
def test_every_schedule_is_looked_at_after_as_much_of_its_learning(kind: str, warmup: int) -> None:
    """So that those of other schedules are not beyond what a fit has seen (the one that comes along: 16 to 20)."""
    import torch
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    rates = rates_of(get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=100), 100)
    at = look_at(rates)
    assert sum(rates[: at - 1]) < 0.05 * sum(rates) <= sum(rates[:at]) + 1e-9
    assert 15 < ahead(rates, at) < 20.001


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"evaluation": {"target": ["rows.jsonl"]}}, "forecast: expected held-out text of what is to be kept"),
        ({"evaluation": {"source": ["kept.jsonl"], "before": False}}, "forecast: expected evaluation.before: true"),
        ({"forecast_predictor": "none.json"}, "forecast_predictor: .*none.json"),
        ({"forecast": False, "forecast_predictor": "none.json"}, "forecast_predictor: nothing asks it"),
    ],
)
def test_what_cannot_be(
    asked: dict[str, Any], change: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        train_config({**asked, **change})


# -------------------------------------------------------------------------------------------------------------- fitting


def signs_of(drift: float, *, parameters: int = 1000, rate: float = 1.0, method: str = DIRECT) -> EarlySigns:
    text = TextSigns(entry="source/kept", loss=2.0, rise=drift, kl=drift, fisher=2 * drift, noise=0.01)
    return EarlySigns(
        step=3, steps=60, ahead=30 * rate, distance=drift, fall=3 * drift, kl=2 * drift, parameters=parameters,
        method=method, texts=[text],
    )  # fmt: skip


def made_run(
    folder: Path, drift: float, *, data: str, rate: float, status: str = "finished", retention: Any = ()
) -> None:
    """A run whose loss is ten times its early drift, and a point for each hundredth of it."""
    run, loss = RunFolder(folder), 10 * drift
    run.write(
        RunRecord(
            name=folder.name,
            status=status,
            config={"learning_rate": rate},
            model={"hash": "m"},
            data={"name": data, "hash": data},
            retention=list(retention),
        )
    )
    about = {"suite": "source", "n": 50, "p_value": 0.5, "test": "t", "before": 0.5}
    text = Comparison(
        name="kept", metric="nats", unit="nats/token", higher_is_better=False, after=0.5 + loss, difference=loss,
        interval=(loss - 0.1, loss + 0.1), **about,
    )  # fmt: skip
    share = Comparison(
        name="facts", metric="acc", unit="acc", higher_is_better=True, after=0.5 - loss / 10, difference=-loss / 10,
        interval=(-loss, loss), **about,
    )  # fmt: skip
    run.write_comparisons([text, share])
    write_json(folder / "forecast.json", RunForecast(signs=signs_of(drift), expected=[], level=0.9, predictor=""))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(40):
        drift = float(10 ** rng.uniform(-3, -0.6))
        made_run(tmp_path / "runs" / f"r{number}", drift, data="ab"[number % 2], rate=10.0 ** -(number % 4))
    made_run(tmp_path / "runs" / "unfinished", 0.01, data="a", rate=1.0, status="running")
    return tmp_path / "runs"


def test_a_predictor_is_fitted_tested_and_asked(
    runs: Path, asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # eight settings are too few groups: every run gets a rate of its own
    for number, folder in enumerate(sorted(runs.iterdir())):
        record = RunFolder(folder).read()
        record.config["learning_rate"] = (1 + number) / 1000
        RunFolder(folder).write(record)
    file = tmp_path / "predictor.json"
    assert main(["forecast", "fit", str(runs), "--output", str(file), "--about", "made-up runs"]) == 0
    printed = capsys.readouterr().out
    assert "learning rate" in printed and "1 runs are left out: they are not finished" in printed
    predictor = read_predictor(file)
    assert predictor.runs == 40 and {fit.unit for fit in predictor.fits} == {"nats/token", "points"}
    by_axis = {(h.axis, h.unit): h for h in predictor.held_out}
    assert set(by_axis) == {(a, u) for a in ("data", "learning rate") for u in ("nats/token", "points")}
    assert all(h.r2 > 0.9 for h in by_axis.values())
    assert "Predicted against actual" in file.with_suffix(".html").read_text()

    # on runs that it was not fitted on: two like them, one far beyond, one of another way
    annealed = [{"method": "label_annealing", "weight": 1.0}]
    for name, drift, methods in (
        ("near", 0.02, []),
        ("nearer", 0.01, []),
        ("far", 30.0, []),
        ("other", 0.02, annealed),
    ):
        made_run(tmp_path / "later" / name, drift, data="c", rate=0.5, retention=methods)
    page = tmp_path / "later.html"
    later = ["forecast", "test", str(tmp_path / "later"), "--predictor", str(file), "--output", str(page)]
    assert main([*later, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(h["axis"], h["unit"], h["rows"], h["refused"]) for h in found["held_out"]} == {
        ("runs", "nats/token", 2, 2), ("runs", "points", 2, 1)
    }  # fmt: skip
    assert all(h["coverage"] == 1 and h["error"] < 0.3 for h in found["held_out"])
    assert any("2 measures: it was fitted on no run with label annealing (weight 1)" in n for n in found["notes"])
    assert main(later) == 0
    assert "Runs that it was not fitted on, 90 % intervals" in capsys.readouterr().out
    assert "Runs tested on" in page.read_text()

    # runs of the fit are told wherever their folder lies, and are no test
    (tmp_path / "later" / "moved").mkdir()
    shutil.copytree(runs / "r7", tmp_path / "later" / "moved" / "r7")
    assert main([*later, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["held_out"] == found["held_out"] and again["fitted_on"] == predictor.fitted_on
    assert "1 run left out: the predictor was fitted on them." in again["notes"]
    assert main(["forecast", "test", str(runs), "--predictor", str(file)]) == 2
    assert "40 runs left out: the predictor was fitted on them." in capsys.readouterr().err
    nameless = write_json(tmp_path / "nameless.json", dataclasses.replace(predictor, fitted_on=[]))
    assert main(["forecast", "test", str(runs), "--predictor", str(nameless)]) == 0
    assert "Whether it was fitted on these runs cannot be told" in capsys.readouterr().out

    run, _ = run_of(asked)
    start = run.evaluated("start").all()
    expected = forecast(signs_of(0.05), start, predictor)
    [text] = expected.expected
    assert text.loss == pytest.approx(0.5, rel=0.15) and text.interval is not None
    assert text.interval[0] < 0.5 < text.interval[1]
    assert "at the end kept 0." in forecast_lines(expected)[0] and "worse [" in forecast_lines(expected)[0]
    tested = [t for t in predictor.held_out if t.axis == "data"]
    assert expected.elsewhere == min((t.coverage for t in tested), default=None)
    sure = dataclasses.replace(expected, elsewhere=0.68)
    assert "% intervals; on data unlike that of the fit they held 68 %)" in forecast_lines(sure)[0]
    [far] = forecast(signs_of(30.0), start, predictor).expected
    assert far.loss is None and "fitted on" in far.why
    [other] = forecast(signs_of(0.05, method="L2 (coefficient 1)"), start, predictor).expected
    assert other.loss is None and other.why == "it was fitted on no run with L2 (coefficient 1)"
    [large] = forecast(signs_of(0.05, parameters=10**9), start, predictor).expected
    assert large.why == "1,000,000,000 parameters (fitted on 1,000 to 1,000)"

    # a run of its own, told by the predictor: this one is of another size, and so it says
    told, shown = run_of({**asked, "forecast_predictor": str(file), "output_dir": str(tmp_path / "told")})
    assert "No forecast of kept:" in shown and "parameters (fitted on" in shown
    assert RunForecast.in_folder(told.path).signs.method == DIRECT  # type: ignore[union-attr]
    wide = dataclasses.replace(predictor, parameters=(1, 10**9))
    for fit in wide.fits:
        fit.low[:], fit.high[:] = [-99.0] * len(fit.low), [99.0] * len(fit.high)
    write_json(file, wide)
    told, shown = run_of({**asked, "forecast_predictor": str(file), "output_dir": str(tmp_path / "told-again")})
    assert "Forecast at step 4 of 60: at the end kept" in shown
    page = write_run_report(told).read_text()
    assert "Predicted loss at step 4" in page and "made-up runs" in page
    summary = io.StringIO()
    print_run_summary(told, Console(file=summary, width=200))
    assert "Forecast at step 4 of 60" in summary.getvalue()
    capsys.readouterr()
    assert main(["forecast", "show", str(told.path)]) == 0
    printed = capsys.readouterr().out
    assert "Forecast at step 4 of 60" in printed and "Actual" in printed
    assert main(["forecast", "show", str(run.path), "--predictor", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["expected"][0]["entry"] == "source/kept"


def test_the_predictor_that_comes_along() -> None:
    predictor = predictor_of(None)
    assert predictor is not None and predictor.runs == 120 and predictor.parameters == (1_069_696, 1_163_904)
    assert DIRECT in predictor.methods and "label annealing (weight 1, beta 0.5)" in predictor.methods
    tested = {(h.axis, h.unit): h for h in predictor.held_out}
    assert len(tested) == 8 and tested["model", "nats/token"].r2_scaled > 0.8
    assert tested["method", "nats/token"].r2_scaled < 0.2, "of a method that it does not know it knows nothing"


def test_too_few_runs_and_none(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"Nothing is forecast in nats/token\. Expected at least 12 runs that differ"):
        fit_predictor([runs])  # four rates and two kinds of data
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="Train them with forecast: true"):
        fit_predictor([tmp_path / "empty"])
    with pytest.raises(DataError, match="Expected a folder with runs"):
        fit_predictor([tmp_path / "missing"])
    assert main(["forecast", "fit"]) == 2 and "expected folders with runs" in capsys.readouterr().err
    assert main(["forecast", "fitt"]) == 2 and "fit" in capsys.readouterr().err
    assert main(["forecast", "show", str(tmp_path / "empty")]) == 2
    assert "Train it with forecast: true" in capsys.readouterr().err
