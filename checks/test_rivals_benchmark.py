"""The benchmark of rivals at its quick size: their arms beside ours, what is absent, and no arm trained twice."""

from __future__ import annotations

import json
from typing import Any

from holdfast.records.run import RunFolder


def test_the_script_runs_rivals_beside_our_methods(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    bench = script("rivals")
    words = [
        "--quick",
        "--only",
        "osf + KL",
        "l2",
        "no such",
        "--folder",
        str(tmp_path / "runs"),
        "--save",
        str(tmp_path / "rivals.json"),
    ]
    absent = bench.Rival("no such arm", [{"no_such": {}}])
    monkeypatch.setattr(bench, "RIVALS", (*bench.RIVALS, absent))
    assert bench.main(words) == 0
    printed = capsys.readouterr().out
    saved = json.loads((tmp_path / "rivals.json").read_text())
    figures = {f["arm"]: f for f in saved["figures"]}
    assert list(figures) == ["direct", "l2", "osf + KL"]
    assert (
        saved["absent"] == {"no such arm": "no method no_such in this version"}
        and "left out: no method no_such" in printed
    )
    assert figures["direct"]["kept"] == figures["direct"]["lost"] == figures["direct"]["time_ratio"] == 1.0
    assert figures["osf + KL"]["trained"] != figures["direct"]["trained"]
    assert len({f["source_before"] for f in figures.values()}) == 1
    assert all(f["target_after"] < f["target_before"] for f in figures.values())
    assert f"{figures['l2']['target_after']:.3f}" in printed
    assert RunFolder(tmp_path / "runs" / "osf---KL.0").read().config["peft_method"] == "osf"
    assert str(tmp_path) not in json.dumps(saved)

    def unneeded(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("finished arms are not trained again")

    from holdfast.training import trainers

    monkeypatch.setattr(trainers.SFTRetentionTrainer, "train", unneeded)
    assert bench.main(words) == 0
    assert json.loads((tmp_path / "rivals.json").read_text())["figures"] == saved["figures"]
