"""What tasks one after another cost beside their training: memory of the averages, time of the engine.

    python benchmarks/sequence.py             # some minutes
    python benchmarks/sequence.py --check     # exit 1, naming what falls short
    python benchmarks/sequence.py --quick     # under a minute: a smaller model, few steps; its figures mean little
    python benchmarks/sequence.py --save FILE

memory     the largest resident size of a process that fine-tunes a model of 60 million parameters: plainly, with SFA
           whose old model is the folder that it began with (`reference: FOLDER`), and with SFA that keeps a copy; above
           plain fine-tuning's, as a share. Bar for the folder: 2 %
engine     two tasks of a study through the engine, 1,500 steps each: seconds of a model's job beyond those of its run,
           as a share of them; mean over the jobs. A run's seconds are its stages' (loading, measuring, training,
           writing) and its page's, which is as long as that of the same run by `holdfast train` in a process of its own
           (the first of a process against the first). What a machine does once, compiling the C sources, is done
           before. Bar: 1 %
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import hardware

MEMORY, OVERHEAD = 0.02, 0.01
PEAK = """
import io, json, resource, sys
from rich.console import Console
from holdfast.studies.engine.session import execute_study
from holdfast.runs.config import train_config
from holdfast.runs.run import train
train(train_config(json.load(open(sys.argv[1]))), console=Console(file=io.StringIO()))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""

PAGE = """
import io, json, sys, time
from rich.console import Console
from holdfast.runs.config import train_config
from holdfast.runs.run import train
for number in range(3):
    config = train_config({**json.load(open(sys.argv[1])), "output_dir": f"{sys.argv[2]}-{number}"})
    began = time.monotonic()
    run = train(config, console=Console(file=io.StringIO()))
    print(time.monotonic() - began - sum(run.read().training["stages"].values()))
"""


def make_base(folder: Path, *, quick: bool) -> Path:
    """A Llama of random weights with a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = {"<unk>": 0, "<s>": 1, "</s>": 2, **{c: i + 3 for i, c in enumerate(alphabet)}}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Split("", "isolated")]
    )
    tokenizer.decoder = decoders.ByteLevel()
    width, layers = (128, 2) if quick else (768, 8)
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        max_position_embeddings=256,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>", unk_token="<unk>"
    )
    wrapped.save_pretrained(folder)
    return folder


def settings(base: Path, data: Path, *, steps: int) -> dict[str, Any]:
    """What both parts train with."""
    return {
        "model_name_or_path": str(base),
        "dataset_name": str(data),
        "max_steps": steps,
        "per_device_train_batch_size": 4,
        "max_length": 64,
        "packing": True,
        "packing_strategy": "wrapped",
        "learning_rate": 1e-4,
        "use_cpu": True,
        "dtype": "float32",
        "save_strategy": "no",
        "gradient_checkpointing": False,
        "report_to": "none",
        "logging_steps": 10,
    }


def write_texts(file: Path, *, about: str) -> Path:
    rows = [{"text": f"{about} number {i} is followed by {about} number {i + 1}, as {i % 7} says."} for i in range(400)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def memory(place: Path, *, quick: bool, rounds: int) -> dict[str, Any]:
    """Peak resident bytes of each arm, in turns, medians over rounds."""
    base, data = make_base(place / "base", quick=quick), write_texts(place / "rows.jsonl", about="river")
    arms = {
        "plain": [],
        "folder": [{"sfa": {"p": 0.5, "reference": str(base)}}],
        "copy": [{"sfa": {"p": 0.5, "reference_device": "device"}}],
    }
    peaks: dict[str, list[int]] = {name: [] for name in arms}
    for number in range(rounds):
        for name, retention in arms.items():
            values = settings(base, data, steps=4) | {
                "retention": retention,
                "output_dir": str(place / f"{name}-{number}"),
            }
            file = place / "settings.json"
            file.write_text(json.dumps(values))
            done = subprocess.run([sys.executable, "-c", PEAK, str(file)], capture_output=True, text=True, check=True)
            peaks[name].append(1024 * int(done.stdout.split()[-1]))
    medians = {name: statistics.median(found) for name, found in peaks.items()}
    return {
        "bytes": medians,
        "above_plain": {name: medians[name] / medians["plain"] - 1 for name in ("folder", "copy")},
        "weights_bytes": sum(f.stat().st_size for f in base.glob("*.safetensors")),
    }


def engine(place: Path, *, quick: bool) -> dict[str, Any]:
    """A study of two tasks and three arms with one worker."""
    from rich.console import Console

    from holdfast.checkpoints import native as of_checkpoints
    from holdfast.ops import native as of_ops
    from holdfast.records.run import RunFolder
    from holdfast.studies.engine.session import execute_study
    from holdfast.studies.engine.storage import OVERHEAD, Storage
    from holdfast.studies.sequence.plan import MODEL, SEED, SequenceConfig
    from holdfast.studies.sequence.study import SequenceStudy

    of_checkpoints.load(), of_ops.load()
    base = make_base(place / "small", quick=True)
    tasks = {}
    for name in ("river", "letter"):
        data, held = (write_texts(place / f"{name}_{part}.jsonl", about=name) for part in ("train", "heldout"))
        entry = {"perplexity": str(held), "name": "text", "window": 64, "max_documents": 40}
        tasks[name] = {"train": {"dataset_name": str(data)}, "learn": [entry]}
    train = settings(base, place / "unused", steps=10 if quick else 1500)
    del train["dataset_name"]
    asked = {"name": "cost", "train": train, "tasks": tasks, "arms": ["single", {"sfa": {"p": [1, 0.25]}}], "curve": 4}
    config = SequenceConfig.read({**asked, "output_dir": str(place / "study"), "keep_weights": "none"})
    execute_study(SequenceStudy(config), console=Console(file=io.StringIO()), workers=1)
    storage = Storage(config.storage)
    jobs = sorted(storage.state(storage.load(config.name)).latest, key=lambda job: job.started)
    single = next(job for job in jobs if not config.models[job.attributes[MODEL]].start)
    same = config.training(config.models[single.attributes[MODEL]], int(single.attributes[SEED]), start=str(base))
    file = place / "same.json"
    file.write_text(json.dumps(same))
    done = subprocess.run(
        [sys.executable, "-c", PAGE, str(file), str(place / "alone")], capture_output=True, text=True, check=True
    )
    pages = [float(line) for line in done.stdout.split()]
    shares, seconds = [], []
    for number, job in enumerate(jobs):
        run = RunFolder(config.folder(job.attributes[MODEL], int(job.attributes[SEED]))).read()
        own = sum(run.training["stages"].values()) + pages[min(number, len(pages) - 1)]
        made = SequenceStudy(config).results(job.attributes)[0]
        whole = float(made["seconds"]) + float(job.attributes[OVERHEAD])  # the job's own times have whole seconds
        seconds.append(whole - own)
        shares.append((whole - own) / own)
    return {
        "jobs": len(shares),
        "mean": statistics.fmean(shares),
        "largest": max(shares),
        "seconds": statistics.fmean(seconds),
        "seconds_each": seconds,
        "page_seconds": pages,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_CACHE"] = f"{folder}/cache"
        kept = memory(Path(folder), quick=options.quick, rounds=1 if options.quick else options.rounds)
        spent = engine(Path(folder), quick=options.quick)
    above = kept["above_plain"]
    plain = kept["bytes"]["plain"] / 1e6
    print(f"memory: plain {plain:,.0f} MB; SFA with a folder {above['folder']:+.1%}, with a copy {above['copy']:+.1%}")
    largest = f"at most {spent['largest']:.2%}, {spent['jobs']} jobs"
    print(f"engine: {spent['mean']:.2%} of a run ({spent['seconds']:.2f} s), {largest}")
    if options.save:
        from holdfast.support.files import write_json

        about = {"benchmark": "sequence", "hardware": hardware("cpu"), "quick": options.quick}
        write_json(options.save, {**about, "memory": kept, "engine": spent})
    short = [
        *(
            [f"memory of SFA with a folder: {above['folder']:+.1%}, bar {MEMORY:.0%}"]
            if above["folder"] > MEMORY
            else []
        ),
        *([f"engine: {spent['mean']:.2%}, bar {OVERHEAD:.0%}"] if spent["mean"] > OVERHEAD else []),
    ]
    for line in short:
        print(f"falls short: {line}")
    return 1 if options.check and short else 0


if __name__ == "__main__":
    sys.exit(main())
