"""Token weighting in a trainer: the loss and gradient of every kind against whole logits and autograd in float64."""

from __future__ import annotations

import pytest
import torch
from cases import history, make_trainer

from holdfast.errors import ConfigError, DataError
from holdfast.retention.anchor import Anchors
from holdfast.retention.registry import retention
from tiny import build_model


def start_model():
    """In float64, with an opinion: some tokens, and some documents, surprise it more than others."""
    model = build_model().double()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(10)
    return model


def trainer_of(folder, kind, *, beside=None, **more):
    """A trainer whose student is away from the start, in float64, prepared."""
    parameters = {k: v for k, v in more.items() if k in ("alpha", "coefficient")}
    settings = {k: v for k, v in more.items() if k not in parameters}
    trainer = make_trainer(
        folder,
        {"token_weighting": {"kind": kind, **parameters}, **(beside or {})},
        model=start_model(),
        **settings,
    )
    trainer.prepare_methods()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return trainer


def pieces(batch):
    """(row, first position, positions) of the documents."""
    found = []
    for row in range(len(batch["input_ids"])):
        ids = batch["input_ids"][row]
        position_ids = batch.get("position_ids")
        starts = [0] if position_ids is None else (position_ids[row] == 0).nonzero().flatten().tolist()
        found += [(row, a, b - a) for a, b in zip(starts, [*starts[1:], len(ids)], strict=True)]
    return found


def cross_entropies(model, batch):
    """Logits and cross-entropies `[B, T-1]` of each document by itself, over the trained tokens."""
    labels = batch["labels"][:, 1:]
    trained = labels != -100
    logits = torch.zeros(*labels.shape, 320, dtype=torch.float64)
    for row, start, length in pieces(batch):
        if length > 1:
            own = model(input_ids=batch["input_ids"][row : row + 1, start : start + length]).logits[0]
            logits = logits.clone()
            logits[row, start : start + length - 1] = own[:-1]
    chosen = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return logits, torch.where(trained, -chosen, 0.0), trained


def by_definition(kind, trainer, batch, *, tau=None):
    """The weights, from the papers' formulas."""
    logits, ce, trained = cross_entropies(trainer.model, batch)
    if kind == "eaft":
        r = logits.topk(20).values.softmax(-1)
        w = (torch.special.entr(r).sum(-1) / 3) ** 0.7
    elif kind == "dft":
        w = (-ce).exp()
    else:
        w = (-ce / tau).exp().clamp(min=0.01)
    return w.detach(), ce, trained


CASES = {"eaft": {"alpha": 0.7}, "dft": {}, "talr": {}}


@pytest.mark.parametrize(("packing", "coefficient"), [(False, 1.0), (True, 0.4)], ids=["padded", "packed, blended"])
@pytest.mark.parametrize("kind", CASES)
def test_loss_and_gradient_are_as_published(kind, coefficient, packing, tmp_path):
    settings = {"packing": True, "max_length": 96, "per_device_train_batch_size": 3} if packing else {}
    trainer = trainer_of(tmp_path, kind, coefficient=coefficient, **CASES[kind], **settings)
    given = {}
    if kind == "talr":
        trainer._weighed.active.tau = given["tau"] = 4.5
    batch = next(iter(trainer.get_train_dataloader()))
    loss = trainer.compute_loss(trainer.model.train(), batch)
    loss.backward()
    found = {n: p.grad.clone() for n, p in trainer.model.named_parameters()}
    trainer.model.zero_grad()
    w, ce, trained = by_definition(kind, trainer, batch, **given)
    assert w[trained].std() > 1e-3, "the weights differ from token to token"
    w = 1 - coefficient + coefficient * w
    expected = (w * ce)[trained].sum() / trained.sum()
    expected.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    for name, parameter in trainer.model.named_parameters():
        error = (found[name] - parameter.grad).norm() / parameter.grad.norm()
        assert error < 1e-5, name
    assert float(trainer.sums.since_log["train"][0]) == pytest.approx(
        float(ce.detach().sum()), rel=1e-9
    )  # the model's own
    assert float(trainer.sums.since_log["train"][-1]) == pytest.approx(float(w[trained].sum()), rel=1e-6)


def test_the_kl_term_is_without_weights(tmp_path):
    """Both terms, away from the start: the weighted loss, and what label annealing's has more than the plain one."""
    losses = {}
    for name, methods in {
        "both": {"token_weighting": {"kind": "eaft"}, "label_annealing": {"weight": 0.7}},
        "weighted": {"token_weighting": {"kind": "eaft"}},
        "annealed": {"label_annealing": {"weight": 0.7}},
        "direct": {},
    }.items():
        trainer = make_trainer(tmp_path, methods)
        with torch.no_grad():
            torch.manual_seed(0)
            for parameter in trainer.model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        batch = next(iter(trainer.get_train_dataloader()))
        losses[name] = float(trainer.compute_loss(trainer.model.train(), batch))
    assert losses["annealed"] > losses["direct"] + 0.01
    expected = losses["weighted"] + losses["annealed"] - losses["direct"]
    assert losses["both"] == pytest.approx(expected, rel=1e-5)


def test_an_evaluation_is_without_weights(tmp_path):
    from datasets import Dataset

    held_out = Dataset.from_list([{"text": "Of other words than those that are trained on."}])
    found = []
    for methods in ({}, {"token_weighting": {"kind": "dft"}}):
        trainer = make_trainer(tmp_path, methods, evaluated=held_out)
        found.append(trainer.evaluate()["eval_loss"])
    assert found[0] == found[1]


# --------------------------------------------------------------------------------------------------------------- TALR


def test_tau_is_the_median_of_the_step_before(tmp_path):
    trainer = make_trainer(
        tmp_path,
        {"token_weighting": {"kind": "talr"}},
        learning_rate=0.0,
        max_steps=2,
        logging_steps=1,
        gradient_accumulation_steps=2,
    )
    means = []
    seen = trainer._weighed.active.after_loss

    def watched(inputs, labels, ce):
        seen(inputs, labels, ce)
        trained = (labels[:, 1:] != -100).sum(1)
        means.append((ce.sum(1) / trained).tolist())

    trainer._weighed.active.after_loss = watched
    trainer.train()
    assert len(means) == 4
    first, second = (sorted([*means[i], *means[i + 1]]) for i in (0, 2))
    assert history(trainer, "ce_weight")[0] == 1.0 != history(trainer, "ce_weight")[1]
    assert history(trainer, "tau")[0] == pytest.approx((first[3] + first[4]) / 2, rel=1e-6)
    assert history(trainer, "tau")[1] == pytest.approx((second[3] + second[4]) / 2, rel=1e-6)


# ------------------------------------------------------------------------------------------------------------ refusals


def test_token_weighting_keeps_tau_in_a_checkpoint():
    [method] = retention([{"token_weighting": {"kind": "talr"}}])
    active, again = (method.start(Anchors({})) for _ in range(2))
    active.tau = 2.5
    again.load_state_dict(active.state_dict())
    assert again.tau == 2.5


def test_a_step_of_no_weight_is_no_end(tmp_path):
    """Rows that all surprise the start may come together by chance; from the beginning on they do not."""

    def trained(weightless, **settings):
        trainer = make_trainer(tmp_path, {"token_weighting": {"kind": "eaft"}}, **settings)

        def weigh(batch):
            value = 0.0 if batch.step - 1 in weightless else 1.0
            batch.weigh(torch.full(batch.labels_BT[:, 1:].shape, value))

        trainer._losses = [weigh]
        trainer.train()
        return trainer

    assert trained({0, 1, 3}, max_steps=5).state.global_step == 5
    with pytest.raises(
        DataError, match=r"of step 4 have weight 0, like all tokens before it\. Nothing would be learnt"
    ):
        trained(set(range(9)), max_steps=4)
    with pytest.raises(DataError, match="of step 10 have weight 0, like all tokens"):
        trained(set(range(99)), max_steps=30)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kind": "dft", "alpha": 2.0}, "alpha: applies only with kind: eaft, got kind 'dft'"),
        ({"kind": "eaft", "floor": 0.5}, "floor: applies only with kind: talr"),
        ({"coefficient": 1.5}, "coefficient.*1.5"),
        ({"kind": "entropy"}, "kind.*'entropy'"),
    ],
)
def test_parameters_that_say_nothing_or_too_much_are_refused(parameters, message):
    with pytest.raises(ConfigError, match=message):
        retention({"token_weighting": parameters})
