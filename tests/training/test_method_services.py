"""What a trainer offers to methods: held-out means over all ranks, whatever the number of rows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from cases import make_trainer
from datasets import Dataset

from holdfast.training import method_services as room
from holdfast.training.method_services import TrainerServices, padded


def rows(count: int) -> Dataset:
    ids = [[5 + i, 6, 7 + i, 8, 9][: 2 + i % 4] for i in range(count)]
    return Dataset.from_dict({"input_ids": ids, "labels": [[-100, *row[1:]] for row in ids]})


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_make_the_same_number_of_batches_and_count_every_row_once(world, count, monkeypatch):
    monkeypatch.setitem(room.EVALUATED, "cpu", 8)  # two rows a batch
    seen, numbers = [], []
    for rank in range(world):
        args = SimpleNamespace(process_index=rank, world_size=world, device=torch.device("cpu"), max_length=4)
        batches = list(TrainerServices(SimpleNamespace(args=args), print)._batches(rows(count)))
        numbers.append(len(batches))
        for batch, counts in batches:
            assert batch["input_ids"].shape == batch["labels"].shape == batch["attention_mask"].shape
            if counts:
                seen += [
                    tuple(ids[mask == 1].tolist())
                    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
                ]
    assert len(set(numbers)) == 1
    assert sorted(seen) == sorted(tuple(row[:4]) for row in rows(count)["input_ids"][:])


@pytest.mark.parametrize("tokens", ["trained", "all"])
def test_means_do_not_depend_on_the_batches(tokens, tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, {"label_annealing": {"weight": 0.1, "tokens": tokens}})
    trainer.train()
    data = rows(7)
    found = []
    for size in (5, 20, 10_000):
        monkeypatch.setitem(room.EVALUATED, "cpu", size)
        training = trainer.model.training
        found.append(TrainerServices(trainer, print).mean_loss(data))
        assert trainer.model.training == training
    ce = kl = places = 0.0
    teacher = make_trainer(tmp_path, {}).model.eval()
    for row in data:
        batch = padded([row], 100, torch.device("cpu"))
        labels = batch.pop("labels")
        with torch.no_grad():
            mine, theirs = (m(**batch).logits[0, :-1].double().log_softmax(-1) for m in (trainer.model.eval(), teacher))
        targets = labels[0, 1:]
        ce -= float(mine[targets != -100].gather(1, targets[targets != -100, None]).sum())
        kept = targets != -100 if tokens == "trained" else torch.ones_like(targets, dtype=torch.bool)
        kl += float((theirs.exp() * (theirs - mine)).sum(-1)[kept].sum())
        places += int(kept.sum())
    trained = sum(sum(label != -100 for label in row["labels"][1:]) for row in data)
    for figures in found:
        assert figures.ce == pytest.approx(ce / trained, rel=1e-5)
        assert figures.kl == pytest.approx(kl / places, rel=1e-3)
