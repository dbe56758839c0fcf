"""Run by two processes (torchrun): trains every case with half of the batch on each rank and writes the weights of rank
0."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from cases import CACHE, EVERY, QUICK, SEEING, SEEING_TOO, TRAINED, lora, make_trainer, seeing, spec, weights
from safetensors.torch import save_file

SETTINGS = dict(optim="sgd", learning_rate=0.1, max_steps=4)
BATCH = 8
"""Samples of an optimiser step, over all processes."""
ACCUMULATION = (1, 4)
IMAGES = [*SEEING[:2], *SEEING_TOO]
"""What two ranks train on rows with images in every run of the tests."""


BY_ORIGIN = {
    "self_replay": {"fraction": 0.5, "ce": False, "max_new_tokens": 24, "batch_size": 4, "cache_dir": CACHE},
    "label_annealing": {"weight": 0.053, "weight_generated": 6.5},
}
"""As of `auto`: generated tokens carry the KL alone, with a weight of their own."""


def adapted() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Methods and settings of `make_trainer` with an adapter, by name: on a model that reads images, without the noise
    of dropout; OSF, whose factors each process projects after its step."""
    from peft import OSFConfig

    osf = OSFConfig(target_modules=["q_proj", "up_proj", "down_proj"], effective_rank=0.5, task_type="CAUSAL_LM")
    return {
        "LoRA on images": (seeing("label_annealing"), {"images": "idefics3", "peft": lora(lora_dropout=0.0)}),
        "OSF": ({}, {"peft": osf}),
        "OSF and l2": (spec("l2", "default"), {"peft": osf}),
    }


def main(out: Path, everything: bool) -> None:
    cases = [(name, label, spec(name, label), {}) for name, label in (EVERY if everything else QUICK)]
    cases += [
        (name, images, seeing(name), {"images": images})
        for name, images in dict.fromkeys([*IMAGES, *(SEEING if everything else [])])
    ]
    cases += [(name, "adapter", *case) for name, case in adapted().items()]
    cases.append(("self_replay", "by origin", BY_ORIGIN, {}))
    for name, label, method, how in cases:
        for accumulation in ACCUMULATION if everything else ACCUMULATION[-1:]:
            trainer = make_trainer(
                out / "work",
                method,
                **how,
                per_device_train_batch_size=BATCH // 2 // accumulation,
                gradient_accumulation_steps=accumulation,
                **{**SETTINGS, **TRAINED.get(name, {})},
            )
            assert trainer.accelerator.num_processes == 2, "expected two processes; the launcher did not distribute"
            trainer.train()
            if trainer.is_world_process_zero():
                save_file(
                    {k: v.contiguous() for k, v in weights(trainer).items()},
                    str(out / f"{name}.{label}.{accumulation}.safetensors"),
                )
            trainer.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["all"])
