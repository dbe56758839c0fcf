"""Run by two processes (torchrun): trains the preference cases with half of the pairs on each rank, by DDP, or by
FSDP2 where the launcher says so, and writes the weights of rank 0."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from fsdp_worker import make_sharded
from safetensors.torch import save_file
from torch.distributed.fsdp import FSDPModule

from holdfast.checkpoints.live_tensors import gathered
from holdfast.retention.registry import retention
from preference_trainers import dpo

CASES = {
    "direct": [],
    "label_annealing": [{"label_annealing": {"weight": 2.0}}],
    "all tokens, l2": [{"label_annealing": {"weight": 1.0, "tokens": "all"}}, {"l2": {"coefficient": 0.5}}],
    "sfa": [{"sfa": {"p": 0.4}}],
}
BATCH = 8
"""Pairs of an optimiser step, over all processes."""
SETTINGS = dict(optim="sgd", learning_rate=0.1, max_steps=2, max_grad_norm=0.5)


def main(out: Path, sharded: bool) -> None:
    for name, methods in CASES.items():
        trainer = dpo(
            out / "work",
            retention(methods),
            per_device_train_batch_size=BATCH // 4,
            gradient_accumulation_steps=2,
            **SETTINGS,
        )
        assert trainer.accelerator.num_processes == 2, "expected two processes; the launcher did not distribute"
        if sharded:
            make_sharded(trainer)
        trainer.train()
        assert isinstance(trainer.model, FSDPModule) == sharded
        found = {n.removeprefix("_fsdp_wrapped_module."): gathered(p) for n, p in trainer.named_trainable().items()}
        if trainer.is_world_process_zero():
            save_file({n: p.detach().cpu().contiguous() for n, p in found.items()}, str(out / f"{name}.safetensors"))
        trainer.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["fsdp"])
