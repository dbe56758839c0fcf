"""The overtraining study: what it refuses before anything runs, and a whole one of seconds, figures computed anew."""

from __future__ import annotations

import io
import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from holdfast.errors import ConfigError, HoldfastError
from holdfast.papers.overtraining.plan import OvertrainingConfig
from holdfast.papers.overtraining.record import OvertrainingRecord, read_overtraining
from holdfast.papers.overtraining.study import OvertrainingStudy
from holdfast.records.run import RunFolder
from holdfast.studies.engine.session import execute_study
from tiny import build_model, save_ladder

OLD = [f"The quick brown fox {i} jumps over the lazy dog and then sleeps for {i} hours." for i in range(12)]
NEW = [f"In this village nobody had counted to {i} before the bridge was built." for i in range(24)]
BUDGETS = {"s": 4, "m": 12, "l": 40}
"""Steps of pre-training by checkpoint."""


def write(name: str, texts: list[str]) -> None:
    Path(name).write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))


@pytest.fixture
def asked(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A study of three checkpoints of one model, which knows the better what is old the longer it was trained."""
    monkeypatch.chdir(tmp_path)
    save_ladder(build_model(seed=0), tokenizer, OLD, BUDGETS)
    write("old.jsonl", OLD)
    write("train.jsonl", NEW[:12])
    write("valid.jsonl", NEW[12:16])
    write("test.jsonl", NEW[16:])
    return {
        "name": "mine",
        "ladder": [{"model": name, "tokens": 1000.0 * steps} for name, steps in BUDGETS.items()],
        "probe": {"noise": [0.1], "noise_seeds": 2, "quantize": ["int4"]},
        "tasks": {
            "new": {
                "train": {"dataset_name": "train.jsonl"},
                "validation": [{"perplexity": "valid.jsonl", "name": "valid"}],
                "learn": [{"perplexity": "test.jsonl", "name": "test"}],
            }
        },
        "keep": [{"perplexity": "old.jsonl", "name": "old"}],
        "train": {"per_device_train_batch_size": 4, "num_train_epochs": 2, "use_cpu": True},
        "arms": ["direct", {"label_annealing": {"weight": 3}}],
        "vary": {"learning_rate": [1e-3, 1e-2]},
        "seeds": [0, 1],
        "output_dir": "out",
    }


def run_of(asked: dict[str, Any], **changes: Any) -> OvertrainingRecord:
    console = Console(file=io.StringIO(), width=160)
    return execute_study(OvertrainingStudy(OvertrainingConfig.read({**asked, **changes})), console=console, workers=1)


def with_validation(asked: dict[str, Any], **keys: Any) -> dict[str, Any]:
    validation = [{**asked["tasks"]["new"]["validation"][0], **keys}]
    return {**asked, "tasks": {"new": {**asked["tasks"]["new"], "validation": validation}}}


DIRECT, HELD = "direct fine-tuning", "label annealing"


def test_every_checkpoint_is_probed_and_fine_tuned_alike(asked: dict[str, Any]) -> None:
    config = OvertrainingConfig.read(asked)
    labels = [job.attributes["label"] for job in config.jobs()]
    assert labels[:4] == [
        "looking for evaluation data in the training data",
        *(f"{name}: noise, quantisation, pruning" for name in BUDGETS),
    ]
    assert labels[4:7] == [f"{name}: new, {DIRECT}, learning rate 0.001" for name in BUDGETS]
    assert len(labels) == 1 + 3 + 3 * 2 * 2 and config.direct == DIRECT
    settings = [config.training("m", name, 1) for name in config.tunings]
    assert {s["weight_decay"] for s in settings} == {0.0} and {s["num_train_epochs"] for s in settings} == {2}
    assert all(s["eval_dataset_name"].endswith("valid.jsonl") for s in settings)
    assert [s["retention"] for s in settings] == ["none"] * 2 + [[{"label_annealing": {"weight": 3}}]] * 2
    first = OvertrainingConfig.read(with_validation(asked, max_documents=3))
    assert first.training("m", next(iter(first.tunings)), 0)["eval_dataset_split"] == "train[:3]"
    with pytest.raises(ConfigError, match=r"cannot read valid: it is limited to the first 3 documents of train"):
        OvertrainingConfig.read(with_validation(asked, max_documents=3, split="train[:4]"), check=False).held_out("new")
    with pytest.raises(ConfigError, match=r"tasks\.new\.held_out: is missing: valid is the configuration one of"):
        OvertrainingConfig.read(with_validation(asked, config="one"), check=False).held_out("new")
    assert len({s["output_dir"] for s in settings}) == 4 and {s["model_name_or_path"] for s in settings} == {"m"}


def test_ways_are_all_that_varies_beside_the_rate(asked: dict[str, Any]) -> None:
    ways = ["direct", [{"train": {"use_peft": True, "learning_rate": [1e-2, 3e-2]}}, {"label": "LoRA"}]]
    vary = {"learning_rate": [1e-3, 1e-2], "per_device_train_batch_size": [2, 4]}
    config = OvertrainingConfig.read({**asked, "arms": ways, "vary": vary})
    arms = {arm: [t.rate for t in tunings] for arm, tunings in config.arms("new").items()}
    assert arms == {
        "direct fine-tuning, per device train batch size 2": [1e-3, 1e-2],
        "direct fine-tuning, per device train batch size 4": [1e-3, 1e-2],
        "direct fine-tuning (LoRA), per device train batch size 2": [1e-2, 3e-2],
        "direct fine-tuning (LoRA), per device train batch size 4": [1e-2, 3e-2],
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ladder": []}, "ladder: "),
        ({"ladder": [{"model": "s", "toks": 1.0}]}, r"ladder\[0\]: unknown key 'toks'"),
        (
            {"ladder": [{"model": "l", "tokens": 2.0}, {"model": "s", "tokens": 1.0}]},
            "ladder: expected budgets in rising order",
        ),
        ({"ladder": ["s", "l"]}, "ladder: expected the number of pre-training tokens of each checkpoint"),
        ({"ladder": "no.yaml"}, "ladder: .*no.yaml"),
        ({"probe": {"prune": [1.0]}}, r"probe\.prune\[0\]: expected a number above 0 and below 1"),
        ({"probe": {"toward": ["l"]}}, r"probe\.toward: the study trains its own models"),
        ({"tasks": {"new": {"train": {"dataset_name": "train.jsonl"}}}}, r"tasks\.new\.validation: is missing"),
        ({"tasks": {"new": {"validation": [1], "learn": [1]}}}, r"tasks\.new\.train\.dataset_name: is missing"),
        ({"keep": []}, "keep: is missing"),
        ({"keep": [{"perplexity": "no.jsonl"}]}, r"keep\[0\].*no\.jsonl"),
        ({"vary": {}}, r"vary\.learning_rate: is missing"),
        (
            {"vary": {"learning_rate": [1e-3], "learning_rat": [1]}},
            r"vary\.learning_rat: .*Did you mean 'learning_rate'",
        ),
        ({"arms": ["direct", "dirct"], "vary": {"learning_rate": [1e-3]}}, "dirct"),
        ({"train": {"learning_rate": 1e-3}}, r"train\.learning_rate: is what the study varies"),
        ({"train": {"seed": 3}}, r"train\.seed: is set by the study"),
        ({"train": {"save_strategy": "no"}}, r"train\.save_strategy: is set by early stopping"),
        ({"max_perplexity": 1}, "max_perplexity: expected"),
        (
            {"direction": {"task": "new", "learning_rate": 1e-3}},
            "direction: needs `curvature`, which measures the quadratic",
        ),
        ({"direction": {"task": "nw", "learning_rate": 1e-3}, "curvature": 4}, "direction: task: .*Did you mean 'new'"),
        (
            {"direction": {"task": "new", "learning_rate": 2e-3}, "curvature": 4},
            r"direction\.learning_rate: expected a learning rate that direct fine-tuning tries \(0\.001, 0\.01\), got",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(asked: dict[str, Any], change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        OvertrainingConfig.read({**asked, **change})
    assert not Path("out").exists()


def test_checkpoints_have_to_be_one_model(asked: dict[str, Any], tokenizer: Any) -> None:
    build_model(width=16).save_pretrained("l")
    with pytest.raises(ConfigError, match=r"ladder: expected checkpoints of one architecture, but s and l differ"):
        OvertrainingConfig.read(asked)


def lost_by_document(run: RunFolder, entry: str) -> np.ndarray:
    """What each document adds to the loss per token of a fine-tuned model, less what it adds to its start's."""
    found = []
    for which in ("result", "start"):
        rows = sorted(run.evaluated(which).samples(*entry.split("/")), key=lambda row: str(row["doc"]))
        nats, tokens = (np.array([row[column] for row in rows], dtype=float) for column in ("nats", "tokens"))
        found.append((nats - nats.sum() / tokens.sum() * tokens) / tokens.sum())
    return found[0] - found[1]


def test_a_whole_study(asked: dict[str, Any]) -> None:
    record = run_of(asked)
    assert record.status == "finished" and read_overtraining("out") == record and Path("out/report.html").is_file()
    assert [m.state for m in record.models] == ["complete"] * 12 and all(m.seeds == [0, 1] for m in record.models)
    assert not list(Path("out/runs").rglob("*.safetensors")), "weights are not kept unless asked for"
    assert [c.parameters for c in record.checkpoints] == [c.probed.parameters for c in record.checkpoints if c.probed]
    config = OvertrainingConfig.read(asked)
    names = {(t.arm, t.rate): name for name, t in config.tunings.items()}

    def measured(arm: str, rate: float, label: str, seed: int, which: str, key: str) -> float:
        found = RunFolder(config.run_folder(label, names[arm, rate], seed)).evaluated(which)
        one = found.find(*key.split("/"))
        assert one is not None
        return one.metrics["nats_per_token"].value

    def mean(arm: str, rate: float, label: str, key: str) -> float:
        return statistics.fmean(measured(arm, rate, label, s, "result", key) for s in (0, 1))

    assert [s.key for s in record.scored["new"]] == ["keep/old", "learn/test", "validation/valid"]
    for m in record.models:
        assert m.scores.keys() == m.scores_alone.keys() == m.costs.keys()
        for key, cost in m.costs.items():
            costs = [
                measured(m.arm, m.rate, m.checkpoint, s, "result", key)
                - measured(m.arm, m.rate, m.checkpoint, s, "start", key)
                for s in (0, 1)
            ]
            score = pytest.approx(mean(m.arm, m.rate, m.checkpoint, key), abs=1e-9)
            assert m.scores[key].value == score and m.scores_alone[key].value == score
            assert cost.value == pytest.approx(statistics.fmean(costs), abs=1e-9)
            assert cost.interval is not None and cost.interval[0] <= cost.value <= cost.interval[1]
        assert m.distance is not None and m.distance > 0
    # the rate is chosen by validation, not by the test
    for r in record.rates:
        assert r.rate == min((1e-3, 1e-2), key=lambda rate: mean(r.arm, rate, r.checkpoint, "validation/valid"))
        assert r.edge in ("smallest", "largest")
    # the turn is the budget with the least loss
    for t in record.turns:
        rates = {r.checkpoint: r.rate for r in record.rates if r.arm == t.arm}
        losses = {c: mean(t.arm, rates[c] if t.rate is None else t.rate, c, t.entry) for c in BUDGETS}
        best = min(losses, key=losses.__getitem__)
        assert t.tokens == 1000.0 * BUDGETS[best] and t.after == pytest.approx(losses["l"] - losses[best], abs=1e-9)
    grown = {(g.arm, g.rate, g.entry): g for g in record.growth}
    for (arm, rate, key), g in grown.items():
        if rate is not None:
            first, last = (record.model("new", arm, rate, c) for c in ("s", "l"))
            assert first is not None and last is not None
            assert g.difference.value == pytest.approx(last.costs[key].value - first.costs[key].value)
    for s in record.shifts:
        mine, other = grown[s.arm, s.rate, s.entry], grown[s.against, s.rate, s.entry]
        assert (s.arm, s.against) == (HELD, DIRECT)
        assert s.growth.value == pytest.approx(mine.difference.value - other.difference.value)
        if s.rate is None:
            continue
        # four models on the same documents: pairs, by the correlations of what each document contributes
        four = [record.model("new", arm, s.rate, c) for arm in (HELD, DIRECT) for c in ("l", "s")]
        moved, halves = [], []
        for m in four:
            runs = [RunFolder(config.run_folder(m.checkpoint, names[m.arm, m.rate], seed)) for seed in (0, 1)]
            moved.append(np.mean([lost_by_document(run, s.entry) for run in runs], axis=0))
            halves.append(m.costs[s.entry].samples_half)
        signed = np.array([1, -1, -1, 1]) * halves
        assert s.growth.samples_half == pytest.approx(np.sqrt(signed @ np.corrcoef(moved) @ signed), rel=1e-3)
    # what was only probed
    assert {(s.kind, s.model) for s in record.sensitivities} == {(k, n) for k in ("noise", "quantize") for n in BUDGETS}
    assert len(record.trends) == 2 and {i.kind for i in record.inflections} == {"as-it-is", "noise", "quantize"}
    # nothing is done twice
    before = {p: p.stat().st_mtime_ns for p in Path("out").rglob("*.jsonl")}
    again = run_of(asked)
    assert again.models == record.models and before == {p: p.stat().st_mtime_ns for p in Path("out").rglob("*.jsonl")}


def test_the_loss_is_followed_along_a_fine_tuning(asked: dict[str, Any]) -> None:
    """Figure 10: at the whole way it is the fine-tuned model's, at none the checkpoint's, and the quadratic touches it
    there."""
    small = {"probe": {"noise": [0.1], "noise_seeds": 1}, "vary": {"learning_rate": [1e-2]}, "early_stopping": False}
    small |= {"curvature": 12, "direction": {"task": "new", "learning_rate": 1e-2, "steps": [0.001, 0.5, 1.0, 2.0]}}
    record = run_of(asked, **small, seeds=[0], keep_weights="none")
    assert not list(Path("out/runs").rglob("*.safetensors")), "nothing needs the weights any more"
    for sharpness in record.sharpness:
        label = sharpness.model
        assert [line.label for line in sharpness.lines] == ["noise, seed 0", "new-0.01"]
        line = sharpness.lines[1]
        assert [size for size, _ in line.losses] == [0.0, 0.001, 0.5, 1.0, 2.0]
        losses = dict(line.losses)
        tuned = record.model("new", DIRECT, 1e-2, label)
        assert tuned is not None and tuned.distance == pytest.approx(line.norm, rel=1e-5)
        assert losses[1.0] == pytest.approx(tuned.scores["keep/old"].value, rel=1e-5)
        assert losses[0.0] == pytest.approx(sharpness.loss, rel=1e-5)
        step = losses[0.001] - losses[0.0]
        assert line.quadratic(0.001, losses[0.0]) - losses[0.0] == pytest.approx(step, rel=0.1, abs=2e-6)
    assert "The loss along the step towards new-0.01, l" in Path("out/report.html").read_text()


def test_a_fine_tuning_that_diverges_is_a_result(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.errors import TrainingDiverged
    from holdfast.papers.overtraining import study

    train = study.train_model

    def diverging(settings: Any, *args: Any, **kwargs: Any) -> Any:
        if settings["learning_rate"] == 1e-2 and settings["model_name_or_path"] == "l":
            raise TrainingDiverged("Step 3: the loss is NaN", "more")
        return train(settings, *args, **kwargs)

    monkeypatch.setattr(study, "train_model", diverging)
    record = run_of(asked, probe=False, vary={"learning_rate": [1e-3, 1e-2]})
    assert record.status == "finished"
    sizes = {c.parameters for c in record.checkpoints}
    assert len(sizes) == 1 and min(sizes) > 0, "counted where nothing is probed, too"
    lost = record.model("new", DIRECT, 1e-2, "l")
    assert (
        lost is not None
        and lost.diverged == dict.fromkeys("01", "Step 3: the loss is NaN")
        and lost.state == "complete"
    )
    assert math.isinf(lost.costs["keep/old"].value) and math.isinf(lost.scores["keep/old"].value)
    turned = next(t for t in record.turns if (t.rate, t.entry) == (1e-2, "keep/old"))
    assert turned.verdict == "turns" and math.isinf(turned.after), "it is as bad as can be, not left out"
    grown = next(g for g in record.growth if (g.rate, g.entry) == (1e-2, "keep/old"))
    assert grown.verdict == "grows" and math.isinf(grown.difference.value)
    assert next(r.rate for r in record.rates if r.checkpoint == "l") == 1e-3
    assert "fine-tuning diverged: " in Path("out/report.html").read_text()
    assert read_overtraining("out") == record


def test_training_text_that_holds_what_is_measured_is_refused(asked: dict[str, Any]) -> None:
    write("train.jsonl", [*NEW[:12], OLD[3].upper(), NEW[17]])
    with pytest.raises(HoldfastError, match=r"(?s)1 of 12 documents of keep/old \(old.jsonl\) also occur .*learn/test"):
        run_of(asked)
    assert not Path("out/runs").exists(), "no fine-tuning was begun"
    write("replayed.jsonl", OLD[5:7])
    write("train.jsonl", NEW[:12])
    replay = {"replay": {"data": "replayed.jsonl", "fraction": 0.5}}
    rate = {"learning_rate": [1e-3]}
    with pytest.raises(HoldfastError, match=r"2 of 12 documents of keep/old"):
        run_of(asked, output_dir="replayed", arms=["direct", replay], vary=rate, probe=False, seeds=[0])
    write("others.jsonl", [*NEW[:12], *OLD[7:10]])
    arm = {"arms": ["direct", [{"train": {"dataset_name": "others.jsonl"}}, {"label": "other text"}]], "vary": rate}
    mixed = {"datasets": [{"path": "json", "name": None, "split": "train"}]}
    config = OvertrainingConfig.read({**asked, "train": mixed, "vary": rate}, check=False)
    assert ("json", "train", None) in config.trained_on("new"), "a mixture's"
    other_data = {"vary": {**rate, "dataset_name": ["train.jsonl", "others.jsonl"]}}
    for number, more in enumerate([arm, other_data]):
        with pytest.raises(HoldfastError, match=r"3 of 12 documents of keep/old"):
            run_of(asked, output_dir=f"others-{number}", **more, probe=False, seeds=[0])
    write("train.jsonl", [*NEW[:12], OLD[3]])
    record = run_of(asked, overlap="keep", output_dir="kept", seeds=[0], probe=False, vary={"learning_rate": [1e-3]})
    assert any("1 of 12 documents of keep/old (old.jsonl) also occur in the training data" in n for n in record.notes)


def test_rates_and_ways_may_come_later(asked: dict[str, Any]) -> None:
    arms, vary = asked["arms"], asked["vary"]
    old = OvertrainingConfig.read(asked).resolved
    for more in (
        {"arms": ["direct", {"l2": {"coefficient": 1}}, *arms[1:]]},
        {"vary": {**vary, "learning_rate": [1e-4, *vary["learning_rate"]]}},
    ):
        assert OvertrainingConfig.read({**asked, **more}).differences(old) == []
    for other in (
        {"arms": ["direct"]},
        {"vary": {**vary, "learning_rate": [1e-4, 1e-2]}},
        {"vary": {**vary, "warmup_steps": [1]}},
        {"arms": [*arms, {"replay": {"data": "old.jsonl", "fraction": 0.1}}]},
    ):
        found = OvertrainingConfig.read({**asked, **other}).differences(old)
        assert [d.split(":")[0] for d in found] == list(other), (
            "other text would not be looked through for what is measured"
        )
    rungs = asked["ladder"]
    begun = OvertrainingConfig.read({**asked, "ladder": rungs[1:]}).resolved
    assert OvertrainingConfig.read(asked).differences(begun) == [], "checkpoints may come later"
    for ladder in (rungs[:2], [{**rungs[0], "tokens": 1.0}, *rungs[1:]]):
        assert [d.split(":")[0] for d in OvertrainingConfig.read({**asked, "ladder": ladder}).differences(old)] == [
            "ladder"
        ]
    wider = {**asked, "vary": {**vary, "learning_rate": [1e-4, *vary["learning_rate"]]}, "seeds": [0]}
    assert [d.split(":")[0] for d in OvertrainingConfig.read(wider).differences(old)] == ["seeds"]
