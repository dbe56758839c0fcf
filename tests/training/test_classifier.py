"""Retention methods on a small network: the same laws as on language models, on digits."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from holdfast.data.images import read_images, write_samples
from holdfast.errors import ConfigError, DataError, ModelError, TrainingDiverged
from holdfast.retention.fisher import SavedFisher
from holdfast.retention.methods.budget import Budget
from holdfast.retention.methods.ema import ExponentialAverage
from holdfast.retention.methods.ewc import EWC
from holdfast.retention.methods.l2 import L2
from holdfast.retention.methods.label_annealing import LabelAnnealing
from holdfast.retention.methods.multitask import Multitask
from holdfast.retention.methods.replay import Replay
from holdfast.retention.methods.sfa import SequentialAveraging
from holdfast.retention.methods.wise_ft import WiseFT
from holdfast.training.classifier import (
    Classes,
    FitSettings,
    Network,
    Samples,
    fit,
    load_network,
    read_samples,
    save_network,
)

EVEN, ODD = (0, 2, 4, 6, 8), (1, 3, 5, 7, 9)
SETTINGS = FitSettings(learning_rate=0.2, max_steps=30, per_device_train_batch_size=16)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Both tasks as files, by name."""
    digits, place = read_images("digits"), tmp_path_factory.mktemp("digits")
    found = {}
    for name, classes in (("even", EVEN), ("odd", ODD)):
        found |= write_samples(place, name, digits.of_classes(classes))
    return {name: str(path) for name, path in found.items()}


@pytest.fixture(scope="module")
def learnt(files):
    """A network that knows the even digits."""
    model = Network(inputs=64, hidden=(16,), outputs=10)
    fit(model, read_samples(files["even_train"]), FitSettings(learning_rate=0.2, max_steps=200))
    return model


def after_odd(learnt, files, *retain, settings=SETTINGS, **more):
    model = copy.deepcopy(learnt)
    return model, fit(model, read_samples(files["odd_train"]), settings, retain=retain, **more)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def accuracy(model, file):
    samples = read_samples(file)
    with torch.no_grad():
        return float((model(samples.inputs).argmax(1) == samples.labels).float().mean())


def test_the_second_task_overwrites_the_first(learnt, files):
    model, fitted = after_odd(learnt, files)
    assert fitted.steps == 30 and fitted.samples == 480
    assert accuracy(learnt, files["even_heldout"]) > 0.9
    assert accuracy(model, files["even_heldout"]) < 0.6 < accuracy(model, files["odd_heldout"])


@pytest.mark.parametrize(
    "method",
    [
        LabelAnnealing(weight=0.0),
        L2(coefficient=0.0),
        EWC(coefficient=0.0, data="none"),
        SequentialAveraging(beta=0.0),
        WiseFT(alpha=1.0),
        ExponentialAverage(decay=0.0),
        Replay(fraction=0.0, data="none"),
    ],
)
def test_off_is_plain_training(learnt, files, method):
    assert torch.equal(weights(after_odd(learnt, files, method)[0]), weights(after_odd(learnt, files)[0]))


def test_averages(learnt, files):
    plain = after_odd(learnt, files)[0]
    start = weights(learnt)
    assert torch.equal(weights(after_odd(learnt, files, WiseFT(alpha=0.0))[0]), start)
    half = weights(after_odd(learnt, files, SequentialAveraging(p=1.0))[0])
    torch.testing.assert_close(half, (weights(plain) + start) / 2)
    often, fitted = after_odd(learnt, files, SequentialAveraging(p=0.1))
    assert fitted.final["sfa_averages"] == 10
    assert (weights(often) - start).norm() < (half - start).norm()


def reference(learnt, files, penalty, *, steps=5, rate=0.2, batch=16):
    """Plain SGD in float64 with a term added to the loss."""
    samples, model = read_samples(files["odd_train"]), copy.deepcopy(learnt).double()
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(samples.labels), generator=generator).split(batch)
    for numbers in order[:steps]:
        inputs, labels = samples.inputs[numbers].double(), samples.labels[numbers]
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, labels) + penalty(model, inputs, logits)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= rate * p.grad
    return weights(model)


FIVE = FitSettings(learning_rate=0.2, max_steps=5, per_device_train_batch_size=16)


def close(model, expected):
    torch.testing.assert_close(weights(model).double(), expected, atol=1e-5, rtol=1e-4)


def test_l2_is_its_equation(learnt, files):
    anchor = weights(learnt).double()

    def penalty(model, inputs, logits):
        return 0.3 / 2 * (torch.cat([p.flatten() for p in model.parameters()]) - anchor).square().sum()

    close(after_odd(learnt, files, L2(coefficient=0.3), settings=FIVE)[0], reference(learnt, files, penalty))


def kl(theirs, mine, temperature):
    first, second = (theirs / temperature).log_softmax(1), (mine / temperature).log_softmax(1)
    return (first.exp() * (first - second)).sum(1).mean()


def test_label_annealing_is_its_equation(learnt, files):
    teacher = copy.deepcopy(learnt).double()

    def penalty(model, inputs, logits):
        with torch.no_grad():
            held = teacher(inputs)
        return 2.0 * kl(held, logits, 2.0)

    model, fitted = after_odd(learnt, files, LabelAnnealing(weight=2.0, temperature=2.0), settings=FIVE)
    close(model, reference(learnt, files, penalty))
    assert fitted.final["kl"] > 0


def test_what_the_teacher_knows_alone(learnt, files):
    """Learning without forgetting: the KL over the old classes, the loss over all."""
    teacher = copy.deepcopy(learnt).double()

    def penalty(model, inputs, logits):
        with torch.no_grad():
            held = teacher(inputs)
        return kl(held[:, list(EVEN)], logits[:, list(EVEN)], 1.0)

    classes = Classes(known=(EVEN,))
    model, _ = after_odd(learnt, files, LabelAnnealing(weight=1.0), settings=FIVE, classes=classes)
    close(model, reference(learnt, files, penalty))


def test_a_softmax_over_the_tasks_own_classes(learnt, files):
    """Where the task is known at a question the other one's outputs get no gradient."""
    model, _ = after_odd(learnt, files, settings=FIVE, classes=Classes(groups=(EVEN, ODD)))
    assert torch.equal(model.output.bias[list(EVEN)], learnt.output.bias[list(EVEN)])
    assert not torch.equal(model.output.bias[list(ODD)], learnt.output.bias[list(ODD)])
    with pytest.raises(DataError, match="expected classes among"):
        after_odd(learnt, files, settings=FIVE, classes=Classes(groups=(EVEN,)))


@pytest.mark.parametrize("estimator", ["empirical", "sampled"])
def test_fisher_information(learnt, files, tmp_path, estimator):
    """The mean over samples of squared gradients, sample by sample."""
    method = EWC(coefficient=1.0, data=files["even_train"], samples=12, estimator=estimator)
    after_odd(learnt, files, method, settings=FIVE, folder=tmp_path)
    saved = SavedFisher(tmp_path / "fisher")
    assert saved.record["samples"] == 12
    found = saved.reader.tensor("output.bias")
    assert found.shape == (10,) and float(found.sum()) > 0
    if estimator == "empirical":
        again = copy.deepcopy(learnt)
        fit(again, read_samples(files["odd_train"]), FIVE, retain=[method], folder=tmp_path)  # the kept one
        assert torch.equal(weights(again), weights(after_odd(learnt, files, method, settings=FIVE)[0]))


def test_ewc_is_its_equation(learnt, files):
    every = read_samples(files["even_train"])
    anchor, squares = weights(learnt).double(), torch.zeros_like(weights(learnt).double())
    model = copy.deepcopy(learnt).double()
    for one, label in zip(every.inputs.double(), every.labels, strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(one[None]), label[None]).backward()
        squares += torch.cat([p.grad.flatten() for p in model.parameters()]).square()
    squares /= len(every.labels)

    def penalty(model, inputs, logits):
        return 50 / 2 * (squares * (torch.cat([p.flatten() for p in model.parameters()]) - anchor).square()).sum()

    method = EWC(coefficient=50.0, data=files["even_train"], samples=len(every.labels))
    close(after_odd(learnt, files, method, settings=FIVE)[0], reference(learnt, files, penalty))


def test_old_data(learnt, files):
    model, fitted = after_odd(learnt, files, Replay(data=files["even_train"], fraction=0.5))
    assert fitted.data[0]["replay_examples"] == pytest.approx(fitted.data[0]["train_examples"], abs=1)
    assert accuracy(model, files["even_heldout"]) > accuracy(after_odd(learnt, files)[0], files["even_heldout"]) + 0.2
    _, fitted = after_odd(learnt, files, Multitask(data=files["even_train"]))
    assert fitted.data[0]["replay_examples"] == len(read_samples(files["even_train"]).labels)


def test_a_budget(learnt, files):
    """The KL on held-out samples of the old task stays within it."""
    method = [LabelAnnealing(weight=1.0), Budget(kl=0.05, data=files["even_heldout"], every=5)]
    model, _ = after_odd(learnt, files, *method)
    assert accuracy(model, files["even_heldout"]) > accuracy(after_odd(learnt, files)[0], files["even_heldout"])


def test_equal_seeds_equal_weights(learnt, files):
    same = [weights(after_odd(learnt, files, SequentialAveraging(p=0.25))[0]) for _ in range(2)]
    assert torch.equal(*same)
    other = FitSettings(learning_rate=0.2, max_steps=30, per_device_train_batch_size=16, seed=1)
    assert not torch.equal(same[0], weights(after_odd(learnt, files, settings=other)[0]))


def test_any_module(files):
    """Convolutions, dropout, Adam with clipping."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, 10)
    )
    settings = FitSettings(learning_rate=3e-3, optim="adam", num_train_epochs=4, max_grad_norm=1.0)
    fit(model, read_samples(files["even_train"]), settings)
    fit(model, read_samples(files["odd_train"]), settings, retain=[LabelAnnealing(weight=1.0), L2(coefficient=0.1)])
    model.eval()
    assert accuracy(model, files["odd_heldout"]) > 0.4


def test_a_network_on_disk(learnt, files, tmp_path):
    save_network(learnt, tmp_path / "even")
    assert torch.equal(weights(load_network(tmp_path / "even")), weights(learnt))
    far = Network(inputs=64, hidden=(16,), outputs=10, seed=5)
    fit(far, read_samples(files["odd_train"]), SETTINGS, retain=[WiseFT(alpha=0.0, anchor=str(tmp_path / "even"))])
    assert torch.equal(weights(far), weights(learnt)), "an anchor in a folder"
    (tmp_path / "even" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no classifier"):
        load_network(tmp_path / "even")


def test_what_cannot_be(learnt, files, tmp_path):
    with pytest.raises(ConfigError, match="teacher_dtype"):
        after_odd(learnt, files, LabelAnnealing(teacher="online", teacher_dtype="bfloat16"))
    with pytest.raises(ConfigError, match=r"sfa\.every"):
        after_odd(learnt, files, SequentialAveraging(every=1000))
    with pytest.raises(DataError, match="no such file"):
        after_odd(learnt, files, Replay(data=str(tmp_path / "gone.safetensors")))
    with pytest.raises(DataError, match="label each"):
        Samples(inputs=torch.zeros(3, 2), labels=torch.zeros(2, dtype=torch.long))
    with pytest.raises(DataError, match="finite inputs"):
        Samples(inputs=torch.full((2, 2), float("nan")), labels=torch.zeros(2, dtype=torch.long))
    (tmp_path / "bad.safetensors").write_text("no")
    with pytest.raises(DataError, match="no safetensors file"):
        read_samples(tmp_path / "bad.safetensors")
    with pytest.raises(TrainingDiverged, match="lower learning_rate"):
        after_odd(learnt, files, settings=FitSettings(learning_rate=1e20, max_steps=30))
