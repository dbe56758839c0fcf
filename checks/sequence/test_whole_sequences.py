"""Whole sequence studies: every arm in every figure, three tasks in a chain, workers and failures, a paper's claims."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from holdfast.errors import HoldfastError
from holdfast.papers.sfa.cases import Pair
from holdfast.records.sequence import read_sequence
from holdfast.studies.engine.session import execute_study
from holdfast.studies.sequence.plan import SequenceConfig
from holdfast.studies.sequence.study import SequenceStudy


def quiet():
    return Console(file=io.StringIO(), width=160)


def weights(folder) -> bytes:
    return (folder / "model.safetensors").read_bytes()


ARMS = [
    "single",
    "multitask",
    {"sfa": {"p": [1, 0.5]}},
    {"sfa": {"p": 1, "beta": [0, 1]}},
    {"replay": {"fraction": 0.3}},
    {"ewc": {"coefficient": 10.0, "samples": 4}},
    {"merge": {"method": "linear"}},
    {"merge": {"method": "fisher", "samples": 4}},
]


def test_every_arm_in_every_figure(asked, tmp_path):
    config = SequenceConfig.read(asked(arms=ARMS, keep_weights="all", seeds=[0, 1]))
    record = execute_study(SequenceStudy(config), console=(console := quiet()), workers=1)
    assert f"two: {len(config.jobs())} models, 1 worker" in console.file.getvalue(), "seeds are among the models"
    assert record.status == "finished" and [m.state for m in record.models] == ["complete"] * len(config.jobs())
    assert read_sequence(config.output_dir) == record
    assert (config.output_dir / "report.html").is_file()
    arms = {a.arm: a for a in record.arms}
    chain = {a.arm: [config.folder(n, 0) for n in a.models] for a in record.arms}
    sequential = arms["sequential fine-tuning"]

    # laws: beta 0 is sequential fine-tuning, beta 1 the model before, p = 1 their mean
    assert weights(chain["SFA, p 1, beta 0"][-1]) == weights(chain["sequential fine-tuning"][-1])
    assert weights(chain["SFA, p 1, beta 1"][-1]) == weights(chain["single task"][0])
    assert arms["SFA, p 1, beta 0"].distance == sequential.distance and arms["SFA, p 1, beta 1"].distance.value == 0
    assert arms["SFA, p 1"].distance.value == pytest.approx(sequential.distance.value / 2, rel=1e-5)

    # figures: scores of single tasks are their own models', differences are paired, losses count downwards
    single = arms["single task"]
    for seed in (0, 1):
        assert single.scores["rivers"].by_seed[seed] < record.tasks["rivers"].before
        for task in ("rivers", "letters"):
            better = sequential.scores[task].by_seed[seed] - arms["SFA, p 1"].scores[task].by_seed[seed]
            assert arms["SFA, p 1"].against[task].by_seed[seed] == pytest.approx(better, abs=1e-9)
    assert arms["SFA, p 1, beta 0"].against["rivers"].value == 0
    assert all(a.scores and not math.isnan(a.scores["rivers"].value) for a in record.arms)

    # the same samples: an arm that ends as another one goes along with it wholly, so that nothing tells them apart
    [rivers] = [known for known in record.correlations if known.entry[0] == "rivers"]
    assert rivers.trials == list(range(len(record.arms)))
    places = {a.arm: place for place, a in enumerate(record.arms)}
    same = [places["sequential fine-tuning"], places["SFA, p 1, beta 0"]]
    assert rivers.between(*same) == pytest.approx(1.0)
    pair = Pair(record, ["rivers", "letters"], "rivers")
    averaged, merged = (pair.against(arms[label], "rivers") for label in ("SFA, p 1", "SFA, p 1, beta 0"))
    assert (averaged - merged).samples_half == pytest.approx(averaged.samples_half, rel=0.3), (
        "bootstraps of few documents"
    )

    # the matrix: the start, then each stage; average and forgetting follow from it
    matrix = sequential.matrix
    assert [len(line) for line in matrix] == [2, 2, 2]
    assert matrix[0][0] == pytest.approx(-record.tasks["rivers"].before)
    assert matrix[2][0] == pytest.approx(-sequential.scores["rivers"].value)
    assert sequential.measures["average_accuracy"].value == pytest.approx(sum(matrix[2]) / 2)
    assert sequential.measures["backward_transfer"].value == pytest.approx(matrix[2][0] - matrix[1][0])
    assert arms["SFA, p 1, beta 1"].measures["backward_transfer"].value == 0
    assert not sequential.against and not sequential.measures_against
    assert not single.matrix and not arms["multitask training"].matrix

    # held-out losses on the way: start, middle and end of the second task
    models = {(m.name, m.seed): m for m in record.models}
    curve = models[sequential.models[-1], 0].curves["rivers"]
    assert [x for x, _ in curve] == [0.0, 0.5, 1.0]
    assert curve[0][1] == pytest.approx(-matrix_of(config, record, 0)[1][0])
    assert curve[-1][1] == pytest.approx(sequential.scores["rivers"].by_seed[0])


def matrix_of(config, record, seed):
    from holdfast.studies.sequence.outcome import _Figures

    figures = _Figures(record, config)
    arm = next(a for a in record.arms if a.kind == "sequential")
    return figures._matrix(arm)[seed].scores


def test_three_tasks_in_a_chain(asked):
    """EWC adds up its Fisher information, replay has both earlier tasks, and weights that nobody needs go."""
    from holdfast.records.run import RunFolder

    arms = [{"ewc": {"coefficient": 1.0, "samples": 4}}, {"replay": {"fraction": 0.4}}]
    arms += [
        {"label_annealing": {"weight": 1.0, "teacher": "online", "reference": model}} for model in ("start", "base")
    ]
    config = SequenceConfig.read(asked(names=("rivers", "letters", "music"), arms=arms, keep_weights="final", curve=0))
    record = execute_study(SequenceStudy(config), console=quiet(), workers=1)
    by_arm = {a.arm: [config.folder(n, 0) for n in a.models] for a in record.arms}
    ewc = RunFolder(by_arm["EWC, coefficient 1, samples 4"][2]).read().retention[0]
    assert ewc["fisher"] == str(by_arm["EWC, coefficient 1, samples 4"][1] / "fisher") and ewc["data"].endswith(
        "letters_train.jsonl"
    )
    replay = RunFolder(by_arm["replay, fraction 0.4"][2]).read().retention
    assert [(m["data"].rpartition("/")[2], m["fraction"]) for m in replay] == [
        ("rivers_train.jsonl", 0.2),
        ("letters_train.jsonl", 0.2),
    ]
    of_start, of_base = (RunFolder(folders[2]) for arm, folders in by_arm.items() if "label annealing" in arm)
    assert of_start.metrics()[0]["kl"] < 1e-6 < of_base.metrics()[0]["kl"], (
        "the base is not where the third task begins"
    )
    assert of_base.read().training["teacher"]["model"] == config.base
    for folders in by_arm.values():
        assert [(f / "model.safetensors").is_file() for f in folders] == [False, False, True]
    assert all(len(a.matrix) == 4 for a in record.arms) and not any(m.curves for m in record.models)


def test_ewc_has_all_fisher_information_where_it_goes_on_from_another_arm(asked):
    from holdfast.records.run import RunFolder

    arms = [{"ewc": {"coefficient": [1.0, 2.0], "samples": 4}}]
    names = ("rivers", "letters", "music")
    other = "EWC, samples 4, coefficient 2"
    config = SequenceConfig.read(asked(names=names, arms=arms, continue_from=other, curve=0))
    record = execute_study(SequenceStudy(config), console=quiet(), workers=1)
    ewc, named = (a for a in record.arms if a.kind == "ewc")
    third = RunFolder(config.folder(ewc.models[2], 0)).read()
    assert config.models[ewc.models[2]].start == named.models[1]
    assert third.retention[0]["fisher"] == str(config.folder(ewc.models[1], 0) / "fisher")


def test_every_entry_of_a_task_and_a_model_that_never_saw_the_first_one(asked):
    request = asked(names=("rivers", "letters", "music"), arms=["single", {"multitask": {"left_out": "rivers"}}])
    entry = request["tasks"]["letters"]["learn"][0]
    request["tasks"]["letters"]["learn"].append({**entry, "name": "again", "window": 32})
    config = SequenceConfig.read(request)
    record = execute_study(SequenceStudy(config), console=quiet(), workers=1)
    assert list(record.entries) == ["letters/again"] and record.entries["letters/again"].suite == "letters"
    sequential, single, without = record.arms
    assert single.scores["letters/again"].value < record.entries["letters/again"].before
    assert single.against["letters/again"].value != single.against["letters"].value
    assert without.left_out == ["rivers"] and not sequential.left_out
    [curve] = [m.curves["rivers"] for m in record.models if m.name == without.models[0]]
    assert curve[-1][1] == pytest.approx(without.scores["rivers"].value)
    page = (config.output_dir / "report.html").read_text(encoding="utf-8")
    assert "letters: its other entries" in page and "the loss after multitask training without rivers." in page


def test_two_workers_and_a_failure_in_the_middle(asked, tmp_path):
    """A model that cannot be trained takes along those that need it, and no others; the same call goes on."""
    extra = tmp_path / "extra.jsonl"
    extra.write_text('{"text": "An old text of some words."}\n' * 9)
    arms = [{"replay": {"data": str(extra), "fraction": 0.3}}]
    config = SequenceConfig.read(asked(names=("rivers", "letters", "music"), arms=arms, curve=0))
    broken = config.models[config.chains[1].models[1]]
    rows = extra.read_text()
    extra.unlink()
    with pytest.raises(HoldfastError, match="2 of 5 models failed") as error:
        execute_study(SequenceStudy(config), console=quiet(), workers=1)
    assert "extra.jsonl" in str(error.value) and f"depends on {broken.label}, which was not made" in str(error.value)
    found = read_sequence(config.output_dir)
    assert found.arms[0].scores and not found.arms[1].scores
    assert "2 jobs failed." in (config.output_dir / "report.html").read_text()
    extra.write_text(rows)
    again = execute_study(SequenceStudy(config), console=quiet(), workers=2)
    assert again.status == "finished" and all(a.scores for a in again.arms)


def test_the_papers_claims_on_a_base_of_seconds(tmp_path, monkeypatch):
    from holdfast.papers.sfa.reproduction import reproduce
    from holdfast.support.files import read_json

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    claims = reproduce(size="quick", workers=1, output_dir=tmp_path / "out", console=quiet())
    assert [c.number for c in claims][:2] == ["1", "2a"]
    written = read_json(tmp_path / "out" / "claims.json")
    assert written["size"] == "quick" and len(written["claims"]) == len(claims)
    assert (tmp_path / "out" / "tasks" / "report.html").is_file()
    again = reproduce(size="quick", workers=1, output_dir=tmp_path / "out", console=(console := quiet()))
    assert [c.verdict for c in again] == [c.verdict for c in claims]
    assert "is finished; nothing is run again" in console.file.getvalue()
