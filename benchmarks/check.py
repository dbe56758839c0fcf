"""What `holdfast check` takes on models of 7 and 8 billion parameters: seconds and peak memory, with the rehearsal and
without it.

    python benchmarks/check.py                  # both models, the table
    python benchmarks/check.py --check          # exit 1 where a bar falls short
    python benchmarks/check.py --model qwen     # one of them
    python benchmarks/check.py --save FILE      # the figures as JSON

The models are a Llama 3 of 8 billion parameters (a vocabulary of 128,256) and a Qwen2.5 of 7.6 billion (152,064), by
their configurations, with a byte-level BPE tokenizer of that size and a chat template made here, and 400 conversations.
Their weights are files of 15 GB with holes that take no room on the disk: zeros, which are read like any others.
`--quick` reads the request, the weights and the rows; what the rehearsal takes beyond it is the difference. Seconds are
processor seconds of the command with one thread, which other work on the machine changes less than the clock. Bars: 10
seconds beyond `--quick`, 2 GB of resident memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import device_name, hardware

MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "llama": (
        "llama",
        {
            "vocab_size": 128_256,
            "hidden_size": 4096,
            "intermediate_size": 14_336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
        },
    ),
    "qwen": (
        "qwen2",
        {
            "vocab_size": 152_064,
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
        },
    ),
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
RUN = {
    "model_name_or_path": "model",
    "dataset_name": "rows.jsonl",
    "dtype": "bfloat16",
    "max_length": 2048,
    "gradient_accumulation_steps": 8,
    "gradient_checkpointing": True,
    "retention": [{"label_annealing": {"weight": 1.0}}],
    "evaluation": {"keep": ["rows.jsonl"]},
    "report_to": "none",
}
SECONDS, BYTES = 10.0, 2e9


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short")
    parser.add_argument("--model", choices=MODELS, help="one of the models")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    machine, rows, short = hardware(device_name()), [], []
    print(f"{machine}; {options.rounds} rounds, processor seconds\n")
    print(f"{'model':<8}{'all':>8}{'--quick':>9}{'beyond':>8}{'memory':>9}")
    for name in [options.model] if options.model else MODELS:
        row = measured(name, options.rounds)
        rows.append(row)
        seconds = f"{row['seconds']:>6.1f} s{row['quick']:>7.1f} s{row['beyond']:>6.1f} s"
        print(f"{name:<8}{seconds}{row['bytes'] / 1e9:>6.2f} GB")
        if row["beyond"] > SECONDS or row["bytes"] > BYTES:
            short.append(name)
    if options.save:
        from holdfast.support.files import write_json

        write_json(options.save, {"benchmark": "check", "hardware": machine, "rows": rows, "short": short})
    if options.check and short:
        print(f"\nShort of the bars: {', '.join(short)}", file=sys.stderr)
        return 1
    return 0


def measured(name: str, rounds: int) -> dict[str, Any]:
    """One model; of seconds the least over rounds, to which other work on the machine adds."""
    whole, quick = [], []
    peak = 0
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), name)
        for _ in range(rounds):
            quick.append(seconds_of(Path(folder), "--quick"))
            whole.append(seconds_of(Path(folder)))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    seconds = {"seconds": min(whole), "quick": min(quick), "beyond": min(whole) - min(quick)}
    return {"model": name, **seconds, "bytes": peak}


def seconds_of(place: Path, *words: str) -> float:
    """Processor seconds of `holdfast check`.

    Raises:
        RuntimeError: it does not say what it should.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "holdfast", "check", "run.yaml", "--use_cpu", *words]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    if done.returncode or ("request is sound" in done.stdout) == bool(words):
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write_files(place: Path, name: str) -> None:
    """A model without weights to speak of, rows, and a request."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, sizes = MODELS[name]
    tokenizer = large_tokenizer(sizes["vocab_size"] - 64)
    tokenizer.save_pretrained(place / "model")
    config = AutoConfig.for_model(kind, **sizes, tie_word_embeddings=False, max_position_embeddings=8192)
    config.eos_token_id, config.pad_token_id, config.bos_token_id = tokenizer.eos_token_id, 1, None
    config.architectures, config.dtype = [f"{kind.capitalize()}ForCausalLM"], torch.bfloat16
    config.save_pretrained(place / "model")
    with torch.device("meta"):
        tensors = AutoModelForCausalLM.from_config(config).state_dict()
    write_holes(place / "model" / "model.safetensors", {name: tuple(t.shape) for name, t in tensors.items()})
    rows = []
    for number in range(400):
        turns = [{"role": "user", "content": f"What is {number} and why? " * 12}]
        turns.append({"role": "assistant", "content": f"It is {number}, as everybody knows. " * 12})
        rows.append({"messages": turns})
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "run.yaml").write_text(json.dumps(RUN))


def write_holes(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file of zeros in bfloat16 that takes no room."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def large_tokenizer(size: int) -> Any:
    """A byte-level BPE of `size` tokens: all pairs of bytes, then longer ones, by merges, as a trained one has them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*special, *letters])}
    merges = []
    lengths = itertools.chain(itertools.product(letters, letters), itertools.product(["th", "in", "er", "an"], letters))
    more = ((f"{a}{b}", c) for a, b in itertools.product(letters, letters) for c in letters)
    for left, right in itertools.chain(lengths, more):
        if len(vocabulary) == size:
            break
        if left + right not in vocabulary:
            vocabulary[left + right] = len(vocabulary)
            merges.append((left, right))
    bpe = Tokenizer(models.BPE(vocabulary, merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|pad|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


if __name__ == "__main__":
    raise SystemExit(main())
