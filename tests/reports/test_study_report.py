"""The page of a trade-off study: what it says at every stage of one, and what its plots show."""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synthetic_studies import (
    START,
    compared,
    finished_frontier,
    frontier,
    large,
    nothing_finished,
    objective,
    one_seed,
    points_study,
    record,
    trial,
)

from holdfast.records.comparison import Comparison
from holdfast.records.study import SeedRun, StudyRecord
from holdfast.reports import markdown
from holdfast.reports.charts import plotly_figure
from holdfast.reports.html import _plotly_packed, render
from holdfast.reports.methods import kind_title
from holdfast.reports.study_charts import (
    Frame,
    along_line,
    frontier_chart,
    label_box,
    overlap,
    parameter_charts,
    place_names,
    point_name,
    time_chart,
    varied_numbers,
)
from holdfast.reports.study_figures import (
    gain_text,
    long_name,
    read_trials,
    share_interval_text,
    share_text,
    study_curves,
    tone,
    typographic,
)
from holdfast.reports.study_report import study_page, study_tiles, write_study_report
from holdfast.statistics.gains import mean_gain
from holdfast.statistics.pareto import pareto
from holdfast.statistics.selection import select, select_all

COMMAND = "holdfast train --config chosen.yaml"
YAML = "learning_rate: 1.0e-4\nretention:\n  - label_annealing: {weight: 30.0}\n"


def page(study: StudyRecord, here: Path = Path("nowhere"), **more: Any):
    return study_page(study, here, selections=select_all(study), **{"command": COMMAND, "config_yaml": YAML, **more})


def words(study: StudyRecord, **more: Any) -> str:
    """The page's text on one line."""
    text = re.sub(r"<br>|[\\*]|</?\w+>", " ", markdown.document(page(study, **more)))
    return re.sub(r"\s+", " ", text.replace("&amp;", "&"))


# ---------------------------------------------------------------------------------------------------------------- page


def test_the_page_says_what_was_chosen_and_holds_every_trial_rule_and_the_command():
    study = finished_frontier()
    own, *_ = rules = select_all(study)
    kept, avoided = (f"{share_text(s)} {share_interval_text(s)}" for s in (own.kept, own.avoided))
    assert page(study).lead == (
        f"The rule paper chooses {own.label} (trial {own.chosen}): it keeps {kept} of direct fine-tuning's gain on "
        f"answers and avoids {avoided} of its loss on mean of prose, code. It is the best of 19 trials on the same "
        f"data, so its figures are optimistic: on seeds that it did not choose by, the rule gains "
        f"{gain_text(own.rule_target)} on the target ({gain_text(own.target)} here) and {gain_text(own.rule_source)} "
        f"on the source ({gain_text(own.source)} here)."
    )
    text = words(study).replace("\u200b", "")
    parts = [*(f"trial {t.number} " for t in study.trials), *(typographic(s.reason[1:]) for s in rules), *study.notes]
    parts += ["pruned", "at half of seed 0 no better than the start", "the loss became NaN at step 12"]
    parts += ["trial 21 has it now", "On seeds it did not choose by", COMMAND, "- label_annealing: {weight: 30.0}"]
    assert [p for p in parts if p not in text] == []
    assert "still running" not in text


def test_the_page_says_by_what_was_chosen():
    """In one sentence; tiles, plots and table have the target's figures, the tile those of the rate that was chosen."""
    study = finished_frontier()
    slower = dataclasses.replace(
        study.trials[0], number=40, runs=[dataclasses.replace(r, comparisons=worse(r)) for r in study.trials[0].runs]
    )
    study = dataclasses.replace(study, trials=[*study.trials, slower], validation=objective("validation", "quiz"))
    sentence = (
        "Direct fine-tuning's rate and the trial are chosen by quiz (validation), which is in no figure of the target, "
        "answers. It is the best of 20 trials by quiz and the source, so its figures are optimistic"
    )
    assert study.direct is slower and sentence in page(study).lead
    assert words(study).count("are chosen by quiz") == 1 and "validation" not in words(finished_frontier())
    gains = [f.target for f in read_trials(study) if f.trial is slower]
    tile = next(t for t in study_tiles(study, read_trials(study), None) if "target gain" in str(t))
    assert gain_text(gains[0]) in str(tile)


def worse(run: SeedRun) -> list[Comparison]:
    """Half of what was gained on the target, twice that on what chooses."""
    scale = {"answers": 0.5, "quiz": 2.0}
    return [compared(c.name, scale.get(c.name, 1.0) * c.gain) for c in run.comparisons]


@pytest.mark.parametrize(
    ("study", "more", "there", "absent"),
    [
        (nothing_finished(), {}, ["so nothing can be chosen."], ["Train the chosen", "The rules side by side"]),
        (record([], status="running", finished=None), {}, ["No trial was begun yet."], []),
        (finished_frontier(), {"command": "", "config_yaml": ""}, [], ["Train the chosen trial"]),
        (finished_frontier(), {"config_yaml": ""}, ["Train the chosen trial"], []),
        (
            frontier(),
            {},
            ["The study is still running: 19 of 24 trials count so far.", "1 of 3 seeds", "1 seed so far"],
            [],
        ),
        (
            finished_frontier(status="failed"),
            {},
            ["The study ended with trials that failed: 19 of 22 trials count so far."],
            [],
        ),
        (
            finished_frontier(seeds=(4,)),
            {},
            [
                "cover samples only, because there is one seed",
                "No stability: the study has one seed",
                "It is the best of 19 trials on the same data, so its figures are optimistic; by how much, one seed",
            ],
            ["On seeds it did not choose by"],
        ),
        (
            points_study([[(0.4, 0.1), (0.42, 0.08)]], halves=0.01),
            {},
            ["(trial 0): it changes answers by +0.4"],
            ["Gain kept, trial", "the best of"],
        ),
        (
            one_seed([(-0.1, 0.1)]),
            {},
            ["The rule paper chooses none: no trial improves the target on the start"],
            [],
        ),
    ],
)
def test_what_there_is_and_what_there_is_not(study, more, there, absent):
    text = words(study, **more)
    assert [p for p in there if p not in text] + [p for p in absent if p in text] == []


def test_links_lead_to_the_runs_reports_that_are_there(tmp_path):
    study = finished_frontier()
    for folder in (tmp_path / "runs" / "0003" / "seed-1", tmp_path.parent / "outside"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.html").write_text("x")
    assert re.findall(r'<a href="([^"#]+)"', render(page(study, tmp_path))) == ["runs/0003/seed-1/report.html"]
    runs = [dataclasses.replace(r, folder="../outside") for r in study.trials[0].runs]
    away = dataclasses.replace(study, trials=[dataclasses.replace(study.trials[0], runs=runs), *study.trials[1:]])
    assert "outside" not in render(page(away, tmp_path))


def test_two_hundred_trials_stay_light(tmp_path):
    study = large()
    selections = select_all(study)
    packed = len(_plotly_packed())  # the same for all pages of a process
    begin = time.process_time()  # a machine that others use too must not fail it
    written = write_study_report(tmp_path / "report.html", study, selections=selections)
    assert time.process_time() - begin < 3
    assert written.stat().st_size - packed < 3_000_000
    assert (
        written.read_bytes() == write_study_report(tmp_path / "again.html", study, selections=selections).read_bytes()
    )


def test_what_sorts_a_column_is_the_figure_itself():
    study = finished_frontier()
    html = render(page(study))
    body = html[html.index('class="panel dense trials"') :]
    rows = re.findall(r"<tr.*?</tr>", body[body.index("<tbody>") : body.index("</tbody>")], re.S)
    for row, t in zip(rows, read_trials(study), strict=True):
        values = [float(v) for v in re.findall(r'<data value="([^"]+)"', row)]
        if t.whole:
            assert values[:2] == pytest.approx([t.target.value, t.source.value])
            assert values[-1] == pytest.approx(t.seconds)
        else:
            assert values == []


# --------------------------------------------------------------------------------------------------------------- plots


def drawn(study: StudyRecord, chosen=None, *, wide: bool = True):
    chart = frontier_chart(study, read_trials(study), (study.target, study.source), chosen, wide=wide)
    assert chart is not None
    return chart


def named(chart, name: str) -> list[dict[str, Any]]:
    return [d for d in plotly_figure(chart)["data"] if d.get("name") == name]


def test_points_stand_where_the_metric_is_and_the_arrow_points_to_better():
    chart = drawn(points_study([[(0.5, -0.3)], [(0.3, -0.1)]], direct=0))
    (direct,), (start,) = named(chart, "direct fine-tuning"), named(chart, "start")
    assert (*direct["x"], *direct["y"]) == pytest.approx((START["prose"] + 0.3, START["answers"] - 0.5))
    assert (start["x"], start["y"]) == ([START["prose"]], [START["answers"]])
    layout = plotly_figure(chart)["layout"]
    assert layout["annotations"][0]["ax"] > 0  # lower is better: to the lower left
    assert "lower is better" in layout["xaxis"]["title"]["text"]
    study = finished_frontier()
    up = frontier_chart(study, read_trials(study), study.pairs[2], None)
    assert plotly_figure(up)["layout"]["annotations"][0]["ax"] < 0


def test_bars_frontier_and_ring_are_those_of_the_record():
    study = finished_frontier()
    own = select(study, "knee")
    chart = drawn(study, own)
    (direct,), (front,), (ring,) = (named(chart, n) for n in ("direct fine-tuning", "Pareto frontier", "chosen (knee)"))
    gain = mean_gain(study.trials[0], study.source, seeds=study.seeds)
    assert direct["error_x"]["array"] == [pytest.approx(gain.half)]
    whole = [t for t in read_trials(study) if t.whole]
    order = pareto([*((t.source.value, t.target.value) for t in whole), (0.0, 0.0)])
    start = (whole[0].source.before, whole[0].target.before)
    expected = [(whole[i].source.after, whole[i].target.after) if i < len(whole) else start for i in order]
    assert list(zip(front["x"], front["y"], strict=True)) == [pytest.approx(e, rel=1e-5) for e in expected]
    assert (*ring["x"], *ring["y"]) == pytest.approx((own.source.after, own.target.after), rel=1e-5)
    assert named(drawn(study, select(one_seed([(-0.1, 0.1)]), "paper")), "chosen (paper)") == []


def test_curves_join_one_method_in_the_order_of_its_strength():
    study = finished_frontier()
    shuffled = dataclasses.replace(study, trials=study.trials[::-1])
    curves = {c.name: c for c in study_curves([t for t in read_trials(shuffled) if t.whole])}
    annealing = [f"label annealing, temperature {t}" for t in (1, 2)]
    assert set(curves) == {"direct fine-tuning", *annealing, "L2", "replay", "SFA"}
    one = curves[annealing[0]]
    assert [one.short(t.trial) for t in one.members] == ["0.1", "0.3", "1", "3", "10", "30"]
    assert one.joined and not curves["SFA"].joined
    rates = study_curves([t for t in read_trials(large()) if t.whole])
    assert not any(c.joined for c in rates)  # every rate is another: no curves


def test_names_beside_points_cover_neither_points_nor_each_other():
    trials = [t for t in read_trials(finished_frontier()) if t.whole]
    gains = {t.trial.number: (t.source, t.target) for t in trials}
    start = (trials[0].source.before, trials[0].target.before)
    frame = Frame.around(start, gains, set(gains), wide=True)
    curves = study_curves(trials)
    texts = {t.trial.number: point_name(c, t) for c in curves for t in c.members} | {"start": "start"}
    found = place_names(curves, gains, start, frame, 12, many=False)
    assert len(found) >= 15
    assert {"start", 0, 12} <= set(found)
    places = {n: frame.place(s.after, g.after) for n, (s, g) in gains.items()} | {"start": frame.place(*start)}
    labels = {k: label_box(*places[k], texts[k], side, ring=k == 12) for k, side in found.items()}
    assert all(box[0] >= 0 and box[2] <= frame.pixels[0] for box in labels.values())
    points = {k: (x - 7, y - 7, x + 7, y + 7) for k, (x, y) in places.items()}
    for key, box in labels.items():
        assert not any(overlap(box, other) for k, other in labels.items() if k != key)
        assert not any(overlap(box, other) for k, other in points.items() if k != key)


@pytest.mark.parametrize(
    ("ends", "kept_off"), [(((0.2, 0.2), (0.8, 0.8)), "top right"), (((0.2, 0.8), (0.8, 0.2)), "top left")]
)
def test_names_keep_off_the_curves_where_there_is_another_place(ends, kept_off):
    """A curve through two points; the name of one of them would lie on it where it is put by default."""
    members = [SimpleNamespace(trial=SimpleNamespace(number=n, label="t")) for n in range(2)]
    curve = SimpleNamespace(kind="l2", joined=True, members=members, short=lambda trial: "0.01")
    gains = {n: tuple(SimpleNamespace(after=v, interval_after=None) for v in ends[n]) for n in range(2)}
    frame = Frame(x=(0.0, 1.0), y=(0.0, 1.0), outside=[], pixels=(400.0, 300.0))
    found = place_names([curve], gains, (0.02, 0.5), frame, None, many=False)
    assert set(found) == {"start", 0, 1}
    places = [frame.place(*ends[n]) for n in range(2)]
    assert any(overlap(label_box(*p, "0.01", kept_off, ring=False), box) for p in places for box in along_line(places))
    for n in range(2):
        label = label_box(*places[n], "0.01", found[n], ring=False)
        assert not any(overlap(label, box) for box in along_line(places))


def test_what_lies_far_off_does_not_stretch_the_plot():
    chart = drawn(large())
    low, high = plotly_figure(chart)["layout"]["xaxis"]["range"]
    assert low < (START["prose"] + START["code"]) / 2 < high < 4
    assert "Outside the plot: trials 61, 122, 183." in chart.caption
    assert "61" in [row[1] for row in chart.table.rows]  # the table has it
    assert "Outside" not in drawn(finished_frontier()).caption
    assert parameter_charts(large(), read_trials(large()))[0][1].caption == "Outside the plot: trials 61, 122, 183."


def test_every_pair_has_its_plot_and_the_objectives_come_first():
    study = finished_frontier()

    def titles(of: StudyRecord) -> list[str]:
        return re.findall(r"<h3>([^<]+ against [^<]+)</h3>", render(page(of)))

    pairs = ["answers against prose", "answers against code", "quiz against arc_easy"]
    assert titles(study)[:4] == ["answers against mean of prose, code", *pairs]
    assert titles(dataclasses.replace(study, source=study.pairs[0][1]))[:3] == pairs  # no plot twice


def test_numbers_that_vary_have_panels_on_a_fitting_axis():
    study = finished_frontier()
    trials = read_trials(study)
    assert varied_numbers(trials) == ["retention.label_annealing.weight", "retention.l2.coefficient"]
    target, source = parameter_charts(study, trials)[0]
    assert target.title == "Target against label annealing: weight"
    assert plotly_figure(target)["layout"]["xaxis"]["type"] == "log"
    assert plotly_figure(source)["layout"]["xaxis"]["ticktext"] == ["0.1", "0.3", "1", "3", "10", "30"]

    def charts_of(values):
        varied = [dataclasses.replace(t, params={"k": values[t.number % 3]}) for t in study.trials]
        return parameter_charts(study, read_trials(dataclasses.replace(study, trials=varied)))

    for values in ([1, 2, 5], [0, 2, 50]):  # five times, and from zero: linear
        assert "type" not in plotly_figure(charts_of(values)[0][0])["layout"]["xaxis"]
    assert charts_of(["a", "b", True]) == []


def test_trials_over_time_have_a_lane_a_worker():
    study = frontier()
    chart = time_chart(study)
    bars = {d["name"]: d for d in plotly_figure(chart)["data"]}
    assert {y for d in bars.values() for y in d["y"]} == {"alpha:4100", "beta:4101"}
    assert bars["complete"]["base"][:3] == [0.0, 0.0, 7.0]
    assert bars["complete"]["x"][:3] == [6.0, 6.0, 6.0]
    assert all(x > 0 for d in bars.values() for x in d["x"])
    assert "bookkeeping" in chart.caption
    assert time_chart(nothing_finished()) is None
    for started in (None, "yesterday"):
        unknown = [dataclasses.replace(t, started=started) for t in study.trials]
        assert time_chart(dataclasses.replace(study, trials=unknown)) is None


def test_the_choice_of_a_method_is_no_parameter():
    study = finished_frontier()
    more = [
        dataclasses.replace(t, params=({"method": t.kind} if t.kind != "direct" else {}) | t.params)
        for t in study.trials
    ]
    named_too = dataclasses.replace(study, trials=more)
    assert "method label_annealing" not in words(named_too)
    one, two = ({c.name for c in study_curves([t for t in read_trials(s) if t.whole])} for s in (named_too, study))
    assert one == two
    waiting = trial(30, "", "trial 30", {}, [], state="waiting", started=None, worker="")
    assert "trial 30" in words(dataclasses.replace(study, trials=[*study.trials, waiting]))  # before it has settings


def test_names_of_methods_and_figures_as_text():
    kinds = ["direct", "replay+label_annealing", "l2", "l2+dropback", "own_one"]
    found = [trial(0, kind, "", {}, [], titles={"dropback": "dropback to the start"}) for kind in kinds]
    titles = ["direct fine-tuning", "replay + label annealing", "L2", "L2 + dropback to the start", "own one"]
    assert [kind_title(t) for t in found] == titles
    assert long_name("retention.label_annealing.weight", []) == "label annealing: weight"
    assert long_name("dropback.rate", found) == "dropback to the start: rate"
    assert long_name("learning_rate", []) == "learning rate"
    assert typographic("gain -0.1 of 3-4, x-1 [-2]") == "gain −0.1 of 3-4, x-1 [-2]"
    assert share_text(None) == "n/a"
    study = finished_frontier()
    assert (tone(None), tone(mean_gain(study.trials[0], study.source))) == ("flat", "bad")
