"""The benchmark on a real model, without one: its plan is sound, its rows say what was measured, its table what they
say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def bench(script):
    script("real_model_data")
    return script("real_model")


@pytest.fixture
def table(bench, script):
    return script("real_model_table")


def files_in(folder: Path) -> dict[str, str]:
    names = ["gsm8k", "gsm8k_train", "gsm8k_answers", "gsm8k_validation", "arc_easy", "piqa", "hellaswag", "ifeval"]
    names += ["conversations", "peps", "handbook", "other_conversations", "articles", "articles_test"]
    names += ["articles_test_choices", "articles_test_chat", "articles_validation"]
    for name in names:
        (folder / f"{name}.jsonl").write_text(json.dumps({"text": name}) + "\n")
    return {name: str(folder / f"{name}.jsonl") for name in names}


@pytest.mark.parametrize("target", ["gsm8k", "articles"])
def test_every_run_of_the_plan_is_a_configuration_that_train_takes(bench, tmp_path, model_folder, target):
    from holdfast.evaluation.suite import parse_evaluation
    from holdfast.runs.config import train_config

    files = files_in(tmp_path)
    plan = bench.runs(target)
    assert len({run.name for run in plan}) == len(plan)
    assert len([run for run in plan if run.name.startswith("direct-")]) == 4
    for run in plan:
        settings = {**bench.training(target, files), **run.settings, "learning_rate": run.rate}
        config = train_config(
            {
                **settings,
                "model_name_or_path": str(model_folder),
                "retention": bench._filled(run.retention, files) or "none",
                "output_dir": str(tmp_path / "run"),
            }
        )
        assert config.training.learning_rate == run.rate
        asked = [name for method in run.retention for name in method]
        auto = ["self_replay", "label_annealing", "wise_ft"]  # what the preset stands for
        assert [m.name for m in config.retention] == (auto if asked == ["auto"] else asked)
    entries, problems = parse_evaluation(bench.evaluation(target, files))
    assert not problems
    assert {e.suite for e in entries.entries} == {"learn", "validation", "keep"}


def test_articles_are_about_all_people_and_no_question_stands_in_them(bench, script):
    made = script("real_model_data").articles()
    text = "\n".join(row["text"] for row in made["articles"])
    assert made == script("real_model_data").articles()
    assert len(made["articles_test"]) == 4 * 40 and len(made["articles_validation"]) == 4 * 24
    assert not {r["name"] for r in made["articles_test"]} & {r["name"] for r in made["articles_validation"]}
    for row in made["articles_test"]:
        assert row["name"] in text and row["completion"] in text and row["prompt"] not in text
    for row in made["articles_test_chat"]:
        assert row["options"][row["answer"]].startswith(row["name"])


def test_direct_rates_are_a_line_from_the_start(table):
    #                 direct, low and high     on the line   below it      learns less than the line loses nothing for
    gain = np.array([1.0, 2.0, 1.5, 1.5, 0.5, 3.0])
    loss = np.array([0.1, 0.5, 0.3, 0.1, 0.1, 0.0])
    worth = table.beside_direct(gain, loss, [0, 1])
    assert worth[:5] == pytest.approx([0.0, 0.0, 0.0, 0.2, -0.05], abs=2e-3)
    assert np.isnan(worth[5])  # no rate learns as much


def test_a_rate_that_learns_less_and_loses_more_is_no_part_of_the_line(table):
    gain, loss = np.array([2.0, 1.8, 1.8]), np.array([0.1, 0.9, 0.05])
    assert table.beside_direct(gain, loss, [0, 1])[2] == pytest.approx(0.09 - 0.05, abs=2e-3)


def made_row(bench, name: str, rate: float, nats: dict[str, float], *, seed: int = 0) -> dict:
    rng = np.random.default_rng(7)
    entries = []
    for suite, entry in (
        ("learn", "facts"),
        ("validation", "facts_validation"),
        ("keep", "conversations"),
        ("keep", "peps"),
        ("keep", "handbook"),
    ):
        tokens = rng.integers(5, 50, 60)
        per_token = 3.0 + rng.normal(0, 0.5, 60) + nats[suite] + rng.normal(0, 0.001, 60)
        entries.append(
            {
                "evaluation": {
                    "suite": suite,
                    "name": entry,
                    "kind": "perplexity",
                    "primary": "nats_per_token",
                    "metrics": {
                        "nats_per_token": {
                            "value": float((per_token * tokens).sum() / tokens.sum()),
                            "n": 60,
                            "unit": "nats/token",
                            "higher_is_better": False,
                        }
                    },
                    "settings": {},
                    "model": {},
                    "key": "k",
                    "references": {"nats_per_token": {"unigram": 7.0}},
                },
                "columns": {"nats": (per_token * tokens).tolist(), "tokens": tokens.tolist()},
            }
        )
    about = {"rate": rate, "retention": [], "settings": {}, "seed": seed, "training_seconds": 60.0, "comparisons": []}
    about |= {"asked": False, "seconds": {"wall": 60.0, "cpu": 50.0}, "versions": {}, "hardware": {}}
    return {**about, "name": name, "entries": entries}


def made_table(bench, table, lost: float):
    start = made_row(bench, "start", 0.0, {"learn": 0.0, "validation": 0.0, "keep": 0.0})
    runs = [
        ("direct-0.0001", 1e-4, 0.6, lost),
        ("direct-0.0005", 5e-4, 0.5, 10 * lost),
        ("l2-0.1", 5e-4, 0.55, lost / 2),
    ]
    arms = [
        table.Arm(
            name=name,
            rows={0: made_row(bench, name, rate, {"learn": -gain, "validation": -gain, "keep": loss})},
        )
        for name, rate, gain, loss in runs
    ]
    return table.Table(target="articles", start=start, arms=arms)


def test_the_tuned_rate_is_the_best_on_validation_data_and_has_to_lose_something(bench, table):
    found = made_table(bench, table, lost=0.2)
    assert found.arms[found.tuned].name == "direct-0.0001"
    assert "there is something to keep" in found.precondition
    assert found.lost.change == pytest.approx([0.2, 2.0, 0.1], abs=1e-3)
    assert found.worth[2] == pytest.approx(0.2 * 0.55 / 0.6 - 0.1, abs=3e-3)
    nothing = made_table(bench, table, lost=0.001)
    assert "cannot tell what a method is worth" in nothing.precondition
    assert "**direct, 0.0001**" in nothing.markdown()


def test_claims_of_mathematics_are_held_against_the_arms(bench, table):
    record = table.study_of(made_table(bench, table, lost=0.2))
    assert record.references["keep/peps/nats_per_token"] == {"unigram": 7.0}
    found = table.outcome(record)
    assert {c["recipe"] for c in found["claims"]} == {"math"} and found["seeds"] == [0]
    assert {c["verdict"] for c in found["claims"]} == {"cannot tell"}, "rows without comparisons tell nothing"
    assert found["rules"] > 0 and found["size"] == record.name


def test_rows_are_the_start_s_evaluations_again(bench, tmp_path):
    from holdfast.records.evaluation import Evaluation, EvaluationFolder, Metric

    rows = [{"doc": f"d{i}", "nats": 1.5 * i, "tokens": i + 1, "bytes": 4, "note": "text"} for i in range(5)]
    folder = EvaluationFolder(tmp_path / "a")
    folder.write(
        Evaluation(
            suite="keep",
            name="text",
            kind="perplexity",
            primary="nats_per_token",
            metrics={"nats_per_token": Metric(value=1.0, n=5, unit="nats/token", higher_is_better=False)},
            settings={"window": 8},
            model={"name": "a", "hash": "1"},
            key="k",
        ),
        rows,
    )
    bench.unpacked(bench.packed(folder, identity=True), tmp_path / "b")
    again = EvaluationFolder(tmp_path / "b")
    one = again.all()[0]
    assert one == folder.all()[0]
    assert again.samples(one.suite, one.name) == [{k: v for k, v in row.items() if k != "note"} for row in rows]


@pytest.mark.parametrize("target", ["gsm8k", "articles"])
def test_models_that_are_not_asked_are_measured_in_nats_against_the_same_of_the_start(
    bench, tmp_path, monkeypatch, target
):
    from holdfast.evaluation.suite import parse_evaluation
    from holdfast.records.evaluation import Evaluation, EvaluationFolder, Metric

    files = files_in(tmp_path)
    plans = [parse_evaluation(bench.evaluation(target, files, asked=asked))[0] for asked in (True, False)]
    measured, again = ({(e.suite, e.name): e for e in plan.entries} for plan in plans)
    assert {e.kind for e in again.values()} == {"perplexity"} and again.items() <= measured.items()
    assert {name for _, name in measured} - {name for _, name in again} >= {"arc_easy", "piqa", "hellaswag", "ifeval"}

    whole = EvaluationFolder(tmp_path / "whole")
    for entry in measured.values():
        name = "nats_per_token" if entry.kind == "perplexity" else "acc"
        metric = Metric(value=1.0, n=1, unit="nats/token", higher_is_better=False)
        about = {"suite": entry.suite, "name": entry.name, "kind": entry.kind, "primary": name, "key": "k"}
        whole.write(Evaluation(metrics={name: metric}, settings={}, model={}, **about), [{"doc": "d", name: 1.0}])
    monkeypatch.setattr(bench.Bench, "key", lambda *_: "k")
    row = bench.row_file(tmp_path / "results", target, "start", 0)
    row.parent.mkdir(parents=True)
    row.write_text(json.dumps({"key": "k", "entries": bench.packed(whole, identity=True)}))
    found = bench.Bench(model=tmp_path, files={}, work=tmp_path / "work", results=tmp_path / "results", console=None)
    for asked, plan in ((True, measured), (False, again)):
        assert {(e.suite, e.name) for e in found.start(target, asked=asked).all()} == set(plan)


def test_questions_are_asked_of_a_few_models_of_the_first_seed(bench):
    for target in ("gsm8k", "articles"):
        plan = bench.runs(target)
        assert {r.name for r in plan if r.asks(0)} > {r.name for r in plan if r.name.startswith("direct-")}
        assert sum(r.asks(0) for r in plan) == 8 and not any(r.asks(1) for r in plan)
        assert [r.name for r in plan if r.seeds != bench.SEEDS] == [
            "label_annealing-1-0.0002",
            "replay-0.1-0.0002",
            "lora-3e-4",
            "auto",
        ]


def test_what_was_cut_of_the_second_seed_keeps_its_first(bench, table, tmp_path):
    for target, cut in bench.CUT.items():
        made = {run.name: bench.seeds_of(target, run) for run in bench.runs(target)}
        assert {name for name in made if name in cut} == cut and all(made[name] == (0,) for name in cut)
        assert all(made[f"direct-{rate}"] == (0, 1) for rate in ("0.0001", "0.0002", "0.0005"))
        assert made["label_annealing-1"] == made["replay-0.1"] == (0, 1)


def test_an_arm_of_one_seed_is_no_part_of_the_study_of_two(bench, table):
    found = made_table(bench, table, lost=0.2)
    arms = [table.Arm(name=a.name, rows={**a.rows, 1: {**a.rows[0], "seed": 1}}) for a in found.arms]
    arms.append(
        table.Arm(
            name="lora-3e-4",
            rows={0: made_row(bench, "lora-3e-4", 3e-4, {"learn": 0.0, "validation": 0.0, "keep": 0.0})},
        )
    )
    record = table.study_of(table.Table(target="articles", start=found.start, arms=arms))
    assert record.seeds == [0, 1] and len(record.trials) == 3
    assert any("one seed alone" in note for note in record.notes)


def test_a_run_of_one_seed_is_held_against_direct_runs_of_that_seed(bench, table):
    found = made_table(bench, table, lost=0.2)
    arms = [
        table.Arm(name=a.name, rows={**a.rows, 1: made_row(bench, a.name, a.rate, second, seed=1)})
        for a, second in zip(
            found.arms[:2],
            [{"learn": -0.6, "validation": -0.6, "keep": 9.0}, {"learn": -0.5, "validation": -0.5, "keep": 9.0}],
            strict=True,
        )
    ]
    mixed = table.Table(target="articles", start=found.start, arms=[*arms, found.arms[2]])
    assert mixed.lost.change[0] == pytest.approx((0.2 + 9.0) / 2, abs=1e-3)
    assert mixed.worth[2] == found.worth[2]
    assert np.array_equal(mixed.worth_draws[:, 2], found.worth_draws[:, 2])


@pytest.mark.slow
def test_the_machinery_makes_a_table(bench, table, tmp_path, capsys):
    assert bench.quick(tmp_path) == 0
    results = tmp_path / "results"
    assert table.main(["--results", str(results), "--partial"]) == 0
    text = (results / "README.md").read_text()
    for label in ("direct, 0.0005", "label annealing weight 1.0, 0.0005", "WiSE-FT 0.5 of direct, 0.0005"):
        assert label in text
    assert "articles" in json.loads((results / "articles" / "study.json").read_text())["name"]
    assert re.search(r"^5 of \d\d rows are made so far\.$", text, re.MULTILINE)


def test_mbpp_is_split_as_its_authors_split_it(script, shared_data: Path) -> None:
    made = script("real_model_data")._mbpp(shared_data)
    assert (len(made["mbpp_train"]), len(made["mbpp_answers"])) == (374, 500)
    asked = [row["prompt"][0]["content"] for rows in made.values() for row in rows]
    assert len(set(asked)) > 870 and all("\r\n" not in row["completion"][0]["content"] for row in made["mbpp_train"])
    assert all("assert " in text for text in asked)


def test_tasks_are_learnt_in_the_order_of_the_file(script) -> None:
    import yaml

    studies = script("real_studies")
    values = yaml.safe_load(studies.as_yaml(studies.STUDIES["sequence"].values()))
    assert list(values["tasks"]) == ["math", "code"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("dose", "label_annealing/smollm2-dose"),
        ("arms", "label_annealing/smollm2"),
        ("sequence", "sequence/smollm2"),
        ("stages", "stages/smollm2"),
        ("piqa", "stages/smollm2-piqa"),
    ],
)
def test_the_studies_on_a_tiny_model(
    script, name: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert script("real_studies").quick(tmp_path, (name,)) == 0
    assert (tmp_path / "runs" / folder / "report.html").is_file()
