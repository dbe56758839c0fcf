"""Run by two processes (torchrun): trains the preference cases with half of the pairs on each rank, by DDP, or by
FSDP2 where the launcher says so, and writes the weights of rank 0; by DDP also those whose answers are the model's own.

What a process samples depends on its number, so answers are the likeliest tokens here where two processes are held
against one. GRPO learns from what differs between the answers to a prompt: it is held against TRL's own trainer in two
processes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "checks"), str(ROOT / "tests"), str(ROOT / "tests" / "laws")]

from accelerate import PartialState
from cases import TRAINED
from safetensors.torch import save_file
from torch.distributed.fsdp import FSDPModule

from fsdp_worker import make_sharded
from holdfast.checkpoints.live_tensors import gathered
from holdfast.retention.registry import retention
from holdfast.training import method_laws as laws
from preference_trainers import dpo, grpo, kto, on_policy, self_distilling
from tiny import build_model

CASES = {
    "direct": [],
    "label_annealing": [{"label_annealing": {"weight": 2.0}}],
    "all tokens, l2": [{"label_annealing": {"weight": 1.0, "tokens": "all"}}, {"l2": {"coefficient": 0.5}}],
    "sfa": [{"sfa": {"p": 0.4}}],
    "ema": [{"ema": {"decay": 0.5}}],
    "mofo": [{"mofo": {"fraction": 0.3}}],
    "kto, label_annealing": [{"label_annealing": {"weight": 2.0}}],
    "kto, sfa": [{"sfa": {"p": 0.4}}],
}
"""Methods by name, of DPO where KTO is not named."""
BATCH = 8
"""Pairs of an optimiser step, over all processes."""
SETTINGS = dict(optim="sgd", learning_rate=0.1, max_steps=2, max_grad_norm=0.5)


def of_pairs(folder: Path, name: str, **settings: Any) -> Any:
    """A trainer of `CASES`, trained as the same method is on text (see `TRAINED` in cases.py)."""
    trained = {**TRAINED.get(name, {})}
    model = build_model().double() if trained.pop("double", False) else build_model()
    host = dpo
    if name.startswith("kto"):  # the loss `kto` estimates a KL of its own over each process's rows
        host, trained = kto, {**trained, "loss_type": "apo_zero_unpaired"}
    return host(folder, retention(CASES[name]), model=model, **{**SETTINGS, **trained, **settings})


LIKELIEST = {"top_k": 1}
OWN_TEXT = {
    "on_policy": (on_policy, [{"label_annealing": {"weight": 1.0, "teacher": "online"}}]),
    "on_policy, l2": (on_policy, [{"label_annealing": {"weight": 1.0}}, {"l2": {"coefficient": 0.5}}]),
    "self_distilling": (self_distilling, []),
    "self_distilling, sfa": (self_distilling, [{"sfa": {"p": 0.4}}]),
}
"""Hosts of answers that are sampled, and methods."""
SAMPLED = {"TRL": None, "off": [{"l2": {"coefficient": 0.0}}], "l2": [{"l2": {"coefficient": 0.5}}]}
"""GRPO: TRL's own trainer, and ours with methods."""


def write_models(folder: Path) -> Path:
    """What distillation learns from (`old`), and what self-distillation begins from (`start`)."""
    build_model(seed=5).save_pretrained(folder / "old")
    build_model().save_pretrained(folder / "start")
    return folder


def own_text(folder: Path, name: str, **settings: Any) -> Any:
    """A trainer of `OWN_TEXT`, in a folder with `write_models`."""
    host, methods = OWN_TEXT[name]
    if host is on_policy:
        teacher = {"teacher": "online", "reference": str(folder / "old")}
        methods = [{n: {**v, **(teacher if n == "label_annealing" else {})} for n, v in m.items()} for m in methods]
    return host(folder, retention(methods), **LIKELIEST, **settings)


def sampled(folder: Path, name: str, **settings: Any) -> Any:
    """A trainer of `SAMPLED`."""
    from trl import GRPOTrainer

    methods = SAMPLED[name]
    return (
        grpo(folder, host=GRPOTrainer, **settings) if methods is None else grpo(folder, retention(methods), **settings)
    )


def main(out: Path, sharded: bool) -> None:
    halves = {"per_device_train_batch_size": BATCH // 4, "gradient_accumulation_steps": 2}
    state = PartialState(cpu=True)
    if state.is_main_process:
        write_models(out / "work")
    state.wait_for_everyone()
    makers: dict[str, Callable[[], Any]] = {name: partial(of_pairs, out / "work", name, **halves) for name in CASES}
    if not sharded:
        makers |= {name: partial(own_text, out / "work", name, **halves, **SETTINGS) for name in OWN_TEXT}
        makers |= {f"grpo, {name}": partial(sampled, out / "work", name, **halves, **SETTINGS) for name in SAMPLED}
    for name, make in makers.items():
        trainer = make()
        assert trainer.accelerator.num_processes == 2, "expected two processes; the launcher did not distribute"
        if sharded:
            make_sharded(trainer)
        trainer.train()
        assert isinstance(trainer.model, FSDPModule) == sharded
        if sharded:
            found = {n.removeprefix("_fsdp_wrapped_module."): gathered(p) for n, p in trainer.named_trainable().items()}
        else:
            found = laws.weights(trainer)
        weights = {n: p.detach().cpu().contiguous() for n, p in found.items()}
        if trainer.is_world_process_zero():
            save_file(weights, str(out / f"{name}.safetensors"))
        elif not sharded:
            save_file(weights, str(out / f"{name}.other.safetensors"))
        trainer.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["fsdp"])
