"""What measuring costs: perplexity beside the bare forward pass, multiple choice beside lm-evaluation-harness, two
processes beside one, the harness's start-up.

    python benchmarks/evaluation.py                 # 17M parameters; the table
    python benchmarks/evaluation.py --check         # exit 1 where a stated bar falls short
    python benchmarks/evaluation.py --quick         # under a minute, 1M parameters, fewer rounds
    python benchmarks/evaluation.py --save FILE     # the figures as JSON

Arms take turns within a round; a ratio is the median over rounds of the ratio within a round.

Perplexity. Tokens a second of `score_documents`, tokenising included, over those of `model(input_ids)` on rows of as
many tokens, both counting every token that goes through the model. "long" is one text in windows with a stride of half;
"packed" is many short documents that share rows, against rows of the same size without borders. The bare pass makes
`[tokens, vocabulary]` logits, which perplexity does not, so the ratio can exceed 1.

Multiple choice. Requests a second (one option of one question is a request) of the harness's own `HFLM.loglikelihood`
at the best of three batch sizes, against ours on the same requests, tokenising included on both sides. Questions are
built from the embedded corpus, with 4 options each: "texts" (options of several words, no examples), "letters" (options
of one token, the question shows its options) and "5-shot" (letters after five examples that all questions share, as
MMLU has them). The two must agree to 1e-4 nats.

Processes. `holdfast evaluate --num_processes 2`, both of one thread, beside one process of one thread: seconds in which
the entry is measured, gathering and figures included, the start of processes aside. Two cores have to be idle.

Start-up. In a fresh process with the harness imported: from a task's name to its first scored question, for one task
and for a group of 57, on local data, a tiny model; and what the harness's own index of tasks takes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from machine import device_name, hardware, synchronize

SIZES = {
    "small": {"width": 128, "layers": 2, "vocabulary": 4096, "questions": 16, "characters": 20_000},
    "default": {"width": 384, "layers": 6, "vocabulary": 8192, "questions": 24, "characters": 16_000},
}
WINDOW = 512
BATCHES = (1, 8, 16)
LOGLIKELIHOOD_DIFFERENCE = 1e-4
BARS = {
    "perplexity, long": 0.95,
    "perplexity, packed": 0.95,
    "choice, texts": 1.4,
    "choice, letters": None,
    "choice, 5-shot": 1.4,
    "processes, 2": 1.8,
}
"""Least allowed ratio to the peer. Letters without examples: the harness, too, asks once for all four."""
STARTUP_SECONDS = 2.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar falls short")
    parser.add_argument("--quick", action="store_true", help="under a minute: a small model, 3 rounds")
    parser.add_argument("--rounds", type=int, default=None, help="timed rounds (5; 3 with --quick)")
    parser.add_argument("--threads", type=int, default=None, help="threads on a CPU (PyTorch's choice)")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args(arguments)
    size_name = "small" if options.quick else "default"
    size, rounds = SIZES[size_name], options.rounds or (3 if options.quick else 5)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = device_name()
    model, tokenizer = make_model(size, device)
    parameters = sum(p.numel() for p in model.parameters())
    figures = [
        *perplexity(model, tokenizer, size, rounds, device),
        *multiple_choice(model, tokenizer, size, rounds, device),
        *([two_processes(model, tokenizer, size, rounds)] if device == "cpu" else []),
    ]
    started = startup()
    machine = hardware(device)
    print(
        f"Llama-architecture model, {parameters / 1e6:.0f}M parameters, window {WINDOW}; {rounds} rounds\n{machine}; "
        f"torch {torch.__version__}\n"
    )
    print(f"{'arm':<22}{'ours':>14}{'peer':>14}{'unit':>12}{'ratio':>9}{'range':>16}{'bar':>7}  notes")
    short = []
    for f in figures:
        bar = BARS[f["arm"]]
        bar_text = "" if bar is None else f"{bar:.2f}"
        spread = f"{f['low']:.2f} - {f['high']:.2f}"
        print(
            f"{f['arm']:<22}{f['ours']:>14,.0f}{f['peer']:>14,.0f}{f['unit']:>12}"
            f"{f['ratio']:>9.3f}{spread:>16}{bar_text:>7}  {f['note']}"
        )
        if bar is not None and f["ratio"] < bar and size_name == "default":
            short.append(f"{f['arm']}: {f['ratio']:.3f} of the peer's rate, the bar is {bar}")
        if f.get("difference", 0.0) > LOGLIKELIHOOD_DIFFERENCE:
            short.append(
                f"{f['arm']}: log-likelihoods differ by {f['difference']:.2g} nats, the bar is "
                f"{LOGLIKELIHOOD_DIFFERENCE}"
            )
    print(f"\n{'start-up, seconds':<34}{'ours':>8}{'bar':>8}")
    for name, seconds in started.items():
        bar_text = f"{STARTUP_SECONDS:.1f}" if name.startswith("ours") else ""
        print(f"{name:<34}{seconds:>8.2f}{bar_text:>8}")
        if name.startswith("ours") and seconds > STARTUP_SECONDS:
            short.append(f"start-up, {name}: {seconds:.2f} s, the bar is {STARTUP_SECONDS}")
    if options.save:
        from holdfast.support.files import write_json

        record = {
            "benchmark": "evaluation",
            "hardware": machine,
            "torch": torch.__version__,
            "size": size,
            "parameters": parameters,
            "rounds": rounds,
        }
        write_json(options.save, {**record, "figures": figures, "startup": started, "short": short})
    if options.check and short:
        print("\nShort of the bars:\n" + "\n".join(f"  {line}" for line in short), file=sys.stderr)
        return 1
    return 0


def make_model(size: dict[str, int], device: str) -> tuple[Any, Any]:
    """A random Llama and a tokenizer trained on the embedded corpus."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from holdfast.papers.worlds.embedded import embedded_corpus, train_tokenizer

    corpus = embedded_corpus()
    tokenizer = train_tokenizer([*corpus.prose_train, *corpus.code_train], vocab_size=size["vocabulary"])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=size["width"],
        intermediate_size=size["width"] * 8 // 3,
        num_hidden_layers=size["layers"],
        num_attention_heads=size["width"] // 64,
        num_key_value_heads=size["width"] // 64,
        max_position_embeddings=2048,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config).to(device).eval(), tokenizer


def take_turns(ours: Callable[[], Any], peer: Callable[[], Any], rounds: int, device: str) -> list[tuple[float, float]]:
    """(seconds of ours, seconds of the peer) a round, the order changing from round to round; one round before counts
    not."""
    found = []
    for number in range(rounds + 1):
        seconds = {}
        order = [("ours", ours), ("peer", peer)]
        for name, call in order if number % 2 else reversed(order):
            synchronize(device)
            began = time.perf_counter()
            call()
            synchronize(device)
            seconds[name] = time.perf_counter() - began
        found.append((seconds["ours"], seconds["peer"]))
    return found[1:]


def summary(
    arm: str, unit: str, seconds: list[tuple[float, float]], ours: float, peer: float, note: str, **more: Any
) -> dict[str, Any]:
    """Rates from seconds; `ours` and `peer` are how many units each did a round."""
    ratios = [(ours / a) / (peer / b) for a, b in seconds]
    middle = [statistics.median(column) for column in zip(*seconds, strict=True)]
    return {
        "arm": arm,
        "unit": unit,
        "ours": ours / middle[0],
        "peer": peer / middle[1],
        "ratio": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "note": note,
        **more,
    }


# --------------------------------------------------------------------------------------------------------- perplexity


def perplexity(model: Any, tokenizer: Any, size: dict[str, int], rounds: int, device: str) -> list[dict[str, Any]]:
    from holdfast.evaluation.text.documents import encode_document
    from holdfast.evaluation.text.perplexity import Windows, cut, score_documents
    from holdfast.papers.worlds.embedded import embedded_corpus

    everything = "\n\n".join(embedded_corpus().prose_train)
    prose = everything[: size["characters"]]
    # more of them, as trying whether a model keeps documents apart costs 200 tokens once
    pieces = [everything[i : i + 400] for i in range(0, 3 * size["characters"], 400)]
    figures = []
    for arm, documents, stride in (("long", [prose], WINDOW // 2), ("packed", pieces, WINDOW // 2)):
        encoded = [encode_document(d, tokenizer) for d in documents]
        tokens = sum(len(piece.ids) for piece in cut(encoded, window=WINDOW, stride=stride))
        ids = torch.tensor([[i for d in encoded for i in d.ids][:WINDOW]], device=device)
        rows = -(-tokens // WINDOW)

        def ours(documents: list[str] = documents, stride: int = stride) -> None:
            score_documents(model, tokenizer, documents, windows=Windows(window=WINDOW, stride=stride))

        def bare(ids: torch.Tensor = ids, rows: int = rows) -> None:
            with torch.no_grad():
                for _ in range(rows):
                    model(input_ids=ids, use_cache=False)

        note = f"{len(documents)} document(s), {tokens:,} tokens, stride {stride}"
        figures.append(
            summary(
                f"perplexity, {arm}",
                "tokens/s",
                take_turns(ours, bare, rounds, device),
                tokens,
                rows * ids.shape[1],
                note,
            )
        )
    return figures


# ---------------------------------------------------------------------------------------------------- multiple choice


def questions(kind: str, count: int, seed: int = 0) -> list[tuple[str, list[str]]]:
    """(context, options) from the embedded corpus: what comes next, the real line or one of three others?"""
    from holdfast.papers.worlds.embedded import embedded_corpus

    rng = random.Random(seed)
    lines = [
        line.strip()
        for text in embedded_corpus().prose_train
        for line in text.split("\n")
        if 40 < len(line.strip()) < 90
    ]
    found = []
    for _ in range(count + 5):
        place = rng.randrange(3, len(lines) - 1)
        given, options = " ".join(lines[place - 3 : place]), [lines[place], *rng.sample(lines, 3)]
        rng.shuffle(options)
        if kind == "texts":
            found.append((f"Question: what comes after this?\n{given}\nAnswer:", [f" {option}" for option in options]))
        else:
            shown = "\n".join(f"{letter}. {option}" for letter, option in zip("ABCD", options, strict=True))
            found.append((f"Question: what comes after this?\n{given}\n{shown}\nAnswer:", [" A", " B", " C", " D"]))
    if kind == "5-shot":
        before = "".join(f"{context}{rng.choice(options)}\n\n" for context, options in found[:5])
        return [(before + context, options) for context, options in found[5:]]
    return found[:count]


def multiple_choice(model: Any, tokenizer: Any, size: dict[str, int], rounds: int, device: str) -> list[dict[str, Any]]:
    from lm_eval.models.huggingface import HFLM

    from holdfast.evaluation.eval_mode import evaluation_mode
    from holdfast.evaluation.tasks.harness import without_traces
    from holdfast.evaluation.tasks.harness_model import SharedPrefixLM

    figures = []
    with without_traces(model, tokenizer, seed=0), evaluation_mode(model):
        for kind in ("texts", "letters", "5-shot"):
            count = size["questions"] if kind != "5-shot" else max(8, size["questions"] // 2)
            requests = [
                SimpleNamespace(args=(context, option))
                for context, options in questions(kind, count)
                for option in options
            ]
            peers = {
                b: HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=b, max_length=2048)
                for b in BATCHES
            }
            once = {}
            for batch, peer in peers.items():
                began = time.perf_counter()
                theirs = peer.loglikelihood(requests, disable_tqdm=True)
                synchronize(device)
                once[batch] = time.perf_counter() - began
            best = min(once, key=once.__getitem__)
            shared = SharedPrefixLM(model, tokenizer, batch_size=best, length=2048)
            ours = shared.loglikelihood(requests, disable_tqdm=True)
            difference = max(abs(a[0] - b[0]) for a, b in zip(ours, theirs, strict=True))
            seconds = take_turns(
                lambda shared=shared, requests=requests: shared.loglikelihood(requests, disable_tqdm=True),
                lambda peer=peers[best], requests=requests: peer.loglikelihood(requests, disable_tqdm=True),
                rounds,
                device,
            )
            note = f"{len(requests)} requests, HFLM with batch size {best}, difference {difference:.1e} nats"
            figures.append(
                summary(
                    f"choice, {kind}",
                    "requests/s",
                    seconds,
                    len(requests),
                    len(requests),
                    note,
                    difference=difference,
                    shared=shared.shared,
                )
            )
    return figures


# ------------------------------------------------------------------------------------------------------------ start-up

STARTUP = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import lm_eval.evaluator, lm_eval.models.huggingface, lm_eval.tasks, datasets, torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
task, data, folder = sys.argv[1:]
model = LlamaForCausalLM(LlamaConfig(vocab_size=512, hidden_size=16, intermediate_size=32,
    num_hidden_layers=1, num_attention_heads=1,
    num_key_value_heads=1, max_position_embeddings=512, bos_token_id=0, eos_token_id=1))
tokenizer = PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer.json", eos_token="<|end|>")
began = time.perf_counter()
if task == "TaskManager":
    lm_eval.tasks.TaskManager()
else:
    from holdfast.evaluation.kinds.task import TaskEntry
    from holdfast.evaluation.measures import Subject, measure
    entry = TaskEntry(suite="s", name="t", task=task, data=data, num_fewshot=0, limit=1)
    measure(entry, Subject(model=model, tokenizer=tokenizer))
print(json.dumps(time.perf_counter() - began))
"""


def two_processes(model: Any, tokenizer: Any, size: dict[str, int], rounds: int) -> dict[str, Any]:
    """The embedded corpus's held-out text, measured by two processes and by one."""
    from holdfast.papers.worlds.embedded import embedded_corpus
    from holdfast.support.files import read_json, write_jsonl

    text = "".join(embedded_corpus().code_heldout)[: 12 * size["characters"]]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        pieces = [{"text": text[start : start + 1200]} for start in range(0, len(text), 1200)]
        write_jsonl(folder / "text.jsonl", pieces)
        measured: list[dict[str, Any]] = []

        def run(processes: int) -> float:
            out = folder / f"out-{len(measured)}"
            words = ["model", "--perplexity", "text.jsonl", "--output_dir", str(out), "--num_processes", str(processes)]
            subprocess.run(
                [sys.executable, "-m", "holdfast", "evaluate", *words],
                cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=True,
            )  # fmt: skip
            measured.append(read_json(out / "model" / "measured.text.json"))
            return float(measured[-1]["seconds"])

        seconds = [(run(2), run(1)) for _ in range(min(rounds, 3))]
    if any(one["metrics"] != measured[0]["metrics"] for one in measured):
        raise RuntimeError("two processes and one came to different figures")
    tokens = measured[0]["settings"]["tokens"]
    return summary("processes, 2", "tokens/s", seconds, tokens, tokens, "one process of one thread; equal figures")


def startup() -> dict[str, float]:
    """Seconds by name, each in a process of its own."""
    from tokenizers import ByteLevelBPETokenizer

    from holdfast.evaluation.kinds.task import TaskEntry
    from holdfast.evaluation.tasks.tasks import _find_configs

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        bpe = ByteLevelBPETokenizer()
        bpe.train_from_iterator(["a text"], vocab_size=512, special_tokens=["<|end|>"], show_progress=False)
        bpe.save(folder + "/tokenizer.json")
        subjects = [c["dataset_name"] for c in _find_configs(TaskEntry(suite="s", name="m", task="mmlu"))]
        rows = {
            "arc_easy": [
                {"question": "Which?", "choices": {"text": ["this", "that"], "label": ["A", "B"]}, "answerKey": "A"}
            ]
            * 4,
            "mmlu": [
                {"question": "Which?", "subject": s, "choices": ["a", "b", "c", "d"], "answer": 1} for s in subjects
            ],
        }
        for task, name in (
            ("arc_easy", "ours, one task"),
            ("mmlu", "ours, a group of 57"),
            ("TaskManager", "the harness's own index"),
        ):
            data = Path(folder) / f"{task}.jsonl"
            data.write_text("".join(json.dumps(row) + "\n" for row in rows.get(task, [])))
            done = subprocess.run(
                [sys.executable, "-c", STARTUP, task, str(data), folder], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
            found[name] = float(done.stdout.strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
