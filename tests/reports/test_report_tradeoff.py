"""Arms against direct fine-tuning: shares, their intervals, the page and its links."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import pytest
from synthetic_runs import comparison

from holdfast.errors import DataError, UserError
from holdfast.records.run import RunFolder
from holdfast.reports.arms import Arm, read_tradeoff, share_interval, tradeoff_page, write_tradeoff_report
from holdfast.reports.format import number
from holdfast.reports.html import render
from holdfast.reports.run_report import write_run_report
from holdfast.reports.study_figures import covered, share_interval_text, share_text

NAMES = {"source": ("source", "prose"), "target": ("target", "answers")}


def annealing(weight: float) -> list[dict]:
    return [{"method": "label_annealing", "weight": weight}]


@pytest.fixture
def arms(make_arm) -> list[Arm]:
    """Direct, and label annealing in an order that is not that of its weights."""
    return [
        Arm("Direct", make_arm("direct", source=0.31, target=-0.52, retention=[]), "direct"),
        Arm("Annealing 1", make_arm("la1", source=0.055, target=-0.45, retention=annealing(1.0)), "label_annealing"),
        Arm("Annealing 0.1", make_arm("la01", source=0.2, target=-0.5, retention=annealing(0.1)), "label_annealing"),
        Arm("L2", make_arm("l2", source=0.16, target=-0.4, retention=[{"method": "l2", "coefficient": 0.01}]), "l2"),
    ]


def test_shares_are_the_ratios_of_the_recorded_gains(arms) -> None:
    figures = read_tradeoff(arms, **NAMES)
    direct = {c.suite: c for c in arms[0].folder.comparisons()}
    for arm, read in zip(arms[1:], figures.arms[1:], strict=True):
        own = {c.suite: c for c in arm.folder.comparisons()}
        assert read.kept.value == pytest.approx(own["target"].difference / direct["target"].difference)
        assert read.lost.value == pytest.approx(own["source"].difference / direct["source"].difference)
        for share in (read.kept, read.lost):
            assert share.interval is not None
            assert share.interval[0] < share.value < share.interval[1]
        kept, lost = (covered(share_text(s), share_interval_text(s)) for s in (read.kept, read.lost))
        expected = (
            f"{arm.label} kept {kept} of the target gain of direct fine-tuning while losing {lost} of what direct lost."
        )
        assert read.reading == expected
    assert figures.direct is not None
    assert figures.direct.kept.value is None
    assert figures.verdict.startswith("Direct fine-tuning: the target improved by 0.5")
    assert "The best balance: Annealing 1 kept" in figures.verdict
    assert figures.verdict.endswith("best of 3 arms on the same data, so its figures are optimistic.")
    alone = read_tradeoff(arms[:2], **NAMES).verdict
    assert "The best balance: Annealing 1 kept" in alone and "optimistic" not in alone


def test_a_gain_on_the_source_is_no_credit_for_the_target(make_arm) -> None:
    """The best balance is the share kept less the share lost; who lost nothing has lost 0, and not less."""
    arms = [
        Arm("Direct", make_arm("direct", source=0.31, target=-0.52, retention=[]), "direct"),
        Arm("Gains", make_arm("gains", source=-0.2, target=-0.3, retention=annealing(1.0)), "label_annealing"),
        Arm("Keeps", make_arm("keeps", source=0.01, target=-0.48, retention=annealing(0.1)), "label_annealing"),
    ]
    figures = read_tradeoff(arms, **NAMES)
    gains, keeps = figures.arms[1:]
    assert gains.lost.value is not None and gains.lost.value < 0
    assert gains.margin == gains.kept.value and keeps.margin == pytest.approx(keeps.kept.value - keeps.lost.value)
    assert figures.best is keeps and "The best balance: Keeps kept" in figures.verdict


def test_an_arm_that_is_not_finite_is_named_and_not_read(make_arm) -> None:
    """It is not the best balance, and its sentence speaks of no change."""
    arms = [
        Arm("Direct", make_arm("direct", source=0.31, target=-0.52, retention=[]), "direct"),
        Arm("Sound", make_arm("sound", source=0.2, target=-0.5, retention=annealing(0.1)), "label_annealing"),
        Arm("Broken", make_arm("broken", source=0.055, target=-0.45, retention=annealing(1.0)), "label_annealing"),
    ]
    folder = arms[2].folder
    first, second = folder.comparisons()
    nothing = {"after": math.nan, "difference": math.nan, "interval": (math.nan, math.nan)}
    folder.write_comparisons([dataclasses.replace(first, **nothing), second])
    figures = read_tradeoff(arms, **NAMES)
    assert figures.best is not None and figures.best.arm.label == "Sound"
    broken = figures.arms[2]
    assert broken.sides is None and broken.reading.startswith("Broken: only one side was compared")
    assert "Broken: source: prose is not finite (after is nan, the difference is nan)." in figures.notes
    folder = arms[0].folder
    folder.write_comparisons([dataclasses.replace(folder.comparisons()[0], **nothing), folder.comparisons()[1]])
    assert read_tradeoff(arms, **NAMES).direct is None, "nothing is read against it"


def test_the_share_interval_is_about_as_wide_as_the_spread(make_arm) -> None:
    """The width of the interval agrees with the spread of the share over fresh noise, within a factor of two."""
    import statistics

    shares, widths = [], []
    direct = Arm("d", make_arm("d", source=0.3, target=-0.5, retention=[], documents=60), "direct")
    theirs = direct.folder.comparisons()[1]
    for i in range(12):
        arm = Arm(
            f"a{i}",
            make_arm(f"a{i}", source=0.1, target=-0.4, retention=annealing(1.0), documents=60),
            "label_annealing",
        )
        ours = arm.folder.comparisons()[1]
        interval = share_interval(arm, direct, NAMES["target"], ours, theirs)
        assert interval is not None
        shares.append(ours.difference / theirs.difference)
        widths.append((interval[1] - interval[0]) / (2 * 1.96))
    spread = statistics.stdev(shares)  # only of the arm's noise; direct's noise is fixed here and widens the interval
    assert 0.5 < statistics.mean(widths) / (spread * 2**0.5) < 2.0


def test_no_interval_without_rows_or_with_rows_of_another_evaluation(arms) -> None:
    arm, direct = arms[1], arms[0]
    ours, theirs = arm.folder.comparisons()[1], direct.folder.comparisons()[1]
    assert share_interval(arm, direct, NAMES["target"], ours, theirs) is not None
    changed = comparison(before=ours.before + 0.5, after=ours.after + 0.5, n=200)
    assert share_interval(arm, direct, NAMES["target"], changed, theirs) is None
    next((arm.folder.evaluations / "result").glob("target.*.samples.jsonl")).unlink()
    assert share_interval(arm, direct, NAMES["target"], ours, theirs) is None
    kept = read_tradeoff(arms, **NAMES).arms[1].kept
    assert kept.value is not None and kept.interval is None


def test_no_interval_where_direct_may_not_have_changed_at_all(make_arm) -> None:
    direct = Arm("d", make_arm("d", source=0.001, target=-0.5, retention=[]), "direct")
    arm = Arm("a", make_arm("a", source=0.1, target=-0.4, retention=annealing(1.0)), "label_annealing")
    ours, theirs = arm.folder.comparisons()[0], direct.folder.comparisons()[0]
    assert share_interval(arm, direct, NAMES["source"], ours, theirs) is None


def pair(make_run, name: str, *, source: float, target: float, kind: str, retention: list[dict]) -> Arm:
    rows = [
        comparison(suite=suite, name=text, before=3.0, after=3.0 + d, difference=d, interval=(d - 0.02, d + 0.02))
        for suite, text, d in (("source", "prose", source), ("target", "answers", target))
    ]
    return Arm(name, make_run(name, comparisons=rows, retention=retention, name=name), kind)


def readings(*found: Arm) -> list[str]:
    return [f.reading for f in read_tradeoff(found, **NAMES).arms]


def test_a_share_of_nothing_is_not_given(make_run) -> None:
    direct = pair(make_run, "direct", source=-0.05, target=0.1, kind="direct", retention=[])
    other = pair(make_run, "other", source=0.1, target=-0.3, kind="label_annealing", retention=annealing(1.0))
    first, second = readings(direct, other)
    assert first == "direct: the target got worse by 0.100 nats/token; the source improved by 0.050 nats/token."
    assert "direct fine-tuning gained nothing on the target, so there is no gain to keep a share of" in second
    assert "the source got worse by 0.100 nats/token, where direct fine-tuning lost nothing" in second
    assert "%" not in second


def test_an_arm_that_lost_nothing_or_gained_nothing_reads_so(make_run) -> None:
    direct = pair(make_run, "direct", source=0.3, target=-0.5, kind="direct", retention=[])
    better = pair(make_run, "better", source=-0.05, target=-0.4, kind="label_annealing", retention=annealing(1.0))
    worse = pair(make_run, "worse", source=0.01, target=0.05, kind="label_annealing", retention=annealing(9.0))
    _, first, second = readings(direct, better, worse)
    assert first == (
        "better kept 80.0 % of the target gain of direct fine-tuning and lost nothing on the source, which "
        "improved by 0.050 nats/token."
    )
    assert second.startswith(
        "worse kept none of the target gain of direct fine-tuning: the target got worse by 0.050 nats/token"
    )
    assert second.endswith("while losing 3.3 % of what direct lost, a loss that is not shown.")


def test_unmeasured_and_differing_arms_are_noted(make_run) -> None:
    direct = pair(make_run, "direct", source=0.3, target=-0.5, kind="direct", retention=[])
    empty = Arm("empty", make_run("empty", comparisons=[], status="failed", stage="train"), "label_annealing")
    shifted = Arm(
        "shifted",
        make_run("shifted", comparisons=[comparison(suite="source", name="prose", before=9.0), comparison(before=9.0)]),
        "l2",
    )
    figures = read_tradeoff([direct, empty, shifted], **NAMES)
    assert [f.arm.label for f in figures.measured] == ["direct", "shifted"]
    assert "empty: neither side was compared with the start (the run is failed)" in figures.arms[1].reading
    notes = " ".join(figures.notes)
    assert "empty: the run is failed (stage: train)." in notes
    assert "do not start from the same figure" in notes


def test_another_metric_is_taken_only_with_a_note(make_run) -> None:
    direct = pair(make_run, "direct", source=0.3, target=-0.5, kind="direct", retention=[])
    figures = read_tradeoff([direct], **NAMES, metric="acc")
    assert figures.measured
    assert any("has no acc; its primary metric nats_per_token is shown" in n for n in figures.notes)


def test_nothing_to_compare_is_an_error(tmp_path) -> None:
    with pytest.raises(UserError, match="at least one arm"):
        read_tradeoff([], **NAMES)
    with pytest.raises(DataError, match=r"arm 'x'.*no run\.json"):
        read_tradeoff([Arm("x", RunFolder(tmp_path / "none"), "direct")], **NAMES)


def test_the_page_draws_the_records_and_links_relatively(arms, tmp_path) -> None:
    for arm in arms[:3]:
        write_run_report(arm.folder)
    path = write_tradeoff_report(
        tmp_path / "pages" / "trade <off>.html",
        arms,
        title="A & B",
        intro="One.\n\nTwo.",
        next_steps="Do:\n$ holdfast x <y>",
        **NAMES,
    )
    page = path.read_text()
    assert re.findall(r'href="([^"]+)"', page) == [
        "../direct/report.html",
        "../la1/report.html",
        "../la01/report.html",
    ]  # L2 has no report
    assert "<h1>A &amp; B</h1>" in page
    assert "<code>holdfast x &lt;y&gt;</code></pre>" in page
    found = re.search(r'id="figures">(.*?)</script>', page, re.S)
    assert found is not None
    traces = {d["name"]: d for d in json.loads(found[1])[0]["data"]}
    curve = traces["label annealing"]
    by_weight = [arms[2], arms[1]]  # 0.1, then 1
    assert curve["x"] == pytest.approx([a.folder.comparisons()[0].after for a in by_weight], rel=1e-5)
    assert curve["y"] == pytest.approx([a.folder.comparisons()[1].after for a in by_weight], rel=1e-5)
    assert curve["text"] == ["0.1", "1"]
    assert traces["start"]["x"] == pytest.approx([arms[0].folder.comparisons()[0].before], rel=1e-5)
    c = by_weight[0].folder.comparisons()[0]
    assert curve["error_x"]["array"][0] == pytest.approx(c.interval[1] - c.difference, rel=1e-3)
    for f in read_tradeoff(arms, **NAMES).arms:
        assert f.reading in page.replace("&#x27;", "'")
        assert f.source is not None
        assert number(f.source.raw.gain, f.source.digits, sign=True) in page


def test_a_start_arm_no_direct_arm_and_nothing_measured(make_run, tmp_path) -> None:
    start = Arm("Base model", make_run("base", comparisons=[]), "start")
    other = pair(make_run, "other", source=0.1, target=-0.3, kind="label_annealing", retention=annealing(1.0))
    page = render(tradeoff_page(read_tradeoff([start, other], **NAMES), tmp_path, title="t", intro="i"))
    assert "Base model: the starting model, before any training." in page
    assert "without direct fine-tuning among them" in page
    assert page.count(">3.0000<") >= 2  # the start's row shows both figures
    empty = read_tradeoff([Arm("a", make_run("a", comparisons=[]), "direct")], **NAMES)
    page = render(tradeoff_page(empty, tmp_path, title="t", intro="i"))
    assert "there is nothing to draw" in page
    assert "a: neither side was compared with the start" in page
