"""What `holdfast cost` says against what steps of training take: operations and memory, for several models and ways to
train.

    python benchmarks/cost.py                 # the table; about ten minutes on one core
    python benchmarks/cost.py --check         # exit 1 where an estimate is off by more than its bar
    python benchmarks/cost.py --quick         # under a minute, models so small that fixed costs show; no bars
    python benchmarks/cost.py --only lora     # the cases whose name holds a word
    python benchmarks/cost.py --explain       # parts of each estimate beside
    python benchmarks/cost.py --save FILE     # the figures as JSON

Each case is estimated from a config.json and training settings, then trained for two steps with the project's own
trainer. The bars are 15 % on operations and 10 % on memory.

Operations are counted by torch.utils.flop_counter through forward, loss, backward and optimiser of the first step,
which also checks the model's head on eight tokens. The counter knows no attention kernel of CPUs, no oneDNN product and
no grouped product, so they are added here by their shapes; a causal attention counts the keys up to each token, which
is what such kernels compute (in whole blocks). All products of the loss are PyTorch's in float32, so the counter sees
them; its element-wise part is C, and counts nothing on either side. Of bfloat16 weights the loss's products are the
project's own C on some processors and then not seen: the measured figure says what the counter saw.

Memory on a CPU is the largest sum of PyTorch's allocations (torch.profiler) from before the model is built to the end
of the second step; what libraries allocate on their own is not in it. On CUDA it is torch.cuda.max_memory_allocated.
"""

from __future__ import annotations

import argparse
import copy
import gc
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from machine import device_name, hardware, synchronize

BARS = {"flops": 0.15, "memory": 0.10}
"""Largest allowed relative errors."""
SIZES = {
    "quick": {"width": 128, "inner": 352, "layers": 2, "vocabulary": 2048, "window": 128, "rows": 2},
    "half": {"width": 256, "inner": 704, "layers": 4, "vocabulary": 4096, "window": 256, "rows": 2},
    "default": {"width": 512, "inner": 1408, "layers": 6, "vocabulary": 8192, "window": 512, "rows": 2},
}
"""`half` is for bfloat16 cases on CPUs, whose bfloat16 products can be many times slower than float32 ones."""
ANNEAL = [{"label_annealing": {"weight": 1.0}}]
DOCUMENTS = (0.31, 0.07, 0.22, 0.15, 0.25)
"""Lengths of packed documents as shares of a window; they fill it."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model and way to train it."""

    name: str
    family: str = "llama"
    retention: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    """Training settings beside the common ones."""
    model: dict[str, Any] = field(default_factory=dict)
    """Entries of the model's configuration beside the family's."""


LORA = {"use_peft": True, "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "lora_target_modules": "all-linear"}
CASES = (
    Case(name="llama"),
    Case(name="llama, checkpointing", settings={"gradient_checkpointing": True}),
    Case(name="llama, accumulation", settings={"gradient_accumulation_steps": 2}),
    Case(name="llama, label annealing (online)", retention=ANNEAL),
    Case(
        name="llama, checkpointing, label annealing (online)",
        retention=ANNEAL,
        settings={"gradient_checkpointing": True},
    ),
    Case(name="llama, l2 and ema", retention=[{"l2": {"coefficient": 0.01}}, {"ema": {}}]),
    Case(name="llama, lora", settings=LORA),
    Case(
        name="llama, lora, checkpointing, label annealing (adapter_off)",
        retention=ANNEAL,
        settings={**LORA, "gradient_checkpointing": True},
    ),
    Case(name="llama, bfloat16 weights", settings={"dtype": "bfloat16"}),
    Case(name="llama, bfloat16 autocast", settings={"bf16": True}),
    Case(name="llama, eager attention", settings={"attn_implementation": "eager"}),
    Case(name="qwen2, grouped queries, tied head", family="qwen2"),
    Case(name="qwen2, packed documents", family="qwen2", settings={"packing": True}),
    Case(
        name="qwen2, packed documents, checkpointing",
        family="qwen2",
        settings={"packing": True, "gradient_checkpointing": True},
    ),
    Case(name="qwen3, normalised queries", family="qwen3"),
    Case(name="mixtral, 2 of 4 experts", family="mixtral"),
    Case(name="mixtral, 2 of 4 experts, checkpointing", family="mixtral", settings={"gradient_checkpointing": True}),
    Case(name="gpt2", family="gpt2"),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short")
    parser.add_argument("--quick", action="store_true", help="under a minute: smaller models, no bars")
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose name holds it")
    parser.add_argument("--explain", action="store_true", help="also: the parts of each estimate")
    parser.add_argument("--threads", type=int, default=None, help="threads on a CPU (PyTorch's choice)")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    size, device = SIZES["quick" if options.quick else "default"], device_name()
    machine = hardware(device)
    print(f"{size}; {size['rows']} x {size['window']} tokens a micro-batch; {machine}; torch {torch.__version__}\n")
    print(f"{'case':<60}{'FLOP':>10}{'estimate':>10}{'error':>8}{'memory':>11}{'estimate':>11}{'error':>8}  at")
    rows = []
    for case in CASES:
        if options.only not in case.name:
            continue
        slow = (
            device == "cpu"
            and not options.quick
            and (case.settings.get("bf16") or case.settings.get("dtype") == "bfloat16")
        )
        row = measure(case, SIZES["half"] if slow else size, device)
        rows.append(row)
        f, m = row["flops"], row["memory"]
        print(
            f"{case.name:<60}{f['measured'] / 1e9:>8.2f} G{f['estimated'] / 1e9:>8.2f} G{f['error']:>+8.1%}"
            f"{m['measured'] / 1e6:>8.1f} MB{m['estimated'] / 1e6:>8.1f} MB{m['error']:>+8.1%}  {row['phase']}",
            flush=True,
        )
        if options.explain:
            print(
                "    "
                + ", ".join(
                    f"{name} {value / 1e6:.1f}"
                    for name, value in [*(("at " + n, v) for n, v in row["phases"].items()), *row["parts"].items()]
                )
            )
    short = falling_short(rows) if not options.quick else []
    if options.save:
        from holdfast.support.files import write_json

        bars = BARS if not options.quick else {}
        write_json(
            options.save,
            {
                "benchmark": "cost",
                "hardware": machine,
                "torch": torch.__version__,
                "size": size,
                "bars": bars,
                "short": short,
                "figures": rows,
            },
        )
    for line in short:
        print(f"SHORT  {line}", file=sys.stderr)
    return 1 if options.check and short else 0


def falling_short(rows: list[dict[str, Any]]) -> list[str]:
    """A sentence for each estimate that is off by more than its bar."""
    return [
        f"{row['case']}: {what} {row[what]['error']:+.1%} of what was measured, the bar is {bar:.0%}"
        for row in rows
        for what, bar in BARS.items()
        if abs(row[what]["error"]) > bar
    ]


def measure(case: Case, size: dict[str, int], device: str) -> dict[str, Any]:
    """Estimate and measurement of one case."""
    with tempfile.TemporaryDirectory() as place:
        config = model_config(case, size)
        config.save_pretrained(place)
        expected = estimated(case, size, place, device)
        flops, memory, seconds = trained(case, size, config, Path(place), device)

    def row(measured: float, guess: float) -> dict[str, float]:
        return {"measured": measured, "estimated": guess, "error": guess / measured - 1}

    return {
        "case": case.name,
        "size": size,
        "parameters": expected.architecture.parameters,
        "flops": row(flops, expected.flops.total),
        "memory": row(memory, expected.memory.peak),
        "phase": expected.memory.phase,
        "phases": expected.memory.phases,
        "parts": {part.name: part.bytes for part in expected.memory.parts},
        "seconds": round(seconds, 2),
    }


def model_config(case: Case, size: dict[str, int]) -> Any:
    """The model's transformers configuration."""
    from transformers import GPT2Config, LlamaConfig, MixtralConfig, Qwen2Config, Qwen3Config

    heads = size["width"] // 64
    common = {
        "vocab_size": size["vocabulary"],
        "hidden_size": size["width"],
        "intermediate_size": size["inner"],
        "num_hidden_layers": size["layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": 4 * size["window"],
        "tie_word_embeddings": False,
        "architectures": [
            {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel"}.get(
                case.family, f"{case.family.capitalize()}ForCausalLM"
            )
        ],
        **case.model,
    }
    if case.family == "gpt2":
        dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
        shape = {"n_embd": size["width"], "n_inner": 4 * size["width"], "n_layer": size["layers"], "n_head": heads}
        architectures = common["architectures"]
        return GPT2Config(
            vocab_size=size["vocabulary"],
            n_positions=4 * size["window"],
            architectures=architectures,
            **shape,
            **dropout,
        )
    if case.family == "qwen2":
        return Qwen2Config(**{**common, "num_key_value_heads": max(1, heads // 4), "tie_word_embeddings": True})
    if case.family == "qwen3":
        return Qwen3Config(**{**common, "num_key_value_heads": max(1, heads // 2), "head_dim": 64})
    if case.family == "mixtral":
        return MixtralConfig(
            **{**common, "intermediate_size": size["inner"] // 2, "num_local_experts": 4, "num_experts_per_tok": 2}
        )
    return LlamaConfig(**common)


def settings_of(case: Case, size: dict[str, int], model: str) -> dict[str, Any]:
    """Training settings of a case."""
    return {
        "model_name_or_path": model,
        "max_length": size["window"],
        "per_device_train_batch_size": size["rows"],
        "max_steps": 1,
        "gradient_checkpointing": False,
        "bf16": False,
        "retention": case.retention,
        **case.settings,
    }


def estimated(case: Case, size: dict[str, int], model: str, device: str) -> Any:
    """What `holdfast cost` says of one step."""
    from holdfast.runs.cost.estimate import estimate
    from holdfast.runs.cost.request import planned_config

    planned = planned_config(settings_of(case, size, model), data_needed=False)
    lengths = document_lengths(size) if case.settings.get("packing") else [size["window"]]
    return estimate(planned.config, model=planned.model, autocast=planned.autocast, lengths=lengths, device=device)


def document_lengths(size: dict[str, int]) -> list[int]:
    """Tokens of the packed documents of one window, which they fill."""
    lengths = [int(share * size["window"]) for share in DOCUMENTS]
    return [*lengths[:-1], size["window"] - sum(lengths[:-1])]


# ----------------------------------------------------------------------------------------------------------- a real run


def trained(case: Case, size: dict[str, int], config: Any, place: Path, device: str) -> tuple[float, float, float]:
    """Operations of one step, the largest sum of allocations up to the end of the second, and the seconds of the
    second."""
    from holdfast.ops.annealing_chunked import _Scratch

    _Scratch._kept.clear()  # buffers that an earlier case has left for the next call
    gc.collect()

    def two_steps() -> float:
        step = stepper(case, size, config, place, device)
        step()
        began = time.perf_counter()
        step()
        synchronize(device)
        return time.perf_counter() - began

    if device == "cuda":
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        seconds = two_steps()
        peak = float(torch.cuda.max_memory_allocated() - before)
    else:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            seconds = two_steps()
        peak = largest_sum(profile)
        del profile
    _Scratch._kept.clear()
    gc.collect()
    from torch.utils.flop_counter import FlopCounterMode

    step = stepper(case, size, config, place, device)
    with FlopCounterMode(display=False, custom_mapping=missing_products()) as counter:
        step()
    return float(counter.get_total_flops()), peak, seconds


def largest_sum(profile: Any) -> float:
    """The largest running sum of a profile's allocations, bytes."""
    events = [(e.start_ns(), e.nbytes()) for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for _, change in sorted(events, key=lambda e: e[0]):
        now += change
        peak = max(peak, now)
    return float(peak)


def missing_products() -> dict[Any, Callable[..., int]]:
    """Formulas for kernels that torch.utils.flop_counter does not know."""

    def pairs(query: Any, key: Any, causal: bool) -> int:
        return int(query[0] * query[1] * (query[2] * (query[2] + 1) // 2 if causal else query[2] * key[2]))

    def attention(query: Any, key: Any, value: Any, dropout: float = 0.0, is_causal: bool = False, **more: Any) -> int:
        return 2 * pairs(query, key, is_causal) * (query[3] + value[3])

    def attention_backward(
        grad: Any,
        query: Any,
        key: Any,
        value: Any,
        out: Any,
        sums: Any,
        dropout: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> int:
        return (
            2 * pairs(query, key, is_causal) * (3 * query[3] + 2 * value[3])
        )  # scores again, and gradients of queries, keys, weights and values

    def linear(inputs: Any, weight: Any, *more: Any, **named: Any) -> int:
        rows = 1
        for count in inputs[:-1]:
            rows *= count
        return int(2 * rows * inputs[-1] * weight[0])

    def grouped(first: Any, second: Any, *more: Any, **named: Any) -> int:
        return int(
            2 * first[-2] * first[-1] * second[-1]
        )  # rows are dealt out over groups: each row, or each inner place, once

    aten = torch.ops.aten
    found: dict[Any, Callable[..., int]] = {
        aten._scaled_dot_product_flash_attention_for_cpu: attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
        aten._grouped_mm: grouped,
    }
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        found[torch.ops.mkldnn._linear_pointwise] = linear
    return found


def stepper(case: Case, size: dict[str, int], config: Any, place: Path, device: str) -> Callable[[], None]:
    """One optimiser step of a case, as the trainer takes it."""
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    from holdfast.retention.registry import retention
    from holdfast.training.adapters import adapter_config
    from holdfast.training.mixin import RetentionMixin

    class BenchTrainer(RetentionMixin, Trainer):
        """The mixin over plain Trainer."""

    torch.manual_seed(0)
    config = copy.deepcopy(config)  # a model writes into its configuration which attention it took
    settings = case.settings
    options = {k: settings[k] for k in ("attn_implementation",) if k in settings}
    model = AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, settings.get("dtype", "float32")), **options
    ).to(device)
    if settings.get("use_peft"):
        from peft import get_peft_model

        from holdfast.runs.cost.request import planned_config

        planned = planned_config(settings_of(case, size, str(place)), data_needed=False).config
        model = get_peft_model(model, adapter_config(planned.model, planned.adapter))
    checkpointing = bool(settings.get("gradient_checkpointing"))
    if checkpointing and settings.get("use_peft"):
        model.enable_input_require_grads()
    if settings.get("packing"):
        from holdfast.training.document_attention import use_document_attention

        assert use_document_attention(model)
    accumulation = int(settings.get("gradient_accumulation_steps", 1))
    arguments = TrainingArguments(
        output_dir=str(place / "run"),
        report_to="none",
        save_strategy="no",
        learning_rate=1e-4,
        max_steps=1000,
        per_device_train_batch_size=size["rows"],
        gradient_accumulation_steps=accumulation,
        gradient_checkpointing=checkpointing,
        bf16=bool(settings.get("bf16")),
        use_cpu=device == "cpu",
        dataloader_pin_memory=False,
        disable_tqdm=True,
    )
    inputs = batch_of(case, size, device)
    data = [{"input_ids": inputs["input_ids"][0].tolist(), "labels": inputs["labels"][0].tolist()}]
    trainer: Any = BenchTrainer(model=model, args=arguments, retain=retention(case.retention), train_dataset=data)
    if checkpointing:
        model.gradient_checkpointing_enable(arguments.gradient_checkpointing_kwargs)
    trainer.create_optimizer_and_scheduler(1000)
    trainer.state.max_steps = 1000
    trainer.current_gradient_accumulation_steps = accumulation
    trainer.prepare_teacher()
    trainer.prepare_methods()
    items = torch.tensor(int((inputs["labels"][:, 1:] != -100).sum()) * accumulation, device=trainer.args.device)

    def step() -> None:
        for number in range(accumulation):
            trainer.accelerator.gradient_state._set_sync_gradients(number == accumulation - 1)
            trainer.training_step(trainer.model, dict(inputs), items)
        trainer._clip_grad_norm(trainer.model)
        trainer.optimizer.step()
        trainer.model.zero_grad()
        trainer.state.global_step += 1
        trainer.after_optimizer_step()

    return step


def batch_of(case: Case, size: dict[str, int], device: str) -> dict[str, Any]:
    """One micro-batch: whole rows, or as TRL packs documents: all rows in one, with positions and bounds."""
    rows, window = size["rows"], size["window"]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, size["vocabulary"], (rows, window), generator=generator)
    if not case.settings.get("packing"):
        return {
            "input_ids": ids.to(device),
            "labels": ids.clone().to(device),
            "attention_mask": torch.ones_like(ids).to(device),
        }
    lengths = document_lengths(size) * rows
    places = torch.cat([torch.arange(n) for n in lengths])[None]
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    ids = ids.view(1, -1)
    labels = ids.clone()
    labels[places == 0] = -100
    found: dict[str, Any] = {
        "input_ids": ids,
        "labels": labels,
        "position_ids": places,
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
    }
    found = {k: v.to(device) for k, v in found.items()}
    return {**found, "max_length_q": max(lengths), "max_length_k": max(lengths)}


if __name__ == "__main__":
    sys.exit(main())
