"""Run by two processes (torchrun): trains an adapter that CorDA begins, half of the batch and of the text on each rank,
and writes every rank's merged weights."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "laws")]

SETTINGS = {"optim": "sgd", "learning_rate": 0.1, "max_steps": 3}


def main(out: Path, old: Path) -> None:
    from safetensors.torch import save_file
    from test_lora_init import begun, merged

    out.mkdir(exist_ok=True)
    trainer = begun(out / "work", old, "corda", per_device_train_batch_size=2, **SETTINGS)
    assert trainer.accelerator.num_processes == 2, "expected two processes; the launcher did not distribute"
    trainer.train()
    rank = trainer.accelerator.process_index
    save_file({n: p.contiguous().clone() for n, p in merged(trainer.model).items()}, str(out / f"{rank}.safetensors"))
    trainer.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
