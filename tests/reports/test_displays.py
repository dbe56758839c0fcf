"""What results of Python calls read like in a console and in a notebook."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys

import pytest
from synthetic_runs import SOURCE_LOST, comparison, perplexity
from synthetic_studies import finished_frontier

import holdfast
from holdfast.records.evaluation import EvaluationFolder, EvaluationRecord
from holdfast.records.run import RunFolder
from holdfast.support import display
from holdfast.support.display import Displayed, fields_text
from tiny import build_model


@pytest.fixture(autouse=True)
def at_home() -> None:
    """As after any use of a public name."""
    holdfast.train  # noqa: B018


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, seed in (("base", 0), ("other", 3)):
        build_model(tie=False, seed=seed).save_pretrained(folder / name)
    return folder


def words_of(text: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text)))


def test_a_run_shows_its_figures_and_its_folder(make_run) -> None:
    folder = make_run()
    text = repr(folder)
    lines = text.splitlines()
    assert lines[0] == "Qwen2.5-0.5B on medical answers (finished)"
    assert "−0.412 [−0.439, −0.386]" in text
    assert "lost" in text
    assert f"Folder    {folder.path}" in lines
    assert len(lines) < 15
    assert all(len(line) <= 120 for line in lines[:8])
    shown = folder._repr_html_()
    assert "<table" in shown
    assert "−0.412 [−0.439, −0.386]" in words_of(shown)


def test_a_folder_without_a_run_says_so(tmp_path) -> None:
    assert repr(RunFolder(tmp_path)) == f"No run has begun in {tmp_path}."


def test_a_run_that_cannot_be_read_can_be_looked_at(tmp_path) -> None:
    (tmp_path / "run.json").write_text("{")
    assert repr(RunFolder(tmp_path)) == f"RunFolder(path={tmp_path!r})"
    assert RunFolder(tmp_path)._repr_html_() is None


def test_text_of_a_user_stays_text(make_run) -> None:
    folder = make_run(name="<img src=x>", comparisons=[comparison(name="<b>x</b>")])
    assert "<img" not in folder._repr_html_()
    assert "<b>x" not in folder._repr_html_()
    assert "<b>x</b>" in repr(folder)


def test_comparisons_and_evaluations_take_a_line_each(tmp_path) -> None:
    assert repr(comparison(**SOURCE_LOST)).startswith("source/prose nats_per_token: ")
    assert "+0.0863 [+0.0791, +0.0935], lost (p" in repr(comparison(**SOURCE_LOST))
    one = perplexity("source", "prose", 2.9, 20)
    assert repr(one) == "source/prose of m: nats_per_token 2.900 [2.850, 2.950], n 20"
    folder = EvaluationFolder(tmp_path)
    folder.write(one, [])
    assert repr(folder).splitlines()[0] == f"1 evaluation in {tmp_path}"
    assert "source/prose  nats_per_token" in repr(folder)


def test_an_evaluation_names_models_and_suites() -> None:
    record = EvaluationRecord(models=[{"label": "base", "name": "m", "parameters": 1234}], suites=["knowledge"])
    assert repr(record) == "Evaluation of 1 model (running); suites: knowledge\nbase      m · 1,234 parameters"


def test_a_study_and_a_choice_read_like_their_page() -> None:
    study = finished_frontier()
    assert repr(study).startswith(f"{study.name} (finished)\n")
    assert "The rule" in repr(study)
    chosen = holdfast.select_trial(study, "knee")
    assert f"Trial         {chosen.chosen}: {chosen.label}" in repr(chosen)
    assert "Gain kept" in repr(chosen)


def test_checkpoints_say_where_they_lie_and_how_far(checkpoints, tmp_path) -> None:
    base, other = (str(checkpoints / name) for name in ("base", "other"))
    made = holdfast.merge([base, other], tmp_path / "merged", method="linear")
    assert repr(made).startswith("merge: linear of ")
    assert f"Folder    {tmp_path / 'merged'}" in repr(made)
    assert "21 tensors" in repr(made)
    distance = repr(holdfast.checkpoint_distance(base, other))
    assert "of the norm, cosine" in distance
    assert "Most moved layer" in distance
    found = repr(holdfast.inspect_checkpoint(base))
    assert "Kind      model · LlamaForCausalLM" in found
    assert len(found.splitlines()) == 4


def test_a_training_configuration_shows_what_was_set(checkpoints, tmp_path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "a"}))
    config = holdfast.train_config(
        model_name_or_path=str(checkpoints / "base"),
        dataset_name=str(tmp_path / "train.jsonl"),
        output_dir=str(tmp_path / "run"),
        use_cpu=True,
        retention=[holdfast.LabelAnnealing(weight=0.3)],
    )
    lines = repr(config).splitlines()
    assert lines[0] == "Training configuration: label annealing (weight 0.3, beta 0.5)"
    assert len(lines) < 40
    assert any(line.split() == ["use_cpu", "yes"] for line in lines)
    assert "teacher_on_cpu" not in repr(config)


def test_importing_holdfast_and_a_record_stays_light() -> None:
    script = (
        "import sys, holdfast; holdfast.RunFolder; "
        "print([m for m in ('torch', 'rich', 'holdfast.reports.displays') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_without_the_layer_of_reports_the_fields_are_shown(monkeypatch) -> None:
    class Some(Displayed):
        def __init__(self) -> None:
            self.a, self._b = 1, 2

    monkeypatch.setattr(display, "_by", "")
    assert repr(Some()) == fields_text(Some()) == "Some(a=1)"
    assert Some()._repr_html_() is None
