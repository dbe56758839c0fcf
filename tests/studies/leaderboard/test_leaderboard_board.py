"""Leaderboards that are run, continued and added to; runs are stood in for (`ran`)."""

from __future__ import annotations

import copy
import dataclasses
import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from holdfast.cli.main import main
from holdfast.errors import ConfigError, RunFolderError
from holdfast.records.leaderboard import read_leaderboard
from holdfast.records.study import read_study
from holdfast.studies.leaderboard.board import ahead, run_leaderboard, time_left
from holdfast.studies.leaderboard.settings import leaderboard_config, load_leaderboard, with_default_grid
from holdfast.support.files import write_json

OWN = """\
from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.config.declare import Meta
from holdfast.retention.method import Passive, RetentionMethod


@dataclass(frozen=True, kw_only=True)
class Dropback(RetentionMethod):
    name: ClassVar[str] = "dropback"
    title: ClassVar[str] = "dropping back"
    strength: ClassVar[tuple[str, ...]] = ("rate",)
    place: ClassVar[str] = "weights"
    summary: ClassVar[str] = "takes some weights back"
    source: ClassVar[str] = "a test"
    old_data: ClassVar[str] = "a little"

    rate: Annotated[float, Meta(ge=0, le=1)] = 0.5
    \"\"\"Share.\"\"\"

    def start(self, anchors):
        return Passive()
"""


def run(values, **more):
    return run_leaderboard(leaderboard_config(values), console=Console(file=io.StringIO(), width=200), **more)


def test_every_method_is_run_on_every_track_at_every_rate(asked, ran):
    two = asked["tracks"]["one"]
    asked["tracks"] = {"code": {**two, "rates": [1e-3, 2e-3]}, "again": two}
    before = ahead(leaderboard_config(asked))
    assert [(t.track, t.status, t.ways, t.trials, t.runs, t.left) for t in before] == [
        ("code", "not begun", 2, 6, 18, 18),
        ("again", "not begun", 2, 3, 9, 9),
    ]
    assert time_left(before, 1) is None
    record = run(asked)
    assert len(ran) == 27 and len(set(ran)) == 18, "the rate of 'again' is among those of 'code'"
    assert {rate for _, _, rate, _ in ran[:18]} == {1e-3, 2e-3} and {rate for _, _, rate, _ in ran[18:]} == {2e-3}
    assert [t.status for t in record.tracks] == ["finished", "finished"]
    assert [s.way for s in record.standing] == ["L2", "direct fine-tuning"]
    ways = {r.way: r for r in record.tracks[0].rows}
    assert ways["L2"].trials == 4 and len(ways["L2"].curves) == 2
    assert ways["L2"].seconds_a_step == pytest.approx(2.05)
    out = Path(asked["output_dir"])
    assert read_leaderboard(out) == record
    assert "## Standing" in (out / "README.md").read_text() and (out / "report.html").is_file()
    assert (out / "code" / "report.html").is_file(), "a track is a study like any other"
    after = ahead(leaderboard_config(asked))
    assert [(t.status, t.left, t.seconds) for t in after] == [("finished", 0, 2.0), ("finished", 0, 2.0)]
    assert time_left(after, 2) == 0.0


def test_what_was_interrupted_goes_on_and_nothing_is_run_twice(asked, ran, monkeypatch):
    from holdfast.studies.tradeoff import trial as trials

    whole = trials.run_seed

    def stopping(*given, **rest):
        if len(ran) == 4:
            raise KeyboardInterrupt
        return whole(*given, **rest)

    with monkeypatch.context() as stopped:
        stopped.setattr(trials, "run_seed", stopping)
        with pytest.raises(BaseException, match="Interrupted"):
            run(asked)
    part = read_leaderboard(asked["output_dir"])
    assert [(t.status, t.runs) for t in part.tracks] == [("interrupted", 4)]
    assert "2 of 2 trials are still to come." in part.tracks[0].rows[-1].notes
    left = ahead(leaderboard_config(asked))
    assert [t.left for t in left] == [5] and left[0].seconds == 2.0
    record = run(asked)
    assert len(ran) == 9 and [t.status for t in record.tracks] == ["finished"]
    assert run(asked).standing == record.standing and len(ran) == 9


def test_a_row_is_added_and_only_its_trials_are_computed(asked, ran, tmp_path, monkeypatch):
    """Behind grids that grew, too; and it stays when the leaderboard's own file is run again."""
    monkeypatch.chdir(tmp_path)
    Path("my_method.py").write_text(OWN)
    asked |= {"extend": 1, "output_dir": "board"}
    Path("board.yaml").write_text(yaml.safe_dump(asked))
    record = run(asked)
    trials = read_study("board/one").trials
    assert [t.way for t in trials].count("L2") == 3, "it grew by one at its strong end"
    done, place = len(ran), ["--output_dir", "board", "--workers", "1"]
    assert main(["leaderboard", "add", "my_method.py:Dropback:rate=[0.1,0.9]", *place]) == 0
    assert {kind for kind, *_ in ran[done:]} == {"dropback"}
    added = read_leaderboard("board")
    row = next(r for r in added.tracks[0].rows if r.way == "dropping back")
    assert row.old_data == "a little" and len(row.levels) == 3 and row.trials >= 2
    kept = [t for t in read_study("board/one").trials if t.kind != "dropback"]
    assert [(t.number, t.label) for t in kept] == [(t.number, t.label) for t in trials]
    old = next(r for r in record.tracks[0].rows if r.way == "L2")
    assert next(r for r in added.tracks[0].rows if r.way == "L2").levels == old.levels
    again = len(ran)
    assert main(["leaderboard", "run", "--config", "board.yaml"]) == 0
    assert len(ran) == again and "dropping back" in {s.way for s in read_leaderboard("board").standing}
    assert main(["leaderboard", "show", "board", "--json"]) == 0 and main(["leaderboard", "status", "board"]) == 0
    assert main(["report", "board"]) == 0


def test_added_without_values_it_tries_three(asked, ran, capsys):
    run(asked)
    done = len(ran)
    words = ["--output_dir", asked["output_dir"], "--label", "slow", "--learning_rate", "5e-4", "--workers", "1"]
    assert main(["leaderboard", "add", "ema", *words]) == 0
    assert sorted({(pull, rate) for _, pull, rate, _ in ran[done:]}) == [
        (0.990089, 5e-4),
        (0.999, 5e-4),
        (0.9999, 5e-4),
    ]
    assert len(ran) - done == 9
    assert "EMA (slow)" in capsys.readouterr().out.replace("\n", " ")


def test_a_default_grid_is_around_the_methods_own():
    assert with_default_grid({"label_annealing": {"temperature": 2}})["label_annealing"]["weight"] == [0.1, 1.0, 10.0]
    assert with_default_grid("wise_ft") == {"wise_ft": {"alpha": [0.0909091, 0.5, 0.909091]}}
    assert with_default_grid("asft") == {"asft": {"weight": [0.01, 0.1, 1.0]}}
    given = {"l2": {"coefficient": [0.1, 0.2]}}
    assert with_default_grid(given) == given


def test_rows_are_not_changed_or_taken_back(asked, ran):
    run(asked)
    more = {"ema": {"decay": [0.9, 0.99]}}
    for changed in ([more], [{"l2": {"coefficient": [0.1, 3.0]}}, more]):
        with pytest.raises(ConfigError, match="added, not changed or taken back"):
            leaderboard_config({**asked, "methods": changed})
    turned = leaderboard_config({**asked, "methods": [more, *asked["methods"]]})
    names = [a.name for a in turned.tracks[0].study.space.alternatives]
    assert names == ["direct", "l2", "ema"], "what is there keeps its place"


def test_a_finished_study_is_a_track_that_is_read(asked, ran, tmp_path):
    run(asked)
    done = len(ran)
    other = {
        **asked,
        "name": "second",
        "tracks": {"before": {"record": str(Path(asked["output_dir"]) / "one")}},
        "output_dir": str(tmp_path / "second"),
    }
    record = run(other)
    assert len(ran) == done and record.tracks[0].ranked
    first = read_leaderboard(asked["output_dir"]).tracks[0]
    assert [(r.way, r.levels) for r in record.tracks[0].rows] == [(r.way, r.levels) for r in first.rows]


def test_a_record_is_read_from_the_file_that_is_named(asked, ran, tmp_path):
    run(asked)
    study = read_study(Path(asked["output_dir"]) / "one")
    before = write_json(tmp_path / "before.json", study)
    write_json(tmp_path / "study.json", dataclasses.replace(study, trials=study.trials[:1]))
    other = {**asked, "tracks": {"before": {"record": str(before)}}, "output_dir": str(tmp_path / "second")}
    assert len(run(other).tracks[0].rows) == 2


def test_what_is_left_is_what_is_asked_for_and_not_there(asked, ran):
    """Beside values that a grid has grown by, and a trial that failed and was tried again."""
    asked |= {"extend": 1}
    run(asked)
    (track,) = ahead(leaderboard_config(asked))
    assert (track.status, track.runs, track.done, track.left) == ("finished", 12, 12, 0)
    more = leaderboard_config({**asked, "methods": [*asked["methods"], {"ema": {"decay": [0.9, 0.99]}}]})
    (track,) = ahead(more)
    assert (track.status, track.runs, track.done, track.left) == ("not finished", 18, 12, 6)
    file = Path(asked["output_dir"]) / "one" / "study.json"
    study = read_study(file.parent)
    failed = dataclasses.replace(
        study.trials[1], number=9, state="failed", continued_by=1, runs=study.trials[1].runs[:2]
    )
    write_json(file, dataclasses.replace(study, trials=[*study.trials, failed]))
    (track,) = ahead(leaderboard_config(asked))
    assert (track.status, track.runs, track.done, track.left, track.failed) == ("finished", 12, 12, 0, 0)


def test_a_study_in_another_database_is_not_begun_anew(asked, ran, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run({**asked, "storage": f"sqlite:///{tmp_path}/shared.db"})
    done = len(ran)
    words = ["leaderboard", "add", "ema", "--output_dir", asked["output_dir"]]
    with pytest.raises(ConfigError, match=r"--storage is missing: .* is a study of .*shared.db"):
        run(asked)
    assert main(words) == 2 and len(ran) == done
    assert main([*words, "--storage", f"sqlite:///{tmp_path}/shared.db"]) == 0
    assert {kind for kind, *_ in ran[done:]} == {"ema"}


def test_a_track_may_be_a_file_with_names_of_its_own(asked, tmp_path):
    track = {**asked["tracks"]["one"], "names": {"old": asked["tracks"]["one"]["train"]["dataset_name"]}}
    (tmp_path / "code.yaml").write_text(yaml.safe_dump(track))
    replay = {"replay": {"data": "${old}", "fraction": [0.1, 0.3]}}
    asked |= {"tracks": {"code": "code.yaml"}, "methods": [replay]}
    (tmp_path / "board.yaml").write_text(yaml.safe_dump(asked))
    config = load_leaderboard(tmp_path / "board.yaml")
    assert config.tracks[0].study.space.alternatives[1].retention[0]["replay"]["data"] == track["names"]["old"]
    track.pop("names")
    (tmp_path / "code.yaml").write_text(yaml.safe_dump(track))
    with pytest.raises(ConfigError, match=r"\$\{old\}, and tracks.code.names has no old"):
        load_leaderboard(tmp_path / "board.yaml")


def lacking(asked, side):
    asked["tracks"]["one"]["train"]["evaluation"].pop(side)


WRONG = {
    "no such method": (lambda a: a["methods"].append({"label_anealing": {}}), r"methods\[1\]: unknown method"),
    "a track without a source": (lambda a: lacking(a, "source"), r"tracks.one: objectives.source: is missing"),
    "a track without a target": (lambda a: lacking(a, "target"), r"tracks.one: objectives.target: is missing"),
    "one seed": (lambda a: a.update(seeds=[0]), "seeds: expected at least 3 different ones"),
    "a grid of one value": (
        lambda a: a["methods"].append({"ema": {"decay": 0.9}}),
        "EMA: expected at least two values",
    ),
    "equal names": (lambda a: a["tracks"].update(One=a["tracks"]["one"]), "one and One are one name"),
    "no tracks": (lambda a: a.update(tracks={}), "tracks: is missing"),
    "no methods": (lambda a: a.update(methods=[]), "methods: is missing"),
    "a key of the sweep": (lambda a: a["tracks"]["one"].update(vary={}), r"tracks.one.*vary"),
    "no record": (lambda a: a["tracks"].update(real={"record": "nowhere.json"}), "found no nowhere.json"),
    "two rows of a name": (
        lambda a: a["methods"].extend([[{"train": {"bf16": False}}, {"label": "x"}]] * 2),
        "x: two methods are called so",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_before_anything_runs(asked, name):
    change, said = WRONG[name]
    asked = copy.deepcopy(asked)
    change(asked)
    with pytest.raises(ConfigError, match=said):
        leaderboard_config(asked)
    assert not Path(asked["output_dir"]).exists()


def test_a_foreign_folder_is_not_touched(asked, ran):
    place = Path(asked["output_dir"])
    place.mkdir()
    (place / "mine.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty and holds no leaderboard"):
        run(asked)
    assert ran == [] and [p.name for p in place.iterdir()] == ["mine.txt"]
