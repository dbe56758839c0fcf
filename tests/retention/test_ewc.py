"""EWC and the Fisher information it rests on: against references in float64, its identities with averaging, resuming,
and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from cases import largest_difference, make_trainer, weights

from data_files import jsonl
from holdfast.errors import DataError, ModelError
from holdfast.retention import fisher as fisher_module
from holdfast.retention.anchor import Anchors
from holdfast.retention.fisher import SavedFisher, choose_rows, diagonal_fisher
from holdfast.retention.methods.ewc import EWC
from holdfast.retention.protocol import RetentionMethod
from holdfast.training import method_services as host_module
from holdfast.training.method_services import TrainerServices
from tiny import build_model, random_fisher

OLD = [{"prompt": f"Old question {i}?", "completion": f" Old answer {i} is {i * i}, as ever."} for i in range(12)]


@pytest.fixture
def old(tmp_path) -> str:
    """The old task: completions are trained, prompts are not."""
    return str(jsonl(tmp_path / "old.jsonl", OLD))


def trainer_with(folder: Path, *retain: RetentionMethod, **settings):
    return make_trainer(folder, retain, **settings)


def host_of(trainer) -> TrainerServices:
    return TrainerServices(trainer, lambda text: None)


def parameters(trainer) -> dict[str, torch.Tensor]:
    return {n: p for n, p in trainer.model.named_parameters() if p.requires_grad}


def reference(model, rows, labels=None) -> dict[str, torch.Tensor]:
    """The definition, sample by sample, in float64."""
    state, model = model.state_dict(), build_model()
    model.load_state_dict(state)
    model = model.double().eval()
    named = dict(model.named_parameters())
    sums, tokens = {n: torch.zeros_like(p) for n, p in named.items()}, 0
    for number, row in enumerate(rows):
        targets = torch.tensor(row["labels"] if labels is None else labels[number])[1:]
        logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
        places = targets != -100
        likelihood = logits.log_softmax(-1)[places, targets[places]].sum()
        for total, gradient in zip(sums.values(), torch.autograd.grad(likelihood, list(named.values())), strict=True):
            total += gradient**2
        tokens += int(places.sum())
    return {n: total / tokens for n, total in sums.items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 2e-5) -> None:
    """Elementwise, relative to each tensor's largest value."""
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert float((value - expected[name]).abs().max()) <= tolerance * float(expected[name].max()), name


# ----------------------------------------------------------------------------------------------------------- the Fisher


def test_empirical_fisher_is_its_definition(tmp_path, old):
    trainer = trainer_with(tmp_path)
    host = host_of(trainer)
    rows = host.rows(old)
    assert any(label == -100 for label in rows[0]["labels"]), "prompts are to be left out of the likelihood"
    before = weights(trainer)
    found = diagonal_fisher(host, parameters(trainer), rows, sampled=False, seed=0)
    assert_same(found.values, reference(trainer.model, rows))
    assert found.samples == len(OLD)
    assert found.tokens == sum(label != -100 for row in rows for label in row["labels"][1:])
    assert largest_difference(before, weights(trainer)) == 0.0
    assert all(p.grad is None for p in trainer.model.parameters())
    assert trainer.model.training


def test_sampled_fisher_is_its_definition_for_the_labels_drawn(tmp_path, old, monkeypatch):
    drawn = []
    draw = host_module._drawn

    def note(*args):
        drawn.append(draw(*args))
        return drawn[-1]

    monkeypatch.setattr(host_module, "_drawn", note)
    trainer = trainer_with(tmp_path)
    rows = host_of(trainer).rows(old)
    found = diagonal_fisher(host_of(trainer), parameters(trainer), rows, sampled=True, seed=5)
    labels = [d[0].tolist() for d in drawn]
    assert any(a != b["labels"] for a, b in zip(labels, rows, strict=True))
    assert all(
        (a == -100) == (b == -100)
        for one, row in zip(labels, rows, strict=True)
        for a, b in zip(one[1:], row["labels"][1:], strict=True)
    )
    assert_same(found.values, reference(trainer.model, rows, labels))
    again = diagonal_fisher(host_of(trainer), parameters(trainer), rows, sampled=True, seed=5)
    assert largest_difference(found.values, again.values) == 0.0
    other = diagonal_fisher(host_of(trainer), parameters(trainer), rows, sampled=True, seed=6)
    assert largest_difference(found.values, other.values) > 0.0


def test_draws_depend_on_the_row_and_not_on_how_rows_are_dealt_out(tmp_path, old):
    trainer = trainer_with(tmp_path)
    host = host_of(trainer)
    rows = host.rows(old)
    whole = diagonal_fisher(host, parameters(trainer), rows, sampled=True, seed=1)
    parts = []
    for rank in range(2):
        dealt = ((i, host_module.padded([rows[i]], 64, torch.device("cpu"))) for i in range(rank, len(rows), 2))
        parts += [
            {n: g.square() for n, g in gradients.items()}
            for _, gradients in host_module.sample_gradients(trainer.model, dealt, sampled=True, seed=1)
        ]
    assert_same({n: sum(p[n] for p in parts) / whole.tokens for n in whole.values}, whole.values, 1e-6)


def test_only_rows_with_something_to_predict_are_chosen():
    from datasets import Dataset

    empty, only_first, good = [-100, -100, -100], [5, -100, -100], [-100, 6, 7]
    rows = Dataset.from_list(
        [{"input_ids": [5, 6, 7], "labels": labels} for labels in (empty, good, only_first, good, good)]
    )
    assert [row["labels"] for row in choose_rows(rows, 9, seed=0, label="x")] == [good] * 3
    assert len(choose_rows(rows, 2, seed=0, label="x")) == 2
    with pytest.raises(DataError, match=r"trained tokens in x, found none in 1"):
        choose_rows(rows.select([2]), 1, seed=0, label="x")


def test_a_saved_fisher_comes_back_and_is_whole_or_absent(tmp_path, monkeypatch):
    model = build_model()
    folder, values = random_fisher(tmp_path / "f", model)
    named = dict(model.named_parameters())
    for where in ("device", "cpu", "disk"):
        kept = SavedFisher(folder).kept(named, where)
        assert (
            largest_difference({n: kept[n] if isinstance(kept, dict) else kept.tensor(n) for n in named}, values) == 0.0
        )

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fisher_module, "write_json", full)
    with pytest.raises(Exception, match="No space left"):
        random_fisher(tmp_path / "f", model, seed=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f"]
    assert torch.equal(SavedFisher(folder).kept(named, "cpu")["model.norm.weight"], values["model.norm.weight"])


# ------------------------------------------------------------------------------------------------------------- in a run


def test_computed_in_the_run_is_computed_beforehand(tmp_path, old):
    """The run's own folder holds the Fisher information, which another run from the same start takes as it is."""
    first = trainer_with(tmp_path / "a", EWC(coefficient=30.0, data=old, samples=7))
    first.train()
    saved = SavedFisher(tmp_path / "a" / "run" / "fisher")
    assert saved.record["samples"] == 7
    assert saved.record["data"]["name"] == "old.jsonl"
    second = trainer_with(tmp_path / "b", EWC(coefficient=30.0, fisher=str(saved.folder)))
    second.train()
    assert largest_difference(weights(first), weights(second)) == 0.0


def test_a_resumed_run_does_not_compute_again(tmp_path, old, monkeypatch):
    settings = dict(save_strategy="steps", save_steps=2)
    method = EWC(coefficient=30.0, data=old, estimator="sampled")
    whole = trainer_with(tmp_path, method, **settings)
    whole.train()

    def never(*args, **kwargs):
        raise AssertionError("computed again")

    monkeypatch.setattr("holdfast.retention.methods.ewc.diagonal_fisher", never)
    again = trainer_with(tmp_path, method, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    assert largest_difference(weights(whole), weights(again)) == 0.0
    with pytest.raises(AssertionError, match="computed again"):
        trainer_with(tmp_path, EWC(coefficient=30.0, data=old, estimator="sampled", seed=1)).train()


def test_a_run_does_not_go_on_with_another_fisher(tmp_path):
    settings = dict(save_strategy="steps", save_steps=2)
    folder, _ = random_fisher(tmp_path / "f", build_model())
    trainer_with(tmp_path, EWC(fisher=folder), **settings).train()
    random_fisher(tmp_path / "f", build_model(), seed=1)
    with pytest.raises(ModelError, match="has changed since the run began"):
        trainer_with(tmp_path, EWC(fisher=folder), **settings).train(
            resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4")
        )


def test_online_adds_the_newest_task_to_the_earlier_ones(tmp_path, old):
    earlier, values = random_fisher(
        tmp_path / "earlier", build_model(seed=3)
    )  # of another model: that of the task before
    plain = trainer_with(tmp_path / "plain", EWC(data=old))
    plain.prepare_methods()
    online = trainer_with(tmp_path / "online", EWC(fisher=earlier, data=old, decay=0.25))
    online.prepare_methods()
    newest, together = (t.active[0]._held[1] for t in (plain, online))
    assert largest_difference(together, {n: newest[n] + 0.25 * values[n] for n in newest}) < 1e-6
    assert SavedFisher(tmp_path / "online" / "run" / "fisher").record["earlier"]["decay"] == 0.25
    forgetful = trainer_with(tmp_path / "forgetful", EWC(fisher=earlier, data=old, decay=0.0))
    forgetful.prepare_methods()
    assert largest_difference(forgetful.active[0]._held[1], newest) == 0.0


# ------------------------------------------------------------------------------------------------------------ bad input


def test_a_fisher_of_another_model_is_refused_and_of_the_anchor_taken(tmp_path):
    build_model(seed=4).save_pretrained(tmp_path / "earlier")
    folder, _ = random_fisher(tmp_path / "f", build_model(seed=4))
    named = dict(build_model().named_parameters())
    with pytest.raises(
        ModelError, match=r"was computed on another model \(m\): the values of \d+ of \d+ parameters differ"
    ):
        EWC(fisher=folder).start(Anchors(named))
    for keep in ("device", "cpu", "disk"):
        EWC(fisher=folder, reference=str(tmp_path / "earlier"), reference_device=keep).start(Anchors(named))
    EWC(fisher=folder, data="name/of-hub").start(Anchors(named))  # of an earlier task, by intent


def test_damaged_folders_are_refused(tmp_path):
    model = build_model()
    named = dict(model.named_parameters())
    folder, _ = random_fisher(tmp_path / "f", model)
    record = json.loads((tmp_path / "f" / "fisher.json").read_text())
    del record["model"]["weights"]["model.norm.weight"]
    (tmp_path / "f" / "fisher.json").write_text(json.dumps(record))
    with pytest.raises(ModelError, match=r"do not match; 1 tensors are in one of them only: model\.norm\.weight"):
        EWC(fisher=folder).start(Anchors(named))
    (tmp_path / "f" / "fisher.json").write_text("{}")
    with pytest.raises(ModelError, match="does not describe a Fisher diagonal"):
        EWC(fisher=folder).start(Anchors(named))
    random_fisher(tmp_path / "f", model)
    content = (tmp_path / "f" / "fisher.safetensors").read_bytes()
    (tmp_path / "f" / "fisher.safetensors").write_bytes(content[:-8])
    with pytest.raises(ModelError, match="whole safetensors file"):
        EWC(fisher=folder).start(Anchors(named))


def test_gradients_that_are_not_finite_are_refused(tmp_path, old):
    trainer = trainer_with(tmp_path, EWC(data=old))
    with torch.no_grad():
        trainer.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ModelError, match="logits are not finite"):
        trainer.prepare_methods()
    assert not (tmp_path / "run" / "fisher").exists()
