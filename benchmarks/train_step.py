"""What a retention method costs per training step, as a ratio to direct fine-tuning in the same run.

    python benchmarks/train_step.py            # table, and JSON to benchmarks/results/ with --save
    python benchmarks/train_step.py --check    # exit 1 where a stated bar falls short
    python benchmarks/train_step.py --quick    # under a minute, smaller model, fewer rounds

A step is what training does: forward, loss, backward, clipping, AdamW, through the project's own trainer. The arms take turns, one step each
a round, so that a machine's drift hits all of them alike; the ratio is the median over rounds of the ratio within a round. The peer `naive` is label
annealing as one would write it: teacher and student logits whole, autograd through log-softmax.

The floor for an online teacher is 8ND against 6ND operations: 1.333.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

BARS = {"label_annealing": 1.45, "label_annealing, LoRA (adapter_off)": 1.60, "l2": 1.05, "sfa": 1.05}
"""Largest allowed ratio to the direct step of the same kind (full or LoRA). A LoRA step needs no weight gradients of the base, so its floor
with a teacher is 6ND against 4ND: 1.5. SFA's period here is 250 steps, so its arm shows what the hook costs between averages."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short")
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds (15; 5 with --quick)")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args()
    rounds = options.rounds or (5 if options.quick else 15)
    size = {"width": 256, "layers": 4, "vocabulary": 4096} if options.quick else {"width": 512, "layers": 6, "vocabulary": 8192}
    batch, length = 4, 256

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = torch.randint(5, size["vocabulary"], (batch, length))
    inputs = {"input_ids": rows, "labels": rows.clone(), "attention_mask": torch.ones_like(rows)}
    items = torch.tensor(batch * (length - 1))
    with tempfile.TemporaryDirectory() as folder:
        arms = make_arms(Path(folder), size, inputs, items, device)
        seconds: dict[str, list[float]] = {name: [] for name in arms}
        for round_number in range(rounds + 2):
            for name, step in arms.items():
                began = time.perf_counter()
                step()
                if device == "cuda":
                    torch.cuda.synchronize()
                if round_number >= 2:
                    seconds[name].append(time.perf_counter() - began)

    figures, short = [], []
    for name, times in seconds.items():
        base = seconds["direct, LoRA" if "LoRA" in name else "direct"]
        ratios = [a / b for a, b in zip(times, base, strict=True)]
        ratio, bar = statistics.median(ratios), BARS.get(name)
        figures.append({"arm": name, "seconds": statistics.median(times), "ratio": ratio, "low": min(ratios), "high": max(ratios), "bar": bar})
        if bar is not None and ratio > bar:
            short.append(f"{name}: {ratio:.3f} of direct, the bar is {bar}")
    hardware = torch.cuda.get_device_name() if device == "cuda" else f"{_processor()}, {torch.get_num_threads()} thread(s)"
    parameters = 12 * size["layers"] * size["width"] ** 2 + size["vocabulary"] * size["width"]
    print(f"Llama-architecture model, {size}, about {parameters / 1e6:.0f}M parameters; {batch} x {length} tokens a step; {rounds} rounds")
    print(f"{hardware}; torch {torch.__version__}\n")
    print(f"{'arm':<38}{'s / step':>10}{'ratio to direct':>18}{'range':>18}{'bar':>8}")
    for f in figures:
        bar = f"{f['bar']:.2f}" if f["bar"] else ""
        print(f"{f['arm']:<38}{f['seconds']:>10.3f}{f['ratio']:>18.3f}{f['low']:>11.2f} - {f['high']:.2f}{bar:>8}")
    if options.save:
        from holdfast.results import write_json

        write_json(
            options.save,
            {"benchmark": "train_step", "hardware": hardware, "torch": torch.__version__, "size": size, "rounds": rounds, "figures": figures},
        )
    for line in short:
        print(f"SHORT  {line}", file=sys.stderr)
    return 1 if options.check and short else 0


def make_arms(folder: Path, size: dict[str, int], inputs: dict[str, Any], items: Any, device: str) -> dict[str, Callable[[], None]]:
    """One callable a step for each arm."""
    from peft import LoraConfig, get_peft_model

    from holdfast.retention.registry import retention

    adapter = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    specs: dict[str, tuple[Any, bool]] = {
        "direct": (None, False),
        "label_annealing": ([{"label_annealing": {"weight": 1.0}}], False),
        "l2": ([{"l2": {"coefficient": 0.01}}], False),
        "sfa": ([{"sfa": {"p": 0.25}}], False),
        "direct, LoRA": (None, True),
        "label_annealing, LoRA (adapter_off)": ([{"label_annealing": {"weight": 1.0}}], True),
    }
    arms = {}
    for name, (spec, lora) in specs.items():
        model = build(size, device)
        trainer = make_trainer(folder, get_peft_model(model, adapter) if lora else model, retention(spec))
        arms[name] = stepper(trainer, inputs, items)
    arms["naive label annealing"] = naive_stepper(build(size, device), build(size, device), inputs)
    return arms


def build(size: dict[str, int], device: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size["vocabulary"],
        hidden_size=size["width"],
        intermediate_size=size["width"] * 8 // 3,
        num_hidden_layers=size["layers"],
        num_attention_heads=size["width"] // 64,
        num_key_value_heads=size["width"] // 64,
    )
    return LlamaForCausalLM(config).to(device)


def make_trainer(folder: Path, model: Any, retain: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    from holdfast.training.mixin import RetentionMixin

    class BenchTrainer(RetentionMixin, Trainer):
        """The mixin over plain Trainer, so that the benchmark runs where neither TRL nor datasets is installed."""

    arguments = TrainingArguments(output_dir=str(folder), report_to="none", learning_rate=1e-4, max_steps=1000, disable_tqdm=True)
    trainer = BenchTrainer(model=model, args=arguments, retain=retain)
    trainer.create_optimizer_and_scheduler(1000)
    trainer.state.max_steps = 1000
    return trainer


def stepper(trainer: Any, inputs: dict[str, Any], items: Any) -> Callable[[], None]:
    """One optimiser step as `Trainer` takes it: loss and backward, added gradients, clipping, AdamW, after-step hooks."""

    def step() -> None:
        trainer.training_step(trainer.model, dict(inputs), items.to(trainer.args.device))
        trainer._clip_grad_norm(trainer.model)
        trainer.optimizer.step()
        trainer.model.zero_grad()
        trainer.state.global_step += 1
        trainer.after_optimizer_step()

    return step


def naive_stepper(model: Any, teacher: Any, inputs: dict[str, Any]) -> Callable[[], None]:
    """Label annealing with whole logits and autograd."""
    from torch.nn.functional import cross_entropy, kl_div

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = {k: v.to(model.device) for k, v in inputs.items()}
    labels = batch.pop("labels")[:, 1:].flatten()

    def step() -> None:
        z = model(**batch).logits[:, :-1].flatten(0, 1).float()
        with torch.no_grad():
            w = teacher(**batch).logits[:, :-1].flatten(0, 1).float()
        loss = cross_entropy(z, labels) + kl_div(z.log_softmax(-1), w.log_softmax(-1), log_target=True, reduction="batchmean")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
