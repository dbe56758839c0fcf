"""Run by two processes (torchrun): trains every case under DeepSpeed ZeRO with half of the batch on each rank; rank 0
writes the weights."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

if __name__ == "__main__":  # the tests import the cases from here, and must not become a DeepSpeed run
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "checks"), str(ROOT / "tests"), str(ROOT / "tests" / "laws")]

from cases import ALL, make_trainer, spec, weights
from ddp_worker import BATCH, SETTINGS
from safetensors.torch import save_file

STAGES = (0, 1, 2, 3)
ACCUMULATION = {0: (1,), 1: (4,), 2: (1, 4), 3: (4,)}
"""Micro-batches a step, by ZeRO's stage."""
WHOLE_ONLY = ("l2", "ewc", "sfa", "wise_ft", "ema")
"""Methods that ZeRO 3 is refused with."""
NOT_HERE = ("mofo",)
"""Methods that DeepSpeed is refused with."""


def settings(stage: int, **more: object) -> dict[str, object]:
    """DeepSpeed's configuration; the rest is the trainer's."""
    return {
        "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
        "zero_allow_untested_optimizer": True,
        **dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto"),
        **more,
    }


def cases(stage: int) -> list[tuple[str, str]]:
    """The cases of a stage."""
    refused = (*NOT_HERE, *(WHOLE_ONLY if stage == 3 else ()))
    return [("direct", ""), *((n, label) for n, label in ALL if n not in refused)]


def on_cpus() -> None:
    """accelerate leaves processes on CPUs to themselves under DeepSpeed, which can do without an accelerator; it is
    told to use gloo."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    PartialState._prepare_backend = lambda self, *_: ("gloo", DistributedType.MULTI_CPU)  # type: ignore[method-assign]


TOGETHER = {"label_annealing": {"weight": 1.0}, "l2": {"coefficient": 0.5}, "sfa": {"every": 2}, "ema": {"decay": 0.5}}


def resume(out: Path, stage: int) -> None:
    """A run of four steps, and one that goes on from its checkpoint of step 2; rank 0 writes the weights of both."""
    more = {**SETTINGS, "optim": "adamw_torch", "learning_rate": 1e-3, "save_strategy": "steps", "save_steps": 2}
    for checkpoint in (None, out / "work" / "run" / "checkpoint-2"):
        trainer = make_trainer(
            out / "work",
            TOGETHER,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            use_cpu=False,
            deepspeed=settings(stage),
            **more,
        )
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if trainer.is_world_process_zero():
            name = f"{stage}.{'resumed' if checkpoint else 'whole'}.safetensors"
            save_file({k: v.contiguous().clone() for k, v in weights(trainer).items()}, str(out / name))
        trainer.accelerator.wait_for_everyone()


def main(out: Path) -> None:
    on_cpus()
    for stage in (1, 2):
        resume(out, stage)
    for stage in STAGES:
        for name, label in cases(stage):
            wanted = {} if name == "direct" else spec(name, label)
            for accumulation in ACCUMULATION[stage]:
                trainer = make_trainer(
                    out / "work",
                    wanted,
                    per_device_train_batch_size=BATCH // 2 // accumulation,
                    gradient_accumulation_steps=accumulation,
                    use_cpu=False,
                    deepspeed=settings(stage),
                    **SETTINGS,
                )
                assert trainer.is_deepspeed_enabled and trainer.accelerator.num_processes == 2, (
                    "expected DeepSpeed over two processes"
                )
                file = out / f"{stage}.{name}.{label}.{accumulation}.safetensors"
                try:
                    trainer.train()
                    trainer.save_model(str(out / "saved"))
                    if trainer.is_world_process_zero():
                        found = weights(trainer) if stage < 3 else trainer.accelerator.get_state_dict(trainer.deepspeed)
                        save_file({k: v.contiguous().clone() for k, v in found.items()}, str(file))
                    elif stage == 3:
                        trainer.accelerator.get_state_dict(trainer.deepspeed)
                except Exception as error:  # each case has a test of its own
                    file.with_suffix(f".{trainer.args.process_index}.txt").write_text(
                        "".join(traceback.format_exception(error))
                    )
                trainer.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
