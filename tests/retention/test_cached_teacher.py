"""The cached teacher: documents are found as the loss sees them, keys change with whatever changes a state, stored
states are the start model's."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from cases import lora
from peft import get_peft_model

from holdfast.errors import DataError, ModelError
from holdfast.ops.annealing import annealed_loss
from holdfast.ops.heads import describe_head
from holdfast.retention.teacher import teacher_states
from holdfast.retention.teacher.cached_teacher import CachedTeacher, document_key, find_documents
from holdfast.retention.teacher.state_store import StateStore
from holdfast.retention.teacher.teacher import OnlineTeacher, freeze_copy
from holdfast.retention.teacher.teacher_states import (
    StartModel,
    plan_batches,
    teacher_facts,
    weights_digest,
)
from holdfast.retention.teacher.teacher_states import build_states as build_batches
from holdfast.support.files import fingerprint
from tiny import build_model

CPU = torch.device("cpu")
VOCABULARY = 320


def build_states(store: StateStore, found: dict[bytes, np.ndarray], source, *, tokens: int = 4096, **settings) -> None:
    batches = plan_batches(found, tokens=tokens)
    build_batches(store, found, batches, source, device=CPU, advance=lambda amount: None, **settings)


def documents(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = random.Random(seed)
    return [[generator.randrange(2, VOCABULARY) for _ in range(n)] for n in lengths]


def tokens(document: list[int]) -> np.ndarray:
    return np.array(document, dtype="<i4")


def keyed(found: list[list[int]]) -> dict[bytes, np.ndarray]:
    return {document_key(tokens(d)): tokens(d) for d in found}


def padded(rows: list[list[int]], side: str) -> dict[str, torch.Tensor]:
    longest = max(map(len, rows))
    ids, mask = torch.ones(len(rows), longest, dtype=torch.int64), torch.zeros(len(rows), longest, dtype=torch.int64)
    for b, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(longest - len(row), longest)
        ids[b, place], mask[b, place] = torch.tensor(row), 1
    return {"input_ids": ids, "attention_mask": mask}


def packed(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.tensor([[t for row in rows for t in row]]),
        "position_ids": torch.tensor([[t for row in rows for t in range(len(row))]]),
    }


def layouts() -> dict[str, dict[str, torch.Tensor]]:
    rows = documents(5, 9, 1, 7)
    right, left = padded(rows, "right"), padded(rows, "left")
    return {
        "right": right,
        "left": left,
        "left, positions from the mask": {**left, "position_ids": (left["attention_mask"].cumsum(1) - 1).clamp(min=0)},
        "right, positions padded with 0": {
            **right,
            "position_ids": torch.arange(9).expand(4, 9) * right["attention_mask"],
        },
        "packed": packed(rows),
        "packed, int32 tokens": {k: v.to(torch.int32) for k, v in packed(rows).items()},
    }


# -------------------------------------------------------------------------------------------------------- documents


@pytest.mark.parametrize("layout", layouts())
def test_documents_are_found_wherever_they_stand(layout):
    rows = documents(5, 9, 1, 7)
    inputs = layouts()[layout]
    found = find_documents(inputs)
    assert [len(d.tokens) for d in found] == [5, 9, 1, 7]
    for row, document in zip(rows, found, strict=True):
        assert document.key == document_key(tokens(row))
        assert inputs["input_ids"][document.span].tolist() == document.tokens.tolist() == row


def test_packed_rows_of_a_batch_and_shared_positions():
    a, b, c, d = documents(3, 5, 2, 6)
    one, two = packed([a, b]), packed([c, d])
    both = {k: torch.cat([one[k], two[k]]) for k in one}
    found = find_documents(both)
    assert [d.span for d in found] == [(0, slice(0, 3)), (0, slice(3, 8)), (1, slice(0, 2)), (1, slice(2, 8))]
    shared = find_documents({"input_ids": both["input_ids"], "position_ids": one["position_ids"]})
    assert [len(d.tokens) for d in shared] == [3, 5, 3, 5]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"pixel_values": torch.ones(1)}, "pixel_values"),
        ({"inputs_embeds": torch.ones(1)}, "inputs_embeds"),
        ({"attention_mask": torch.tensor([[1, 0, 1, 1]])}, "gaps"),
        ({"attention_mask": torch.ones(1, 1, 4, 4)}, r"\(1, 4\)"),
        ({"position_ids": torch.tensor([[3, 4, 5, 6]])}, "count from 0"),
        ({"position_ids": torch.tensor([[0, 1, 3, 4]])}, "count from 0"),
        ({"attention_mask": torch.tensor([[1, 0, 1, 1]]), "position_ids": torch.tensor([[0, 0, 1, 2]])}, "gaps"),
    ],
)
def test_what_a_key_could_not_tell_apart_is_refused(more, words):
    with pytest.raises(DataError, match=words):
        find_documents({"input_ids": torch.tensor(documents(4)), **more})


def test_a_document_does_not_go_on_in_the_next_row():
    rows = {"input_ids": torch.tensor([documents(3)[0]] * 2), "position_ids": torch.tensor([[0, 1, 2], [3, 4, 5]])}
    with pytest.raises(DataError, match="count from 0"):
        find_documents(rows)


def test_a_batch_of_padding_has_no_documents():
    assert find_documents({"input_ids": torch.ones(2, 3), "attention_mask": torch.zeros(2, 3)}) == []


# -------------------------------------------------------------------------------------------------------------- key


def key_of(model, *, stored=None, device=CPU) -> str:
    return fingerprint(teacher_facts(model, device=device, stored=stored))


def one_bit(model):
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] += 1e-6
    return model


def changed_config(**values):
    model = build_model()
    for name, value in values.items():
        setattr(model.config, name, value)
    return model


def test_the_key_changes_with_what_changes_a_state(monkeypatch):
    keys = {
        "as it is": key_of(build_model()),
        "a weight": key_of(one_bit(build_model())),
        "the seed": key_of(build_model(seed=1)),
        "an own head": key_of(build_model(tie=False)),
        "bfloat16": key_of(build_model().to(torch.bfloat16)),
        "rope": key_of(changed_config(rope_parameters={"rope_type": "default", "rope_theta": 5e5})),
        "the norm's epsilon": key_of(changed_config(rms_norm_eps=1e-3)),
        "attention": key_of(build_model(attn_implementation="eager")),
        "stored": key_of(build_model(), stored=torch.bfloat16),
    }
    with monkeypatch.context() as patch:
        patch.setattr(teacher_states, "package_version", lambda name: "4.1.0")
        keys["library"] = key_of(build_model())
        patch.setattr(teacher_states, "FORMAT", "holdfast.states/1")
        keys["format"] = key_of(build_model())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        keys["autocast"] = key_of(build_model())
    same = {name for name, key in keys.items() if list(keys.values()).count(key) > 1}
    assert same == set()


def test_the_key_does_not_change_with_what_does_not():
    plain = key_of(build_model())
    assert key_of(changed_config(use_cache=False, pad_token_id=7, _name_or_path="elsewhere")) == plain
    assert key_of(build_model().train()) == plain


@pytest.mark.parametrize("settings", [{}, {"modules_to_save": ["lm_head"]}, {"trainable_token_indices": [3, 4]}])
def test_lora_and_full_fine_tuning_share_their_states(settings):
    bare = build_model(tie=False)
    expected = weights_digest(bare)
    adapted = get_peft_model(bare, lora(**settings))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)  # whatever the adapter has learnt
                assert any(part in name for part in ("lora_", "modules_to_save", "trainable_tokens"))
    assert weights_digest(adapted) == expected


# ------------------------------------------------------------------------------------------------------------- states


class Counting(StartModel):
    """Counts forwards, and may fail at one."""

    def __init__(self, model, fail_at: int | None = None) -> None:
        super().__init__(model)
        self.shapes: list[tuple[int, int]] = []
        self.fail_at = fail_at

    def hidden(self, inputs):
        if len(self.shapes) == self.fail_at:
            raise RuntimeError("killed")
        self.shapes.append(tuple(inputs["input_ids"].shape))
        return super().hidden(inputs)


def cached(folder, model, found, **settings) -> CachedTeacher:
    store = StateStore(folder, teacher="t")
    build_states(store, keyed(found), StartModel(model), **settings)
    store.scan()
    return CachedTeacher(store, describe_head(model).detached())


@pytest.mark.parametrize("layout", layouts())
@pytest.mark.parametrize("batch", [1, 8, 4096])
def test_stored_states_are_the_online_teachers_but_for_rounding(layout, batch, tmp_path):
    model = build_model().train()
    teacher = cached(tmp_path, model, documents(5, 9, 1, 7), tokens=batch)
    assert model.training and all(m.training for m in model.modules())
    inputs = {k: v.long() for k, v in layouts()[layout].items()}
    hidden, head = teacher.hidden(inputs)
    online, own = OnlineTeacher(freeze_copy(model)).hidden(inputs)
    assert torch.equal(head.weight_VH, own.weight_VH)
    kept = torch.zeros(hidden.shape[:2], dtype=torch.bool)
    for document in find_documents(inputs):
        kept[document.span] = True
    torch.testing.assert_close(hidden[kept], online[kept], rtol=1e-5, atol=1e-5)
    assert float(hidden[~kept].abs().sum()) == 0.0


def missing(store: StateStore, found: list[list[int]]) -> list[bytes]:
    return [key for key in keyed(found) if key not in store.states]


@pytest.mark.parametrize("how", ["killed", "an error"])
def test_a_build_that_ended_goes_on_where_it_stopped(how, tmp_path, monkeypatch):
    """A killed process keeps the shards that it had written, one that ends with an error all that it had computed."""
    model, rows = build_model(), documents(*range(3, 23))
    whole = Counting(model)
    build_states(StateStore(tmp_path / "whole", teacher="t"), keyed(rows), whole, tokens=1)
    assert len(whole.shapes) == 20 and whole.shapes[0] == (1, 22)  # what needs most memory first

    store, killed, again = StateStore(tmp_path / "cut", teacher="t"), Counting(model, fail_at=12), Counting(model)
    monkeypatch.setattr(teacher_states, "SHARD_BYTES", 50 * 32 * 4)
    with pytest.raises(RuntimeError, match="killed"):
        build_states(store, keyed(rows), killed, tokens=1)
    store.scan()
    assert len(store.shards) == 4
    if how == "killed":
        [last] = store.shards_of([document_key(tokens(rows[8]))])  # of the twelfth longest
        (store.folder / last).unlink()
        store.scan()
    left = {k: v for k, v in keyed(rows).items() if k in missing(store, rows)}
    assert len(left) == (8 if how == "an error" else 10)
    build_states(store, left, again, tokens=1)
    store.scan()
    assert len(again.shapes) == len(left) and missing(store, rows) == []
    other = StateStore(tmp_path / "whole", teacher="t")
    assert all(torch.equal(store.states[k], other.states[k]) for k in keyed(rows))


def test_too_little_memory_halves_the_batch(tmp_path):
    class Small(Counting):
        def hidden(self, inputs):
            if inputs["input_ids"].numel() > 40:
                raise torch.OutOfMemoryError("too much")
            return super().hidden(inputs)

    source, rows = Small(build_model()), documents(*[10] * 9)
    store = StateStore(tmp_path, teacher="t")
    build_states(store, keyed(rows), source, tokens=100)
    store.scan()
    assert missing(store, rows) == [] and max(b for b, _ in source.shapes) == 4
    with pytest.raises(torch.OutOfMemoryError):
        build_states(store, keyed(documents(60)), source)


def test_states_that_are_not_finite_are_refused(tmp_path):
    model = build_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(1e6)
    store = StateStore(tmp_path, teacher="t")
    with pytest.raises(ModelError, match="cache_dtype"):
        build_states(store, keyed(documents(5)), StartModel(model), stored=torch.float16)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ModelError, match="5 tokens"):
        build_states(store, keyed(documents(5)), StartModel(model))


def test_changed_tokens_are_a_miss_with_advice(tmp_path):
    rows = documents(6, 8)
    teacher = cached(tmp_path, build_model(), rows)
    rows[1][3] ^= 1
    with pytest.raises(DataError, match=r"8 tokens.*teacher: online"):
        teacher.hidden(padded(rows, "right"))
    with pytest.raises(DataError, match="5 tokens"):
        teacher.hidden(padded([rows[0][:5]], "right"))


def test_the_padding_of_a_packed_row_needs_no_states_and_can_give_none(tmp_path):
    """Positions padded with 0 make a document of every padding token."""
    from holdfast.ops.annealing import NonFiniteLogits

    rows, model = documents(6, 4), build_model()
    teacher = cached(tmp_path, model, rows)
    inputs = {k: torch.nn.functional.pad(v, (0, 3), value=0) for k, v in packed(rows).items()}
    hidden, head = teacher.hidden(inputs)
    assert hidden[0, 10:].isnan().all() and hidden[0, :10].isfinite().all()
    labels = torch.full((13,), -100)
    labels[:9] = 5
    arguments = dict(teacher_hidden_NK=hidden[0], teacher_head=head, kl_scale=1.0)
    assert annealed_loss(torch.randn(13, 32), describe_head(model), labels, **arguments).loss.isfinite()
    labels[11] = 5
    with pytest.raises(NonFiniteLogits, match="teacher"):
        annealed_loss(torch.randn(13, 32), describe_head(model), labels, **arguments)


# --------------------------------------------------------------------------------------------------- a smaller dtype


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_a_smaller_dtype_is_read_back_in_the_forwards(stored, tmp_path):
    model, rows = build_model(), documents(6, 8)
    teacher = cached(tmp_path, model, rows, stored=stored)
    whole = OnlineTeacher(freeze_copy(model)).hidden(padded(rows, "right"))[0]
    hidden, _ = teacher.hidden(padded(rows, "right"))
    assert hidden.dtype == torch.float32 and {s.dtype for s in teacher.store.states.values()} == {stored}
    assert teacher.store.forward == torch.float32
    torch.testing.assert_close(hidden[1], whole[1].to(stored).float(), rtol=2**-7, atol=1e-5)
    assert not torch.equal(hidden[1], whole[1])
