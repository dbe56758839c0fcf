"""Sequences of small networks: figure 1's study through the same engine, arms and figures as language models."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file

from holdfast.data.images import read_images, write_samples
from holdfast.errors import ConfigError, NotFinite
from holdfast.records.evaluation import EvaluationFolder
from holdfast.runs.classifier import classifier_config, train_classifier
from holdfast.studies.sequence.plan import sequence_config
from holdfast.studies.sequence.study import run_sequence
from holdfast.training.classifier import Network, save_network


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    place, digits = tmp_path_factory.mktemp("small"), read_images("digits")
    found = {"base": save_network(Network(inputs=64, hidden=(16,), outputs=10), place / "base")}
    for name, classes in (("even", range(0, 10, 2)), ("odd", range(1, 10, 2))):
        found |= write_samples(place, name, digits.of_classes(classes))
    return {name: str(path) for name, path in found.items()}


def asked(files, out, **changes):
    tasks = {
        name: {
            "train": {"dataset_name": files[f"{name}_train"]},
            "evaluation": [{"accuracy": files[f"{name}_heldout"], "name": "digits"}],
        }
        for name in ("even", "odd")
    }
    train = {"model_name_or_path": files["base"], "learning_rate": 0.2, "max_steps": 60}
    arms = ["single", "multitask", {"sfa": {"p": [1, 0.1]}}, {"sfa": {"p": 1, "beta": [0, 1]}}]
    old = [{"replay": {"fraction": 0.5}}, {"ewc": {"coefficient": 10.0, "samples": 8}}]
    merges = [{"merge": {"method": "linear"}}, {"merge": {"method": "fisher", "samples": 8}}]
    return {
        "name": "digits",
        "kind": "classifier",
        "train": train,
        "tasks": tasks,
        "arms": [*arms, *old, *merges],
        "keep": "all",
        "curve": 4,
        "output_dir": str(out),
        **changes,
    }


def test_every_arm(files, tmp_path):
    config = sequence_config(asked(files, tmp_path / "out"))
    record = run_sequence(config, console=Console(file=io.StringIO()), workers=1)
    assert [m.state for m in record.models] == ["complete"] * len(config.jobs()), [m.reason for m in record.models]
    arms = {a.arm: a for a in record.arms}
    place = {a.arm: config.folder(a.models[-1], 0) for a in record.arms}

    def weights(name):
        return load_file(place[name] / "model.safetensors")

    plain, start = (
        weights("sequential fine-tuning"),
        load_file(config.folder(arms["single task"].models[0], 0) / "model.safetensors"),
    )
    for name, tensor in plain.items():
        assert (weights("SFA, p 1, beta 0")[name] == tensor).all()
        assert (weights("SFA, p 1, beta 1")[name] == start[name]).all()
    assert arms["SFA, p 1"].distance.value == pytest.approx(arms["sequential fine-tuning"].distance.value / 2, rel=1e-5)
    kept = {name: arm.scores["even"].value for name, arm in arms.items()}
    assert kept["sequential fine-tuning"] < 0.6 < kept["replay, fraction 0.5"]
    assert record.tasks["even"].unit == "accuracy" and record.tasks["even"].before < 0.4
    curve = next(m for m in record.models if m.name == arms["sequential fine-tuning"].models[-1]).curves["even"]
    assert [x for x, _ in curve] == [0.0, 0.25, 0.5, 0.75, 1.0] and curve[-1][1] > curve[0][1]
    samples = EvaluationFolder(config.output_dir / record.models[0].evaluations).samples("even", "digits")
    assert len(samples) > 250 and {"doc", "nats", "acc", "gold", "answer"} == set(samples[0])
    assert "accuracy" in (config.output_dir / "report.html").read_text()


@pytest.mark.slow
def test_what_the_base_knows_and_another_base_with_the_residual(files, tmp_path):
    """A start that knows the even digits goes on to three tasks; so does its base, to which the residual is added."""
    start = Path(files["base"]).with_name("start")
    learn = {"model_name_or_path": files["base"], "dataset_name": files["even_train"], "learning_rate": 0.2}
    config, _ = classifier_config({**learn, "max_steps": 60, "output_dir": str(start)})
    train_classifier(config)
    tasks, digits = {}, read_images("digits")
    for name, classes in (("one", (1, 3)), ("two", (5, 7)), ("three", (9, 3))):
        made = write_samples(tmp_path, name, digits.of_classes(classes))
        train = {"dataset_name": str(made[f"{name}_train"])}
        tasks[name] = {"train": train, "evaluation": [{"accuracy": str(made[f"{name}_heldout"])}]}
    values = asked(files, tmp_path / "out", tasks=tasks, curve=0)
    values["arms"] = ["single", {"sfa": {"p": 0.5}}, {"residual": {"base": files["base"], "scale": [0.5, 1]}}]
    values["source"] = [{"accuracy": files["even_heldout"], "name": "even"}]
    values["train"] |= {"model_name_or_path": str(start), "max_steps": 10, "learning_rate": 0.05}
    study = sequence_config(values)
    record = run_sequence(study, console=Console(file=io.StringIO()), workers=1)
    assert [m.state for m in record.models] == ["complete"] * len(study.jobs()), [m.reason for m in record.models]
    arms = {a.arm: a for a in record.arms}
    half, whole = arms["instruction residual, scale 0.5"], arms["instruction residual, scale 1"]
    assert len(whole.models) == 3 and not whole.old_data

    def weights(folder):
        return load_file(Path(folder) / "model.safetensors")["output.weight"]

    for stage in range(3):
        place = study.folder(whole.models[stage], 0)
        continued = study.folder(study.models[whole.models[stage]].parts[0], 0)
        assert study.models[half.models[stage]].parts == study.models[whole.models[stage]].parts, "continued once"
        expected = weights(continued) + weights(start) - weights(files["base"])
        assert (weights(place) - expected).abs().max() < 1e-6
    known = record.source["even"]
    assert known.unit == "accuracy" and known.before > 0.8
    sequential = [e.value for e in arms["sequential fine-tuning"].source["even"]]
    assert len(sequential) == 3 and sequential[-1] < known.before
    assert set(arms["single task"].source) == {"even"} and record.tasks["one"].before < 0.2, (
        "of the start, not its base"
    )
    page = (study.output_dir / "report.html").read_text()
    assert "even along the tasks" in page and "All tasks before" in page


def test_a_finished_run_is_found_done(files, tmp_path):
    values = {
        "model_name_or_path": files["base"],
        "dataset_name": files["even_train"],
        "max_steps": 5,
        "evaluation": {"even": [{"accuracy": files["even_heldout"]}]},
        "output_dir": str(tmp_path / "run"),
    }
    config, problems = classifier_config(values)
    assert not problems
    steps: list[int] = []
    first = train_classifier(config, on_step=lambda step, of: steps.append(step), curve=[0.5], watched=["even"])
    again = train_classifier(config, on_step=lambda step, of: steps.append(step), curve=[0.5], watched=["even"])
    assert steps == [1, 2, 3, 4, 5] and again[1] == first[1] and len(first[1]["even"]) == 3
    train_classifier(
        classifier_config({**values, "learning_rate": 0.3})[0], on_step=lambda step, of: steps.append(step)
    )
    assert len(steps) == 10, "another rate is another run"


@pytest.mark.slow
def test_a_base_that_changed_since_is_not_gone_on_from(files, tmp_path):
    base = save_network(Network(inputs=64, hidden=(16,), outputs=10), tmp_path / "base")
    values = asked({**files, "base": str(base)}, tmp_path / "out", arms=["single"], curve=0)
    values["train"]["max_steps"] = 3
    quiet = Console(file=io.StringIO())
    first = run_sequence(sequence_config(values), console=quiet, workers=1)
    assert run_sequence(sequence_config(values), console=quiet, workers=1).models == first.models
    save_network(Network(inputs=64, hidden=(16,), outputs=10, seed=1), base)
    with pytest.raises(ConfigError, match="have changed since the study began"):
        run_sequence(sequence_config(values), console=quiet, workers=1)


def test_a_run_of_other_files_is_another_run(files, tmp_path):
    """Also where only what is measured, or old data, changed under the same name."""
    held, old = tmp_path / "held.safetensors", tmp_path / "old.safetensors"
    for place in (held, old):
        place.write_bytes(Path(files["even_heldout"]).read_bytes())
    values = {
        "model_name_or_path": files["base"],
        "dataset_name": files["odd_train"],
        "max_steps": 2,
        "retention": [{"replay": {"data": str(old), "fraction": 0.5}}],
        "evaluation": {"odd": [{"accuracy": str(held)}]},
        "output_dir": str(tmp_path / "run"),
    }
    steps: list[int] = []
    for change in (None, None, held, old):
        if change is not None:
            change.write_bytes(Path(files["odd_heldout"]).read_bytes())
        train_classifier(classifier_config(values)[0], on_step=lambda step, of: steps.append(step))
    assert steps == [1, 2] * 3, "once, found done, and again for each change"


def test_a_network_of_nan_is_not_measured(files, tmp_path):
    broken = Network(inputs=64, hidden=(16,), outputs=10)
    torch.nn.init.constant_(broken.output.weight, float("nan"))
    values = {
        "model_name_or_path": str(save_network(broken, tmp_path / "broken")),
        "dataset_name": files["odd_train"],
        "evaluation": {"odd": [{"accuracy": files["odd_heldout"]}]},
        "output_dir": str(tmp_path / "run"),
    }
    with pytest.raises(NotFinite, match="odd/accuracy"):
        train_classifier(classifier_config(values)[0])


@pytest.mark.slow
def test_an_arm_that_diverged_is_named(files, tmp_path):
    values = asked(files, tmp_path / "out", arms=["single", {"l2": {"coefficient": 1000.0}}], curve=0)
    values["train"] |= {"max_steps": 4, "learning_rate": 0.2}
    record = run_sequence(sequence_config(values), console=Console(file=io.StringIO()), workers=1)
    assert any(n.startswith("L2, coefficient 1000 diverged: its weights moved") for n in record.notes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v["train"].update(learning_rat=1), "Did you mean 'learning_rate'?"),
        (lambda v: v["train"].update(learning_rate=-1), "learning_rate"),
        (lambda v: v["train"].update(packing=True), "packing: no such key in a training configuration"),
        (lambda v: v["train"].update(momentum=0.9, optim="adam"), "momentum: belongs to sgd"),
        (lambda v: v["train"].update(groups=[[0, 2], [1]]), r"the classes \[4, 6, 8\]"),
        (lambda v: v["train"].update(groups="all"), "lists of classes"),
        (lambda v: v["tasks"]["odd"].update(evaluation=[{"perplexity": "x"}]), "tasks.odd"),
        (lambda v: v["tasks"]["odd"].update(evaluation=[{"accuracy": "gone.safetensors"}]), "no such file"),
        (lambda v: v["train"].update(model_name_or_path="nowhere"), "holds no whole classifier"),
    ],
)
def test_mistakes_are_named_before_training(files, tmp_path, change, words):
    values = asked(files, tmp_path / "out")
    change(values)
    with pytest.raises(ConfigError, match=words):
        sequence_config(values)


def test_the_shipped_study_is_planned():
    from holdfast.papers.sfa.reproduction import SIZES

    assert set(SIZES) == {"tasks", "digits"} and all(set(c) == {"quick", "look", "thorough"} for c in SIZES.values())
    values = yaml.safe_load(Path("configs/sequence/digits.yaml").read_text(encoding="utf-8"))
    config = sequence_config(values)
    assert config.kind.keys() and len(config.models) > 40
