"""Token weighting in a trainer: the loss and gradient of every kind against whole logits and autograd in float64, and
what the start model's pass is kept for."""

from __future__ import annotations

import math
import re

import pytest
import torch
from cases import CACHE, history, make_trainer, rows, weights

from holdfast.data.mixing import GENERATED, ORIGIN
from holdfast.errors import ConfigError, DataError
from holdfast.retention.registry import retention
from holdfast.retention.token_weighting import document_means
from holdfast.training import start_losses
from tiny import build_model

END = 0
"""The tiny tokenizer's end of text."""


def start_model():
    """In float64, with an opinion: some tokens, and some documents, surprise it more than others."""
    model = build_model().double()
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(10)
    return model


def trainer_of(folder, kind, *, beside=None, **more):
    """A trainer whose student is away from the start, in float64, prepared; and the start."""
    parameters = {k: v for k, v in more.items() if k in ("alpha", "coefficient", "threshold", "mask_end", "normalise")}
    settings = {k: v for k, v in more.items() if k not in parameters}
    where = {"cache_dir": CACHE} if kind in ("stm", "flow") else {}
    trainer = make_trainer(
        folder,
        {"token_weighting": {"kind": kind, **where, **parameters}, **(beside or {})},
        model=start_model(),
        **settings,
    )
    trainer.prepare_methods()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return trainer, start_model()


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


def by_definition(kind, trainer, start, batch, *, tau=None, temperature=None):
    """The weights, from the papers' formulas."""
    logits, ce, trained = cross_entropies(trainer.model, batch)
    _, before, _ = cross_entropies(start, batch)
    if kind == "eaft":
        r = logits.topk(20).values.softmax(-1)
        w = (torch.special.entr(r).sum(-1) / 3) ** 0.7
    elif kind == "dft":
        w = (-ce).exp()
    elif kind == "talr":
        w = (-ce / tau).exp().clamp(min=0.01)
    elif kind == "stm":
        w = ((before.exp() <= 260) | (batch["labels"][:, 1:] == END)).double()
    else:
        w = torch.zeros_like(ce)
        for row, first, length in pieces(batch):
            part = slice(first, first + length - 1)
            held = trained[row, part]
            if held.any():
                w[row, part] = torch.exp(-before[row, part][held].mean() / temperature)
    return w.detach(), ce, trained


CASES = {"eaft": {"alpha": 0.7}, "dft": {}, "talr": {}, "stm": {"threshold": 260.0}, "flow": {}}


@pytest.mark.parametrize(("packing", "coefficient"), [(False, 1.0), (True, 0.4)], ids=["padded", "packed, blended"])
@pytest.mark.parametrize("kind", CASES)
def test_loss_and_gradient_are_as_published(kind, coefficient, packing, tmp_path):
    settings = {"packing": True, "max_length": 96, "per_device_train_batch_size": 3} if packing else {}
    trainer, start = trainer_of(tmp_path, kind, coefficient=coefficient, **CASES[kind], **settings)
    given = {}
    if kind == "talr":
        trainer._weigher.tau = given["tau"] = 4.5
    if kind == "flow":
        given["temperature"] = trainer._weigher.temperature
    batch = next(iter(trainer.get_train_dataloader()))
    loss = trainer.compute_loss(trainer.model.train(), batch)
    loss.backward()
    found = {n: p.grad.clone() for n, p in trainer.model.named_parameters()}
    trainer.model.zero_grad()
    w, ce, trained = by_definition(kind, trainer, start, batch, **given)
    assert w[trained].std() > 1e-3, "the weights differ from token to token"
    w = 1 - coefficient + coefficient * w
    expected = (w * ce)[trained].sum() / trained.sum()
    expected.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)  # losses are kept in float32
    for name, parameter in trainer.model.named_parameters():
        error = (found[name] - parameter.grad).norm() / parameter.grad.norm()
        assert error < 1e-5, name
    assert float(trainer._sums["train"][0]) == pytest.approx(float(ce.detach().sum()), rel=1e-9)  # the model's own
    assert float(trainer._sums["train"][-1]) == pytest.approx(float(w[trained].sum()), rel=1e-6)


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
    for methods in ({}, {"token_weighting": {"kind": "stm", "cache_dir": CACHE, "threshold": 260.0}}):
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
    seen = trainer._weigher.saw_losses

    def watched(inputs, labels, ce):
        seen(inputs, labels, ce)
        trained = (labels[:, 1:] != -100).sum(1)
        means.append((ce.sum(1) / trained).tolist())

    trainer._weigher.saw_losses = watched
    trainer.train()
    assert len(means) == 4
    first, second = (sorted([*means[i], *means[i + 1]]) for i in (0, 2))
    assert history(trainer, "ce_weight")[0] == 1.0 != history(trainer, "ce_weight")[1]
    assert history(trainer, "tau")[0] == pytest.approx((first[3] + first[4]) / 2, rel=1e-6)
    assert history(trainer, "tau")[1] == pytest.approx((second[3] + second[4]) / 2, rel=1e-6)


def test_tokens_without_a_cross_entropy_steer_no_weight(tmp_path):
    """Text of the start model that carries the KL alone is easy by nature: neither T nor tau is to hear of it."""
    generated = {"fraction": 0.5, "max_new_tokens": 16, "batch_size": 4, "cache_dir": str(tmp_path / "s"), "ce": False}
    beside = {"label_annealing": {"weight": 1.0}, "self_replay": generated}
    flow = {"token_weighting": {"kind": "flow", "normalise": True, "cache_dir": str(tmp_path / "l")}}
    alone, both = (make_trainer(tmp_path, found) for found in (flow, {**flow, **beside}))
    for trainer in (alone, both):
        trainer.prepare_methods()
    assert both.data_info["mixed"] and both._weigher.temperature == pytest.approx(alone._weigher.temperature, rel=1e-12)
    assert both._weigher._mean == pytest.approx(alone._weigher._mean, rel=1e-12)
    counted = {**flow, **beside, "self_replay": {**generated, "ce": True}}
    more = make_trainer(tmp_path, counted)
    more.prepare_methods()
    assert more._weigher.temperature != pytest.approx(alone._weigher.temperature, rel=1e-6)
    talr = make_trainer(tmp_path, {"token_weighting": {"kind": "talr"}, **beside}, per_device_train_batch_size=6)
    seen = []
    talr._weigher.saw_losses = lambda inputs, labels, ce: seen.append(labels)
    for batch in talr.get_train_dataloader():
        wanted = torch.where((batch[ORIGIN] == GENERATED), -100, batch["labels"])[:, 1:]
        talr.compute_loss(talr.model.train(), dict(batch))
        assert torch.equal(seen[-1][:, 1:], wanted)
    assert any((labels[:, 1:] == -100).all(1).any() for labels in seen), "some rows are the start model's"


@pytest.mark.parametrize("kind", ["flow", "talr"])
def test_documents_are_not_cut_where_they_are_weighed_as_wholes(kind, tmp_path):
    said = r"packing_strategy: expected bfd or bfd_split with .*, got wrapped, .* bfd_split cuts only those longer "
    with pytest.raises(ConfigError, match=said + "than max_length, and each piece has a mean of its own"):
        make_trainer(tmp_path, {"token_weighting": {"kind": kind}}, packing=True, packing_strategy="wrapped")
    make_trainer(tmp_path, {"token_weighting": {"kind": "eaft"}}, packing=True, packing_strategy="wrapped")


def test_pieces_of_a_split_document_have_means_of_their_own(tmp_path):
    """As the message on other strategies says of `bfd_split`."""
    from datasets import Dataset

    method = {"token_weighting": {"kind": "flow", "cache_dir": CACHE}}
    data = Dataset.from_list([{"text": " ".join(f"Sentence {n} stands here." for n in range(40))}])
    found = {}
    for strategy in ("bfd", "bfd_split"):
        packed = {"packing": True, "packing_strategy": strategy, "max_length": 96}
        trainer = make_trainer(tmp_path, method, data=data, model=start_model(), **packed)
        trainer.prepare_methods()
        found[strategy] = trainer._weigher.losses.means()
    assert len(found["bfd"][0]) == 1 < len(found["bfd_split"][0]) == len(set(found["bfd_split"][0].tolist()))
    assert found["bfd"][1].tolist() == [95.0] and 95.0 in found["bfd_split"][1].tolist()


def test_documents_have_their_own_means():
    labels = torch.tensor([[-100, 5, 6, -100, 7, 8], [1, -100, -100, 2, -100, -100]])
    inputs = {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 0, 1]])}
    ce = torch.arange(10.0).view(2, 5)
    means, counts, document = document_means(inputs, labels, ce)
    assert document.tolist() == [[0, 0, 1, 1, 1], [2, 3, 3, 4, 4]]
    assert means.tolist() == [0.5, 3.5, 0.0, 7.0, 0.0] and counts.tolist() == [2, 2, 0, 1, 0]
    assert document_means({}, labels, ce)[0].tolist() == [2.0, 7.0]


# --------------------------------------------------------------------------------------------------- the start's pass


def test_the_ends_of_texts_are_kept_unless_asked(tmp_path):
    trainer, _ = trainer_of(tmp_path, "stm", threshold=1.5)
    batch = next(iter(trainer.get_train_dataloader()))
    kept = trainer._weigher.token_weights(batch, batch["labels"]).given_BS
    labels = batch["labels"][:, 1:]
    assert trainer._weigher._ends == (END,) and (labels == END).any()
    assert (kept[labels == END] == 1).all()
    published, _ = trainer_of(tmp_path, "stm", threshold=1.5, mask_end=True)
    masked = published._weigher.token_weights(batch, batch["labels"]).given_BS
    assert (masked[labels == END] == 0).any() and torch.equal(masked[labels != END], kept[labels != END])


@pytest.mark.parametrize("mask_end", [False, True])
def test_the_share_that_is_masked_is_said(mask_end, tmp_path):
    where = {"threshold": 260.0, "mask_end": mask_end, "cache_dir": CACHE}
    trainer = make_trainer(tmp_path, {"token_weighting": {"kind": "stm", **where}}, model=start_model())
    said = []
    trainer.prepare_methods(said.append)
    count = masked = 0
    for batch in trainer.get_train_dataloader():
        _, before, trained = cross_entropies(start_model(), batch)
        counted = trained if mask_end else trained & (batch["labels"][:, 1:] != END)
        count, masked = count + int(counted.sum()), masked + int((before.exp() > 260)[counted].sum())
    assert 0 < masked < count
    of = "tokens" if mask_end else "tokens other than ends of texts"
    assert f"Selective token masking: {masked / count:.1%} of {count:,} trained {of} are masked." in said


@pytest.mark.parametrize("mask_end", [False, True])
def test_normalised_masking_leaves_the_mean_over_what_is_kept(mask_end, tmp_path):
    """Over all data, as the published code has it of each batch."""
    trainer, start = trainer_of(tmp_path, "stm", threshold=260.0, mask_end=mask_end, normalise=True)
    losses, kept, total = 0.0, [], 0
    for batch in trainer.get_train_dataloader():
        with torch.no_grad():
            _, before, trained = cross_entropies(start, batch)
        given = trainer._weigher.token_weights(batch, batch["labels"]).given_BS
        losses, total = losses + float((given * before)[trained].sum()), total + int(trained.sum())
        is_kept = (before.exp() <= 260) | ((batch["labels"][:, 1:] == END) & (not mask_end))
        assert not given[trained & ~is_kept].any()
        kept += before[trained & is_kept].tolist()
    assert 0 < len(kept) < total
    assert losses / total == pytest.approx(sum(kept) / len(kept), rel=1e-5)


def test_flows_published_weights_train_less_and_normalised_ones_alike(tmp_path):
    """The median document at exp(-1), against a mean of 1 over the trained tokens of all data."""
    published, _ = trainer_of(tmp_path, "flow")
    normalised, _ = trainer_of(tmp_path, "flow", normalise=True)
    total, weight, documents = 0, 0.0, []
    for batch in published.get_train_dataloader():
        trained = batch["labels"][:, 1:] != -100
        total += int(trained.sum())
        weight += float(normalised._weigher.token_weights(batch, batch["labels"]).given_BS[trained].sum())
        documents += published._weigher.token_weights(batch, batch["labels"]).given_BS[:, 0].tolist()
    assert weight / total == pytest.approx(1.0, rel=1e-6)
    assert sorted(documents)[23] <= math.exp(-1) <= sorted(documents)[24] and documents[0] != documents[1]


def test_the_pass_is_made_once_for_all_runs_from_the_same_start(tmp_path, monkeypatch):
    method = {"token_weighting": {"kind": "flow", "cache_dir": CACHE}}
    first = make_trainer(tmp_path, method)
    first.train()

    def unneeded(*args, **kwargs):
        raise AssertionError("a pass that has been made")

    monkeypatch.setattr(start_losses.LossCache, "_compute", unneeded)
    again = make_trainer(tmp_path, method, learning_rate=1e-3)
    again.train()
    assert again._weigher.temperature == first._weigher.temperature
    stm = make_trainer(tmp_path, {"token_weighting": {"kind": "stm", "threshold": 260.0, "cache_dir": CACHE}})
    stm.prepare_methods()  # another kind reads the same losses
    with pytest.raises(AssertionError, match="has been made"):
        make_trainer(tmp_path, method, model=build_model(seed=5)).prepare_methods()


def test_what_is_kept_is_the_starts_cross_entropy(tmp_path):
    trainer, start = trainer_of(tmp_path, "stm", packing=True, max_length=96)
    for batch in trainer.get_train_dataloader():
        _, expected, trained = cross_entropies(start, batch)
        found = trainer._weigher.losses.of(batch)
        torch.testing.assert_close(found[trained].double(), expected[trained].detach(), rtol=1e-5, atol=1e-5)


def test_a_stream_has_no_pass(tmp_path):
    from datasets import Dataset

    stream = Dataset.from_list(rows()).to_iterable_dataset()
    trainer = make_trainer(tmp_path, {"token_weighting": {"kind": "flow", "cache_dir": CACHE}}, data=stream)
    with pytest.raises(ConfigError, match=r"token_weighting.kind: flow has to see the whole data.*eaft, dft, talr"):
        trainer.train()


def test_images_have_no_pass(tmp_path):
    with pytest.raises(ConfigError, match=r"token_weighting.kind: expected eaft, dft or talr where rows hold images"):
        make_trainer(tmp_path, {"token_weighting": {"kind": "stm"}}, images="llava")


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("mask_end", [False, True])
def test_weights_that_vanish_everywhere_are_refused(mask_end, tmp_path):
    """Before the first step, and also where ends of texts would still be learnt."""
    method = {"token_weighting": {"kind": "stm", "threshold": 1.5, "mask_end": mask_end, "cache_dir": CACHE}}
    trainer = make_trainer(tmp_path, method)
    before = weights(trainer)
    of = "tokens" if mask_end else "tokens other than ends of texts"
    with pytest.raises(
        DataError, match=rf"threshold: .* got 1.5, which masks all [\d,]+ trained {of} \(100 %\)"
    ) as said:
        trainer.train()
    assert all(torch.equal(before[n], p) for n, p in weights(trainer).items())
    lowest = float(re.search(r"the lowest is ([\d.]+)", str(said.value)).group(1))
    above = {"token_weighting": {**method["token_weighting"], "threshold": lowest * 1.001}}
    make_trainer(tmp_path, above).prepare_methods()
    below = {"token_weighting": {**method["token_weighting"], "threshold": lowest * 0.999}}
    with pytest.raises(DataError, match="which masks all"):
        make_trainer(tmp_path, below).prepare_methods()


def test_masked_tokens_may_keep_a_part_of_their_weight(tmp_path):
    method = {"kind": "stm", "threshold": 1.5, "mask_end": True, "cache_dir": CACHE, "coefficient": 0.9}
    blended = make_trainer(tmp_path, {"token_weighting": method})
    blended.train()
    assert history(blended, "ce_weight")[-1] == pytest.approx(0.1)
    with pytest.raises(DataError, match="which masks all"):  # weights of 0 have no mean to be divided by
        make_trainer(tmp_path, {"token_weighting": {**method, "normalise": True}}).train()


def test_a_step_of_no_weight_is_no_end(tmp_path):
    """Rows that all surprise the start may come together by chance; from the beginning on they do not."""
    from holdfast.retention.method import TokenWeights

    def trained(weightless, **settings):
        trainer = make_trainer(tmp_path, {"token_weighting": {"kind": "eaft"}}, **settings)

        def weigh(inputs, labels):
            value = 0.0 if trainer.state.global_step in weightless else 1.0
            return TokenWeights(given_BS=torch.full(labels[:, 1:].shape, value))

        trainer._weigher.token_weights = weigh
        trainer.train()
        return trainer

    assert trained({0, 1, 3}, max_steps=5).state.global_step == 5
    with pytest.raises(DataError, match="of step 4 and of all steps before it, so that nothing would be learnt"):
        trained(set(range(9)), max_steps=4)
    with pytest.raises(DataError, match="of step 10 and of all steps before it"):
        trained(set(range(99)), max_steps=30)


def test_one_method_weighs_tokens(tmp_path):
    with pytest.raises(ConfigError, match="one method that weighs tokens, got token_weighting and token_weighting"):
        make_trainer(tmp_path, {"token_weighting": {"kind": "eaft"}}, loss_type="dft")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kind": "dft", "alpha": 2.0}, "alpha: .*kind: eaft only, got kind 'dft'"),
        ({"kind": "eaft", "floor": 0.5}, "floor: .*kind: talr only"),
        ({"kind": "talr", "threshold": 3.0}, "threshold: .*kind: stm only"),
        ({"kind": "dft", "normalise": True}, "normalise: .*kind: stm or flow only"),
        ({"kind": "dft", "cache_dir": "x"}, "cache_dir: .*kind: stm or flow only"),
        ({"kind": "stm", "threshold": 1.0}, "threshold.*above 1"),
        ({"coefficient": 1.5}, "coefficient.*1.5"),
        ({"kind": "entropy"}, "kind.*'entropy'"),
    ],
)
def test_parameters_that_say_nothing_or_too_much_are_refused(parameters, message):
    with pytest.raises(ConfigError, match=message):
        retention({"token_weighting": parameters})
