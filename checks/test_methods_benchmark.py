"""The benchmark of methods at a tiny size: every arm does the work it is timed for, and the checker names what falls
short.

No speed is judged here.
"""

from __future__ import annotations

import json

import pytest
import torch

from holdfast.retention.registry import METHODS

TINY = {"width": 64, "layers": 1, "vocabulary": 128}


@pytest.fixture
def bench(script, monkeypatch):
    module = script("methods")
    monkeypatch.setitem(module.SIZES, "quick", TINY)
    return module


@pytest.fixture
def place(bench, tmp_path, monkeypatch):
    """What arms share, in a folder of the test's own."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    return bench.Bench(tmp_path, TINY, "cpu", 16)


def test_every_method_has_an_arm_and_every_bar_an_owner(bench):
    names = {arm.name for arm in bench.ARMS}
    assert len(names) == len(bench.ARMS)
    assert {*bench.TIME_BARS, *bench.MEMORY_BARS} <= names
    measured = {name for arm in bench.ARMS for entry in arm.retention for name in entry}
    # a budget is its method's cost and an evaluation now and then; self_replay's rows are replay's, once they are
    # drawn, which benchmarks/self_replay.py measures
    assert set(METHODS) - {"budget", "self_replay"} <= measured


def arms_here(bench):
    return [arm for arm in bench.ARMS if bench.not_here(arm) is None]


def test_every_arm_trains_on_the_shared_model(bench, place):
    before = {n: p.detach().clone() for n, p in place.model.named_parameters()}
    for arm in arms_here(bench):
        contestant = bench.Contestant(place, arm)
        assert contestant.trainer.model is place.model and contestant.trainer.optimizer is place.optimizer
        held = {n: p.detach().clone() for n, p in place.model.named_parameters()}
        contestant.step()
        assert any(not torch.equal(p, held[n]) for n, p in place.model.named_parameters()), arm.name
        active = [type(m).__name__ for m in contestant.trainer.active]
        assert len(active) == (0 if arm.data else len(arm.retention)), arm.name
        if arm.rare:
            contestant.rare()
    assert any(not torch.equal(p, before[n]) for n, p in place.model.named_parameters())


@pytest.mark.parametrize("name", ["sfa, device", "sfa, disk", "sfa, folder", "wise_ft"])
def test_rare_work_is_the_average_and_no_step_does_it(bench, place, name):
    contestant = bench.Contestant(place, next(arm for arm in bench.ARMS if arm.name == name))
    (active,) = contestant.trainer.active
    contestant.step()
    assert active.count == 0
    start = {n: p.detach().clone() for n, p in place.model.named_parameters()}
    contestant.rare()
    assert active.count == 1
    assert any(not torch.equal(p, start[n]) for n, p in place.model.named_parameters())


@pytest.mark.parametrize("name", ["sfa, device", "wise_ft", "ema", "ema, every 10"])
def test_rare_steps_are_as_many_as_a_run_has(bench, place, name):
    """The rare work is what a run of RUN steps does, counted by running its hooks."""
    arm = next(arm for arm in bench.ARMS if arm.name == name)
    contestant = bench.Contestant(place, arm)
    (active,) = contestant.trainer.active
    if hasattr(active, "averages_at"):
        assert arm.rare == sum(active.averages_at(step, bench.RUN) for step in range(1, bench.RUN + 1))
    else:
        every = active.method.every
        assert arm.rare == (1 if every == 1 else bench.RUN // every)


@pytest.mark.parametrize("name", ["l2, device", "l2, disk", "l2, decoupled"])
def test_the_pull_is_at_work_in_the_timed_step(bench, place, name, monkeypatch):
    contestant = bench.Contestant(place, next(arm for arm in bench.ARMS if arm.name == name))
    (active,) = contestant.trainer.active
    seen = []
    original = type(active)._each
    monkeypatch.setattr(type(active), "_each", lambda self, named: seen.append(len(named)) or original(self, named))
    contestant.step()
    assert seen == [len(list(place.model.parameters()))]


def test_mixed_data_is_what_the_method_mixes(bench, place):
    replay = bench.Contestant(place, next(arm for arm in bench.ARMS if arm.name == "replay"))
    own = {tuple(row) for row in place.rows(64, seed=1)["input_ids"]}
    other = {tuple(row) for row in place.rows(64, seed=2)["input_ids"]}
    rows = [tuple(row) for batch in replay.batches for row in batch["input_ids"].tolist()]
    assert set(rows) <= own | other
    assert 0.05 < sum(row in other for row in rows) / len(rows) < 0.15


def made_up(bench, **changes):
    """Rows as `summarise` gives them, which reach every bar."""
    arms = list(bench.ARMS)
    times = {
        arm.name: bench.Times(steps=[1.0, 1.0, 1.0], own=[0.0, 0.0, 0.0], rare=[0.1] if arm.rare else [])
        for arm in arms
    }
    peaks = {arm.name: 1_000_000_000 for arm in arms}
    size = bench.SIZES["default"]
    for name, (steps, peak, *own) in changes.items():
        times[name].steps, peaks[name] = steps, peak
        times[name].own = own or times[name].own
    return bench.summarise(arms, times, peaks, size, bars=True)


def test_ratios_are_taken_within_a_round_and_rare_work_is_spread(bench):
    rows = {
        row["arm"]: row
        for row in made_up(bench, direct=([1.0, 2.0, 1.0], 10**9), **{"l2, disk": ([1.0, 2.2, 1.3], 2 * 10**9)})
    }
    assert (
        rows["l2, disk"]["ratio"] == pytest.approx(1.1)
        and rows["l2, disk"]["low"] == 1.0
        and rows["l2, disk"]["high"] == 1.3
    )
    assert rows["l2, disk"]["extra_mb"] == 1000.0
    size = bench.SIZES["default"]
    weights = 4 * sum(p.numel() for p in meta_model(bench, size).parameters())
    assert rows["l2, disk"]["extra_of_weights"] == pytest.approx(1e9 / weights, rel=0.01)
    assert rows["sfa, disk"]["seconds"] == pytest.approx(1.0 + 4 * 0.1 / bench.RUN)


def meta_model(bench, size):
    with torch.device("meta"):
        return bench.build(size, "meta")


def test_the_checker_passes_what_reaches_the_bars(bench):
    assert bench.falling_short(made_up(bench)) == []


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("sfa, disk", ([1.02] * 3, 10**9), "sfa, disk: 1.024 (1.024 to 1.024) of direct's time, the bar is 1.01"),
        ("l2, device", ([1.06] * 3, 10**9), "l2, device: 1.060 (1.060 to 1.060) of direct's time, the bar is 1.05"),
        ("replay", ([1.02] * 3, 10**9), "replay: 1.020 (1.020 to 1.020) of direct's time, the bar is 1.01"),
        (
            "ewc, disk",
            ([1.0] * 3, 10**9, 0.06, 0.06, 0.06),
            "ewc, disk: its own work takes 0.060 of direct's step, the bar is 0.05",
        ),
        (
            "sfa, folder",
            ([1.0] * 3, 11 * 10**8),
            "sfa, folder: 0.213 of the weights beyond direct's memory, the bar is 0.02",
        ),
    ],
)
def test_the_checker_names_what_falls_short(bench, name, change, said):
    assert bench.falling_short(made_up(bench, **{name: change})) == [said]


def test_noise_around_a_bar_is_not_a_shortfall(bench):
    """The interval of the median reaches below the bar, although the median is above it."""
    rows = made_up(bench, **{"l2, device": ([1.0, 1.06, 1.2], 10**9)})
    (row,) = [r for r in rows if r["arm"] == "l2, device"]
    assert row["ratio"] == 1.06 > row["time_bar"] >= row["low"] == 1.0
    assert bench.falling_short(rows) == []


@pytest.mark.slow
def test_the_script_prints_saves_and_checks(bench, monkeypatch, tmp_path, capsys):
    """Memory in processes of its own, which know the real quick size."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bench, "ARMS", (*bench.ARMS, bench.Arm("sfa, absent", [{"no_such": {}}])))
    words = [
        "--quick",
        "--rounds",
        "2",
        "--only",
        "sfa, disk",
        "l2, device",
        "sfa, absent",
        "--check",
        "--save",
        str(tmp_path / "methods.json"),
    ]
    assert bench.main(words) == 0
    printed = capsys.readouterr().out
    saved = json.loads((tmp_path / "methods.json").read_text())
    rows = {row["arm"]: row for row in saved["figures"]}
    assert list(rows) == ["direct", "sfa, disk", "l2, device"]
    assert (
        saved["absent"] == {"sfa, absent": "no method no_such in this version"}
        and "left out: no method no_such" in printed
    )
    assert (
        rows["direct"]["ratio"] == 1.0
        and rows["sfa, disk"]["rare_seconds"] > 0
        and rows["direct"]["rare_seconds"] is None
    )
    assert (
        rows["direct"]["peak_mb"] > 100
        and rows["sfa, disk"]["extra_mb"] is not None
        and rows["l2, device"]["peak_mb"] is None
    )
    assert all(row["time_bar"] is None for row in rows.values())  # the quick size has no bars


def test_a_process_that_fails_is_a_blank_not_a_crash(bench, capsys):
    assert bench.memory_of(bench.Arm("no such arm"), "quick", 1) is None
    assert "memory of no such arm: the process ended with" in capsys.readouterr().err
