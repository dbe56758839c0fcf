"""The page of an overtraining study says where longer pre-training turns to harm, what retention does, and what
diverged."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import DataError
from holdfast.papers.overtraining.page import (
    _rates_chart,
    _tuned_chart,
    overtraining_page,
    print_overtraining,
    summary,
)
from holdfast.papers.overtraining.record import (
    LeftOut,
    OvertrainingRecord,
    read_overtraining,
)
from holdfast.records.figure import Figure
from holdfast.reports.html import write_page
from recorded import overtraining


def test_the_lead_names_the_turning_point_and_what_retention_does() -> None:
    told = summary(overtraining())
    tuned = "reviews, direct at each budget's tuned learning rate: the score on keep data (web) is best at 2 B tokens"
    assert f"{tuned} [1 B, 2 B]" in told
    assert "pre-training up to the largest budget makes it worse by 0.4 nats/token" in told
    assert (
        "reviews, direct at a fixed learning rate: the score on keep data (web) has an inflection point at 0.0001 "
        "(best at 2 B tokens [1 B, 2 B])" in told
    )
    costs = "after 4 B tokens of pre-training it forgets 0.100 nats/token (direct: 1.200)"
    assert f"held: at each budget's tuned learning rate, its inflection point comes later and {costs}" in told
    record = overtraining()
    unknown = dataclasses.replace(
        record.shifts[0], verdict="cannot tell", growth=Figure(value=-0.8, over_samples=(-1.0, 0.1))
    )
    assert "held" not in summary(dataclasses.replace(record, shifts=[unknown])), "what cannot be told is no news"
    clear = dataclasses.replace(unknown, growth=Figure(value=-0.8, over_samples=(-1.0, -0.1)))
    assert "held" not in summary(dataclasses.replace(record, growth=[], shifts=[clear]))


def test_the_lead_says_so_where_a_way_learns_little() -> None:
    record = overtraining()
    key = record.leading("reviews", "learn").key  # type: ignore[union-attr]

    def with_gains(held: float) -> OvertrainingRecord:
        changed = [
            replace(m, costs={**m.costs, key: Figure(value=-held if m.arm == "held" else -0.4)}) for m in record.models
        ]
        return replace(record, models=changed)

    assert "held: at each budget's tuned learning rate, its inflection point" in summary(
        with_gains(0.3)
    ) and "but it learns" not in summary(with_gains(0.3))
    assert "; but it learns only 25 % of what direct learns on reviews" in summary(with_gains(0.1))
    assert "; but it learns only 0 % of what direct learns on reviews" in summary(with_gains(-0.1))


def test_the_lead_speaks_of_equal_rates_and_of_the_ladder() -> None:
    """What a way costs, not by how much its cost grows less: a cost that falls says nothing against one of a
    hundredth."""
    record = overtraining()
    [shift] = [s for s in record.shifts if s.rate is None and s.entry.startswith("keep/")]
    growths = [dataclasses.replace(g, rate=1e-5) for g in record.growth if g.rate is None]
    turns = [dataclasses.replace(t, rate=1e-5) for t in record.turns if t.rate is None]
    fixed = dataclasses.replace(
        record,
        shifts=[shift, dataclasses.replace(shift, rate=1e-5)],
        growth=[*record.growth, *growths],
        turns=[*record.turns, *turns],
    )
    told = summary(fixed)
    assert "held: at each budget's tuned learning rate, its inflection point comes later" in told
    assert (
        "; at learning rate 1e-05, its inflection point comes later and after 4 B tokens of pre-training it forgets"
        in told
    )
    left_out = [LeftOut(task="reviews", arm="direct", rate=1e-5)]
    assert "at learning rate" not in summary(dataclasses.replace(fixed, left_out=left_out))

    def of(parameters: int) -> str:
        checkpoints = [dataclasses.replace(c, parameters=parameters) for c in record.checkpoints]
        return summary(dataclasses.replace(record, checkpoints=checkpoints))

    assert (
        "The checkpoints were pre-trained on 100 to 400 tokens per parameter." in of(10**7)
        and "per parameter" not in told
    )
    assert "were pre-trained on 10 to 40 tokens per parameter; below 20, a model is undertrained" in of(10**8)


def test_what_diverged_is_named_and_not_drawn(tmp_path: Path) -> None:
    record = overtraining()
    held = record.arms[1]
    chart = _rates_chart(record, "reviews", held, record.scored["reviews"][0], cost=True)
    assert chart is not None and "Not drawn because fine-tuning diverged: 0.0001 at 4 B." in chart.caption
    assert all(math.isfinite(r["y"].value) for r in chart.rows) and len(chart.rows) == 5
    left_out = [LeftOut(task="reviews", arm=arm, rate=rate) for arm, rate in (("held", 1e-4), ("direct", 1e-5))]
    aside = dataclasses.replace(record, left_out=left_out)
    chart = _rates_chart(aside, "reviews", held, record.scored["reviews"][0], cost=True)
    assert chart is not None and "Learning rates left out because they exceed max_perplexity: 0.0001." in chart.caption
    assert {r["line"] for r in chart.rows} == {"1e-05"}
    assert read_overtraining(aside.write(tmp_path).parent) == aside
    before = json.loads((tmp_path / "overtraining.json").read_text()) | {"left_out": [1e-4]}
    (tmp_path / "overtraining.json").write_text(json.dumps(before))
    with pytest.raises(DataError, match="left_out"):
        read_overtraining(tmp_path)


def test_page_terminal_and_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = overtraining()
    assert read_overtraining(record.write(tmp_path).parent) == record
    page = write_page(overtraining_page(record), tmp_path / "report.html").read_text()
    assert "Cost of each change, by checkpoint" in page and "reviews: distance of the weights" in page
    assert "/secret/" not in page, "whose folder it was says nothing"
    assert overtraining_page(record).status == ("finished", "good")
    print_overtraining(record, tmp_path)
    told = capsys.readouterr().out
    assert "reviews at tuned learning rates" in told and "Note: a note" in told


def test_a_record_of_before_is_not_read_as_one_without_figures(tmp_path: Path) -> None:
    path = overtraining().write(tmp_path)
    path.write_text(path.read_text().replace('"scores"', '"figures"'))
    with pytest.raises(DataError, match=r"got 'figures' of an earlier version of holdfast\. Delete the file"):
        read_overtraining(tmp_path)


def test_scores_stand_beside_guessing() -> None:
    plain = overtraining()
    target = dataclasses.replace(plain.scored["reviews"][1], chance=0.4)
    scored = {"reviews": [plain.scored["reviews"][0], target, plain.scored["reviews"][2]]}
    record = dataclasses.replace(plain, scored=scored)
    chart = _tuned_chart(record, "reviews", target, "The task")
    assert chart is not None and [rule.y for rule in chart.rules] == [0.4] and "guessing, 0.4." in chart.caption
    held = _rates_chart(record, "reviews", record.arms[0], target, cost=True)
    assert held is not None and not held.rules, "what fine-tuning costs is not held against guessing"
