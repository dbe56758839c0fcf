"""Run by two processes (torchrun): every layout of FSDP2 and DDP against one process on the same global batch, in
float64.

Each process computes the one-process reference for itself (a plain model on all eight rows), then its half of the batch
through the parallel model, the way the trainer does it: the loss of a token is divided by the global token count of the
step, a rank's loss is multiplied by the number of ranks, and FSDP or DDP averages. Rank 0 writes the differences as
JSON; `test_fsdp.py` holds the bars."""

from __future__ import annotations

import json
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "checks"), str(ROOT / "tests"), str(ROOT / "tests" / "laws")]

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from holdfast.ops.annealing import annealed_loss
from holdfast.ops.heads import causal_lm, describe_head, run_backbone
from holdfast.retention.protocol import TeacherSettings, TokenLoss
from holdfast.retention.teacher.teacher import AdapterOffTeacher, OnlineTeacher, freeze_copy
from holdfast.training.forward import LossRequest, Sealed, install_forward
from tiny import build_model

VOCABULARY = 641  # odd: the head's shards are uneven
WIDTH = 32
STEPS = 2
TERM = TokenLoss(
    weight=1.5, temperature=1.3, direction="forward", tokens="trained", teacher=TeacherSettings(kind="online")
)

LAYOUTS = {
    "root": dict(tie=False),
    "root, resharded after forward": dict(tie=False),
    "root, tied": dict(tie=True),
    "own": dict(tie=False),
    "own, bias": dict(tie=False, bias=True),
    "own, replicated mesh": dict(tie=False),
    "own, kept whole": dict(tie=False),
    "norm and head": dict(tie=False),
    "norm, embeddings and head, tied": dict(tie=True),
    "ddp": dict(tie=False),
    "ddp, tied": dict(tie=True),
}
"""Where the student's head lies: in the root's group, an FSDP module of its own, in one group with the final norm (as
accelerate does), or DDP."""

SHARDED = "sharded teacher"
TEACHERS = ("replicated", "root", "own", "norm and head", "shard()", "shard(), tied")


def build(seed: int, *, tie: bool, bias: bool = False) -> nn.Module:
    model = build_model(VOCABULARY, seed=seed, tie=tie, width=WIDTH)
    if bias:
        model.lm_head = nn.Linear(WIDTH, VOCABULARY)
    return model.double()


def shard(model: nn.Module, layout: str, **policy: Any) -> nn.Module:
    """Applies one layout in place (DDP wraps)."""
    if layout.startswith("ddp"):
        return nn.parallel.DistributedDataParallel(model)
    shape = (2, 1) if "replicated" in layout else (2,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    options = dict(mesh=mesh, **policy)
    for layer in model.model.layers:
        fully_shard(layer, **options)
    if layout.startswith("own"):
        fully_shard(model.lm_head, reshard_after_forward="kept" not in layout, **options)
    elif layout.startswith("norm"):
        fully_shard(model.model.embed_tokens, **options) if "tied" not in layout else None
        tail = (
            [model.model.norm, model.model.embed_tokens, model.lm_head]
            if "tied" in layout
            else [model.model.norm, model.lm_head]
        )
        fully_shard(tail, reshard_after_forward=False, **options)
    fully_shard(model, reshard_after_forward=True if "resharded" in layout else None, **options)
    return model


def batches() -> list[dict[str, Tensor]]:
    """Per step: 8 rows of 16 tokens whose numbers of trained tokens differ from row to row."""
    generator = torch.Generator().manual_seed(7)
    made = []
    for _ in range(STEPS):
        ids = torch.randint(0, VOCABULARY, (8, 16), generator=generator)
        labels = ids.clone()
        for row in range(8):
            labels[row, : 1 + row] = -100
        made.append({"input_ids": ids, "labels": labels})
    return made


def train(
    model: nn.Module, teacher: OnlineTeacher, parts: list[slice], ranks: int, *, sync_each: bool
) -> dict[str, Any]:
    """Two optimiser steps; the losses of this process's rows, the whole gradients of the first step, and the whole
    weights at the end."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-5)
    losses, gradients = [], {}
    for step, batch in enumerate(batches()):
        count = (batch["labels"][:, 1:] != -100).sum()
        total = torch.zeros((), dtype=torch.float64)
        for number, part in enumerate(parts):
            ids, labels = batch["input_ids"][part], batch["labels"][part]
            hidden, head = teacher.hidden({"input_ids": ids})
            request = LossRequest(
                labels_BT=labels,
                ce_scale=1.0 / count,
                kl_scale=TERM.weight / count,
                kl_mask_BS=labels[:, 1:] != -100,
                teacher_hidden_BTK=hidden,
                teacher_head=head,
                token_loss=TERM,
            )
            last = number == len(parts) - 1
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(last or sync_each)
            loss = model(input_ids=ids, holdfast=Sealed(request))["result"].value.loss
            with model.no_sync() if hasattr(model, "no_sync") and not last and not sync_each else nullcontext():
                (loss * ranks).backward()
            total += loss.detach()
        losses.append(total)
        if step == 0:
            gradients = {n: whole(p.grad) for n, p in named(model)}
        optimiser.step()
        optimiser.zero_grad()
    return {
        "losses": torch.stack(losses),
        "gradients": gradients,
        "weights": {n: whole(p.detach()) for n, p in named(model)},
    }


def named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(n.removeprefix("module."), p) for n, p in model.named_parameters()]


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, float]:
    """Relative: by the largest value of each tensor."""
    assert found["weights"].keys() == wanted["weights"].keys()
    losses = found["losses"].clone()
    dist.all_reduce(losses)

    def worst(kind: str) -> float:
        return max(float((found[kind][n] - w).abs().max() / w.abs().max()) for n, w in wanted[kind].items())

    return {
        "loss": float(((losses - wanted["losses"]) / wanted["losses"]).abs().max()),
        "gradient": worst("gradients"),
        "weight": worst("weights"),
    }


def compare(
    layout: str, teacher_layout: str = "replicated", *, accumulation: int = 1, sync_each: bool = True, **policy: Any
) -> dict[str, float]:
    options = LAYOUTS[layout]
    alone, start = (
        build(1, **options),
        build(2, tie="tied" in teacher_layout or options["tie"], bias=options.get("bias", False)),
    )
    install_forward(alone)
    wanted = train(alone, OnlineTeacher(freeze_copy(start)), [slice(0, 8)], 1, sync_each=True)
    student = build(1, **options)
    install_forward(student)
    student = shard(student, layout, **policy)
    teacher = make_teacher(start, teacher_layout)
    rank, size = dist.get_rank(), 4 // accumulation
    parts = [slice((2 * m + rank) * size, (2 * m + rank + 1) * size) for m in range(accumulation)]
    return differences(train(student, teacher, parts, 2, sync_each=sync_each), wanted)


def make_teacher(start: nn.Module, layout: str) -> OnlineTeacher:
    copied = freeze_copy(start)
    if layout.startswith("shard()"):
        return OnlineTeacher(copied).shard(init_device_mesh("cpu", (2,)))
    return OnlineTeacher(copied if layout == "replicated" else shard(copied, layout))


# ---------------------------------------------------------------------------------------------------------- gathers


class LargeGathers(TorchDispatchMode):
    """Counts the gathers of at least a whole head, FSDP's and DTensor's, in forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional") and "gather" in func.__name__:
            tensors = [t for t in tree_leaves((args, out)) if isinstance(t, Tensor)]
            self.count += max(t.numel() * t.element_size() for t in tensors) >= 8 * VOCABULARY * WIDTH
        return out


def gathers(layout: str, teacher_layout: str) -> dict[str, list[int]]:
    """How many large gathers teacher, student's forward and backward make in each of three micro-batches."""
    options = LAYOUTS[layout]
    student, start = build(1, **options), build(2, tie="tied" in teacher_layout)
    install_forward(student)
    student = shard(student, layout)
    teacher = make_teacher(start, teacher_layout)
    batch = batches()[0]
    ids, labels = batch["input_ids"][:2], batch["labels"][:2]
    counts: dict[str, list[int]] = {"teacher": [], "forward": [], "backward": []}
    for _ in range(3):
        with LargeGathers() as large:
            hidden, head = teacher.hidden({"input_ids": ids})
        counts["teacher"].append(large.count)
        request = LossRequest(
            labels_BT=labels, ce_scale=0.1, kl_scale=0.1, teacher_hidden_BTK=hidden, teacher_head=head, token_loss=TERM
        )
        with LargeGathers() as large:
            loss = student(input_ids=ids, holdfast=Sealed(request))["result"].value.loss
        counts["forward"].append(large.count)
        with LargeGathers() as large:
            loss.backward()
        counts["backward"].append(large.count)
    return counts


# ------------------------------------------------------------------------------------------------------ other cases


def evaluation_after_update() -> float:
    """A separate head, evaluated without grad before and after its weights changed: the second sees the new ones."""
    student = build(1, tie=False)
    install_forward(student)
    shard(student, "own")
    batch = batches()[0]
    request = LossRequest(labels_BT=batch["labels"], ce_scale=1.0)
    with torch.no_grad():
        before = student(input_ids=batch["input_ids"], holdfast=Sealed(request))["result"].value.loss
        student.lm_head.weight.mul_(2.0)
        after = student(input_ids=batch["input_ids"], holdfast=Sealed(request))["result"].value.loss
        plain = build(1, tie=False)
        plain.lm_head.weight.mul_(2.0)
        install_forward(plain)
        wanted = plain(input_ids=batch["input_ids"], holdfast=Sealed(request))["result"].value.loss
    assert float(before) != float(after)
    return float((after - wanted).abs() / wanted)


def hand_distributed(tokens: str) -> float:
    """A head that is a DTensor but no FSDP module: ranks with tokens of their own, or (tensor parallelism) all with the
    same."""
    mesh = init_device_mesh("cpu", (2,))
    batch, alone, model = batches()[0], build(1, tie=False), build(1, tie=False)
    placement = Replicate() if tokens == "own, replicated" else Shard(0)
    model.lm_head.weight = nn.Parameter(distribute_tensor(model.lm_head.weight.detach(), mesh, [placement]))

    def gradient(lm: nn.Module, part: slice, ranks: int) -> Tensor:
        states = run_backbone(lm, input_ids=batch["input_ids"][part])[:, :-1].flatten(0, 1)
        (
            annealed_loss(states, describe_head(lm), batch["labels"][part, 1:].flatten(), ce_scale=1.0 / 50).loss
            * ranks
        ).backward()
        return whole(lm.lm_head.weight.grad)

    wanted = gradient(alone, slice(0, 8), 1)
    found = (
        gradient(model, slice(0, 8), 1)
        if tokens == "same"
        else gradient(model, slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4), 2)
    )
    return float((found - wanted).abs().max() / wanted.abs().max())


def adapter_off() -> dict[str, float]:
    """A LoRA student whose own sharded base is the teacher: the pass without adapters and the one with them share the
    root's hooks."""
    from peft import LoraConfig, get_peft_model

    def lora() -> tuple[nn.Module, AdapterOffTeacher]:
        """As a trainer makes them: the teacher while the adapter changes nothing, before anything is shared out."""
        torch.manual_seed(5)
        model = get_peft_model(
            build(1, tie=False),
            LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"),
        ).double()
        teacher = AdapterOffTeacher(model)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.1)
        install_forward(causal_lm(model))
        return model, teacher

    (alone, of_alone), (student, of_student) = lora(), lora()
    for layer in causal_lm(student).model.layers:
        fully_shard(layer)
    fully_shard(causal_lm(student).lm_head)
    fully_shard(student)
    batch = batches()[0]
    losses = {}
    for model, teacher, part, ranks in (
        (alone, of_alone, slice(0, 8), 1),
        (student, of_student, slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4), 2),
    ):
        for _ in range(2):  # the second time with what the first has left
            model.zero_grad()
            hidden, head = teacher.hidden({"input_ids": batch["input_ids"][part]})
            request = LossRequest(
                labels_BT=batch["labels"][part],
                ce_scale=0.01,
                kl_scale=0.01,
                teacher_hidden_BTK=hidden,
                teacher_head=head,
                token_loss=TERM,
            )
            result = model(input_ids=batch["input_ids"][part], holdfast=Sealed(request))["result"].value
            (result.loss * ranks).backward()
        losses[ranks] = result.kl_sum.clone()
    dist.all_reduce(losses[2])
    wanted = {n: p.grad for n, p in alone.named_parameters() if p.requires_grad}
    found = {n: whole(p.grad) for n, p in student.named_parameters() if p.requires_grad}
    assert float(losses[1]) > 1e-3, "the adapters change nothing, so the comparison says nothing"
    return {
        "kl": float((losses[1] - losses[2]).abs() / losses[1]),
        "gradient": max(float((found[n] - wanted[n]).abs().max() / wanted[n].abs().max()) for n in wanted),
    }


def make_sharded(trainer: Any) -> None:
    """Lets accelerate shard a trainer's model by FSDP2. It refuses that without accelerators, so it is told late that
    it has some."""
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    state = AcceleratorState._shared_state
    state["distributed_type"] = DistributedType.FSDP
    state["fsdp_plugin"] = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
    )
    trainer.accelerator.state.__dict__.update(state)
    trainer.is_fsdp_enabled = True


def through_the_trainer(out: Path, everything: bool) -> None:
    """The whole path: accelerate shards, the trainer steps."""
    from cases import EVERY, FIRST, OWN, SECOND_PASS, TRAINED, make_trainer, spec
    from ddp_worker import ACCUMULATION, BATCH, SETTINGS
    from safetensors.torch import save_file

    for name, label in [
        *(EVERY if everything else [("direct", ""), *FIRST, (OWN, ""), (SECOND_PASS, "")]),
        ("label_annealing", SHARDED),
    ]:
        online = {name: {"teacher": "online", "teacher_sharded": True}}
        wanted = online if label == SHARDED else spec(name, label)
        for accumulation in ACCUMULATION if everything else ACCUMULATION[-1:]:
            trainer = make_trainer(
                out / "work",
                wanted,
                per_device_train_batch_size=BATCH // 2 // accumulation,
                gradient_accumulation_steps=accumulation,
                **{**SETTINGS, **TRAINED.get(name, {})},
            )
            if label != SHARDED:
                trainer.prepare_teacher()  # a cached one: a sharded model cannot, so its states are there from before
            if name in ("ewc", "budget", "token_weighting"):
                # the same with the Fisher information; reading data makes accelerate look at its state anew
                trainer.prepare_methods()
            make_sharded(trainer)
            try:
                trainer.train()
                assert isinstance(trainer.model, FSDPModule), "the trainer did not shard the model"
                found = {n: whole(p.detach()).contiguous() for n, p in trainer.model.named_parameters()}
                if name == "ema":
                    state_survives(trainer, out / "state")
            except Exception as error:  # each case has a test of its own
                found = {}
                (out / f"{name}.{label}.{accumulation}.{dist.get_rank()}.txt").write_text(
                    "".join(traceback.format_exception(error))
                )
            if found and dist.get_rank() == 0:
                save_file(found, str(out / f"{name}.{label}.{accumulation}.safetensors"))
            dist.barrier()


def state_survives(trainer: Any, folder: Path) -> None:
    """Sharded tensors among the methods' state are whole in a checkpoint, and each rank gets its part of them back."""
    average = trainer.active[0].shadow
    assert all(hasattr(t, "placements") for t in average.values()), "the average did not follow the shards"
    held = {n: whole(t).clone() for n, t in average.items()}
    folder.mkdir(exist_ok=True)
    dist.barrier()
    trainer._save_retention_state(folder)
    dist.barrier()
    for t in average.values():
        t.zero_()
    trainer._load_retention_state(str(folder))
    assert all(torch.equal(whole(t), held[n]) for n, t in trainer.active[0].shadow.items()), (
        "the average is not what was saved"
    )


def mixed_precision(layout: str) -> dict[str, str]:
    """The dtypes that the op sees under a bfloat16 policy, and those of the gradient that comes out."""
    import holdfast.training.forward as room

    seen: dict[str, str] = {}
    original = room.annealed_loss

    def spy(hidden: Tensor, head: Any, *args: Any, **kwargs: Any) -> Any:
        seen.update(
            hidden=str(hidden.dtype),
            head=str(head.weight_VH.dtype),
            teacher_hidden=str(kwargs["teacher_hidden_NK"].dtype),
            teacher_head=str(kwargs["teacher_head"].weight_VH.dtype),
            scale=str(kwargs["ce_scale"].dtype),
        )
        return original(hidden, head, *args, **kwargs)

    student, start = build(1, tie=False).float(), build(2, tie=False).float()
    install_forward(student)
    shard(
        student,
        layout,
        mp_policy=MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.bfloat16
        ),
    )
    batch = batches()[0]
    hidden, head = OnlineTeacher(freeze_copy(start)).hidden({"input_ids": batch["input_ids"]})
    scale = torch.tensor(1 / 77)
    room.annealed_loss = spy
    try:
        request = LossRequest(
            labels_BT=batch["labels"],
            ce_scale=scale,
            kl_scale=scale,
            teacher_hidden_BTK=hidden,
            teacher_head=head,
            token_loss=TERM,
        )
        out = student(input_ids=batch["input_ids"], holdfast=Sealed(request))
        out["result"].value.loss.backward()
    finally:
        room.annealed_loss = original
    gradient = student.lm_head.weight.grad
    plain = build(1, tie=False).float()
    install_forward(plain)
    exact = plain(input_ids=batch["input_ids"], holdfast=Sealed(request))["result"].value
    exact.loss.backward()
    error = float((whole(gradient) - plain.lm_head.weight.grad).norm() / plain.lm_head.weight.grad.norm())
    return {**seen, "gradient": str(gradient.dtype), "loss": str(out["result"].value.loss.dtype), "error": error}


def main(out: Path, everything: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if everything:  # the rest is the quick run's
        through_the_trainer(out, True)
        dist.destroy_process_group()
        return
    report: dict[str, Any] = {"layouts": {}, "teachers": {}, "gathers": {}, "hand": {}, "mixed": {}}
    for layout in LAYOUTS:
        report["layouts"][f"{layout} | 1"] = compare(layout)
        report["layouts"][f"{layout} | 2, one reduction"] = compare(layout, accumulation=2, sync_each=False)
    report["layouts"]["own | 2, reduced each time"] = compare("own", accumulation=2)
    for teacher in TEACHERS:
        report["teachers"][teacher] = compare("root", teacher)
        report["gathers"][f"root / {teacher}"] = gathers("root", teacher)
    for layout in (
        "own",
        "norm and head",
        "root, tied",
        "norm, embeddings and head, tied",
        "root, resharded after forward",
    ):
        report["gathers"][f"{layout} / replicated"] = gathers(layout, "replicated")
    report["adapter_off"] = adapter_off()
    report["evaluation"] = evaluation_after_update()
    for tokens in ("own", "own, replicated", "same"):
        report["hand"][tokens] = hand_distributed(tokens)
    for layout in ("root", "own"):
        report["mixed"][layout] = mixed_precision(layout)
    if dist.get_rank() == 0:
        (out / "report.json").write_text(json.dumps(report))
    dist.barrier()
    through_the_trainer(out, False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["all"])
