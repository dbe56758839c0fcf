"""Online and adapter-off teachers: the start model's own states, without graph, whatever way they are held."""

from __future__ import annotations

import pytest
import torch
from cases import lora
from peft import get_peft_model

from holdfast.errors import ModelError
from holdfast.ops.heads import describe_head, run_backbone
from holdfast.retention.teacher.teacher import AdapterOffTeacher, OnlineTeacher, freeze_copy
from tiny import build_model

CPU = torch.device("cpu")
IDS = torch.randint(0, 320, (2, 16), generator=torch.Generator().manual_seed(0))


def test_the_copy_is_frozen_and_gives_the_models_states_and_head():
    model = build_model(attention_dropout=0.5).train()
    teacher = OnlineTeacher(freeze_copy(model)).to(CPU)
    hidden, head = teacher.hidden({"input_ids": IDS, "labels": IDS, "attention_mask": torch.ones_like(IDS)})
    model.eval()
    assert torch.equal(hidden, run_backbone(model, input_ids=IDS, attention_mask=torch.ones_like(IDS)))
    assert not hidden.requires_grad and not head.weight_VH.requires_grad
    assert not any(p.requires_grad for p in teacher.model.parameters())
    assert torch.equal(head.weight_VH, describe_head(model).weight_VH)
    # The head is the copy's own memory, described anew or not.
    assert teacher.hidden({"input_ids": IDS})[1].weight_VH.data_ptr() == teacher.model.lm_head.weight.data_ptr()


def test_a_teacher_may_be_an_earlier_checkpoint(tmp_path):
    earlier = build_model()
    with torch.no_grad():
        for parameter in earlier.parameters():
            parameter.add_(0.01)
    earlier.save_pretrained(tmp_path / "earlier")
    model = build_model()
    hidden, head = OnlineTeacher(freeze_copy(model, weights=str(tmp_path / "earlier"))).hidden({"input_ids": IDS})
    wanted = OnlineTeacher(freeze_copy(earlier)).hidden({"input_ids": IDS})
    assert torch.equal(hidden, wanted[0]) and torch.equal(head.weight_VH, wanted[1].weight_VH)
    assert not torch.equal(hidden, OnlineTeacher(freeze_copy(model)).hidden({"input_ids": IDS})[0])
    with pytest.raises(ModelError):
        freeze_copy(build_model(layers=4), weights=str(tmp_path / "earlier"))


def test_adapters_off_is_the_start_model_and_the_mode_comes_back():
    start = build_model().eval()
    wanted = run_backbone(start, input_ids=IDS).detach()
    student = get_peft_model(build_model(attention_dropout=0.5), lora()).train()  # the base has dropout of its own
    teacher = AdapterOffTeacher(student)
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if "lora_" in name:
                parameter.add_(0.5)
    student.base_model.model.model.norm.eval()
    modes = {name: module.training for name, module in student.named_modules()}
    hidden, head = teacher.hidden({"input_ids": IDS})
    assert torch.equal(hidden, wanted) and not hidden.requires_grad
    assert torch.equal(head.weight_VH, start.lm_head.weight)
    assert {name: module.training for name, module in student.named_modules()} == modes
    student.eval()
    assert not torch.equal(run_backbone(student, input_ids=IDS), wanted)


def test_adapter_off_wants_an_adapter_that_starts_as_the_identity():
    with pytest.raises(ModelError, match="expects a LoRA model"):
        AdapterOffTeacher(build_model())
    with pytest.raises(ModelError, match="init_lora_weights='pissa'"):
        AdapterOffTeacher(get_peft_model(build_model(), lora(init_lora_weights="pissa")))
