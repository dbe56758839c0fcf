"""What a retention method costs per training step, as a ratio to direct fine-tuning in the same run.

    python benchmarks/train_step.py                 # 23M parameters; the table
    python benchmarks/train_step.py --size large    # 91M: the model of the bars on label annealing (see below)
    python benchmarks/train_step.py --explain       # where the seconds of each arm go
    python benchmarks/train_step.py --check         # exit 1 where a stated bar falls short or cannot be judged
    python benchmarks/train_step.py --quick         # under a minute, smaller model, fewer rounds
    python benchmarks/train_step.py --only token    # the arms whose names hold the word, beside direct
    python benchmarks/train_step.py --save FILE     # the figures as JSON

A step is what training does: forward, loss, backward, clipping, AdamW, through the project's own trainer. The arms take
turns, one step each a round, so that a machine's drift hits all of them alike; the ratio is the median over rounds of
the ratio within a round, with the 95 % interval of the median (order statistics). A bar is reached where the whole
interval lies at or below it, and falls short where the whole interval lies above; between, the machine was too noisy to
tell. The peer `naive` is label annealing as one would write it: teacher and student logits whole,
autograd through log-softmax.

Floors, counted in floating-point operations. F = a token's forward pass = 2 (layer parameters + H V) + 4 T H layers
(attention). Direct fine-tuning is 3 F; an online teacher adds F, so 1.333; a cached teacher adds its head's product
only, so 1 + 2 H V / 3 F; a LoRA step needs no weight gradients of the base, 2 F, so with a teacher 1.5. With 23M
parameters the head is a large part of the model and the cached floor is 1.06; in `large` its part is that of a model of
8B parameters with a vocabulary of 128k, floor 1.02. A floor counts products only: a ratio can come out below it where
the direct step has much else to do, as with adapters.

The cached arm trains on one batch, so its states come from the page cache: reading a disk that is slower than training
is not in it. Building the cache takes one teacher pass, once, before the steps that are timed. Both arms of OSF project
the gradients by holdfast's hooks, in the place of PEFT's; what is held to its bar is what projecting the factors once
more after the optimiser's step adds.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from machine import device_name, hardware, synchronize

SIZES = {
    "small": {"width": 256, "layers": 4, "vocabulary": 4096},
    "default": {"width": 512, "layers": 6, "vocabulary": 8192},
    "large": {"width": 768, "layers": 12, "vocabulary": 8192},
}
BATCH, LENGTH = 4, 256

ONLINE, CACHED, ADAPTER_OFF = (
    "label_annealing (online)",
    "label_annealing (cached)",
    "label_annealing, LoRA (adapter_off)",
)
NAIVE = "naive label annealing"
OSF_ALONE, OSF = "OSF, gradients projected alone", "OSF, projected after the step"
WEIGHTED = ("eaft", "dft", "talr")
BARS: dict[str, dict[str, float]] = {
    ONLINE: {"default": 1.38, "large": 1.38},
    CACHED: {"default": 1.10, "large": 1.06},
    ADAPTER_OFF: {"default": 1.60, "large": 1.60},
    "l2": {"default": 1.05, "large": 1.05},
    "sfa": {"default": 1.05, "large": 1.05},
    OSF: {"default": 1.15, "large": 1.15},
    **{f"token_weighting ({kind})": {"default": 1.02, "large": 1.02} for kind in WEIGHTED},
}
"""Largest allowed ratio to the direct step of the same kind (full, LoRA, OSF). SFA's period here is 250 steps, so its
arm shows what the hook costs between averages. The small model of --quick has no bars: its steps are too short."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short or cannot be judged")
    parser.add_argument("--quick", action="store_true", help="under a minute: --size small, 5 rounds")
    parser.add_argument("--size", choices=list(SIZES), default=None, help="model (default)")
    parser.add_argument(
        "--explain", action="store_true", help="also: seconds in teacher, student, op, backward and optimiser"
    )
    parser.add_argument("--only", nargs="+", default=None, metavar="WORD", help="arms whose names hold one, and direct")
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds (15; 5 with --quick)")
    parser.add_argument("--threads", type=int, default=None, help="threads on a CPU (PyTorch's choice)")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    size_name = options.size or ("small" if options.quick else "default")
    size, rounds = SIZES[size_name], options.rounds or (5 if options.quick else 15)
    if options.threads:
        torch.set_num_threads(options.threads)

    device = device_name()
    torch.manual_seed(0)
    rows = torch.randint(5, size["vocabulary"], (BATCH, LENGTH))
    inputs = {"input_ids": rows, "labels": rows.clone(), "attention_mask": torch.ones_like(rows)}
    with tempfile.TemporaryDirectory() as folder:
        arms = make_arms(Path(folder), size, inputs, device, options.only)
        seconds = take_turns(arms, rounds, device)
        breakdown = explain(arms, min(rounds, 5), device) if options.explain else {}

    figures = summarise(seconds, size, size_name)
    missed = [line for f in figures if (line := missed_bar(f)) is not None]
    machine = hardware(device)
    print(
        f"Llama-architecture model, {size}, about {parameters(size) / 1e6:.0f}M parameters; {BATCH} x {LENGTH} tokens "
        f"a step; {rounds} rounds"
    )
    print(f"{machine}; torch {torch.__version__}\n")
    print(f"{'arm':<38}{'s / step':>10}{'ratio to direct':>18}{'95 %':>18}{'floor':>8}{'bar':>8}")
    for f in figures:
        bar, floor = (f"{f[key]:.2f}" if f[key] else "" for key in ("bar", "floor"))
        print(
            f"{f['arm']:<38}{f['seconds']:>10.3f}{f['ratio']:>18.3f}{f['low']:>11.2f} - "
            f"{f['high']:.2f}{floor:>8}{bar:>8}"
        )
    if breakdown:
        print(f"\n{'seconds a step':<38}" + "".join(f"{part:>12}" for part in PARTS))
        for name, parts in breakdown.items():
            print(f"{name:<38}" + "".join(f"{parts[part]:>12.3f}" for part in PARTS))
    if options.save:
        from holdfast.support.files import write_json

        write_json(
            options.save,
            {
                "benchmark": "train_step",
                "hardware": machine,
                "torch": torch.__version__,
                "size": size,
                "rounds": rounds,
                "figures": figures,
                "breakdown": breakdown,
            },
        )
    for line in missed:
        print(line, file=sys.stderr)
    return 1 if options.check and missed else 0


def missed_bar(figure: dict[str, Any]) -> str | None:
    """That a figure is above its bar, or may be; None where it is not, or has none."""
    bar = figure["bar"]
    if bar is None or figure["high"] <= bar:
        return None
    said = f"{figure['arm']}: {figure['ratio']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}] of direct"
    if figure["low"] > bar:
        return f"SHORT  {said}, the bar is {bar}"
    return f"CANNOT TELL  {said}; the interval contains the bar, {bar}. Try more --rounds or a quieter machine"


def median_interval(values: list[float]) -> tuple[float, float]:
    """The narrowest interval between two order statistics that covers the median with at least 95 %; the range where
    there are fewer than six values."""
    ordered, n = sorted(values), len(values)
    below, place = 0.0, 0
    while (below := below + math.comb(n, place) / 2**n) <= 0.025:
        place += 1
    place = max(1, place)
    return ordered[place - 1], ordered[n - place]


def take_turns(arms: dict[str, Arm], rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds of each arm's step in each round; two rounds before are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(rounds + 2):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            began = time.perf_counter()
            arms[name].step()
            synchronize(device)
            if number >= 2:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def summarise(seconds: dict[str, list[float]], size: dict[str, int], size_name: str) -> list[dict[str, Any]]:
    """One row an arm: median seconds, ratio to the direct step of its kind with its interval, floor and bar."""
    floors, figures = floors_of(size), []
    for name, times in seconds.items():
        base = seconds[_direct_of(name)]
        ratios = [a / b for a, b in zip(times, base, strict=True)]
        low, high = median_interval(ratios)
        row = {
            "arm": name,
            "seconds": statistics.median(times),
            "ratio": statistics.median(ratios),
            "low": low,
            "high": high,
        }
        figures.append({**row, "floor": floors.get(name), "bar": BARS.get(name, {}).get(size_name)})
    return figures


def _direct_of(name: str) -> str:
    """The arm that another is held against."""
    return "direct, LoRA" if "LoRA" in name else OSF_ALONE if "OSF" in name else "direct"


def parameters(size: dict[str, int]) -> int:
    """Of all layers and the head; the embedding is a table and costs no operations."""
    return 12 * size["layers"] * size["width"] ** 2 + size["vocabulary"] * size["width"]


def floors_of(size: dict[str, int]) -> dict[str, float]:
    """Least possible ratios, from the count of operations (see the module docstring)."""
    forward = 2 * parameters(size) + 4 * LENGTH * size["width"] * size["layers"]
    cached = 1 + 2 * size["width"] * size["vocabulary"] / (3 * forward)
    return {ONLINE: 4 / 3, NAIVE: 4 / 3, CACHED: cached, ADAPTER_OFF: 1.5}


class Arm:
    """A method's step, and how to put a stopwatch at its parts."""

    def __init__(self, step: Callable[[], None], parts: Callable[[Stopwatch], None]) -> None:
        self.step = step
        self.attach = parts


def make_arms(
    folder: Path, size: dict[str, int], inputs: dict[str, Any], device: str, only: list[str] | None = None
) -> dict[str, Arm]:
    """All arms by name, or those whose names hold one of some words, and the direct ones."""
    from peft import LoraConfig, OSFConfig, get_peft_model

    from holdfast.retention.registry import retention

    matrices = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    lora = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    osf = OSFConfig(target_modules=matrices, effective_rank=0.5, task_type="CAUSAL_LM")
    annealing = {"weight": 1.0}
    specs: dict[str, tuple[Any, Any]] = {
        "direct": (None, None),
        ONLINE: ([{"label_annealing": {**annealing, "teacher": "online"}}], None),
        CACHED: ([{"label_annealing": {**annealing, "teacher": "cached", "cache_dir": str(folder / "cache")}}], None),
        "l2": ([{"l2": {"coefficient": 0.01}}], None),
        "sfa": ([{"sfa": {"p": 0.25}}], None),
        **{f"token_weighting ({k})": ([{"token_weighting": {"kind": k}}], None) for k in WEIGHTED},
        "direct, LoRA": (None, lora),
        ADAPTER_OFF: ([{"label_annealing": annealing}], lora),
        OSF_ALONE: (None, osf),
        OSF: (None, osf),
    }
    arms = {}
    wanted = [n for n in (*specs, NAIVE) if not only or n == "direct" or any(word in n for word in only)]
    wanted = list(dict.fromkeys(base for name in wanted for base in (_direct_of(name), name)))
    for name, (spec, adapter) in specs.items():
        if name not in wanted:
            continue
        model = build(size, device)
        trainer = make_trainer(
            folder / "runs", get_peft_model(model, adapter) if adapter else model, retention(spec), inputs
        )
        if name == OSF_ALONE:
            trainer._project_osf = None
        arms[name] = trainer_arm(trainer, inputs)
    if NAIVE in wanted:
        arms[NAIVE] = naive_arm(build(size, device), build(size, device), inputs)
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


def make_trainer(folder: Path, model: Any, retain: Any, inputs: dict[str, Any]) -> Any:
    """A trainer whose training data are the rows of the one batch; a cached teacher's states of them are computed and
    stored here."""
    from transformers import Trainer, TrainingArguments

    from holdfast.training.mixin import RetentionMixin

    class BenchTrainer(RetentionMixin, Trainer):
        """The mixin over plain Trainer, so that the benchmark runs where neither TRL nor datasets is installed."""

    arguments = TrainingArguments(
        output_dir=str(folder),
        report_to="none",
        save_strategy="no",
        learning_rate=1e-4,
        max_steps=1000,
        per_device_train_batch_size=BATCH,
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=True,
    )
    rows = [{key: value[row].tolist() for key, value in inputs.items()} for row in range(BATCH)]
    trainer = BenchTrainer(model=model, args=arguments, retain=retain, train_dataset=rows)
    trainer.create_optimizer_and_scheduler(1000)
    trainer.state.max_steps = 1000
    trainer.prepare_teacher()
    trainer.prepare_methods()
    return trainer


def trainer_arm(trainer: Any, inputs: dict[str, Any]) -> Arm:
    """One optimiser step as `Trainer` takes it: loss and backward, added gradients, clipping, AdamW, after-step
    hooks."""
    items = torch.tensor(BATCH * (LENGTH - 1), device=trainer.args.device)

    def step() -> None:
        trainer.training_step(trainer.model, dict(inputs), items)
        trainer._clip_grad_norm(trainer.model)
        trainer.optimizer.step()
        trainer.model.zero_grad()
        trainer.state.global_step += 1
        trainer.after_optimizer_step()

    def attach(watch: Stopwatch) -> None:
        from holdfast.training import forward

        watch.at(forward, "run_backbone", "student")
        watch.at(forward, "annealed_loss", "op")
        if getattr(trainer, "_teacher", None) is not None:
            watch.at(trainer._teacher, "hidden", "teacher")
        watch.at(trainer.accelerator, "backward", "backward")
        watch.at(trainer, "_clip_grad_norm", "optimiser")
        watch.at(trainer.optimizer, "step", "optimiser")
        watch.at(trainer.model, "zero_grad", "optimiser")
        watch.at(trainer, "after_optimizer_step", "method")
        for active in trainer.active:
            watch.at(active, "gradient", "method")

    return Arm(step, attach)


def naive_arm(model: Any, teacher: Any, inputs: dict[str, Any]) -> Arm:
    """Label annealing with whole logits and autograd."""
    from torch.nn.functional import cross_entropy, kl_div

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = {k: v.to(model.device) for k, v in inputs.items()}
    labels = batch.pop("labels")[:, 1:].flatten()

    class Pieces:
        """The parts by name, so that a stopwatch can be put at each."""

        def student(self) -> Any:
            return model(**batch).logits[:, :-1].flatten(0, 1).float()

        @torch.no_grad()
        def teacher(self) -> Any:
            return teacher(**batch).logits[:, :-1].flatten(0, 1).float()

        def loss(self, z: Any, w: Any) -> Any:
            return cross_entropy(z, labels) + kl_div(
                z.log_softmax(-1), w.log_softmax(-1), log_target=True, reduction="batchmean"
            )

        def backward(self, loss: Any) -> None:
            loss.backward()

        def update(self) -> None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    pieces = Pieces()

    def step() -> None:
        loss = pieces.loss(pieces.student(), pieces.teacher())
        pieces.backward(loss)
        pieces.update()

    def attach(watch: Stopwatch) -> None:
        for name, part in (
            ("student", "student"),
            ("teacher", "teacher"),
            ("loss", "op"),
            ("backward", "backward"),
            ("update", "optimiser"),
        ):
            watch.at(pieces, name, part)

    return Arm(step, attach)


# ------------------------------------------------------------------------------------------------------ where time goes

PARTS = ("total", "teacher", "student", "op", "backward", "optimiser", "method", "other")
"""`student`: the backbone's forward pass. `op`: cross-entropy and KL from hidden states, with their gradients in ours;
in the naive arm the forward pass of both losses only, its head products being in `student` and `teacher` and their
gradients in `backward`. `method`: what a method does between backward and the next step. `other`: the trainer."""


class Stopwatch:
    """Adds up seconds by part; functions are put under watch by replacing an attribute, and given back afterwards."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}
        self._undo: list[Callable[[], None]] = []

    def at(self, owner: Any, name: str, part: str) -> None:
        """Counts the time within `owner.name` as `part`."""
        original, own = getattr(owner, name), name in vars(owner)

        def timed(*args: Any, **kwargs: Any) -> Any:
            synchronize(self.device)
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                synchronize(self.device)
                self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began

        setattr(owner, name, timed)
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))

    def detach(self) -> None:
        """Puts everything back."""
        while self._undo:
            self._undo.pop()()


@contextmanager
def watched(arm: Arm, device: str) -> Iterator[Stopwatch]:
    watch = Stopwatch(device)
    try:
        arm.attach(watch)
        yield watch
    finally:
        watch.detach()


def explain(arms: dict[str, Arm], rounds: int, device: str) -> dict[str, dict[str, float]]:
    """Median seconds of each part of each arm's step, in rounds of their own: the stopwatch costs a little, on CUDA
    more."""
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, arm in arms.items():
            with watched(arm, device) as watch:
                began = time.perf_counter()
                arm.step()
                synchronize(device)
                total = time.perf_counter() - began
            samples[name].append({**watch.seconds, "total": total, "other": total - sum(watch.seconds.values())})
    return {
        name: {part: statistics.median([s.get(part, 0.0) for s in taken]) for part in PARTS}
        for name, taken in samples.items()
    }


if __name__ == "__main__":
    sys.exit(main())
