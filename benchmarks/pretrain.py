"""Pre-training beside a plain `transformers.Trainer`: tokens a second on the same model and the same windows.

    python benchmarks/pretrain.py                 # the ladder's 1M and 3M decoders on a CPU, 15M and 90M on a GPU
    python benchmarks/pretrain.py --check         # exit 1 where a stated bar falls short
    python benchmarks/pretrain.py --quick         # under a minute: the smallest decoder, fewer rounds
    python benchmarks/pretrain.py --save FILE     # the figures as JSON

Both arms train an olmo2 decoder of a ladder study on windows that are tokenised beforehand, with the same
AdamW, cosine, weight decay and clipping, and log as rarely. `holdfast` is the trainer that the command uses; `Trainer`
is transformers' own with its defaults, its model's own loss and the default collator, on rows that are in memory. Arms
take turns, a stretch of steps each a round; seconds are medians of a stretch's steps, the first ones left out, and the
ratio is the median over rounds of the ratio within a round.

Bar: 1.3 times the tokens a second at 1M parameters on a CPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import device_name, hardware

SIZES: dict[str, dict[str, Any]] = {
    "1M": {"layers": 2, "width": 128, "heads": 2, "vocabulary": 2126, "context": 128, "rows": 16},
    "3M": {"layers": 3, "width": 192, "heads": 3, "vocabulary": 2126, "context": 128, "rows": 16},
    "15M": {"layers": 3, "width": 192, "heads": 3, "vocabulary": 50304, "context": 1024, "rows": 32},
    "90M": {"layers": 9, "width": 576, "heads": 9, "vocabulary": 50304, "context": 1024, "rows": 32},
}
ON = {"cpu": ("1M", "3M"), "cuda": ("15M", "90M")}
FASTER = {"1M": 1.3}
"""Times a plain trainer's tokens a second, on a CPU."""
STEPS, SKIPPED = 24, 4
"""Of a stretch, and those of them that are not timed."""
OURS, PLAIN = "holdfast", "Trainer"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short")
    parser.add_argument("--quick", action="store_true", help="under a minute: the smallest decoder, 2 rounds")
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds (7; 2 with --quick)")
    parser.add_argument("--threads", type=int, default=None, help="threads on a CPU (PyTorch's choice)")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    device, rounds = device_name(), options.rounds or (2 if options.quick else 7)
    figures = [compare(size, rounds, device) for size in (ON[device][:1] if options.quick else ON[device])]
    machine = hardware(device)
    print(f"{rounds} rounds of {STEPS} steps\n{machine}; torch {torch.__version__}\n")
    print(f"{'decoder':<10}{'parameters':>12}{'holdfast':>12}{'Trainer':>12}{'ratio':>8}{'range':>16}{'bar':>6}")
    short = []
    for f in figures:
        bar = FASTER.get(f["size"]) if device == "cpu" else None
        spread = f"{f['low']:.2f} - {f['high']:.2f}"
        print(
            f"{f['size']:<10}{f['parameters']:>12,}{f['tokens_per_second'][OURS]:>12,.0f}"
            f"{f['tokens_per_second'][PLAIN]:>12,.0f}{f['ratio']:>8.2f}{spread:>16}{bar or '':>6}"
        )
        if bar and f["ratio"] < bar:
            short.append(f"{f['size']}: {f['ratio']:.2f} times a plain Trainer's tokens a second, the bar is {bar}")
    print("\nTokens a second.")
    if options.save:
        from holdfast.support.files import write_json

        record = {"benchmark": "pretrain", "hardware": machine, "torch": torch.__version__, "rounds": rounds}
        write_json(options.save, {**record, "sizes": figures, "short": short})
    if options.check and short:
        print("\nShort of the bars:\n" + "\n".join(f"  {line}" for line in short), file=sys.stderr)
        return 1
    return 0


def compare(size: str, rounds: int, device: str) -> dict[str, Any]:
    """Both arms on one decoder, taking turns."""
    shape = SIZES[size]
    tokens = shape["rows"] * shape["context"]
    with tempfile.TemporaryDirectory() as place:
        arms = {OURS: ours(shape, Path(place), device), PLAIN: plain(shape, Path(place), device)}
        for trainer in arms.values():
            stretch(trainer)  # what is built at the first step is not timed
        seconds = [{name: stretch(trainer) for name, trainer in arms.items()} for _ in range(rounds)]
        model = arms[OURS].accelerator.unwrap_model(arms[OURS].model)
        parameters = sum(p.numel() for p in model.parameters())
        speed = {name: tokens / statistics.median(s[name] for s in seconds) for name in arms}
    ratios = [s[PLAIN] / s[OURS] for s in seconds]
    return {
        "size": size,
        "parameters": parameters,
        "tokens_per_step": tokens,
        "tokens_per_second": speed,
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
    }


def stretch(trainer: Any) -> float:
    """Seconds of a step, the median over a stretch of them."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())

    clock = Clock()
    trainer.add_callback(clock)
    trainer.train()
    trainer.remove_callback(clock)
    return float(statistics.median(np.diff(clock.times)[SKIPPED:]))


def decoder(shape: dict[str, Any], place: Path, name: str) -> Any:
    """A fresh decoder as the ladder makes it."""
    from transformers import AutoModelForCausalLM

    from holdfast.training.fresh_model import Decoder, decoder_config

    size = Decoder(
        architecture="olmo2", layers=shape["layers"], width=shape["width"], heads=shape["heads"],
        mlp=4 * shape["width"], context=shape["context"], more={},
    )  # fmt: skip
    torch.manual_seed(0)
    config = decoder_config(size, vocabulary=shape["vocabulary"], tokens={"eos_token_id": 0, "pad_token_id": 1})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def windows(shape: dict[str, Any]) -> np.ndarray:
    drawn = np.random.default_rng(0).integers(2, shape["vocabulary"], (shape["rows"] * (STEPS + 1), shape["context"]))
    return drawn.astype(np.uint16)


def common(shape: dict[str, Any], place: Path, device: str) -> dict[str, Any]:
    """Of both arms: the ladder's schedule, a stretch long."""
    from holdfast.papers.ladder.settings import TRAIN

    left_out = ("save_strategy", "save_total_limit", "fused_layers")
    return {
        **{k: v for k, v in TRAIN.items() if k not in left_out},
        "output_dir": str(place),
        "max_steps": STEPS,
        "per_device_train_batch_size": shape["rows"],
        "learning_rate": 3e-3,
        "save_strategy": "no",
        "logging_steps": STEPS,
        "disable_tqdm": True,
        "bf16": device == "cuda",
        "dataloader_pin_memory": device == "cuda",
    }


def ours(shape: dict[str, Any], place: Path, device: str) -> Any:
    """The trainer of `holdfast train`, with what a run logs."""
    import pyarrow as pa
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import SFTConfig

    from holdfast.papers.ladder.settings import TRAIN
    from holdfast.training.callbacks import MetricsFile
    from holdfast.training.tiny import build_tokenizer
    from holdfast.training.trainers import SFTRetentionTrainer

    rows = windows(shape)
    offsets = pa.array(np.arange(0, rows.size + 1, shape["context"]), pa.int32())
    column = pa.ListArray.from_arrays(offsets, pa.array(rows.reshape(-1)))
    Dataset(pa.table({"input_ids": column, "labels": column})).save_to_disk(str(place / "tokens"))
    arguments = SFTConfig(**common(shape, place, device), max_length=shape["context"])
    trainer = SFTRetentionTrainer(
        model=decoder(shape, place, "ours"),
        args=arguments,
        train_dataset=Dataset.load_from_disk(str(place / "tokens")),
        processing_class=build_tokenizer(),
        fused_layers=TRAIN["fused_layers"],
        callbacks=[MetricsFile(place / "metrics.jsonl")],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def plain(shape: dict[str, Any], place: Path, device: str) -> Any:
    """transformers' trainer as one would use it."""
    from datasets import Dataset
    from transformers import PrinterCallback, Trainer, TrainingArguments, default_data_collator

    rows = windows(shape).tolist()
    trainer = Trainer(
        model=decoder(shape, place, "plain"),
        args=TrainingArguments(**common(shape, place, device)),
        train_dataset=Dataset.from_dict({"input_ids": rows, "labels": rows}),
        data_collator=default_data_collator,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


if __name__ == "__main__":
    sys.exit(main())
