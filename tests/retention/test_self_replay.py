"""Self-replay in the trainer: which samples come, whose they are, and what their tokens weigh."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import REPLAY, make_trainer, weights
from datasets import Dataset

from data_files import jsonl
from holdfast.data.mixing import GENERATED, NEW, ORIGIN, REPLAYED
from holdfast.errors import DataError, ModelError
from holdfast.retention.registry import parse_retention
from holdfast.training import method_laws as laws
from tiny import build_model, build_tokenizer

CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}<assistant>"


def entry(folder: Path, **changes: Any) -> dict[str, Any]:
    small = {"fraction": 0.3, "max_new_tokens": 16, "batch_size": 4, "cache_dir": str(folder / "samples")}
    return {"self_replay": {**small, **changes}}


def pairs() -> list[dict[str, str]]:
    return [{"prompt": f"Question {n}:", "completion": f" the answer is {n}."} for n in range(24)]


def rows_of(trainer: Any) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(tuple(r["input_ids"]), tuple(r["labels"])) for r in trainer.train_dataset]


def test_samples_are_the_start_models_own(tmp_path: Path) -> None:
    """Greedy answers are what `generate` says, behind the very tokens of the training prompts."""

    method = entry(tmp_path, prompts="target", temperature=0.0, max_repetition=1.0, max_dropped=0.9)
    trainer = make_trainer(tmp_path, method, data=Dataset.from_list(pairs()))
    model, new = (
        build_model().eval(),
        {ids for ids, _ in rows_of(make_trainer(tmp_path, data=Dataset.from_list(pairs())))},
    )
    generated = [(ids, labels) for ids, labels in rows_of(trainer) if ids not in new]
    assert generated
    for ids, labels in generated:
        start = next(i for i, label in enumerate(labels) if label != -100)
        prompt = torch.tensor([ids[:start]])
        own = model.generate(prompt, max_new_tokens=16, do_sample=False, pad_token_id=1)[0].tolist()
        assert list(ids) == own[: len(ids)] and labels[start:] == ids[start:]
        assert len(ids) == len(own) or own[len(ids) - 1] == 0
    [mixed] = trainer.data_info["mixed"]
    assert mixed["replay_examples"] == len(generated) and mixed["prompts"] == 24


def test_prompts_of_a_file(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = CHAT
    from holdfast.data.prompts import prompts_by_name

    def text(row: list[int]) -> str:
        return str(tokenizer.decode(row))

    asked = [{"role": "user", "content": "Who?"}]
    told = [*asked, {"role": "assistant", "content": "Me."}]
    for name, rows, expected in (
        ("messages", [{"messages": told}, {"messages": told[1:]}], (["<user>Who?<|endoftext|><assistant>"], 1)),
        ("alone", [{"prompt": "Why:"}, {"prompt": " "}], (["Why:"], 1)),
        ("chats", [{"prompt": asked}], (["<user>Who?<|endoftext|><assistant>"], 0)),
        ("pairs", [{"prompt": "Why:", "completion": " So."}], (["Why:"], 0)),
    ):
        found, none = prompts_by_name(str(jsonl(tmp_path / f"{name}.jsonl", rows)), tokenizer)
        assert ([text(ids) for ids in found], none) == expected, name
    (tmp_path / "lines.txt").write_text("One line\n\nAnother line\n")
    assert [text(i) for i in prompts_by_name(str(tmp_path / "lines.txt"), tokenizer)[0]] == ["One line", "Another line"]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"prompts": "target"}, DataError, "48 rows have no prompt"),
        ({"max_dropped": 0.0, "least_tokens": 200}, ModelError, "are too short"),
        ({"prompts": "long.jsonl"}, DataError, "1 prompts leave no room for a reply in 64 tokens"),
    ],
    ids=["text without prompts", "too short", "no room"],
)
def test_what_cannot_be_replayed_is_refused(
    changes: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jsonl(tmp_path / "long.jsonl", [{"prompt": "word " * 200}])
    with pytest.raises(kind, match=message):
        make_trainer(tmp_path, entry(tmp_path, **changes))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"self_replay": {"prompts": "promts.jsonl"}}, "no such file or folder: promts.jsonl"),
        ({"self_replay": {"temperature": 0.0}}, "all samples would be the same text"),
        ({"self_replay": {"ce": False}}, "Add label_annealing, with weight_generated above 0"),
        ([{"self_replay": {"ce": False}}, {"label_annealing": {"weight_generated": 0.0}}], "Add label_annealing"),
        ({"label_annealing": {"weight_replayed": 2.0}}, r"weight_replayed: .* \(replay\), got none"),
        ({"label_annealing": {"weight_new": 0.0}}, r"weight_new: .* \(replay or self_replay\), got none"),
        (
            [{"self_replay": {"fraction": 0.6}}, {"replay": {"data": "a/b", "fraction": 0.5}}],
            "a sum below 1, so that some new data is left, got 1.1",
        ),
    ],
    ids=["no file", "greedy", "no loss", "no weight", "nothing replayed", "nothing else", "more than all"],
)
def test_settings_that_do_not_go_together(value: Any, message: str) -> None:
    import re

    texts = " ".join(parse_retention(value)[1])
    assert re.search(message, texts), texts


@pytest.mark.parametrize("packing", [False, True])
def test_tokens_weigh_by_where_they_are_from(packing: bool, tmp_path: Path) -> None:
    """The gradient of one batch is that of a loss written out by hand, each term over the count of all its tokens."""
    retain = {
        "label_annealing": {"weight": 2.0, "weight_new": 0.5, "weight_replayed": 1.0, "weight_generated": 3.0},
        "replay": {"data": REPLAY, "fraction": 0.2},
        **entry(tmp_path, ce=False),
    }
    settings = {"packing": True, "max_length": 96} if packing else {}
    trainer = make_trainer(tmp_path, retain, per_device_train_batch_size=6, **settings)
    torch.manual_seed(0)
    for p in trainer.model.parameters():
        p.data += 0.05 * torch.randn_like(p)
    batch = next(b for b in trainer.get_train_dataloader() if len(b[ORIGIN].unique()) == 3)
    origin = batch[ORIGIN][:, 1:]
    inputs = {k: v for k, v in batch.items() if k not in (ORIGIN, "labels")}
    z = trainer.model(**inputs).logits[:, :-1].log_softmax(-1)
    w = trainer._teacher.model(**inputs).logits[:, :-1].log_softmax(-1)  # packed documents attend within themselves
    labels = batch["labels"][:, 1:]
    trained = labels != -100
    ce = -z.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    kl = (w.exp() * (w - z)).sum(-1)
    a = torch.tensor([1.0, 1.0, 0.0])[origin]
    b = torch.tensor([0.5, 1.0, 3.0])[origin]
    assert {NEW, REPLAYED, GENERATED} == set(origin.unique().tolist())
    by_hand = ((a * ce + b * kl) * trained).sum() / trained.sum()
    assert math.isclose(float(trainer.compute_loss(trainer.model, dict(batch))), float(by_hand), rel_tol=1e-5)


def test_equal_weights_are_the_run_without_them_bit_for_bit(tmp_path: Path) -> None:
    plain = {"label_annealing": {"weight": 2.0}, **entry(tmp_path)}
    named = {"label_annealing": {"weight": 2.0, "weight_new": 2.0, "weight_generated": 2.0}, **entry(tmp_path)}
    runs = [make_trainer(tmp_path, method, max_steps=2) for method in (plain, named)]
    for run in runs:
        run.train()
    assert ORIGIN not in runs[1].train_dataset.column_names
    assert all(torch.equal(a, b) for a, b in zip(weights(runs[0]).values(), weights(runs[1]).values(), strict=True))


def test_a_run_with_one_weight_is_known_as_before() -> None:
    """Weights by where tokens are from are no part of what a run without them is known by."""
    [plain] = parse_retention({"label_annealing": {"weight": 2.0}})[0]
    assert not [key for key in (*plain.identity(), *plain.describe()) if key.startswith("weight_")]
    [_, weighed] = parse_retention(["self_replay", {"label_annealing": {"weight_generated": 0.0}}])[0]
    assert weighed.identity()["weight_generated"] == 0.0
    laws.serialises([plain])


def test_another_forward_with_the_same_weights_is_another_start() -> None:
    """All of a configuration that a forward pass depends on is in the key, not only what some architectures have."""
    from holdfast.training.data_services import StartModel

    model = build_model()
    first = StartModel(model, adapter=None, first=True).key
    assert StartModel(build_model(), adapter=None, first=True).key == first
    for name, value in {"sliding_window": 4, "attention_multiplier": 0.5, "final_logit_softcapping": 3.0}.items():
        other = build_model()
        setattr(other.config, name, value)
        assert StartModel(other, adapter=None, first=True).key != first, name
