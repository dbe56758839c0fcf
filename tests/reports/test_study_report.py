"""The page of a trade-off study: what it says at every stage of one, what its plots show, that it stays light and safe."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import re
import time
from pathlib import Path

import pytest
from synthetic_studies import (
    START,
    finished_frontier,
    frontier,
    large,
    measured_runs,
    nothing_finished,
    one_seed,
    points_study,
    record,
    trial,
)

from holdfast.reports.charts import plotly_figure
from holdfast.reports.html import _plotly_packed
from holdfast.reports.methods import kind_title
from holdfast.reports.study_charts import (
    _Box,
    _label_box,
    _names,
    _overlap,
    frontier_chart,
    parameter_charts,
    point_name,
    time_chart,
    varied_numbers,
)
from holdfast.reports.study_figures import (
    long_name,
    read_trials,
    share_interval_text,
    share_text,
    study_curves,
    tone,
    typographic,
)
from holdfast.reports.study_report import write_study_report
from holdfast.statistics.gains import mean_gain
from holdfast.statistics.pareto import pareto
from holdfast.statistics.selection import select, select_all
from holdfast.statistics.shares import Share

COMMAND = "holdfast train --config chosen.yaml"
YAML = "learning_rate: 1.0e-4\nretention:\n  - label_annealing: {weight: 30.0}\n"


def write(path: Path, study, **more) -> str:
    page = write_study_report(
        path / "report.html", study, selections=select_all(study), **{"command": COMMAND, "config_yaml": YAML, **more}
    )
    return page.read_text(encoding="utf-8")


def words(html: str) -> str:
    """The page's text without scripts, styles and tags."""
    html = re.sub(r"<(script|style).*?</\1>", " ", html, flags=re.S)
    text = re.sub(r"<[^>]+>", " ", html)
    for code, mark in (("&lt;", "<"), ("&gt;", ">"), ("&#x27;", "'"), ("&quot;", '"'), ("&amp;", "&")):
        text = text.replace(code, mark)
    return re.sub(r"\s+", " ", text)


def figures(html: str) -> list[dict]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', html, re.S)
    assert found is not None
    return json.loads(found[1])


# ---------------------------------------------------------------------------------------------------------------- page


def test_the_lead_says_what_was_chosen_and_what_it_keeps(tmp_path):
    study = finished_frontier()
    html, own = write(tmp_path, study), select_all(study)[0]
    lead = re.search(r'<p class="lead">(.*?)</p>', html, re.S)
    assert lead is not None
    assert own.kept is not None
    assert own.avoided is not None
    text = lead[1].replace("&#x27;", "'")
    assert text == (
        f"The rule paper chooses {own.label} (trial {own.chosen}): it keeps {share_text(own.kept)} {share_interval_text(own.kept)} of direct"
        f" fine-tuning's gain on answers and avoids {share_text(own.avoided)} {share_interval_text(own.avoided)} of its loss on mean of prose, code."
    )


def test_the_page_holds_every_trial_rule_and_the_command(tmp_path):
    study = finished_frontier()
    html = write(tmp_path, study)
    text = words(html)
    for t in study.trials:
        assert f"trial {t.number} " in text
    for word in (
        "pruned",
        "failed",
        "lost",
        "at half of seed 0 no better than the start",
        "the loss became NaN at step 12",
        "trial 21 has it now",
    ):
        assert word in text
    for s in select_all(study):
        assert s.label is not None
        assert typographic(s.reason[1:]) in text
        assert s.stability is not None
        assert "On seeds it did not choose by" in text
    assert f"<code>{COMMAND}</code>" in html
    assert "  - label_annealing: {weight: 30.0}" in html
    for note in study.notes:
        assert note in text
    assert "Numbers" in text
    assert "still running" not in text


def test_the_configuration_is_left_out_where_nothing_was_chosen_or_given(tmp_path):
    assert "Train the chosen trial" not in write(tmp_path, nothing_finished())
    assert "Train the chosen trial" not in write(tmp_path, finished_frontier(), command="", config_yaml="")
    assert "Train the chosen trial" in write(tmp_path, finished_frontier(), config_yaml="")


def test_a_running_study_says_so(tmp_path):
    text = words(write(tmp_path, frontier()))
    assert "The study is still running: 19 of 24 trials count so far." in text
    assert "1 of 3 seeds" in text
    assert "1 seed so far" in text
    failed = words(write(tmp_path, dataclasses.replace(finished_frontier(), status="failed")))
    assert "The study ended with trials that failed: 19 of 22 trials count so far." in failed


def test_nothing_finished(tmp_path):
    html = write(tmp_path, nothing_finished())
    assert "No trial is complete with all its seeds yet, so nothing can be chosen." in words(html)
    assert "The rules side by side" not in html
    assert 'id="figures"' not in html
    empty = words(write(tmp_path, record([], status="running", finished=None)))
    assert "No trial was begun yet." in empty


def test_one_seed(tmp_path):
    text = words(write(tmp_path, finished_frontier(seeds=(4,))))
    assert "cover samples alone, because there is one seed" in text
    assert "No stability: the study has one seed" in text
    assert "On seeds it did not choose by" not in text


def test_without_direct_there_are_gains_instead_of_shares(tmp_path):
    study = points_study([[(0.4, 0.1), (0.42, 0.08)]], halves=0.01)
    text = words(write(tmp_path, study))
    assert "(trial 0): it changes answers by +0.4" in text
    assert "Gain kept, trial" not in text
    chosen_none = words(write(tmp_path, one_seed([(-0.1, 0.1)])))
    assert "The rule paper chooses none: no trial improves the target on the start" in chosen_none


def test_names_of_the_user_s_cannot_become_markup(tmp_path):
    evil = '<script>alert(1)</script> & "q" %{x} $y$'
    runs = measured_runs(random.Random(0), (0, 1), 0.4, -0.1)
    trials = [
        trial(0, "direct", "direct", {}, measured_runs(random.Random(1), (0, 1), 0.5, -0.3)),
        trial(1, evil, evil, {evil: evil}, runs, worker=evil),
        trial(2, "l2", evil, {}, [], state="failed", reason=evil, worker=evil),
    ]
    html = write(tmp_path, record(trials, seeds=(0, 1), name=evil, notes=[evil]), command=evil, config_yaml=evil)
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 8
    shown = json.dumps(figures(html))
    assert "%{x}" not in shown
    assert "$y$" not in shown


def test_links_lead_to_the_runs_reports_that_are_there(tmp_path):
    study = finished_frontier()
    folder = tmp_path / "runs" / "0003" / "seed-1"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("x")
    html = write(tmp_path, study)
    assert re.findall(r'<a href="([^"#]+)"', html) == ["runs/0003/seed-1/report.html"]
    (tmp_path.parent / "outside").mkdir(exist_ok=True)
    (tmp_path.parent / "outside" / "report.html").write_text("x")
    runs = [dataclasses.replace(r, folder="../outside") for r in study.trials[0].runs]
    away = dataclasses.replace(study, trials=[dataclasses.replace(study.trials[0], runs=runs), *study.trials[1:]])
    assert "outside" not in write(tmp_path, away)


def test_two_hundred_trials_stay_light(tmp_path):
    study = large()
    selections = select_all(study)
    packed = len(_plotly_packed())  # the same for all pages of a process
    begin = time.process_time()  # a machine that others use too must not fail it
    page = write_study_report(tmp_path / "report.html", study, selections=selections)
    assert time.process_time() - begin < 3
    assert page.stat().st_size - packed < 3_000_000
    assert page.read_bytes() == write_study_report(tmp_path / "again.html", study, selections=selections).read_bytes()


def test_no_network_is_allowed_for_and_nothing_refers_to_one(tmp_path):
    html = write(tmp_path, finished_frontier())
    assert "default-src 'none'" in html.replace("&#x27;", "'")
    outside = re.sub(r'<script type="text/plain".*?</script>', "", html, flags=re.S)
    assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//[^\s"']+""", outside) == []


def test_what_sorts_a_column_is_the_figure_itself(tmp_path):
    study = finished_frontier()
    html = write(tmp_path, study)
    body = html[html.index('class="panel dense trials"') :]
    rows = re.findall(r"<tr.*?</tr>", body[body.index("<tbody>") : body.index("</tbody>")], re.S)
    for row, t in zip(rows, read_trials(study), strict=True):
        values = [float(v) for v in re.findall(r'<data value="([^"]+)"', row)]
        if t.whole:
            assert t.target is not None
            assert t.source is not None
            assert values[:2] == pytest.approx([t.target.value, t.source.value])
            assert values[-1] == pytest.approx(t.seconds)
        else:
            assert values == []


# --------------------------------------------------------------------------------------------------------------- plots


def drawn(study, chosen=None, *, wide=True):
    chart = frontier_chart(study, read_trials(study), (study.target, study.source), chosen, wide=wide)
    assert chart is not None
    return chart


def named(chart, name):
    return [d for d in plotly_figure(chart)["data"] if d.get("name") == name]


def test_points_stand_where_the_metric_is():
    study = points_study([[(0.5, -0.3)], [(0.3, -0.1)]], direct=0)
    chart = drawn(study)
    (direct,) = named(chart, "direct fine-tuning")
    assert (direct["x"], direct["y"]) == (
        [pytest.approx(START["prose"] + 0.3)],
        [pytest.approx(START["answers"] - 0.5)],
    )
    (start,) = named(chart, "start")
    assert (start["x"], start["y"]) == ([START["prose"]], [START["answers"]])
    assert (
        plotly_figure(chart)["layout"]["annotations"][0]["ax"] > 0
    )  # lower is better: the arrow points to the lower left
    assert "lower is better" in plotly_figure(chart)["layout"]["xaxis"]["title"]["text"]
    up = frontier_chart(finished_frontier(), read_trials(finished_frontier()), finished_frontier().pairs[2], None)
    assert up is not None
    assert plotly_figure(up)["layout"]["annotations"][0]["ax"] < 0


def test_bars_are_the_intervals_of_the_trials():
    study = finished_frontier()
    chart = drawn(study)
    (direct,) = named(chart, "direct fine-tuning")
    gain = mean_gain(study.trials[0], study.source, seeds=study.seeds)
    assert gain is not None
    assert direct["error_x"]["array"] == [pytest.approx(gain.half)]


def test_the_frontier_line_is_the_frontier():
    study = finished_frontier()
    (front,) = named(drawn(study), "Pareto frontier")
    whole = [t for t in read_trials(study) if t.whole]
    order = pareto([*((t.source.value, t.target.value) for t in whole), (0.0, 0.0)])
    start = (whole[0].source.before, whole[0].target.before)
    expected = [(whole[i].source.after, whole[i].target.after) if i < len(whole) else start for i in order]
    assert front["x"] == pytest.approx([x for x, _ in expected], rel=1e-5)
    assert front["y"] == pytest.approx([y for _, y in expected], rel=1e-5)


def test_the_ring_is_around_the_chosen_trial():
    study = finished_frontier()
    own = select(study, "knee")
    (ring,) = named(drawn(study, own), "chosen (knee)")
    assert own.source is not None
    assert own.target is not None
    assert (*ring["x"], *ring["y"]) == pytest.approx((own.source.after, own.target.after), rel=1e-5)
    assert named(drawn(study, select(one_seed([(-0.1, 0.1)]), "paper")), "chosen (paper)") == []


def test_curves_join_one_method_in_the_order_of_its_strength():
    study = finished_frontier()
    shuffled = dataclasses.replace(study, trials=study.trials[::-1])
    curves = {c.name: c for c in study_curves([t for t in read_trials(shuffled) if t.whole])}
    assert set(curves) == {
        "direct fine-tuning",
        "label annealing, temperature 1",
        "label annealing, temperature 2",
        "L2",
        "replay",
        "SFA",
    }
    one = curves["label annealing, temperature 1"]
    assert [one.short(t.trial) for t in one.members] == ["0.1", "0.3", "1", "3", "10", "30"]
    assert one.joined
    assert not curves["SFA"].joined
    assert not any(
        c.joined for c in study_curves([t for t in read_trials(large()) if t.whole])
    )  # every rate is another: no curves


def test_names_beside_points_cover_neither_points_nor_each_other():
    study = finished_frontier()
    trials = [t for t in read_trials(study) if t.whole]
    gains = {t.trial.number: (t.source, t.target) for t in trials}
    start = (trials[0].source.before, trials[0].target.before)
    box = _Box(start, gains, set(gains), wide=True)
    curves = study_curves(trials)
    texts = {t.trial.number: point_name(c, t) for c in curves for t in c.members}
    found = _names(curves, gains, start, box, 12, many=False)
    assert len(found) >= 15
    assert {"start", 0, 12} <= set(found)
    labels = {}
    for key, side in found.items():
        x, y = box.place(*(start if key == "start" else (gains[key][0].after, gains[key][1].after)))
        labels[key] = _label_box(
            x, y, len("start" if key == "start" else texts[key]) * 6.2 + 4, side, 10 if key == 12 else 5
        )
        assert labels[key][0] >= 0
        assert labels[key][2] <= box.pixels[0]
    keys = list(labels)
    assert not any(_overlap(labels[a], labels[b]) for i, a in enumerate(keys) for b in keys[:i])


def test_what_lies_far_off_does_not_stretch_the_plot():
    study = large()
    chart = drawn(study)
    low, high = plotly_figure(chart)["layout"]["xaxis"]["range"]
    assert high < 4
    assert "Outside the plot: trials 61, 122, 183." in chart.caption
    assert low < (START["prose"] + START["code"]) / 2 < high
    assert [row[1] for row in chart.table.rows if row[1] == "61"] == ["61"]  # the table has it
    assert "Outside" not in drawn(finished_frontier()).caption


def test_every_pair_has_its_plot_and_the_objectives_come_first(tmp_path):
    html = write(tmp_path, finished_frontier())
    titles = re.findall(r"<h3>([^<]+ against [^<]+)</h3>", html)
    assert titles[:4] == [
        "answers against mean of prose, code",
        "answers against prose",
        "answers against code",
        "quiz against arc_easy",
    ]
    alone = finished_frontier()
    alone = dataclasses.replace(alone, source=alone.pairs[0][1])
    again = re.findall(r"<h3>([^<]+ against [^<]+)</h3>", write(tmp_path, alone))
    assert again[:3] == ["answers against prose", "answers against code", "quiz against arc_easy"]  # no plot twice


def test_numbers_that_vary_have_panels_on_a_fitting_axis():
    study = finished_frontier()
    trials = read_trials(study)
    assert varied_numbers(trials) == ["retention.label_annealing.weight", "retention.l2.coefficient"]
    charts = parameter_charts(study, trials)
    target, source = charts[0]
    assert target.title == "Target against label annealing: weight"
    assert plotly_figure(target)["layout"]["xaxis"]["type"] == "log"
    assert plotly_figure(source)["layout"]["xaxis"]["ticktext"] == ["0.1", "0.3", "1", "3", "10", "30"]
    few = dataclasses.replace(
        study, trials=[dataclasses.replace(t, params={"k": [1, 2, 5][t.number % 3]}) for t in study.trials]
    )
    assert (
        "type" not in plotly_figure(parameter_charts(few, read_trials(few))[0][0])["layout"]["xaxis"]
    )  # 5 times: linear
    zero = dataclasses.replace(
        study, trials=[dataclasses.replace(t, params={"k": [0, 2, 50][t.number % 3]}) for t in study.trials]
    )
    assert "type" not in plotly_figure(parameter_charts(zero, read_trials(zero))[0][0])["layout"]["xaxis"]
    words_only = dataclasses.replace(
        study, trials=[dataclasses.replace(t, params={"k": ["a", "b", True][t.number % 3]}) for t in study.trials]
    )
    assert parameter_charts(words_only, read_trials(words_only)) == []
    wild = parameter_charts(large(), read_trials(large()))[0][1]
    assert wild.caption == "Outside the plot: trials 61, 122, 183."


def test_trials_over_time_have_a_lane_a_worker():
    chart = time_chart(frontier())
    assert chart is not None
    bars = {d["name"]: d for d in plotly_figure(chart)["data"]}
    assert {y for d in bars.values() for y in d["y"]} == {"alpha:4100", "beta:4101"}
    assert bars["complete"]["base"][:3] == [0.0, 0.0, 7.0]
    assert bars["complete"]["x"][:3] == [6.0, 6.0, 6.0]
    assert all(x > 0 for d in bars.values() for x in d["x"])
    assert "bookkeeping" in chart.caption
    assert time_chart(nothing_finished()) is None
    assert (
        time_chart(
            dataclasses.replace(frontier(), trials=[dataclasses.replace(t, started=None) for t in frontier().trials])
        )
        is None
    )
    assert (
        time_chart(
            dataclasses.replace(
                frontier(), trials=[dataclasses.replace(t, started="yesterday") for t in frontier().trials]
            )
        )
        is None
    )


def test_the_choice_of_a_method_is_no_parameter(tmp_path):
    study = finished_frontier()
    more = [
        dataclasses.replace(t, params=({"method": t.kind} if t.kind != "direct" else {}) | t.params)
        for t in study.trials
    ]
    named_too = dataclasses.replace(study, trials=more)
    assert "method label_annealing" not in write(tmp_path, named_too)
    assert {c.name for c in study_curves([t for t in read_trials(named_too) if t.whole])} == {
        c.name for c in study_curves([t for t in read_trials(study) if t.whole])
    }
    waiting = dataclasses.replace(
        study, trials=[*study.trials, trial(30, "", "trial 30", {}, [], state="waiting", started=None, worker="")]
    )
    assert "trial 30" in words(write(tmp_path, waiting))  # a sampler's, before it has settings


# --------------------------------------------------------------------------------------------------------------- words


def test_words():
    assert kind_title("direct") == "direct fine-tuning"
    assert kind_title("replay+label_annealing") == "replay + label annealing"
    assert kind_title("l2") == "L2"
    assert long_name("retention.label_annealing.weight") == "label annealing: weight"
    assert long_name("learning_rate") == "learning rate"
    assert typographic("gain -0.1 of 3-4, x-1 [-2]") == "gain −0.1 of 3-4, x-1 [-2]"
    assert share_text(None) == "n/a"
    assert share_text(Share(value=0.912, interval=None, reason=None)) == "91.2 %"
    assert tone(None) == "flat"
    gain = mean_gain(finished_frontier().trials[0], finished_frontier().source)
    assert gain is not None
    assert tone(gain) == "bad"
    assert math.isfinite(gain.half)
